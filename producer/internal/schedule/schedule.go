// Package schedule decides what a producer sends when: it knows the streams that may send, the timers of those that will, and how many
// requests run. It does no I/O and reads no clock; the producer's sending loop drives it.
package schedule

import (
	"container/heap"
	"slices"
	"sync"
	"time"
)

// Scheduler schedules streams of type *S. Its mutex is taken under those of streams, and held for short steps only.
type Scheduler[S any] struct {
	wake chan struct{} // of capacity 1: something changed
	mu   struct {
		sync.Mutex
		// ready[readied:] are streams that have something to send and may. A stream is in it once.
		ready   []*S
		readied int
		// lingering[lingered:] are open frames by deadline. The linger is the same for all, so the order of opening is that of deadlines.
		// An entry outlives its frame if that fills up before, so their number is bounded by what fits the memory in one linger.
		lingering []Lingering[S]
		lingered  int
		parked    parkedHeap[S] // streams that wait after a failure
		pressure  bool          // memory is short: nothing lingers

		inFlight int
		// gate is when requests may be sent again after one failed as a whole; gateSet is when it was last moved.
		gate, gateSet time.Time
		failures      int // requests in a row that did
		stopped       bool
	}
}

// Lingering is an open frame of a stream that waits for company.
type Lingering[S any] struct {
	Stream *S
	Frame  uint64 // the frame's number among those of the stream
	at     time.Time
}

// New returns a scheduler without streams.
func New[S any]() *Scheduler[S] { return &Scheduler[S]{wake: make(chan struct{}, 1)} }

// Changed yields a value when the loop must look again.
func (q *Scheduler[S]) Changed() <-chan struct{} { return q.wake }

// SignalLoop makes the loop look again.
func (q *Scheduler[S]) SignalLoop() {
	select {
	case q.wake <- struct{}{}:
	default: // a signal is waiting: whoever takes it sees everything
	}
}

// update changes the state and signals the loop.
func (q *Scheduler[S]) update(change func()) {
	q.mu.Lock()
	change()
	q.mu.Unlock()
	q.SignalLoop()
}

// PushReady queues a stream that has something to send.
func (q *Scheduler[S]) PushReady(s *S) {
	q.update(func() { q.mu.ready = append(q.mu.ready, s) })
}

// PopReady returns the stream that has waited longest, or nil.
func (q *Scheduler[S]) PopReady() (s *S) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.readied < len(q.mu.ready) {
		s, q.mu.ready[q.mu.readied] = q.mu.ready[q.mu.readied], nil
		q.mu.readied++
	}
	q.mu.ready, q.mu.readied = dropFront(q.mu.ready, q.mu.readied)
	return s
}

// ReturnReady puts streams that PopReady returned back in front, in their order.
func (q *Scheduler[S]) ReturnReady(streams []*S) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(streams); n <= q.mu.readied {
		q.mu.readied -= n
		copy(q.mu.ready[q.mu.readied:], streams)
	} else {
		q.mu.ready, q.mu.readied = slices.Concat(streams, q.mu.ready[q.mu.readied:]), 0
	}
}

// dropFront moves a queue to the start of its memory when most of it was taken. What is behind is cleared, since streams are the stripes'.
func dropFront[E any](queue []E, taken int) (rest []E, left int) {
	if taken <= len(queue)/2 {
		return queue, taken
	}
	n := copy(queue, queue[taken:])
	clear(queue[n:])
	return queue[:n], 0
}

// AddLingering makes TakeDue return a stream's open frame at a time, which is not before that of any earlier call (but for the moment
// between the reading of the clock and the lock).
func (q *Scheduler[S]) AddLingering(s *S, frame uint64, at time.Time) {
	q.mu.Lock()
	q.mu.lingering = append(q.mu.lingering, Lingering[S]{s, frame, at})
	first := len(q.mu.lingering) == q.mu.lingered+1
	q.mu.Unlock()
	if first {
		q.SignalLoop()
	}
}

// EndLingering makes everything that lingers due.
func (q *Scheduler[S]) EndLingering() { q.update(func() { q.mu.pressure = true }) }

// TakeDue appends the entries whose linger has ended to dst.
func (q *Scheduler[S]) TakeDue(now time.Time, dst []Lingering[S]) []Lingering[S] {
	q.mu.Lock()
	defer q.mu.Unlock()
	from := q.mu.lingered
	to := from
	for to < len(q.mu.lingering) && (q.mu.pressure || !q.mu.lingering[to].at.After(now)) {
		to++
	}
	q.mu.pressure = false
	dst = append(dst, q.mu.lingering[from:to]...)
	clear(q.mu.lingering[from:to])
	q.mu.lingering, q.mu.lingered = dropFront(q.mu.lingering, to)
	return dst
}

// Park makes Unpark return s from a time on.
func (q *Scheduler[S]) Park(s *S, until time.Time) {
	q.update(func() { heap.Push(&q.mu.parked, parkedStream[S]{s, until}) })
}

// Unpark returns a parked stream whose time has come, or nil.
func (q *Scheduler[S]) Unpark(now time.Time) *S {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.mu.parked) == 0 || q.mu.parked[0].until.After(now) {
		return nil
	}
	return heap.Pop(&q.mu.parked).(parkedStream[S]).stream
}

// StartRequest begins a request if one more may run, and there is something to send, and the gate is open.
func (q *Scheduler[S]) StartRequest(now time.Time, limit int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.stopped || q.mu.readied == len(q.mu.ready) || q.mu.inFlight >= limit || now.Before(q.mu.gate) {
		return false
	}
	q.mu.inFlight++
	return true
}

// EndRequest ends it.
func (q *Scheduler[S]) EndRequest() { q.update(func() { q.mu.inFlight-- }) }

// ShutGate holds requests back after one that was started at a time failed as a whole; pause says for how long after that many failures.
// Requests that were in flight when the gate was last moved add nothing: they failed for the same cause.
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

// OpenGate lets requests pass after one was answered.
func (q *Scheduler[S]) OpenGate() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.failures, q.mu.gate = 0, time.Time{}
}

// NextWake is when the loop must look again by itself; the zero time when only a signal can bring news.
func (q *Scheduler[S]) NextWake(limit int) (at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	sooner := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if len(q.mu.lingering) > q.mu.lingered {
		sooner(q.mu.lingering[q.mu.lingered].at)
	}
	if len(q.mu.parked) > 0 {
		sooner(q.mu.parked[0].until)
	}
	if q.mu.readied < len(q.mu.ready) && q.mu.inFlight < limit && !q.mu.gate.IsZero() {
		sooner(q.mu.gate)
	}
	return at
}

// Stop makes StartRequest refuse, for good.
func (q *Scheduler[S]) Stop() { q.update(func() { q.mu.stopped = true }) }

// IsStopped reports whether Stop was called.
func (q *Scheduler[S]) IsStopped() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.stopped
}

type parkedStream[S any] struct {
	stream *S
	until  time.Time
}

// parkedHeap is for container/heap, by time.
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
