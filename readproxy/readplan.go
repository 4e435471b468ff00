package readproxy

import (
	"cmp"
	"slices"
	"time"

	"scribe/internal/format/pointer"
)

// wantedBlock is a block to be read from a store.
type wantedBlock struct {
	fetch *blockFetch
	off   uint64
	len   uint64
	since time.Time
	// alone: the block is not read together with others.
	alone bool
	taken bool
}

func (w *wantedBlock) end() uint64 { return w.off + w.len }

// blobAt identifies a blob.
type blobAt struct {
	region string
	class  uint32
	blob   pointer.BlobID
}

func blobOf(p *pointer.Pointer) blobAt { return blobAt{p.Region, p.Class, p.Blob} }

// readSpan is one read: a range of a blob with the wanted blocks in it, by offset.
type readSpan struct {
	blob  blobAt
	off   uint64
	len   uint64
	wants []*wantedBlock
}

// readPlan decides which blocks are read together. It has no time and no I/O: the reader asks for the next span when it may start
// a request. So blocks wait for each other only while all permitted requests are running; the blocks of one Fetch are always
// planned together.
//
// A span begins with the block that has waited longest. It then grows to the neighbours in the blob, the nearer one first, while
// the gap to the neighbour is at most gap bytes, the range at most most bytes, and the unneeded bytes at most a quarter of the
// wanted ones.
type readPlan struct {
	gap, most uint64

	order []*wantedBlock // by age; taken ones remain until they are at the front
	blobs map[blobAt][]*wantedBlock
}

func newPlan(gap, most int64) *readPlan {
	return &readPlan{gap: uint64(gap), most: uint64(most), blobs: map[blobAt][]*wantedBlock{}} //nolint:gosec // validated, not negative
}

// wasteShare limits the unneeded bytes of a read to the wanted bytes divided by it.
const wasteShare = 4

func (q *readPlan) addBlock(w *wantedBlock) {
	q.order = append(q.order, w)
	at := blobOf(&w.fetch.p)
	in := q.blobs[at]
	i, _ := slices.BinarySearchFunc(in, w.off, func(other *wantedBlock, off uint64) int { return cmp.Compare(other.off, off) })
	q.blobs[at] = slices.Insert(in, i, w)
}

// isEmpty reports whether no block is wanted.
func (q *readPlan) isEmpty() bool {
	for len(q.order) > 0 && q.order[0].taken {
		q.order[0] = nil
		q.order = q.order[1:]
	}
	return len(q.order) == 0
}

// takeSpan removes the next span from the plan, which must not be empty.
func (q *readPlan) takeSpan() readSpan {
	q.isEmpty() // drops taken blocks from the front
	first := q.order[0]
	at := blobOf(&first.fetch.p)
	in := q.blobs[at]
	lo := slices.Index(in, first)
	hi := lo + 1 // after the last
	off, end, useful := first.off, first.end(), first.len
	try := func(w *wantedBlock) (newOff, newEnd, gap uint64, ok bool) {
		newOff, newEnd = min(off, w.off), max(end, w.end())
		switch {
		case w.off > end:
			gap = w.off - end
		case off > w.end():
			gap = off - w.end()
		}
		ok = !w.alone && gap <= q.gap && newEnd-newOff <= q.most && newEnd-newOff <= (useful+w.len)*(wasteShare+1)/wasteShare
		return newOff, newEnd, gap, ok
	}
	for !first.alone {
		var left, right bool
		var leftGap, rightGap uint64
		if lo > 0 {
			_, _, leftGap, left = try(in[lo-1])
		}
		if hi < len(in) {
			_, _, rightGap, right = try(in[hi])
		}
		var w *wantedBlock
		switch {
		case left && (!right || leftGap < rightGap):
			lo--
			w = in[lo]
		case right:
			w = in[hi]
			hi++
		default:
		}
		if w == nil {
			break
		}
		off, end, _, _ = try(w)
		useful += w.len
	}
	s := readSpan{blob: at, off: off, len: end - off, wants: slices.Clone(in[lo:hi])}
	for _, w := range s.wants {
		w.taken = true
	}
	if in = slices.Delete(in, lo, hi); len(in) == 0 {
		delete(q.blobs, at)
	} else {
		q.blobs[at] = in
	}
	return s
}
