package retention

import (
	"iter"
	"time"

	scribev1 "scribe/proto/scribe/v1"
)

// trimSchedule decides which category is looked at when. It does no I/O, and holds some 100 bytes a category. Times are the engine's, in Unix
// microseconds.
type trimSchedule struct {
	interval   time.Duration
	categories map[uint32]*trimState
	queue      dueQueue[uint32]
}

type trimState struct {
	name      string
	retention time.Duration
	// queued is the due time of its entry in the queue that counts; 0: none.
	queued int64
	// seen is the round in which the view had it.
	seen uint64
	// lowered is the retention that it had before it was lowered, until it was trimmed by the new one.
	lowered time.Duration
}

func newTrimSchedule(interval time.Duration) *trimSchedule {
	return &trimSchedule{interval: interval, categories: map[uint32]*trimState{}}
}

// syncCategories takes over what categories there are. New ones, and those whose retention was lowered, are due at once.
func (t *trimSchedule) syncCategories(all iter.Seq[*scribev1.Category], round uint64, now int64) {
	for cat := range all {
		retention := cat.GetRetention().AsDuration()
		st := t.categories[cat.GetId()]
		switch {
		case st == nil:
			st = &trimState{name: cat.GetName(), retention: retention}
			t.categories[cat.GetId()] = st
			t.putDue(cat.GetId(), st, now)
		case retention < st.retention:
			st.lowered = max(st.lowered, st.retention)
			t.putDue(cat.GetId(), st, now)
		}
		st.retention, st.seen = retention, round
	}
	for id, st := range t.categories {
		if st.seen != round {
			delete(t.categories, id) // the list of deleted categories has it
		}
	}
}

func (t *trimSchedule) putDue(id uint32, st *trimState, due int64) {
	if st.queued != 0 && st.queued <= due {
		return
	}
	st.queued = due
	t.queue.pushKey(due, id)
}

// takeDue returns the category that has been due for longest at now. It is not due again before done was called.
func (t *trimSchedule) takeDue(now int64) (uint32, *trimState, bool) {
	for {
		e, ok := t.queue.popDue(now)
		if !ok {
			return 0, nil, false
		}
		if st := t.categories[e.key]; st != nil && st.queued == e.due {
			st.queued = 0
			return e.key, st, true
		}
	}
}

// trimResult is what a look at a category found.
type trimResult struct {
	// empty: nothing is left in its logs. oldest is the persisted time of the oldest record that is; 0 when that is not known.
	empty  bool
	oldest int64
	// held: pins keep what has expired.
	held bool
}

// Bounds of the time between two looks at a category.
const (
	maxTrimPause = 10 * time.Minute
	// maxIdlePause is for categories of which is known when their next record expires. It is how long a change would go unseen that the
	// view of the categories missed.
	maxIdlePause = 24 * time.Hour
)

// recordResult says what was found, and returns when the category is due again: when its oldest record expires, or, where that is not known, after
// a small part of its retention.
func (t *trimSchedule) recordResult(id uint32, retention time.Duration, l trimResult, now int64) int64 {
	soon := now + max(min(retention/64, maxTrimPause), t.interval).Microseconds()
	due := soon
	switch {
	case l.held:
		due = now + t.interval.Microseconds()
	case l.empty: // what is appended from now on expires after this
		due = now + min(retention, maxIdlePause).Microseconds()
	case l.oldest != 0:
		due = min(max(soon, l.oldest+retention.Microseconds()), now+maxIdlePause.Microseconds())
	}
	if st := t.categories[id]; st != nil {
		t.putDue(id, st, max(due, now+1))
	}
	return due
}

// retryLater has a category tried again.
func (t *trimSchedule) retryLater(id uint32, now int64) {
	if st := t.categories[id]; st != nil {
		t.putDue(id, st, now+max(t.interval, time.Second).Microseconds())
	}
}

// trimHorizon returns the time below which a category's records are trimmed at now. pin is the time from which readers need them, 0 for none:
// it holds the horizon back, by limit and by the retention at most. held says that it does, revoked that it would by more.
func trimHorizon(now int64, retention time.Duration, pin int64, limit time.Duration) (at int64, held, revoked bool) {
	at = now - retention.Microseconds()
	if pin == 0 || pin >= at {
		return at, false, false
	}
	least := at - min(limit, retention).Microseconds()
	return max(pin, least), true, pin < least
}
