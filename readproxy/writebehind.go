package readproxy

import "sync"

// writeBehind passes items to its own writers, so that no request waits for the target. It bounds the items that wait or are
// being written, and drops the rest: waiting would not make a slow target faster.
type writeBehind[T any] struct {
	// write writes a batch, which has at least one and at most perBatch items.
	write             func(batch []T)
	sizeOf            func(T) int64
	limit             int64 // sum of sizes
	writers, perBatch int

	running sync.WaitGroup
	mu      struct {
		sync.Mutex
		queue   []T
		size    int64 // of the items that wait or are being written
		writing int   // running writers
		closed  bool
	}
}

// addItem queues an item, or drops it if too much waits. After close it accepts nothing, but still reports true.
func (w *writeBehind[T]) addItem(item T) (ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.sizeOf(item)
	if w.mu.closed || w.mu.size+n > w.limit {
		return w.mu.closed
	}
	w.mu.size += n
	w.mu.queue = append(w.mu.queue, item)
	if w.mu.writing < w.writers {
		w.mu.writing++
		w.running.Go(w.writeQueue)
	}
	return true
}

// writeQueue writes until the queue is empty.
func (w *writeBehind[T]) writeQueue() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.mu.queue) > 0 {
		batch := w.mu.queue[:min(len(w.mu.queue), w.perBatch)]
		w.mu.queue = w.mu.queue[len(batch):]
		w.mu.Unlock()
		w.write(batch)
		w.mu.Lock()
		for _, item := range batch {
			w.mu.size -= w.sizeOf(item)
		}
		clear(batch)
	}
	w.mu.queue = nil
	w.mu.writing--
}

// stopWriting drops the queued items, and waits for the running writes.
func (w *writeBehind[T]) stopWriting() {
	w.mu.Lock()
	w.mu.closed, w.mu.queue = true, nil
	w.mu.Unlock()
	w.running.Wait()
}
