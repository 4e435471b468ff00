package retention

import "container/heap"

// dueQueue is a heap of keys by due time, in Unix microseconds.
type dueQueue[K any] []dueEntry[K]

type dueEntry[K any] struct {
	due int64
	key K
}

func (q dueQueue[K]) Len() int           { return len(q) }
func (q dueQueue[K]) Less(i, j int) bool { return q[i].due < q[j].due }
func (q dueQueue[K]) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *dueQueue[K]) Push(x any) {
	e, _ := x.(dueEntry[K]) // nothing else is pushed
	*q = append(*q, e)
}

// Pop implements heap.Interface.
func (q *dueQueue[K]) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

func (q *dueQueue[K]) pushKey(due int64, key K) { heap.Push(q, dueEntry[K]{due, key}) }

// popDue removes the first entry if it is due at now.
func (q *dueQueue[K]) popDue(now int64) (e dueEntry[K], ok bool) {
	if len(*q) == 0 || (*q)[0].due > now {
		return e, false
	}
	e, ok = heap.Pop(q).(dueEntry[K])
	return e, ok
}

// oldestDue is the due time of the first entry, 0 for none.
func (q dueQueue[K]) oldestDue() int64 {
	if len(q) == 0 {
		return 0
	}
	return q[0].due
}
