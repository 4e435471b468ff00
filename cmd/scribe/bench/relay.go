package bench

import (
	"context"
	"errors"
	"net"
	"sync"
)

// Relay forwards TCP connections to a server. While it hangs, it accepts connections and bytes but forwards none, like a network or a machine
// that fails silently: callers are neither refused nor answered.
type Relay struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup

	mu struct {
		sync.Mutex
		// passing is closed while bytes pass. Waiting for it includes waiting for ended.
		passing chan struct{}
		hanging bool
		closed  bool
		conns   map[net.Conn]struct{}
	}
	ended chan struct{} // closed by Close
}

// NewRelay listens on a free loopback port and forwards connections to target, host:port. Close stops it.
func NewRelay(ctx context.Context, target string) (*Relay, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Relay{listener: l, target: target, ended: make(chan struct{})}
	r.mu.conns = make(map[net.Conn]struct{})
	r.mu.passing = make(chan struct{})
	close(r.mu.passing)
	r.running.Go(r.acceptConns)
	return r, nil
}

// Addr is where the relay listens, host:port.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// Hang stops all bytes until Pass. Repeated calls have no effect.
func (r *Relay) Hang() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.mu.hanging {
		r.mu.hanging, r.mu.passing = true, make(chan struct{})
	}
}

// Pass forwards held and new bytes again. Repeated calls have no effect.
func (r *Relay) Pass() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.hanging {
		r.mu.hanging = false
		close(r.mu.passing)
	}
}

// Close closes every connection and returns when all goroutines of the relay have ended.
func (r *Relay) Close() error {
	r.mu.Lock()
	if r.mu.closed {
		r.mu.Unlock()
		return nil
	}
	r.mu.closed = true
	close(r.ended)
	err := r.listener.Close()
	for c := range r.mu.conns {
		_ = c.Close() // ends its reading goroutine
	}
	r.mu.Unlock()
	r.running.Wait()
	return err
}

func (r *Relay) acceptConns() {
	for {
		c, err := r.listener.Accept()
		if err != nil {
			return // closed
		}
		if r.trackConn(c) {
			r.running.Go(func() { r.relayConn(c) })
		}
	}
}

// trackConn records a connection for Close. If the relay is closed, it closes the connection and returns false.
func (r *Relay) trackConn(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		_ = c.Close()
		return false
	}
	r.mu.conns[c] = struct{}{}
	return true
}

func (r *Relay) closeConns(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(r.mu.conns, c)
	}
}

func (r *Relay) relayConn(c net.Conn) {
	defer r.closeConns(c)
	if !r.awaitPassing() {
		return
	}
	server, err := net.Dial("tcp", r.target)
	if err != nil || !r.trackConn(server) {
		return
	}
	defer r.closeConns(server)
	var back sync.WaitGroup
	back.Go(func() { r.copyBytes(c, server) })
	r.copyBytes(server, c)
	back.Wait()
}

// awaitPassing waits while the relay hangs. It returns false if the relay is closed.
func (r *Relay) awaitPassing() bool {
	r.mu.Lock()
	passing := r.mu.passing
	r.mu.Unlock()
	select {
	case <-passing:
		return true
	case <-r.ended:
		return false
	}
}

// copyBytes forwards bytes in one direction until one end closes, then closes both: half-closed connections are not supported.
func (r *Relay) copyBytes(to, from net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && r.awaitPassing() {
			_, werr := to.Write(buf[:n])
			err = errors.Join(err, werr)
		}
		if err != nil {
			r.closeConns(to, from)
			return
		}
	}
}
