package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// network connects hosts. A host is named by its address without the port.
//
// Every connection is a pair of streams of bytes, each with the latency and the bandwidth of the network. What is lost on the way arrives
// later, as with TCP: a segment that is lost costs a retransmission, and behind a cut bytes wait until the cut heals, or until the sender
// gives up.
type network struct {
	mu        sync.Mutex
	rng       *rand.Rand
	latency   time.Duration // one way, at least
	jitter    time.Duration // on top of latency, at most
	loss      float64       // chance that a write needs a retransmission
	bandwidth float64       // bytes a second of one connection
	listeners map[string]*listener
	conns     map[*conn]bool
	// cuts are directed: bytes from the first host do not reach the second.
	cuts map[route]bool
	// isolated are hosts that nothing reaches, and that reach nothing.
	isolated map[string]bool
	// stopped are hosts whose process is stopped (SIGSTOP): its kernel still answers, so nobody notices but by the silence.
	stopped map[string]bool
	// changed is closed and replaced when any of these change.
	changed chan struct{}
	// down are hosts that lost power: nothing answers, not even a refusal.
	down map[string]bool
	// private are hosts of the cell that only one client reaches.
	private map[string]string
	// port is the last one that an unnamed end took.
	port   int
	digest *digest
}

// digest is a hash over what was sent, asked of the store and of etcd, and synced, in order. What happened in a process is not in it: of two runs with
// different digests not the same happened, those with the same one can't be told from outside.
type digest struct {
	mu  sync.Mutex
	sum uint64
}

// note adds what happened now.
func (d *digest) note(what ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sum = (d.sum ^ uint64(time.Now().UnixNano())) * 1099511628211 //nolint:gosec // only hashed
	for _, part := range what {
		d.sum = (d.sum ^ hashOf(part)) * 1099511628211
	}
}

func (d *digest) get() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sum
}

// clientHosts is what the addresses of hosts outside the cell begin with.
const clientHosts = "10.1."

type route struct{ from, to string }

const (
	// retransmission is what a lost segment costs.
	retransmission = 200 * time.Millisecond
	// keepAlive is how long a connection stands without an acknowledgement before its ends give it up, as the keep-alives of rpc do.
	keepAlive = 30 * time.Second
)

// makeFast makes the network that of a room, makeSlow one of little bandwidth between far places.
func (n *network) makeFast() { n.latency, n.bandwidth = 200*time.Microsecond, 100<<20 }
func (n *network) makeSlow() { n.latency, n.bandwidth = 100*time.Millisecond, 1<<20 }

func newNetwork(rng *rand.Rand, d *digest) *network {
	return &network{
		rng: rng, digest: d, latency: 200 * time.Microsecond, jitter: 300 * time.Microsecond, bandwidth: 100 << 20,
		listeners: map[string]*listener{}, conns: map[*conn]bool{}, cuts: map[route]bool{}, down: map[string]bool{}, isolated: map[string]bool{}, stopped: map[string]bool{}, private: map[string]string{}, changed: make(chan struct{}),
	}
}

// cut lets no bytes through from one host to another; heal ends every cut.
func (n *network) cut(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cuts[route{from, to}] = true
	n.announceLocked()
}

func (n *network) heal(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.cuts, route{from, to})
	n.announceLocked()
}

func (n *network) announceLocked() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// powerOff makes a host vanish: its peers are told nothing. disconnect breaks the connections of a process that ended on a living host:
// its kernel tells the peers.
func (n *network) powerOff(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down[host] = true
	for addr, l := range n.listeners {
		if l.host == host {
			delete(n.listeners, addr)
			l.shut()
		}
	}
	for c := range n.conns {
		if c.host == host {
			c.fail(net.ErrClosed)
		}
	}
	n.announceLocked()
}

func (n *network) powerOn(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.down, host)
	// The kernel that has come up knows none of the old connections.
	for c := range n.conns {
		if c.peer.host == host && c.peer.broken() {
			c.fail(syscall.ECONNRESET)
		}
	}
	n.announceLocked()
}

func (n *network) disconnect(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for addr, l := range n.listeners {
		if l.host == host {
			delete(n.listeners, addr)
			l.shut()
		}
	}
	for c := range n.conns {
		if c.host == host {
			c.fail(net.ErrClosed)
			c.peer.fail(syscall.ECONNRESET)
		}
	}
}

// blocked reports whether bytes of a route do not arrive now; changed is closed when that may be otherwise.
func (n *network) blocked(from, to string) (blocked bool, changed <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cuts[route{from, to}] || n.down[from] || n.down[to] || from != to && (n.isolated[from] || n.isolated[to]), n.changed
}

// awaitWay waits until bytes of a host reach the rest of the world, as long as a connection stands.
func (n *network) awaitWay(ctx context.Context, host string) error {
	limit := time.NewTimer(keepAlive)
	defer limit.Stop()
	for {
		blocked, changed := n.blocked(host, "")
		if !blocked {
			return nil
		}
		select {
		case <-changed:
		case <-limit.C:
			return syscall.ETIMEDOUT
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// silent reports whether the process at an end of a route is stopped.
func (n *network) silent(from, to string) (silent bool, changed <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stopped[from] || n.stopped[to], n.changed
}

// delay is how long a number of bytes takes from one host to another: how long a connection sends, and how long they are under way then.
func (n *network) delay(from, to string, size int) (sending, underWay time.Duration) {
	if from == to {
		return 0, 0
	}
	n.digest.note(from, to, strconv.Itoa(size))
	n.mu.Lock()
	defer n.mu.Unlock()
	sending, underWay = time.Duration(float64(size)/n.bandwidth*float64(time.Second)), n.latency
	if n.jitter > 0 {
		underWay += time.Duration(n.rng.Int64N(int64(n.jitter)))
	}
	for n.loss > 0 && n.rng.Float64() < n.loss {
		underWay += retransmission
	}
	return sending, underWay
}

// listen takes an address of a host: "host:port".
func (n *network) listen(host, address string, gate *gate) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if h != host {
		return nil, fmt.Errorf("host %s has no address %s", host, h)
	}
	if gate.gone.Load() {
		return nil, net.ErrClosed
	}
	if n.listeners[address] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}
	}
	l := &listener{n: n, host: host, at: tcpAddr(host, port), conns: make(chan *conn, 128), closed: make(chan struct{})}
	n.listeners[address] = l
	return l, nil
}

// dial connects from a host.
func (n *network) dial(ctx context.Context, host, address string, gate *gate) (net.Conn, error) {
	to, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: tcpAddr(to, "0"), Err: err}
	}
	if gate.pass(); gate.gone.Load() {
		return fail(net.ErrClosed)
	}
	timeout := time.NewTimer(5 * time.Second)
	defer timeout.Stop()
	for range 2 { // there and back
		for {
			there, changed := n.blocked(host, to)
			back, _ := n.blocked(to, host)
			if !there && !back {
				break
			}
			select {
			case <-changed:
			case <-timeout.C:
				return fail(os.ErrDeadlineExceeded)
			case <-ctx.Done():
				return fail(ctx.Err())
			}
		}
		sending, underWay := n.delay(host, to, 64)
		trip := time.NewTimer(sending + underWay)
		select {
		case <-trip.C:
		case <-ctx.Done():
			trip.Stop()
			return fail(ctx.Err())
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.listeners[address]
	if gate.gone.Load() {
		return fail(net.ErrClosed)
	}
	if only := n.private[to]; l == nil || only != "" && only != host && strings.HasPrefix(host, clientHosts) {
		return fail(os.NewSyscallError("connect", syscall.ECONNREFUSED))
	}
	n.port++
	here := tcpAddr(host, strconv.Itoa(1024+n.port%60000))
	client := &conn{n: n, host: host, local: here, remote: l.at, in: newStream()}
	server := &conn{n: n, host: to, local: l.at, remote: here, in: newStream(), peer: client}
	client.peer = server
	select {
	case l.conns <- server:
	default:
		return fail(os.NewSyscallError("connect", syscall.ECONNREFUSED))
	}
	n.conns[client], n.conns[server] = true, true
	return client, nil
}

func tcpAddr(host, port string) *net.TCPAddr {
	p, _ := strconv.Atoi(port)
	return &net.TCPAddr{IP: net.ParseIP(host), Port: p}
}

// listener implements net.Listener.
type listener struct {
	n      *network
	host   string
	at     *net.TCPAddr
	conns  chan *conn
	closed chan struct{}
	once   sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) shut() { l.once.Do(func() { close(l.closed) }) }

func (l *listener) Close() error {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	if address := l.at.String(); l.n.listeners[address] == l {
		delete(l.n.listeners, address)
	}
	l.shut()
	return nil
}

func (l *listener) Addr() net.Addr { return l.at }

// conn is one end of a connection. It implements net.Conn.
type conn struct {
	n             *network
	host          string
	local, remote *net.TCPAddr
	peer          *conn
	in            *stream // to this end

	mu            sync.Mutex
	readDeadline  time.Time
	writeDeadline time.Time
	err           error // why this end is of no use any more
}

// stream is one direction of a connection.
type stream struct {
	mu     sync.Mutex
	wake   chan struct{} // closed and replaced when anything changes
	chunks []chunk
	ended  bool // the writer has closed its end
	// sent is when everything that was written has left.
	sent time.Time
}

// chunk is what one Write wrote.
type chunk struct {
	at time.Time // when it arrives, unless a cut holds it
	b  []byte
}

func newStream() *stream { return &stream{wake: make(chan struct{})} }

func (s *stream) announceLocked() {
	close(s.wake)
	s.wake = make(chan struct{})
}

func (s *stream) announce() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.announceLocked()
}

func (c *conn) fail(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	c.mu.Unlock()
	c.in.announce()
	c.peer.in.announce()
}

func (c *conn) broken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil
}

func (c *conn) state(deadline *time.Time) (time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *deadline, c.err
}

func (c *conn) Read(p []byte) (int, error) {
	var stalled time.Time
	for {
		n, wait, wake, err := c.tryRead(p)
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		blocked, changed := c.n.blocked(c.remote.IP.String(), c.host)
		if blocked && stalled.IsZero() {
			stalled = time.Now()
		} else if !blocked {
			stalled = time.Time{}
		}
		if blocked && time.Since(stalled) >= keepAlive {
			c.fail(syscall.ETIMEDOUT)
			continue
		}
		if blocked {
			wait = keepAlive - time.Since(stalled)
		}
		deadline, _ := c.state(&c.readDeadline)
		if !deadline.IsZero() && (wait <= 0 || time.Until(deadline) < wait) {
			wait = max(time.Until(deadline), 1)
		}
		waitFor(wait, wake, changed)
	}
}

// waitFor waits for a time, if it is above zero, or a change.
func waitFor(d time.Duration, a, b <-chan struct{}) {
	var timeout <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		timeout = t.C
	}
	select {
	case <-a:
	case <-b:
	case <-timeout:
	}
}

// tryRead reads what has arrived. Without anything to read, wait is how long until the next bytes arrive, 0 if none are under way.
func (c *conn) tryRead(p []byte) (n int, wait time.Duration, wake <-chan struct{}, err error) {
	deadline, err := c.state(&c.readDeadline)
	if err != nil {
		return 0, 0, nil, c.opError("read", err)
	}
	if !deadline.IsZero() && time.Until(deadline) <= 0 {
		return 0, 0, nil, c.opError("read", os.ErrDeadlineExceeded)
	}
	blocked, _ := c.n.blocked(c.remote.IP.String(), c.host)
	if silent, _ := c.n.silent(c.remote.IP.String(), c.host); blocked || silent {
		s := c.in
		s.mu.Lock()
		defer s.mu.Unlock()
		return 0, 0, s.wake, nil
	}
	s := c.in
	s.mu.Lock()
	defer s.mu.Unlock()
	for n < len(p) && len(s.chunks) > 0 {
		first := &s.chunks[0]
		if wait = time.Until(first.at); wait > 0 {
			break
		}
		k := copy(p[n:], first.b)
		n += k
		if first.b = first.b[k:]; len(first.b) == 0 {
			s.chunks[0] = chunk{}
			s.chunks = s.chunks[1:]
		}
	}
	if n > 0 {
		s.announceLocked()
		return n, 0, nil, nil
	}
	if s.ended && len(s.chunks) == 0 {
		return 0, 0, nil, io.EOF
	}
	return 0, max(wait, 0), s.wake, nil
}

// Write never waits: callers hold mutexes meanwhile, and a bubble's time stands still while somebody waits for a mutex. What is written
// leaves when it can; protocols above bound how much that is.
func (c *conn) Write(p []byte) (int, error) {
	deadline, err := c.state(&c.writeDeadline)
	if err != nil {
		return 0, c.opError("write", err)
	}
	if !deadline.IsZero() && time.Until(deadline) <= 0 {
		return 0, c.opError("write", os.ErrDeadlineExceeded)
	}
	if blocked, _ := c.n.blocked(c.host, c.remote.IP.String()); !blocked && c.peer.broken() {
		return 0, c.opError("write", syscall.ECONNRESET)
	}
	sending, underWay := c.n.delay(c.host, c.remote.IP.String(), len(p))
	s := c.peer.in
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return 0, c.opError("write", syscall.EPIPE)
	}
	if now := time.Now(); s.sent.Before(now) {
		s.sent = now
	}
	s.sent = s.sent.Add(sending)
	at := s.sent.Add(underWay)
	if last := len(s.chunks) - 1; last >= 0 && s.chunks[last].at.After(at) {
		at = s.chunks[last].at // bytes never overtake each other
	}
	s.chunks = append(s.chunks, chunk{at: at, b: append([]byte(nil), p...)})
	s.announceLocked()
	return len(p), nil
}

func (c *conn) opError(op string, err error) error {
	if errors.Is(err, io.EOF) {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}

// Close ends this end: its reads and writes fail, and the peer reads what was written, then io.EOF.
func (c *conn) Close() error {
	c.n.mu.Lock()
	delete(c.n.conns, c)
	c.n.mu.Unlock()
	out := c.peer.in
	out.mu.Lock()
	out.ended = true
	out.announceLocked()
	out.mu.Unlock()
	c.fail(net.ErrClosed)
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	c.readDeadline = t
	c.mu.Unlock()
	c.in.announce()
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	c.writeDeadline = t
	c.mu.Unlock()
	c.peer.in.announce()
	return nil
}

// gate stands before everything that a process does outside of itself. While the process is stopped (SIGSTOP), nothing passes.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // closed while the process runs
	// gone is set for good when the process has ended: what its goroutines still do must not reach anybody.
	gone atomic.Bool
}

func newGate() *gate {
	g := &gate{open: make(chan struct{})}
	close(g.open)
	return g
}

// pass waits while the process is stopped.
func (g *gate) pass() {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	<-open
}

func (g *gate) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.open:
		g.open = make(chan struct{})
	default:
	}
}

func (g *gate) resume() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.open:
	default:
		close(g.open)
	}
}

// set changes what the network is like.
func (n *network) set(change func(*network)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(n)
	n.announceLocked()
}
