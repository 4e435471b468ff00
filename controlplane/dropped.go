package controlplane

import (
	"context"

	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// Dropped returns categories that were deleted, by id, with an id above after and at most limit (0 = 10,000) of them: what
// retention still has to remove from the logs and the blobs. Their UpdatedAt is when they were deleted; they have no schema.
func (c *ControlPlane) Dropped(ctx context.Context, after uint32, limit int) ([]*scribev1.Category, error) {
	done, err := c.begin()
	if err != nil {
		return nil, err
	}
	defer done()
	const what = "list deleted categories"
	page, err := c.deps.Store.Range(ctx, kv.Range{Prefix: droppedPrefix, After: droppedKey(after), Limit: limit})
	if err != nil {
		return nil, readError(what, err)
	}
	var cats []*scribev1.Category
	for _, e := range page.Entries {
		cat, err := decodeDropped(e.Key, e.Value)
		if err != nil {
			c.metrics.damaged.Inc()
			return nil, readError(what, err)
		}
		cats = append(cats, cat)
	}
	return cats, nil
}

// Forget removes deleted categories from what Dropped returns, once nothing is left of them. Ids that it does not know are no
// error.
func (c *ControlPlane) Forget(ctx context.Context, ids ...uint32) error {
	done, err := c.begin()
	if err != nil {
		return err
	}
	defer done()
	for len(ids) > 0 {
		var ops []kv.Op
		seen := make(map[uint32]bool, kv.MaxOps)
		for len(ids) > 0 && len(ops) < kv.MaxOps {
			if !seen[ids[0]] {
				seen[ids[0]] = true
				ops = append(ops, kv.Delete(droppedKey(ids[0])))
			}
			ids = ids[1:]
		}
		if _, err := c.deps.Store.Commit(ctx, ops...); err != nil {
			_, err = commitError("forget deleted categories", err)
			return err
		}
	}
	return nil
}
