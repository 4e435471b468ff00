package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/apache/arrow-go/v18/arrow/flight/gen/flight"
	"github.com/go-jose/go-jose/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"scribe/internal/base/config"
	"scribe/internal/cell/access"
	"scribe/internal/cell/enforce"
	"scribe/internal/cell/oidc"
	"scribe/internal/cell/oidc/oidctest"
	"scribe/internal/transport/certificates"
	"scribe/internal/transport/certificates/certtest"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
	"scribe/internal/transport/rpc/memhttp"
	"scribe/internal/transport/tlsfiles"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/sqlserver"
)

// procedures are the procedures of all services of the protocol.
func procedures() (list []string) {
	protoregistry.GlobalFiles.RangeFilesByPackage(scribev1.File_scribe_v1_write_proto.Package(), func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			s := file.Services().Get(i)
			for j := range s.Methods().Len() {
				list = append(list, fmt.Sprintf("/%s/%s", s.FullName(), s.Methods().Get(j).Name()))
			}
		}
		return true
	})
	return list
}

// flightCalls are the calls of Flight.
func flightCalls() (list []string) {
	for _, m := range flight.FlightService_ServiceDesc.Methods {
		list = append(list, sqlserver.FlightPath+m.MethodName)
	}
	for _, s := range flight.FlightService_ServiceDesc.Streams {
		list = append(list, sqlserver.FlightPath+s.StreamName)
	}
	return list
}

// TestAccessTable: the table has every procedure, every call of Flight and every other path of a process, and nothing else.
func TestAccessTable(t *testing.T) {
	files := newCellFiles(t)
	a, err := start(t, Direct, func(c *Config) {
		c.TLS, c.Pprof = files.config(), true
	})
	if err != nil {
		t.Fatal(err) // a path without a rule panics
	}
	defer stopNow(t, a)
	known := map[string]bool{}
	for _, call := range slices.Concat(procedures(), flightCalls()) {
		known[call] = true
		if accessRules[call] == nil {
			t.Errorf("%s is not in the table: say in access.go and docs/security.md who may call it", call)
		}
	}
	for call, allowed := range accessRules {
		if !slices.Contains(allowed, principal.Member) {
			t.Errorf("%s is not for members", call)
		}
		if known[call] {
			continue
		}
		method, path, ok := strings.Cut(call, " ")
		if !ok {
			method, path = http.MethodPost, call
		}
		req, err := http.NewRequestWithContext(t.Context(), method, "https://host"+strings.ReplaceAll(path, "{category}", "c"), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if _, pattern := a.mux.Handler(req); pattern != call {
			t.Errorf("%s is in the table, and not registered: %q serves that path", call, pattern)
		}
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a path without a rule is registered")
			}
		}()
		a.mux.HandleFunc("/debug/new", func(http.ResponseWriter, *http.Request) {})
	}()
}

// A row of the table in the document: a service with its calls, or a path with a word about it; and who may.
var (
	accessRow  = regexp.MustCompile("^\\| `([^`]+)` \\| ([^|]*) \\| ([a-z, ]+) \\|\n$")
	accessCall = regexp.MustCompile("`([^`]*)`")
)

// TestAccessDocument: docs/security.md has the same table.
func TestAccessDocument(t *testing.T) {
	text, err := os.ReadFile("../../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	documented, inTable := map[string]string{}, false
	for line := range strings.Lines(string(text)) {
		if !inTable {
			inTable = strings.HasPrefix(line, "| path | calls |")
			continue
		}
		m := accessRow.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		calls := []string{m[1]}
		if names := accessCall.FindAllStringSubmatch(m[2], -1); names != nil {
			calls = nil
			for _, name := range names {
				calls = append(calls, m[1]+name[1])
			}
		}
		for _, call := range calls {
			if documented[call] != "" {
				t.Errorf("%s is in the document twice", call)
			}
			documented[call] = m[3]
		}
	}
	for call, allowed := range accessRules {
		if got := documented[call]; got != allowed.String() {
			t.Errorf("%s: the document says %q, the table %q", call, got, allowed)
		}
		delete(documented, call)
	}
	for call := range documented {
		t.Errorf("%s is in the document, and not in the table", call)
	}
}

// caller is a principal that calls, or what only looks like one.
type caller struct {
	name string
	kind principal.Kind
	// cert and key are the files of its certificate; empty for none.
	cert, key string
	// token is one of an issuer; empty for none.
	token string
}

// callersOf makes callers of every kind for the cell of an authority.
func callersOf(t *testing.T, ca *certtest.Authority) []caller {
	t.Helper()
	list := []caller{{name: "none"}}
	add := func(name string, kind principal.Kind, cert, key string) {
		list = append(list, caller{name: name, kind: kind, cert: cert, key: key})
	}
	cert, key := certtest.New(t, "another cell", time.Now()).Client("mallory", principal.Member)
	add("wrong CA", principal.Anonymous, cert, key)
	cert, key = ca.Issue(certificates.Request{Name: "mallory", Kind: principal.Member, Now: time.Now().Add(-48 * time.Hour), Lifetime: time.Hour})
	add("expired", principal.Anonymous, cert, key)
	for _, k := range principal.Kinds {
		cert, key := ca.Client(k.String(), k)
		add(k.String(), k, cert, key)
	}
	return list
}

// client returns an HTTP client of the caller, which gives its certificate whatever that is worth.
func (c *caller) client(t *testing.T, dial rpc.Dial) *http.Client {
	t.Helper()
	cfg := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // what the server makes of the client is tried
	if c.cert != "" {
		pair, err := tls.LoadX509KeyPair(c.cert, c.key)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	via := &http.Transport{DialContext: dial, TLSClientConfig: cfg}
	t.Cleanup(via.CloseIdleConnections)
	return &http.Client{Transport: withToken{via, c.token}}
}

// withToken sends a token with each request.
type withToken struct {
	http.RoundTripper
	token string
}

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+w.token)
	}
	return w.RoundTripper.RoundTrip(r)
}

// fixedRights are who may do what, for good.
type fixedRights struct{ set *access.Set }

func (r fixedRights) Set() *access.Set                      { return r.set }
func (fixedRights) Known() bool                             { return true }
func (r fixedRights) Watch() (*access.Set, <-chan struct{}) { return r.set, nil }

// issuedCallers are callers with tokens of an issuer, and enforcers of two cells that know it. In the closed one clients may do to every category what there is to do, and who has the
// role operators may do everything; in the open one nobody has granted anything.
func issuedCallers(t *testing.T) (_ []caller, closed, open *enforce.Enforcer) {
	t.Helper()
	key := oidctest.NewKey(t, "k", jose.ES256)
	issuer := oidctest.New(t, time.Now(), key)
	cfg := config.Defaults[oidc.Config]()
	cfg.Issuer, cfg.Audiences, cfg.RolesClaim, cfg.RefetchEvery = issuer.URL, []string{oidctest.Audience}, "groups", 10*time.Millisecond
	verifier, err := oidc.New(cfg, oidc.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = verifier.Run(context.WithoutCancel(t.Context())) }()
	t.Cleanup(func() { _ = verifier.Close(context.WithoutCancel(t.Context())) })
	<-verifier.Tried()
	records := map[string][]byte{}
	for name, rule := range map[string]string{"oidc:ada": "write,read,query,group,manage:*", "role:oidc:operators": "all:*"} {
		if records[access.GrantKey(name)], err = access.EncodeRecord(&scribev1.AccessGrant{Principal: name, Rules: []string{rule}}); err != nil {
			t.Fatal(err)
		}
	}
	set, damaged := access.NewSet(records)
	if len(damaged) > 0 {
		t.Fatal(damaged)
	}
	if closed, err = enforce.New(enforce.Deps{Rights: fixedRights{set}, Issuer: verifier}); err != nil {
		t.Fatal(err)
	}
	if open, err = enforce.New(enforce.Deps{Rights: fixedRights{new(access.Set)}, Issuer: verifier}); err != nil {
		t.Fatal(err)
	}
	var list []caller
	add := func(name string, kind principal.Kind, by jose.JSONWebKey, claims map[string]any) {
		list = append(list, caller{name: "token " + name, kind: kind, token: oidctest.Sign(t, by, jose.ES256, issuer.Claims(claims), nil)})
	}
	add("of a client", principal.Client, key, nil)
	add("of an operator", principal.Operator, key, map[string]any{"groups": []string{"operators"}})
	add("expired", principal.Anonymous, key, map[string]any{"groups": []string{"operators"}, "exp": time.Now().Unix() - 1})
	add("of another audience", principal.Anonymous, key, map[string]any{"groups": []string{"operators"}, "aud": "another cell"})
	add("of another issuer", principal.Anonymous, key, map[string]any{"groups": []string{"operators"}, "iss": "https://mallory.example.net"})
	add("of a stranger's key", principal.Anonymous, oidctest.NewKey(t, "k", jose.ES256), map[string]any{"groups": []string{"operators"}})
	add("of an unknown key", principal.Anonymous, oidctest.NewKey(t, "k2", jose.ES256), map[string]any{"groups": []string{"operators"}})
	list = append(list, caller{name: "no token", token: "a.b.c"})
	return list, closed, open
}

// TestAccessMatrix calls everything by everyone, over TLS, and requires what the table says. The handlers are others: what they do is not tried
// here, only who gets there.
func TestAccessMatrix(t *testing.T) {
	files := newCellFiles(t)
	issued, closed, open := issuedCallers(t)
	t.Run("closed", func(t *testing.T) { tryMatrix(t, files, closed, append(callersOf(t, files.ca), issued...)) })
	t.Run("open", func(t *testing.T) {
		callers := callersOf(t, files.ca)
		for _, c := range issued { // their tokens prove nothing
			c.kind = principal.Anonymous
			callers = append(callers, c)
		}
		tryMatrix(t, files, open, callers)
	})
}

// tryMatrix calls everything by some callers, in the cell of an enforcer.
func tryMatrix(t *testing.T, files *cellFiles, enforcer *enforce.Enforcer, callers []caller) {
	t.Helper()
	guard, err := newAccessGuard(true, nil, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	mux := &guardedMux{http.NewServeMux(), guard}
	reached := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "reached by "+principal.FromContext(r.Context()).Name)
	})
	registered := map[string]bool{}
	for _, p := range procedures() {
		if service := p[:strings.LastIndexByte(p, '/')+1]; !registered[service] {
			registered[service] = true
			mux.Handle(service, reached)
		}
	}
	mux.Handle(sqlserver.FlightPath, reached)
	for call := range accessRules {
		if !strings.HasPrefix(call, rpcServices) && !strings.HasPrefix(call, sqlserver.FlightPath) {
			mux.Handle(call, reached)
		}
	}
	opened, err := tlsfiles.Open(files.config(), tlsfiles.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	protected := enforcer.Protect(mux)
	listen, server := memhttp.Listen(), rpc.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "" {
			mux.ServeHTTP(w, r)
			return
		}
		protected.ServeHTTP(w, r)
	}), nil)
	server.ServeTLS(listen, opened)
	defer func() { _ = server.Close(context.WithoutCancel(t.Context())) }()
	for _, c := range callers {
		t.Run(c.name, func(t *testing.T) {
			client := c.client(t, listen.Dial)
			for call, allowed := range accessRules {
				method, path, ok := strings.Cut(call, " ")
				if !ok {
					method, path = http.MethodPost, call
				}
				status, body := request(t, client, method, "https://localhost"+strings.ReplaceAll(path, "{category}", "c"))
				want := http.StatusOK
				switch {
				case c.token != "" && c.kind == principal.Client && call == "GET /metrics":
					want = http.StatusForbidden // without a rule: a client's certificate opens it only in an open cell
				case slices.Contains(allowed, c.kind):
				case c.kind == principal.Anonymous:
					want = http.StatusUnauthorized
				default:
					want = http.StatusForbidden
				}
				if status != want || want == http.StatusOK != strings.HasPrefix(body, "reached by") {
					t.Errorf("%s: %d %q, want %d", call, status, body, want)
				}
			}
			status, body := request(t, client, http.MethodPost, "https://localhost/scribe.v1.WriteService/Nothing")
			if c.token == "" && status != http.StatusNotFound || strings.HasPrefix(body, "reached") {
				t.Errorf("an unknown procedure: %d %q", status, body)
			}
			c.checkFlight(t, guard, opened, enforcer)
		})
	}
	if testutil.ToFloat64(guard.denied.WithLabelValues("client")) == 0 {
		t.Error("denials are not counted")
	}
}

// TestIssuerAtStart: a process that has the issuer's keys of before waits for an answer as well, which may have withdrawn some; and no longer than a fetch may take.
func TestIssuerAtStart(t *testing.T) {
	a, err := start(t, Direct, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stopNow(t, a)
	issuer := oidctest.New(t, time.Now(), oidctest.NewKey(t, "k", jose.ES256))
	var hangs atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hangs.Load() {
			<-r.Context().Done()
			return
		}
		_, _ = w.Write(issuer.KeySet())
	}))
	defer server.Close()
	cfg := config.Defaults[oidc.Config]()
	cfg.Issuer, cfg.Audiences, cfg.Keys, cfg.Timeout = issuer.URL, []string{oidctest.Audience}, server.URL, 300*time.Millisecond
	former, err := oidc.New(cfg, oidc.Deps{File: filepath.Join(a.cfg.Data, "oidc-keys")})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = former.Run(context.WithoutCancel(t.Context())) }()
	<-former.Tried()
	if err := errors.Join(former.Err(), former.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	hangs.Store(true)
	a.cfg.OIDC = cfg
	begun := time.Now()
	if _, err := a.startIssuer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := time.Since(begun); after < cfg.Timeout {
		t.Errorf("it waits for %v", after)
	}
}

// checkFlight asks for every call of Flight over a connection with the caller's certificate.
func (c *caller) checkFlight(t *testing.T, guard *accessGuard, files *tlsfiles.Files, enforcer *enforce.Enforcer) {
	t.Helper()
	state := new(tls.ConnectionState)
	if c.cert != "" {
		list, err := certificates.Read(c.cert)
		if err != nil {
			t.Fatal(err)
		}
		state.PeerCertificates = list
	}
	asked := t.Context()
	if c.token != "" {
		asked = metadata.NewIncomingContext(asked, metadata.Pairs("authorization", "Bearer "+c.token))
	}
	for _, call := range flightCalls() {
		ctx, err := guard.checkFlight(files, enforcer.WithCaller)(asked, call, state)
		if allowed := slices.Contains(accessRules[call], c.kind); allowed != (err == nil) {
			t.Errorf("%s: %v", call, err)
		} else if allowed && principal.FromContext(ctx).Kind != c.kind {
			t.Errorf("%s: the context has no principal", call)
		}
	}
}

func request(t *testing.T, client *http.Client, method, url string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// TestAccessNotEnforced: without client certificates everything is open, as it was.
func TestAccessNotEnforced(t *testing.T) {
	guard, err := newAccessGuard(false, nil, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	for call := range accessRules {
		if err := guard.checkCall(t.Context(), call); err != nil {
			t.Errorf("%s: %v", call, err)
		}
	}
}

// TestAccessWords: a refusal says what was called, by whom, why not, and what to do.
func TestAccessWords(t *testing.T) {
	guard, err := newAccessGuard(true, nil, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	agent := principal.NewContext(t.Context(), principal.Principal{Kind: principal.Agent, Name: "web1"})
	err = guard.checkCall(agent, "/scribe.v1.ReadProxyService/Fetch")
	if connect.CodeOf(err) != connect.CodePermissionDenied || !strings.Contains(err.Error(), `agent "web1" may not call /scribe.v1.ReadProxyService/Fetch: clients, operators and members may`) {
		t.Errorf("an agent that reads: %v", err)
	}
	if err := guard.checkCall(agent, "/nowhere"); err == nil || !strings.Contains(err.Error(), "nobody may") {
		t.Errorf("what is not in the table: %v", err)
	}
	expired := rpc.WithVerified(t.Context(), &tlsfiles.Verified{Err: errors.New("it expired")})
	err = guard.checkCall(expired, "/scribe.v1.WriteService/Write")
	if connect.CodeOf(err) != connect.CodeUnauthenticated || !strings.Contains(err.Error(), "it expired; give a client certificate with --tls-cert") {
		t.Errorf("an expired certificate: %v", err)
	}
}
