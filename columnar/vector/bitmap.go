package vector

import (
	"encoding/binary"
	"iter"
	"math/bits"
)

// bitmap has a bit for each row: bit i%64 of word i/64. Unused bits of the last word are 0.
type bitmap []uint64

// wordsFor returns the number of words in a bitmap of n rows.
func wordsFor(n int) int { return (n + 63) / 64 }

// tailBits returns the mask of the used bits of the last word.
func tailBits(n int) uint64 {
	if n%64 == 0 {
		return ^uint64(0)
	}
	return 1<<(n%64) - 1
}

func (b bitmap) get(i int) bool { return b[i/64]>>(i%64)&1 != 0 }

func (b bitmap) set(i int) { b[i/64] |= 1 << (i % 64) }

func (b bitmap) clear(i int) { b[i/64] &^= 1 << (i % 64) }

func (b bitmap) count() (n int) {
	for _, w := range b {
		n += bits.OnesCount64(w)
	}
	return n
}

func (b bitmap) any() bool {
	for _, w := range b {
		if w != 0 {
			return true
		}
	}
	return false
}

// fill sets the bit of every row.
func (b bitmap) fill(n int) {
	for i := range b {
		b[i] = ^uint64(0)
	}
	if len(b) > 0 {
		b[len(b)-1] = tailBits(n)
	}
}

// and computes b AND o in place.
func (b bitmap) and(o bitmap) {
	o = o[:len(b)]
	for i := range b {
		b[i] &= o[i]
	}
}

// or computes b OR o in place.
func (b bitmap) or(o bitmap) {
	o = o[:len(b)]
	for i := range b {
		b[i] |= o[i]
	}
}

// andNot clears the bits of b that are set in o.
func (b bitmap) andNot(o bitmap) {
	o = o[:len(b)]
	for i := range b {
		b[i] &^= o[i]
	}
}

// not inverts every row's bit.
func (b bitmap) not(n int) {
	for i := range b {
		b[i] = ^b[i]
	}
	if len(b) > 0 {
		b[len(b)-1] &= tailBits(n)
	}
}

// eachRow yields the rows of live, or all of n rows if live is nil.
func eachRow(live bitmap, n int) iter.Seq[int] {
	if live == nil {
		return func(yield func(int) bool) {
			for i := range n {
				if !yield(i) {
					return
				}
			}
		}
	}
	return func(yield func(int) bool) {
		for w, word := range live {
			for ; word != 0; word &= word - 1 {
				if !yield(w*64 + bits.TrailingZeros64(word)) {
					return
				}
			}
		}
	}
}

// load copies n bits of an Arrow bitmap, from bit off on.
func (b bitmap) load(src []byte, off, n int) {
	if n == 0 {
		return
	}
	src = src[off/8:]
	shift := uint(off % 8)
	for w := range b {
		at := w * 8
		var v, above uint64
		if at+9 <= len(src) {
			v, above = binary.LittleEndian.Uint64(src[at:]), uint64(src[at+8])
		} else {
			var last [16]byte
			copy(last[:], src[min(at, len(src)):])
			v, above = binary.LittleEndian.Uint64(last[:]), uint64(last[8])
		}
		if shift != 0 {
			v = v>>shift | above<<(64-shift)
		}
		b[w] = v
	}
	b[len(b)-1] &= tailBits(n)
}

// bytes returns a copy in Arrow's format.
func (b bitmap) bytes() []byte {
	out := make([]byte, 8*len(b))
	for i, w := range b {
		binary.LittleEndian.PutUint64(out[8*i:], w)
	}
	return out
}
