package consumer

import (
	"context"
	"fmt"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// explainMissing handles a payload whose object does not exist, although its pointer was sent: either retention was faster than
// the fetch, or the object is lost. Logs are trimmed before objects are deleted, so the log's first LSN tells which. It sets the
// item's gap or Err. It is false when the answer is not known yet; it.Err then says why.
func (s *iterationSession) explainMissing(ctx context.Context, it *streamItem, why error) bool {
	first, err := s.firstReadable(ctx, it)
	switch {
	case err != nil:
		if cause := permanentError(err); cause != nil {
			it.Err = &ServerError{Doing: fmt.Sprintf("asking for the readable range of shard %v", it.pos.shard), cause: cause, Detail: err}
			return true
		}
		it.Err = fmt.Errorf("ask whether shard %v was trimmed beyond LSN %d: %w", it.pos.shard, it.LSN, err)
		return false
	case it.LSN < first:
		it.gap, it.Err = s.c.lostPayload(it, GapTrimmed, nil), nil
		return true
	}
	damage := it.place(s.c.category).damageError("object", -1, why)
	damage.Missing = true
	it.Err = damage
	// A store with inconsistent answers may return the object at the next try.
	it.tries++
	return it.tries >= maxTries
}

// firstReadable returns a lower bound of the readable LSNs of an item's shard: records below it were trimmed.
func (s *iterationSession) firstReadable(ctx context.Context, it *streamItem) (record.LSN, error) {
	c := s.c
	c.mu.Lock()
	first := it.pos.trimmed
	c.mu.Unlock()
	if it.LSN < first {
		return first, nil // known from an earlier request
	}
	first, err := s.askFirst(ctx, it)
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	it.pos.trimmed = max(it.pos.trimmed, first)
	return it.pos.trimmed, nil
}

// askFirst asks the read stream service for the first LSN of an item's shard.
func (s *iterationSession) askFirst(ctx context.Context, it *streamItem) (record.LSN, error) {
	res, err := s.c.streams.Bounds(ctx, &scribev1.BoundsRequest{Category: s.c.category, Shards: []uint64{uint64(it.pos.shard)}})
	if err != nil {
		return 0, err
	}
	if n := len(res.GetShards()); n != 1 {
		return 0, fmt.Errorf("%w: the bounds of %d shards instead of one", ErrProtocol, n)
	}
	b := res.GetShards()[0]
	if b.GetSealed() && b.GetNextLsn() <= uint64(it.LSN) {
		return it.LSN + 1, nil // the shard was erased with its category
	}
	return record.LSN(b.GetFirstLsn()), nil
}
