package consumer

import (
	"context"
	"errors"
)

// This file has the steps in which an iteration of a group member differs from that of a plain consumer. For the latter the
// methods do what a plain consumer does.

// errReassigned ends a stream where what is to be read has changed: the buckets of a member, or the logical shards. It is reopened for
// the new ones.
var errReassigned = errors.New("consumer: what is to be read has changed")

// shareOfStream returns the consumer's share for messages of the running stream. It fails with errReassigned if a member's
// positions have changed since the stream was opened. Such messages are useless and would be misinterpreted: a stream that was
// told to end may still bring messages, while a bucket that was taken in meanwhile begins at another position. The mutex is held.
func (s *iterationSession) shareOfStream() (*categoryShare, error) {
	if sh := s.c.mu.share; sh.version == s.version.Load() {
		return sh, nil
	}
	return nil, errReassigned
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
		changed, sh := g.changed, s.c.mu.share
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

// letReopen ends the stream when what is to be read changes.
func (s *iterationSession) letReopen(cancel context.CancelCauseFunc) (stop func()) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.c.mu.reopen = func() { cancel(errReassigned) }
	return func() {
		s.c.mu.Lock()
		defer s.c.mu.Unlock()
		s.c.mu.reopen = nil
	}
}

// claimItem reports whether an item is to be delivered. The buffer of any other item is freed.
func (s *iterationSession) claimItem(it *streamItem) bool {
	c := s.c
	c.mu.Lock()
	takes := c.mu.share.claims(it)
	if takes && c.group != nil && it.kind == itemPayload {
		c.group.meter.countPayload(&it.ptr)
	}
	c.mu.Unlock()
	if !takes {
		it.freeBuffer()
	}
	return takes
}
