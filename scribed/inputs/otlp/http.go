package otlp

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/logs/v1"
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

// httpError is an error with a status.
type httpError struct {
	status int
	err    error
}

func newHTTPError(status int, format string, args ...any) *httpError {
	return &httpError{status, fmt.Errorf(format, args...)}
}

// serveHTTP handles OTLP/HTTP. Errors are a google.rpc.Status, as the specification requires; clients show only its message.
func (i *Input) serveHTTP(w http.ResponseWriter, r *http.Request) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != typeProtobuf && kind != typeJSON {
		i.answerFailure(w, typeJSON, newHTTPError(http.StatusUnsupportedMediaType, "the Content-Type must be %s or %s", typeProtobuf, typeJSON))
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
func (i *Input) exportHTTP(w http.ResponseWriter, r *http.Request, kind string) (*collectorv1.ExportLogsServiceResponse, *httpError) {
	if r.ContentLength > int64(i.cfg.MaxRequest) {
		return nil, i.tooLarge()
	}
	if !i.beginRequest() {
		return nil, &httpError{http.StatusTooManyRequests, errBusy}
	}
	defer i.endRequest()
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
		return nil, &httpError{http.StatusRequestEntityTooLarge, err}
	case err != nil:
		return nil, newHTTPError(http.StatusBadRequest, "invalid body: want an ExportLogsServiceRequest: %w", err)
	}
	resp, err := i.writeRecords(r.Context(), req)
	if err != nil {
		return nil, &httpError{http.StatusServiceUnavailable, err}
	}
	return resp, nil
}

// readBody reads and decompresses a request's body.
func (i *Input) readBody(w http.ResponseWriter, r *http.Request) ([]byte, *httpError) {
	limit := int64(i.cfg.MaxRequest)
	in := io.Reader(http.MaxBytesReader(w, inputs.NewPatientBody(w, r.Body, i.cfg.Patience.Std()), limit))
	switch encoding := r.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
	case "gzip":
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, newHTTPError(http.StatusBadRequest, "the body is not gzip: %w", err)
		}
		in = z
	default:
		return nil, newHTTPError(http.StatusUnsupportedMediaType, "invalid Content-Encoding %q: want gzip or identity", encoding)
	}
	body, err := io.ReadAll(io.LimitReader(in, limit+1))
	over := new(http.MaxBytesError)
	switch {
	case errors.As(err, &over), err == nil && int64(len(body)) > limit:
		return nil, i.tooLarge()
	case err != nil:
		return nil, newHTTPError(http.StatusBadRequest, "the body can't be read: %w", err)
	}
	return body, nil
}

func (i *Input) tooLarge() *httpError {
	return newHTTPError(http.StatusRequestEntityTooLarge, "the request has more than %v: send less at once", units.Bytes(i.cfg.MaxRequest))
}

// answerFailure counts a refusal and answers it.
func (i *Input) answerFailure(w http.ResponseWriter, kind string, f *httpError) {
	if f.status != http.StatusServiceUnavailable { // writeRecords has counted it
		i.countRefused(f.status)
	}
	if f.status == http.StatusServiceUnavailable || f.status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter.Seconds())))
	}
	writeAnswer(w, kind, f.status, &rpcstatus.Status{Message: f.err.Error()})
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
