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
	// life ends with Close, and with it all connections.
	life context.Context //nolint:containedctx // of the relay, not of a call
	end  context.CancelFunc

	mu struct {
		sync.Mutex
		// passing is closed while bytes pass. Waiting for it includes waiting for the end of life.
		passing chan struct{}
		hanging bool
	}
}

// NewRelay listens on a free loopback port and forwards connections to target, host:port. Close stops it.
func NewRelay(ctx context.Context, target string) (*Relay, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Relay{listener: l, target: target}
	r.life, r.end = context.WithCancel(context.WithoutCancel(ctx))
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
	r.end()
	err := r.listener.Close()
	r.running.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil // an earlier call closed it
	}
	return err
}

func (r *Relay) acceptConns() {
	for {
		c, err := r.listener.Accept()
		if err != nil {
			return // closed
		}
		r.running.Go(func() { r.relayConn(c) })
	}
}

// closeAtEnd closes a connection at the end of the relay, or when the caller is done with it.
func (r *Relay) closeAtEnd(c net.Conn) (done func()) {
	stop := context.AfterFunc(r.life, func() { _ = c.Close() })
	return func() {
		stop()
		_ = c.Close()
	}
}

func (r *Relay) relayConn(c net.Conn) {
	defer r.closeAtEnd(c)()
	if !r.awaitPassing() {
		return
	}
	server, err := net.Dial("tcp", r.target)
	if err != nil {
		return
	}
	defer r.closeAtEnd(server)()
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
	case <-r.life.Done():
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
			_, _ = to.Close(), from.Close()
			return
		}
	}
}
