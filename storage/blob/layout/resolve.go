package layout

import (
	"bytes"
	"cmp"
	"slices"

	"scribe/internal/pointer"
	"scribe/internal/record"
)

// Resolve decides which entries, gathered from the footers of all blobs, were committed, and returns them sorted by shard and LSN. It
// is how lost metadata is rebuilt. The given slice is reordered and reused.
//
// A footer says what a writer was going to append; whether it did is not in the blob. Three things can have come in between:
//
//   - The put failed with an unknown outcome and was repeated under another key. Both blobs hold the same entries: the newer one
//     wins, since only its pointers were appended.
//   - The append was refused and the writer went on at the same LSN with another blob. The newer one wins again.
//   - The writer was fenced, with appends on the way. The next writer began, in its higher epoch, at the first LSN that had not been
//     committed. So of every lower epoch, all entries from there on are void.
//
// The pointers that a blob holds for one shard are appended together, so with one entry all of that blob and shard are void.
//
// Entries on the way when the last epoch ended can't be told from committed ones; they come back as committed. Holes are left open: an LSN without an entry was in a blob that
// retention deleted or that was lost.
func Resolve(entries []Entry) []Entry {
	slices.SortFunc(entries, func(a, b Entry) int {
		return cmp.Or(
			cmp.Compare(a.Shard, b.Shard), cmp.Compare(a.LSN, b.LSN), cmp.Compare(a.Epoch, b.Epoch),
			bytes.Compare(a.Pointer.Blob[:], b.Pointer.Blob[:]),
		)
	})
	// A footer that was gathered twice is not two attempts.
	entries = slices.CompactFunc(entries, func(a, b Entry) bool {
		return a.Shard == b.Shard && a.LSN == b.LSN && a.Epoch == b.Epoch && a.Pointer.Blob == b.Pointer.Blob
	})
	// An attempt is voided by what was tried at its LSNs later, whether that was committed or not: a writer goes back only when it
	// knows that it has to. So one pass over all entries is enough.
	void := map[attempt]struct{}{}
	var (
		shard record.ShardID
		epoch uint64 // the highest one at or below this LSN
	)
	for i := range entries {
		e := &entries[i]
		if i == 0 || e.Shard != shard {
			shard, epoch = e.Shard, 0
		}
		epoch = max(epoch, e.Epoch)
		repeated := i+1 < len(entries) && entries[i+1].Shard == e.Shard && entries[i+1].LSN == e.LSN
		if e.Epoch < epoch || repeated {
			void[attempt{shard: e.Shard, blob: e.Pointer.Blob}] = struct{}{}
		}
	}
	return slices.DeleteFunc(entries, func(e Entry) bool {
		_, ok := void[attempt{shard: e.Shard, blob: e.Pointer.Blob}]
		return ok
	})
}

// attempt is what was appended together.
type attempt struct {
	shard record.ShardID
	blob  pointer.BlobID
}
