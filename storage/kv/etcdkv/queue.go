package etcdkv

import (
	"sync"

	"scribe/storage/kv"
)

// maxQueueBytes bounds the keys and values that wait for the function of a watch.
const maxQueueBytes = 64 << 20

// eventQueue holds what a watch was told and its function has not taken. etcd's client would keep any number of events for a slow one.
type eventQueue struct {
	// maxEvents bounds the events.
	maxEvents int

	mu struct {
		sync.Mutex
		batches []kv.EventBatch
		events  int
		bytes   int
		// err is why nothing follows; nil while something may.
		err error
	}
	// wake has a value when there is something for next.
	wake chan struct{}
}

func newEventQueue(maxEvents int) *eventQueue {
	return &eventQueue{maxEvents: maxEvents, wake: make(chan struct{}, 1)}
}

// push adds a batch. It returns false if the queue is full; what waits is dropped then.
func (q *eventQueue) push(b kv.EventBatch) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.events += len(b.Events)
	q.mu.bytes += sizeOf(b)
	if len(q.mu.batches) > 0 && (q.mu.events > q.maxEvents || q.mu.bytes > maxQueueBytes) {
		q.mu.batches = nil
		return false
	}
	q.mu.batches = append(q.mu.batches, b)
	q.wakeNext()
	return true
}

// finish says that nothing follows.
func (q *eventQueue) finish(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.err = err
	q.wakeNext()
}

func (q *eventQueue) wakeNext() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// nextBatch waits for the next batch, or for why there is none. A watch that ended delivers no more of what waits: its caller has gone.
func (q *eventQueue) nextBatch() (kv.EventBatch, error) {
	for {
		q.mu.Lock()
		switch {
		case q.mu.err != nil:
			q.mu.Unlock()
			return kv.EventBatch{}, q.mu.err
		case len(q.mu.batches) > 0:
			b := q.mu.batches[0]
			q.mu.batches[0] = kv.EventBatch{}
			q.mu.batches = q.mu.batches[1:]
			q.mu.events -= len(b.Events)
			q.mu.bytes -= sizeOf(b)
			q.mu.Unlock()
			return b, nil
		}
		q.mu.Unlock()
		<-q.wake
	}
}

func sizeOf(b kv.EventBatch) (n int) {
	for _, e := range b.Events {
		n += len(e.Key) + len(e.Value)
	}
	return n
}
