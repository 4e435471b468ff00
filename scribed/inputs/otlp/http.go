package otlp

import (
	"errors"
	"io"
	"mime"
	"net/http"

	collectorv1 "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"scribe/internal/base/units"
	"scribe/scribed/inputs"
)

// Content types of OTLP/HTTP.
const (
	typeProtobuf = "application/x-protobuf"
	typeJSON     = "application/json"
)

// serveHTTP handles OTLP/HTTP. Errors are a google.rpc.Status, as the specification requires; clients show only its message.
func (i *Input) serveHTTP(w http.ResponseWriter, r *http.Request) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != typeProtobuf && kind != typeJSON {
		i.answerFailure(w, typeJSON, inputs.NewHTTPError(http.StatusUnsupportedMediaType, "the Content-Type must be %s or %s", typeProtobuf, typeJSON))
		return
	}
	resp, fail := i.exportHTTP(w, r, kind)
	if fail != nil {
		i.answerFailure(w, kind, fail)
		return
	}
	writeAnswer(w, kind, http.StatusOK, resp)
}

// exportHTTP acquires a slot before it reads the body, so that MaxRequests bounds the memory of requests.
func (i *Input) exportHTTP(w http.ResponseWriter, r *http.Request, kind string) (*collectorv1.ExportLogsServiceResponse, *inputs.HTTPError) {
	if r.ContentLength > int64(i.cfg.MaxRequest) {
		return nil, i.tooLarge()
	}
	if !i.running.TryAcquire(1) {
		return nil, inputs.NewHTTPError(http.StatusTooManyRequests, "%w", errBusy)
	}
	defer i.running.Release(1)
	body, fail := i.readBody(w, r)
	if fail != nil {
		return nil, fail
	}
	var (
		req = &collectorv1.ExportLogsServiceRequest{}
		err error
	)
	if kind == typeJSON {
		err = decodeJSON(body, req)
	} else {
		err = decodeProtobuf(body, req)
	}
	switch {
	case errors.Is(err, errTooMany):
		return nil, inputs.NewHTTPError(http.StatusRequestEntityTooLarge, "%w", err)
	case err != nil:
		return nil, inputs.NewHTTPError(http.StatusBadRequest, "invalid body: want an ExportLogsServiceRequest: %w", err)
	}
	resp, err := i.writeRecords(r.Context(), req)
	if err != nil {
		return nil, inputs.NewHTTPError(http.StatusServiceUnavailable, "%w", err)
	}
	return resp, nil
}

// readBody reads and decompresses a request's body.
func (i *Input) readBody(w http.ResponseWriter, r *http.Request) ([]byte, *inputs.HTTPError) {
	limit := int64(i.cfg.MaxRequest)
	in, fail := inputs.OpenBody(w, r, limit, i.cfg.Patience.Std(), "gzip")
	if fail != nil {
		return nil, fail
	}
	defer func() { _ = in.Close() }() // it was only read
	body, err := io.ReadAll(io.LimitReader(in, limit+1))
	over := new(http.MaxBytesError)
	switch {
	case errors.As(err, &over), err == nil && int64(len(body)) > limit:
		return nil, i.tooLarge()
	case err != nil:
		return nil, inputs.NewHTTPError(http.StatusBadRequest, "the body can't be read: %w", err)
	}
	return body, nil
}

func (i *Input) tooLarge() *inputs.HTTPError {
	return inputs.NewHTTPError(http.StatusRequestEntityTooLarge, "the request has more than %v: send less at once", units.Bytes(i.cfg.MaxRequest))
}

// answerFailure counts a refusal and answers it.
func (i *Input) answerFailure(w http.ResponseWriter, kind string, f *inputs.HTTPError) {
	if f.Status != http.StatusServiceUnavailable { // writeRecords has counted it
		i.metrics.CountRefused(f.Status)
	}
	f.SetRetryAfter(w.Header())
	writeAnswer(w, kind, f.Status, &rpcstatus.Status{Message: f.Err.Error()})
}

// writeAnswer writes a message in the encoding of the request.
func writeAnswer(w http.ResponseWriter, kind string, status int, m proto.Message) {
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	var b []byte
	if kind == typeJSON {
		b, _ = protojson.Marshal(m)
	} else {
		b, _ = proto.Marshal(m)
	}
	_, _ = w.Write(b) // the client is gone
}
