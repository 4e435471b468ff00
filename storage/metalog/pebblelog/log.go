package pebblelog

import (
	"context"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// Open implements metalog.Log.
func (e *Engine) Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error) {
	if err := e.enter(); err != nil {
		return nil, err
	}
	defer e.leave()
	if err := metalog.ValidateOpen(owner, shards); err != nil {
		return nil, err
	}
	o := &openOp{shards: shards, out: make([]metalog.State, len(shards))}
	if err := e.do(ctx, o); err != nil {
		return nil, err
	}
	e.opts.Logger.DebugContext(ctx, "shards opened", "owner", owner, "shards", len(shards), "first", shards[0].String(), "epoch", o.out[0].Epoch)
	return o.out, nil
}

// Append implements metalog.Log.
func (e *Engine) Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error) {
	if err := e.enter(); err != nil {
		return nil, err
	}
	defer e.leave()
	if err := a.Validate(); err != nil {
		e.metrics.append(a, err)
		return nil, err
	}
	o := &appendOp{a: a, out: make([]metalog.Appended, len(a.Shards)), shards: make([]*shard, len(a.Shards))}
	err := e.do(ctx, o)
	e.metrics.append(a, err)
	if err != nil {
		return nil, err
	}
	return o.out, nil
}

// Trim implements metalog.Log.
func (e *Engine) Trim(ctx context.Context, shard record.ShardID, before record.LSN) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.leave()
	return e.do(ctx, &trimOp{shard: shard, before: before})
}

// Seal implements metalog.Log.
func (e *Engine) Seal(ctx context.Context, shard record.ShardID) (metalog.State, error) {
	if err := e.enter(); err != nil {
		return metalog.State{}, err
	}
	defer e.leave()
	o := &sealOp{shard: shard}
	if err := e.do(ctx, o); err != nil {
		return metalog.State{}, err
	}
	return o.out, nil
}

// Retire implements metalog.Log.
func (e *Engine) Retire(ctx context.Context, category uint32) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.leave()
	return e.do(ctx, &retireOp{category: category})
}

// Sequences implements metalog.Log.
func (e *Engine) Sequences(ctx context.Context, shard record.ShardID, producers []uint64) ([]metalog.ProducerState, error) {
	if err := e.enter(); err != nil {
		return nil, err
	}
	defer e.leave()
	if err := metalog.ValidateProducers(producers); err != nil {
		return nil, err
	}
	o := &sequencesOp{shard: shard, producers: producers, out: make([]metalog.ProducerState, len(producers))}
	if err := e.do(ctx, o); err != nil {
		return nil, err
	}
	return o.out, nil
}

// AdvanceBoundary implements metalog.Log.
func (e *Engine) AdvanceBoundary(ctx context.Context, t int64) (int64, error) {
	if err := e.enter(); err != nil {
		return 0, err
	}
	defer e.leave()
	if t == 0 {
		return e.boundary.Load(), nil
	}
	o := &boundaryOp{time: t}
	if err := e.do(ctx, o); err != nil {
		return 0, err
	}
	return o.out, nil
}
