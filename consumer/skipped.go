package consumer

import (
	"fmt"

	"scribe/internal/record"
	scribev1 "scribe/proto/scribe/v1"
)

// skip is a run of pointers of one shard that the stream left out: the place behind it is to.
type skip struct {
	pos *position
	to  record.LSN
}

// join adds a run to an item that holds some. There is one for each shard.
func (it *item) join(r skip) {
	for i := range it.runs {
		if it.runs[i].pos == r.pos {
			it.runs[i].to = r.to
			return
		}
	}
	it.runs = append(it.runs, r)
}

// skipped queues a run of pointers whose payloads hold nothing of what is asked for.
func (s *session) skipped(k *scribev1.StreamSkip) error {
	c := s.c
	shard, from, to := record.ShardID(k.GetShard()), record.LSN(k.GetFrom()), record.LSN(k.GetTo())
	c.mu.Lock()
	defer c.mu.Unlock()
	q, ok := c.mu.positions.shards[shard]
	switch {
	case c.eval == nil:
		return fmt.Errorf("%w: it leaves out pointers, and was not asked to", ErrProtocol)
	case !ok:
		return fmt.Errorf("%w: it leaves out pointers of shard %v, which did not join", ErrProtocol, shard)
	case from > q.received || to < from:
		return fmt.Errorf("%w: shard %v goes from LSN %d to pointers %d to %d that are left out", ErrProtocol, shard, q.received, from, to)
	case s.bounded && q.received >= q.end, to <= q.received, c.over(q, k.GetTime()):
		return nil
	}
	if s.bounded {
		to = min(to, q.end)
	}
	e := &c.eval.stats
	e.pointers.Add(uint64(to - q.received))
	e.skippedPointers.Add(uint64(to - q.received))
	e.skippedMessages.Add(k.GetMessages())
	e.skippedBytes.Add(k.GetBytes())
	c.mu.positions.receive(q, to)
	s.queue.push(&item{kind: itemSkipped, runs: []skip{{q, to}}})
	return nil
}

// skip moves behind pointers that were left out.
func (c *Consumer) skip(it *item) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range it.runs {
		r.pos.lsn, r.pos.skip = r.to, 0
	}
}

// over reports whether a time is not before the end that was asked for: the shard's reading ends there. The mutex is held.
func (c *Consumer) over(q *position, time int64) bool {
	until := c.cfg.query.until
	if until.IsZero() || time < until.UnixMicro() {
		return false
	}
	if q.end > q.received { // a bounded iteration waits for no more of it
		c.mu.positions.bound(q, q.received)
	}
	return true
}
