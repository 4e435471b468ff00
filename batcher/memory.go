package batcher

import (
	"math/bits"
	"sync"
)

// buffer is memory from a pool: b has the length that was asked for and may have more capacity.
type buffer struct {
	b     []byte
	class int
}

// Size classes of buffers: four for each doubling, so that at most a quarter of a buffer is unused.
const (
	minBufferBits = 10 // 1 KiB
	maxBufferBits = 27 // 128 MiB, above what any block takes
	bufferClasses = 4*(maxBufferBits-minBufferBits) + 1
)

// buffers is a pool of them, shared by all uses in a batcher. Buffers that nobody takes are given back to the runtime by its
// garbage collection.
type buffers struct {
	classes [bufferClasses]sync.Pool
}

// bufferClass returns the class of the smallest buffers with n bytes.
func bufferClass(n int) int {
	if n <= 1<<minBufferBits {
		return 0
	}
	// n-1 has the bits 1xx in front; the class is that of the next multiple of a quarter of its power of two.
	top := bits.Len(uint(n-1)) - 1
	quarter := (n - 1) >> (top - 2) & 3
	return 4*(top-minBufferBits) + quarter + 1
}

// bufferSize is the length of the buffers of a class.
func bufferSize(class int) int {
	return (4 + class%4) << (class/4 + minBufferBits - 2)
}

// get returns a buffer of n bytes, whose content is arbitrary.
func (p *buffers) get(n int) *buffer {
	class := bufferClass(n)
	if class >= bufferClasses {
		return &buffer{b: make([]byte, n), class: -1}
	}
	if buf, ok := p.classes[class].Get().(*buffer); ok {
		buf.b = buf.b[:n]
		return buf
	}
	return &buffer{b: make([]byte, n, bufferSize(class)), class: class}
}

// put gives a buffer back. Nobody may use it afterwards.
func (p *buffers) put(buf *buffer) {
	if buf != nil && buf.class >= 0 {
		p.classes[buf.class].Put(buf)
	}
}

// chunk is a buffer that several pieces share.
type chunk struct {
	buf  *buffer
	used int
	refs int // segments, and one while the arena fills it
}

// segment is a range of a chunk. Segments that touch may be joined: then they count as several references.
type segment struct {
	chunk *chunk
	off   int
	len   int
	refs  int
}

func (s segment) bytes() []byte { return s.chunk.buf.b[s.off : s.off+s.len] }

// arena gives out memory for frames: pieces of different requests stand side by side in large chunks, so that a small request
// costs no allocation and a run of requests to one shard is adjacent and need not be gathered before it is compressed.
type arena struct {
	pool *buffers

	mu struct {
		sync.Mutex
		current *chunk
		size    int // of the next chunk
	}
}

const (
	minChunk = 64 << 10
	maxChunk = 2 << 20
	// A piece above this share of a chunk gets memory of its own, so that little is left unused at the end of a chunk.
	chunkShare = 8
)

// alloc returns memory for n bytes.
func (a *arena) alloc(n int) segment {
	if n > maxChunk/chunkShare {
		return segment{chunk: &chunk{buf: a.pool.get(n), used: n, refs: 1}, len: n, refs: 1}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.mu.current
	if c == nil || c.used+n > len(c.buf.b) {
		if c != nil {
			if c.refs--; c.refs == 0 { // unused, and too small for n
				a.pool.put(c.buf)
				c.buf = nil
			}
		}
		// Chunks grow with the traffic: an idle batcher holds little.
		size := max(a.mu.size, minChunk)
		for size < n*chunkShare {
			size *= 2
		}
		size = min(size, maxChunk)
		a.mu.size = min(2*size, maxChunk)
		c = &chunk{buf: a.pool.get(size), refs: 1}
		a.mu.current = c
	}
	s := segment{chunk: c, off: c.used, len: n, refs: 1}
	c.used += n
	c.refs++
	return s
}

// release gives segments up and returns how many bytes became free with them: memory is freed by the chunk, so this may be
// nothing, or more than the segments.
func (a *arena) release(segments []segment) (freed int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range segments {
		c := s.chunk
		c.refs -= s.refs
		switch {
		case c.refs == 0:
			freed += int64(c.used)
			a.pool.put(c.buf)
			c.buf = nil
		case c.refs == 1 && c == a.mu.current:
			freed += int64(c.used)
			c.used = 0
			if len(c.buf.b) > minChunk {
				// Nothing is under way: a large chunk goes back to the pool, which the garbage collector empties.
				a.pool.put(c.buf)
				a.mu.current, a.mu.size = nil, len(c.buf.b)/2
				c.buf = nil
			}
		}
	}
	return freed
}
