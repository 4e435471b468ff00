// Package gate lets the calls of a store run until it is closed, and Close wait for those that do.
package gate

import (
	"sync"

	"scribe/storage/blob"
)

// Gate counts running calls. The zero Gate is open. It is no read lock: a call may enter again from within, as the body of a List
// loop does, while Close waits, and is then refused instead of deadlocked.
type Gate struct {
	mu struct {
		sync.Mutex
		running int
		closed  bool
		// drained is closed when the last call leaves after Close.
		drained chan struct{}
	}
}

// Enter begins a call. It fails with blob.ErrClosed after Close; else the caller must call Leave.
func (g *Gate) Enter() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.closed {
		return blob.ErrClosed
	}
	g.mu.running++
	return nil
}

// Leave ends a call.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.running--
	if g.mu.closed && g.mu.running == 0 {
		close(g.mu.drained)
	}
}

// Close refuses further calls and waits for the running ones. Repeating it waits, too.
func (g *Gate) Close() {
	g.mu.Lock()
	if !g.mu.closed {
		g.mu.closed = true
		g.mu.drained = make(chan struct{})
		if g.mu.running == 0 {
			close(g.mu.drained)
		}
	}
	drained := g.mu.drained
	g.mu.Unlock()
	<-drained
}
