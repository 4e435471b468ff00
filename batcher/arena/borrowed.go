package arena

import (
	"sync"

	"scribe/internal/base/buffers"
)

// Borrowed is memory of a request whose caller waits for its commit: the frames are compressed from where they are, without a copy. The
// caller gets it back when they are compressed, which is before the commit; when it does not wait for so long, what is not
// compressed by then is copied after all.
type Borrowed struct {
	mu struct {
		sync.Mutex
		bytes   []byte          // nil when they are compressed
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

// acquire returns the bytes. They stay where they are until end.
func (l *Borrowed) acquire() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.reading = true
	return l.mu.bytes
}

// release says that nobody will read the bytes any more.
func (l *Borrowed) release(pool *buffers.Pool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pool.Put(l.mu.own)
	l.mu.bytes, l.mu.own, l.mu.reading = nil, nil, false
	l.mu.unread.Broadcast()
}

// Reclaim gives the caller its memory back. It waits while a block with the bytes is compressed, which is a matter of milliseconds.
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
