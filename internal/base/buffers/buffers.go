// Package buffers pools byte buffers of all sizes, for roles that keep bytes for a while and account for them by length. At most
// a fifth of a buffer is unused. A reused buffer is warm in the caches and need not be cleared.
package buffers

import (
	"math/bits"
	"sync"
)

// Buffer is memory from a pool.
type Buffer struct {
	// B has the requested length, and may have more capacity. It may be resliced, but not replaced.
	B     []byte
	class int
}

// Size classes: four for each doubling.
const (
	minBits = 10 // 1 KiB
	maxBits = 27 // 128 MiB
	classes = 4*(maxBits-minBits) + 1
)

// Pool is a pool of buffers. The zero Pool is ready, and safe for concurrent use. The garbage collector frees unused buffers.
type Pool struct {
	classes [classes]sync.Pool
}

// classOf returns the class of the smallest buffers with n bytes.
func classOf(n int) int {
	if n <= 1<<minBits {
		return 0
	}
	// n-1 has the bits 1xx in front; the class is that of the next multiple of a quarter of its power of two.
	top := bits.Len(uint(n-1)) - 1
	quarter := (n - 1) >> (top - 2) & 3
	return 4*(top-minBits) + quarter + 1
}

// sizeOf is the length of the buffers of a class.
func sizeOf(class int) int {
	return (4 + class%4) << (class/4 + minBits - 2)
}

// Get returns a buffer of n bytes, whose content is arbitrary. Buffers above 128 MiB are not pooled.
func (p *Pool) Get(n int) *Buffer {
	class := classOf(n)
	if class >= classes {
		return &Buffer{B: make([]byte, n), class: -1}
	}
	if b, ok := p.classes[class].Get().(*Buffer); ok {
		b.B = b.B[:n]
		return b
	}
	return &Buffer{B: make([]byte, n, sizeOf(class)), class: class}
}

// Put returns a buffer to the pool; nil does nothing. The buffer and its bytes must not be used afterwards.
func (p *Pool) Put(b *Buffer) {
	if b != nil && b.class >= 0 {
		b.B = b.B[:0]
		p.classes[b.class].Put(b)
	}
}
