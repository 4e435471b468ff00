package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Errors of Queue.Enter.
var (
	// ErrFull means that the queue has reached its present length.
	ErrFull = errors.New("admission: queue full")
	// ErrLate means that a request waited for the maximum time.
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
		used    int64 // bytes of the requests being served, and kept ones; exceeds bytes only by bytes kept beyond a cost
		waiting []*queueWaiter
	}
}

// queueWaiter is a waiting request. ready is closed when it is admitted.
type queueWaiter struct {
	cost  int64
	ready chan struct{}
}

// NewQueue returns a queue for length requests. Those in service use at most bytes, and the others wait at most timeout.
func NewQueue(bytes int64, length int, timeout time.Duration) *Queue {
	q := &Queue{bytes: bytes, timeout: timeout}
	q.mu.length = max(length, 1)
	return q
}

// Resize changes the bound on requests queued or in service. Admitted requests stay.
func (q *Queue) Resize(length int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.length = max(length, 1)
}

// Enter admits a request that costs so many bytes; the request ends with leave. With leave it may keep bytes, which FreeBytes
// returns. Further calls of leave have no effect. A request that costs more than the queue's bytes is served alone. The errors
// are ErrFull, ErrLate and ctx's cause.
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
			q.freeBytes(cost-keep, 1)
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
	if !q.leaveQueue(w) {
		return leave, nil // admitted at the last moment
	}
	return nil, err
}

// leaveQueue removes a waiter. It returns false if the waiter was admitted.
func (q *Queue) leaveQueue(w *queueWaiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.mu.waiting, w)
	if i < 0 {
		return false
	}
	q.mu.waiting = slices.Delete(q.mu.waiting, i, i+1)
	q.mu.inside--
	q.admitWaiting() // the following ones may be smaller
	return true
}

// FreeBytes returns kept bytes.
func (q *Queue) FreeBytes(n int64) { q.freeBytes(n, 0) }

// freeBytes returns bytes, and takes out a number of requests that leave.
func (q *Queue) freeBytes(n int64, leaving int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.inside -= leaving
	q.mu.used -= n
	q.admitWaiting()
}

// admitWaiting admits waiting requests in order while they fit. The mutex is held.
func (q *Queue) admitWaiting() {
	n := 0
	for ; n < len(q.mu.waiting) && q.mu.used+q.mu.waiting[n].cost <= q.bytes; n++ {
		q.mu.used += q.mu.waiting[n].cost
		close(q.mu.waiting[n].ready)
	}
	q.mu.waiting = slices.Delete(q.mu.waiting, 0, n)
}

// QueueState describes a queue.
type QueueState struct {
	// Length bounds the requests, Inside is their number, and Waiting the number of those not in service yet.
	Length, Inside, Waiting int
	// Bytes are the bytes of the requests in service, and kept ones.
	Bytes int64
}

// ReadState returns the queue's state.
func (q *Queue) ReadState() QueueState {
	q.mu.Lock()
	defer q.mu.Unlock()
	return QueueState{Length: q.mu.length, Inside: q.mu.inside, Waiting: len(q.mu.waiting), Bytes: q.mu.used}
}
