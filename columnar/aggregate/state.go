package aggregate

import (
	"bytes"
	"math"
	"math/bits"

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
	// mergeState adds the groups of a state of the same kind; to[i] is the number here of o's group i.
	mergeState(o aggregateState, to []uint32)
	heldBytes() int64
}

// extendTo returns s with n elements, the new ones zero.
func extendTo[T any](s []T, n int) []T {
	if n <= len(s) {
		return s
	}
	if n <= cap(s) {
		old := len(s)
		s = s[:n]
		clear(s[old:])
		return s
	}
	grown := make([]T, n, max(n+n/2, 16))
	copy(grown, s)
	return grown
}

// countState counts rows.
type countState struct{ n []int64 }

func (s *countState) growTo(n int) { s.n = extendTo(s.n, n) }

func (s *countState) addRows(groups []uint32, _ *columnValues) {
	for _, g := range groups {
		s.n[g]++
	}
}

func (s *countState) mergeState(o aggregateState, to []uint32) {
	for i, n := range o.(*countState).n {
		s.n[to[i]] += n
	}
}

func (s *countState) heldBytes() int64 { return 8 * int64(cap(s.n)) }

// sumState adds integers and decimals in 192 bits, which 2^64 numbers of 128 bits can't overflow.
type sumState struct {
	countState
	lo, mid, hi []uint64
	unsigned    bool // words are uint64
}

func (s *sumState) growTo(n int) {
	s.countState.growTo(n)
	s.lo, s.mid, s.hi = extendTo(s.lo, n), extendTo(s.mid, n), extendTo(s.hi, n)
}

func (s *sumState) addRows(groups []uint32, v *columnValues) {
	s.countState.addRows(groups, v)
	switch {
	case v.class == wide:
		for i, g := range groups {
			s.addToSum(g, v.lo[i], v.hi[i], uint64(int64(v.hi[i])>>63))
		}
	case s.unsigned:
		for i, g := range groups {
			s.addToSum(g, v.lo[i], 0, 0)
		}
	default:
		for i, g := range groups {
			sign := uint64(int64(v.lo[i]) >> 63)
			s.addToSum(g, v.lo[i], sign, sign)
		}
	}
}

func (s *sumState) addToSum(g uint32, lo, mid, hi uint64) {
	var carry uint64
	s.lo[g], carry = bits.Add64(s.lo[g], lo, 0)
	s.mid[g], carry = bits.Add64(s.mid[g], mid, carry)
	s.hi[g], _ = bits.Add64(s.hi[g], hi, carry)
}

func (s *sumState) mergeState(o aggregateState, to []uint32) {
	from := o.(*sumState)
	s.countState.mergeState(&from.countState, to)
	for i, g := range to {
		s.addToSum(g, from.lo[i], from.mid[i], from.hi[i])
	}
}

func (s *sumState) heldBytes() int64 {
	return s.countState.heldBytes() + 8*int64(cap(s.lo)+cap(s.mid)+cap(s.hi))
}

// floatState adds float64s.
type floatState struct {
	countState
	sum []float64
	// infinite means that the numbers included an infinity or NaN, so an infinite sum is not an overflow.
	infinite []bool
}

func (s *floatState) growTo(n int) {
	s.countState.growTo(n)
	s.sum, s.infinite = extendTo(s.sum, n), extendTo(s.infinite, n)
}

func (s *floatState) addRows(groups []uint32, v *columnValues) {
	s.countState.addRows(groups, v)
	for i, g := range groups {
		f := math.Float64frombits(v.lo[i])
		s.sum[g] += f
		if f-f != 0 {
			s.infinite[g] = true
		}
	}
}

func (s *floatState) mergeState(o aggregateState, to []uint32) {
	from := o.(*floatState)
	s.countState.mergeState(&from.countState, to)
	for i, g := range to {
		s.sum[g] += from.sum[i]
		s.infinite[g] = s.infinite[g] || from.infinite[i]
	}
}

func (s *floatState) heldBytes() int64 {
	return s.countState.heldBytes() + 8*int64(cap(s.sum)) + int64(cap(s.infinite))
}

// intervalState adds intervals, each part by itself as in PostgreSQL.
type intervalState struct {
	months, days, nanos sumState
}

func (s *intervalState) growTo(n int) {
	s.months.growTo(n)
	s.days.growTo(n)
	s.nanos.growTo(n)
}

func (s *intervalState) addRows(groups []uint32, v *columnValues) {
	s.months.countState.addRows(groups, v)
	for i, g := range groups {
		p := v.spans[i]
		for _, part := range [...]struct {
			sum *sumState
			n   int64
		}{{&s.months, int64(p.Months)}, {&s.days, int64(p.Days)}, {&s.nanos, p.Nanoseconds}} {
			sign := uint64(part.n >> 63)
			part.sum.addToSum(g, uint64(part.n), sign, sign)
		}
	}
}

func (s *intervalState) mergeState(o aggregateState, to []uint32) {
	from := o.(*intervalState)
	s.months.mergeState(&from.months, to)
	s.days.mergeState(&from.days, to)
	s.nanos.mergeState(&from.nanos, to)
}

func (s *intervalState) heldBytes() int64 {
	return s.months.heldBytes() + s.days.heldBytes() + s.nanos.heldBytes()
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

func (s *extremeState) mergeState(o aggregateState, to []uint32) {
	from := o.(*extremeState)
	for i, g := range to {
		switch {
		case !from.seen[i]:
		case s.class == word:
			s.offerWord(g, from.lo[i])
		case s.class == wide:
			var span arrow.MonthDayNanoInterval
			if from.span != nil {
				span = from.span[i]
			}
			s.offerWide(g, from.lo[i], from.hi[i], span)
		default:
			s.offerText(g, from.text[i])
		}
	}
}

func (s *extremeState) heldBytes() int64 {
	return int64(cap(s.seen)) + 8*int64(cap(s.lo)+cap(s.hi)) + 16*int64(cap(s.span)) + 24*int64(cap(s.text)) + s.texts
}

// distinctState estimates the number of distinct values.
type distinctState struct {
	d    []distinctCounter
	held int64
}

func (s *distinctState) growTo(n int) { s.d = extendTo(s.d, n) }

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
		d := &s.d[g]
		before := d.heldBytes()
		d.addHash(h)
		s.held += d.heldBytes() - before
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

func (s *distinctState) mergeState(o aggregateState, to []uint32) {
	from := o.(*distinctState)
	for i, g := range to {
		d := &s.d[g]
		before := d.heldBytes()
		d.mergeFrom(&from.d[i])
		s.held += d.heldBytes() - before
	}
}

func (s *distinctState) heldBytes() int64 { return 64*int64(cap(s.d)) + s.held }

// sketchState estimates quantiles.
type sketchState struct {
	number func(v *columnValues, i int) float64
	s      []quantileSketch
	held   int64
}

func (s *sketchState) growTo(n int) { s.s = extendTo(s.s, n) }

func (s *sketchState) addRows(groups []uint32, v *columnValues) {
	for i, g := range groups {
		k := &s.s[g]
		before := k.heldBytes()
		k.addNumber(s.number(v, i))
		s.held += k.heldBytes() - before
	}
}

func (s *sketchState) mergeState(o aggregateState, to []uint32) {
	from := o.(*sketchState)
	for i, g := range to {
		k := &s.s[g]
		before := k.heldBytes()
		k.mergeFrom(&from.s[i])
		s.held += k.heldBytes() - before
	}
}

func (s *sketchState) heldBytes() int64 { return 128*int64(cap(s.s)) + s.held }
