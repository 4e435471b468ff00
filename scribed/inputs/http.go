package inputs

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
)

// RetryAfter is the retry hint for clients.
const RetryAfter = time.Second

// HTTPError is an error with a status.
type HTTPError struct {
	Status int
	Err    error
}

// NewHTTPError returns an error with a status.
func NewHTTPError(status int, format string, args ...any) *HTTPError {
	return &HTTPError{status, fmt.Errorf(format, args...)}
}

// SetRetryAfter sets the retry hint of an answer after which a client is to retry.
func (e *HTTPError) SetRetryAfter(answer http.Header) {
	if e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable {
		answer.Set("Retry-After", strconv.Itoa(int(RetryAfter.Seconds())))
	}
}

// OpenBody returns the body of a request, of at most limit bytes, decompressed from one of the given encodings. A read without
// progress for patience fails. Closing it does not close the request's body: that would wait for the rest of it, without patience.
func OpenBody(w http.ResponseWriter, r *http.Request, limit int64, patience time.Duration, encodings ...string) (io.ReadCloser, *HTTPError) {
	body := http.MaxBytesReader(w, NewPatientBody(w, r.Body, patience), limit)
	encoding := r.Header.Get("Content-Encoding")
	switch {
	case encoding == "" || encoding == "identity":
		return io.NopCloser(body), nil
	case !slices.Contains(encodings, encoding):
	case encoding == "gzip":
		z, err := gzip.NewReader(body)
		if err != nil {
			return nil, NewHTTPError(http.StatusBadRequest, "the body is not gzip: %w", err)
		}
		return z, nil
	case encoding == "zstd":
		z, err := zstd.NewReader(body, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20))
		if err != nil {
			return nil, NewHTTPError(http.StatusBadRequest, "the body is not zstd: %w", err)
		}
		return z.IOReadCloser(), nil
	}
	return nil, NewHTTPError(http.StatusUnsupportedMediaType, "invalid Content-Encoding %q: want %s or identity", encoding, strings.Join(encodings, ", "))
}

// NewPatientBody wraps a request body so that a read without progress for patience fails. So a slow or silent client frees its
// request slot.
func NewPatientBody(w http.ResponseWriter, body io.ReadCloser, patience time.Duration) io.ReadCloser {
	return &patientBody{ReadCloser: body, control: http.NewResponseController(w), patience: patience}
}

type patientBody struct {
	io.ReadCloser
	control  *http.ResponseController
	patience time.Duration
}

// Read implements io.Reader. The deadline is set only during a read: one that passes while the request is being answered would
// end it. A ResponseWriter without deadlines, as in a test, waits forever.
func (p *patientBody) Read(b []byte) (int, error) {
	_ = p.control.SetReadDeadline(time.Now().Add(p.patience))
	n, err := p.ReadCloser.Read(b)
	if err == nil || errors.Is(err, io.EOF) {
		_ = p.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

// maxToken bounds a token file in bytes.
const maxToken = 4096

// RequireToken returns a handler that refuses requests without the token. It fails if the token file cannot be read.
func (l *ListenConfig) RequireToken(next http.Handler) (http.Handler, error) {
	if l.TokenFile == "" {
		return next, nil
	}
	token, err := os.ReadFile(l.TokenFile)
	if err != nil {
		return nil, err
	}
	if token = bytes.TrimSpace(token); len(token) == 0 || len(token) > maxToken {
		return nil, fmt.Errorf("token file %s: a token of 1 to %d bytes is needed", l.TokenFile, maxToken)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || subtle.ConstantTimeCompare([]byte(given), token) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a bearer token is needed", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	}), nil
}

// Timeouts of HTTP inputs: for the head of a request, for the rest of a body that is not read, and at shutdown for requests that
// are being answered.
const (
	headTimeout = 10 * time.Second
	restTimeout = time.Second
	idleTimeout = 2 * time.Minute
	drainTime   = 10 * time.Second
)

// boundRest bounds how long the server waits for the rest of a body that a handler did not read.
func boundRest(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(restTimeout)) // until the next request sets its own
	})
}

// ServeHTTP serves until ctx ends, then lets running requests finish. It calls open once it is ready to serve.
func (l *ListenConfig) ServeHTTP(ctx context.Context, nl net.Listener, h http.Handler, open func()) error {
	guarded, err := l.RequireToken(h)
	if err != nil {
		return errors.Join(err, nl.Close())
	}
	open()
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler: boundRest(guarded), Protocols: &protocols, ReadHeaderTimeout: headTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(nl) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	err = server.Shutdown(drain)
	if err != nil {
		err = errors.Join(err, server.Close())
	}
	if ended := <-failed; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}
