package readstream

import (
	"context"
	"fmt"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// Bounds implements rpc.ReadStreamService.
func (s *Server) Bounds(ctx context.Context, req *scribev1.BoundsRequest) (*scribev1.BoundsResponse, error) {
	if s.evicting.Err() != nil {
		return nil, s.closingError()
	}
	if n := len(req.GetShards()); n == 0 || n > metalog.MaxShards {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "bounds of %d shards: want 1 to %d", n, metalog.MaxShards)
	}
	cat, err := s.findCategory(ctx, req.GetCategory())
	if err != nil {
		return nil, err
	}
	shards := make([]record.ShardID, len(req.GetShards()))
	for i, id := range req.GetShards() {
		if shards[i] = record.ShardID(id); shards[i].Category() != cat.GetId() {
			return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s", foreignPositions(req.GetCategory(), cat.GetId()))
		}
	}
	states, err := s.deps.Log.Tail(ctx, shards)
	if err != nil {
		return nil, s.engineError(ctx, "tail", err)
	}
	res := &scribev1.BoundsResponse{}
	for _, v := range states {
		res.Shards = append(res.Shards, &scribev1.ShardBounds{
			Shard: uint64(v.Shard), FirstLsn: uint64(v.FirstLSN), NextLsn: uint64(v.NextLSN), Sealed: v.Sealed,
		})
	}
	return res, nil
}

// foreignPositions returns the message for positions of another category.
func foreignPositions(category string, id uint32) string {
	return fmt.Sprintf("category %q has the id %d, and these positions are of another one, or of one of that name that was deleted", category, id)
}
