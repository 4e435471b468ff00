package consumer

import (
	"context"
	"sync"
	"sync/atomic"
)

// turn keeps the caller's code, which looks at messages, apart from what changes hands behind it: the iteration has the turn but while it
// waits for messages, and the member's worker takes it for a moment, between two messages.
type turn struct {
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

func newTurn() *turn {
	t := &turn{}
	t.mu.changed = make(chan struct{})
	return t
}

// take waits for the turn. The worker goes first.
func (t *turn) take(ctx context.Context, worker bool) error {
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

// want tells that the worker waits for the turn, or does not any more.
func (t *turn) want(yes bool) { t.change(func() { t.mu.wanted = yes }) }

// block keeps the iteration from having the turn, or lets it have it.
func (t *turn) block(yes bool) { t.change(func() { t.mu.blocked = yes }) }

// give gives the turn up.
func (t *turn) give() { t.change(func() { t.mu.taken = false }) }

func (t *turn) change(fn func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fn()
	t.stop.Store(t.mu.wanted || t.mu.blocked)
	close(t.mu.changed)
	t.mu.changed = make(chan struct{})
}
