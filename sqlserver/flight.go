package sqlserver

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/flight/flightsql"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/columnar/sql"
	"scribe/internal/transport/rpc"
)

// maxFlightRequest bounds a message from a Flight client: a query in a ticket.
const maxFlightRequest = 1 << 20

// maxFlightHeaders bounds the headers of a call, as those of HTTP are.
const maxFlightHeaders = 64 << 10

// FlightSecurity says how Flight is served, and to whom.
type FlightSecurity struct {
	// TLS is the configuration of connections; nil serves without TLS.
	TLS *tls.Config
	// Check returns the context of a call with its principal, or why the call is refused, a Connect error. state is nil without TLS. A nil Check
	// refuses nothing.
	Check func(ctx context.Context, method string, state *tls.ConnectionState) (context.Context, error)
}

// checkCall asks for a call.
func (s *FlightSecurity) checkCall(ctx context.Context, method string) (context.Context, error) {
	if s.Check == nil {
		return ctx, nil
	}
	var state *tls.ConnectionState
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			state = &info.State
		}
	}
	ctx, err := s.Check(ctx, method, state)
	if err != nil {
		return ctx, status.Error(codes.Code(connect.CodeOf(err)), rpc.Message(err)) // the codes have the same numbers
	}
	return ctx, nil
}

// ServeFlight answers Flight SQL on l, which it takes over, until the server closes. It returns immediately; failed receives the
// error of a listener that stopped by itself.
func (g *Server) ServeFlight(l net.Listener, security FlightSecurity) (failed <-chan error, err error) {
	s, err := g.newFlightServer(security)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	ended := make(chan error, 1)
	g.serving.Go(func() {
		if err := s.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			ended <- fmt.Errorf("serve Flight SQL on %v: %w", l.Addr(), err)
		}
	})
	return ended, nil
}

// FlightPath is the path of the calls of Flight.
const FlightPath = "/arrow.flight.protocol.FlightService/"

// FlightHandler answers Flight SQL at FlightPath of a server that speaks HTTP/2, and that checks who calls.
func (g *Server) FlightHandler() (http.Handler, error) { return g.newFlightServer(FlightSecurity{}) }

// newFlightServer makes a server of Flight SQL that stops when g closes.
func (g *Server) newFlightServer(security FlightSecurity) (*grpc.Server, error) {
	answers, err := newFlightSQL(g)
	if err != nil {
		return nil, err
	}
	creds := insecure.NewCredentials()
	if security.TLS != nil {
		creds = credentials.NewTLS(security.TLS)
	}
	s := grpc.NewServer(
		grpc.Creds(creds), grpc.MaxRecvMsgSize(maxFlightRequest), grpc.MaxConcurrentStreams(100), grpc.MaxHeaderListSize(maxFlightHeaders), grpc.ConnectionTimeout(10*time.Second),
		grpc.ChainUnaryInterceptor(security.guardUnary, g.guardUnary), grpc.ChainStreamInterceptor(security.guardStream, g.guardStream),
		// A client that vanished without closing is detected after Time + Timeout.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 15 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	)
	flight.RegisterFlightServiceServer(s, readOnly{flightsql.NewFlightServer(answers), answers})
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.calls.Closed() {
		return nil, errClosing
	}
	g.mu.flights[s] = struct{}{}
	return s, nil
}

// readOnly refuses uploads other than the values of a prepared statement's parameters before decoding any of them.
type readOnly struct {
	flight.FlightServer
	sql *flightSQL
}

// DoPut implements flight.FlightServer.
func (r readOnly) DoPut(s flight.FlightService_DoPutServer) error { return r.sql.bindPrepared(s) }

// DoExchange implements flight.FlightServer.
func (readOnly) DoExchange(flight.FlightService_DoExchangeServer) error {
	return status.Error(codes.Unimplemented, "nothing can be exchanged: ask with GetFlightInfo and DoGet")
}

// guardUnary refuses calls that may not be made.
func (s *FlightSecurity) guardUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx, err := s.checkCall(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return next(ctx, req)
}

// guardStream refuses calls that may not be made, before anything of them is read.
func (s *FlightSecurity) guardStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, err := s.checkCall(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return next(srv, checkedStream{stream, ctx})
}

// checkedStream is a stream whose context has the principal.
type checkedStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // the stream's
}

// Context implements grpc.ServerStream.
func (s checkedStream) Context() context.Context { return s.ctx }

// guardUnary turns a panic of a call into an error, so that it does not end the process.
func (g *Server) guardUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (res any, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = g.panicError(info.FullMethod, v)
		}
	}()
	if err := g.allowFlight(ctx); err != nil {
		return nil, err
	}
	return next(ctx, req)
}

func (g *Server) panicError(method string, v any) error {
	g.log.Error("handler panicked", "procedure", method, "panic", v, "stack", string(debug.Stack()))
	return status.Errorf(codes.Internal, "%s failed with a bug; the server's log has the stack", method)
}

// guardStream ends a call whose client accepts no data. A blocked send ends only with its stream, and the stream only when
// guardStream returns, so the handler runs in another goroutine.
func (g *Server) guardStream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if err := g.allowFlight(s.Context()); err != nil {
		return err
	}
	watched := &watchedStream{ServerStream: s, timeout: g.cfg.StallTimeout, stalled: make(chan struct{}, 1)}
	done := make(chan error, 1)
	g.serving.Go(func() {
		defer func() {
			if v := recover(); v != nil {
				done <- g.panicError(info.FullMethod, v)
			}
		}()
		done <- next(srv, watched)
	})
	select {
	case err := <-done:
		return err
	case <-watched.stalled:
		g.metrics.stalled.Inc()
		return status.Errorf(codes.DeadlineExceeded, "the client took nothing for %v", g.cfg.StallTimeout)
	}
}

type watchedStream struct {
	grpc.ServerStream
	timeout time.Duration
	stalled chan struct{}
}

// SendMsg implements grpc.ServerStream.
func (s *watchedStream) SendMsg(m any) error {
	t := time.AfterFunc(s.timeout, func() { s.stalled <- struct{}{} })
	defer t.Stop()
	return s.ServerStream.SendMsg(m)
}

// flightSQL answers the commands of Flight SQL.
type flightSQL struct {
	flightsql.BaseServer
	g *Server
}

// ticketMagic is the prefix of query handles; its digit is the version of the JSON after it.
const ticketMagic = "SCRQ1"

// queryTicket is a query as clients hold it: its parameters, and its id. The handle of a prepared statement also has the values of the query's
// parameters, beside its text: whoever bound values once may bind others with the same handle.
type queryTicket map[string]string

// ticketValues is the key of the values, a JSON list.
const ticketValues = "values"

// ticketBound is the key that says that the text has values already.
const ticketBound = "bound"

// newTicket returns the ticket of a request. Times given as ages are converted to instants.
func newTicket(r *Request) queryTicket {
	t := queryTicket{"sql": r.SQL, "from": r.From}
	if !r.FromTime.IsZero() {
		t["from"] = r.FromTime.UTC().Format(time.RFC3339Nano)
	}
	if !r.To.IsZero() {
		t["to"] = r.To.UTC().Format(time.RFC3339Nano)
	}
	if r.Follow {
		t["follow"] = "1"
	}
	if r.Bound {
		t[ticketBound] = "1"
	}
	if r.Limit >= 0 {
		t["limit"] = strconv.FormatInt(r.Limit, 10)
	}
	if r.Timeout > 0 {
		t["timeout"] = r.Timeout.String()
	}
	return t
}

func (t queryTicket) encodeTicket() []byte {
	text, _ := json.Marshal(t)
	return append([]byte(ticketMagic), text...)
}

// decodeTicket decodes a handle, which is untrusted.
func decodeTicket(handle []byte, now time.Time) (queryTicket, *Request, error) {
	var t queryTicket
	text, ok := strings.CutPrefix(string(handle), ticketMagic)
	if !ok || len(handle) > maxBody || json.Unmarshal([]byte(text), &t) != nil || t == nil { // JSON's null is a nil map
		return t, nil, errorf(KindInvalid, "the ticket or handle is not one of this version of scribe: ask again with GetFlightInfo")
	}
	req, err := t.toRequest(now)
	return t, req, err
}

func (t queryTicket) toRequest(now time.Time) (*Request, error) {
	r := &Request{Bound: t[ticketBound] != ""}
	if err := r.setFields(func(name string) string { return t[name] }, now); err != nil || t[ticketValues] == "" {
		return r, err
	}
	var values []sql.Parameter
	if err := json.Unmarshal([]byte(t[ticketValues]), &values); err != nil {
		return r, errorf(KindInvalid, "the values of the handle can't be read: %v", err)
	}
	return r, r.bindValues(values)
}

// headerPrefix is the prefix of call headers with settings that the text of a query can't express.
const headerPrefix = "scribe-"

// A requestFinder returns the request of a call.
type requestFinder func(ctx context.Context) (*Request, error)

// ofText finds the request of a statement: its text with the call's headers.
func (f *flightSQL) ofText(text string) requestFinder {
	return func(ctx context.Context) (*Request, error) {
		headers, _ := metadata.FromIncomingContext(ctx)
		t := queryTicket{"sql": text}
		for _, name := range []string{"from", "to", "follow", "limit", "timeout"} {
			if v := headers.Get(headerPrefix + name); len(v) > 0 {
				t[name] = v[len(v)-1]
			}
		}
		return t.toRequest(f.g.now())
	}
}

// ofHandle finds the request in the handle of a prepared statement.
func (f *flightSQL) ofHandle(handle []byte) requestFinder {
	return func(context.Context) (*Request, error) {
		_, req, err := decodeTicket(handle, f.g.now())
		return req, err
	}
}

func clientAddress(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

// bindSchema binds a query to get the schema of its answer. Errors are statuses.
func (f *flightSQL) bindSchema(ctx context.Context, find requestFinder) (*Request, *arrow.Schema, error) {
	req, err := find(ctx)
	if err != nil {
		return nil, nil, rpcError(err)
	}
	s, err := f.schemaOf(ctx, req)
	if err != nil {
		return nil, nil, rpcError(err)
	}
	return req, s, nil
}

// schemaOf returns the schema of a request's answer.
func (f *flightSQL) schemaOf(ctx context.Context, req *Request) (*arrow.Schema, error) {
	q := &runningQuery{api: apiFlight, client: clientAddress(ctx), req: req, quiet: true}
	if err := f.g.beginQuery(ctx, q); err != nil {
		return nil, err
	}
	s := q.source.Schema()
	q.endQuery(nil)
	return s, nil
}

// queryInfo returns the answer of GetFlightInfo for a query.
func (f *flightSQL) queryInfo(ctx context.Context, desc *flight.FlightDescriptor, find requestFinder) (*flight.FlightInfo, error) {
	req, s, err := f.bindSchema(ctx, find)
	if err != nil {
		return nil, err
	}
	t := newTicket(req)
	t["id"] = f.g.deps.Random.Text()
	bytes, err := flightsql.CreateStatementQueryTicket(t.encodeTicket())
	if err != nil {
		return nil, err
	}
	return flightInfo(s, bytes, desc), nil
}

// flightInfo describes an answer of unknown length, available from the same server.
func flightInfo(s *arrow.Schema, ticket []byte, desc *flight.FlightDescriptor) *flight.FlightInfo {
	return &flight.FlightInfo{
		Schema: flight.SerializeSchema(s, memory.DefaultAllocator), FlightDescriptor: desc, TotalRecords: -1, TotalBytes: -1,
		Endpoint: []*flight.FlightEndpoint{{Ticket: &flight.Ticket{Ticket: ticket}}},
	}
}

// GetFlightInfoStatement implements flightsql.Server.
func (f *flightSQL) GetFlightInfoStatement(ctx context.Context, cmd flightsql.StatementQuery, desc *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	return f.queryInfo(ctx, desc, f.ofText(cmd.GetQuery()))
}

// GetSchemaStatement implements flightsql.Server.
func (f *flightSQL) GetSchemaStatement(ctx context.Context, cmd flightsql.StatementQuery, _ *flight.FlightDescriptor) (*flight.SchemaResult, error) {
	return f.schemaResult(ctx, f.ofText(cmd.GetQuery()))
}

func (f *flightSQL) schemaResult(ctx context.Context, find requestFinder) (*flight.SchemaResult, error) {
	_, s, err := f.bindSchema(ctx, find)
	if err != nil {
		return nil, err
	}
	return &flight.SchemaResult{Schema: flight.SerializeSchema(s, memory.DefaultAllocator)}, nil
}

// DoGetStatement implements flightsql.Server.
func (f *flightSQL) DoGetStatement(ctx context.Context, t flightsql.StatementQueryTicket) (*arrow.Schema, <-chan flight.StreamChunk, error) {
	return f.answerTicket(ctx, t.GetStatementHandle())
}

// CreatePreparedStatement implements flightsql.Server. The handle of a prepared statement contains its text: the server stores
// nothing.
func (f *flightSQL) CreatePreparedStatement(
	ctx context.Context, cmd flightsql.ActionCreatePreparedStatementRequest,
) (res flightsql.ActionCreatePreparedStatementResult, err error) {
	n, withNulls, err := sql.CountParameters(cmd.GetQuery())
	if err != nil { // or the text is not a SELECT, which has no parameters
		n, withNulls = 0, cmd.GetQuery()
	}
	req, err := f.ofText(withNulls)(ctx)
	if err != nil {
		return res, rpcError(err)
	}
	if res.DatasetSchema, err = f.schemaOf(ctx, req); err != nil && (n == 0 || !blamesNull(err, req.SQL)) {
		if n > 0 {
			err = errorOf(err).withoutPlace() // the text with nulls is not the client's
		}
		return res, rpcError(err)
	}
	if n > 0 {
		req.SQL, res.ParameterSchema = cmd.GetQuery(), parameterSchema(n)
	}
	res.Handle = newTicket(req).encodeTicket()
	return res, nil
}

// blamesNull reports whether a text is refused for a NULL in it. Where one stands for a parameter, a value may be accepted: functions have
// arguments that must be constants. The columns of the answer are not known then before there are values.
func blamesNull(err error, text string) bool {
	e := errorOf(err)
	return e.Kind == KindInvalid && e.Line > 0 && e.Position < len(text) && strings.HasPrefix(text[e.Position:], "NULL")
}

// ClosePreparedStatement implements flightsql.Server.
func (f *flightSQL) ClosePreparedStatement(context.Context, flightsql.ActionClosePreparedStatementRequest) error {
	return nil
}

// GetFlightInfoPreparedStatement implements flightsql.Server.
func (f *flightSQL) GetFlightInfoPreparedStatement(
	ctx context.Context, cmd flightsql.PreparedStatementQuery, desc *flight.FlightDescriptor,
) (*flight.FlightInfo, error) {
	return f.queryInfo(ctx, desc, f.ofHandle(cmd.GetPreparedStatementHandle()))
}

// GetSchemaPreparedStatement implements flightsql.Server.
func (f *flightSQL) GetSchemaPreparedStatement(
	ctx context.Context, cmd flightsql.PreparedStatementQuery, _ *flight.FlightDescriptor,
) (*flight.SchemaResult, error) {
	return f.schemaResult(ctx, f.ofHandle(cmd.GetPreparedStatementHandle()))
}

// DoGetPreparedStatement implements flightsql.Server.
func (f *flightSQL) DoGetPreparedStatement(ctx context.Context, cmd flightsql.PreparedStatementQuery) (*arrow.Schema, <-chan flight.StreamChunk, error) {
	return f.answerTicket(ctx, cmd.GetPreparedStatementHandle())
}

// answerTicket runs the query of a handle.
func (f *flightSQL) answerTicket(ctx context.Context, handle []byte) (*arrow.Schema, <-chan flight.StreamChunk, error) {
	t, req, err := decodeTicket(handle, f.g.now())
	if err != nil {
		return nil, nil, rpcError(err)
	}
	q := &runningQuery{api: apiFlight, client: clientAddress(ctx), req: req, id: t["id"]}
	if err := f.g.beginQuery(ctx, q); err != nil {
		return nil, nil, rpcError(err)
	}
	out := make(chan flight.StreamChunk)
	f.g.serving.Go(func() {
		defer close(out)
		err := q.sendBatches(out)
		q.endQuery(err)
		if err != nil {
			select {
			case out <- flight.StreamChunk{Err: rpcError(err)}:
			case <-ctx.Done():
			}
		}
	})
	return q.source.Schema(), out, nil
}

// sendBatches sends the whole answer.
func (q *runningQuery) sendBatches(out chan<- flight.StreamChunk) error {
	for {
		batch, err := q.fetchSlice()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		q.bytes += q.handed
		select {
		case out <- flight.StreamChunk{Data: batch}:
		case <-q.ctx.Done():
			batch.Release()
			if err := q.endReason(); !errors.Is(err, io.EOF) {
				return err
			}
			return nil
		}
	}
}

// CancelFlightInfo implements flightsql.Server: it cancels the query that was started with the ticket of info, if it runs on this
// server.
func (f *flightSQL) CancelFlightInfo(_ context.Context, req *flight.CancelFlightInfoRequest) (result flight.CancelFlightInfoResult, err error) {
	result.Status = flight.CancelStatusNotCancellable
	for _, e := range req.GetInfo().GetEndpoint() {
		var cancelled bool
		if cancelled, err = f.cancelTicket(e.GetTicket()); err != nil {
			return // naked: the result must not be copied
		}
		if cancelled {
			result.Status = flight.CancelStatusCancelled
		}
	}
	return
}

// cancelTicket cancels the query of a ticket, and reports whether it was running.
func (f *flightSQL) cancelTicket(t *flight.Ticket) (bool, error) {
	cmd, err := flightsql.GetStatementQueryTicket(t)
	if err != nil {
		return false, status.Errorf(codes.InvalidArgument, "the ticket: %v", err)
	}
	of, _, err := decodeTicket(cmd.GetStatementHandle(), f.g.now())
	if err != nil {
		return false, rpcError(err)
	}
	return f.g.cancelQueries(of["id"]), nil
}

// cancelQueries cancels the queries with an id.
func (g *Server) cancelQueries(id string) (found bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for q := range g.mu.running {
		if id != "" && q.id == id {
			q.cancel(context.Canceled)
			found = true
		}
	}
	return found
}

// rpcError returns an error as a gRPC status whose message has all details for a person.
func rpcError(err error) error {
	e := errorOf(err)
	s := status.New(kinds[e.Kind].code, e.Error())
	if e.RetryAfter > 0 {
		if with, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)}); err == nil {
			s = with
		}
	}
	return s.Err()
}
