package producer

import (
	"container/heap"
	"slices"
	"sync"
	"time"
)

// sendScheduler decides what is sent when: it knows streams that may send, timers of those that will, and how many requests run. It
// does no I/O and reads no clock; the loop in send.go drives it.
//
// Lock order: a stripe's mutex, then the scheduler's. Both are held for short steps only, never during a request.
type sendScheduler struct {
	wake chan struct{} // of capacity 1: something changed
	mu   struct {
		sync.Mutex
		// ready are streams that have something to send and may. A stream is in it once.
		readyHead, readyTail *shardStream
		// lingering are open frames by deadline. The linger is the same for all, so the order of opening is that of deadlines. An
		// entry outlives its frame if that fills up before, so their number is bounded by what fits the memory in one linger.
		lingering []lingeringFrame
		lingered  int // entries at the start that are done with
		// parked are streams that wait after a failure, by time: a heap.
		parked parkedHeap
		// pressure says that memory is short: nothing lingers.
		pressure bool

		inFlight int
		// gate is when requests may be sent again after one failed as a whole.
		gate     time.Time
		gateSet  time.Time // when it was last moved
		failures int       // requests in a row that did
		stopped  bool
	}
}

type lingeringFrame struct {
	s     *shardStream
	opens uint64 // the frame's number among those of s
	at    time.Time
}

func newSendScheduler() *sendScheduler { return &sendScheduler{wake: make(chan struct{}, 1)} }

func (q *sendScheduler) signalLoop() {
	select {
	case q.wake <- struct{}{}:
	default: // a signal is waiting: whoever takes it sees everything
	}
}

// pushReady queues a stream that has something to send.
func (q *sendScheduler) pushReady(s *shardStream) {
	q.mu.Lock()
	s.nextReady = nil
	if q.mu.readyTail == nil {
		q.mu.readyHead = s
	} else {
		q.mu.readyTail.nextReady = s
	}
	q.mu.readyTail = s
	q.mu.Unlock()
	q.signalLoop()
}

// returnReady puts streams that pop returned back in front, in their order.
func (q *sendScheduler) returnReady(streams []*shardStream) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range slices.Backward(streams) {
		if s.nextReady = q.mu.readyHead; q.mu.readyHead == nil {
			q.mu.readyTail = s
		}
		q.mu.readyHead = s
	}
}

// popReady returns the stream that has waited longest, or nil.
func (q *sendScheduler) popReady() *shardStream {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.mu.readyHead
	if s != nil {
		if q.mu.readyHead = s.nextReady; q.mu.readyHead == nil {
			q.mu.readyTail = nil
		}
		s.nextReady = nil
	}
	return s
}

// addLingering makes due return s at that time, which is not before that of any earlier call (but for the moment between the reading
// of the clock and the lock).
func (q *sendScheduler) addLingering(s *shardStream, opens uint64, at time.Time) {
	q.mu.Lock()
	q.mu.lingering = append(q.mu.lingering, lingeringFrame{s, opens, at})
	first := len(q.mu.lingering) == q.mu.lingered+1
	q.mu.Unlock()
	if first {
		q.signalLoop()
	}
}

// endLingering makes everything that lingers due.
func (q *sendScheduler) endLingering() {
	q.mu.Lock()
	q.mu.pressure = true
	q.mu.Unlock()
	q.signalLoop()
}

// takeDue appends the entries whose linger has ended to dst.
func (q *sendScheduler) takeDue(now time.Time, dst []lingeringFrame) []lingeringFrame {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.mu.lingered
	for n < len(q.mu.lingering) && (q.mu.pressure || !q.mu.lingering[n].at.After(now)) {
		n++
	}
	q.mu.pressure = false
	dst = append(dst, q.mu.lingering[q.mu.lingered:n]...)
	clear(q.mu.lingering[q.mu.lingered:n]) // streams are held by the stripes alone
	if q.mu.lingered = n; n > len(q.mu.lingering)/2 {
		rest := copy(q.mu.lingering, q.mu.lingering[n:])
		clear(q.mu.lingering[rest:])
		q.mu.lingering, q.mu.lingered = q.mu.lingering[:rest], 0
	}
	return dst
}

// parkStream makes unpark return s at its time.
func (q *sendScheduler) parkStream(s *shardStream) {
	q.mu.Lock()
	heap.Push(&q.mu.parked, parkedStream{s, s.parkedUntil})
	q.mu.Unlock()
	q.signalLoop()
}

// unparkStream returns a parked stream whose time has come, or nil.
func (q *sendScheduler) unparkStream(now time.Time) *shardStream {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.mu.parked) == 0 || q.mu.parked[0].until.After(now) {
		return nil
	}
	return heap.Pop(&q.mu.parked).(parkedStream).s
}

// startRequest takes a place for a request if there is one, and something to send, and the gate is open.
func (q *sendScheduler) startRequest(now time.Time, limit int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.stopped || q.mu.readyHead == nil || q.mu.inFlight >= limit || now.Before(q.mu.gate) {
		return false
	}
	q.mu.inFlight++
	return true
}

// endRequest gives the place back.
func (q *sendScheduler) endRequest() {
	q.mu.Lock()
	q.mu.inFlight--
	q.mu.Unlock()
	q.signalLoop()
}

// shutGate closes the gate after a request that was started at that time failed as a whole; pause says for how long after that many
// failures. Requests that were under way when it was last moved add nothing: they failed for the same cause.
func (q *sendScheduler) shutGate(now, started time.Time, pause func(failures int) time.Duration) {
	q.mu.Lock()
	if !started.Before(q.mu.gateSet) {
		q.mu.failures++
		q.mu.gateSet = now
	}
	if until := now.Add(pause(q.mu.failures)); until.After(q.mu.gate) {
		q.mu.gate = until
	}
	q.mu.Unlock()
	q.signalLoop()
}

// openGate opens the gate after a request was answered.
func (q *sendScheduler) openGate() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.failures, q.mu.gate = 0, time.Time{}
}

// nextWake is when the loop must look again by itself; the zero time when only a signal can bring news.
func (q *sendScheduler) nextWake(limit int) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	var at time.Time
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
	if q.mu.readyHead != nil && q.mu.inFlight < limit && !q.mu.gate.IsZero() {
		sooner(q.mu.gate)
	}
	return at
}

// stopStarting makes start refuse, for good.
func (q *sendScheduler) stopStarting() {
	q.mu.Lock()
	q.mu.stopped = true
	q.mu.Unlock()
	q.signalLoop()
}

func (q *sendScheduler) isStopped() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.stopped
}

type parkedStream struct {
	s     *shardStream
	until time.Time
}

// parkedHeap is a heap for container/heap.
type parkedHeap []parkedStream

func (p parkedHeap) Len() int           { return len(p) }
func (p parkedHeap) Less(i, j int) bool { return p[i].until.Before(p[j].until) }
func (p parkedHeap) Swap(i, j int)      { p[i], p[j] = p[j], p[i] }
func (p *parkedHeap) Push(x any)        { *p = append(*p, x.(parkedStream)) }
func (p *parkedHeap) Pop() any {
	old := *p
	x := old[len(old)-1]
	old[len(old)-1] = parkedStream{}
	*p = old[:len(old)-1]
	return x
}
