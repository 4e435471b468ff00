package rpc

import (
	"math/bits"
	"sync"
)

// Bodies are read into pooled buffers: fresh memory for every one costs as much as all else that is done with it. Buffers come in
// four sizes for each doubling, so at most a fifth of one is unused. What is not in use is left to the garbage collector.
const (
	minBufferBits = 12 // 4 KiB
	maxBufferBits = 27 // 128 MiB, above MaxMessageBytes
)

var bufferPools [(maxBufferBits - minBufferBits + 1) * 4]sync.Pool

// buffer is a piece of pooled memory.
type buffer struct {
	b    []byte // as long as was asked for
	pool *sync.Pool
}

// newBuffer returns n bytes of any content, n at most 128 MiB.
func newBuffer(n int) *buffer {
	class, size := bufferClass(n)
	pool := &bufferPools[class]
	if b, ok := pool.Get().(*buffer); ok {
		b.b = b.b[:n]
		return b
	}
	return &buffer{b: make([]byte, n, size), pool: pool}
}

// release gives the memory back; nothing may refer to it any more.
func (b *buffer) release() { b.pool.Put(b) }

// bufferClass returns the smallest class that holds n bytes, and its size: (4+quarter)/4 * 2^bits.
func bufferClass(n int) (class, size int) {
	if n <= 1<<minBufferBits {
		return 0, 1 << minBufferBits
	}
	doubling := bits.Len(uint(n-1)) - 1 // 2^doubling < n <= 2^(doubling+1)
	step := 1 << (doubling - 2)
	quarter := (n - 1<<doubling + step - 1) / step // 1 to 4
	return (doubling-minBufferBits)*4 + quarter, (4 + quarter) * step
}
