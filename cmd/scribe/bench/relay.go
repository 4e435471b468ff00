package bench

import (
	"context"
	"errors"
	"net"
	"sync"
)

// Relay passes TCP connections on to a server. Told to hang, it still takes connections and bytes but passes none on, as a network
// or a machine does that is gone without a word: nobody is refused, and nobody is answered.
type Relay struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup

	mu struct {
		sync.Mutex
		// passing is closed while bytes pass. Who waits for it also waits for ended.
		passing chan struct{}
		hanging bool
		closed  bool
		conns   map[net.Conn]struct{}
	}
	ended chan struct{} // closed by Close
}

// NewRelay listens on a free port of the loopback and passes what comes to target, host:port. Close ends it.
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

// Hang stops every byte, Pass lets those that waited and all others through. Repeating them is harmless.
func (r *Relay) Hang() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.mu.hanging {
		r.mu.hanging, r.mu.passing = true, make(chan struct{})
	}
}

// Pass ends Hang.
func (r *Relay) Pass() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.hanging {
		r.mu.hanging = false
		close(r.mu.passing)
	}
}

// Close breaks every connection off and returns when nothing of the relay runs.
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
		_ = c.Close() // that is what ends who reads from it
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

// trackConn remembers a connection for Close; false = the relay is closed, and so is the connection.
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

// awaitPassing waits while the relay hangs; false = it is closed.
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

// copyBytes passes bytes in one direction until one end closes, and then closes both: nothing here half-closes.
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
