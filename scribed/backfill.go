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
	upTo     []spool.Position // see categoryQueue.fillUpTo
	reserved int64            // memory reserved for all of them, gaps between frames in the spool included
	retry    bool
}

// joinBacklog adds a queue to the list of queues with backlog.
func (q *sendQueue) joinBacklog(l *categoryQueue) {
	if !l.inBacklog {
		l.inBacklog = true
		q.backlog = append(q.backlog, l)
	}
}

// fillReady reports whether backlog could be sent now if a request slot is free.
func (q *sendQueue) fillReady(now time.Time) bool {
	if len(q.backlog) == 0 || q.closing && !q.draining || !q.draining && now.Before(q.pace.next) {
		return false
	}
	return slices.ContainsFunc(q.backlog, func(l *categoryQueue) bool { return q.mayFill(l, now) })
}

func (q *sendQueue) mayFill(l *categoryQueue, now time.Time) bool {
	return q.canFill(l, now) && (l.failures == 0 || q.mayRetry())
}

// liveWaits reports whether live traffic could be sent if a request slot is free.
func (q *sendQueue) liveWaits(now time.Time) bool {
	return slices.ContainsFunc(q.turn, func(l *categoryQueue) bool { return q.isDue(l, now) })
}

// maxFillQueues bounds the categories of one backfill request.
const maxFillQueues = 256

// nextFill returns the next backfill request to make now, or nil. Beside live traffic there is one at a time; without it,
// backfill takes half of the requests, and all while draining.
func (q *sendQueue) nextFill(now time.Time) *fillPlan {
	if q.running >= q.cfg.MaxInFlight || now.Before(q.notBefore) || q.isUnavailable() && q.running > 0 || !q.fillReady(now) {
		return nil
	}
	live := q.liveWaits(now)
	most := max(q.cfg.MaxInFlight/2, 1)
	switch {
	case live:
		most = 1
	case q.draining:
		most = q.cfg.MaxInFlight
	}
	if q.filling >= most {
		return nil
	}
	size := int64(q.pace.requestSize(q.cfg.BatchBytes, live))
	size = min(size, max(q.cfg.MemoryBytes-q.used, minQuantum))
	f := q.chooseQueues(now)
	if f == nil {
		return nil
	}
	q.divideFill(f, size)
	q.used += f.reserved
	q.beginRequest(f.retry)
	q.filling++
	q.lastLive = false
	return f
}

// divideFill divides a request of size bytes among its queues. A queue with less backlog than its share leaves the rest to the
// others.
func (q *sendQueue) divideFill(f *fillPlan, size int64) {
	f.wants, f.upTo = make([]int, len(f.queues)), make([]spool.Position, len(f.queues))
	backlogs := make([]int64, len(f.queues))
	for i, l := range f.queues {
		f.upTo[i], backlogs[i] = l.fillUpTo(), q.backlogOf(l).Bytes
	}
	if l := f.queues[0]; l.cautious && l.singles > 0 {
		f.wants[0], f.reserved = 1, minQuantum
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
		f.reserved += int64(f.bufferOf(i))
	}
}

// bufferOf is the memory that the claim of a queue may use. Small or scattered frames need more than their bytes.
func (f *fillPlan) bufferOf(i int) int { return f.wants[i] + f.wants[i]/4 + 1<<10 }

// chooseQueues takes the queues whose turn it is, and moves them to the end of the list.
func (q *sendQueue) chooseQueues(now time.Time) *fillPlan {
	f := &fillPlan{}
	rest := make([]*categoryQueue, 0, len(q.backlog))
	for _, l := range q.backlog {
		full := len(f.queues) >= maxFillQueues || len(f.queues) > 0 && (f.queues[0].cautious || l.cautious)
		switch {
		case full:
			rest = append(rest, l)
		case !l.filling && q.backlogOf(l).Frames == 0:
			l.inBacklog = false // joins again when it has backlog
			q.forgetIdle(l)
		case !q.mayFill(l, now):
			rest = append(rest, l)
		default:
			f.queues = append(f.queues, l)
			f.retry = f.retry || l.failures > 0
		}
	}
	q.backlog = append(rest, f.queues...)
	if len(f.queues) == 0 {
		return nil
	}
	for _, l := range f.queues {
		l.filling = true
		if l.isOrdered() {
			l.busy, l.busyFilling = true, true
			q.leaveTurn(l)
		}
	}
	return f
}

// nextFillWake is when nextFill may have a request if no event comes first; zero = only an event can bring one.
func (q *sendQueue) nextFillWake(now time.Time) (at time.Time) {
	if len(q.backlog) == 0 || q.closing && !q.draining || q.filling > 0 && !q.draining {
		return time.Time{} // the end of the running one is an event
	}
	base := laterOf(q.notBefore, now)
	if !q.draining {
		base = laterOf(base, q.pace.next)
	}
	for _, l := range q.backlog {
		t := laterOf(base, l.notBefore)
		if !q.mayFill(l, t) {
			continue
		}
		if at = earlierOf(at, t); at.Equal(base) {
			break
		}
	}
	return at
}

// finishFill is the event that a backfill request has ended, after its records were released or marked done. b is the batch that
// was sent, nil when nothing could be claimed.
func (q *sendQueue) finishFill(now time.Time, f *fillPlan, b *upstreamBatch, held map[*categoryQueue]time.Duration) {
	q.endRequest(f.retry)
	q.filling--
	q.used -= f.reserved
	claimed := make(map[*categoryQueue]bool, len(f.queues))
	if b != nil {
		for _, l := range b.queues {
			claimed[l] = true
		}
	}
	for _, l := range f.queues {
		l.filling = false
		if l.busyFilling {
			l.busy, l.busyFilling = false, false
		}
		if claimed[l] {
			q.setHold(l, now, held)
		}
		q.joinTurn(l)
		q.forgetIdle(l)
	}
}

// clearWaits is the event that a claim up to a position found nothing, although the queue has backlog: the records are damaged,
// or were dropped. No entry waits for them any more.
func (q *sendQueue) clearWaits(l *categoryQueue, upTo spool.Position, now time.Time) {
	for _, e := range l.entries {
		if e.after <= upTo {
			e.after = 0
		}
	}
	l.notBefore = now.Add(keeperInterval / 4)
}

// newBackfillEntry makes an entry of claimed records. It is not charged to a queue's memory; frames that are not accepted stay in
// the spool. The caller need not hold Scribed.mu: l.tries does not change while l.filling is set.
func newBackfillEntry(l *categoryQueue, claimed []spool.ClaimedRecord) *queueEntry {
	e := &queueEntry{category: l.name, ack: ackSpooled, backfill: true, frames: make([]queuedFrame, len(claimed))}
	for i := range claimed {
		c := &claimed[i]
		h, err := record.ParseHeader(c.Data)
		e.frames[i] = queuedFrame{
			bytes: c.Data, ref: c.Ref, messages: int32(c.Messages), index: int32(i), //nolint:gosec // both are bounded by the format
			attempts: l.tries[c.Ref], sequenced: err == nil && h.Sequenced(), spooled: true,
		}
		e.bytes += int64(len(c.Data))
	}
	return e
}

// backfillBatch makes a request of entries.
func (q *sendQueue) backfillBatch(f *fillPlan, entries []*queueEntry) *upstreamBatch {
	b := &upstreamBatch{entries: entries, ack: scribev1.AckLevel_ACK_LEVEL_COMMITTED, backfill: true, retry: f.retry, round: q.round}
	for _, e := range entries {
		e.batch = b
		b.queues = append(b.queues, q.queues[e.category])
		b.bytes += e.bytes
		b.frames += len(e.frames)
	}
	return b
}
