package sqlserver

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc/metadata"

	"scribe/columnar/sql"
	"scribe/internal/cell/access"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// The server reads as a member of the cell, so it answers for what its clients may read. A query names one category; the right to it is
// asked before anything of it is looked up, and watched while the query runs.

// sees reports whether the caller of ctx may know of a category.
func (g *Server) sees(ctx context.Context, c *scribev1.Category) bool {
	return g.deps.Rights == nil || g.deps.Rights.Sees(ctx, c)
}

// checkRights returns an error unless the query's caller may query its category. Afterwards the query ends when that changes.
func (q *runningQuery) checkRights() error {
	rights := q.g.deps.Rights
	if rights == nil {
		return nil
	}
	parsed, show, err := sql.ParseStatement(q.req.SQL)
	if err != nil {
		return q.clientFailure(clientError(err))
	}
	if show != nil { // it lists what the caller may see
		if err := rights.AllowAny(q.ctx, access.Query, "query"); err != nil {
			return denialError(err)
		}
		return nil
	}
	watched, limits, unwatch, err := rights.BeginRead(q.ctx, access.Query, parsed.From.Category)
	if err != nil {
		return denialError(err)
	}
	q.ctx, q.unwatch, q.req.limits = watched, unwatch, limits
	return nil
}

// isDenial reports whether an error is one of Rights.
func isDenial(err error) bool {
	switch rpc.ReasonOf(err) { //nolint:exhaustive // denials
	case scribev1.Reason_REASON_DENIED, scribev1.Reason_REASON_UNAUTHENTICATED:
		return true
	}
	return false
}

// denialError returns an error of Rights as the client sees it.
func denialError(err error) *Error {
	switch rpc.ReasonOf(err) {
	case scribev1.Reason_REASON_DENIED:
		return &Error{Kind: KindDenied, Message: rpc.Message(err)}
	case scribev1.Reason_REASON_UNAUTHENTICATED:
		return &Error{Kind: KindUnproven, Message: rpc.Message(err)}
	default:
		return &Error{Kind: KindUnavailable, Message: rpc.Message(err)}
	}
}

// allowFlight returns an error unless the caller of a Flight call may query something.
func (g *Server) allowFlight(ctx context.Context) error {
	if g.deps.Rights == nil {
		return nil
	}
	if err := g.deps.Rights.AllowAny(ctx, access.Query, "query"); err != nil {
		return rpcError(denialError(err))
	}
	return nil
}

// Handshake implements flight.FlightServer: clients that know only names and passwords give any name, and a token as the password, which
// was checked before. The answer's header is the one that they send from then on.
func (readOnly) Handshake(s flight.FlightService_HandshakeServer) error {
	headers, _ := metadata.FromIncomingContext(s.Context())
	for _, header := range headers.Get("authorization") {
		if token, ok := rpc.AuthorizationToken(header); ok {
			return s.SendHeader(metadata.Pairs("authorization", "Bearer "+token))
		}
	}
	return nil
}
