package controlplane

import (
	"context"
	"sync"
	"time"

	"scribe/internal/base/entropy"
	"scribe/internal/base/lifecycle"
)

// Retirer retires the logs of deleted categories: the part of the metadata engine that the control plane uses.
type Retirer interface {
	// Retire ends a category's id for ever: after it has returned nil, no log of that id accepts a record any more, from any
	// writer and after any crash. Repeating it is harmless.
	Retire(ctx context.Context, category uint32) error
}

// retiringCategory is a deleted category whose logs may still accept records.
type retiringCategory struct {
	name string
	id   uint32
	// revision is the revision of the entry in the store.
	revision uint64
}

// Bounds of a retirement.
const (
	// maxAsked bounds the categories that wait for an immediate retirement. Further ones wait for the next pass over the store.
	maxAsked = 1024
	// retirePage is the number of entries read from the store at a time, retireParallel the number of concurrent retirements.
	retirePage     = 256
	retireParallel = 8
	// minRetirePause and maxRetirePause bound the time between a failure and the next pass.
	minRetirePause = 100 * time.Millisecond
	maxRetirePause = 30 * time.Second
	// retireInterval is the time between passes when nothing fails. Passes find the entries that other control planes left.
	retireInterval = time.Minute
)

// retireSchedule decides which categories are retired when. It does no I/O.
//
// Pending retirements are in the store. A pass goes over them in pages, in the order of names. A page without a single success
// ends the pass, and the next pass continues after that page: so an unavailable engine does not get a request for every category,
// and categories that can't be retired do not block the others. Categories that were just deleted, or that a create waits for, do
// not wait for a pass.
type retireSchedule struct {
	// wake has a token after a request.
	wake lifecycle.WakeChannel
	// random draws the jitter of pauses.
	random *entropy.Source

	mu struct {
		sync.Mutex
		// pending is the number of entries. changing counts the running transactions that change it, changes those that have
		// ended.
		pending  int64
		changing int
		changes  uint64
		// followed says that pending follows the store, where other control planes change the entries, too.
		followed bool

		asked map[string]retiringCategory
		// after is where the pass continues; empty at its beginning.
		after string
		next  time.Time
		// failures counts turns with failures since the last pass without failures.
		failures int
		// dirty: something failed in the current pass.
		dirty bool
		// settled is closed and replaced when an entry is removed.
		settled chan struct{}
	}
}

func newRetireSchedule(random *entropy.Source) *retireSchedule {
	r := &retireSchedule{wake: lifecycle.NewWakeChannel(), random: random}
	r.mu.asked = make(map[string]retiringCategory)
	r.mu.settled = make(chan struct{})
	return r
}

// requestNow requests the immediate retirement of a category. A control plane that does not lead drops the request: the leader
// learns of the category from the store.
func (r *retireSchedule) requestNow(c retiringCategory) {
	r.mu.Lock()
	if len(r.mu.asked) < maxAsked {
		r.mu.asked[c.name] = c
	} else if r.mu.failures == 0 {
		r.mu.next = time.Time{}
	}
	r.mu.Unlock()
	r.wake.WakeUp()
}

// requestScan requests a pass over the store now: it may have an entry that was never requested.
func (r *retireSchedule) requestScan() {
	r.mu.Lock()
	r.mu.next = time.Time{}
	r.mu.Unlock()
	r.wake.WakeUp()
}

// retireTurn is the next work: the requested categories, else a page of the pass, else a wait.
type retireTurn struct {
	asked []retiringCategory
	page  bool
	after string
	wait  time.Duration
}

// nextTurn returns the work that is due at now.
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

// noteRequested records the results of requested retirements.
func (r *retireSchedule) noteRequested(now time.Time, done, failed int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case failed > 0:
		r.scheduleRetry(now)
	case done > 0 && r.mu.failures > 0:
		r.mu.next = now // the engine is available again
	}
}

// notePage records the results of a page, whose last entry is last. more says that other entries follow.
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

// scheduleRetry schedules a pass after a pause that doubles, unless one is due earlier. The caller holds mu.
func (r *retireSchedule) scheduleRetry(now time.Time) {
	pause := min(minRetirePause<<min(r.mu.failures, 20), maxRetirePause)
	r.mu.failures++
	if at := now.Add(pause/2 + r.random.Duration(pause/2)); at.Before(r.mu.next) {
		r.mu.next = at
	}
}

// beginChange is called before a transaction that adds or removes an entry, and endChange after it.
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
	if !r.mu.followed {
		r.mu.pending += by
	}
}

// setPending sets the number of entries, which the caller follows in the store from now on.
func (r *retireSchedule) setPending(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.followed, r.mu.pending = true, int64(n)
}

// countPending returns the number of entries that this process knows of.
func (r *retireSchedule) countPending() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.pending
}

// beginCount begins a count of the entries. The returned function takes the result and reports whether it is valid: it is not if
// entries were added or removed during the count.
func (r *retireSchedule) beginCount() func(n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	quiet, before := r.mu.changing == 0, r.mu.changes
	return func(n int64) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.mu.followed || !quiet || r.mu.changing > 0 || r.mu.changes != before {
			return false
		}
		r.mu.pending = n
		return true
	}
}

// wakeWaiters wakes the callers that wait for entries to be removed.
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
