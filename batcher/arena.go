package batcher

import (
	"sync"

	"scribe/internal/base/buffers"
)

// chunk is a buffer that several spans share.
type chunk struct {
	buf  *buffers.Buffer
	used int
	refs int // segments, and one while the arena fills it
}

// segment is a range of a chunk, or borrowed memory. Segments that touch may be joined: then they count as several references.
type segment struct {
	borrowed *borrowedBuffer // nil: it is of the chunk
	chunk    *chunk
	off      int
	len      int
	refs     int
}

// bytes returns the segment's memory; that of a borrowed buffer is held then until the segment is released.
func (s segment) bytes() []byte {
	if s.borrowed != nil {
		return s.borrowed.acquire()
	}
	return s.chunk.buf.B[s.off : s.off+s.len]
}

// borrowSegment returns a segment of memory that stays its owner's.
func borrowSegment(b []byte) segment { return segment{borrowed: newBorrowedBuffer(b), len: len(b)} }

// arena gives out memory for frames: spans of different requests stand side by side in large chunks, so that a small request
// costs no allocation and a run of requests to one shard is adjacent and need not be gathered before it is compressed.
type arena struct {
	pool *buffers.Pool
	// most is the largest size of a chunk that spans share.
	most int

	mu struct {
		sync.Mutex
		current *chunk
		size    int // of the next chunk
	}
}

const (
	minChunk = 64 << 10
	maxChunk = 2 << 20
	// minChunks is how many chunks the memory has room for at least: one is not free before all of its spans are.
	minChunks = 64
	// A span above this share of a chunk gets memory of its own, so that little is left unused at the end of a chunk.
	chunkShare = 8
)

func newArena(pool *buffers.Pool, memory int64) *arena {
	return &arena{pool: pool, most: int(min(max(memory/minChunks, minChunk), maxChunk))}
}

// isLarge reports whether so many bytes get memory of their own.
func (a *arena) isLarge(n int) bool { return n > a.most/chunkShare }

// allocate returns memory for n bytes.
func (a *arena) allocate(n int) segment {
	if a.isLarge(n) {
		return segment{chunk: &chunk{buf: a.pool.Get(n), used: n, refs: 1}, len: n, refs: 1}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.mu.current
	if c == nil || c.used+n > len(c.buf.B) {
		if c != nil {
			if c.refs--; c.refs == 0 { // unused, and too small for n
				a.pool.Put(c.buf)
				c.buf = nil
			}
		}
		// Chunks grow with the traffic: an idle batcher holds little.
		size := max(a.mu.size, minChunk)
		for size < n*chunkShare {
			size *= 2
		}
		size = min(size, a.most)
		a.mu.size = min(2*size, a.most)
		c = &chunk{buf: a.pool.Get(size), refs: 1}
		a.mu.current = c
	}
	s := segment{chunk: c, off: c.used, len: n, refs: 1}
	c.used += n
	c.refs++
	return s
}

// freeSegments gives segments up and returns how many bytes became free with them: memory is freed by the chunk, so this may be
// nothing, or more than the segments.
func (a *arena) freeSegments(segments []segment) (freed int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range segments {
		if s.borrowed != nil {
			s.borrowed.release(a.pool)
			freed += int64(s.len)
			continue
		}
		c := s.chunk
		c.refs -= s.refs
		switch {
		case c.refs == 0:
			freed += int64(c.used)
			a.pool.Put(c.buf)
			c.buf = nil
		case c.refs == 1 && c == a.mu.current:
			freed += int64(c.used)
			c.used = 0
			if len(c.buf.B) > minChunk {
				// Nothing is under way: a large chunk goes back to the pool, which the garbage collector empties.
				a.pool.Put(c.buf)
				a.mu.current, a.mu.size = nil, len(c.buf.B)/2
				c.buf = nil
			}
		}
	}
	return freed
}
