package pebblekv

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"scribe/storage/kv"
)

// revisionGap is how far the revision of a restored store is above the one that was read of the other: calls that were under way there may have told
// revisions since.
const revisionGap = 1 << 16

// RestoreFrom fills the folder of cfg, which must be new, with the entries of another store, which takes no transactions any more. Entries keep their revisions,
// and the next one is above all that the other store told. A folder that RestoreFrom did not complete must not be used: remove it, and repeat the call.
func RestoreFrom(ctx context.Context, cfg Config, deps Deps, from kv.Store) (err error) {
	s, err := Open(cfg, deps)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, s.Close()); err != nil {
			err = fmt.Errorf("restore the control store %s: %w", cfg.Dir, err)
		}
	}()
	if s.mu.view.revision != 0 {
		return fmt.Errorf("%w: it has entries", kv.ErrInvalid)
	}
	batch := s.db.NewBatch()
	defer func() { err = errors.Join(err, batch.Close()) }()
	for after, more := "", true; more; {
		page, err := from.Range(ctx, kv.KeyRange{After: after})
		if err != nil {
			return err
		}
		for _, e := range page.Entries {
			after = e.Key
			if err := batch.Set(storedKey(e.Key), appendStored(nil, e.Key, e.Revision, e.Value), nil); err != nil {
				return err
			}
		}
		more = page.More
		revision := page.Revision
		if !more {
			revision += revisionGap
		}
		// The log is in order: what is synced at the end is synced with all before it.
		if err := errors.Join(batch.Set(stateKey, encodeState(revision), nil), batch.Commit(pebble.Sync), s.failedError()); err != nil {
			return err
		}
		if err := batch.Close(); err != nil {
			return err
		}
		batch = s.db.NewBatch()
	}
	return nil
}
