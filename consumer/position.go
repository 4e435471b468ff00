package consumer

import (
	"cmp"
	"fmt"
	"slices"

	"scribe/internal/format/checkpoint"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// shardPositions holds a consumer's position in each physical shard: a plain state machine. The consumer's mutex guards it.
//
// A position has two ends. A checkpoint contains the delivered end; a reopened stream begins at the received end. The queue holds
// what lies between them.
type shardPositions struct {
	shards map[record.ShardID]*shardPosition
	// categoryID is 0 while unknown.
	categoryID uint32
	// opened: the shards' positions are known, from a checkpoint or from the first stream.
	opened bool
	// remaining counts shards whose received position is before their end.
	remaining int
}

// shardPosition is the position in one shard.
type shardPosition struct {
	shard record.ShardID
	// bucket is the bucket that the position belongs to, in a group.
	bucket uint32
	// Delivered: the next message is message skip of the pointer at lsn.
	lsn  record.LSN
	skip uint32
	// received is the LSN of the next pointer expected from the stream.
	received record.LSN
	// trimmed is an LSN below which retention is known to have removed everything; 0 = unknown.
	trimmed record.LSN
	// end is where a bounded iteration stops; 0 in an unbounded iteration, and for shards that joined later.
	end record.LSN
}

// asUndelivered returns a position from which everything undelivered is received again.
func (p *shardPosition) asUndelivered() *shardPosition {
	return &shardPosition{shard: p.shard, bucket: p.bucket, lsn: p.lsn, skip: p.skip, received: p.lsn}
}

func newPositions(from *checkpoint.Checkpoint) *shardPositions {
	p := &shardPositions{shards: make(map[record.ShardID]*shardPosition)}
	if from != nil {
		p.opened, p.categoryID = true, from.CategoryID
		for _, q := range from.Positions {
			p.shards[q.Shard] = &shardPosition{shard: q.Shard, lsn: q.LSN, skip: q.Skip, received: q.LSN}
		}
	}
	return p
}

// rewindToDelivered sets the received ends back to the delivered ones, so that the next stream repeats what was not delivered.
func (p *shardPositions) rewindToDelivered() {
	p.remaining = 0
	for _, q := range p.shards {
		q.received, q.end = q.lsn, 0
	}
}

// setEnd sets the end of a shard in a bounded iteration.
func (p *shardPositions) setEnd(q *shardPosition, end record.LSN) {
	if q.received < q.end {
		p.remaining--
	}
	if q.end = end; q.received < q.end {
		p.remaining++
	}
}

// moveReceived advances a shard's received end.
func (p *shardPositions) moveReceived(q *shardPosition, to record.LSN) {
	if q.received < q.end && to >= q.end {
		p.remaining--
	}
	q.received = to
}

// resumePositions returns the positions to open a stream with; wanted selects the logical shards.
func (p *shardPositions) resumePositions(wanted func(logical uint32) bool) []*scribev1.ShardPosition {
	var out []*scribev1.ShardPosition
	for _, q := range p.shards {
		if wanted(uint32(q.shard.Logical())) {
			r := &scribev1.ShardPosition{Shard: uint64(q.shard), Lsn: uint64(q.received)}
			if q.received == q.lsn {
				r.Skip = q.skip
			}
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *scribev1.ShardPosition) int { return cmp.Compare(a.GetShard(), b.GetShard()) })
	return out
}

// checkCategory compares the category id of a stream with the known one, or adopts it.
func (p *shardPositions) checkCategory(id uint32) error {
	switch {
	case id == 0, id == p.categoryID:
	case p.categoryID == 0:
		p.categoryID = id
	default:
		return fmt.Errorf("%w: the category was deleted and made again since", ErrCheckpoint)
	}
	return nil
}

// joinShard adds a shard that a stream announces. A known shard keeps its position.
func (p *shardPositions) joinShard(s *scribev1.StreamShard) (*shardPosition, error) {
	id, lsn := record.ShardID(s.GetShard()), record.LSN(s.GetLsn())
	if q, ok := p.shards[id]; ok {
		return q, nil
	}
	if lsn < record.FirstLSN {
		return nil, fmt.Errorf("%w: shard %v joins at LSN %d", ErrProtocol, id, lsn)
	}
	if len(p.shards) >= checkpoint.MaxPositions {
		return nil, fmt.Errorf("%w: the category has more than %d physical shards", ErrRefused, checkpoint.MaxPositions)
	}
	q := &shardPosition{shard: id, lsn: lsn, received: lsn}
	p.shards[id] = q
	return q, nil
}

// receiveEntry advances the received end past a pointer. deliver reports whether the pointer is new and wanted. A pointer
// received before is ignored; a hole without a gap event is an error.
func (p *shardPositions) receiveEntry(shard record.ShardID, lsn record.LSN, bounded bool) (q *shardPosition, deliver bool, err error) {
	q, ok := p.shards[shard]
	if !ok {
		return nil, false, fmt.Errorf("%w: an entry of shard %v, which did not join", ErrProtocol, shard)
	}
	switch {
	case lsn < q.received, bounded && q.received >= q.end:
		return q, false, nil
	case lsn > q.received:
		return nil, false, fmt.Errorf("%w: shard %v goes from LSN %d to %d", ErrProtocol, shard, q.received, lsn)
	}
	p.moveReceived(q, lsn+1)
	return q, true, nil
}

// receiveGap advances the received end past a gap [from, to). It returns the first LSN of the gap that is new, and deliver=false
// if none is.
func (p *shardPositions) receiveGap(g *scribev1.StreamGap, bounded bool) (q *shardPosition, from, to record.LSN, deliver bool, err error) {
	shard := record.ShardID(g.GetShard())
	from, to = record.LSN(g.GetFrom()), record.LSN(g.GetTo())
	q, ok := p.shards[shard]
	switch {
	case !ok:
		return nil, 0, 0, false, fmt.Errorf("%w: a gap in shard %v, which did not join", ErrProtocol, shard)
	case bounded && q.received >= q.end:
		return q, from, to, false, nil
	case from > q.received || to < from:
		return nil, 0, 0, false, fmt.Errorf("%w: shard %v goes from LSN %d to a gap of %d to %d", ErrProtocol, shard, q.received, from, to)
	}
	if from = q.received; bounded {
		to = min(to, q.end)
	}
	if to <= from {
		return q, from, to, false, nil
	}
	p.moveReceived(q, to)
	return q, from, to, true, nil
}

// asCheckpoint returns the delivered positions.
func (p *shardPositions) asCheckpoint(category string, watermark int64) checkpoint.Checkpoint {
	c := checkpoint.Checkpoint{Category: category, CategoryID: p.categoryID, Watermark: watermark}
	for _, q := range p.shards {
		c.Positions = append(c.Positions, checkpoint.Position{Shard: q.shard, LSN: q.lsn, Skip: q.skip})
	}
	slices.SortFunc(c.Positions, func(a, b checkpoint.Position) int { return cmp.Compare(a.Shard, b.Shard) })
	return c
}
