package scribed

import (
	"slices"
	"time"

	"scribe/internal/role/request"
	"scribe/scribed/spool"
)

// categoryQueue is the queue of one category, in memory and in the spool. It exists until it is idle.
type categoryQueue struct {
	name string
	rule *Rule

	entries []*queueEntry   // in memory, in order
	queued  int64           // bytes of entries
	live    categoryFlights // of entries that were at the front
	direct  []*queueEntry   // in flight with requests of their own, see directBatch
	bytes   int64           // charged for entries that are queued, in flight, or about to be added
	inTurn  bool
	// failures and notBefore delay a category that the upstream refuses.
	failures  int
	notBefore time.Time

	owed int64 // bytes in memory only that may have to go to the spool
	// end is the spool position of the newest record that the category's finished appends have written.
	end      spool.Position
	leaving  []*queueEntry // being appended; they will be in the spool only
	appends  int           // running appends
	last     *spoolAppend  // the newest append; the next one waits for it to keep the queue's order in the spool
	spilling bool          // an append moves entries out of memory
	fullTill time.Time     // the spool had no capacity for a spill: none is tried before

	inBacklog bool            // it may have backlog, and is in queue.backlog
	claiming  bool            // frames of the backlog are being claimed
	backfill  categoryFlights // of frames of the backlog
	// cautious says that a backfill request of the queue was refused as a whole: its backlog is sent in requests of its own, and
	// the next singles frames one by one.
	cautious bool
	singles  int
	// tries counts how often frames at the front of the backlog were refused for a reason that may be permanent.
	tries map[spool.Ref]int32

	// sequenced says that it had frames with sequences, or that the spool may hold some. unordered says that the upstream does
	// not check them.
	sequenced, unordered bool

	waiters []*queueEntry // those that wait for capacity
}

// isOrdered reports whether no frame of the category may overtake its backlog. Frames with sequences must not in exactly_once
// categories: a frame that overtakes would be refused for the gap, and one with a newer epoch would fence the backlog. Nor may
// they in repeatable categories, whose order counts. The agent learns from the answers whether a category is one of these: only
// their frames are stored in writer slot 0. Until then it assumes so.
func (l *categoryQueue) isOrdered() bool { return l.rule.Strict || l.sequenced && !l.unordered }

// backlogOf returns the category's backlog, as the spool counts it.
func (q *sendQueue) backlogOf(l *categoryQueue) (a request.Amount) {
	if !l.inBacklog {
		return a
	}
	return amountOf(q.spool.Backlog(l.name))
}

// hasBacklog reports whether frames are in the spool only, or will be.
func (q *sendQueue) hasBacklog(l *categoryQueue) bool {
	return len(l.leaving) > 0 || q.backlogOf(l).Frames > 0
}

// isEligible reports whether the backlog allows an entry at the front to be sent.
func (q *sendQueue) isEligible(l *categoryQueue, e *queueEntry) bool {
	if !l.isOrdered() {
		return true
	}
	if l.isFilling() || slices.ContainsFunc(l.leaving, func(x *queueEntry) bool { return x.number < e.number }) {
		return false
	}
	return !l.inBacklog || q.spool.Reached(l.name, e.after)
}

// isFilling reports whether frames of the backlog are in flight, or about to be.
func (l *categoryQueue) isFilling() bool { return l.claiming || l.backfill.isBusy() }

// flightsOf returns those of a request: of live traffic, or of the backlog.
func (l *categoryQueue) flightsOf(b *upstreamBatch) *categoryFlights {
	if b.backfill {
		return &l.backfill
	}
	return &l.live
}

// isIdle reports whether the category has nothing in memory, in the spool, or waiting.
func (q *sendQueue) isIdle(l *categoryQueue) bool {
	return l.bytes == 0 && l.appends == 0 && !l.isFilling() && len(l.waiters) == 0 && q.backlogOf(l).Frames == 0
}

// canFill reports whether some of the backlog may be sent now that none is in flight.
func (q *sendQueue) canFill(l *categoryQueue, now time.Time) bool {
	if l.isFilling() || now.Before(l.notBefore) {
		return false
	}
	if l.isOrdered() && (l.live.isBusy() || l.spilling || len(l.entries) > 0 && q.isEligible(l, l.entries[0])) {
		return false
	}
	return q.backlogOf(l).Frames > 0
}

// fillUpTo is the position up to which the backlog may be sent. Later records may belong after entries that enter memory
// meanwhile, and in an ordered queue the entries in memory take their turn.
func (l *categoryQueue) fillUpTo() spool.Position {
	if l.isOrdered() && len(l.entries) > 0 {
		return min(l.end, l.entries[0].after)
	}
	return l.end
}

// learnOrder learns from the physical shard of a stored frame: its writer slot tells whether sequences are checked.
func (l *categoryQueue) learnOrder(shard uint64) {
	if shard != 0 {
		l.unordered = shard&0xffff != 0
	}
}
