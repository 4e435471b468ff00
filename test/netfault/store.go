package netfault

import (
	"bytes"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// StoreFaults are the faults of a store proxy. All but MaxDelay and Hold are probabilities; at most one fault is drawn for a request.
type StoreFaults struct {
	// SlowDown answers 503 SlowDown, CutBefore cuts the connection, CutUpload cuts it in the middle of the request's body: the
	// request is not carried out.
	SlowDown, CutBefore, CutUpload float64
	// CutAfter cuts the connection instead of answering, FailAfter answers 500 InternalError: the request was carried out.
	CutAfter, FailAfter float64
	// CutAnswer cuts the connection in the middle of the answer's body; an answer without a body passes.
	CutAnswer float64
	// Damage changes a byte of the answer's body if the body is a part of an object; any other answer passes.
	Damage float64
	// Hang carries the request out, or does not, sends no answer for Hold, and then cuts the connection.
	Hang float64
	Hold time.Duration
	// Delay delays the answer by up to MaxDelay.
	Delay    float64
	MaxDelay time.Duration
}

// Names of the faults in Store.Counts.
const (
	FaultSlowDown  = "slow down"
	FaultCutBefore = "cut before"
	FaultCutUpload = "cut upload"
	FaultCutAfter  = "cut after"
	FaultFailAfter = "fail after"
	FaultCutAnswer = "cut answer"
	FaultDamage    = "damage"
	FaultHang      = "hang"
	FaultDelay     = "delay"
)

// Store is an HTTP proxy in front of an S3 server. It is safe for concurrent use.
type Store struct {
	server *httptest.Server
	target string
	client *http.Transport
	// stop is closed at the end of the test, so that no request waits for a hold any longer.
	stop chan struct{}

	mu struct {
		sync.Mutex
		faults StoreFaults
		rng    *rand.Rand
		counts map[string]int
		hold   *Held // the next upload is held; nil = none
	}
}

// Held is an upload that was carried out and whose answer is held back, so that its writer does not know the outcome yet.
type Held struct {
	// Path is the path of the uploaded object.
	Path string
	// Reached is closed when an upload is held; Path may be read after that.
	Reached chan struct{}
	release chan struct{}
	in      string
}

// Release sends the answer. It is called once.
func (h *Held) Release() { close(h.release) }

// HoldPut holds back the answer of the next upload whose path contains in.
func (s *Store) HoldPut(in string) *Held {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.hold = &Held{in: in, Reached: make(chan struct{}), release: make(chan struct{})}
	return s.mu.hold
}

// takeHeld returns and removes the hold that matches an upload, or returns nil.
func (s *Store) takeHeld(r *http.Request, status int) *Held {
	if r.Method != http.MethodPut || status >= 300 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.mu.hold
	if h == nil || !strings.Contains(r.URL.Path, h.in) {
		return nil
	}
	s.mu.hold = nil
	return h
}

// NewStore opens a proxy on an address, in front of an S3 server at host:port, that lives until the end of the test. It passes
// everything until Set.
func NewStore(tb testing.TB, addr, target string, seed uint64) *Store {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", addr)
	if err != nil {
		tb.Fatalf("netfault: %v", err)
	}
	return ServeStore(tb, l, target, seed)
}

// ServeStore is NewStore on a listener, for example one on a host of a Network.
func ServeStore(tb testing.TB, l net.Listener, target string, seed uint64) *Store {
	tb.Helper()
	s := &Store{target: target, client: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}, stop: make(chan struct{})}
	s.mu.rng, s.mu.counts = rand.New(rand.NewPCG(seed, 3)), map[string]int{} //nolint:gosec // reproducible on purpose
	s.server = &httptest.Server{Listener: l, Config: &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}}
	s.server.Start()
	tb.Cleanup(func() {
		close(s.stop)
		s.server.CloseClientConnections()
		s.server.Close()
		s.client.CloseIdleConnections()
	})
	return s
}

// Endpoint returns host:port of the proxy. Clients sign requests for this address; the proxy forwards them unchanged, so signatures hold.
func (s *Store) Endpoint() string { return s.server.Listener.Addr().String() }

// Set changes the faults of later requests.
func (s *Store) Set(f StoreFaults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.faults = f
}

// Counts returns the number of requests that met each fault.
func (s *Store) Counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.mu.counts)
}

// drawFault chooses the fault of a request, and a random number in [0, 1) that the fault uses.
func (s *Store) drawFault() (fault string, f StoreFaults, luck float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f = s.mu.faults
	at, luck := s.mu.rng.Float64(), s.mu.rng.Float64()
	for _, c := range []struct {
		name string
		odds float64
	}{
		{FaultSlowDown, f.SlowDown},
		{FaultCutBefore, f.CutBefore},
		{FaultCutUpload, f.CutUpload},
		{FaultCutAfter, f.CutAfter},
		{FaultFailAfter, f.FailAfter},
		{FaultCutAnswer, f.CutAnswer},
		{FaultDamage, f.Damage},
		{FaultHang, f.Hang},
		{FaultDelay, f.Delay},
	} {
		if at < c.odds {
			s.mu.counts[c.name]++
			return c.name, f, luck
		}
		at -= c.odds
	}
	return "", f, luck
}

// ServeHTTP implements http.Handler.
func (s *Store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fault, f, luck := s.drawFault()
	switch {
	case fault == FaultSlowDown:
		answerError(w, r, http.StatusServiceUnavailable, "SlowDown")
		return
	case fault == FaultCutBefore:
		cutAnswer(w)
		return
	case fault == FaultCutUpload && r.ContentLength > 0:
		// The server sees the beginning of the body, and then its connection breaks.
		r.Body = io.NopCloser(io.MultiReader(io.LimitReader(r.Body, int64(luck*float64(r.ContentLength))), brokenBody{}))
		if res, err := s.forwardRequest(r); err == nil {
			_ = res.Body.Close()
		}
		cutAnswer(w)
		return
	case fault == FaultHang && luck < 0.5:
		s.waitDelay(r, f.Hold)
		cutAnswer(w)
		return
	}
	res, err := s.forwardRequest(r)
	if err != nil {
		cutAnswer(w)
		return
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		cutAnswer(w)
		return
	}
	if h := s.takeHeld(r, res.StatusCode); h != nil {
		h.Path = r.URL.Path
		close(h.Reached)
		select {
		case <-h.release:
		case <-s.stop:
		}
	}
	switch fault {
	case FaultCutAfter:
		cutAnswer(w)
		return
	case FaultFailAfter:
		answerError(w, r, http.StatusInternalServerError, "InternalError")
		return
	case FaultHang:
		s.waitDelay(r, f.Hold)
		cutAnswer(w)
		return
	case FaultDelay:
		s.waitDelay(r, time.Duration(luck*float64(f.MaxDelay)))
	case FaultDamage:
		if r.Method == http.MethodGet && res.StatusCode < 300 && r.URL.RawQuery == "" && len(body) > 0 {
			body[int(luck*float64(len(body)))] ^= 0x20
		}
	}
	maps.Copy(w.Header(), res.Header)
	w.WriteHeader(res.StatusCode)
	if fault == FaultCutAnswer && len(body) > 1 {
		body = body[:int(luck*float64(len(body)))]
		_, _ = w.Write(body)
		_ = http.NewResponseController(w).Flush()
		cutAnswer(w)
		return
	}
	_, _ = io.Copy(w, bytes.NewReader(body)) // an error means that the client is gone
}

// forwardRequest forwards a request unchanged, with its Host, which its signature covers.
func (s *Store) forwardRequest(r *http.Request) (*http.Response, error) {
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host, out.RequestURI = "http", s.target, ""
	if r.ContentLength == 0 {
		out.Body = http.NoBody
	}
	return s.client.RoundTrip(out)
}

// waitDelay returns after a time, or when the client is gone or the test ends.
func (s *Store) waitDelay(r *http.Request, d time.Duration) {
	select {
	case <-time.After(d):
	case <-r.Context().Done():
	case <-s.stop:
	}
}

// answerError answers with an S3 error.
func answerError(w http.ResponseWriter, r *http.Request, status int, code string) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>"+code+"</Code><Message>injected</Message></Error>")
}

// cutAnswer cuts the client's connection after what was written so far.
func cutAnswer(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// brokenBody is a body whose reads fail.
type brokenBody struct{}

// Read implements io.Reader.
func (brokenBody) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
