package rpc

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"scribe/internal/base/buffers"
	scribev1 "scribe/proto/scribe/v1"
)

// bulkHandler serves one procedure with large requests or answers. A protobuf body of announced length is read into pooled
// memory, to which the request refers until the answer is written. Connect handles everything else (JSON, gRPC, bodies of unknown
// length).
type bulkHandler[Req, Res any] struct {
	procedure string
	call      func(context.Context, *Req) (*Res, error)
	decode    func([]byte) (*Req, error)
	encode    func(*Res) ([][]byte, error)
	frames    bool // requests carry frames, see arrivingBody
	recovered func(context.Context, connect.Spec, http.Header, any) error
	connect   http.Handler
	errors    *connect.ErrorWriter
}

// bodies are pooled buffers for request bodies: fresh memory for each would cost as much as the rest of its handling.
var bodies buffers.Pool

// ServeHTTP implements http.Handler.
func (h *bulkHandler[Req, Res]) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !isBulk(r) {
		h.connect.ServeHTTP(w, r)
		return
	}
	ctx, cancel, err := withTimeout(r)
	if err != nil {
		_ = h.errors.Write(w, r, err) // a failure here can't be reported to anyone
		return
	}
	defer cancel()
	body := bodies.Get(int(r.ContentLength))
	checked, err := h.read(r.Body, body.B)
	if err != nil {
		bodies.Put(body)
		_ = h.errors.Write(w, r, readError(ctx, err))
		return
	}
	if checked {
		ctx = WithChecked(ctx)
	}
	answer, err := h.answer(ctx, r, body.B)
	if bug := new(handlerPanic); errors.As(err, &bug) {
		// A handler that panicked may have left a goroutine that uses the body, so the body is not reused.
		_ = h.errors.Write(w, r, bug.err)
		return
	}
	if err != nil {
		_ = h.errors.Write(w, r, serverError(ctx, err))
	} else {
		writePieces(w, answer)
	}
	bodies.Put(body) // not before: an answer may refer to its request
}

// read reads a body, and reports whether its frames were checked.
func (h *bulkHandler[Req, Res]) read(r io.Reader, body []byte) (checked bool, err error) {
	if h.frames {
		return (&arrivingBody{body: body, smallest: minArriving}).readBody(r)
	}
	_, err = io.ReadFull(r, body)
	return false, err
}

// writePieces writes an answer. Failures are not reported: the client has gone or does not read.
func writePieces(w http.ResponseWriter, pieces [][]byte) {
	size := 0
	for _, p := range pieces {
		size += len(p)
	}
	if size > promptBytes {
		// The server resets the deadline before the connection's next request.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(bodyTimeout(int64(size))))
	}
	w.Header()["Content-Type"] = []string{protoType}
	w.Header()["Content-Length"] = []string{strconv.Itoa(size)}
	for _, p := range pieces {
		if _, err := w.Write(p); err != nil {
			return
		}
	}
}

// handlerPanic is the error of a handler that panicked.
type handlerPanic struct{ err error }

func (p *handlerPanic) Error() string { return p.err.Error() }

// answer calls the handler and encodes its result.
func (h *bulkHandler[Req, Res]) answer(ctx context.Context, r *http.Request, body []byte) (answer [][]byte, err error) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if v == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
			panic(v)
		}
		err = &handlerPanic{h.recovered(ctx, connect.Spec{Procedure: h.procedure}, r.Header, v)}
	}()
	req, err := h.decode(body)
	if err != nil {
		return nil, Errorf(scribev1.Reason_REASON_INVALID, "decode the request of %s: %w", h.procedure, err)
	}
	res, err := h.call(ctx, req)
	if err != nil {
		return nil, err
	}
	answer, err = h.encode(res)
	if err != nil {
		return nil, Errorf(scribev1.Reason_REASON_UNSPECIFIED, "encode the answer of %s: %w", h.procedure, err)
	}
	return answer, nil
}

// isBulk reports whether a request is served without Connect.
func isBulk(r *http.Request) bool {
	version, encoding := r.Header.Get("Connect-Protocol-Version"), r.Header.Get("Content-Encoding")
	return r.Method == http.MethodPost && r.ContentLength >= 0 && r.ContentLength <= MaxMessageBytes &&
		r.Header.Get("Content-Type") == protoType &&
		(version == "" || version == "1") && (encoding == "" || encoding == "identity")
}

// withTimeout returns a context that ends at the caller's deadline.
func withTimeout(r *http.Request) (context.Context, context.CancelFunc, error) {
	text := r.Header.Get("Connect-Timeout-Ms")
	if text == "" {
		return r.Context(), func() {}, nil
	}
	ms, err := strconv.ParseUint(text, 10, 34) // ten digits at most
	if err != nil || len(text) > 10 {
		return nil, nil, Errorf(scribev1.Reason_REASON_INVALID, "Connect-Timeout-Ms %.40q is not a number of at most ten digits", text)
	}
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(ms)*time.Millisecond)
	return ctx, cancel, nil
}

// readError returns the error for an incomplete body: the reader's own if it has a code, else the context's, else the client's
// fault.
func readError(ctx context.Context, err error) error {
	switch {
	case connect.CodeOf(err) != connect.CodeUnknown:
		return serverError(ctx, err)
	case ctx.Err() != nil:
		return connect.NewError(codeOf(ctx.Err()), err)
	default:
		return Errorf(scribev1.Reason_REASON_INVALID, "the request's body did not arrive whole: %w", err)
	}
}

// mountBulk serves a procedure on mux, beside the service's own handler.
func mountBulk[Req, Res any](s *Services, mux Mux, guard func(http.Handler) http.Handler, procedure string, service http.Handler,
	call func(context.Context, *Req) (*Res, error), decode func([]byte) (*Req, error), encode func(*Res) ([][]byte, error), frames bool,
) {
	mux.Handle(procedure, guard(&bulkHandler[Req, Res]{
		procedure: procedure, call: call, decode: decode, encode: encode, frames: frames,
		recovered: s.reportPanic, connect: service, errors: connect.NewErrorWriter(),
	}))
}

// encodeAnswer is encodeMessage for the type parameter of a handler.
func encodeAnswer[Res any, P interface {
	*Res
	proto.Message
}](res *Res) ([][]byte, error) {
	return encodeMessage(P(res))
}
