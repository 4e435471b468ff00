package readstream

import (
	"maps"
	"slices"
	"time"
)

// waitState is what a stream is waiting for, for metrics and for relieveMemory.
type waitState uint32

// Standings. The names of the waiting ones are values of a metric's label.
const (
	runs          waitState = 0
	waitsNews     waitState = 1 // nothing to send
	waitsCredits  waitState = 2
	waitsSend     waitState = 3 // the client, or the connection, does not accept what is sent
	waitsWindow   waitState = 4 // the window holds records back
	waitsLog      waitState = 5 // a read is slow or has failed
	lastStanding            = waitsLog
	relievePause            = 100 * time.Millisecond
	clientIsSlow            = 1<<waitsCredits | 1<<waitsSend
	everyStanding           = 1<<(lastStanding+1) - 1
)

var standingLabels = [lastStanding + 1]string{"", "news", "credits", "send", "window", "log"}

// relieveMemory frees memory when streams hold so much that others can't read in large steps: streams give back what they hold
// beyond an equal share, first those whose clients are slow. Streams that read call it; it acts at most once every relievePause.
func (s *Server) relieveMemory() {
	if !s.budget.Pressed() {
		return
	}
	now, last := time.Now().UnixNano(), s.relieved.Load()
	if now-last < int64(relievePause) || !s.relieved.CompareAndSwap(last, now) {
		return
	}
	streams := s.openStreams()
	for _, which := range []uint32{clientIsSlow, everyStanding} {
		for _, st := range streams {
			if which&(1<<st.standing.Load()) != 0 {
				s.metrics.returned.Add(float64(st.shrinkToShare()))
			}
		}
		if !s.budget.Pressed() {
			return
		}
	}
}

// shrinkToShare gives back what the stream holds beyond its share, and returns the number of bytes.
func (st *consumerStream) shrinkToShare() int {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.mu.closed {
		return 0
	}
	returned := st.merge.Shrink()
	if returned > 0 && len(st.mu.left) > 0 {
		st.dropPruned()
	}
	return returned
}

// openStreams returns the open streams.
func (s *Server) openStreams() []*consumerStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.mu.open))
}

// countWaiting returns the number of streams in a wait state.
func (s *Server) countWaiting(of waitState) float64 {
	n := 0
	for _, st := range s.openStreams() {
		if waitState(st.standing.Load()) == of {
			n++
		}
	}
	return float64(n)
}

// measureLag returns the number of pointers that streams have not sent, and the lag of the stream that lags most.
func (s *Server) measureLag() (pointers uint64, lag time.Duration) {
	now := s.clock().UnixMicro()
	for _, st := range s.openStreams() {
		st.mu.Lock()
		if !st.mu.closed {
			n, low := st.merge.Pending(), st.merge.Low()
			pointers += n
			if n > 0 && low > 0 && low < now {
				lag = max(lag, time.Duration(now-low)*time.Microsecond)
			}
		}
		st.mu.Unlock()
	}
	return pointers, lag
}
