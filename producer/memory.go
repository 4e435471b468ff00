package producer

import (
	"context"
	"sync"
)

// memory is the byte bound of everything that is buffered. Waiters are served in order: while one waits nobody else gets room,
// so a large message is not starved by small ones. There is one waiter a blocked call at most, so callers bound their number.
type memory struct {
	total int64
	mu    struct {
		sync.Mutex
		free    int64
		waiters []*waiter // first come, first served
	}
}

// waiter is a call that waits for room.
type waiter struct {
	n       int64
	granted chan struct{} // closed, under the mutex, when n bytes were taken for it
}

func newMemory(total int64) *memory {
	m := &memory{total: total}
	m.mu.free = total
	return m
}

// try takes n bytes if they are free and nobody waits.
func (m *memory) try(n int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.free < n || len(m.mu.waiters) > 0 {
		return false
	}
	m.mu.free -= n
	return true
}

// wait takes n bytes, at most the total, or fails with what ended ctx, or with ErrClosed when closed is. full is called when there
// is no room, before waiting.
func (m *memory) wait(ctx context.Context, n int64, closed <-chan struct{}, full func()) error {
	m.mu.Lock()
	if m.mu.free >= n && len(m.mu.waiters) == 0 {
		m.mu.free -= n
		m.mu.Unlock()
		return nil
	}
	w := &waiter{n: n, granted: make(chan struct{})}
	m.mu.waiters = append(m.mu.waiters, w)
	m.mu.Unlock()
	full()
	var cause error
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
		cause = context.Cause(ctx)
	case <-closed:
		cause = ErrClosed
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, o := range m.mu.waiters {
		if o == w {
			m.mu.waiters = append(m.mu.waiters[:i], m.mu.waiters[i+1:]...)
			m.grant() // those behind it may fit now
			return cause
		}
	}
	// Granted between the end of the wait and the lock: nobody else knows of the bytes.
	m.mu.free += n
	m.grant()
	return cause
}

// release gives n bytes back.
func (m *memory) release(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.free += n
	m.grant()
}

// grant serves waiters as far as the free bytes go. The mutex is held.
func (m *memory) grant() {
	served := 0
	for _, w := range m.mu.waiters {
		if w.n > m.mu.free {
			break
		}
		m.mu.free -= w.n
		close(w.granted)
		served++
	}
	if served == len(m.mu.waiters) {
		m.mu.waiters = nil
		return
	}
	m.mu.waiters = append(m.mu.waiters[:0], m.mu.waiters[served:]...)
}

// used is how many bytes are taken.
func (m *memory) used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.total - m.mu.free
}

// bufferClasses hands out byte buffers of a few sizes, each four times the one before, up to the size of a full batch. What is larger
// is made to measure and left to the garbage collector.
type bufferClasses struct {
	sizes []int
	pools []sync.Pool // of *[]byte with a capacity of the size
}

// smallestBuffer holds a header and a message or two: most categories see no more in a linger.
const smallestBuffer = 1 << 10

func newBuffers(batch int) *bufferClasses {
	b := &bufferClasses{}
	for size := smallestBuffer; size < batch; size *= 4 {
		b.sizes = append(b.sizes, size)
	}
	b.sizes = append(b.sizes, batch)
	b.pools = make([]sync.Pool, len(b.sizes))
	return b
}

// size is the capacity of a buffer of a class.
func (b *bufferClasses) size(class int) int { return b.sizes[class] }

// classFor is the smallest class, from class on, that holds n bytes, or the number of classes when none does.
func (b *bufferClasses) classFor(class, n int) int {
	for class < len(b.sizes) && b.sizes[class] < n {
		class++
	}
	return class
}

// get returns an empty buffer of a class, at least.
func (b *bufferClasses) get(class int) *[]byte {
	if p, ok := b.pools[class].Get().(*[]byte); ok {
		return p
	}
	buf := make([]byte, 0, b.sizes[class])
	return &buf
}

// put takes a buffer back, with any content.
func (b *bufferClasses) put(class int, p *[]byte) {
	*p = (*p)[:0]
	b.pools[class].Put(p)
}
