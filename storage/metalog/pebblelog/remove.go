package pebblelog

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog/schema"
)

// Remove implements metalog.Log.
func (e *Engine) Remove(ctx context.Context, shards []metalog.Unused) (int, error) {
	o := &removeOp{shards: shards}
	if err := e.runOp(ctx, metalog.ValidateRemove(shards), o); err != nil {
		return 0, err
	}
	if o.removed > 0 {
		e.metrics.removed.Add(float64(o.removed))
		e.opts.Logger.DebugContext(ctx, "empty shards removed", "shards", o.removed, "asked", len(shards), "first", shards[0].Shard.String())
	}
	return o.removed, nil
}

type removeOp struct {
	shards  []metalog.Unused
	removed int
}

func (o *removeOp) stage(c *logCommitter) error {
	producers, err := c.e.db.NewIter(&pebble.IterOptions{LowerBound: []byte{byte(schema.KindProducer)}, UpperBound: []byte{byte(schema.KindProducer) + 1}})
	if err != nil {
		return fmt.Errorf("metalog: remove shards: %w", err)
	}
	found := make([]*shardEntry, 0, len(o.shards))
	for _, u := range o.shards {
		sh, st, lerr := c.e.table.currentState(u.Shard)
		if err = lerr; err != nil {
			break
		}
		if isRemovable(sh, st, u.Epoch) && !c.retired.holds(u.Shard.Category()) && !hasProducers(producers, u.Shard) {
			found = append(found, sh)
		}
	}
	if err = errors.Join(err, producers.Error(), producers.Close()); err != nil {
		return err
	}
	// From here on nothing can be refused.
	for _, sh := range found {
		c.removeShard(sh)
	}
	o.removed = len(found)
	return nil
}

// isRemovable reports whether a shard is listed, has no records, and was not opened since an epoch. What the batch being built changes is in
// use.
func isRemovable(sh *shardEntry, st schema.State, epoch uint64) bool {
	return isListed(st) && !sh.dirty && !st.Sealed && st.First == st.Next && st.Epoch == epoch
}

// hasProducers reports whether anything is known of producers of a shard: later sequences are compared with it. An error is the iterator's.
func hasProducers(it *pebble.Iterator, shard record.ShardID) bool {
	first := schema.AppendProducerKey(nil, shard, 0)
	return it.SeekGE(first) && bytes.HasPrefix(it.Key(), first[:schema.StateKeyLen])
}

// removeShard takes a shard without records off the list of its category. What identifies it stays: the next LSN, so that positions mean
// what they meant; the epoch, raised so that the writer that has the shard open must open it again; the persisted time of the newest record.
func (c *logCommitter) removeShard(sh *shardEntry) {
	if !sh.swept { // no later trim would remove what a crash has left below the first LSN
		c.trims = append(c.trims, trimmedRange{sh: sh, from: sh.cur.First, before: sh.cur.Next})
	}
	sh.cur = sh.cur.WithOrigin() // nothing is below it for who comes later
	sh.cur.Removed = true
	sh.cur.Epoch++
	c.markDirty(sh)
}
