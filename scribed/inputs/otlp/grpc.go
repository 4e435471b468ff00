package otlp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"connectrpc.com/connect"
	collectorv1 "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/scribed/inputs"
)

// grpcMethod is the only method of LogsService.
const grpcMethod = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"

// serveGRPC returns a handler of OTLP/gRPC only: Connect's own protocol and gRPC-Web are not part of OTLP.
func (i *Input) serveGRPC() http.Handler {
	var (
		refusal = connect.NewErrorWriter()
		rpc     = connect.NewUnaryHandlerSimple(grpcMethod, i.export,
			connect.WithReadMaxBytes(int(i.cfg.MaxRequest)), connect.WithCompressMinBytes(1<<10), connect.WithCodec(boundedCodec{}))
	)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if kind := r.Header.Get("Content-Type"); kind != "application/grpc" && kind != "application/grpc+proto" {
			i.metrics.CountRefused(http.StatusUnsupportedMediaType)
			http.Error(w, fmt.Sprintf("the Content-Type %q is not application/grpc", kind), http.StatusUnsupportedMediaType)
			return
		}
		if !i.running.TryAcquire(1) {
			i.metrics.CountRefused(http.StatusTooManyRequests)
			_ = refusal.Write(w, r, unavailableError(errBusy)) // the client is gone
			return
		}
		defer i.running.Release(1)
		r.Body = inputs.NewPatientBody(w, r.Body, i.cfg.Patience.Std())
		rpc.ServeHTTP(w, r)
		i.countRefusal(w.Header())
	})
}

// countRefusal counts requests that were refused before export was called. export counts its own refusals.
func (i *Input) countRefusal(answer http.Header) {
	text := answer.Get(http.TrailerPrefix + "Grpc-Status")
	if text == "" {
		text = answer.Get("Grpc-Status")
	}
	code, err := strconv.Atoi(text)
	if err != nil {
		return
	}
	switch connect.Code(code) { //nolint:exhaustive,gosec // those that connect answers with by itself
	case connect.CodeResourceExhausted:
		i.metrics.CountRefused(http.StatusRequestEntityTooLarge)
	case connect.CodeUnimplemented: // a compression
		i.metrics.CountRefused(http.StatusUnsupportedMediaType)
	case connect.CodeInvalidArgument, connect.CodeInternal, connect.CodeUnknown:
		i.metrics.CountRefused(http.StatusBadRequest)
	}
}

// export handles a gRPC request.
func (i *Input) export(ctx context.Context, req *collectorv1.ExportLogsServiceRequest) (*collectorv1.ExportLogsServiceResponse, error) {
	resp, err := i.writeRecords(ctx, req)
	if err != nil {
		return nil, unavailableError(err)
	}
	return resp, nil
}

// unavailableError returns an error after which exporters retry.
func unavailableError(err error) error {
	e := connect.NewError(connect.CodeUnavailable, err)
	d, derr := connect.NewErrorDetail(&errdetails.RetryInfo{RetryDelay: durationpb.New(inputs.RetryAfter)})
	if derr != nil {
		return errors.Join(err, derr) // a known message type always has its detail
	}
	e.AddDetail(d)
	return e
}
