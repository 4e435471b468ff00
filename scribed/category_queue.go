package scribed

import (
	"slices"
	"time"

	"scribe/internal/role/request"
	"scribe/scribed/spool"
)

// categoryQueue is the queue of one category: what of it is in memory, and the account of what is in the spool. It exists while anything is.
type categoryQueue struct {
	name string
	rule *Rule

	entries  []*queueEntry // in memory, in order
	inFlight []*queueEntry // on their way to the upstream; they were in front
	bytes    int64         // charged for entries in it, on their way, or about to be added
	inTurn   bool
	// busy: entries taken from it are on their way, and what is behind them waits. In an ordered queue the backlog is part of it.
	busy bool
	// failures and notBefore hold a category back that the upstream refuses.
	failures  int
	notBefore time.Time

	owed int64 // bytes of what is in memory only, and may have to go to the spool
	// end is the position in the spool of the newest record that appends of the category have written, as far as they were accounted for.
	end      spool.Position
	leaving  []*queueEntry // being appended; they will be in the spool only
	appends  int           // that run
	last     *spoolAppend  // the newest append; the next one waits for it, so that the spool has the queue's order
	spilling bool          // an append takes entries out of memory
	fullTill time.Time     // the spool had no capacity for a spill: it is not tried before

	inBacklog bool // it may have backlog, and is in queue.backlog
	filling   bool // frames of the backlog are on their way
	// busyFilling: the queue was ordered when they were taken, so it is busy with them.
	busyFilling bool
	// cautious and singles: a request with its backlog was refused as a whole. It is sent alone, and that many frames one by one.
	cautious bool
	singles  int
	// tries are how often frames at the front of the backlog were refused for a reason that may never end.
	tries map[spool.Ref]int32

	// sequenced: it had frames with sequences, or may have some in the spool. unordered: the upstream is known not to check them.
	sequenced, unordered bool

	waiters []*waiter
}

// waiter is a call that waits for capacity.
type waiter struct {
	ready chan struct{} // buffered: it should look again
	bytes int64
}

// isOrdered reports whether nothing of the category may overtake its backlog. Frames with sequences must not, in exactly_once
// categories: the frame that overtakes would be refused for the gap, and one with a newer epoch would shut out the backlog; nor in
// repeatable ones, whose order counts. The agent learns from the answers whether a category is one of these: only they are stored in
// writer slot 0. Until then it is taken for one.
func (l *categoryQueue) isOrdered() bool { return l.rule.Strict || l.sequenced && !l.unordered }

// backlogOf is what of a category is in the spool only, as the spool says.
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

// isEligible reports whether an entry at the front may be sent as far as the backlog is concerned.
func (q *sendQueue) isEligible(l *categoryQueue, e *queueEntry) bool {
	if !l.isOrdered() {
		return true
	}
	if l.filling || slices.ContainsFunc(l.leaving, func(x *queueEntry) bool { return x.number < e.number }) {
		return false
	}
	return !l.inBacklog || q.spool.Reached(l.name, e.after)
}

// isIdle reports whether nothing of the category is left.
func (q *sendQueue) isIdle(l *categoryQueue) bool {
	return l.bytes == 0 && l.appends == 0 && !l.filling && len(l.waiters) == 0 && q.backlogOf(l).Frames == 0
}

// canFill reports whether some of the backlog may be sent now.
func (q *sendQueue) canFill(l *categoryQueue, now time.Time) bool {
	if l.filling || now.Before(l.notBefore) {
		return false
	}
	if l.isOrdered() && (l.busy || l.spilling || len(l.entries) > 0 && q.isEligible(l, l.entries[0])) {
		return false
	}
	return q.backlogOf(l).Frames > 0
}

// fillUpTo is up to where in the spool the backlog may be sent: what is written from now on may belong behind something that comes
// into memory meanwhile, and in an ordered queue what stands in memory has its turn.
func (l *categoryQueue) fillUpTo() spool.Position {
	if l.isOrdered() && len(l.entries) > 0 {
		return min(l.end, l.entries[0].after)
	}
	return l.end
}

// learnOrder takes the physical shard of a stored frame: its writer slot tells whether sequences are checked.
func (l *categoryQueue) learnOrder(shard uint64) {
	if shard != 0 {
		l.unordered = shard&0xffff != 0
	}
}
