package readproxy

import "sync"

// writeBehind hands what is added to writers of its own, so that no request waits for it. It bounds what waits or is being written; what
// does not fit is dropped: a target that is too slow does not get better by being waited for.
type writeBehind[T any] struct {
	// write writes a batch, which has at least one and at most perBatch items.
	write             func(batch []T)
	sizeOf            func(T) int64
	limit             int64 // of sizes
	writers, perBatch int

	running sync.WaitGroup
	mu      struct {
		sync.Mutex
		queue   []T
		size    int64 // of what waits or is being written
		writing int   // writers that run
		closed  bool
	}
}

// addItem takes an item, unless too much waits. After close it takes nothing, and reports that it did.
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

// writeQueue writes until nothing waits.
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

// stopWriting drops what waits, and waits for what is being written.
func (w *writeBehind[T]) stopWriting() {
	w.mu.Lock()
	w.mu.closed, w.mu.queue = true, nil
	w.mu.Unlock()
	w.running.Wait()
}
