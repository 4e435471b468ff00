package readstream

// Needs returns, for each category that streams read, the persisted time from which they still need records, Unix microseconds: what has
// not been handed out of the logs. Streams of which that is not known yet are left out.
func (s *Server) Needs() map[uint32]int64 {
	s.mu.Lock()
	streams := make([]*stream, 0, len(s.mu.open))
	for st := range s.mu.open {
		streams = append(streams, st)
	}
	s.mu.Unlock()
	needs := map[uint32]int64{}
	for _, st := range streams {
		st.mu.Lock()
		low := int64(0)
		if !st.mu.closed {
			low = st.merge.Low()
		}
		st.mu.Unlock()
		if from, ok := needs[st.cat.GetId()]; low > 0 && (!ok || low < from) {
			needs[st.cat.GetId()] = low
		}
	}
	return needs
}
