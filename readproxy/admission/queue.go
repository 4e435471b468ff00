package admission

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Errors of Queue.Enter.
var (
	// ErrFull means that the queue is as long as it may be now.
	ErrFull = errors.New("admission: queue full")
	// ErrLate means that a request waited for as long as it may.
	ErrLate = errors.New("admission: not served in time")
)

// Queue bounds the number of requests queued or in service, and the bytes of those in service. Requests wait for bytes in order of
// arrival, so small ones never overtake a large one. It is safe for concurrent use.
type Queue struct {
	bytes   int64
	timeout time.Duration

	mu struct {
		sync.Mutex
		length  int   // bounds inside; at least 1
		inside  int   // requests queued or in service
		used    int64 // bytes of those being served, and those that were kept; above bytes only by what was kept beyond a cost
		waiting []*queueWaiter
	}
}

// queueWaiter is a request that waits. ready is closed when it is admitted.
type queueWaiter struct {
	cost  int64
	ready chan struct{}
}

// NewQueue returns a queue of length requests, of which those in service use at most bytes and the others wait at most timeout.
func NewQueue(bytes int64, length int, timeout time.Duration) *Queue {
	q := &Queue{bytes: bytes, timeout: timeout}
	q.mu.length = max(length, 1)
	return q
}

// Resize changes the bound on requests queued or in service. Requests that were admitted stay.
func (q *Queue) Resize(length int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.length = max(length, 1)
}

// Enter admits a request, which ends with leave. It may keep bytes then, which FreeBytes gives back; repeating leave is harmless. A request
// that costs more than all bytes is served alone. The errors are ErrFull, ErrLate and ctx's cause.
func (q *Queue) Enter(ctx context.Context, cost int64) (leave func(keep int64), err error) {
	cost = min(max(cost, 0), q.bytes)
	q.mu.Lock()
	if q.mu.inside >= q.mu.length {
		inside := q.mu.inside
		q.mu.Unlock()
		return nil, fmt.Errorf("%w: %d requests are queued or in service", ErrFull, inside)
	}
	q.mu.inside++
	left := false
	leave = func(keep int64) {
		if !left {
			left = true
			q.leaveQueue(cost - keep)
		}
	}
	if len(q.mu.waiting) == 0 && q.mu.used+cost <= q.bytes {
		q.mu.used += cost
		q.mu.Unlock()
		return leave, nil
	}
	w := &queueWaiter{cost: cost, ready: make(chan struct{})}
	q.mu.waiting = append(q.mu.waiting, w) // bounded by length
	q.mu.Unlock()

	timer := time.NewTimer(q.timeout)
	defer timer.Stop()
	select {
	case <-w.ready:
		return leave, nil
	case <-timer.C:
		err = fmt.Errorf("%w: %v", ErrLate, q.timeout)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if !q.giveUp(w) {
		return leave, nil // admitted at the last moment
	}
	return nil, err
}

// giveUp removes a waiter; false = it was admitted.
func (q *Queue) giveUp(w *queueWaiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, other := range q.mu.waiting {
		if other == w {
			q.mu.waiting = append(q.mu.waiting[:i], q.mu.waiting[i+1:]...)
			q.mu.inside--
			q.admitWaiting() // those after it may be smaller
			return true
		}
	}
	return false
}

func (q *Queue) leaveQueue(back int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.inside--
	q.mu.used -= back
	q.admitWaiting()
}

// FreeBytes gives back bytes that were kept.
func (q *Queue) FreeBytes(n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.used -= n
	q.admitWaiting()
}

// admitWaiting admits those that wait and fit, in order. The mutex is held.
func (q *Queue) admitWaiting() {
	n := 0
	for ; n < len(q.mu.waiting) && q.mu.used+q.mu.waiting[n].cost <= q.bytes; n++ {
		q.mu.used += q.mu.waiting[n].cost
		close(q.mu.waiting[n].ready)
	}
	q.mu.waiting = append(q.mu.waiting[:0], q.mu.waiting[n:]...)
}

// QueueState is what a queue looks like.
type QueueState struct {
	// Length is the most requests, Inside how many there are, Waiting how many of them are not served yet.
	Length, Inside, Waiting int
	// Bytes are those of the requests being served, and those that were kept.
	Bytes int64
}

// ReadState returns the queue's.
func (q *Queue) ReadState() QueueState {
	q.mu.Lock()
	defer q.mu.Unlock()
	return QueueState{Length: q.mu.length, Inside: q.mu.inside, Waiting: len(q.mu.waiting), Bytes: q.mu.used}
}
