package readproxy

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"scribe/internal/format/pointer"
)

func contains(err error, part string) bool { return strings.Contains(err.Error(), part) }

func testWant(blob byte, off, n uint64) *wantedBlock {
	f := &blockFetch{p: pointer.Pointer{Blob: pointer.BlobID{blob}, BlockOffset: off, BlockLen: uint32(n)}}
	return &wantedBlock{fetch: f, off: off, len: n}
}

// Whatever is wanted: each want is read exactly once, in a span that holds it, the oldest first; and what is read in vain is bounded.
func TestPlanProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gap, most := rapid.Int64Range(0, 500).Draw(t, "gap"), rapid.Int64Range(0, 5000).Draw(t, "most")
		q := newPlan(gap, most)
		var order []*wantedBlock
		read := map[*wantedBlock]int{}
		next := func() {
			s := q.takeSpan()
			var useful, at uint64 = 0, s.off
			for _, w := range s.wants {
				read[w]++
				if blobOf(&w.fetch.p) != s.blob || w.off < s.off || w.end() > s.off+s.len {
					t.Fatalf("a block of %d at %d in a span of %d at %d", w.len, w.off, s.len, s.off)
				}
				if w.off > at && w.off-at > uint64(gap) {
					t.Fatalf("a gap of %d", w.off-at)
				}
				if w.alone && len(s.wants) > 1 {
					t.Fatal("it was to be alone")
				}
				useful += w.len
				at = max(at, w.end())
			}
			if len(s.wants) == 0 || at != s.off+s.len || len(s.wants) > 1 && (s.len > uint64(most) || s.len > useful+useful/wasteShare) {
				t.Fatalf("a span of %d for %d wanted bytes of %d blocks", s.len, useful, len(s.wants))
			}
			for len(order) > 0 && read[order[0]] > 0 {
				order = order[1:]
			}
			oldest := false
			for _, w := range s.wants {
				oldest = oldest || len(order) == 0 || w != order[0]
			}
			if !oldest {
				t.Fatal("the oldest was passed over")
			}
		}
		wants := 0
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			if !q.isEmpty() && rapid.IntRange(0, 3).Draw(t, "read") == 0 {
				first := q.order[0]
				next()
				if read[first] != 1 {
					t.Fatal("the oldest was passed over")
				}
				continue
			}
			w := testWant(byte(rapid.IntRange(0, 2).Draw(t, "blob")), rapid.Uint64Range(0, 10_000).Draw(t, "off"), rapid.Uint64Range(1, 1000).Draw(t, "len"))
			w.alone = rapid.IntRange(0, 9).Draw(t, "alone") == 0
			q.addBlock(w)
			order = append(order, w)
			wants++
		}
		for !q.isEmpty() {
			next()
		}
		if len(read) != wants || len(q.blobs) != 0 {
			t.Fatalf("%d of %d were read, %d blobs are left", len(read), wants, len(q.blobs))
		}
		for _, n := range read {
			if n != 1 {
				t.Fatalf("one was read %d times", n)
			}
		}
	})
}

func TestPlanTakesNeighbours(t *testing.T) {
	q := newPlan(100, 10_000)
	far, left, first, right := testWant(1, 9000, 400), testWant(1, 500, 400), testWant(1, 1000, 400), testWant(1, 1400, 400)
	for _, w := range []*wantedBlock{first, testWant(2, 1400, 400), right, far, left} {
		q.addBlock(w)
	}
	if s := q.takeSpan(); s.off != 500 || s.len != 1300 || len(s.wants) != 3 {
		t.Errorf("%d bytes at %d with %d blocks", s.len, s.off, len(s.wants))
	}
	if s := q.takeSpan(); s.off != 1400 || len(s.wants) != 1 || s.blob.blob[0] != 2 {
		t.Errorf("%+v", s)
	}
	if s := q.takeSpan(); s.off != 9000 || !q.isEmpty() {
		t.Errorf("%+v", s)
	}
}
