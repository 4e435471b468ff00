package aggregate

import (
	"bytes"
	"math"
	"math/bits"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/cespare/xxhash/v2"

	"scribe/columnar/schema"
)

// aggregateState is the state of one aggregate for all groups.
type aggregateState interface {
	// growTo extends the state to n groups.
	growTo(n int)
	// addRows adds rows, all valid, to their groups.
	addRows(groups []uint32, v *columnValues)
	heldBytes() int64
}

// extendTo returns s with n elements, the new ones zero.
func extendTo[T any](s []T, n int) []T {
	return append(s, make([]T, max(n-len(s), 0))...)
}

// groupStates holds a state for each group.
type groupStates[S any] struct {
	groups []S
	extra  int64 // bytes that the states hold in memory of their own
}

func (s *groupStates[S]) growTo(n int) { s.groups = extendTo(s.groups, n) }

func (s *groupStates[S]) heldBytes() int64 {
	var one S
	return int64(unsafe.Sizeof(one))*int64(cap(s.groups)) + s.extra
}

// countState counts rows.
type countState struct{ groupStates[int64] }

func (s *countState) addRows(groups []uint32, _ *columnValues) {
	for _, g := range groups {
		s.groups[g]++
	}
}

// exactSum is a sum of integers or decimals in 192 bits, which 2^64 numbers of 128 bits can't overflow.
type exactSum struct{ lo, mid, hi uint64 }

func (s *exactSum) addWords(lo, mid, hi uint64) {
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, lo, 0)
	s.mid, carry = bits.Add64(s.mid, mid, carry)
	s.hi, _ = bits.Add64(s.hi, hi, carry)
}

func (s *exactSum) addInt(n int64) {
	sign := uint64(n >> 63)
	s.addWords(uint64(n), sign, sign)
}

// countedSum is a sum with the number of its numbers.
type countedSum struct {
	n int64
	exactSum
}

// sumState adds integers and decimals.
type sumState struct {
	groupStates[countedSum]
	unsigned bool // words are uint64
}

func (s *sumState) addRows(groups []uint32, v *columnValues) {
	for i, g := range groups {
		sum := &s.groups[g]
		sum.n++
		switch {
		case v.class == wide:
			sum.addWords(v.lo[i], v.hi[i], uint64(int64(v.hi[i])>>63))
		case s.unsigned:
			sum.addWords(v.lo[i], 0, 0)
		default:
			sum.addInt(int64(v.lo[i]))
		}
	}
}

// floatSum is a sum of float64s.
type floatSum struct {
	n   int64
	sum float64
	// infinite means that the numbers included an infinity or NaN, so an infinite sum is not an overflow.
	infinite bool
}

// floatState adds float64s.
type floatState struct{ groupStates[floatSum] }

func (s *floatState) addRows(groups []uint32, v *columnValues) {
	for i, g := range groups {
		f, sum := math.Float64frombits(v.lo[i]), &s.groups[g]
		sum.n++
		sum.sum += f
		if f-f != 0 {
			sum.infinite = true
		}
	}
}

// intervalSum is a sum of intervals, each part by itself as in PostgreSQL.
type intervalSum struct {
	n                   int64
	months, days, nanos exactSum
}

// intervalState adds intervals.
type intervalState struct{ groupStates[intervalSum] }

func (s *intervalState) addRows(groups []uint32, v *columnValues) {
	for i, g := range groups {
		p, sum := v.spans[i], &s.groups[g]
		sum.n++
		sum.months.addInt(int64(p.Months))
		sum.days.addInt(int64(p.Days))
		sum.nanos.addInt(p.Nanoseconds)
	}
}

// extremeState keeps the smallest or the greatest value.
type extremeState struct {
	kind  schema.Kind
	class valueClass
	most  bool
	seen  []bool
	// lo and hi are transformed so that they sort as unsigned numbers, and complemented for the greatest: so the smallest is always
	// kept.
	lo, hi []uint64
	span   []arrow.MonthDayNanoInterval
	text   [][]byte
	texts  int64 // capacity of all texts
}

func (s *extremeState) growTo(n int) {
	s.seen = extendTo(s.seen, n)
	switch s.class {
	case word:
		s.lo = extendTo(s.lo, n)
	case wide:
		s.lo, s.hi = extendTo(s.lo, n), extendTo(s.hi, n)
		if s.kind == schema.Interval {
			s.span = extendTo(s.span, n)
		}
	case text:
		s.text = extendTo(s.text, n)
	}
}

func (s *extremeState) addRows(groups []uint32, v *columnValues) {
	switch s.class {
	case word:
		for i, g := range groups {
			s.offerWord(g, s.orderWord(v.lo[i]))
		}
	case wide:
		for i, g := range groups {
			var span arrow.MonthDayNanoInterval
			if len(v.spans) > 0 {
				span = v.spans[i]
			}
			lo, hi := v.lo[i], v.hi[i]^1<<63
			if s.most {
				lo, hi = ^lo, ^hi
			}
			s.offerWide(g, lo, hi, span)
		}
	case text:
		for i, g := range groups {
			s.offerText(g, v.text[i])
		}
	}
}

func (s *extremeState) offerWord(g uint32, x uint64) {
	if !s.seen[g] || x < s.lo[g] {
		s.seen[g], s.lo[g] = true, x
	}
}

func (s *extremeState) offerWide(g uint32, lo, hi uint64, span arrow.MonthDayNanoInterval) {
	if !s.seen[g] || hi < s.hi[g] || hi == s.hi[g] && lo < s.lo[g] {
		s.seen[g], s.lo[g], s.hi[g] = true, lo, hi
		if s.span != nil {
			s.span[g] = span
		}
	}
}

func (s *extremeState) offerText(g uint32, b []byte) {
	if s.seen[g] {
		if c := bytes.Compare(b, s.text[g]); c == 0 || (c > 0) != s.most {
			return
		}
	}
	s.texts -= int64(cap(s.text[g]))
	s.seen[g], s.text[g] = true, append(s.text[g][:0], b...)
	s.texts += int64(cap(s.text[g]))
}

const signBit = 1 << 63

// orderWord transforms a word so that it sorts as an unsigned number does; value undoes it.
func (s *extremeState) orderWord(w uint64) uint64 {
	switch s.kind {
	case schema.Uint64, schema.Bool:
	case schema.Float64:
		if w&signBit == 0 { // includes NaN, which is above everything
			w |= signBit
		} else {
			w = ^w
		}
	default:
		w ^= signBit
	}
	if s.most {
		return ^w
	}
	return w
}

func (s *extremeState) wordValue(g int) uint64 {
	w := s.lo[g]
	if s.most {
		w = ^w
	}
	switch s.kind {
	case schema.Uint64, schema.Bool:
	case schema.Float64:
		if w&signBit != 0 {
			return w ^ signBit
		}
		return ^w
	default:
		w ^= signBit
	}
	return w
}

func (s *extremeState) heldBytes() int64 {
	return int64(cap(s.seen)) + 8*int64(cap(s.lo)+cap(s.hi)) + 16*int64(cap(s.span)) + 24*int64(cap(s.text)) + s.texts
}

// distinctState estimates the number of distinct values.
type distinctState struct{ groupStates[distinctCounter] }

// addRows hashes without a seed, so that a query has one result.
func (s *distinctState) addRows(groups []uint32, v *columnValues) {
	for i, g := range groups {
		var h uint64
		switch v.class {
		case word:
			h = scrambleWord(v.lo[i])
		case wide:
			h = scrambleWord(scrambleWord(v.lo[i]) ^ v.hi[i])
		case text:
			h = xxhash.Sum64(v.text[i])
		}
		d := &s.groups[g]
		before := d.heldBytes()
		d.addHash(h)
		s.extra += d.heldBytes() - before
	}
}

// scrambleWord hashes a word by the final steps of MurmurHash3, which are bijective.
func scrambleWord(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// sketchState estimates quantiles.
type sketchState struct {
	groupStates[quantileSketch]
	number func(v *columnValues, i int) float64
}

func (s *sketchState) addRows(groups []uint32, v *columnValues) {
	for i, g := range groups {
		k := &s.groups[g]
		before := k.heldBytes()
		k.addNumber(s.number(v, i))
		s.extra += k.heldBytes() - before
	}
}
