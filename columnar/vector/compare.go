package vector

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/value"
)

// compareNode compares two values of one type. It is true for some of their orders. With distinct it is an equality or inequality
// that treats null as a value.
type compareNode struct {
	orders   expr.Orders
	distinct bool
	a, b     exprNode
}

func (n *compareNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	args := ev.evalArgs(sel, n.a, n.b)
	a, b := args[0], args[1]
	// Only one order is computed: the one that is true, or the one that is not.
	o, negate := n.orders, n.orders&(n.orders-1) != 0
	if negate {
		o = expr.AnyOrder &^ o
	}
	out := &columnVec{kind: schema.Bool, rows: ev.rows, valid: ev.validRows(a, b)}
	if a.isNullConstant() || b.isNullConstant() {
		out.bits = ev.zeros(ev.rows)
	} else {
		out.bits = ev.compareRows(o, a, b, sel)
	}
	if n.distinct && out.valid != nil {
		// Equal means both are not null and equal, or both are null.
		out.bits.and(out.valid)
		either := ev.presentRows(a)
		either.or(ev.presentRows(b))
		either.not(ev.rows)
		out.bits.or(either)
		out.valid = nil
	}
	if negate {
		out.bits.not(ev.rows)
	}
	return out
}

// presentRows returns the rows that are not null, in newly allocated memory.
func (ev *programRun) presentRows(v *columnVec) bitmap {
	switch {
	case v.valid == nil || v.one && v.valid.get(0):
		return ev.ones(ev.rows)
	case v.one:
		return ev.zeros(ev.rows)
	}
	return ev.copyOf(v.valid)
}

// compareRows returns the rows in which a and b have an order. At most one of them is a constant.
func (ev *programRun) compareRows(o expr.Orders, a, b *columnVec, sel bitmap) bitmap {
	if a.one {
		a, b = b, a
		if o != expr.Equal {
			o ^= expr.Less | expr.Greater
		}
	}
	out := ev.bitmap(ev.rows)
	switch a.kind {
	case schema.Int32, schema.Date:
		compareOrdered(out, o, valuesOf[int32](a), valuesOf[int32](b), b.one)
	case schema.Int64, schema.Timestamp:
		compareOrdered(out, o, valuesOf[int64](a), valuesOf[int64](b), b.one)
	case schema.Uint64:
		compareOrdered(out, o, valuesOf[uint64](a), valuesOf[uint64](b), b.one)
	case schema.Float64:
		compareFloats(out, o, valuesOf[float64](a), valuesOf[float64](b), b.one)
	case schema.Bool:
		compareBools(out, o, a.bits, b.bits, ev.rows)
	case schema.String, schema.Binary:
		clear(out)
		compareStrings(out, o, a, b, ev.liveRows(sel, a, b))
	case schema.Decimal:
		compareAny(out, o, valuesOf[decimal128.Num](a), valuesOf[decimal128.Num](b), b.one, decimal128.Num.Cmp)
	case schema.Interval:
		compareAny(out, o, valuesOf[arrow.MonthDayNanoInterval](a), valuesOf[arrow.MonthDayNanoInterval](b), b.one, compareIntervals)
	default:
		clear(out) // all rows are null
	}
	return out
}

// intervalLength returns the same value for equal intervals.
func intervalLength(v arrow.MonthDayNanoInterval) decimal128.Num { return value.IntervalOf(v).Length() }

func compareIntervals(a, b arrow.MonthDayNanoInterval) int {
	return intervalLength(a).Cmp(intervalLength(b))
}

func bitOf(b bool) uint64 {
	// The compiler makes one instruction of this.
	if b {
		return 1
	}
	return 0
}

type orderedInt interface{ int32 | int64 | uint64 }

// compareOrdered compares row by row, or with a constant if one is true.
func compareOrdered[T orderedInt](out bitmap, o expr.Orders, a, b []T, one bool) {
	switch {
	case one && o == expr.Equal:
		equalTo(out, a, b[0])
	case one && o == expr.Less:
		lessThan(out, a, b[0])
	case one && b[0]+1 < b[0]:
		clear(out) // nothing is above the greatest integer
	case one:
		lessThan(out, a, b[0]+1)
		out.not(len(a))
	case o == expr.Equal:
		equalRows(out, a, b)
	case o == expr.Less:
		lessRows(out, a, b)
	default:
		lessRows(out, b, a)
	}
}

// The loops below compute a word of 64 rows at a time, eight of them without a branch.

func equalTo[T orderedInt | float64](out bitmap, a []T, c T) {
	full := len(a) / 64
	for w := range full {
		var word uint64
		p := a[w*64 : w*64+64 : w*64+64]
		for i := 0; i < 64; i += 8 {
			q := p[i : i+8 : i+8]
			word |= (bitOf(q[0] == c) | bitOf(q[1] == c)<<1 | bitOf(q[2] == c)<<2 | bitOf(q[3] == c)<<3 |
				bitOf(q[4] == c)<<4 | bitOf(q[5] == c)<<5 | bitOf(q[6] == c)<<6 | bitOf(q[7] == c)<<7) << (i & 63)
		}
		out[w] = word
	}
	if rest := a[full*64:]; len(rest) > 0 {
		out[full] = 0
		for i, v := range rest {
			out[full] |= bitOf(v == c) << (i & 63)
		}
	}
}

func lessThan[T orderedInt | float64](out bitmap, a []T, c T) {
	full := len(a) / 64
	for w := range full {
		var word uint64
		p := a[w*64 : w*64+64 : w*64+64]
		for i := 0; i < 64; i += 8 {
			q := p[i : i+8 : i+8]
			word |= (bitOf(q[0] < c) | bitOf(q[1] < c)<<1 | bitOf(q[2] < c)<<2 | bitOf(q[3] < c)<<3 |
				bitOf(q[4] < c)<<4 | bitOf(q[5] < c)<<5 | bitOf(q[6] < c)<<6 | bitOf(q[7] < c)<<7) << (i & 63)
		}
		out[w] = word
	}
	if rest := a[full*64:]; len(rest) > 0 {
		out[full] = 0
		for i, v := range rest {
			out[full] |= bitOf(v < c) << (i & 63)
		}
	}
}

func equalRows[T orderedInt](out bitmap, a, b []T) {
	b = b[:len(a)]
	for w := range out {
		p := a[w*64 : min(w*64+64, len(a))]
		q := b[w*64:][:len(p)]
		var word uint64
		for i, v := range p {
			word |= bitOf(v == q[i]) << (i & 63)
		}
		out[w] = word
	}
}

func lessRows[T orderedInt](out bitmap, a, b []T) {
	b = b[:len(a)]
	for w := range out {
		p := a[w*64 : min(w*64+64, len(a))]
		q := b[w*64:][:len(p)]
		var word uint64
		for i, v := range p {
			word |= bitOf(v < q[i]) << (i & 63)
		}
		out[w] = word
	}
}

// compareFloats treats NaN as equal to NaN and above everything else.
func compareFloats(out bitmap, o expr.Orders, a, b []float64, one bool) {
	n := len(a)
	switch {
	case !one:
		compareAny(out, o, a, b, false, value.CompareFloats)
	case math.IsNaN(b[0]):
		equalToNaN(out, a)
		switch o {
		case expr.Less:
			out.not(n)
		case expr.Greater:
			clear(out)
		default:
		}
	case o == expr.Equal:
		equalTo(out, a, b[0])
	case o == expr.Less:
		lessThan(out, a, b[0])
	case math.IsInf(b[0], 1):
		equalToNaN(out, a)
	default:
		// What is not below the next float is above, and so is NaN.
		lessThan(out, a, math.Nextafter(b[0], math.Inf(1)))
		out.not(n)
	}
}

func equalToNaN(out bitmap, a []float64) {
	clear(out)
	for i, v := range a {
		out[i/64] |= bitOf(v != v) << (i & 63)
	}
}

func compareBools(out bitmap, o expr.Orders, a, b bitmap, n int) {
	for i := range out {
		switch o {
		case expr.Equal:
			out[i] = ^(a[i] ^ b[i])
		case expr.Less:
			out[i] = ^a[i] & b[i]
		case expr.Greater:
			out[i] = a[i] &^ b[i]
		default:
		}
	}
	if len(out) > 0 {
		out[len(out)-1] &= tailBits(n)
	}
}

// orderSign returns the result of a function like cmp.Compare for an order.
func orderSign(o expr.Orders) int { return bits.TrailingZeros8(uint8(o)) - 1 }

func compareAny[T fixedValue](out bitmap, o expr.Orders, a, b []T, one bool, cmp func(a, b T) int) {
	clear(out)
	want := orderSign(o)
	at := -1
	if one {
		at = 0
	}
	for i, v := range a {
		out[i/64] |= bitOf(cmp(v, b[i&at]) == want) << (i & 63)
	}
}

// compareStrings sets the rows of live that have the order.
func compareStrings(out bitmap, o expr.Orders, a, b *columnVec, live bitmap) {
	n := a.rows
	if o == expr.Equal {
		if b.one {
			equalToString(out, a, b.str(0), live)
			return
		}
		for i := range eachRow(live, n) {
			if bytes.Equal(a.str(i), b.str(i)) {
				out.set(i)
			}
		}
		return
	}
	want := orderSign(o)
	at := b.indexMask()
	for i := range eachRow(live, n) {
		if bytes.Compare(a.str(i), b.str(i&at)) == want {
			out.set(i)
		}
	}
}

// equalToString sets the rows of live that equal the text.
func equalToString(out bitmap, a *columnVec, c []byte, live bitmap) {
	matchBeginning(out, a, c, live, int32(len(c)))
}

// beginsWith sets the rows of live that begin with the text.
func beginsWith(out bitmap, a *columnVec, c []byte, live bitmap) {
	matchBeginning(out, a, c, live, math.MaxInt32)
}

// matchBeginning sets the rows of live that begin with a text and are at most longest bytes long. It first compares the lengths
// of all rows without a branch. If many rows remain, it also compares the first and last eight bytes without a branch, because a
// branch would be unpredictable.
func matchBeginning(out bitmap, a *columnVec, c []byte, live bitmap, longest int32) {
	head, mask := firstBytes(c)
	least, most := uint32(len(c)), uint32(longest)-uint32(len(c))
	data := a.data
	for w := range out {
		from := w * 64
		begin := a.begin[from:min(from+64, a.rows)]
		end := a.end[from:][:len(begin)]
		var word uint64
		for i, at := range begin {
			word |= bitOf(uint32(end[i]-at)-least <= most) << (i & 63)
		}
		if live != nil {
			word &= live[w]
		}
		if word != 0 && a.dense && int(begin[len(begin)-1])+max(len(c), 8) <= len(data) && bits.OnesCount64(word) > manyLeft {
			word &= sameAt(data, begin, head, mask)
			if len(c) > 8 {
				word &= sameAt(data[len(c)-8:], begin, binary.LittleEndian.Uint64(c[len(c)-8:]), ^uint64(0))
			}
			if len(c) <= 16 {
				out[w] = word
				continue
			}
		}
		for left := word; left != 0; left &= left - 1 {
			i := bits.TrailingZeros64(left)
			at := int(begin[i&63])
			word &^= bitOf(string(data[at:at+len(c)]) != string(c)) << (i & 63)
		}
		out[w] = word
	}
}

// sameAt compares eight bytes of each row.
func sameAt(data []byte, begin []int32, want, mask uint64) (same uint64) {
	for i, at := range begin {
		same |= bitOf((binary.LittleEndian.Uint64(data[uint32(at):])^want)&mask == 0) << (i & 63)
	}
	return same
}

// manyLeft is the number of remaining rows, out of 64, above which comparing them one by one is slower.
const manyLeft = 8

// firstBytes returns the first eight bytes of a text as a number, and the mask of the bits that count.
func firstBytes(c []byte) (head, mask uint64) {
	var first [8]byte
	n := copy(first[:], c)
	return binary.LittleEndian.Uint64(first[:]), ^uint64(0) >> (64 - 8*n)
}
