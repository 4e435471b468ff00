package consumer

import (
	"fmt"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// queueSkip queues a run of pointers whose payloads can't match the filter.
func (s *iterationSession) queueSkip(k *scribev1.StreamSkip) error {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.eval == nil {
		return fmt.Errorf("%w: it leaves out pointers, and was not asked to", ErrProtocol)
	}
	runs, pointers, err := s.passOver(k)
	if err != nil || len(runs) == 0 {
		return err
	}
	n := &c.eval.Counts
	n.Pointers.Add(pointers)
	n.SkippedPointers.Add(pointers)
	n.SkippedMessages.Add(k.GetMessages())
	n.SkippedBytes.Add(k.GetBytes())
	s.queue.pushItem(&streamItem{kind: itemSkipped, runs: runs})
	return nil
}

// passOver marks a run as received. It returns the positions after the run, none when the run contains nothing that was still to
// come, and the number of pointers. The mutex is held.
func (s *iterationSession) passOver(k *scribev1.StreamSkip) (runs map[*shardPosition]record.LSN, pointers uint64, err error) {
	c := s.c
	shard, from, to := record.ShardID(k.GetShard()), record.LSN(k.GetFrom()), record.LSN(k.GetTo())
	sh, err := s.shareOfStream()
	if err != nil {
		return nil, 0, err
	}
	if sh != nil {
		places, n, err := sh.receiveSkip(shard, from, to)
		runs = make(map[*shardPosition]record.LSN, len(places))
		for _, p := range places {
			runs[p] = p.received
		}
		return runs, n, err
	}
	q, ok := c.mu.positions.shards[shard]
	switch {
	case !ok:
		return nil, 0, fmt.Errorf("%w: it leaves out pointers of shard %v, which did not join", ErrProtocol, shard)
	case from > q.received || to < from:
		return nil, 0, fmt.Errorf("%w: shard %v goes from LSN %d to pointers %d to %d that are left out", ErrProtocol, shard, q.received, from, to)
	case s.bounded && q.received >= q.end, to <= q.received, c.pastUntil(q, k.GetTime()):
		return nil, 0, nil
	}
	if s.bounded {
		to = min(to, q.end)
	}
	pointers = uint64(to - q.received)
	c.mu.positions.moveReceived(q, to)
	return map[*shardPosition]record.LSN{q: to}, pointers, nil
}

// moveAfterSkip moves positions after pointers that were left out.
func (c *Consumer) moveAfterSkip(it *streamItem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p, to := range it.runs {
		p.lsn, p.skip = to, 0
	}
}

// pastUntil reports whether a time is at or after the requested end: reading of the shard then ends. The mutex is held.
func (c *Consumer) pastUntil(q *shardPosition, time int64) bool {
	until := c.cfg.until
	if until.IsZero() || time < until.UnixMicro() {
		return false
	}
	if q.end > q.received { // a bounded iteration waits for nothing more of it
		c.mu.positions.setEnd(q, q.received)
	}
	return true
}
