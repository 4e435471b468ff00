package pebblelog

import (
	"cmp"
	"context"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// Open implements metalog.Log.
func (e *Engine) Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error) {
	o := &openOp{shards: shards, out: make([]metalog.State, len(shards))}
	if err := e.runOp(ctx, metalog.ValidateOpen(owner, shards), o); err != nil {
		return nil, err
	}
	e.opts.Logger.DebugContext(ctx, "shards opened", "owner", owner, "shards", len(shards), "first", shards[0].String(), "epoch", o.out[0].Epoch)
	return o.out, nil
}

// Append implements metalog.Log.
func (e *Engine) Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error) {
	o := &appendOp{a: a, out: make([]metalog.Appended, len(a.Shards)), shards: make([]*shardEntry, len(a.Shards))}
	err := e.runOp(ctx, cmp.Or(a.Validate(), e.checkEntry(o)), o)
	e.metrics.append(a, err)
	if err != nil {
		return nil, err
	}
	return o.out, nil
}

// Trim implements metalog.Log.
func (e *Engine) Trim(ctx context.Context, shard record.ShardID, before record.LSN) error {
	return e.runOp(ctx, nil, &trimOp{shard: shard, before: before})
}

// Seal implements metalog.Log.
func (e *Engine) Seal(ctx context.Context, shard record.ShardID) (metalog.State, error) {
	o := &sealOp{shard: shard}
	err := e.runOp(ctx, nil, o)
	return o.out, err
}

// Retire implements metalog.Log.
func (e *Engine) Retire(ctx context.Context, category uint32) error {
	return e.runOp(ctx, nil, &retireOp{category: category})
}

// Sequences implements metalog.Log.
func (e *Engine) Sequences(ctx context.Context, shard record.ShardID, producers []uint64) ([]metalog.ProducerState, error) {
	if e.replica != nil {
		return e.readSequences(ctx, shard, producers)
	}
	o := &sequencesOp{shard: shard, producers: producers, out: make([]metalog.ProducerState, len(producers))}
	if err := e.runOp(ctx, metalog.ValidateProducers(producers), o); err != nil {
		return nil, err
	}
	return o.out, nil
}

// AdvanceBoundary implements metalog.Log.
func (e *Engine) AdvanceBoundary(ctx context.Context, t int64) (int64, error) {
	if e.replica != nil && t == 0 {
		return e.readBoundary(ctx)
	}
	o := &boundaryOp{time: t} // 0 changes nothing
	err := e.runOp(ctx, nil, o)
	return o.out, err
}
