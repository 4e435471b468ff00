package readstream

import "math"

// Needs returns, for each category that streams read, the persisted time from which they still need records, in Unix
// microseconds. Needed are records that were not handed out yet, and records that were sent but whose credits the client has not
// returned. Streams for which neither is known yet are left out.
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

// neededSince returns the persisted time from which the stream needs records; 0 when it is unknown.
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
		from = min(from, sourced) // a sequenced log is trimmed by its sources' times, which are earlier
	}
	if from == math.MaxInt64 {
		return 0
	}
	return from
}
