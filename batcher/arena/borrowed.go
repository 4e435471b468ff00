package arena

import (
	"sync"

	"scribe/internal/base/buffers"
)

// Borrowed is the memory of a request whose caller waits for its commit. The frames are compressed from there without a copy. The
// caller gets the memory back after compression, which is before the commit. If the caller stops waiting earlier, the bytes that
// are not compressed yet are copied.
type Borrowed struct {
	mu struct {
		sync.Mutex
		bytes   []byte          // nil after compression
		own     *buffers.Buffer // the copy; nil while bytes are the caller's
		reading bool
		unread  sync.Cond // on the mutex: reading has become false
	}
}

func newBorrowed(b []byte) *Borrowed {
	l := &Borrowed{}
	l.mu.bytes = b
	l.mu.unread.L = &l.mu
	return l
}

// acquire returns the bytes. They stay in this memory until release.
func (l *Borrowed) acquire() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.reading = true
	return l.mu.bytes
}

// release ends the use of the bytes. Nothing reads them afterwards.
func (l *Borrowed) release(pool *buffers.Pool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pool.Put(l.mu.own)
	l.mu.bytes, l.mu.own, l.mu.reading = nil, nil, false
	l.mu.unread.Broadcast()
}

// Reclaim returns the memory to the caller. It waits while a block with the bytes is compressed, which takes milliseconds.
func (l *Borrowed) Reclaim(pool *buffers.Pool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.mu.reading {
		l.mu.unread.Wait()
	}
	if l.mu.bytes == nil {
		return
	}
	l.mu.own = pool.Get(len(l.mu.bytes))
	copy(l.mu.own.B, l.mu.bytes)
	l.mu.bytes = l.mu.own.B
}
