package retention

import "container/heap"

// dueQueue is a set of keys with due times, in Unix microseconds. The zero value is empty.
type dueQueue[K comparable] struct {
	due map[K]int64
	// heap has an entry for each key, and outdated ones, which are skipped.
	heap dueHeap[K]
}

// putKey makes a key due at a time, unless it is due earlier.
func (q *dueQueue[K]) putKey(key K, due int64) {
	if earlier, ok := q.due[key]; ok && earlier <= due {
		return
	}
	if q.due == nil {
		q.due = map[K]int64{}
	}
	q.due[key] = due
	heap.Push(&q.heap, dueEntry[K]{due, key})
}

// takeDue removes the key that has been due longest; false when none is due at now.
func (q *dueQueue[K]) takeDue(now int64) (key K, ok bool) {
	q.dropOutdated()
	if len(q.heap) == 0 || q.heap[0].due > now {
		return key, false
	}
	key = q.heap[0].key
	delete(q.due, key)
	return key, true
}

// oldestDue is the earliest due time, 0 for none.
func (q *dueQueue[K]) oldestDue() int64 {
	if q.dropOutdated(); len(q.heap) == 0 {
		return 0
	}
	return q.heap[0].due
}

func (q *dueQueue[K]) dropOutdated() {
	for ; len(q.heap) > 0; heap.Pop(&q.heap) {
		if due, ok := q.due[q.heap[0].key]; ok && due == q.heap[0].due {
			return
		}
	}
}

type dueEntry[K any] struct {
	due int64
	key K
}

type dueHeap[K any] []dueEntry[K]

func (h dueHeap[K]) Len() int           { return len(h) }
func (h dueHeap[K]) Less(i, j int) bool { return h[i].due < h[j].due }
func (h dueHeap[K]) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *dueHeap[K]) Push(x any) {
	e, _ := x.(dueEntry[K]) // nothing else is pushed
	*h = append(*h, e)
}

// Pop implements heap.Interface.
func (h *dueHeap[K]) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
