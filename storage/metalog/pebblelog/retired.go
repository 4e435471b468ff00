package pebblelog

import (
	"context"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog/schema"
)

// categorySet is a set of categories as ordered runs of adjacent ids. Categories get their ids one after another and few outlive
// all of their neighbours, so the runs stay few.
type categorySet []categoryRun

// categoryRun is the categories from first to last, inclusive.
type categoryRun struct{ first, last uint32 }

// findRun returns the index of the first run that ends at or after category.
func (r categorySet) findRun(category uint32) int {
	i, _ := slices.BinarySearchFunc(r, category, func(run categoryRun, c uint32) int {
		if run.last < c {
			return -1
		}
		return 1
	})
	return i
}

func (r categorySet) holds(category uint32) bool {
	i := r.findRun(category)
	return i < len(r) && r[i].first <= category
}

// addCategory adds a category, which must not be in the set. It returns the run that now has it, and the following run if that
// was merged into it.
func (r *categorySet) addCategory(category uint32) (now categoryRun, joined *categoryRun) {
	i := r.findRun(category)
	now = categoryRun{first: category, last: category}
	from, to := i, i
	if i > 0 && (*r)[i-1].last == category-1 {
		from, now.first = i-1, (*r)[i-1].first
	}
	if i < len(*r) && category+1 == (*r)[i].first {
		after := (*r)[i]
		to, now.last, joined = i+1, after.last, &after
	}
	*r = slices.Replace(*r, from, to, now)
	return now, joined
}

// loadRetired reads the retired categories of a folder.
func loadRetired(db *pebble.DB) (r categorySet, err error) {
	low, high := schema.RetiredBounds()
	for it, err := range keysBetween(db, low, high, (*pebble.Iterator).Next) {
		var value []byte
		if err == nil {
			value, err = it.ValueAndErr()
		}
		if err != nil {
			return nil, err
		}
		first, last, err := schema.DecodeRetired(it.Key(), value)
		if err == nil && len(r) > 0 && first <= r[len(r)-1].last {
			err = fmt.Errorf("%w: runs of retired categories overlap at %d", schema.ErrCorrupt, first)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: retired categories: %w", metalog.ErrCorrupt, err)
		}
		r = append(r, categoryRun{first, last})
	}
	return r, nil
}

type retireOp struct{ category uint32 }

// stage seals every shard of the category, so that readers see its end.
func (o *retireOp) stage(c *logCommitter) error {
	if c.retired.holds(o.category) {
		return nil
	}
	shards, err := c.categoryShards(o.category)
	if err != nil {
		return err
	}
	for _, sh := range shards {
		if sh != nil && sh.cur.Epoch != 0 && !sh.cur.Sealed {
			sh.cur.Sealed = true
			c.markDirty(sh)
		}
	}
	now, joined := c.retired.addCategory(o.category)
	key := schema.RetiredKey(now.first)
	_ = c.batch.Set(key, schema.AppendRetired(nil, key, now.last), nil) // a batch without an index fails only when it is closed
	if joined != nil {
		_ = c.batch.Delete(schema.RetiredKey(joined.first), nil)
	}
	return nil
}

// categoryShards returns the shards of a category, also removed ones, some of them twice. Those that the batch being built creates are in
// c.dirty, the others in Pebble.
func (c *logCommitter) categoryShards(category uint32) ([]*shardEntry, error) {
	ids, err := c.e.shardIDs(context.Background(), category, schema.KindState)
	if err != nil {
		return nil, err
	}
	stubs, err := c.e.shardIDs(context.Background(), category, schema.KindStub)
	if err != nil {
		return nil, err
	}
	ids = append(ids, stubs...)
	for _, sh := range c.dirty {
		if sh.id.Category() == category {
			ids = append(ids, sh.id)
		}
	}
	return c.e.table.getShards(ids)
}
