package aggregate

import (
	"bytes"
	"math"
	"math/bits"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/cespare/xxhash/v2"

	"scribe/columnar/schema"
)

// state is what one aggregate keeps of every group.
type state interface {
	// grow makes room for n groups.
	grow(n int)
	// add takes rows, all valid, with the groups that they are in.
	add(groups []uint32, v *values)
	// merge takes the groups of a state of the same kind; to[i] is what o's group i is here.
	merge(o state, to []uint32)
	bytes() int64
}

// extended returns s with n elements, the new ones zero.
func extended[T any](s []T, n int) []T {
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

// counts counts rows.
type counts struct{ n []int64 }

func (s *counts) grow(n int) { s.n = extended(s.n, n) }

func (s *counts) add(groups []uint32, _ *values) {
	for _, g := range groups {
		s.n[g]++
	}
}

func (s *counts) merge(o state, to []uint32) {
	for i, n := range o.(*counts).n {
		s.n[to[i]] += n
	}
}

func (s *counts) bytes() int64 { return 8 * int64(cap(s.n)) }

// sums adds integers and decimals in 192 bits, which 2^64 numbers of 128 bits do not fill.
type sums struct {
	counts
	lo, mid, hi []uint64
	unsigned    bool // words are uint64
}

func (s *sums) grow(n int) {
	s.counts.grow(n)
	s.lo, s.mid, s.hi = extended(s.lo, n), extended(s.mid, n), extended(s.hi, n)
}

func (s *sums) add(groups []uint32, v *values) {
	s.counts.add(groups, v)
	switch {
	case v.class == wide:
		for i, g := range groups {
			s.plus(g, v.lo[i], v.hi[i], uint64(int64(v.hi[i])>>63))
		}
	case s.unsigned:
		for i, g := range groups {
			s.plus(g, v.lo[i], 0, 0)
		}
	default:
		for i, g := range groups {
			sign := uint64(int64(v.lo[i]) >> 63)
			s.plus(g, v.lo[i], sign, sign)
		}
	}
}

func (s *sums) plus(g uint32, lo, mid, hi uint64) {
	var carry uint64
	s.lo[g], carry = bits.Add64(s.lo[g], lo, 0)
	s.mid[g], carry = bits.Add64(s.mid[g], mid, carry)
	s.hi[g], _ = bits.Add64(s.hi[g], hi, carry)
}

func (s *sums) merge(o state, to []uint32) {
	from := o.(*sums)
	s.counts.merge(&from.counts, to)
	for i, g := range to {
		s.plus(g, from.lo[i], from.mid[i], from.hi[i])
	}
}

func (s *sums) bytes() int64 {
	return s.counts.bytes() + 8*int64(cap(s.lo)+cap(s.mid)+cap(s.hi))
}

// floats adds float64s.
type floats struct {
	counts
	sum []float64
	// infinite says that an infinity or NaN was among the numbers, so that a sum which is infinite has not overflown.
	infinite []bool
}

func (s *floats) grow(n int) {
	s.counts.grow(n)
	s.sum, s.infinite = extended(s.sum, n), extended(s.infinite, n)
}

func (s *floats) add(groups []uint32, v *values) {
	s.counts.add(groups, v)
	for i, g := range groups {
		f := math.Float64frombits(v.lo[i])
		s.sum[g] += f
		if f-f != 0 {
			s.infinite[g] = true
		}
	}
}

func (s *floats) merge(o state, to []uint32) {
	from := o.(*floats)
	s.counts.merge(&from.counts, to)
	for i, g := range to {
		s.sum[g] += from.sum[i]
		s.infinite[g] = s.infinite[g] || from.infinite[i]
	}
}

func (s *floats) bytes() int64 {
	return s.counts.bytes() + 8*int64(cap(s.sum)) + int64(cap(s.infinite))
}

// spans adds intervals, each part for itself as PostgreSQL does.
type spans struct {
	months, days, nanos sums
}

func (s *spans) grow(n int) {
	s.months.grow(n)
	s.days.grow(n)
	s.nanos.grow(n)
}

func (s *spans) add(groups []uint32, v *values) {
	s.months.counts.add(groups, v)
	for i, g := range groups {
		p := v.spans[i]
		for _, part := range [...]struct {
			sum *sums
			n   int64
		}{{&s.months, int64(p.Months)}, {&s.days, int64(p.Days)}, {&s.nanos, p.Nanoseconds}} {
			sign := uint64(part.n >> 63)
			part.sum.plus(g, uint64(part.n), sign, sign)
		}
	}
}

func (s *spans) merge(o state, to []uint32) {
	from := o.(*spans)
	s.months.merge(&from.months, to)
	s.days.merge(&from.days, to)
	s.nanos.merge(&from.nanos, to)
}

func (s *spans) bytes() int64 { return s.months.bytes() + s.days.bytes() + s.nanos.bytes() }

// extremes keeps the smallest or the greatest value.
type extremes struct {
	kind  schema.Kind
	class class
	most  bool
	seen  []bool
	// lo and hi are made so that they order as unsigned numbers do, and complemented for the greatest: the smallest is looked for.
	lo, hi []uint64
	span   []arrow.MonthDayNanoInterval
	text   [][]byte
	texts  int64 // capacity of all texts
}

func (s *extremes) grow(n int) {
	s.seen = extended(s.seen, n)
	switch s.class {
	case word:
		s.lo = extended(s.lo, n)
	case wide:
		s.lo, s.hi = extended(s.lo, n), extended(s.hi, n)
		if s.kind == schema.Interval {
			s.span = extended(s.span, n)
		}
	case text:
		s.text = extended(s.text, n)
	}
}

func (s *extremes) add(groups []uint32, v *values) {
	switch s.class {
	case word:
		for i, g := range groups {
			s.word(g, s.order(v.lo[i]))
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
			s.wide(g, lo, hi, span)
		}
	case text:
		for i, g := range groups {
			s.string(g, v.text[i])
		}
	}
}

func (s *extremes) word(g uint32, x uint64) {
	if !s.seen[g] || x < s.lo[g] {
		s.seen[g], s.lo[g] = true, x
	}
}

func (s *extremes) wide(g uint32, lo, hi uint64, span arrow.MonthDayNanoInterval) {
	if !s.seen[g] || hi < s.hi[g] || hi == s.hi[g] && lo < s.lo[g] {
		s.seen[g], s.lo[g], s.hi[g] = true, lo, hi
		if s.span != nil {
			s.span[g] = span
		}
	}
}

func (s *extremes) string(g uint32, b []byte) {
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

// order makes a word order as unsigned numbers do; value undoes it.
func (s *extremes) order(w uint64) uint64 {
	switch s.kind {
	case schema.Uint64, schema.Bool:
	case schema.Float64:
		if w&signBit == 0 { // also NaN, which is above everything
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

func (s *extremes) value(g int) uint64 {
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

func (s *extremes) merge(o state, to []uint32) {
	from := o.(*extremes)
	for i, g := range to {
		switch {
		case !from.seen[i]:
		case s.class == word:
			s.word(g, from.lo[i])
		case s.class == wide:
			var span arrow.MonthDayNanoInterval
			if from.span != nil {
				span = from.span[i]
			}
			s.wide(g, from.lo[i], from.hi[i], span)
		default:
			s.string(g, from.text[i])
		}
	}
}

func (s *extremes) bytes() int64 {
	return int64(cap(s.seen)) + 8*int64(cap(s.lo)+cap(s.hi)) + 16*int64(cap(s.span)) + 24*int64(cap(s.text)) + s.texts
}

// distincts estimates the number of different values.
type distincts struct {
	d    []distinct
	held int64
}

func (s *distincts) grow(n int) { s.d = extended(s.d, n) }

// The hash has no secret: one query has one answer.
func (s *distincts) add(groups []uint32, v *values) {
	for i, g := range groups {
		var h uint64
		switch v.class {
		case word:
			h = scramble(v.lo[i])
		case wide:
			h = scramble(scramble(v.lo[i]) ^ v.hi[i])
		case text:
			h = xxhash.Sum64(v.text[i])
		}
		d := &s.d[g]
		before := d.bytes()
		d.add(h)
		s.held += d.bytes() - before
	}
}

// scramble makes a hash of a word: the last steps of MurmurHash3, which lose nothing.
func scramble(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

func (s *distincts) merge(o state, to []uint32) {
	from := o.(*distincts)
	for i, g := range to {
		d := &s.d[g]
		before := d.bytes()
		d.merge(&from.d[i])
		s.held += d.bytes() - before
	}
}

func (s *distincts) bytes() int64 { return 64*int64(cap(s.d)) + s.held }

// sketches estimates quantiles.
type sketches struct {
	number func(v *values, i int) float64
	s      []sketch
	held   int64
}

func (s *sketches) grow(n int) { s.s = extended(s.s, n) }

func (s *sketches) add(groups []uint32, v *values) {
	for i, g := range groups {
		k := &s.s[g]
		before := k.bytes()
		k.add(s.number(v, i))
		s.held += k.bytes() - before
	}
}

func (s *sketches) merge(o state, to []uint32) {
	from := o.(*sketches)
	for i, g := range to {
		k := &s.s[g]
		before := k.bytes()
		k.merge(&from.s[i])
		s.held += k.bytes() - before
	}
}

func (s *sketches) bytes() int64 { return 128*int64(cap(s.s)) + s.held }
