package pebblelog

import (
	"context"
	"slices"

	"scribe/internal/base/lifecycle"
	"scribe/internal/format/record"
	"scribe/storage/metalog/pebblelog/schema"
)

// categoryWatch collects the new shards of a category for one caller of WatchShards. A shard is created once, and listed again
// seldom, so the memory for a slow caller is about eight bytes for each existing shard.
type categoryWatch struct {
	wake lifecycle.WakeChannel
	// fresh are the shards published since the caller last took it; guarded by table.mu.
	fresh []record.ShardID
}

// addShard requires table.mu.
func (w *categoryWatch) addShard(id record.ShardID) {
	w.fresh = append(w.fresh, id)
	w.wake.WakeUp()
}

// addWatch registers w for the new shards of category.
func (t *shardTable) addWatch(category uint32, w *categoryWatch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.watches == nil {
		t.mu.watches = make(map[uint32][]*categoryWatch)
	}
	t.mu.watches[category] = append(t.mu.watches[category], w)
}

func (t *shardTable) removeWatch(category uint32, w *categoryWatch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.watches[category] = slices.DeleteFunc(t.mu.watches[category], func(x *categoryWatch) bool { return x == w })
	if len(t.mu.watches[category]) == 0 {
		delete(t.mu.watches, category)
	}
}

// takeFresh returns the collected shards.
func (t *shardTable) takeFresh(w *categoryWatch) []record.ShardID {
	t.mu.Lock()
	defer t.mu.Unlock()
	fresh := w.fresh
	w.fresh = nil
	return fresh
}

// existingShards returns the shards among ids that readers may see and, under the same lock, empties the watch: shards created
// before are in the result, later ones will be in the watch.
func (t *shardTable) existingShards(ids []record.ShardID, w *categoryWatch) []record.ShardID {
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := make(map[record.ShardID]struct{}, len(ids))
	var out []record.ShardID
	for _, id := range append(ids, w.fresh...) {
		if _, ok := seen[id]; ok {
			continue
		}
		seen[id] = struct{}{}
		// A shard that is in Pebble but not in the table was not touched since the engine opened.
		if sh := t.mu.shards[id]; sh == nil || isListed(sh.pub) {
			out = append(out, id)
		}
	}
	w.fresh = nil
	slices.Sort(out)
	return out
}

// WatchShards implements metalog.Log.
func (e *Engine) WatchShards(ctx context.Context, category uint32, fn func([]record.ShardID) error) error {
	if err := e.enterCall(); err != nil {
		return err
	}
	defer e.leaveCall()
	e.tryBarrier(ctx)
	w := &categoryWatch{wake: lifecycle.NewWakeChannel()}
	e.table.addWatch(category, w)
	defer e.table.removeWatch(category, w)
	ids, err := e.shardIDs(ctx, category, schema.KindState)
	if err != nil {
		return err
	}
	if err := fn(e.table.existingShards(ids, w)); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-e.leaving():
			return e.closingError()
		case <-e.calls.Draining():
			return e.closingError()
		case <-e.failed:
			return e.failedError()
		case <-w.wake:
			if fresh := e.table.takeFresh(w); len(fresh) > 0 {
				if err := fn(fresh); err != nil {
					return err
				}
			}
		}
	}
}
