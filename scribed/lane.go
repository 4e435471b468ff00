package scribed

import (
	"time"

	"scribe/scribed/spool"
)

// lane is the queue of one category: what of it is in memory, and the account of what is in the spool. It exists while anything is.
type lane struct {
	name string
	rule *Rule

	entries []*entry // in memory, in order
	flying  []*entry // on their way to the upstream; they were in front
	bytes   int64    // charged for entries in it, on their way, or about to be added
	inTurn  bool
	// busy: entries taken from it are on their way, and what is behind them waits. In an ordered lane the backlog is part of it.
	busy bool
	// failures and notBefore hold a category back that the upstream refuses.
	failures  int
	notBefore time.Time

	// disk is what is in the spool only, claimed for backfill or not. A record that was forwarded before the append that wrote it was
	// accounted for makes it negative until then; pending counts the latter, so that the sum of both is right.
	disk    amount
	pending int64 // frames being appended that will be in the spool only
	held    int64 // bytes in the spool, copies of what is in memory included
	owed    int64 // bytes of what is in memory only, and may have to go there
	// finished counts frames that left the backlog: those in it have the numbers from finished to finished+disk+pending. An entry of
	// an ordered lane that is behind n waits until n are finished. An entry that leaves the memory takes its place in the numbers, and
	// those behind it are behind as many more.
	finished int64
	appends  int        // that run
	last     *appending // the newest append; the next one waits for it, so that the spool has the lane's order
	spilling bool       // an append takes entries out of memory
	fullTill time.Time  // the spool had no room for a spill: it is not tried before

	inBacklog bool // it is in queue.backlog
	filling   bool // frames of the backlog are on their way
	// busyFilling: the lane was ordered when they were taken, so it is busy with them.
	busyFilling bool
	// cautious and singles: a request with its backlog was refused as a whole. It is sent alone, and that many frames one by one.
	cautious bool
	singles  int
	// tries are how often frames at the front of the backlog were refused for a reason that may never end.
	tries map[spool.Ref]int32
	doubt bool // the spool lost something: the account is to be compared with it

	// sequenced: it had frames with sequences, or may have some in the spool. unordered: the upstream is known not to check them.
	sequenced, unordered bool

	waiters []*waiter
}

// waiter is a call that waits for room.
type waiter struct {
	ready chan struct{} // buffered: it should look again
	bytes int64
}

// ordered reports whether nothing of the category may overtake its backlog. Frames with sequences must not, in exactly_once
// categories: the frame that overtakes would be refused for the gap, and one with a newer epoch would shut out the backlog; nor in
// repeatable ones, whose order counts. The agent learns from the answers whether a category is one of these: only they are stored in
// writer slot 0. Until then it is taken for one.
func (l *lane) ordered() bool { return l.rule.Strict || l.sequenced && !l.unordered }

// hasBacklog reports whether frames are in the spool only, or will be.
func (l *lane) hasBacklog() bool { return l.disk.frames+l.pending > 0 }

// tail is what an entry that comes now is behind.
func (l *lane) tail() int64 { return l.finished + l.disk.frames + l.pending }

// eligible reports whether an entry at the front may be sent as far as the backlog is concerned.
func (l *lane) eligible(e *entry) bool {
	return !l.ordered() || e.behind <= l.finished || !l.hasBacklog()
}

// idle reports whether nothing of the category is left.
func (l *lane) idle() bool {
	return l.bytes == 0 && l.disk.frames == 0 && l.pending == 0 && l.appends == 0 && !l.filling && len(l.waiters) == 0
}

// fillable reports whether some of the backlog may be sent now.
func (l *lane) fillable(now time.Time) bool {
	if l.filling || l.disk.frames <= 0 || now.Before(l.notBefore) {
		return false
	}
	return !l.ordered() || !l.busy && !l.spilling && (len(l.entries) == 0 || !l.eligible(l.entries[0]))
}

// learn takes the physical shard of a stored frame: its writer slot tells whether sequences are checked.
func (l *lane) learn(shard uint64) {
	if shard != 0 {
		l.unordered = shard&0xffff != 0
	}
}
