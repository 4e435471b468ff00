package vector

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/value"
)

// inNode looks up values in a set of constants.
type inNode struct {
	a    exprNode
	null bool // one of the constants is null
	// few holds the constants if there are so few that comparing with each is faster. Otherwise one of the sets is used.
	few     []*columnVec
	words   *wordSet // integers, floats and times, as 64 bits
	strings *stringSet
	decs    map[decimal128.Num]struct{}
	ivs     map[value.Interval]struct{}
}

// fewConstants is the number of constants up to which they are compared one by one.
const fewConstants = 3

func newInNode(a exprNode, constants []*columnVec) *inNode {
	n := &inNode{a: a}
	var set []*columnVec
	for _, c := range constants {
		if c.isNullConstant() {
			n.null = true
			continue
		}
		set = append(set, c)
	}
	if len(set) <= fewConstants || set[0].kind == schema.Bool {
		n.few = set
		return n
	}
	switch set[0].kind {
	case schema.String, schema.Binary:
		n.strings = newStringSet(set)
	case schema.Decimal:
		n.decs = map[decimal128.Num]struct{}{}
		for _, c := range set {
			n.decs[c.dec[0]] = struct{}{}
		}
	case schema.Interval:
		n.ivs = map[value.Interval]struct{}{}
		for _, c := range set {
			n.ivs[canonicalInterval(c.iv[0])] = struct{}{}
		}
	default:
		n.words = newWordSet(set)
	}
	return n
}

// canonicalInterval returns the same value for equal intervals.
func canonicalInterval(v arrow.MonthDayNanoInterval) value.Interval {
	i := value.IntervalOf(v)
	i.Days += i.Months*30 + i.Micros/value.Day
	i.Months, i.Micros = 0, i.Micros%value.Day
	if i.Micros < 0 {
		i.Days, i.Micros = i.Days-1, i.Micros+value.Day
	}
	return i
}

func (n *inNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	a := ev.evalArgs(sel, n.a)[0]
	out := &columnVec{kind: schema.Bool, rows: ev.rows, valid: a.valid, bits: ev.zeros(ev.rows)}
	switch {
	case n.few != nil:
		for _, c := range n.few {
			if c.kind == schema.Bool {
				c = constantNode{c}.evalRows(ev, nil)
			}
			out.bits.or(ev.compareRows(expr.Equal, a, c, sel))
		}
	case n.strings != nil:
		n.strings.find(out.bits, a, ev.liveRows(sel, a))
	case n.decs != nil:
		for i, v := range a.dec {
			_, ok := n.decs[v]
			out.bits[i/64] |= bitOf(ok) << (i & 63)
		}
	case n.ivs != nil:
		for i, v := range a.iv {
			_, ok := n.ivs[canonicalInterval(v)]
			out.bits[i/64] |= bitOf(ok) << (i & 63)
		}
	case n.words != nil:
		n.words.find(out.bits, a)
	}
	if n.null {
		// A value that is not in the set may equal the null.
		out.valid = ev.liveRows(out.bits, a)
	}
	return out
}

// wordSet is an open-addressing hash table, at most half full, or a bitmap if the values are close together.
type wordSet struct {
	low   uint64 // lowest value of the bitmap
	near  bitmap
	slots []uint64 // 0 is empty
	shift uint8
	zero  bool
}

// nearValues is the maximum difference between the largest and smallest integer of a set stored as a bitmap.
const nearValues = 4096

func newWordSet(set []*columnVec) *wordSet {
	keys := make([]uint64, len(set))
	for i, c := range set {
		keys[i] = wordOf(c)
	}
	low, high := keys[0], keys[0]
	for _, k := range keys {
		// Compared as signed numbers; only the difference counts, and it wraps.
		if int64(k) < int64(low) {
			low = k
		}
		if int64(k) > int64(high) {
			high = k
		}
	}
	s := &wordSet{low: low}
	if high-low < nearValues {
		s.near = make(bitmap, nearValues/64)
		for _, k := range keys {
			s.near.set(int(k - low))
		}
		return s
	}
	size, shift := 8, uint8(61)
	for size < 2*len(keys) {
		size, shift = size*2, shift-1
	}
	s.slots, s.shift = make([]uint64, size), shift
	for _, k := range keys {
		s.add(k)
	}
	return s
}

// wordOf returns the same 64 bits for equal values.
func wordOf(c *columnVec) uint64 {
	switch c.kind {
	case schema.Int32, schema.Date:
		return uint64(int64(c.i32[0]))
	case schema.Int64, schema.Timestamp:
		return uint64(c.i64[0])
	case schema.Uint64:
		return c.u64[0]
	default:
		return value.FloatBits(c.f64[0])
	}
}

func hashWord(k uint64) uint64 {
	k ^= k >> 32
	return k * 0x9e3779b97f4a7c15
}

func (s *wordSet) add(k uint64) {
	if k == 0 {
		s.zero = true
		return
	}
	mask := uint64(len(s.slots) - 1)
	at := hashWord(k) >> s.shift
	for s.slots[at] != 0 && s.slots[at] != k {
		at = (at + 1) & mask
	}
	s.slots[at] = k
}

func (s *wordSet) has(k uint64) bool {
	if s.near != nil {
		k -= s.low
		return k < nearValues && s.near[k/64]>>(k%64)&1 != 0
	}
	if k == 0 {
		return s.zero
	}
	mask := uint64(len(s.slots) - 1)
	for at := hashWord(k) >> s.shift; ; at = (at + 1) & mask {
		switch s.slots[at&mask] {
		case k:
			return true
		case 0:
			return false
		}
	}
}

func (s *wordSet) find(out bitmap, a *columnVec) {
	switch a.kind {
	case schema.Int32, schema.Date:
		for i, v := range a.i32 {
			out[i/64] |= bitOf(s.has(uint64(int64(v)))) << (i & 63)
		}
	case schema.Int64, schema.Timestamp:
		for i, v := range a.i64 {
			out[i/64] |= bitOf(s.has(uint64(v))) << (i & 63)
		}
	case schema.Uint64:
		for i, v := range a.u64 {
			out[i/64] |= bitOf(s.has(v)) << (i & 63)
		}
	default:
		for i, v := range a.f64 {
			out[i/64] |= bitOf(s.has(value.FloatBits(v))) << (i & 63)
		}
	}
}

// stringSet excludes texts by length and last byte before it looks them up.
type stringSet struct {
	lengths uint64 // bit min(length, 63)
	last    [4]uint64
	set     map[string]struct{}
}

func newStringSet(set []*columnVec) *stringSet {
	s := &stringSet{set: make(map[string]struct{}, len(set))}
	for _, c := range set {
		text := c.str(0)
		s.lengths |= 1 << min(len(text), 63)
		if len(text) > 0 {
			last := text[len(text)-1]
			s.last[last/64] |= 1 << (last % 64)
		}
		s.set[string(text)] = struct{}{}
	}
	return s
}

func (s *stringSet) find(out bitmap, a *columnVec, live bitmap) {
	for i := range eachRow(live, a.rows) {
		text := a.str(i)
		if s.lengths>>min(len(text), 63)&1 == 0 {
			continue
		}
		if len(text) > 0 {
			if last := text[len(text)-1]; s.last[last/64]>>(last%64)&1 == 0 {
				continue
			}
		}
		if _, ok := s.set[string(text)]; ok {
			out.set(i)
		}
	}
}
