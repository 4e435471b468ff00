package controlplane

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// Retirer ends the logs of deleted categories. The control plane needs no more of the metadata engine.
type Retirer interface {
	// Retire ends a category's id for ever: once it has returned nil, no log of that id takes a record any more, whoever writes and
	// whatever crashes. Repeating it is harmless.
	Retire(ctx context.Context, category uint32) error
}

// retiringCategory is a deleted category whose logs may still take records.
type retiringCategory struct {
	name string
	id   uint32
	// revision of the entry in the store.
	revision uint64
}

// Bounds of a retirement.
const (
	// maxAsked is how many categories may wait to be retired at once. What is beyond it waits for the next pass over the store.
	maxAsked = 1024
	// retirePage is how many are read from the store at a time, retireParallel how many are retired at a time.
	retirePage     = 256
	retireParallel = 8
	// minRetirePause and maxRetirePause bound the time between a failure and the next pass.
	minRetirePause = 100 * time.Millisecond
	maxRetirePause = 30 * time.Second
	// retireInterval is the time between passes when nothing fails. They find what another control plane has left behind.
	retireInterval = time.Minute
)

// retireSchedule decides what is retired when. It does no I/O.
//
// What is pending is in the store. Passes go over it in pages, in the order of names; a page of which nothing could be retired ends
// the pass, and the next one goes on after it: so an unavailable engine is not asked for everything, and categories that can't be
// retired don't keep the others from it. What was deleted now, and what somebody wants to create again, does not wait for a pass.
type retireSchedule struct {
	// wake has a token when something was asked for.
	wake chan struct{}

	mu struct {
		sync.Mutex
		// pending is how many entries there are. changing counts the transactions under way that change that, changes those that
		// have ended.
		pending  int64
		changing int
		changes  uint64

		asked map[string]retiringCategory
		// after is where the pass goes on; empty at its beginning.
		after string
		next  time.Time
		// failures counts turns with failures since the last pass without.
		failures int
		// dirty: something failed in the present pass.
		dirty bool
		// settled is closed when an entry is removed, and replaced.
		settled chan struct{}
	}
}

func newRetireSchedule() *retireSchedule {
	r := &retireSchedule{wake: make(chan struct{}, 1)}
	r.mu.asked = make(map[string]retiringCategory)
	r.mu.settled = make(chan struct{})
	return r
}

// requestNow has a category retired now.
func (r *retireSchedule) requestNow(c retiringCategory) {
	r.mu.Lock()
	if len(r.mu.asked) < maxAsked {
		r.mu.asked[c.name] = c
	} else if r.mu.failures == 0 {
		r.mu.next = time.Time{}
	}
	r.mu.Unlock()
	r.wakeDriver()
}

// requestScan has the store read now: there may be an entry that nobody could be told of.
func (r *retireSchedule) requestScan() {
	r.mu.Lock()
	r.mu.next = time.Time{}
	r.mu.Unlock()
	r.wakeDriver()
}

func (r *retireSchedule) wakeDriver() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// retireTurn is what is to be done: what was asked for, or else a page of the pass, or else nothing for some time.
type retireTurn struct {
	asked []retiringCategory
	page  bool
	after string
	wait  time.Duration
}

// nextTurn returns what is to be done at now.
func (r *retireSchedule) nextTurn(now time.Time) (t retireTurn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, c := range r.mu.asked {
		if len(t.asked) == retirePage {
			break
		}
		t.asked = append(t.asked, c)
		delete(r.mu.asked, name)
	}
	switch {
	case len(t.asked) > 0:
	case !now.Before(r.mu.next):
		t.page, t.after = true, r.mu.after
	default:
		t.wait = r.mu.next.Sub(now)
	}
	return t
}

// noteRequested says what has become of what was asked for.
func (r *retireSchedule) noteRequested(now time.Time, done, failed int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case failed > 0:
		r.scheduleRetry(now)
	case done > 0 && r.mu.failures > 0:
		r.mu.next = now // the engine is there again
	}
}

// notePage says what has become of a page, whose last entry is last. more tells that there are others.
func (r *retireSchedule) notePage(now time.Time, last string, more bool, done, failed int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.dirty = r.mu.dirty || failed > 0
	r.mu.after = last
	if !more {
		r.mu.after = ""
	}
	switch {
	case more && (done > 0 || failed == 0):
	case r.mu.dirty:
		r.mu.next = now.Add(maxRetirePause)
		r.scheduleRetry(now)
	default:
		r.mu.failures, r.mu.next = 0, now.Add(retireInterval)
	}
	if !more {
		r.mu.dirty = false
	}
}

// scheduleRetry has a pass begin after a pause that doubles, or earlier if it is due. The caller holds mu.
func (r *retireSchedule) scheduleRetry(now time.Time) {
	pause := min(minRetirePause<<min(r.mu.failures, 20), maxRetirePause)
	r.mu.failures++
	if at := now.Add(pause/2 + rand.N(pause/2)); at.Before(r.mu.next) {
		r.mu.next = at
	}
}

// beginChange is called before a transaction that adds or removes an entry, and changed with the outcome.
func (r *retireSchedule) beginChange() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.changing++
}

func (r *retireSchedule) endChange(by int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.changing--
	r.mu.changes++
	r.mu.pending += by
}

// countPending is how many entries there are, as far as this process knows.
func (r *retireSchedule) countPending() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.pending
}

// beginCount begins to count the entries; the function that it returns takes the result, and says whether it counts: not when entries
// were added or removed meanwhile.
func (r *retireSchedule) beginCount() func(n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	quiet, before := r.mu.changing == 0, r.mu.changes
	return func(n int64) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !quiet || r.mu.changing > 0 || r.mu.changes != before {
			return false
		}
		r.mu.pending = n
		return true
	}
}

// wakeWaiters wakes those who wait for entries to be removed.
func (r *retireSchedule) wakeWaiters() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.mu.settled)
	r.mu.settled = make(chan struct{})
}

// entryRemoved returns a channel that is closed when the next entry is removed.
func (r *retireSchedule) entryRemoved() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.settled
}
