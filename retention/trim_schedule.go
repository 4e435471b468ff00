package retention

import (
	"iter"
	"time"

	scribev1 "scribe/proto/scribe/v1"
)

// trimSchedule decides when each category is trimmed. It does no I/O, and holds some 100 bytes a category. Times are the engine's, in Unix
// microseconds.
type trimSchedule struct {
	interval   time.Duration
	categories map[uint32]*trimState
	queue      dueQueue[uint32]
}

type trimState struct {
	name      string
	retention time.Duration
	// seen is the last round in which the view had it.
	seen uint64
	// lowered is the former, longer retention until the category was trimmed by the new one; 0 for none.
	lowered time.Duration
}

func newTrimSchedule(interval time.Duration) *trimSchedule {
	return &trimSchedule{interval: interval, categories: map[uint32]*trimState{}}
}

// syncCategories takes the current categories. New ones, and those whose retention was lowered, are due at once.
func (t *trimSchedule) syncCategories(all iter.Seq[*scribev1.Category], round uint64, now int64) {
	for cat := range all {
		retention := cat.GetRetention().AsDuration()
		st := t.categories[cat.GetId()]
		switch {
		case st == nil:
			st = &trimState{name: cat.GetName(), retention: retention}
			t.categories[cat.GetId()] = st
			t.queue.putKey(cat.GetId(), now)
		case retention < st.retention:
			st.lowered = max(st.lowered, st.retention)
			t.queue.putKey(cat.GetId(), now)
		}
		st.retention, st.seen = retention, round
	}
	for id, st := range t.categories {
		if st.seen != round {
			delete(t.categories, id) // the list of deleted categories has it
			delete(t.queue.due, id)
		}
	}
}

// takeDue removes the category that has been due longest. It is not due again before recordResult or retryLater.
func (t *trimSchedule) takeDue(now int64) (uint32, *trimState, bool) {
	id, ok := t.queue.takeDue(now)
	return id, t.categories[id], ok
}

// trimResult is the state of a category after a trim.
type trimResult struct {
	// empty: its logs have no records. oldest is the persisted time of the oldest record, 0 when it is not known.
	empty  bool
	oldest int64
	// held: pins, or an unfinished sequencing, keep expired records.
	held bool
	// nextUnused is when another log may be unused for long enough to be removed; 0 when that is not known.
	nextUnused int64
}

// Bounds of the time between two trims of a category.
const (
	maxTrimPause = 10 * time.Minute
	// maxIdlePause is for categories whose next expiry is known. It bounds how long a change goes unnoticed that the view of categories
	// missed.
	maxIdlePause = 24 * time.Hour
	// unusedPause is the least time between visits that are made only because a log may be unused by then: many have such times, and each one is
	// removed within a day anyway.
	unusedPause = time.Hour
)

// recordResult takes the result of a trim, and returns when the category is due again: when its oldest record expires, or, where that is
// not known, after a small part of its retention.
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
	if l.nextUnused != 0 {
		due = min(due, max(now+unusedPause.Microseconds(), l.nextUnused))
	}
	if t.categories[id] != nil {
		t.queue.putKey(id, max(due, now+1))
	}
	return due
}

// visitNow lets a category be due at once.
func (t *trimSchedule) visitNow(id uint32, now int64) {
	if t.categories[id] != nil {
		t.queue.putKey(id, now)
	}
}

// retryLater schedules another trim of a category after a failed one.
func (t *trimSchedule) retryLater(id uint32, now int64) {
	if t.categories[id] != nil {
		t.queue.putKey(id, now+max(t.interval, time.Second).Microseconds())
	}
}

// trimHorizon returns the persisted time below which a category's records are trimmed. pin is the time from which readers need them, 0 for
// none: it delays trimming, by at most limit and at most the retention. held: the pin delays it. revoked: the pin exceeds its limit.
func trimHorizon(now int64, retention time.Duration, pin int64, limit time.Duration) (at int64, held, revoked bool) {
	at = now - retention.Microseconds()
	if pin == 0 || pin >= at {
		return at, false, false
	}
	least := at - min(limit, retention).Microseconds()
	return max(pin, least), true, pin < least
}
