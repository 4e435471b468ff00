package scribed

import (
	"slices"
	"time"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/spool"
)

// fillPlan is a backfill request to be made: the queues to claim from, in turn, until it has enough bytes.
type fillPlan struct {
	queues   []*categoryQueue
	wants    []int            // bytes to claim from each queue
	bytes    int64            // sum of wants
	upTo     []spool.Position // see categoryQueue.fillUpTo
	reserved int64            // memory reserved for all of them, gaps between frames in the spool included
	retry    bool
	follows  bool // each queue has backlog in flight, which it follows
}

// joinBacklog adds a queue to the list of queues with backlog.
func (q *sendQueue) joinBacklog(l *categoryQueue) {
	if !l.inBacklog {
		l.inBacklog = true
		q.backlog = append(q.backlog, l)
	}
}

// fillReady reports whether a backfill request could begin now if a request slot is free.
func (q *sendQueue) fillReady(now time.Time) bool {
	if !q.fillsNow() || !q.draining && now.Before(q.pace.next) {
		return false
	}
	return slices.ContainsFunc(q.backlog, func(l *categoryQueue) bool { return q.mayFill(l, now) })
}

// fillsNow reports whether there may be backlog, and it is to be forwarded.
func (q *sendQueue) fillsNow() bool { return len(q.backlog) > 0 && (!q.closing || q.draining) }

func (q *sendQueue) mayFill(l *categoryQueue, now time.Time) bool {
	return q.canFill(l, now) && (l.failures == 0 || q.mayRetry())
}

// liveWaits reports whether live traffic could be sent if a request slot is free.
func (q *sendQueue) liveWaits(now time.Time) bool {
	return slices.ContainsFunc(q.turn, func(l *categoryQueue) bool { return q.isDue(l, now) })
}

// maxFillQueues bounds the categories of one backfill request.
const maxFillQueues = 256

// fillSlots says which backfill requests may be made, whatever the queues have: those that begin, and those that follow others, of about
// size bytes each.
//
// Beside live traffic one begins at a time; without it, backfill takes half of the requests, and all while draining. Those that follow
// are bounded by the windows of their categories and by memory: live traffic must not leave it for them.
func (q *sendQueue) fillSlots(now time.Time) (begin, follow bool, size int64) {
	if !q.fillsNow() || q.isUnavailable() && q.running > 0 {
		return false, false, 0
	}
	live := q.liveWaits(now)
	most := max(q.cfg.MaxInFlight/2, 1)
	switch {
	case live:
		most = 1
	case q.draining:
		most = q.cfg.MaxInFlight
	}
	size = int64(q.pace.requestSize(q.cfg.BatchBytes, live))
	size = min(size, max(q.cfg.MemoryBytes-q.used, minQuantum))
	if !q.draining && !q.pace.hasSpace(size, live) {
		return false, false, 0
	}
	begin = q.beginning() < q.cfg.MaxInFlight && q.filling-q.fillingBehind < most
	follow = q.hasSpaceToFollow(size) && float64(q.used+bufferFor(int(size))) <= q.cfg.SpillAbove*float64(q.cfg.MemoryBytes)
	return begin, follow, size
}

// nextFill returns the next backfill request to make now, or nil.
func (q *sendQueue) nextFill(now time.Time) *fillPlan {
	begin, follow, size := q.fillSlots(now)
	if !begin && !follow || now.Before(q.notBefore) || !q.draining && now.Before(q.pace.next) {
		return nil
	}
	f := &fillPlan{}
	if begin {
		q.chooseQueues(f, now)
		q.divideFill(f, size)
	}
	if len(f.queues) == 0 && follow {
		q.chooseFollowing(f, now, size)
	}
	if len(f.queues) == 0 {
		return nil
	}
	for _, l := range f.queues {
		l.claiming = true
	}
	q.used += f.reserved
	q.beginRequest(f.retry, f.follows, f.bytes)
	q.filling++
	if f.follows {
		q.fillingBehind++
	}
	q.pace.noteStart(now, f.bytes)
	q.lastLive = false
	return f
}

// divideFill divides a request of size bytes among its queues. A queue with less backlog than its share leaves the rest to the
// others.
func (q *sendQueue) divideFill(f *fillPlan, size int64) {
	if len(f.queues) == 0 {
		return
	}
	f.wants, f.upTo = make([]int, len(f.queues)), make([]spool.Position, len(f.queues))
	backlogs := make([]int64, len(f.queues))
	for i, l := range f.queues {
		f.upTo[i], backlogs[i] = l.fillUpTo(), q.backlogOf(l).Bytes
	}
	if l := f.queues[0]; l.cautious && l.singles > 0 {
		f.wants[0], f.bytes, f.reserved = 1, 1, minQuantum
		return
	}
	small := size / int64(len(f.queues))
	spare := int64(0)
	for i, has := range backlogs {
		f.wants[i] = int(max(min(small, has), 1))
		spare += max(small-has, 0)
	}
	for i, has := range backlogs {
		more := max(min(spare, has-int64(f.wants[i])), 0)
		f.wants[i] += int(more)
		spare -= more
		f.bytes += int64(f.wants[i])
		f.reserved += bufferFor(f.wants[i])
	}
}

// bufferFor is the memory that a claim of n bytes may use. Small or scattered frames need more than their bytes.
func bufferFor(n int) int64 { return int64(n + n/4 + 1<<10) }

// chooseFollowing chooses queues for a request that follows others of theirs, each with as much as is worth it, and moves them to the end
// of the list.
func (q *sendQueue) chooseFollowing(f *fillPlan, now time.Time, size int64) {
	for _, l := range q.backlog {
		if worth, ok := q.mayFollowFill(l, now, size); ok && worth <= size-f.bytes && len(f.queues) < maxFillQueues {
			f.queues, f.wants, f.upTo = append(f.queues, l), append(f.wants, int(worth)), append(f.upTo, l.fillUpTo())
			f.bytes += worth
		}
	}
	spare := size - f.bytes
	f.bytes = 0
	for i, l := range f.queues {
		more := min(spare, max(min(l.backfill.window.Space(), q.unclaimedBytes(l))-int64(f.wants[i]), 0))
		f.wants[i] += int(more)
		spare -= more
		f.bytes += int64(f.wants[i])
		f.reserved += bufferFor(f.wants[i])
	}
	f.follows = true
	q.backlog = slices.DeleteFunc(q.backlog, func(l *categoryQueue) bool { return slices.Contains(f.queues, l) })
	q.backlog = append(q.backlog, f.queues...)
}

// chooseQueues takes the queues whose turn it is, and moves them to the end of the list.
func (q *sendQueue) chooseQueues(f *fillPlan, now time.Time) {
	rest := make([]*categoryQueue, 0, len(q.backlog))
	for _, l := range q.backlog {
		full := len(f.queues) >= maxFillQueues || len(f.queues) > 0 && (f.queues[0].cautious || l.cautious)
		switch {
		case full:
			rest = append(rest, l)
		case !l.isFilling() && q.backlogOf(l).Frames == 0:
			l.inBacklog, l.tries = false, nil // joins again when it has backlog
			q.forgetIdle(l)
		case !q.mayFill(l, now):
			rest = append(rest, l)
		default:
			f.queues = append(f.queues, l)
			f.retry = f.retry || l.failures > 0
		}
	}
	q.backlog = append(rest, f.queues...)
}

// nextFillWake is when nextFill may have a request if no event comes first; zero = only an event can bring one.
func (q *sendQueue) nextFillWake(now time.Time) (at time.Time) {
	begin, follow, size := q.fillSlots(now)
	if !begin && !follow {
		return time.Time{}
	}
	base := laterOf(q.notBefore, now)
	if !q.draining {
		base = laterOf(base, q.pace.next)
	}
	for _, l := range q.backlog {
		t := laterOf(base, l.notBefore)
		_, behind := q.mayFollowFill(l, t, size)
		if begin && q.mayFill(l, t) || follow && behind {
			at = earlierOf(at, t)
		}
		if at.Equal(base) {
			break
		}
	}
	return at
}

// finishFill is the event that a backfill request has ended, after its records were released or marked done. b is the batch that
// was sent, nil when nothing could be claimed.
func (q *sendQueue) finishFill(now time.Time, f *fillPlan, b *upstreamBatch, held map[*categoryQueue]time.Duration) {
	q.endRequest(f.retry, f.follows, f.bytes)
	q.filling--
	if f.follows {
		q.fillingBehind--
	}
	q.pace.inFlight -= f.bytes
	q.used -= f.reserved
	if b != nil {
		for i, l := range b.queues {
			fl := b.flights[i]
			var left []*queueEntry
			if e := fl.entries[0]; len(e.frames) > 0 {
				left = fl.entries
			}
			q.setHold(l, now, held)
			l.backfill.endFlight(now, b, fl, left)
			l.backfill.failed = l.backfill.failed || l.claiming && len(left) > 0 // what is being claimed comes after that
		}
	}
	for _, l := range f.queues {
		q.joinTurn(l)
		q.forgetIdle(l)
	}
}

// noteEmptyClaim is the event that a claim up to a position found nothing, although the queue has backlog: the records are damaged,
// or were dropped. No entry waits for them any more. For a request that follows, the rest may be in flight.
func (q *sendQueue) noteEmptyClaim(l *categoryQueue, f *fillPlan, upTo spool.Position, now time.Time) {
	if f.follows {
		l.backfill.cut = l.backfill.isBusy()
		return
	}
	for _, e := range l.entries {
		if e.after <= upTo {
			e.after = 0
		}
	}
	l.notBefore = now.Add(keeperInterval / 4)
}

// newBackfillEntry makes an entry of claimed records. It is not charged to a queue's memory; frames that are not accepted stay in
// the spool. The caller need not hold Scribed.mu.
func newBackfillEntry(l *categoryQueue, claimed []spool.ClaimedRecord) *queueEntry {
	e := &queueEntry{category: l.name, ack: ackSpooled, backfill: true, frames: make([]queuedFrame, len(claimed))}
	for i := range claimed {
		c := &claimed[i]
		e.frames[i] = queuedFrame{bytes: c.Data, ref: c.Ref, messages: int32(c.Messages), index: int32(i), spooled: true} //nolint:gosec // both are bounded by the format
		if h, err := record.ParseHeader(c.Data); err == nil {
			e.frames[i].setOrigin(&h)
		}
	}
	e.bytes = e.countBytes()
	return e
}

// backfillBatch makes a request of entries, after the claims of its queues. Frames that may not follow those in flight return to the spool.
// It returns nil if no frames are left.
func (q *sendQueue) backfillBatch(f *fillPlan, entries []*queueEntry) *upstreamBatch {
	b := &upstreamBatch{ack: scribev1.AckLevel_ACK_LEVEL_COMMITTED, backfill: true, unawaited: true, retry: f.retry, follows: f.follows, round: q.round, cautious: f.queues[0].cautious}
	for _, l := range f.queues {
		l.claiming = false
	}
	for _, e := range entries {
		l := q.queues[e.category]
		check := l.backfill.newFollowCheck()
		n := check.countAllowed(nil, e.frames)
		if l.backfill.failed {
			n = 0
		}
		if n < len(e.frames) {
			for i := range e.frames[n:] {
				q.spool.Release(e.frames[n+i].ref)
			}
			e.frames, l.backfill.cut = e.frames[:n:n], true
			e.bytes = e.countBytes()
		}
		if len(e.frames) == 0 {
			continue
		}
		for i := range e.frames {
			f := &e.frames[i]
			f.attempts = l.tries[f.ref]
			delete(l.tries, f.ref)
		}
		e.batch = b
		b.entries, b.queues = append(b.entries, e), append(b.queues, l)
		b.flights = append(b.flights, l.backfill.beginFlight([]*queueEntry{e}, b.ack))
		b.bytes += e.bytes
		b.frames += len(e.frames)
	}
	for _, l := range f.queues {
		if !l.backfill.isBusy() {
			l.backfill.failed, l.backfill.cut = false, false
		}
	}
	q.pace.noteClaimed(b.bytes - f.bytes)
	if len(b.entries) == 0 {
		return nil
	}
	return b
}
