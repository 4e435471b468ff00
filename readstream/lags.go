package readstream

import (
	"cmp"
	"slices"
	"time"
)

// CategoryLag is how far the readers of a category are behind.
type CategoryLag struct {
	Category, Owner string
	// Readers are the open streams.
	Readers int
	// Lag is that of the stream that lags most; Pending are the pointers that streams have not sent, each counting its own.
	Lag     time.Duration
	Pending uint64
}

// Lags returns the lag of every category that streams read, by name.
func (s *Server) Lags() []CategoryLag {
	now := s.clock().UnixMicro()
	byName := map[string]*CategoryLag{}
	for _, st := range s.openStreams() {
		l := byName[st.cat.GetName()]
		if l == nil {
			l = &CategoryLag{Category: st.cat.GetName(), Owner: st.cat.GetOwner()}
			byName[l.Category] = l
		}
		l.Readers++
		st.mu.Lock()
		if !st.mu.closed {
			n, low := st.merge.Pending(), st.merge.Low()
			l.Pending += n
			if n > 0 && low > 0 && low < now {
				l.Lag = max(l.Lag, time.Duration(now-low)*time.Microsecond)
			}
		}
		st.mu.Unlock()
	}
	lags := make([]CategoryLag, 0, len(byName))
	for _, l := range byName {
		lags = append(lags, *l)
	}
	slices.SortFunc(lags, func(a, b CategoryLag) int { return cmp.Compare(a.Category, b.Category) })
	return lags
}
