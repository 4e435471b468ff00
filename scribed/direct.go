package scribed

import (
	"context"
	"slices"
	"time"

	"scribe/internal/format/record"
	"scribe/internal/role/request"
)

// directBytes is the size from which a call whose caller waits for the upstream is worth a request of its own.
const directBytes = 256 << 10

// directBatch returns a request with the entries of a whole call, which were not added to their queues, or nil if the call has to
// take its turn.
//
// A category's turn makes few requests of many small calls, one at a time, and keeps the order of frames that the agent is
// responsible for. A caller that waits is responsible itself: it has one call of a shard at a time, unless it says which frames
// follow others, and then the upstream keeps their order. So its call may go at once, beside others, if nothing of its categories
// waits that nobody waits for, and nothing has failed.
func (q *sendQueue) directBatch(sub *pendingCall, entries []*queueEntry) *upstreamBatch {
	if q.closing || q.isUnavailable() || len(sub.data) < directBytes && !sub.follows {
		return nil
	}
	b := &upstreamBatch{entries: entries, round: q.round, direct: true}
	for _, e := range entries {
		l := q.queues[e.category]
		if e.sub != sub || e.ack != ackCommitted || !q.mayPassQueue(l, e) {
			return nil
		}
		b.queues = append(b.queues, l)
		b.bytes += e.bytes
		b.frames += len(e.frames)
		b.ack = q.upstreamLevel(e)
	}
	b.unawaited = !slices.ContainsFunc(entries, (*queueEntry).isAwaited)
	if b.frames != len(sub.results) { // some were refused
		return nil
	}
	return b
}

// mayPassQueue reports whether an entry may be sent before what its category has: all of that is waited for, and nothing has failed.
func (q *sendQueue) mayPassQueue(l *categoryQueue, e *queueEntry) bool {
	unattended := func(e *queueEntry) bool { return !e.awaitsUpstream() || e.alone }
	sent := func(fl *categoryFlight) bool { return slices.ContainsFunc(fl.entries, unattended) }
	return l.failures == 0 && len(l.leaving) == 0 && q.isEligible(l, e) &&
		!slices.ContainsFunc(l.entries, unattended) && !slices.ContainsFunc(l.live.flights, sent)
}

// startDirect starts a request of directBatch. The caller holds mu.
func (s *Scribed) startDirect(b *upstreamBatch) {
	for i, e := range b.entries {
		e.batch = b
		b.queues[i].direct = append(b.queues[i].direct, e)
	}
	var ctx context.Context
	ctx, b.cancel = context.WithTimeout(s.ctx, s.cfg.Timeout)
	b.unused = make(chan struct{})
	s.tasks.Go(func() { s.sendLive(ctx, b) })
}

// finishDirect is the event that a request of directBatch was answered. Entries that still have frames take their turn.
func (q *sendQueue) finishDirect(now time.Time, b *upstreamBatch, held map[*categoryQueue]time.Duration) (done []*queueEntry) {
	for _, l := range b.queues {
		l.direct = slices.DeleteFunc(l.direct, func(e *queueEntry) bool { return e.batch == b })
	}
	for _, e := range b.entries {
		e.batch = nil
		if len(e.frames) == 0 {
			done = append(done, e)
			continue
		}
		l := q.queues[e.category]
		q.returnEntry(l, e)
		if _, ok := held[l]; ok {
			q.setHold(l, now, held)
		}
	}
	for _, e := range done {
		q.releaseMemory(e)
	}
	return done
}

// listFollowers returns the indices, in the request, of the frames that follow others which are not before them in it. whole says that the
// request is that of a call.
func (b *upstreamBatch) listFollowers(whole bool) (follows []uint32) {
	if !slices.ContainsFunc(b.entries, (*queueEntry).hasFollowers) {
		return nil
	}
	var list request.FollowList
	index := int32(0)
	for _, e := range b.entries {
		for i := range e.frames {
			f := &e.frames[i]
			if whole {
				index = f.index
			}
			if s := &f.sequences; f.sequenced {
				stream := record.Stream{Category: e.category, Shard: s.stream.shard, Producer: s.stream.producer}
				if !list.Continues(stream, s.epoch, s.first, s.next) && (f.follows || f.behind) {
					follows = append(follows, uint32(index)) //nolint:gosec // bounded by the format
				}
			}
			index++
		}
	}
	slices.Sort(follows)
	return follows
}

// hasFollowers reports whether any frame follows another. It copies no frame: the spool may be noting where a frame is.
func (e *queueEntry) hasFollowers() bool {
	for i := range e.frames {
		if e.frames[i].follows || e.frames[i].behind {
			return true
		}
	}
	return false
}

// cutSequence is the event that a waiting caller is told that a frame came out of order: it sends the rest of the sequence again,
// so that nothing of it may be stored before.
func (e *queueEntry) cutSequence(f *queuedFrame) {
	if key, ok := sequenceOf(e.category, f); ok && !slices.Contains(e.cut, key) {
		e.cut = append(e.cut, key)
	}
}

// isCut reports whether a frame's sequence was cut before it.
func (e *queueEntry) isCut(f *queuedFrame) bool {
	if len(e.cut) == 0 {
		return false
	}
	key, ok := sequenceOf(e.category, f)
	return ok && slices.Contains(e.cut, key)
}
