package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	scribev1 "scribe/proto/scribe/v1"
)

// An error must say the same whether a role was called directly or over a transport, and after any number of hops. So both ends
// translate. A client adds a reason to the errors of its transport, since only the client knows whether the request can have
// reached the server. A server keeps the reason, code and text of a role's error.

// dialError means that no connection was made, so that no byte of the request was sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// notSent reports whether a call failed to connect. Transports of callers return no dialError, but usually an error of package
// net.
func notSent(err error) bool {
	var ours *dialError
	var op *net.OpError
	return errors.As(err, &ours) || errors.As(err, &op) && op.Op == "dial"
}

// alsoIs is an error that also matches target, without showing it in its text.
type alsoIs struct {
	error
	target error
}

func (e alsoIs) Unwrap() []error { return []error{e.error, e.target} }

// clientError adds a reason to the error of a client's call. broken is the reason for a broken connection: REASON_UNKNOWN_OUTCOME
// for a request that may have been carried out, REASON_NO_BACKEND for a stream, which can only be opened again.
func clientError(ctx context.Context, err error, broken scribev1.Reason) error {
	if err == nil {
		return nil
	}
	ce := new(connect.Error)
	if !errors.As(err, &ce) {
		ce = connect.NewError(connect.CodeUnknown, err)
	}
	if connect.IsWireError(ce) {
		return ofServer(ce)
	}
	if Attached(ce) != nil {
		return ce // classified where it arose
	}
	cause := ce.Unwrap()
	if cause == nil {
		cause = ce
	}
	local := func(code connect.Code, r scribev1.Reason, err error) error {
		return withInfo(code, &scribev1.ErrorInfo{Reason: r, Message: err.Error()}, err)
	}
	switch code := ce.Code(); {
	case ctx.Err() != nil:
		return local(codeOf(ctx.Err()), scribev1.Reason_REASON_UNKNOWN_OUTCOME, alsoIs{cause, ctx.Err()})
	case notSent(err):
		return local(connect.CodeUnavailable, scribev1.Reason_REASON_NO_BACKEND, cause)
	case code == connect.CodeResourceExhausted: // Connect's own limit: a repetition would exceed it too
		return local(Code(scribev1.Reason_REASON_TOO_LARGE), scribev1.Reason_REASON_TOO_LARGE, cause)
	case code == connect.CodeUnimplemented, code == connect.CodePermissionDenied, code == connect.CodeUnauthenticated,
		code == connect.CodeNotFound:
		return ce // from a server that is not this service
	default:
		return local(connect.CodeUnavailable, broken, cause)
	}
}

// ofServer lets an expired deadline at the server match the error that a direct call returns for it.
func ofServer(ce *connect.Error) error {
	if ce.Code() != connect.CodeDeadlineExceeded {
		return ce
	}
	out := connect.NewWireError(ce.Code(), alsoIs{errors.New(ce.Message()), context.DeadlineExceeded})
	for _, d := range ce.Details() {
		out.AddDetail(d)
	}
	return out
}

// codeOf returns the code for an error that has none of its own.
func codeOf(err error) connect.Code {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return connect.CodeDeadlineExceeded
	case errors.Is(err, context.Canceled):
		return connect.CodeCanceled
	default:
		return connect.CodeUnknown
	}
}

// errStopping is the cause with which a server ends the contexts of its streams.
var errStopping = errors.New("the server is shutting down")

// serverError prepares a role's error for the wire: the outermost text, the code and details of the Connect error inside, and the
// retry hint as a header for clients that read no details.
func serverError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if context.Cause(ctx) == errStopping && (errors.Is(err, context.Canceled) || connect.CodeOf(err) == connect.CodeCanceled) { //nolint:errorlint // the cause itself
		err = RetryErrorf(scribev1.Reason_REASON_SHUTTING_DOWN, time.Second, "the server is shutting down: connect again, here or elsewhere")
	}
	ce := new(connect.Error)
	if !errors.As(err, &ce) {
		return connect.NewError(codeOf(err), err)
	}
	var text error = alsoIs{errors.New(ce.Message()), ce}
	if err != error(ce) { //nolint:errorlint // whether something was wrapped around it
		text = err
	}
	out := connect.NewError(ce.Code(), text)
	for _, d := range ce.Details() {
		out.AddDetail(d)
	}
	if after := Info(ce).GetRetryAfter().AsDuration(); after > 0 {
		out.Meta().Set("Retry-After", retryAfterSeconds(after))
	}
	return out
}

// retryAfterSeconds formats a duration for the header, in whole seconds, rounded up.
func retryAfterSeconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}

// errorMapper translates the errors of calls that go through Connect.
type errorMapper struct{}

// WrapUnary implements connect.Interceptor.
func (errorMapper) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		res, err := next(ctx, req)
		switch {
		case err == nil:
			return res, nil
		case req.Spec().IsClient:
			return nil, clientError(ctx, err, scribev1.Reason_REASON_UNKNOWN_OUTCOME)
		default:
			return nil, serverError(ctx, err)
		}
	}
}

// WrapStreamingClient implements connect.Interceptor. Streams are translated by their adapters.
func (errorMapper) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (errorMapper) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return serverError(ctx, next(ctx, conn))
	}
}

// statusError returns the error for an HTTP answer without an error of this protocol: from a proxy in between, or from another
// program. With 502, 503 and 504 a proxy knows only that it has no answer; the server may have carried out the request.
func statusError(res *http.Response, what string) error {
	err := fmt.Errorf("%s: HTTP status %s without an error of this protocol", what, res.Status)
	switch res.StatusCode {
	case http.StatusTooManyRequests: // rate limiters refuse requests before any server handles them
		return RetryErrorf(scribev1.Reason_REASON_OVERLOADED, retryAfter(res.Header), "%w", err)
	case http.StatusUnauthorized:
		return connect.NewError(connect.CodeUnauthenticated, err)
	case http.StatusForbidden:
		return connect.NewError(connect.CodePermissionDenied, err)
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusUnsupportedMediaType:
		return connect.NewError(connect.CodeUnimplemented, fmt.Errorf("%w: is that the address of this service?", err))
	default:
		info := &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_UNKNOWN_OUTCOME, Message: err.Error()}
		if after := retryAfter(res.Header); after > 0 {
			info.RetryAfter = durationpb.New(after)
		}
		return withInfo(connect.CodeUnavailable, info, err)
	}
}

// maxRetryAfter bounds the pause that a header may ask for.
const maxRetryAfter = time.Hour

// retryAfter reads the header Retry-After in seconds or as a date (RFC 9110 section 10.2.3). It returns 0 if there is no valid
// one.
func retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 32); err == nil {
		return min(time.Duration(seconds)*time.Second, maxRetryAfter) //nolint:gosec // 32 bits
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(time.Until(at), 0), maxRetryAfter)
	}
	return 0
}

var unmarshal = proto.UnmarshalOptions{DiscardUnknown: true}
