package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"

	"connectrpc.com/connect"

	scribev1 "scribe/proto/scribe/v1"
	"scribe/proto/scribe/v1/scribev1connect"
)

// MaxMessageBytes is the largest protobuf message that is read or sent. Frames and payloads are at most 64 MiB; the rest is for
// what surrounds them.
const MaxMessageBytes = 68 << 20

// Services are the services of one process; nil ones are not served.
type Services struct {
	Write      WriteService
	Batch      BatchService
	Metalog    MetalogService
	ReadStream ReadStreamService
	ReadProxy  ReadProxyService
	Views      ViewService
	Push       PushService
	Control    ControlService
	Group      GroupService
	Node       NodeService
	Process    ProcessService
	Access     AccessService
	Backup     BackupService
	// Admit is asked with a write's announced length before its body is read, and as it is read when it announces none; release
	// is called when it has been answered. Nil admits everything up to MaxMessageBytes.
	Admit func(n int64) (release func(), err error)
	// AdmitBatch is the same for BatchService.
	AdmitBatch func(n int64) (release func(), err error)
	// AdmitFetch is the same for ReadProxyService.
	AdmitFetch func(n int64) (release func(), err error)
	// AdmitPush is the same for PushService.
	AdmitPush func(n int64) (release func(), err error)
	// Intercept wraps the handlers; errors are as callers get them.
	Intercept []connect.Interceptor
	// Logger logs panics of handlers.
	Logger *slog.Logger
}

// Mux is where handlers are registered: an [http.ServeMux], or one that checks who calls.
type Mux interface {
	Handle(pattern string, h http.Handler)
}

// Register mounts the services that are set on mux, each under its Connect path. A request's memory is reused once it was
// answered: see the package comment.
func (s *Services) Register(mux Mux) {
	opts := s.handlerOptions(MaxMessageBytes)
	small := s.handlerOptions(maxSmallBytes)
	mountSmall := func(path string, h http.Handler) { mux.Handle(path, guardBody(nil, maxSmallBytes, h)) }
	if s.Write != nil {
		admitted := func(h http.Handler) http.Handler { return guardBody(s.Admit, MaxMessageBytes, h) }
		path, h := scribev1connect.NewWriteServiceHandler(s.Write, opts)
		mux.Handle(path, admitted(h))
		mountBulk(s, mux, admitted, scribev1connect.WriteServiceWriteProcedure, h, s.Write.Write, decodeWrite, encodeAnswer[scribev1.WriteResponse], true)
	}
	if s.Batch != nil {
		admitted := func(h http.Handler) http.Handler { return guardBody(s.AdmitBatch, MaxMessageBytes, h) }
		path, h := scribev1connect.NewBatchServiceHandler(s.Batch, opts)
		mux.Handle(path, admitted(h))
		mountBulk(s, mux, admitted, scribev1connect.BatchServiceSubmitProcedure, h, s.Batch.Submit, decodeSubmit, encodeAnswer[scribev1.SubmitResponse], true)
	}
	if s.Metalog != nil {
		path, h := scribev1connect.NewMetalogServiceHandler(metalogHandler{s.Metalog}, opts)
		mux.Handle(path, guardBody(nil, MaxMessageBytes, h))
	}
	if s.ReadStream != nil {
		path, h := scribev1connect.NewReadStreamServiceHandler(readStreamHandler{s.ReadStream}, small)
		mux.Handle(path, closeOnStop(h))
	}
	if s.ReadProxy != nil {
		admitted := func(h http.Handler) http.Handler { return guardBody(s.AdmitFetch, MaxMessageBytes, telling(h)) }
		path, h := scribev1connect.NewReadProxyServiceHandler(s.ReadProxy, opts)
		mux.Handle(path, admitted(h))
		mountBulk(s, mux, admitted, scribev1connect.ReadProxyServiceFetchProcedure, h, s.ReadProxy.Fetch, decodeFetch, encodeFetched, false)
	}
	if s.Views != nil {
		mountSmall(scribev1connect.NewViewServiceHandler(s.Views, small))
	}
	if s.Push != nil {
		path, h := scribev1connect.NewPushServiceHandler(s.Push, opts)
		mux.Handle(path, guardBody(s.AdmitPush, MaxMessageBytes, h))
	}
	if s.Control != nil {
		mountSmall(scribev1connect.NewControlServiceHandler(controlHandler{s.Control}, small, connect.WithInterceptors(forwardedMark{})))
	}
	if s.Group != nil {
		mountSmall(scribev1connect.NewGroupServiceHandler(s.Group, small))
	}
	if s.Process != nil {
		mountSmall(scribev1connect.NewProcessServiceHandler(s.Process, small))
	}
	if s.Access != nil {
		mountSmall(scribev1connect.NewAccessServiceHandler(accessHandler{s.Access}, small))
	}
	if s.Backup != nil {
		mountSmall(scribev1connect.NewBackupServiceHandler(s.Backup, small))
	}
	if s.Node != nil {
		mountSmall(scribev1connect.NewNodeServiceHandler(s.Node, small))
	}
}

// handlerOptions are the options of every handler. Sent messages are bounded by the receiver, with an error that says so.
// Compressed requests are refused: their large parts are compressed already, and admission counts the announced length.
func (s *Services) handlerOptions(limit int) connect.HandlerOption {
	return connect.WithHandlerOptions(
		connect.WithReadMaxBytes(limit),
		connect.WithCompression("gzip", nil, nil),
		connect.WithRecover(s.reportPanic),
		jsonCodecs(),
		connect.WithInterceptors(append(slices.Clone(s.Intercept), errorMapper{})...),
	)
}

// reportPanic logs a panic in a request, and turns it into an error so that the process continues.
func (s *Services) reportPanic(ctx context.Context, spec connect.Spec, _ http.Header, v any) error {
	if s.Logger != nil {
		s.Logger.ErrorContext(ctx, "handler panicked", "procedure", spec.Procedure, "panic", v, "stack", string(debug.Stack()))
	}
	return connect.NewError(connect.CodeInternal, fmt.Errorf("%s failed with a bug; the server's log has the stack", spec.Procedure))
}
