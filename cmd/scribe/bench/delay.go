package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/base/units"
)

// DelayRange is how long requests are held back: each for a uniformly random time from Least to Most. It is a flag's value.
type DelayRange struct {
	Least, Most units.Duration
}

// longestDelay is well below the time that a client waits for an answer.
const longestDelay = units.Duration(10 * time.Second)

// String implements pflag.Value.
func (d *DelayRange) String() string {
	if d.Least == d.Most {
		return d.Least.String()
	}
	return d.Least.String() + ".." + d.Most.String()
}

// Set implements pflag.Value.
func (d *DelayRange) Set(text string) error {
	var parsed DelayRange
	least, most, isRange := strings.Cut(text, "..")
	if !isRange {
		most = least
	}
	if errors.Join(parsed.Least.Set(least), parsed.Most.Set(most)) != nil || parsed.Most < parsed.Least || parsed.Most > longestDelay {
		return fmt.Errorf("invalid delay %q: want a duration of at most %v or a range such as 30ms..90ms", text, longestDelay)
	}
	*d = parsed
	return nil
}

// Type implements pflag.Value.
func (*DelayRange) Type() string { return "range" }

// pickDelay picks the delay of a request.
func (d *DelayRange) pickDelay() time.Duration {
	return (d.Least + units.Duration(rand.Int64N(int64(d.Most-d.Least)+1))).Std() //nolint:gosec // a delay is no secret
}

// StoreRequests counts what an S3 store was asked for.
type StoreRequests struct {
	Put    int64 `json:"put"`
	Get    int64 `json:"get"`
	Head   int64 `json:"head"`
	List   int64 `json:"list"`
	Delete int64 `json:"delete"`
	Post   int64 `json:"post"`
	// SentBytes and ReceivedBytes are those of the bodies, as a client of the store has them.
	SentBytes     int64 `json:"sent_bytes"`
	ReceivedBytes int64 `json:"received_bytes"`
}

// countRequest counts a request by its method. A listing is a GET of the bucket.
func (s *StoreRequests) countRequest(r *http.Request) {
	switch {
	case r.URL.Query().Has("list-type"):
		s.List++
	case r.Method == http.MethodPut:
		s.Put++
	case r.Method == http.MethodGet:
		s.Get++
	case r.Method == http.MethodHead:
		s.Head++
	case r.Method == http.MethodDelete:
		s.Delete++
	case r.Method == http.MethodPost:
		s.Post++
	}
}

// growthSince is by how much each count has grown.
func (s StoreRequests) growthSince(before StoreRequests) StoreRequests {
	return StoreRequests{
		Put: s.Put - before.Put, Get: s.Get - before.Get, Head: s.Head - before.Head, List: s.List - before.List,
		Delete: s.Delete - before.Delete, Post: s.Post - before.Post,
		SentBytes: s.SentBytes - before.SentBytes, ReceivedBytes: s.ReceivedBytes - before.ReceivedBytes,
	}
}

// DelayProxy makes an S3 store look far away: it is an HTTP proxy on a loopback port that holds each request back before it forwards it,
// and counts requests and bytes. Bodies are streamed. Any number of requests wait at the same time, each in its client's connection.
//
// Clients sign the Host header, so it is forwarded as it came: the store must accept any host, and buckets in the path.
type DelayProxy struct {
	delay   DelayRange
	store   *http.Transport
	forward httputil.ReverseProxy
	server  http.Server
	address string
	serving sync.WaitGroup
	// life ends with Close, and with it the requests that are held back or under way.
	life context.Context //nolint:containedctx // of the proxy, not of a call
	end  context.CancelFunc

	mu struct {
		sync.Mutex
		counts StoreRequests
	}
}

// storeConnections is how many idle connections to the store are kept: as many as its clients in one process may use.
const storeConnections = 256

// NewDelayProxy listens on a free loopback port and forwards requests to a store, http://host:port or https://host. Close stops it.
func NewDelayProxy(ctx context.Context, store string, delay DelayRange) (*DelayProxy, error) {
	target, err := url.Parse(store)
	if err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := newDelayProxy(ctx, target, delay)
	p.address = l.Addr().String()
	p.serving.Go(func() { _ = p.server.Serve(l) }) // until Close
	return p, nil
}

func newDelayProxy(ctx context.Context, target *url.URL, delay DelayRange) *DelayProxy {
	p := &DelayProxy{delay: delay, store: &http.Transport{
		MaxIdleConns: storeConnections, MaxIdleConnsPerHost: storeConnections, IdleConnTimeout: time.Minute,
		DisableCompression: true, WriteBufferSize: 64 << 10, ReadBufferSize: 64 << 10,
	}}
	p.life, p.end = context.WithCancel(context.WithoutCancel(ctx))
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelWarn) // clients see and report what fails
	p.forward = httputil.ReverseProxy{
		Transport: p.store, BufferPool: &copyBuffers{}, ErrorLog: quiet,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host
		},
		ModifyResponse: func(r *http.Response) error {
			r.Body = &countedBody{ReadCloser: r.Body, count: func(n int64) { p.countBytes(0, n) }}
			return nil
		},
	}
	p.server = http.Server{
		Handler: p, ReadHeaderTimeout: time.Minute, ErrorLog: quiet,
		BaseContext: func(net.Listener) context.Context { return p.life },
	}
	return p
}

// URL is where the proxy is the store.
func (p *DelayProxy) URL() string { return "http://" + p.address }

// Requests is what it has been asked for so far. Requests count when they arrive.
func (p *DelayProxy) Requests() StoreRequests {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.counts
}

func (p *DelayProxy) countBytes(sent, received int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.counts.SentBytes += sent
	p.mu.counts.ReceivedBytes += received
}

// ServeHTTP implements http.Handler.
func (p *DelayProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.mu.counts.countRequest(r)
	p.mu.Unlock()
	if err := backoff.Sleep(r.Context(), p.delay.pickDelay()); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable) // the client or the proxy has ended
		return
	}
	if r.Body != http.NoBody {
		r.Body = &countedBody{ReadCloser: r.Body, count: func(n int64) { p.countBytes(n, 0) }}
	}
	p.forward.ServeHTTP(w, r)
}

// closeTimeout bounds how long requests that were broken off may take to end.
const closeTimeout = 10 * time.Second

// Close breaks off all requests and returns when they have ended.
func (p *DelayProxy) Close() error {
	p.end()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.life), closeTimeout)
	defer cancel()
	err := errors.Join(p.server.Shutdown(ctx), p.server.Close())
	p.serving.Wait()
	p.store.CloseIdleConnections()
	return err
}

// countedBody tells how many bytes are read from a body.
type countedBody struct {
	io.ReadCloser

	count func(n int64)
}

// Read implements io.Reader.
func (b *countedBody) Read(dst []byte) (int, error) {
	n, err := b.ReadCloser.Read(dst)
	b.count(int64(n))
	return n, err
}

// copyBuffers are the buffers that the proxy copies bodies with.
type copyBuffers struct{ pool sync.Pool }

// Get implements httputil.BufferPool.
func (b *copyBuffers) Get() []byte {
	if buf, ok := b.pool.Get().(*[]byte); ok {
		return *buf
	}
	return make([]byte, 64<<10)
}

// Put implements httputil.BufferPool.
func (b *copyBuffers) Put(buf []byte) { b.pool.Put(&buf) }
