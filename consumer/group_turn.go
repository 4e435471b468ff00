package consumer

import (
	"context"
	"sync"
	"sync/atomic"
)

// loopTurn keeps the caller's code, which looks at messages, apart from what changes hands behind it: the iteration has the turn but while it
// waits for messages, and the member's worker takes it for a moment, between two messages.
type loopTurn struct {
	// stop says that the iteration shall give the turn up: it looks at this after every message.
	stop atomic.Bool

	mu struct {
		sync.Mutex
		taken bool
		// wanted: the worker waits for it. blocked: the iteration may not have it.
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

// takeTurn waits for the turn. The worker goes first.
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

// setWanted tells that the worker waits for the turn, or does not any more.
func (t *loopTurn) setWanted(yes bool) { t.changeTurn(func() { t.mu.wanted = yes }) }

// setBlocked keeps the iteration from having the turn, or lets it have it.
func (t *loopTurn) setBlocked(yes bool) { t.changeTurn(func() { t.mu.blocked = yes }) }

// giveTurn gives the turn up.
func (t *loopTurn) giveTurn() { t.changeTurn(func() { t.mu.taken = false }) }

func (t *loopTurn) changeTurn(fn func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fn()
	t.stop.Store(t.mu.wanted || t.mu.blocked)
	close(t.mu.changed)
	t.mu.changed = make(chan struct{})
}
