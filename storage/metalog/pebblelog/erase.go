package pebblelog

import (
	"context"
	"fmt"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog/schema"
)

// erasedState is the state of an erased shard: it does not exist, and never will. It stays in the table until the engine closes,
// so that a reader that loaded an earlier state does not put that into the table.
var erasedState = schema.State{First: record.FirstLSN, Next: record.FirstLSN, Sealed: true}

// Erase implements metalog.Log.
func (e *Engine) Erase(ctx context.Context, category uint32) error {
	return e.runOp(ctx, nil, &eraseOp{category: category})
}

type eraseOp struct{ category uint32 }

// stage removes everything under the category's keys. Earlier writes of the batch being built stand before the deletion in the
// batch. Its last writes come after, and must not bring anything back: states of shards whose epoch is 0, and producers.
func (o *eraseOp) stage(c *logCommitter) error {
	if !c.retired.holds(o.category) {
		return fmt.Errorf("%w: category %d was not retired: it can't be erased", metalog.ErrInvalid, o.category)
	}
	found, removed, err := c.eraseShards(o.category)
	if err != nil || !found {
		return err
	}
	for k := range c.producers {
		if k.shard.Category() == o.category {
			delete(c.producers, k)
		}
	}
	for _, k := range c.known.Keys() {
		if k.shard.Category() == o.category {
			c.known.Remove(k)
		}
	}
	kinds := []schema.Kind{schema.KindState, schema.KindRecord, schema.KindProducer, schema.KindAnnotation}
	if removed { // replicas of before there were stubs do not know their kind
		kinds = append(kinds, schema.KindStub)
	}
	for _, kind := range kinds {
		low, high := schema.CategoryBounds(kind, o.category)
		_ = c.batch.DeleteRange(low, high, nil) // a batch without an index fails only when it is closed
	}
	return nil
}

// eraseShards makes the shards of a category such that never will be. found says that there are any, removed that there are removed ones.
func (c *logCommitter) eraseShards(category uint32) (found, removed bool, err error) {
	shards, err := c.categoryShards(category)
	for _, sh := range shards {
		if sh != nil && sh.cur.Epoch != 0 {
			removed = removed || sh.cur.Removed || sh.pub.Removed
			sh.cur = erasedState
			c.markDirty(sh)
		}
	}
	return len(shards) > 0, removed, err
}
