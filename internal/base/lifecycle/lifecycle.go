// Package lifecycle counts the calls that a component serves, so that it can close in order: refuse, drain, release.
//
//	type Server struct {
//		calls lifecycle.Calls // the zero value is ready
//	}
//
//	func (s *Server) Get(ctx context.Context) error {
//		if !s.calls.Enter() {
//			return errShuttingDown
//		}
//		defer s.calls.Leave()
//		...
//	}
//
//	func (s *Server) Close(ctx context.Context) error {
//		return s.calls.Close(ctx, func() error { // repeated calls wait for this one
//			err := s.calls.Wait(ctx) // until no call runs, or ctx ends
//			... // stop goroutines, release what the server holds
//			return err
//		})
//	}
//
// Goroutines that must stop when the component closes select on [Calls.Draining]. A component that refuses new calls before it
// closes calls [Calls.Drain] first.
package lifecycle

import (
	"context"
	"sync"
	"sync/atomic"
)

// Calls counts the running calls. It is safe for concurrent use. It must not be copied.
type Calls struct {
	// state is twice the number of running calls, and odd once the drain has begun. So a call that enters and the beginning of the drain
	// are ordered by one number: a call either sees the odd bit and is refused, or the drain waits for it.
	state atomic.Int64

	mu struct {
		sync.Mutex
		draining, idle, closed chan struct{} // made on first use
		idled, closing         bool          // idle is closed; a call of Close has begun
		err                    error         // of Close; set before closed is closed
	}
}

// Enter admits a call, which must end with Leave. It returns false once the drain has begun.
func (c *Calls) Enter() bool {
	if c.state.Add(2)&1 == 1 {
		c.Leave()
		return false
	}
	return true
}

// Leave ends a call that Enter admitted.
func (c *Calls) Leave() {
	if c.state.Add(-2) == 1 {
		c.announceIdle()
	}
}

// Running returns the number of calls that run.
func (c *Calls) Running() int { return int(c.state.Load() >> 1) }

// Closed reports whether the drain has begun, so that Enter refuses.
func (c *Calls) Closed() bool { return c.state.Load()&1 == 1 }

// Drain refuses further calls. It reports whether this call began the drain; repeating it is harmless.
func (c *Calls) Drain() (first bool) {
	before := c.state.Or(1)
	if before&1 == 1 {
		return false
	}
	close(c.Draining())
	if before == 0 {
		c.announceIdle()
	}
	return true
}

// announceIdle closes idle. It is called when no call runs after the drain has begun. A refused call may cause another call of
// it.
func (c *Calls) announceIdle() {
	idle := c.Idle()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.idled {
		c.mu.idled = true
		close(idle)
	}
}

func (c *Calls) makeChannel(ch *chan struct{}) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *ch == nil {
		*ch = make(chan struct{})
	}
	return *ch
}

// Draining returns a channel that is closed when the drain begins.
func (c *Calls) Draining() chan struct{} { return c.makeChannel(&c.mu.draining) }

// Idle returns a channel that is closed when the drain has begun and no call runs any more.
func (c *Calls) Idle() chan struct{} { return c.makeChannel(&c.mu.idle) }

// Wait waits until the drain has begun and no call runs. It fails with the cause of ctx when that ends first.
func (c *Calls) Wait(ctx context.Context) error {
	idle := c.Idle()
	select {
	case <-idle:
		return nil
	default:
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close begins the drain and runs shutdown, once. Repeated calls wait for the first one, or until their ctx ends, and return its error.
func (c *Calls) Close(ctx context.Context, shutdown func() error) error {
	closed := c.makeChannel(&c.mu.closed)
	c.mu.Lock()
	first := !c.mu.closing
	c.mu.closing = true
	c.mu.Unlock()
	if first {
		c.Drain()
		c.mu.err = shutdown()
		close(closed)
		return c.mu.err
	}
	select {
	case <-closed:
		return c.mu.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
