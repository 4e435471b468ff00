package rpc

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"

	scribev1 "scribe/proto/scribe/v1"
)

// Admit is called before n bytes of a request are read into memory. It returns a function that releases them, or the error for
// the client, with a retry hint.
type Admit func(n int64) (release func(), err error)

const (
	// promptBytes bounds the bodies that have no deadlines of their own: they fit a connection's buffers.
	promptBytes = 16 << 10
	// admitStep is the step in which a body of unknown length is admitted.
	admitStep = 1 << 20
	// maxSmallBytes bounds requests that carry no frames, pointers or records.
	maxSmallBytes = 8 << 20
	// lingerTime and MaxMessageBytes bound the reading of a body after its request was refused.
	lingerTime = 5 * time.Second
)

// bodyTimeout returns the time for a body of n bytes to arrive or leave. A peer that is slower, or gone, would hold memory that
// other requests wait for.
func bodyTimeout(n int64) time.Duration {
	const perMiB = time.Second
	return 30*time.Second + time.Duration(n>>20)*perMiB
}

// guardBody wraps a service: it refuses a request by its announced length before the body is read, bounds a body of unknown
// length while it is read, and bounds the time for both.
func guardBody(admit Admit, limit int64, next http.Handler) http.Handler {
	errs := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := &guardedBody{ReadCloser: r.Body, w: w, http1: r.ProtoMajor == 1, admit: admit, limit: limit, length: r.ContentLength}
		defer body.releaseAll()
		if err := body.admitAnnounced(); err != nil {
			body.refuseBody(err)
			_ = errs.Write(w, r, serverError(r.Context(), err)) // a failure here can't be reported to anyone
		} else {
			guarded := r.WithContext(r.Context()) // a copy: net/http keeps its own, and looks at the body after the answer
			guarded.Body = body
			next.ServeHTTP(w, guarded)
		}
		// A client that waits for 100 Continue sends its body only after the first read of it.
		if body.refused != nil && (body.read > 0 || !strings.EqualFold(r.Header.Get("Expect"), "100-continue")) {
			body.discardRest()
		}
	})
}

// RefuseRequest answers a request with an error before its body is read, in the request's own protocol, or else as text. Also a client that sends
// everything before it reads sees the answer.
func RefuseRequest(w http.ResponseWriter, r *http.Request, err error) {
	body := &guardedBody{ReadCloser: r.Body, w: w, http1: r.ProtoMajor == 1, limit: MaxMessageBytes, length: r.ContentLength}
	defer body.releaseAll()
	if r.ContentLength != 0 {
		body.refuseBody(err)
	}
	if errs := connect.NewErrorWriter(); errs.IsSupported(r) {
		_ = errs.Write(w, r, serverError(r.Context(), err)) // a failure here can't be reported to anyone
	} else {
		status := http.StatusForbidden
		switch connect.CodeOf(err) { //nolint:exhaustive // the others are refusals of who asks
		case connect.CodeUnauthenticated:
			status = http.StatusUnauthorized
		case connect.CodeUnavailable:
			status = http.StatusServiceUnavailable
		case connect.CodeResourceExhausted:
			status = http.StatusTooManyRequests
		}
		http.Error(w, Message(err), status)
	}
	if body.refused != nil && !strings.EqualFold(r.Header.Get("Expect"), "100-continue") {
		body.discardRest()
	}
}

// guardedBody is a request's body whose reading is bounded by a limit, admission and time.
type guardedBody struct {
	io.ReadCloser
	w        http.ResponseWriter
	http1    bool
	admit    Admit
	limit    int64
	length   int64 // as announced, -1 if it was not
	read     int64
	admitted int64
	releases []func()
	timed    bool
	refused  error
}

// admitAnnounced admits an announced length.
func (b *guardedBody) admitAnnounced() error {
	if b.length > b.limit {
		return tooLarge(b.limit, "announces %d bytes", b.length)
	}
	if b.length < 0 || b.length > promptBytes {
		// Some servers have no deadlines, for example those of tests.
		b.timed = http.NewResponseController(b.w).SetReadDeadline(time.Now().Add(b.ownTimeout())) == nil
	}
	return b.admitBytes(max(b.length, 0))
}

func (b *guardedBody) ownTimeout() time.Duration {
	if b.length < 0 {
		return bodyTimeout(b.limit)
	}
	return bodyTimeout(b.length)
}

func (b *guardedBody) admitBytes(n int64) error {
	if b.admit == nil || n == 0 {
		return nil
	}
	release, err := b.admit(n)
	if err != nil {
		return err
	}
	b.admitted += n
	if release != nil {
		b.releases = append(b.releases, release)
	}
	return nil
}

// Read implements io.Reader.
func (b *guardedBody) Read(p []byte) (int, error) {
	if b.refused != nil {
		return 0, b.refused
	}
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	if err != nil {
		b.clearDeadline()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = Errorf(scribev1.Reason_REASON_INVALID, "%d bytes of the request's body arrived in %s: send less at once: %w", b.read, b.ownTimeout(), err)
	}
	if b.length < 0 {
		if refused := b.admitRead(); refused != nil {
			b.refuseBody(refused)
			if after := Info(refused).GetRetryAfter().AsDuration(); after > 0 {
				b.w.Header().Set("Retry-After", retryAfterSeconds(after)) // Connect's handler writes the answer, and does not use the headers of this error
			}
			return n, refused
		}
	}
	return n, err
}

// admitRead admits the bytes read from a body of unknown length.
func (b *guardedBody) admitRead() error {
	if b.read > b.limit {
		return tooLarge(b.limit, "has more than %d bytes", b.limit)
	}
	for b.admit != nil && b.read > b.admitted {
		if err := b.admitBytes(admitStep); err != nil {
			return err
		}
	}
	return nil
}

// Close implements io.Closer. A refused body stays open for discardRest.
func (b *guardedBody) Close() error {
	if b.refused != nil {
		return nil //nolint:nilerr // the refusal is the answer, not a fault of closing
	}
	return b.ReadCloser.Close()
}

// clearDeadline removes the deadline: while the request is carried out, the server reads the connection to notice that the client
// has gone.
func (b *guardedBody) clearDeadline() {
	if b.timed {
		b.timed = http.NewResponseController(b.w).SetReadDeadline(time.Time{}) != nil
	}
}

func (b *guardedBody) releaseAll() {
	b.clearDeadline()
	for _, release := range b.releases {
		release()
	}
}

// refuseBody is called before the answer is written: the connection can't be used for another request.
func (b *guardedBody) refuseBody(err error) {
	b.refused = err
	if b.http1 { // with HTTP/2 it would end all streams of the connection
		b.w.Header().Set("Connection", "close")
	}
}

// discardRest is called after the answer to a request whose body was refused. If the connection were closed now, a client that
// sends everything before it reads would not see the answer: the system resets a connection with unread data, and drops what was
// sent. So the rest of the body is read and discarded, without memory and for a bounded time. HTTP/2 resets streams, not
// connections.
func (b *guardedBody) discardRest() {
	rc := http.NewResponseController(b.w)
	if !b.http1 || rc.Flush() != nil || rc.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	b.timed = true
	_, _ = io.CopyN(io.Discard, b.ReadCloser, MaxMessageBytes)
}

func tooLarge(limit int64, format string, n int64) error {
	return Errorf(scribev1.Reason_REASON_TOO_LARGE, "the request "+format+", the limit is %d: send less at once", n, limit)
}

type stoppingKey struct{}

// untilStopping returns a context that also ends when its server begins to close. Streams would not end by themselves.
func untilStopping(ctx context.Context) (context.Context, context.CancelFunc) {
	stopping, ok := ctx.Value(stoppingKey{}).(context.Context)
	if !ok {
		return context.WithCancel(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(stopping, func() { cancel(errStopping) })
	return ctx, func() { stop(); cancel(context.Canceled) }
}
