package vector

import (
	"math"

	"scribe/columnar/schema"
)

// textBuilder builds a vector of texts, row by row.
type textBuilder struct {
	ev   *programRun
	ends []int32 // one entry more than rows: ends[i+1] is the end of row i
	data []byte
	next int // the next row whose end is not set
	told int // bytes of data reported to the scratch
}

// buildTexts sets the texts of out to what add appends for each row of live. It returns the rows for which add returns false; they
// have no text.
func (ev *programRun) buildTexts(out *columnVec, live bitmap, add func(b *textBuilder, i int) bool) (bad bitmap) {
	b := &textBuilder{ev: ev, ends: takeValues[int32](ev.scratchMemory, ev.rows+1)}
	b.ends[0] = 0
	for i := range eachRow(live, ev.rows) {
		before := len(b.data)
		if !add(b, i) {
			b.data = b.data[:before]
			bad = ev.markRow(bad, i)
		}
		if !b.endRow(i) {
			break
		}
	}
	b.skipTo(ev.rows)
	out.begin, out.end, out.data, out.dense = b.ends[:ev.rows], b.ends[1:], b.data, true
	return bad
}

// fitsBytes reports whether n more bytes can be appended. If not, the evaluation has failed.
func (b *textBuilder) fitsBytes(n int) bool {
	if n > math.MaxInt32-len(b.data) {
		b.ev.failTooLarge()
		return false
	}
	if over := len(b.data) + n - b.told; over > 0 {
		// Reserve in large steps, so that accounting costs nothing.
		step := max(over, 1<<16)
		if !b.ev.reserveBytes(step) {
			return false
		}
		b.told += step
	}
	return true
}

// endRow ends a row. Its text is what was appended to data since the previous row; skipped rows are empty. If it returns false,
// the evaluation must end.
func (b *textBuilder) endRow(i int) bool {
	b.skipTo(i)
	if len(b.data) > b.told && !b.fitsBytes(0) {
		return false
	}
	b.ends[i+1] = int32(len(b.data))
	b.next = i + 1
	return true
}

// skipTo makes the rows before i that have no end empty.
func (b *textBuilder) skipTo(i int) {
	before := b.ends[b.next]
	for ; b.next < i; b.next++ {
		b.ends[b.next+1] = before
	}
}

// textNode makes a text from each row's values.
type textNode struct {
	t    *schema.Type
	args []exprNode
	// strict means that rows with a null argument are null. Otherwise add is called for every selected row.
	strict bool
	// add appends row i's text. If it returns false, the row is null. It must call fitsBytes before it appends more than a few times
	// the size of its input.
	add func(b *textBuilder, args []*columnVec, i int) bool
}

func (n *textNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	args := ev.evalArgs(sel, n.args...)
	out := &columnVec{kind: n.t.Kind, rows: ev.rows}
	live := sel
	if n.strict {
		out.valid, live = ev.validRows(args...), ev.liveRows(sel, args...)
	}
	bad := ev.buildTexts(out, live, func(b *textBuilder, i int) bool { return n.add(b, args, i) })
	return ev.failRows(out, bad, sel)
}
