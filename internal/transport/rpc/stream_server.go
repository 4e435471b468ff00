package rpc

import (
	"context"
	"errors"
	"io"
	"net/http"

	"connectrpc.com/connect"

	scribev1 "scribe/proto/scribe/v1"
)

type metalogHandler struct{ MetalogService }

func (h metalogHandler) Subscribe(ctx context.Context, req *scribev1.SubscribeRequest, s *connect.ServerStream[scribev1.SubscribeResponse]) error {
	return serveStream(ctx, req, h.MetalogService.Subscribe, s)
}

func (h metalogHandler) WatchShards(ctx context.Context, req *scribev1.WatchShardsRequest, s *connect.ServerStream[scribev1.WatchShardsResponse]) error {
	return serveStream(ctx, req, h.MetalogService.WatchShards, s)
}

type controlHandler struct{ ControlService }

func (h controlHandler) WatchCategories(ctx context.Context, req *scribev1.WatchCategoriesRequest, s *connect.ServerStream[scribev1.WatchCategoriesResponse]) error {
	return serveStream(ctx, req, h.ControlService.WatchCategories, s)
}

func (h controlHandler) WatchMembers(ctx context.Context, req *scribev1.WatchMembersRequest, s *connect.ServerStream[scribev1.WatchMembersResponse]) error {
	return serveStream(ctx, req, h.ControlService.WatchMembers, s)
}

type accessHandler struct{ AccessService }

func (h accessHandler) WatchAccess(ctx context.Context, req *scribev1.WatchAccessRequest, s *connect.ServerStream[scribev1.WatchAccessResponse]) error {
	return serveStream(ctx, req, h.AccessService.WatchAccess, s)
}

// serveStream runs a stream until it ends by itself or the server stops.
func serveStream[Req, Res any](ctx context.Context, req *Req, stream func(context.Context, *Req, func(*Res) error) error, s *connect.ServerStream[Res]) error {
	ctx, cancel := untilStopping(ctx)
	defer cancel()
	return serverError(ctx, stream(ctx, req, s.Send))
}

type readStreamHandler struct{ ReadStreamService }

// Stream gives the role a recv that ends with a context, which Connect's Receive does not: a pump goroutine reads the client's
// steps. Closing the request's body ends the pump.
func (h readStreamHandler) Stream(ctx context.Context, s *connect.BidiStream[scribev1.StreamRequest, scribev1.StreamResponse]) error {
	ctx, cancel := untilStopping(ctx)
	steps := stepQueue{ctx: ctx, steps: make(chan *scribev1.StreamRequest), failed: make(chan error, 1)}
	pumped := make(chan struct{})
	go func() {
		defer close(pumped)
		steps.pumpSteps(s.Receive)
	}()
	defer func() {
		cancel()
		if body, ok := ctx.Value(bodyKey{}).(io.Closer); ok {
			_ = body.Close()
			<-pumped
		}
	}()
	return serverError(ctx, h.ReadStreamService.Stream(ctx, steps.receiveStep, s.Send))
}

// stepQueue passes the steps that one goroutine receives to another.
type stepQueue struct {
	ctx    context.Context //nolint:containedctx // the stream's
	steps  chan *scribev1.StreamRequest
	failed chan error // has capacity for the error that ends the pump
	end    error      // the result of recv after the client's last step
}

func (s *stepQueue) pumpSteps(receive func() (*scribev1.StreamRequest, error)) {
	for {
		req, err := receive()
		if err != nil {
			s.failed <- stepError(err)
			return
		}
		select {
		case s.steps <- req:
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *stepQueue) receiveStep(ctx context.Context) (*scribev1.StreamRequest, error) {
	if s.end != nil {
		return nil, s.end
	}
	select {
	case req := <-s.steps:
		return req, nil
	case s.end = <-s.failed:
		return nil, s.end
	case <-s.ctx.Done():
		return nil, context.Cause(s.ctx)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// stepError removes Connect's wrapping from the end of a stream, and names the limit that a step exceeds.
func stepError(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return io.EOF
	case connect.CodeOf(err) == connect.CodeResourceExhausted:
		return Errorf(scribev1.Reason_REASON_TOO_LARGE, "%w: send less at once", err)
	default:
		return err
	}
}

type bodyKey struct{}

// closeOnStop lets a handler close its request's body, which ends a running read.
func closeOnStop(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), bodyKey{}, io.Closer(r.Body))))
	})
}
