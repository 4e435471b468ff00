package quota

import "slices"

// Waiter represents a request's bytes while they wait for one quota for their turn.
type Waiter struct {
	bytes int64 // that it is charged
	held  int64 // bytes of memory retained while it waits
	// turn receives a value when the waiter becomes the first of its line.
	turn chan struct{}
}

// waitLine is the FIFO queue of waiters for a quota.
type waitLine struct {
	waiters []*Waiter
	bytes   int64 // of all waiters
	held    int64 // of all waiters
}

func (l *waitLine) joinLine(bytes, held int64) *Waiter {
	w := &Waiter{bytes: bytes, held: held, turn: make(chan struct{}, 1)}
	l.waiters = append(l.waiters, w)
	l.bytes += bytes
	l.held += held
	if len(l.waiters) == 1 {
		w.turn <- struct{}{}
	}
	return w
}

// leaveLine removes a waiter, served or not, and signals the new first one.
func (l *waitLine) leaveLine(w *Waiter) {
	i := slices.Index(l.waiters, w)
	if i < 0 {
		return
	}
	l.waiters = slices.Delete(l.waiters, i, i+1)
	l.bytes -= w.bytes
	l.held -= w.held
	switch {
	case len(l.waiters) == 0:
		l.waiters = nil // free the memory of an idle category
	case i == 0:
		l.waiters[0].turn <- struct{}{}
	}
}
