package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	scribev1 "scribe/proto/scribe/v1"
)

// endpoint is what a client of a service is made with: connections to one address or several, and the base URL of its requests.
type endpoint struct {
	unary, stream connect.HTTPClient
	base          string
}

// endpointOf returns the endpoint of an address, or of a list of addresses.
func (t *Transport) endpointOf(addresses string) endpoint {
	if !strings.Contains(addresses, ",") {
		return endpoint{t.unary, t.stream, baseURL(addresses)}
	}
	set, err := t.Addresses(addresses)
	if err != nil {
		broken := brokenClient{Errorf(scribev1.Reason_REASON_INVALID, "server addresses: %w", err)}
		return endpoint{broken, broken, "http://invalid"}
	}
	bases := make([]*url.URL, len(set.list))
	for i, address := range set.list {
		bases[i], _ = url.Parse(baseURL(address)) // it was parsed before
	}
	return endpoint{setClient{t.unary, set, bases}, setClient{t.stream, set, bases}, bases[0].String()}
}

// brokenClient is the HTTP client for an invalid list.
type brokenClient struct{ err error }

// Do implements connect.HTTPClient.
func (c brokenClient) Do(*http.Request) (*http.Response, error) { return nil, c.err }

// setClient is an HTTP client that sends each request to one of several addresses. It goes on to the next one only as long as no
// connection was made, so that nothing was sent. A request that may have reached a server fails, as it does with one address;
// its caller knows whether it may be repeated, and the repetition goes elsewhere.
type setClient struct {
	client namedClient
	set    *AddressSet
	bases  []*url.URL // of the set's addresses; the first is that of requests
}

// connectPatience bounds the time in which a connection must be made while there are other addresses.
const connectPatience = 2 * time.Second

// Do implements connect.HTTPClient.
func (c setClient) Do(req *http.Request) (*http.Response, error) {
	order := c.set.orderIndexes()
	var failed []error
	for n, i := range order {
		attempt, body, err := c.aimRequest(req, i, n > 0, n < len(order)-1)
		if err != nil {
			return nil, err
		}
		res, err := c.client.Do(attempt)
		if err == nil {
			body.releaseBody()
			c.noteAnswer(i, res)
			res.Body = &watchedBody{ReadCloser: res.Body, ctx: req.Context(), broke: func() { c.set.markAway(i) }}
			return res, nil
		}
		if cause := req.Context().Err(); cause == nil || errors.Is(cause, context.DeadlineExceeded) {
			c.set.markAway(i)
		}
		if req.Context().Err() != nil || !notSent(err) {
			body.releaseBody()
			return nil, err
		}
		failed = append(failed, err)
	}
	if req.Body != nil {
		_ = req.Body.Close() // nothing of it was read
	}
	return nil, joinUnreached(failed)
}

// aimRequest returns the request for one of the addresses, and its body if that can be read only once.
func (c setClient) aimRequest(req *http.Request, i int, again, others bool) (*http.Request, *keptBody, error) {
	ctx := req.Context()
	if others {
		ctx = context.WithValue(ctx, patienceKey{}, connectPatience)
	}
	attempt := req.WithContext(ctx)
	target := *c.bases[i]
	target.Path += strings.TrimPrefix(req.URL.Path, c.bases[0].Path)
	target.RawPath, target.RawQuery = "", req.URL.RawQuery
	attempt.URL, attempt.Host = &target, target.Host
	switch {
	case req.Body == nil || req.Body == http.NoBody:
	case req.GetBody == nil:
		body := &keptBody{ReadCloser: req.Body}
		attempt.Body = body
		return attempt, body, nil
	case again:
		fresh, err := req.GetBody()
		if err != nil {
			return nil, nil, fmt.Errorf("repeat the request at %s: %w", readableURL(&target), err)
		}
		attempt.Body = fresh
	}
	return attempt, nil, nil
}

// noteAnswer records that an address answered. With these statuses, the server or a proxy says that it can't serve now: another
// address may.
func (c setClient) noteAnswer(i int, res *http.Response) {
	switch res.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		c.set.markAway(i)
	default:
		c.set.markPresent(i)
	}
}

// keptBody is the body of an attempt that can be read only once. Its Close takes effect when it is read, or when no further address
// will need it: the transport closes the body of a request for which it could not connect.
type keptBody struct {
	io.ReadCloser
	mu struct {
		sync.Mutex
		closed, released bool
	}
}

// Read implements io.Reader. Only a connection reads the body, so that there is no further attempt.
func (b *keptBody) Read(p []byte) (int, error) {
	b.releaseBody()
	return b.ReadCloser.Read(p)
}

// Close implements io.Closer.
func (b *keptBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.closed = true
	if b.mu.released {
		return b.ReadCloser.Close()
	}
	return nil
}

// releaseBody makes Close effective, also that of before.
func (b *keptBody) releaseBody() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.mu.released && b.mu.closed {
		_ = b.ReadCloser.Close() // as the transport would have
	}
	b.mu.released = true
}

// watchedBody notices an answer that breaks off, for example since the peer does not answer pings any more.
type watchedBody struct {
	io.ReadCloser
	ctx   context.Context //nolint:containedctx // of the request
	broke func()
}

// Read implements io.Reader.
func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && b.ctx.Err() == nil {
		b.broke()
	}
	return n, err
}

// patienceKey is the key of the time in which a request's connection must be made.
type patienceKey struct{}

// dialPatiently dials within the time that the request leaves for it. What it says then is not that the caller's time is over.
func dialPatiently(ctx context.Context, dial Dial, network, addr string) (net.Conn, error) {
	patience, ok := ctx.Value(patienceKey{}).(time.Duration)
	if !ok {
		return dial(ctx, network, addr)
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := dial(limited, network, addr)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("dial %s: no connection within %v", addr, patience)
	}
	return c, err
}
