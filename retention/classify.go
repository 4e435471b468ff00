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

// blobStatus classifies a blob whose id is below the boundary. The zero value is a live blob with unknown expiry.
type blobStatus struct {
	// dead: no pointer refers to it, and none ever will. kind is the reason: kindExpired or kindOrphan.
	dead bool
	kind string
	// unknown: a writer's epoch is newer than the engine's epoch of its log, or the log has moved to or from another engine, so the engine does not
	// know the blob's history.
	unknown bool
	// gone: it was deleted in the meantime.
	gone bool
	// due is when the last pointer to it will have expired, Unix microseconds; 0 when that is unknown.
	due int64
}

// classifyBlob classifies the blob of a footer. The blob's id must be below a boundary that the engine had before the call. retention
// returns a category's retention, 0 when it is not known.
//
// The states must be those of whole logs: of a log that has moved between engines, one engine has a part, and would take what another one
// refers to for an orphan.
//
// A position at or after the log's tail will never get a pointer to this blob: the engine refuses the append. The record at a position
// before the log's first one was trimmed. Between them, the record at the position decides.
func classifyBlob(
	ctx context.Context, log Log, wait func(context.Context) error, f *layout.Footer, retention func(uint32) time.Duration,
) (blobStatus, error) {
	states, err := shardStates(ctx, log, wait, f.Entries)
	if err != nil {
		return blobStatus{}, err
	}
	status := blobStatus{kind: kindOrphan}
	var positions []*layout.Entry
	for i := range f.Entries {
		e := &f.Entries[i]
		switch st := states[e.Shard]; {
		case st.Epoch == 0 && st.Sealed: // erased with its category
			status.kind = kindExpired
		case e.Epoch > st.Epoch, st.MovedTo != "", st.MovedFrom != "": // one engine knows a part of a log that moved
			return blobStatus{unknown: true}, nil
		case e.LSN < st.FirstLSN:
			status.kind = kindExpired
		case e.LSN < st.NextLSN:
			positions = append(positions, e)
		}
	}
	// The longest retention first: one live pointer keeps the blob, and the first live one found gives the latest expiry.
	slices.SortStableFunc(positions, func(a, b *layout.Entry) int {
		return cmp.Compare(retention(b.Shard.Category()), retention(a.Shard.Category()))
	})
	for _, e := range positions {
		if err := wait(ctx); err != nil {
			return blobStatus{}, err
		}
		t, err := readReference(ctx, log, e, f.ID)
		switch {
		case errors.Is(err, metalog.ErrTrimmed):
			status.kind = kindExpired
		case err != nil:
			return blobStatus{}, err
		case t < 0:
		case t == 0:
			return blobStatus{}, nil // its pointer can't be read: treat the blob as live
		default:
			return blobStatus{due: t + max(retention(e.Shard.Category()), time.Minute).Microseconds()}, nil
		}
	}
	status.dead = true
	return status, nil
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

// readReference reads the record at an entry's position. It returns the record's persisted time if it is a pointer to the blob, -1 if it is
// not, and 0 if it can't be read.
func readReference(ctx context.Context, log Log, e *layout.Entry, id pointer.BlobID) (int64, error) {
	entries, err := log.Read(ctx, e.Shard, e.LSN, 1, 0)
	switch {
	case errors.Is(err, metalog.ErrCorrupt):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("read the pointer at LSN %d of shard %v: %w", e.LSN, e.Shard, err)
	case len(entries) == 0:
		return -1, nil // the category was erased after its state was read
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
