package netfault

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// Mode is how a proxy treats connections and bytes.
type Mode uint8

// Modes.
const (
	// Pass forwards everything.
	Pass Mode = 1
	// Hang forwards nothing in either direction, and keeps connections open, like a pulled cable or a peer that hangs. When the mode
	// ends, the bytes that arrived meanwhile pass.
	Hang Mode = 2
	// Refuse cuts open and new connections, like a peer that is not running.
	Refuse Mode = 3
	// LoseAnswers forwards requests and drops answers: requests are carried out, and clients do not learn of it. When the mode ends,
	// the connections that lost bytes are cut.
	LoseAnswers Mode = 4
)

// Chaos are random faults of a proxy that passes. The numbers are probabilities for each chunk of bytes that is read, up to 32 KiB.
type Chaos struct {
	// CutRequest cuts the connection instead of forwarding a chunk of a request, CutAnswer instead of a chunk of an answer, when the
	// request may have been carried out.
	CutRequest, CutAnswer float64
	// Delay delays a chunk by up to MaxDelay.
	Delay    float64
	MaxDelay time.Duration
}

// Proxy forwards TCP connections to a target. It is safe for concurrent use.
type Proxy struct {
	tb       testing.TB
	listener net.Listener
	running  sync.WaitGroup

	mu struct {
		sync.Mutex
		target  string
		mode    Mode
		changed chan struct{} // closed when mode changes
		chaos   Chaos
		rng     *rand.Rand
		conns   map[*proxiedConn]struct{}
		cuts    int
		lost    int
		closed  bool
	}
}

// proxiedConn is a client's connection and the proxy's connection to the target.
type proxiedConn struct {
	client, server *net.TCPConn
	gone           chan struct{} // closed by cut
	once           sync.Once
	// lost means that bytes of the connection were dropped; guarded by Proxy.mu.
	lost bool
}

// cutConn closes both connections so that the peers notice at once.
func (c *proxiedConn) cutConn() {
	c.once.Do(func() {
		close(c.gone)
		for _, end := range []*net.TCPConn{c.client, c.server} {
			_ = end.SetLinger(0)
			_ = end.Close()
		}
	})
}

// Listen opens a proxy on an address, or on a free port if the port is 0. The proxy runs until the end of the test. Until it has a
// target it cuts every connection.
func Listen(tb testing.TB, addr string) *Proxy {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", addr)
	if err != nil {
		tb.Fatalf("netfault: %v", err)
	}
	p := &Proxy{tb: tb, listener: l}
	p.mu.mode, p.mu.changed, p.mu.conns = Pass, make(chan struct{}), map[*proxiedConn]struct{}{}
	p.running.Go(p.acceptConns)
	tb.Cleanup(p.closeAll)
	return p
}

// Addr returns host:port of the proxy.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Target sets the address, host:port, to which later connections are forwarded.
func (p *Proxy) Target(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.target = addr
}

// Set changes the mode, also of open connections.
func (p *Proxy) Set(m Mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.mode = m
	close(p.mu.changed)
	p.mu.changed = make(chan struct{})
	for c := range p.mu.conns {
		if m == Refuse || c.lost && m != LoseAnswers {
			p.mu.cuts++
			c.cutConn()
		}
	}
}

// SetChaos starts random faults that are drawn from a seed; Chaos{} ends them.
func (p *Proxy) SetChaos(c Chaos, seed uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.chaos, p.mu.rng = c, rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // reproducible on purpose
}

// Cut cuts every connection that is open now.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.mu.conns {
		p.mu.cuts++
		c.cutConn()
	}
}

// Cuts returns the number of connections that were cut.
func (p *Proxy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.cuts
}

// Lost returns the number of chunks of answers that LoseAnswers has dropped.
func (p *Proxy) Lost() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.lost
}

func (p *Proxy) closeAll() {
	p.mu.Lock()
	p.mu.closed = true
	for c := range p.mu.conns {
		c.cutConn()
	}
	p.mu.Unlock()
	_ = p.listener.Close()
	p.running.Wait()
}

func (p *Proxy) acceptConns() {
	for {
		client, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			p.running.Go(func() { p.serveConn(client.(*net.TCPConn)) })
		}
	}
}

// serveConn connects a client with the target and forwards bytes until both directions have ended or the connection is cut.
func (p *Proxy) serveConn(client *net.TCPConn) {
	p.mu.Lock()
	target, mode := p.mu.target, p.mu.mode
	p.mu.Unlock()
	abandon := func() {
		_ = client.SetLinger(0)
		_ = client.Close()
	}
	if target == "" || mode == Refuse {
		abandon()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	server, err := new(net.Dialer).DialContext(ctx, "tcp", target)
	if err != nil {
		abandon()
		return
	}
	c := &proxiedConn{client: client, server: server.(*net.TCPConn), gone: make(chan struct{})}
	p.mu.Lock()
	if p.mu.closed || p.mu.mode == Refuse {
		c.cutConn()
	}
	p.mu.conns[c] = struct{}{}
	p.mu.Unlock()

	var pumps sync.WaitGroup
	pumps.Go(func() { p.copyBytes(c, c.client, c.server, false) })
	pumps.Go(func() { p.copyBytes(c, c.server, c.client, true) })
	pumps.Wait()
	c.cutConn()
	p.mu.Lock()
	delete(p.mu.conns, c)
	p.mu.Unlock()
}

// copyBytes forwards one direction.
func (p *Proxy) copyBytes(c *proxiedConn, from, to *net.TCPConn, answers bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && !p.passBytes(c, answers) {
			continue // dropped, or the connection was cut: then the next read fails
		}
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				c.cutConn()
				return
			}
		}
		if err != nil {
			// The other direction may still carry data.
			_ = to.CloseWrite()
			return
		}
	}
}

// passBytes waits until a chunk may pass or is dropped, and reports whether it passes.
func (p *Proxy) passBytes(c *proxiedConn, answer bool) bool {
	for {
		p.mu.Lock()
		mode, changed, lost := p.mu.mode, p.mu.changed, c.lost
		var delay time.Duration
		cut := mode == Pass && p.drawChaos(answer, &delay)
		if cut {
			p.mu.cuts++
		}
		if mode == LoseAnswers && answer {
			c.lost = true
			p.mu.lost++
		}
		p.mu.Unlock()
		switch {
		case cut || mode == Refuse:
			c.cutConn()
			return false
		case mode == LoseAnswers:
			return !answer && !lost
		case mode == Hang:
			select {
			case <-changed:
				continue
			case <-c.gone:
				return false
			}
		}
		if delay > 0 {
			select {
			case <-time.After(delay):
			case <-c.gone:
				return false
			}
		}
		return true
	}
}

// drawChaos draws the faults of a chunk. The mutex is held.
func (p *Proxy) drawChaos(answer bool, delay *time.Duration) (cut bool) {
	ch := p.mu.chaos
	if p.mu.rng == nil || ch == (Chaos{}) {
		return false
	}
	odds := ch.CutRequest
	if answer {
		odds = ch.CutAnswer
	}
	if p.mu.rng.Float64() < ch.Delay && ch.MaxDelay > 0 {
		*delay = time.Duration(p.mu.rng.Int64N(int64(ch.MaxDelay)))
	}
	return p.mu.rng.Float64() < odds
}
