package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"scribe/console"
	"scribe/internal/cell/audit"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
	"scribe/internal/transport/tlsfiles"
	"scribe/proto/scribe/v1/scribev1connect"
	"scribe/sqlserver"
)

// callers are the kinds of principals that may make a call.
type callers []principal.Kind

// Who may call. Members may call everything: they are the cell, and do for others what those may.
var (
	anyone    = callers{principal.Anonymous, principal.Client, principal.Agent, principal.Operator, principal.Member}
	knownOnes = callers{principal.Client, principal.Agent, principal.Operator, principal.Member}
	// people are programs and those who run the cell, but not the daemons of hosts: whoever takes over a host reads nothing.
	people    = callers{principal.Client, principal.Operator, principal.Member}
	operators = callers{principal.Operator, principal.Member}
	members   = callers{principal.Member}
)

// accessRules are what can be called: procedures, the other paths of the address as they are registered, and the calls of Flight. What is not in
// the table can't be called by anyone, nor registered. docs/security.md has the same table.
var accessRules = map[string]callers{
	scribev1connect.WriteServiceWriteProcedure:   knownOnes,
	scribev1connect.WriteServicePublishProcedure: knownOnes,

	scribev1connect.BatchServiceSubmitProcedure: members,

	scribev1connect.BackupServiceCreateBackupProcedure: operators,

	scribev1connect.AccessServiceIssueTokenProcedure:   operators,
	scribev1connect.AccessServiceListTokensProcedure:   operators,
	scribev1connect.AccessServiceRevokeTokenProcedure:  operators,
	scribev1connect.AccessServiceAddGrantsProcedure:    operators,
	scribev1connect.AccessServiceRemoveGrantsProcedure: operators,
	scribev1connect.AccessServiceListGrantsProcedure:   operators,
	scribev1connect.AccessServiceCheckAccessProcedure:  operators,
	scribev1connect.AccessServiceWatchAccessProcedure:  members,

	scribev1connect.ControlServiceCreateCategoryProcedure:    people,
	scribev1connect.ControlServiceGetCategoryProcedure:       knownOnes,
	scribev1connect.ControlServiceListCategoriesProcedure:    knownOnes,
	scribev1connect.ControlServiceUpdateCategoryProcedure:    people,
	scribev1connect.ControlServiceDeleteCategoryProcedure:    people,
	scribev1connect.ControlServiceWatchCategoriesProcedure:   members,
	scribev1connect.ControlServiceJoinProcedure:              members,
	scribev1connect.ControlServiceHeartbeatProcedure:         members,
	scribev1connect.ControlServiceLeaveProcedure:             members,
	scribev1connect.ControlServiceListMembersProcedure:       operators,
	scribev1connect.ControlServiceWatchMembersProcedure:      members,
	scribev1connect.ControlServiceGetStatusProcedure:         knownOnes,
	scribev1connect.ControlServiceListDroppedProcedure:       operators,
	scribev1connect.ControlServiceForgetDroppedProcedure:     members,
	scribev1connect.ControlServiceHoldPinsProcedure:          members,
	scribev1connect.ControlServiceShareQuotasProcedure:       members,
	scribev1connect.ControlServiceSetTenantQuotaProcedure:    people,
	scribev1connect.ControlServiceRemoveTenantQuotaProcedure: people,
	scribev1connect.ControlServiceListTenantQuotasProcedure:  people,
	scribev1connect.ControlServiceListPinsProcedure:          operators,

	scribev1connect.GroupServiceJoinGroupProcedure:      people,
	scribev1connect.GroupServiceHeartbeatGroupProcedure: people,
	scribev1connect.GroupServiceGroupPositionsProcedure: people,
	scribev1connect.GroupServiceCommitGroupProcedure:    people,
	scribev1connect.GroupServiceLeaveGroupProcedure:     people,
	scribev1connect.GroupServiceListGroupsProcedure:     people,
	scribev1connect.GroupServiceDescribeGroupProcedure:  people,
	scribev1connect.GroupServiceResetGroupProcedure:     people,
	scribev1connect.GroupServiceDeleteGroupProcedure:    people,

	scribev1connect.MetalogServiceOpenProcedure:            members,
	scribev1connect.MetalogServiceAppendProcedure:          members,
	scribev1connect.MetalogServiceReadProcedure:            operators,
	scribev1connect.MetalogServiceTailProcedure:            operators,
	scribev1connect.MetalogServiceSubscribeProcedure:       members,
	scribev1connect.MetalogServiceSeekProcedure:            operators,
	scribev1connect.MetalogServiceTrimProcedure:            members,
	scribev1connect.MetalogServiceSealProcedure:            members,
	scribev1connect.MetalogServiceRetireProcedure:          members,
	scribev1connect.MetalogServiceEraseProcedure:           members,
	scribev1connect.MetalogServiceListShardsProcedure:      operators,
	scribev1connect.MetalogServiceWatchShardsProcedure:     members,
	scribev1connect.MetalogServiceSequencesProcedure:       operators,
	scribev1connect.MetalogServiceAdvanceBoundaryProcedure: operators, // to ask where it is; only members raise it
	scribev1connect.MetalogServiceAnnotateProcedure:        members,
	scribev1connect.MetalogServiceAnnotationsProcedure:     operators,

	scribev1connect.NodeServiceDescribeNodeProcedure: operators,
	scribev1connect.NodeServiceListNodesProcedure:    operators,
	scribev1connect.NodeServiceAddNodeProcedure:      operators,
	scribev1connect.NodeServiceReplaceNodeProcedure:  operators,
	scribev1connect.NodeServiceRemoveNodeProcedure:   operators,
	scribev1connect.NodeServiceDetachCellProcedure:   operators,

	scribev1connect.ProcessServiceGetHealthProcedure:  operators,
	scribev1connect.ProcessServiceGetTrafficProcedure: operators,

	scribev1connect.ReadProxyServiceFetchProcedure: people,
	scribev1connect.ViewServiceViewsProcedure:      operators,
	scribev1connect.PushServicePushProcedure:       members,

	scribev1connect.ReadStreamServiceStreamProcedure: people,
	scribev1connect.ReadStreamServiceBoundsProcedure: people,

	"GET /livez":                anyone,
	"GET /readyz":               anyone,
	"/":                         anyone, // the console; at any other path nothing
	console.Pattern:             anyone, // it holds no data
	"GET /metrics":              people,
	"/debug/pprof/":             operators,
	"/debug/pprof/profile":      operators,
	"/debug/pprof/symbol":       operators,
	"/debug/pprof/trace":        operators,
	"/v1/query":                 people,
	"GET /v1/status":            knownOnes,
	"GET /v1/traffic":           operators,
	"/v1/tail/{category}":       people,
	"POST /v1/lines/{category}": knownOnes,

	sqlserver.FlightPath + "Handshake":      people,
	sqlserver.FlightPath + "ListFlights":    people,
	sqlserver.FlightPath + "GetFlightInfo":  people,
	sqlserver.FlightPath + "PollFlightInfo": people,
	sqlserver.FlightPath + "GetSchema":      people,
	sqlserver.FlightPath + "DoGet":          people,
	sqlserver.FlightPath + "DoPut":          people,
	sqlserver.FlightPath + "DoExchange":     people,
	sqlserver.FlightPath + "DoAction":       people,
	sqlserver.FlightPath + "ListActions":    people,
}

// rpcServices begins the patterns of services. Each of their procedures has a rule of its own.
const rpcServices = "/scribe.v1."

// String lists the kinds.
func (c callers) String() string {
	words := make([]string, len(c))
	for i, k := range c {
		words[i] = k.String()
	}
	return strings.Join(words, ", ")
}

// accessGuard decides who may call what, in one place for everything that the process serves. It decides nothing while access is not enforced.
type accessGuard struct {
	enforced bool
	trail    *audit.Trail
	denied   *prometheus.CounterVec // by kind; nil while not enforced
}

// newAccessGuard returns the guard of a process.
func newAccessGuard(enforced bool, trail *audit.Trail, registry prometheus.Registerer) (*accessGuard, error) {
	g := &accessGuard{enforced: enforced, trail: trail}
	if !enforced {
		return g, nil
	}
	g.denied = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "scribe_access_denied_total", Help: "Requests that were refused because their principals may not make them, by the kind of principal.",
	}, []string{"kind"})
	for _, k := range anyone {
		g.denied.WithLabelValues(k.String())
	}
	return g, registry.Register(g.denied)
}

// checkCall returns why the principal of a context may not make a call; nil if it may.
func (g *accessGuard) checkCall(ctx context.Context, call string) error {
	if !g.enforced {
		return nil
	}
	p, allowed := principal.FromContext(ctx), accessRules[call]
	if slices.Contains(allowed, p.Kind) {
		return nil
	}
	g.denied.WithLabelValues(p.Kind.String()).Inc()
	g.trail.Note(ctx, audit.Entry{Action: "call " + call, Outcome: audit.Denied, Reason: "kind"})
	if p.Kind != principal.Anonymous {
		return connect.NewError(connect.CodePermissionDenied, fmt.Errorf("%s %q may not call %s: %s may", p.Kind, p.Name, call, plural(allowed)))
	}
	why := rpc.CertificateError(ctx)
	if why == nil {
		why = errors.New("the connection proves nothing of who calls")
	}
	return connect.NewError(connect.CodeUnauthenticated, fmt.Errorf("%s needs to know who calls: %w; give a client certificate with --tls-cert and --tls-key (SCRIBE_CERT, SCRIBE_KEY)", call, why))
}

// plural names kinds in a sentence.
func plural(c callers) string {
	if len(c) == 0 {
		return "nobody"
	}
	words := make([]string, len(c))
	for i, k := range c {
		words[i] = k.String() + "s"
	}
	if last := len(words) - 1; last > 0 {
		return strings.Join(words[:last], ", ") + " and " + words[last]
	}
	return words[0]
}

// guardHandler lets a handler see only requests that its pattern's rule allows, before their bodies are read.
func (g *accessGuard) guardHandler(pattern string, h http.Handler) http.Handler {
	service := pattern == sqlserver.FlightPath || strings.HasPrefix(pattern, rpcServices)
	if _, ok := accessRules[pattern]; !ok && !service {
		panic(fmt.Sprintf("app: %s is not in the access table (access.go, docs/security.md)", pattern))
	}
	if !g.enforced {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call := pattern
		if service {
			if call = r.URL.Path; accessRules[call] == nil {
				http.NotFound(w, r) // of a newer version: the caller learns that there is no such procedure
				return
			}
		}
		if err := g.checkCall(r.Context(), call); err != nil {
			rpc.RefuseRequest(w, r, err)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// guardedMux is the mux of what a process serves to others.
type guardedMux struct {
	*http.ServeMux
	guard *accessGuard
}

// Handle implements rpc.Mux. It panics for a pattern that is not in the access table.
func (m *guardedMux) Handle(pattern string, h http.Handler) {
	m.ServeMux.Handle(pattern, m.guard.guardHandler(pattern, h))
}

// HandleFunc is Handle for a function.
func (m *guardedMux) HandleFunc(pattern string, h func(http.ResponseWriter, *http.Request)) {
	m.Handle(pattern, http.HandlerFunc(h))
}

// checkFlight returns why a call of Flight may not be made by the client of a connection, and the call's context with its principal: that of
// its token, if it has one, else of its certificate.
func (g *accessGuard) checkFlight(files *tlsfiles.Files, withToken func(context.Context, string) (context.Context, error)) func(context.Context, string, *tls.ConnectionState) (context.Context, error) {
	return func(ctx context.Context, method string, state *tls.ConnectionState) (context.Context, error) {
		if state != nil && files != nil && files.AsksClients() {
			v, _ := files.VerifyClient(state, nil)
			ctx = rpc.WithVerified(ctx, v)
		}
		if p, ok := peer.FromContext(ctx); ok {
			ctx = rpc.WithRemoteAddress(ctx, p.Addr.String())
		}
		headers, _ := metadata.FromIncomingContext(ctx)
		for _, header := range headers.Get("authorization") {
			var err error
			if ctx, err = withToken(ctx, header); err != nil {
				return ctx, err
			}
		}
		return ctx, g.checkCall(ctx, method)
	}
}
