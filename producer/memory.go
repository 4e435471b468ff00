package producer

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// memoryBound is the byte bound of everything that is buffered.
type memoryBound struct {
	total int64
	used  atomic.Int64
	// free serves waiters in order: while one waits nobody else gets memory. There is one waiter a blocked call at most, so callers
	// bound their number.
	free *semaphore.Weighted
}

func newMemoryBound(total int64) *memoryBound {
	return &memoryBound{total: total, free: semaphore.NewWeighted(total)}
}

// tryTake takes n bytes if they are free and nobody waits.
func (m *memoryBound) tryTake(n int64) bool {
	ok := m.free.TryAcquire(n)
	if ok {
		m.used.Add(n)
	}
	return ok
}

// takeWhenFree takes n bytes, at most the total, or fails when ctx ends.
func (m *memoryBound) takeWhenFree(ctx context.Context, n int64) error {
	err := m.free.Acquire(ctx, n)
	if err == nil {
		m.used.Add(n)
	}
	return err
}

// giveBack gives n bytes back.
func (m *memoryBound) giveBack(n int64) {
	m.used.Add(-n)
	m.free.Release(n)
}

// smallestBuffer holds a header and a message or two: most categories see no more in a linger. Buffers of frames are of a few sizes,
// each bufferGrowth times the one before, up to the size of a full batch. What is larger is made to measure.
const (
	smallestBuffer = 1 << 10
	bufferGrowth   = 4
)

// bufferSize is the size of the smallest buffer of n bytes.
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
