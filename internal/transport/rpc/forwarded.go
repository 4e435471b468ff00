package rpc

import (
	"context"

	"connectrpc.com/connect"
)

// forwardedHeader marks calls that a control plane passes on to another one.
const forwardedHeader = "Scribe-Forwarded"

type forwardedKey struct{}

// WithForwarded marks the calls of a context: a server has passed them on to this one, which must not pass them on again. The mark
// reaches the servers of control planes also over a transport.
func WithForwarded(ctx context.Context) context.Context {
	return context.WithValue(ctx, forwardedKey{}, true)
}

// Forwarded reports whether the context has the mark of [WithForwarded].
func Forwarded(ctx context.Context) bool { return ctx.Value(forwardedKey{}) != nil }

// forwardedMark carries the mark in a header.
type forwardedMark struct{}

// WrapUnary implements connect.Interceptor.
func (forwardedMark) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		switch {
		case !req.Spec().IsClient:
			ctx = markReceived(ctx, req.Header().Get(forwardedHeader))
		case Forwarded(ctx):
			req.Header().Set(forwardedHeader, "1")
		}
		return next(ctx, req)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (forwardedMark) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		if Forwarded(ctx) {
			conn.RequestHeader().Set(forwardedHeader, "1")
		}
		return conn
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (forwardedMark) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return next(markReceived(ctx, conn.RequestHeader().Get(forwardedHeader)), conn)
	}
}

func markReceived(ctx context.Context, header string) context.Context {
	if header == "" {
		return ctx
	}
	return WithForwarded(ctx)
}
