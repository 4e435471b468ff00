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
	shard := record.ShardID(k.GetShard())
	sh, err := s.shareOfStream()
	if err != nil || s.c.pastUntil(shard, k.GetTime()) {
		return nil, 0, err
	}
	places, pointers, err := sh.receiveSkip(shard, record.LSN(k.GetFrom()), record.LSN(k.GetTo()))
	runs = make(map[*shardPosition]record.LSN, len(places))
	for _, p := range places {
		runs[p] = p.received
	}
	return runs, pointers, err
}

// moveAfterSkip moves positions after pointers that were left out.
func (c *Consumer) moveAfterSkip(it *streamItem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p, to := range it.runs {
		p.lsn, p.skip = to, 0
	}
}

// pastUntil reports whether a time is at or after the requested end, without a group: reading of the shard then ends. The mutex
// is held.
func (c *Consumer) pastUntil(shard record.ShardID, time int64) bool {
	s, until := c.mu.share, c.cfg.until
	if until.IsZero() || time < until.UnixMicro() || !s.alone || s.shards[shard] == nil {
		return false
	}
	s.endShard(shard) // a bounded iteration waits for nothing more of it
	return true
}
