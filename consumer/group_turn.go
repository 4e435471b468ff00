package consumer

import (
	"context"
	"sync"
	"sync/atomic"
)

// loopTurn separates the caller's code, which handles messages, from changes of buckets. The iteration has the turn except while
// it waits for messages; the member's worker takes the turn briefly, between two messages.
type loopTurn struct {
	// stop asks the iteration to give up the turn; it is checked after every message.
	stop atomic.Bool

	mu struct {
		sync.Mutex
		taken bool
		// wanted: the worker waits for the turn. blocked: the iteration may not take it.
		wanted, blocked bool
		// changed is closed at every change.
		changed chan struct{}
	}
}

func newTurn() *loopTurn {
	t := &loopTurn{}
	t.mu.changed = make(chan struct{})
	return t
}

// takeTurn waits for the turn. The worker has precedence.
func (t *loopTurn) takeTurn(ctx context.Context, worker bool) error {
	for {
		t.mu.Lock()
		if !t.mu.taken && (worker || !t.mu.wanted && !t.mu.blocked) {
			t.mu.taken = true
			t.mu.Unlock()
			return nil
		}
		changed := t.mu.changed
		t.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// setWanted sets whether the worker waits for the turn.
func (t *loopTurn) setWanted(yes bool) { t.changeTurn(func() { t.mu.wanted = yes }) }

// setBlocked sets whether the iteration is kept from taking the turn.
func (t *loopTurn) setBlocked(yes bool) { t.changeTurn(func() { t.mu.blocked = yes }) }

// giveTurn releases the turn.
func (t *loopTurn) giveTurn() { t.changeTurn(func() { t.mu.taken = false }) }

func (t *loopTurn) changeTurn(fn func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fn()
	t.stop.Store(t.mu.wanted || t.mu.blocked)
	close(t.mu.changed)
	t.mu.changed = make(chan struct{})
}
