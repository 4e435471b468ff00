package producer

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// memoryBound bounds the bytes of all frames together.
type memoryBound struct {
	total int64
	used  atomic.Int64
	// free serves waiters in order: while one waits, no other caller gets memory. A blocked call has at most one waiter, so
	// callers bound their number.
	free *semaphore.Weighted
}

// tryTake charges n bytes if they are free and there are no waiters.
func (m *memoryBound) tryTake(n int64) bool {
	ok := m.free.TryAcquire(n)
	if ok {
		m.used.Add(n)
	}
	return ok
}

// takeWhenFree waits until n bytes are free and charges them. n is at most the total. It fails when ctx ends.
func (m *memoryBound) takeWhenFree(ctx context.Context, n int64) error {
	err := m.free.Acquire(ctx, n)
	if err == nil {
		m.used.Add(n)
	}
	return err
}

// giveBack releases n bytes.
func (m *memoryBound) giveBack(n int64) {
	m.used.Add(-n)
	m.free.Release(n)
}

// smallestBuffer has space for a header and one or two messages: most categories get no more in a linger. Buffers of frames have
// few sizes, each bufferGrowth times the previous one, up to the size of a full batch. Larger buffers have the size that is
// needed.
const (
	smallestBuffer = 1 << 10
	bufferGrowth   = 4
)

// bufferSize returns the size of the smallest buffer for n bytes.
func (c *sharedCore) bufferSize(n int) int64 {
	if n > c.largestBuffer {
		return (int64(n) + 4095) &^ 4095
	}
	size := smallestBuffer
	for size < n {
		size *= bufferGrowth
	}
	return int64(min(size, c.largestBuffer))
}
