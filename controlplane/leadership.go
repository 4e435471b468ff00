package controlplane

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/base/lifecycle"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// heldTerm is a term in which this instance leads. It is immutable but for ended.
type heldTerm struct {
	leaderTerm
	// revision is that of the term's key; 0 where the store is not shared.
	revision uint64
	// ended is closed when this instance does not lead in it any more; nil means never.
	ended chan struct{}
}

// only makes a transaction conditional on the term: it fails once another instance leads.
func (t *heldTerm) only(ops ...kv.Op) []kv.Op {
	if t.revision == 0 {
		return ops
	}
	return append(slices.Clip(ops), kv.Check(leaderTermKey, t.revision))
}

// leadership is what an instance knows of who leads. An instance that leads answers from its memory, so it must stop before
// another begins: it leads only until a while after the last beat that is known to be stored was sent. The others need at least
// as long, from a later time, to take it for silent.
type leadership struct {
	// wake tells the election to look at the store now.
	wake lifecycle.WakeChannel
	// handsOver asks the election to hand over, once; reluctant says that others go first, see StandAside.
	handsOver, reluctant atomic.Bool

	mu struct {
		sync.Mutex
		// held is the term of this instance; nil while it stands by. It leads once the state of the members is restored, until
		// until (zero means for ever).
		held     *heldTerm
		restored bool
		until    time.Time
		// seen is the newest term that this instance has read, and seenAt the revision of its key.
		seen   leaderTerm
		seenAt uint64
		// changed is closed and replaced when another term is seen.
		changed chan struct{}
	}
}

// newLeadership returns the leadership of an instance that stands by.
func newLeadership() *leadership {
	l := &leadership{wake: lifecycle.NewWakeChannel()}
	l.mu.changed = make(chan struct{})
	return l
}

// leadAlone makes this instance lead for ever: it has its store for itself.
func (l *leadership) leadAlone() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.held, l.mu.restored = &heldTerm{}, true
}

// currentTerm returns the term in which this instance leads now; nil if it does not, or can't be sure.
func (l *leadership) currentTerm(now time.Time) *heldTerm {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.held == nil || !l.mu.restored || l.lapsed(now) {
		return nil
	}
	return l.mu.held
}

// lapsed reports whether the last beat was too long ago. l.mu is held.
func (l *leadership) lapsed(now time.Time) bool {
	return !l.mu.until.IsZero() && !now.Before(l.mu.until)
}

// leadsIn reports whether this instance leads in that term now. What it read from its memory before the call is then true.
func (l *leadership) leadsIn(t *heldTerm) bool { return l.currentTerm(time.Now()) == t }

// noteSeen records the term that the store has, and reports whether it is another one than before.
func (l *leadership) noteSeen(t leaderTerm, revision uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if revision == l.mu.seenAt {
		return false
	}
	l.mu.seen, l.mu.seenAt = t, revision
	close(l.mu.changed)
	l.mu.changed = make(chan struct{})
	return true
}

// seenTerm returns the newest term that this instance has read, and a channel that is closed when it reads another.
func (l *leadership) seenTerm() (leaderTerm, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.seen, l.mu.changed
}

// beginTerm begins a term, whose first beat was sent at a time and lasts until until. It does not lead yet.
func (l *leadership) beginTerm(t *heldTerm, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.held, l.mu.restored, l.mu.until = t, false, until
}

// setRestored lets this instance lead in a term, if the term has not ended, after install has put the term's state in place. It
// reports whether it did. install must not use the leadership.
func (l *leadership) setRestored(t *heldTerm, install func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.held != t {
		return false
	}
	install()
	l.mu.restored = true
	return true
}

// endTerm ends a term here, and lets forget remove the term's state. It reports whether this call has ended it. forget must not use
// the leadership.
func (l *leadership) endTerm(t *heldTerm, forget func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.held != t {
		return false
	}
	l.mu.held, l.mu.restored = nil, false
	close(t.ended)
	forget()
	return true
}

// heldNow returns the term of this instance, whether it leads in it already, and whether its last beat was too long ago.
func (l *leadership) heldNow(now time.Time) (t *heldTerm, restored, lapsed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.held, l.mu.restored, l.lapsed(now)
}

// extend lets a term last until until.
func (l *leadership) extend(t *heldTerm, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.held == t {
		l.mu.until = until
	}
}

// describeLeadership returns what GetStatus tells; nil where the store is not shared.
func (c *ControlPlane) describeLeadership() *scribev1.ControlLeadership {
	if !c.cfg.Shared {
		return nil
	}
	seen, _ := c.leadership.seenTerm()
	return &scribev1.ControlLeadership{
		Instance: c.cfg.Instance, Leader: seen.Holder, LeaderUrl: seen.URL, Term: seen.Term, Leading: c.leadership.currentTerm(time.Now()) != nil,
	}
}

// errNoLeader refuses a call that only a leader serves, before anything has happened.
func (c *ControlPlane) errNoLeader(what, why string) error {
	return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, c.cfg.BeatInterval, "%s: %s: try again", what, why)
}

// errDeposed tells the caller that this instance stopped leading while it served the call.
func (c *ControlPlane) errDeposed(what string) error {
	return rpc.RetryErrorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, c.cfg.BeatInterval,
		"%s: this control plane stopped leading during the call: repeat it", what)
}

// termError wraps the error of a transaction that only the leader may commit. If another instance leads, nothing has changed.
func (c *ControlPlane) termError(what string, err error) error {
	if errors.Is(err, kv.ErrConflict) {
		c.leadership.wake.WakeUp()
		return c.errNoLeader(what, errLeaderChanged.Error())
	}
	_, err = commitError(what, err)
	return err
}
