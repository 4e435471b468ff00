package otlp

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/units"
	"scribe/scribed/inputs"
)

// Deps are what the input works with.
type Deps struct {
	// Logger defaults to none.
	Logger *slog.Logger
	// Registerer gets the metrics; nil keeps none.
	Registerer prometheus.Registerer
}

// Input is an inputs.Input.
type Input struct {
	cfg      Config
	deps     Deps
	category inputs.Template
	names    *inputs.Names
	running  chan struct{} // a place for each request

	metrics *inputs.Metrics // while it runs
	sink    inputs.Sink
}

var _ inputs.Input = (*Input)(nil)

// New returns an input.
func New(cfg Config, deps Deps) (*Input, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	t, err := cfg.compile()
	if err != nil {
		return nil, err
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	return &Input{cfg: cfg, deps: deps, category: t, names: inputs.NewNames(cfg.MaxCategories, cfg.Fallback), running: make(chan struct{}, cfg.MaxRequests)}, nil
}

// Name implements inputs.Input.
func (i *Input) Name() string { return i.cfg.Name }

// Run implements inputs.Input.
func (i *Input) Run(ctx context.Context, sink inputs.Sink) (err error) {
	if i.metrics, err = inputs.NewMetrics("otlp", i.cfg.Name, i.deps.Registerer); err != nil {
		return err
	}
	defer i.metrics.Unregister()
	i.sink = sink
	nl, err := i.cfg.Listen.Open(ctx)
	if err != nil {
		return err
	}
	i.deps.Logger.Info("taking OTLP logs", "input", i.cfg.Name, "address", nl.Addr().String())
	return i.cfg.Listen.ServeHTTP(ctx, nl, i.handler())
}

// grpcMethod is LogsService's only one.
const grpcMethod = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"

func (i *Input) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/logs", i.serveHTTP)
	mux.Handle(grpcMethod, connect.NewUnaryHandlerSimple(grpcMethod, i.export,
		connect.WithReadMaxBytes(int(i.cfg.MaxRequest)), connect.WithCompressMinBytes(1<<10)))
	return mux
}

// retryAfter is when exporters should try again.
const retryAfter = time.Second

// errBusy says that too many requests run.
var errBusy = errors.New("too many requests at the same time: try again later")

// take delivers a request's records. rejected are lost for the reason that the message tells; an error means that the request
// should be sent again.
func (i *Input) take(ctx context.Context, req *collectorv1.ExportLogsServiceRequest) (*collectorv1.ExportLogsServiceResponse, error) {
	select {
	case i.running <- struct{}{}:
		defer func() { <-i.running }()
	default:
		i.metrics.Refused.WithLabelValues(inputs.RefuseBusy).Inc()
		return nil, errBusy
	}
	e := exporting{input: i}
	for _, rl := range req.GetResourceLogs() {
		s := newSource(rl.GetResource().GetAttributes())
		for _, sl := range rl.GetScopeLogs() {
			s.scope, s.scopeName = sl.GetScope().GetAttributes(), sl.GetScope().GetName()
			for _, r := range sl.GetLogRecords() {
				m, cut, err := i.message(&s, r)
				if cut {
					i.metrics.Truncated.Inc()
				}
				s.service[fieldSeverity] = severity(r)
				e.add(i.categoryOf(&s), m, err)
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, i.cfg.Patience.Std())
	defer cancel()
	if err := e.deliver(ctx); err != nil {
		i.metrics.Refused.WithLabelValues(inputs.DropFull).Inc()
		return nil, err
	}
	resp := &collectorv1.ExportLogsServiceResponse{}
	if e.rejected > 0 {
		resp.PartialSuccess = &collectorv1.ExportLogsPartialSuccess{RejectedLogRecords: e.rejected, ErrorMessage: e.reason}
	}
	return resp, nil
}

func (i *Input) categoryOf(s *source) string {
	if name, ok := i.category.Fixed(); ok {
		return name
	}
	name, ok := i.names.Allow(i.category.Category(func(field string) string { return s.service[field] }))
	if !ok {
		i.metrics.Stray.Inc()
	}
	return name
}

// exporting is a request's records by category, in order.
type exporting struct {
	input    *Input
	parts    []part
	index    map[string]int
	rejected int64
	reason   string // of the first rejection
}

type part struct {
	category string
	messages []inputs.Message
}

func (e *exporting) add(category string, m inputs.Message, err error) {
	if limit := int(e.input.cfg.MaxRecord); err == nil && len(m.Payload) > limit {
		err = fmt.Errorf("a record of %d bytes is over the limit of %d", len(m.Payload), limit)
	}
	if err != nil {
		e.reject(inputs.DropTooLarge, 1, err)
		return
	}
	if e.index == nil {
		e.index = map[string]int{}
	}
	n, known := e.index[category]
	if !known {
		n = len(e.parts)
		e.index[category] = n
		e.parts = append(e.parts, part{category: category})
	}
	e.parts[n].messages = append(e.parts[n].messages, m)
}

func (e *exporting) reject(label string, n int, err error) {
	e.input.metrics.Dropped.WithLabelValues(label).Add(float64(n))
	e.rejected += int64(n)
	if e.reason == "" {
		e.reason = err.Error()
	}
}

func (e *exporting) deliver(ctx context.Context) error {
	for i := range e.parts {
		p := &e.parts[i]
		err := e.input.sink.Deliver(ctx, p.category, p.messages)
		switch {
		case errors.Is(err, inputs.ErrRefused):
			e.reject(inputs.DropRefused, len(p.messages), err)
		case err != nil:
			return fmt.Errorf("category %s: %w", p.category, err)
		default:
			e.input.metrics.Taken(p.messages)
		}
	}
	return nil
}

// export answers gRPC.
func (i *Input) export(ctx context.Context, req *collectorv1.ExportLogsServiceRequest) (*collectorv1.ExportLogsServiceResponse, error) {
	resp, err := i.take(ctx, req)
	if err == nil {
		return resp, nil
	}
	e := connect.NewError(connect.CodeUnavailable, err)
	if d, derr := connect.NewErrorDetail(&errdetails.RetryInfo{RetryDelay: durationpb.New(retryAfter)}); derr == nil {
		e.AddDetail(d)
	}
	return nil, e
}

// Content types of OTLP/HTTP.
const (
	typeProtobuf = "application/x-protobuf"
	typeJSON     = "application/json"
)

// serveHTTP answers OTLP/HTTP. Errors are a google.rpc.Status, as the specification wants; its message is all that clients show.
func (i *Input) serveHTTP(w http.ResponseWriter, r *http.Request) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != typeProtobuf && kind != typeJSON {
		fail(w, typeJSON, http.StatusUnsupportedMediaType, fmt.Errorf("the Content-Type must be %s or %s", typeProtobuf, typeJSON))
		return
	}
	body, status, err := i.body(w, r)
	if err != nil {
		i.metrics.Refused.WithLabelValues(strconv.Itoa(status)).Inc()
		fail(w, kind, status, err)
		return
	}
	req := &collectorv1.ExportLogsServiceRequest{}
	if kind == typeJSON {
		err = decodeJSON(body, req)
	} else {
		err = proto.Unmarshal(body, req)
	}
	if err != nil {
		i.metrics.Refused.WithLabelValues(inputs.DropInvalid).Inc()
		fail(w, kind, http.StatusBadRequest, fmt.Errorf("the body is no ExportLogsServiceRequest: %w", err))
		return
	}
	resp, err := i.take(r.Context(), req)
	switch {
	case errors.Is(err, errBusy):
		w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter.Seconds())))
		fail(w, kind, http.StatusTooManyRequests, err)
	case err != nil:
		w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter.Seconds())))
		fail(w, kind, http.StatusServiceUnavailable, err)
	default:
		write(w, kind, http.StatusOK, resp)
	}
}

// body reads and decompresses a request's.
func (i *Input) body(w http.ResponseWriter, r *http.Request) (body []byte, status int, err error) {
	limit := int64(i.cfg.MaxRequest)
	if r.ContentLength > limit {
		return nil, http.StatusRequestEntityTooLarge, tooLarge(limit)
	}
	in := io.Reader(http.MaxBytesReader(w, r.Body, limit))
	switch encoding := r.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
	case "gzip":
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, http.StatusBadRequest, fmt.Errorf("the body is not gzip: %w", err)
		}
		in = z
	default:
		return nil, http.StatusUnsupportedMediaType, fmt.Errorf("the Content-Encoding %q is none of gzip, identity", encoding)
	}
	body, err = io.ReadAll(io.LimitReader(in, limit+1))
	over := new(http.MaxBytesError)
	switch {
	case errors.As(err, &over), err == nil && int64(len(body)) > limit:
		return nil, http.StatusRequestEntityTooLarge, tooLarge(limit)
	case err != nil:
		return nil, http.StatusBadRequest, fmt.Errorf("the body can't be read: %w", err)
	}
	return body, 0, nil
}

func tooLarge(limit int64) error {
	return fmt.Errorf("the request has more than %v: send less at once", units.Bytes(limit)) //nolint:gosec // not negative
}

func fail(w http.ResponseWriter, kind string, status int, err error) {
	write(w, kind, status, &rpcstatus.Status{Message: err.Error()})
}

// write writes a message in the encoding of the request.
func write(w http.ResponseWriter, kind string, status int, m proto.Message) {
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	var b []byte
	if kind == typeJSON {
		b, _ = protojson.Marshal(m)
	} else {
		b, _ = proto.Marshal(m)
	}
	_, _ = w.Write(b) // the client went away
}

// decodeJSON reads OTLP/JSON, which is protobuf's JSON but for trace and span ids: they are hexadecimal there, base64 here.
func decodeJSON(b []byte, req *collectorv1.ExportLogsServiceRequest) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		return err
	}
	if err := rewriteIDs(tree); err != nil {
		return err
	}
	again, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(again, req)
}
