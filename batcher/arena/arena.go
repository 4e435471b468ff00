// Package arena provides the memory in which frames wait until they are compressed: copies side by side in large chunks, or
// buffers borrowed from the caller until its call returns.
package arena

import (
	"sync"

	"scribe/internal/base/buffers"
)

// sharedChunk is a buffer that several spans share.
type sharedChunk struct {
	buf  *buffers.Buffer
	used int
	refs int // one per segment, and one while the arena fills it
}

// Segment is a range of a chunk, or a borrowed buffer.
type Segment struct {
	Borrowed *Borrowed // nil if the memory is the chunk's
	chunk    *sharedChunk
	off      int
	len      int
}

// Bytes returns the segment's memory. A borrowed buffer can then not be reclaimed until the segment is released.
func (s Segment) Bytes() []byte {
	if s.Borrowed != nil {
		return s.Borrowed.acquire()
	}
	return s.chunk.buf.B[s.off : s.off+s.len]
}

// Borrow returns a segment of borrowed memory, which its owner keeps.
func Borrow(b []byte) Segment { return Segment{Borrowed: newBorrowed(b), len: len(b)} }

// Arena allocates memory for frames. Spans of different requests are side by side in large chunks. So a small request costs no
// allocation, and consecutive requests to one shard are adjacent and need not be copied together before compression.
type Arena struct {
	pool *buffers.Pool
	// most is the size of the largest chunk that spans share.
	most int

	mu struct {
		sync.Mutex
		current *sharedChunk
		size    int // of the next chunk
	}
}

const (
	minChunk = 64 << 10
	maxChunk = 2 << 20
	// minChunks is the least number of chunks that the memory has room for: a chunk becomes free only with the last of its spans.
	minChunks = 64
	// A span above this share of a chunk gets memory of its own, so that little is wasted at the end of a chunk.
	chunkShare = 8
)

// New returns an arena with chunk sizes that suit memory, in bytes.
func New(pool *buffers.Pool, memory int64) *Arena {
	return &Arena{pool: pool, most: int(min(max(memory/minChunks, minChunk), maxChunk))}
}

// IsLarge reports whether n bytes get memory of their own.
func (a *Arena) IsLarge(n int) bool { return n > a.most/chunkShare }

// Allocate returns memory for n bytes.
func (a *Arena) Allocate(n int) Segment {
	if a.IsLarge(n) {
		return Segment{chunk: &sharedChunk{buf: a.pool.Get(n), used: n, refs: 1}, len: n}
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
		// Chunks grow with the traffic, so an idle batcher holds little memory.
		size := max(a.mu.size, minChunk)
		for size < n*chunkShare {
			size *= 2
		}
		size = min(size, a.most)
		a.mu.size = min(2*size, a.most)
		c = &sharedChunk{buf: a.pool.Get(size), refs: 1}
		a.mu.current = c
	}
	s := Segment{chunk: c, off: c.used, len: n}
	c.used += n
	c.refs++
	return s
}

// Free releases segments and returns the number of bytes that became free. Memory becomes free a chunk at a time, so that may be
// 0, or more than the segments have.
func (a *Arena) Free(segments []Segment) (freed int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range segments {
		if s.Borrowed != nil {
			s.Borrowed.release(a.pool)
			freed += int64(s.len)
			continue
		}
		c := s.chunk
		c.refs--
		switch {
		case c.refs == 0:
			freed += int64(c.used)
			a.pool.Put(c.buf)
			c.buf = nil
		case c.refs == 1 && c == a.mu.current:
			freed += int64(c.used)
			c.used = 0
			if len(c.buf.B) > minChunk {
				// No spans are in use: a large chunk goes back to the pool, which the garbage collector empties.
				a.pool.Put(c.buf)
				a.mu.current, a.mu.size = nil, len(c.buf.B)/2
				c.buf = nil
			}
		}
	}
	return freed
}

// Adjacent returns the bytes of segments if they are side by side in memory, else nil.
func Adjacent(segments []Segment) []byte {
	first := segments[0]
	if first.Borrowed != nil {
		if len(segments) > 1 {
			return nil
		}
		return first.Bytes()
	}
	end := first.off
	for _, s := range segments {
		if s.chunk != first.chunk || s.off != end {
			return nil
		}
		end += s.len
	}
	return first.chunk.buf.B[first.off:end]
}
