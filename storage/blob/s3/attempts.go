package s3

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// attemptTransport is the transport below minio-go. It bounds each attempt in time, and makes sure that the body of a request is
// not read after the attempt has ended.
//
// http.RoundTripper may close the body in a goroutine of its own after RoundTrip has returned, and may read it until then. The
// interleaving that would corrupt an object: attempt 1 breaks while its goroutine is about to read the body; minio-go rewinds the
// body, which all attempts share, and attempt 2 begins to read; the goroutine of attempt 1 takes 32 KiB out of the middle. The
// store receives an object with wrong bytes, and with the right length if attempt 2 is served from the rest of the next rewind.
type attemptTransport struct {
	base    http.RoundTripper
	timeout time.Duration
}

// RoundTrip implements http.RoundTripper.
func (a *attemptTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(req.Context(), a.timeout)
	end := cancel
	r := req.WithContext(ctx)
	if req.Body != nil && req.Body != http.NoBody {
		g := &bodyGuard{body: req.Body}
		r.Body = g
		end = func() {
			g.stopReads()
			cancel()
		}
	}
	resp, err := a.base.RoundTrip(r)
	if err != nil {
		end()
		return nil, err
	}
	// The attempt lasts until its answer was read: an answer may arrive before the request was sent completely.
	resp.Body = &attemptBody{ReadCloser: resp.Body, end: end}
	return resp, nil
}

// CloseIdleConnections makes http.Client.CloseIdleConnections reach the transport below.
func (a *attemptTransport) CloseIdleConnections() {
	if c, ok := a.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// attemptBody ends its attempt when it is closed.
type attemptBody struct {
	io.ReadCloser
	end func()
}

func (r *attemptBody) Close() error {
	err := r.ReadCloser.Close()
	r.end()
	return err
}

// errAttemptEnded is returned by reads after the end of the attempt.
var errAttemptEnded = errors.New("s3: the attempt has ended")

// bodyGuard is a body whose reads can be stopped. Reads are copies within memory, so stopping them never waits long.
type bodyGuard struct {
	mu struct {
		sync.Mutex
		ended bool
	}
	body io.ReadCloser
}

func (g *bodyGuard) Read(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.ended {
		return 0, errAttemptEnded
	}
	return g.body.Read(p)
}

func (g *bodyGuard) Close() error { return g.body.Close() }

// stopReads waits for a running Read and makes later ones fail.
func (g *bodyGuard) stopReads() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.ended = true
}
