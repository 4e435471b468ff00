package vector

import (
	"math"

	"scribe/columnar/schema"
)

// builder makes a vector of texts, row after row.
type builder struct {
	ev   *eval
	ends []int32 // one more than rows: ends[i+1] is where row i ends
	data []byte
	next int // row whose end is not set
	told int // bytes of data that the scratch was told of
}

func (ev *eval) builder() *builder {
	b := &builder{ev: ev, ends: take[int32](ev.scratch, ev.rows+1)}
	b.ends[0] = 0
	return b
}

// fits reports whether so many bytes more can be appended. If not the evaluation has failed.
func (b *builder) fits(n int) bool {
	if n > math.MaxInt32-len(b.data) {
		b.ev.fail()
		return false
	}
	if over := len(b.data) + n - b.told; over > 0 {
		// In steps, so that the accounting costs nothing.
		step := max(over, 1<<16)
		if !b.ev.grow(step) {
			return false
		}
		b.told += step
	}
	return true
}

// row ends a row: what was appended to data since the last one is its text, and rows in between are empty. False ends the evaluation.
func (b *builder) row(i int) bool {
	before := b.ends[b.next]
	for ; b.next < i; b.next++ {
		b.ends[b.next+1] = before
	}
	if len(b.data) > b.told && !b.fits(0) {
		return false
	}
	b.ends[i+1] = int32(len(b.data))
	b.next = i + 1
	return true
}

// into makes the rows those of v.
func (b *builder) into(v *vec) {
	before := b.ends[b.next]
	for ; b.next < b.ev.rows; b.next++ {
		b.ends[b.next+1] = before
	}
	v.begin, v.end, v.data, v.dense = b.ends[:b.ev.rows], b.ends[1:], b.data, true
}

// textNode makes a text of each row's values.
type textNode struct {
	t    *schema.Type
	args []node
	// strict: rows with a null argument are null. Otherwise add is called for every row that is selected.
	strict bool
	// add appends row i's text. A row that failed is null. It must ask fits before it appends more than a few times what it was given.
	add func(b *builder, args []*vec, i int) bool
}

func (n *textNode) eval(ev *eval, sel bitmap) *vec {
	args := ev.args(sel, n.args...)
	out := &vec{kind: n.t.Kind, rows: ev.rows}
	live := sel
	if n.strict {
		out.valid, live = ev.valid(args...), ev.live(sel, args...)
	}
	b := ev.builder()
	var bad bitmap
	for i := range each(live, ev.rows) {
		before := len(b.data)
		if !n.add(b, args, i) {
			b.data = b.data[:before]
			if bad == nil {
				bad = ev.zeros(ev.rows)
			}
			bad.set(i)
		}
		if !b.row(i) {
			break
		}
	}
	b.into(out)
	return ev.failing(out, bad, sel)
}
