package retention

import (
	"context"
	"fmt"
	"slices"
	"time"

	"scribe/internal/format/record"
	"scribe/storage/blob/encryption"
	"scribe/storage/metalog"
)

// keySweeper deletes keys that deleted categories have left: those of categories that a recovery found to be deleted, and those that a batcher made
// again since it had not heard of the deletion. One goroutine owns it.
//
// A category that is not known is no reason: it may be known elsewhere. The metadata engine must say that its id was retired, which is for ever.
type keySweeper struct {
	c *Keeper
	// due is when the keys are listed next; zero = at once.
	due time.Time
}

func newKeySweeper(t *leaseTerm) *keySweeper { return &keySweeper{c: t.c} }

// runRound lists the keys if that is due, and deletes those of retired categories.
func (r *keySweeper) runRound(ctx context.Context) (more bool, err error) {
	if time.Now().Before(r.due) {
		return false, nil
	}
	if err := r.c.waitForStore(ctx, 1); err != nil {
		return false, err
	}
	categories, err := encryption.ListCategories(ctx, r.c.deps.Blobs)
	if err != nil {
		return false, err
	}
	for part := range slices.Chunk(categories, metalog.MaxShards) {
		retired, err := r.findRetired(ctx, part)
		if err != nil {
			return false, err
		}
		for _, id := range retired {
			if err := r.deleteKeys(ctx, id); err != nil {
				return false, err
			}
		}
	}
	r.due = time.Now().Add(r.c.cfg.SweepInterval)
	return false, nil
}

// findRetired returns the categories that exist nowhere and never will again.
func (r *keySweeper) findRetired(ctx context.Context, categories []uint32) (retired []uint32, err error) {
	shards := make([]record.ShardID, len(categories))
	for i, id := range categories {
		shards[i] = record.MakeShardID(id, 0, 0)
	}
	if err := r.c.waitForLog(ctx); err != nil {
		return nil, err
	}
	states, err := r.c.deps.Log.Tail(ctx, shards)
	if err != nil {
		return nil, fmt.Errorf("ask which categories with keys are retired: %w", err)
	}
	for _, st := range states {
		id := st.Shard.Category()
		if _, known := r.c.deps.Categories.ByID(id); !known && st.Epoch == 0 && st.Sealed {
			retired = append(retired, id)
		}
	}
	return retired, nil
}

func (r *keySweeper) deleteKeys(ctx context.Context, category uint32) error {
	if err := r.c.waitForStore(ctx, 2); err != nil {
		return err
	}
	n, err := encryption.DeleteKeys(ctx, r.c.deps.Blobs, category, false)
	r.c.metrics.keys.Add(float64(n))
	if err != nil {
		return fmt.Errorf("delete the keys that deleted category %d has left: %w", category, err)
	}
	if n > 0 {
		r.c.log.InfoContext(ctx, "keys that a deleted category had left were deleted", "category", category, "keys", n)
	}
	return nil
}
