// Package schedule decides when a producer sends the frames of which stream. It keeps the ready streams, the deadlines of the
// others, and the number of requests in flight. It does no I/O and reads no clock; the producer's sending loop drives it.
package schedule

import (
	"container/heap"
	"slices"
	"sync"
	"time"

	"scribe/internal/base/lifecycle"
)

// Lane is a way to the server. Requests of each lane are composed of its streams alone, and each has as many in flight. So what somebody
// waits for does not wait for what lingered.
type Lane uint8

// The lanes, the first of which goes first.
const (
	Awaited  Lane = 0
	Lingered Lane = 1
	lanes         = 2
)

// readyQueue has the streams of a lane.
type readyQueue[S any] struct {
	// ready[taken:] are the streams that have something to send and may send.
	ready []*S
	taken int
	// inFlight counts the requests of the lane.
	inFlight int
}

func (l *readyQueue[S]) isEmpty() bool { return l.taken == len(l.ready) }

// Scheduler schedules streams of type *S. Lock order: the mutexes of streams, then the scheduler's, which is held only briefly.
type Scheduler[S any] struct {
	zero time.Time             // slots count from it: by differences, so that a clock that is set back delays nothing
	wake lifecycle.WakeChannel // something changed
	mu   struct {
		sync.Mutex
		lanes [lanes]readyQueue[S]
		// departs is the time before which no request with what lingered starts.
		departs time.Time
		// lingering are the streams to look at when a time has come, by its slot; slots are those that are not empty.
		lingering map[int64][]*S
		slots     slotHeap
		parked    parkedHeap[S] // streams that wait before a retry

		// gate is the time before which no request starts, after one failed as a whole. gateSet is the time when gate was last
		// moved.
		gate, gateSet time.Time
		failures      int // consecutive requests that failed as a whole
		stopped       bool
	}
}

// slotLength is the accuracy of the times at which frames are due. Frames that are due together are sent together, and cost one entry of
// the heap.
const slotLength = time.Millisecond

// New returns a scheduler without streams. zero is not after any time that it is told of.
func New[S any](zero time.Time) *Scheduler[S] {
	q := &Scheduler[S]{zero: zero, wake: lifecycle.NewWakeChannel()}
	q.mu.lingering = make(map[int64][]*S)
	return q
}

// Changed returns a channel that yields a value when the loop must run again.
func (q *Scheduler[S]) Changed() <-chan struct{} { return q.wake }

// SignalLoop makes the loop run again.
func (q *Scheduler[S]) SignalLoop() { q.wake.WakeUp() }

// update calls change under the mutex and signals the loop.
func (q *Scheduler[S]) update(change func()) {
	q.mu.Lock()
	change()
	q.mu.Unlock()
	q.SignalLoop()
}

// PushReady queues a stream that has something to send.
func (q *Scheduler[S]) PushReady(lane Lane, s *S) {
	q.update(func() { l := &q.mu.lanes[lane]; l.ready = append(l.ready, s) })
}

// PopReady removes and returns the stream of a lane that has been ready longest; nil if there is none.
func (q *Scheduler[S]) PopReady(lane Lane) (s *S) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := &q.mu.lanes[lane]
	if !l.isEmpty() {
		s, l.ready[l.taken] = l.ready[l.taken], nil
		l.taken++
	}
	l.ready, l.taken = dropFront(l.ready, l.taken)
	return s
}

// ReturnReady puts streams that PopReady returned back at the head of their lane, in their order.
func (q *Scheduler[S]) ReturnReady(lane Lane, streams []*S) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := &q.mu.lanes[lane]
	if n := len(streams); n <= l.taken {
		l.taken -= n
		copy(l.ready[l.taken:], streams)
	} else {
		l.ready, l.taken = slices.Concat(streams, l.ready[l.taken:]), 0
	}
}

// dropFront moves a queue to the start of its memory once most of it was taken, and clears the rest so that it does not retain
// streams.
func dropFront[E any](queue []E, taken int) (rest []E, left int) {
	if taken <= len(queue)/2 {
		return queue, taken
	}
	n := copy(queue, queue[taken:])
	clear(queue[n:])
	return queue[:n], 0
}

// AddLingering makes TakeDue return s at a time, or up to slotLength later.
func (q *Scheduler[S]) AddLingering(s *S, at time.Time) {
	slot := int64((at.Sub(q.zero) + slotLength - 1) / slotLength)
	q.mu.Lock()
	streams, found := q.mu.lingering[slot]
	q.mu.lingering[slot] = append(streams, s)
	first := false
	if !found {
		heap.Push(&q.mu.slots, slot)
		first = q.mu.slots[0] == slot
	}
	q.mu.Unlock()
	if first {
		q.SignalLoop()
	}
}

// TakeDue removes the streams whose time has come and appends them to dst.
func (q *Scheduler[S]) TakeDue(now time.Time, dst []*S) []*S {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.mu.slots) > 0 && q.mu.slots[0] <= int64(now.Sub(q.zero)/slotLength) {
		slot := heap.Pop(&q.mu.slots).(int64)
		dst = append(dst, q.mu.lingering[slot]...)
		delete(q.mu.lingering, slot)
	}
	return dst
}

// Park makes Unpark return s once a time has come.
func (q *Scheduler[S]) Park(s *S, until time.Time) {
	q.update(func() { heap.Push(&q.mu.parked, parkedStream[S]{s, until}) })
}

// Unpark removes and returns a parked stream whose time has come; nil if there is none.
func (q *Scheduler[S]) Unpark(now time.Time) *S {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.mu.parked) == 0 || q.mu.parked[0].until.After(now) {
		return nil
	}
	return heap.Pop(&q.mu.parked).(parkedStream[S]).stream
}

// StartRequest counts a new request of the first lane in which fewer than limit run and a stream is ready, if the gate is open.
func (q *Scheduler[S]) StartRequest(now time.Time, limit int) (lane Lane, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.stopped || now.Before(q.mu.gate) {
		return 0, false
	}
	for i := range q.mu.lanes {
		if l := &q.mu.lanes[i]; !l.isEmpty() && l.inFlight < limit && (Lane(i) != Lingered || !now.Before(q.mu.departs)) { //nolint:gosec // a lane
			l.inFlight++
			return Lane(i), true //nolint:gosec // a lane
		}
	}
	return 0, false
}

// Depart makes what lingered wait until a time, if all that was ready has left.
func (q *Scheduler[S]) Depart(next time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.lanes[Lingered].isEmpty() {
		q.mu.departs = next
	}
}

// DepartNow lets what lingered leave before its time.
func (q *Scheduler[S]) DepartNow() { q.update(func() { q.mu.departs = time.Time{} }) }

// EndRequest ends a request that StartRequest began.
func (q *Scheduler[S]) EndRequest(lane Lane) { q.update(func() { q.mu.lanes[lane].inFlight-- }) }

// ShutGate delays further requests after one, begun at started, has failed as a whole. pause returns the delay for a number of
// consecutive failures. A request that was in flight when the gate was last moved does not count as another failure, since it
// failed for the same cause.
func (q *Scheduler[S]) ShutGate(now, started time.Time, pause func(failures int) time.Duration) {
	q.update(func() {
		if !started.Before(q.mu.gateSet) {
			q.mu.failures++
			q.mu.gateSet = now
		}
		if until := now.Add(pause(q.mu.failures)); until.After(q.mu.gate) {
			q.mu.gate = until
		}
	})
}

// OpenGate ends the delay after a request was answered.
func (q *Scheduler[S]) OpenGate() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.failures, q.mu.gate = 0, time.Time{}
}

// NextWake returns the time at which the loop must run again without a signal; the zero time if it need not.
func (q *Scheduler[S]) NextWake(limit int) (at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	sooner := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if len(q.mu.slots) > 0 {
		sooner(q.zero.Add(time.Duration(q.mu.slots[0]) * slotLength))
	}
	if len(q.mu.parked) > 0 {
		sooner(q.mu.parked[0].until)
	}
	if l := q.mu.lanes[Lingered]; !l.isEmpty() && l.inFlight < limit && !q.mu.departs.IsZero() {
		sooner(q.mu.departs)
	}
	mayStart := func(l readyQueue[S]) bool { return !l.isEmpty() && l.inFlight < limit }
	if !q.mu.gate.IsZero() && slices.ContainsFunc(q.mu.lanes[:], mayStart) {
		sooner(q.mu.gate)
	}
	return at
}

// Stop makes StartRequest return false from now on.
func (q *Scheduler[S]) Stop() { q.update(func() { q.mu.stopped = true }) }

// IsStopped reports whether Stop was called.
func (q *Scheduler[S]) IsStopped() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.stopped
}

// slotHeap implements heap.Interface, ordered by time.
type slotHeap []int64

func (h slotHeap) Len() int           { return len(h) }
func (h slotHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h slotHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *slotHeap) Push(x any)        { *h = append(*h, x.(int64)) }
func (h *slotHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

type parkedStream[S any] struct {
	stream *S
	until  time.Time
}

// parkedHeap implements heap.Interface, ordered by time.
type parkedHeap[S any] []parkedStream[S]

func (p parkedHeap[S]) Len() int           { return len(p) }
func (p parkedHeap[S]) Less(i, j int) bool { return p[i].until.Before(p[j].until) }
func (p parkedHeap[S]) Swap(i, j int)      { p[i], p[j] = p[j], p[i] }
func (p *parkedHeap[S]) Push(x any)        { *p = append(*p, x.(parkedStream[S])) }
func (p *parkedHeap[S]) Pop() any {
	last := len(*p) - 1
	x := (*p)[last]
	(*p)[last] = parkedStream[S]{}
	*p = (*p)[:last]
	return x
}
