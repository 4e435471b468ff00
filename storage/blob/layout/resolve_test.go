package layout_test

import (
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"scribe/internal/pointer"
	"scribe/internal/record"
	"scribe/storage/blob/layout"
)

// at is an entry of the n-th blob.
func at(shard record.ShardID, epoch uint64, lsn record.LSN, blob int) layout.Entry {
	return layout.Entry{Shard: shard, Epoch: epoch, LSN: lsn, Pointer: pointer.Pointer{Blob: blobID(blob)}}
}

func TestResolve(t *testing.T) {
	for name, test := range map[string]struct{ entries, want []layout.Entry }{
		"nothing": {},
		"in order": {
			[]layout.Entry{at(web, 1, 2, 1), at(orders, 5, 1, 1), at(web, 1, 1, 0)},
			[]layout.Entry{at(orders, 5, 1, 1), at(web, 1, 1, 0), at(web, 1, 2, 1)},
		},
		"a put that was repeated": {
			[]layout.Entry{at(web, 1, 1, 0), at(web, 1, 2, 0), at(web, 1, 1, 1), at(web, 1, 2, 1)},
			[]layout.Entry{at(web, 1, 1, 1), at(web, 1, 2, 1)},
		},
		"an append that was refused": {
			// Blob 0 held LSN 1 and 2; after the refusal there was only one payload left.
			[]layout.Entry{at(web, 1, 1, 0), at(web, 1, 2, 0), at(web, 1, 1, 1)},
			[]layout.Entry{at(web, 1, 1, 1)},
		},
		"a writer that was fenced": {
			[]layout.Entry{at(web, 1, 1, 0), at(web, 1, 2, 1), at(web, 1, 3, 2), at(web, 1, 4, 3), at(web, 2, 2, 4), at(web, 2, 3, 5)},
			[]layout.Entry{at(web, 1, 1, 0), at(web, 2, 2, 4), at(web, 2, 3, 5)},
		},
		"a hole": {
			[]layout.Entry{at(web, 1, 7, 0), at(web, 2, 9, 1)},
			[]layout.Entry{at(web, 1, 7, 0), at(web, 2, 9, 1)},
		},
		"the same footer twice": {
			[]layout.Entry{at(web, 1, 1, 0), at(web, 1, 1, 0), at(web, 1, 2, 0), at(web, 1, 2, 0)},
			[]layout.Entry{at(web, 1, 1, 0), at(web, 1, 2, 0)},
		},
	} {
		if got := layout.Resolve(test.entries); len(got) != len(test.want) || len(got) > 0 && !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, test.want)
		}
	}
}

// TestResolveHistory runs writers that fail in every way they may, and compares what the blobs tell with what was committed.
func TestResolveHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var (
			committed, all []layout.Entry
			next           record.LSN = 1
			blobs          int
		)
		// put makes a blob of count entries from LSN on.
		put := func(epoch uint64, lsn record.LSN, count int) []layout.Entry {
			var out []layout.Entry
			for i := range count {
				out = append(out, at(web, epoch, lsn+record.LSN(i), blobs))
			}
			blobs++
			all = append(all, out...)
			return out
		}
		for epoch := range uint64(rapid.IntRange(1, 4).Draw(t, "writers")) {
			epoch++
			for i := range rapid.IntRange(1, 5).Draw(t, "flushes") {
				for range rapid.IntRange(0, 2).Draw(t, "failures") {
					put(epoch, next, rapid.IntRange(1, 3).Draw(t, "tried"))
				}
				// The first flush of a writer is committed: a writer that commits nothing leaves no trace that fences.
				if i == 0 || rapid.Bool().Draw(t, "commits") {
					done := put(epoch, next, rapid.IntRange(1, 3).Draw(t, "count"))
					committed = append(committed, done...)
					next += record.LSN(len(done))
				}
			}
			// What the writer had on the way when it was fenced, unless it is the last one.
			if epoch < 4 {
				lsn := next
				for range rapid.IntRange(0, 3).Draw(t, "on the way") {
					lsn += record.LSN(len(put(epoch, lsn, 1)))
				}
			}
		}
		put(9, next, 1) // the last writer, which committed something
		committed = append(committed, all[len(all)-1])

		shuffled := rapid.Permutation(slices.Clone(all)).Draw(t, "order")
		got := layout.Resolve(shuffled)
		if !reflect.DeepEqual(got, committed) {
			t.Fatalf("of %+v\n got %+v\nwant %+v", all, got, committed)
		}
	})
}
