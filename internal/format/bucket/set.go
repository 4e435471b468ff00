package bucket

import (
	"fmt"
	"iter"
	"math/bits"
	"slices"
)

// Set is a set of buckets: a bit each, the lowest bit of the first byte first. The nil Set is empty and can't take members: make
// a set with [NewSet] or [Parse].
type Set []byte

// NewSet returns an empty set for a number of buckets.
func NewSet(buckets uint32) Set { return make(Set, (buckets+7)/8) }

// All returns the set of all of a number of buckets.
func All(buckets uint32) Set {
	s := NewSet(buckets)
	for b := range buckets {
		s.Add(b)
	}
	return s
}

// Parse checks and copies a set from an untrusted source. It may lack zeros at the end, or have additional ones.
func Parse(b []byte, buckets uint32) (Set, error) {
	s := NewSet(buckets)
	copy(s, b)
	for _, x := range b[min(len(s), len(b)):] {
		if x != 0 {
			return nil, fmt.Errorf("a set of %d bytes, for %d buckets", len(b), buckets)
		}
	}
	if rest := buckets % 8; rest != 0 && s[len(s)-1]>>rest != 0 {
		return nil, fmt.Errorf("a bucket beyond the %d that there are", buckets)
	}
	return s, nil
}

// Has reports whether a bucket is in the set.
func (s Set) Has(b uint32) bool { return int(b/8) < len(s) && s[b/8]&(1<<(b%8)) != 0 }

// Add adds a bucket.
func (s Set) Add(b uint32) { s[b/8] |= 1 << (b % 8) }

// Remove removes a bucket.
func (s Set) Remove(b uint32) {
	if int(b/8) < len(s) {
		s[b/8] &^= 1 << (b % 8)
	}
}

// AddAll adds all buckets of another set, which must not have more buckets.
func (s Set) AddAll(o Set) {
	for i, x := range o {
		if x != 0 {
			s[i] |= x
		}
	}
}

// RemoveAll removes all buckets of another set.
func (s Set) RemoveAll(o Set) {
	for i := range min(len(s), len(o)) {
		s[i] &^= o[i]
	}
}

// Clone returns a copy.
func (s Set) Clone() Set { return append(Set(nil), s...) }

// Empty reports whether the set is empty.
func (s Set) Empty() bool {
	return !slices.ContainsFunc(s, func(x byte) bool { return x != 0 })
}

// Len returns the number of buckets in the set.
func (s Set) Len() int {
	n := 0
	for _, x := range s {
		n += bits.OnesCount8(x)
	}
	return n
}

// Each yields the buckets in order.
func (s Set) Each() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for i, x := range s {
			for ; x != 0; x &= x - 1 {
				if !yield(uint32(i)*8 + uint32(bits.TrailingZeros8(x))) {
					return
				}
			}
		}
	}
}

// Slice returns the buckets in order.
func (s Set) Slice() []uint32 { return slices.AppendSeq(make([]uint32, 0, s.Len()), s.Each()) }
