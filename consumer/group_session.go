package consumer

import (
	"context"
	"errors"

	"scribe/consumer/internal/payload"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// This file has the steps in which an iteration of a group member differs from that of a plain consumer. For the latter the
// methods do what a plain consumer does.

// errReassigned ends the stream of a member whose buckets have changed; it is reopened for the new ones.
var errReassigned = errors.New("consumer: the member's buckets have changed")

// shareLocked returns the member's share; nil when the member has not joined yet. The mutex is held.
func (c *Consumer) shareLocked() *memberShare {
	if c.group == nil {
		return nil
	}
	return c.group.share
}

// shareOfStream is shareLocked for messages of the running stream. It fails with errReassigned if the member's positions have
// changed since the stream was opened. Such messages are useless and would be misinterpreted: a stream that was told to end may
// still bring messages, while a bucket that was taken in meanwhile begins at another position. The mutex is held.
func (s *iterationSession) shareOfStream() (*memberShare, error) {
	sh := s.c.shareLocked()
	if sh != nil && sh.version != s.version.Load() {
		return nil, errReassigned
	}
	return sh, nil
}

// awaitBuckets waits until the member has buckets to read. It is false when the iteration is over: then itemEnd is in the queue,
// unless the session ended.
func (s *iterationSession) awaitBuckets() bool {
	g := s.c.group
	if g == nil {
		return true
	}
	for {
		s.c.mu.Lock()
		changed, sh := g.changed, g.share
		reads := sh != nil && !sh.owned.Empty()
		over := s.c.cfg.untilEnd && sh != nil && sh.owned.Empty() && g.hasSettled()
		s.c.mu.Unlock()
		switch {
		case over:
			s.queue.pushItem(&streamItem{kind: itemEnd})
			return false
		case reads:
			return true
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
			return false
		}
	}
}

// followBuckets ends the stream when the member's buckets change.
func (s *iterationSession) followBuckets(cancel context.CancelCauseFunc) (stop func()) {
	g := s.c.group
	if g == nil {
		return func() {}
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	g.reopen = func() { cancel(errReassigned) }
	return func() {
		s.c.mu.Lock()
		defer s.c.mu.Unlock()
		g.reopen = nil
	}
}

// openShared handles StreamOpened of a member's stream. The mutex is held.
func (conn *streamConnection) openShared(o *scribev1.StreamOpened, sh *memberShare) ([]*scribev1.StreamGap, error) {
	if id := o.GetCategory().GetId(); id != 0 && id != sh.categoryID {
		return nil, ErrCategoryReplaced
	}
	var gaps []*scribev1.StreamGap
	behind := uint64(0)
	for _, v := range o.GetShards() {
		behind += max(v.GetNextLsn(), v.GetLsn()) - v.GetLsn()
		gap, err := sh.joinShard(v)
		if err != nil {
			return nil, err
		}
		if gap != nil {
			gaps = append(gaps, gap)
		}
	}
	conn.s.bounded = sh.bounded
	conn.s.queue.notePending(behind)
	conn.s.queue.pushItem(&streamItem{kind: itemOpened})
	return gaps, nil
}

// handleOpened handles StreamOpened.
func (conn *streamConnection) handleOpened(o *scribev1.StreamOpened) error {
	c := conn.s.c
	c.mu.Lock()
	sh, err := conn.s.shareOfStream()
	if err != nil {
		c.mu.Unlock()
		return err
	}
	if sh == nil || conn.opened {
		c.mu.Unlock()
		return conn.joinShards(o)
	}
	gaps, err := conn.openShared(o, sh)
	conn.opened = true
	c.mu.Unlock()
	for _, g := range gaps {
		if err == nil {
			err = conn.s.queueGap(g)
		}
	}
	return err
}

// addShard handles a shard that joined the stream.
func (s *iterationSession) addShard(v *scribev1.StreamShard) error {
	s.c.mu.Lock()
	sh, err := s.shareOfStream()
	if sh == nil {
		if err == nil {
			_, err = s.c.mu.positions.joinShard(v)
		}
		s.c.mu.Unlock()
		return err
	}
	gap, err := sh.joinShard(v)
	s.c.mu.Unlock()
	if err != nil || gap == nil {
		return err
	}
	return s.queueGap(gap)
}

// placeOf receives an entry and returns its position, see shardPositions.receiveEntry. The mutex is held.
func (s *iterationSession) placeOf(shard record.ShardID, lsn record.LSN) (*shardPosition, bool, error) {
	switch sh, err := s.shareOfStream(); {
	case err != nil:
		return nil, false, err
	case sh != nil:
		return sh.receiveEntry(shard, lsn)
	}
	return s.c.mu.positions.receiveEntry(shard, lsn, s.bounded)
}

// queueSharedGap queues a gap in a group member's share. done is false when there is no group.
func (s *iterationSession) queueSharedGap(g *scribev1.StreamGap) (done bool, err error) {
	s.c.mu.Lock()
	sh, err := s.shareOfStream()
	if sh == nil {
		s.c.mu.Unlock()
		return err != nil, err
	}
	from, lost, err := sh.receiveGap(g)
	s.c.mu.Unlock()
	if err != nil || len(lost) == 0 {
		return true, err
	}
	s.queue.pushItem(&streamItem{kind: itemGap, pos: lost[0], lost: lost, Payload: payload.Payload{LSN: from}, gap: &GapError{
		Category: s.c.category, Shard: lost[0].shard, From: uint64(from), To: g.GetTo(), Reason: gapReason(g.GetReason()),
	}})
	return true, nil
}

// isFinished reports whether a bounded iteration has received everything up to its ends. The mutex is held.
func (s *iterationSession) isFinished() bool {
	if sh := s.c.shareLocked(); sh != nil {
		return sh.undone == 0 && sh.version == s.version.Load() && s.c.group.hasSettled()
	}
	return s.c.mu.positions.remaining == 0
}

// claimItem reports whether an item is to be delivered. The buffer of any other item is freed.
func (s *iterationSession) claimItem(it *streamItem) bool {
	c := s.c
	c.mu.Lock()
	sh := c.shareLocked()
	takes := sh == nil || sh.claims(it)
	if sh != nil && takes && it.kind == itemPayload {
		c.group.meter.countPayload(&it.ptr)
	}
	c.mu.Unlock()
	if !takes {
		it.freeBuffer()
	}
	return takes
}

// advanceLost advances the other positions of a group member that a gap covers. The mutex is held.
func advanceLost(it *streamItem) {
	for _, p := range it.lost {
		p.lsn, p.skip = record.LSN(it.gap.To), 0
	}
}

// stillTakes reports whether the rest of a payload still belongs to the member.
func (c *Consumer) stillTakes(it *streamItem) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	sh := c.shareLocked()
	return sh == nil || sh.claims(it)
}
