package vector

import (
	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/value"
)

// inNode looks up values in a set of constants.
type inNode struct {
	a    exprNode
	null bool // one of the constants is null
	// few holds the constants if there are so few that comparing with each is faster. Otherwise find sets the rows of out whose values
	// are in the set. It may omit rows that are not live.
	few  []*columnVec
	find func(out bitmap, a *columnVec, live bitmap)
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
		n.find = newStringSet(set).findTexts
	case schema.Decimal:
		n.find = findKeys(set, func(v decimal128.Num) decimal128.Num { return v })
	case schema.Interval:
		n.find = findKeys(set, intervalLength)
	case schema.Int32, schema.Date:
		n.find = findInts[int32](set)
	case schema.Float64:
		n.find = findFloats(set)
	default:
		n.find = findInts[int64](set)
	}
	return n
}

// findKeys finds values whose keys are among those of the constants.
func findKeys[T fixedValue, K comparable](set []*columnVec, key func(T) K) func(bitmap, *columnVec, bitmap) {
	keys := make(map[K]struct{}, len(set))
	for _, c := range set {
		keys[key(valueAt[T](c, 0))] = struct{}{}
	}
	return func(out bitmap, a *columnVec, _ bitmap) {
		for i, v := range valuesOf[T](a) {
			_, ok := keys[key(v)]
			out[i/64] |= bitOf(ok) << (i & 63)
		}
	}
}

// findInts finds integers. Of unsigned ones it takes the bits.
func findInts[T signedInt](set []*columnVec) func(bitmap, *columnVec, bitmap) {
	keys := make([]uint64, len(set))
	for i, c := range set {
		keys[i] = uint64(int64(valueAt[T](c, 0)))
	}
	words := newWordSet(keys)
	return func(out bitmap, a *columnVec, _ bitmap) {
		for i, v := range valuesOf[T](a) {
			out[i/64] |= bitOf(words.has(uint64(int64(v)))) << (i & 63)
		}
	}
}

func findFloats(set []*columnVec) func(bitmap, *columnVec, bitmap) {
	keys := make([]uint64, len(set))
	for i, c := range set {
		keys[i] = value.FloatBits(valueAt[float64](c, 0))
	}
	words := newWordSet(keys)
	return func(out bitmap, a *columnVec, _ bitmap) {
		for i, v := range valuesOf[float64](a) {
			out[i/64] |= bitOf(words.has(value.FloatBits(v))) << (i & 63)
		}
	}
}

func (n *inNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	a := ev.evalArgs(sel, n.a)[0]
	out := &columnVec{kind: schema.Bool, rows: ev.rows, valid: a.valid, bits: ev.zeros(ev.rows)}
	if n.find != nil {
		n.find(out.bits, a, ev.liveRows(sel, a))
	}
	for _, c := range n.few {
		if c.kind == schema.Bool {
			c = constantNode{c}.evalRows(ev, nil)
		}
		out.bits.or(ev.compareRows(expr.Equal, a, c, sel))
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

func newWordSet(keys []uint64) *wordSet {
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
		s.addWord(k)
	}
	return s
}

func hashWord(k uint64) uint64 {
	k ^= k >> 32
	return k * 0x9e3779b97f4a7c15
}

func (s *wordSet) addWord(k uint64) {
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

func (s *stringSet) findTexts(out bitmap, a *columnVec, live bitmap) {
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
