package retention

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/storage/blob/layout"
	"scribe/storage/metalog"
)

// blobStatus says what is known of a blob whose id is below the boundary.
type blobStatus struct {
	// dead: no pointer refers to it, and none ever will. kind says what it was.
	dead bool
	kind string
	// unknown: a writer's epoch is newer than what the engine has given out, so the engine does not know the blob's history.
	unknown bool
	// gone: it was deleted meanwhile.
	gone bool
	// due is when the last pointer to it will have expired, Unix microseconds; 0 when that can't be said.
	due int64
}

// classifyBlob decides about the blob of a footer, whose id must be below the engine's boundary from before it is called. retention tells how
// long a category's records live, 0 when that is not known.
//
// A place at or behind the log's tail will never get a pointer to this blob, since the engine refuses it. A place before the log's
// beginning had one or not; it is gone. Between them, the record there tells.
func classifyBlob(ctx context.Context, log Log, wait func(context.Context) error, f *layout.Footer, retention func(uint32) time.Duration) (blobStatus, error) {
	states, err := shardStates(ctx, log, wait, f.Entries)
	if err != nil {
		return blobStatus{}, err
	}
	v := blobStatus{kind: kindOrphan}
	var places []*layout.Entry
	for i := range f.Entries {
		e := &f.Entries[i]
		switch st := states[e.Shard]; {
		case st.Epoch == 0 && st.Sealed: // erased with its category
			v.kind = kindExpired
		case e.Epoch > st.Epoch:
			return blobStatus{unknown: true}, nil
		case e.LSN < st.FirstLSN:
			v.kind = kindExpired
		case e.LSN < st.NextLSN:
			places = append(places, e)
		}
	}
	// Those that live longest first: one that is alive is enough, and that one says until when.
	slices.SortStableFunc(places, func(a, b *layout.Entry) int {
		return cmp.Compare(retention(b.Shard.Category()), retention(a.Shard.Category()))
	})
	for _, e := range places {
		if err := wait(ctx); err != nil {
			return blobStatus{}, err
		}
		t, err := readReference(ctx, log, e, f.ID)
		switch {
		case errors.Is(err, metalog.ErrTrimmed):
			v.kind = kindExpired
		case err != nil:
			return blobStatus{}, err
		case t < 0:
		case t == 0:
			return blobStatus{}, nil // alive, as far as anybody can tell
		default:
			return blobStatus{due: t + max(retention(e.Shard.Category()), time.Minute).Microseconds()}, nil
		}
	}
	v.dead = true
	return v, nil
}

// shardStates returns the states of the entries' shards.
func shardStates(ctx context.Context, log Log, wait func(context.Context) error, entries []layout.Entry) (map[record.ShardID]metalog.State, error) {
	var ids []record.ShardID
	out := map[record.ShardID]metalog.State{}
	for i := range entries {
		if _, ok := out[entries[i].Shard]; !ok {
			out[entries[i].Shard] = metalog.State{}
			ids = append(ids, entries[i].Shard)
		}
	}
	for part := range slices.Chunk(ids, metalog.MaxShards) {
		if err := wait(ctx); err != nil {
			return nil, err
		}
		states, err := log.Tail(ctx, part)
		if err != nil {
			return nil, fmt.Errorf("read the tails of a blob's logs: %w", err)
		}
		for _, st := range states {
			out[st.Shard] = st
		}
	}
	return out, nil
}

// readReference reports whether the record at an entry's place is a pointer to the blob: its persisted time if so, -1 if not, and 0 when it is
// there and can't be read.
func readReference(ctx context.Context, log Log, e *layout.Entry, id pointer.BlobID) (int64, error) {
	entries, err := log.Read(ctx, e.Shard, e.LSN, 1, 0)
	switch {
	case errors.Is(err, metalog.ErrCorrupt):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("read the pointer at LSN %d of shard %v: %w", e.LSN, e.Shard, err)
	case len(entries) == 0:
		return -1, nil // the category was erased since its state was read
	}
	p, err := pointer.Decode(entries[0].Data)
	switch {
	case err != nil:
		return 0, nil //nolint:nilerr // it may be one of a newer version
	case p.Blob != id:
		return -1, nil
	}
	return max(entries[0].Time, 1), nil
}
