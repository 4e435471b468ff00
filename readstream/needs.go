package readstream

import "math"

// Needs returns, for each category that streams read, the persisted time from which they still need records, Unix microseconds: what has
// not been handed out of the logs, and what was sent and whose credits the client has not given back. Streams of which neither is known
// yet are left out.
func (s *Server) Needs() map[uint32]int64 {
	needs := map[uint32]int64{}
	for _, st := range s.openStreams() {
		from, ok := needs[st.cat.GetId()]
		if low := st.neededSince(); low > 0 && (!ok || low < from) {
			needs[st.cat.GetId()] = low
		}
	}
	return needs
}

// neededSince is the persisted time from which the stream needs records; 0 when that is not known.
func (st *consumerStream) neededSince() int64 {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.mu.closed {
		return 0
	}
	from := st.mu.owed.oldestTime()
	if low := st.merge.Low(); low > 0 {
		from = min(from, low)
	}
	if sourced := st.sourced.Load(); sourced > 0 && st.merge.Pending() > 0 {
		from = min(from, sourced) // a sequenced log is trimmed by the times of its sources, which are earlier
	}
	if from == math.MaxInt64 {
		return 0
	}
	return from
}
