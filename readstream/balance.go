package readstream

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"scribe/internal/base/backoff"
	scribev1 "scribe/proto/scribe/v1"
)

// maxLoad is the load of a server that can take no more.
const maxLoad = 1000

// streamShare is what a stream adds to its server's load.
type streamShare struct {
	st   *consumerStream
	load float64 // of maxLoad
	age  time.Duration
}

// Limits of rebalancing. A server is left alone when it is hardly loaded, or about as loaded as the others: what moving streams
// costs their consumers must be worth it.
const (
	idleLoad    = 50 // a server with less keeps what it has
	evenMargin  = 50 // above the mean by less than this, or by less than evenPart of it, is even
	evenPart    = 0.25
	evictedPart = 10 // one in so many streams is sent away at a time, at least one
)

// chooseEvictions decides which streams a server with load own sends away, when the others have the loads of peers. Those move that a less
// loaded server can take without becoming the more loaded one of the two, the largest first, until the server is even with the mean. It is
// free of I/O; streams is changed.
func chooseEvictions(own float64, peers []uint32, streams []streamShare, youngest time.Duration) []streamShare {
	if len(peers) == 0 || own < idleLoad {
		return nil
	}
	sum, least := own, float64(maxLoad)
	for _, p := range peers {
		sum += float64(p)
		least = min(least, float64(p))
	}
	mean := sum / float64(len(peers)+1)
	margin := max(evenMargin, evenPart*mean)
	most := max(len(streams)/evictedPart, 1)
	slices.SortFunc(streams, func(a, b streamShare) int { return cmp.Compare(b.load, a.load) })
	var away []streamShare
	for _, s := range streams {
		if own-mean < margin || len(away) == most {
			break
		}
		if s.age < youngest || s.load > own-mean || s.load > (own-least)/2 {
			continue
		}
		away = append(away, s)
		own -= s.load
		least += s.load
	}
	return away
}

// loadOf is what streams, their shards and the pointers they send a second make of a server, of maxLoad.
func (c *Config) loadOf(streams, shards int64, rate float64) float64 {
	return maxLoad * (float64(streams)/float64(c.MaxStreams) + float64(shards)/float64(c.TotalShards) + rate/float64(c.PointersPerSecond))
}

// Load is how busy the role is, 0 to 1000 (refusing): the sum of what its streams take of the streams, the shards and the pointers a
// second that it may have. What a new stream will send shows seconds after it was opened; until then it counts like the average one, so that
// others do not send all of theirs to a server that does not look as busy yet as it is about to be.
func (s *Server) Load() uint32 {
	s.mu.Lock()
	streams, rate := len(s.mu.open), s.mu.rate
	if fresh := streams - s.mu.measured; fresh > 0 && s.mu.measured > 0 {
		rate += float64(fresh) * s.mu.rate / float64(s.mu.measured)
	}
	s.mu.Unlock()
	return uint32(min(s.cfg.loadOf(int64(streams), s.cursors.Load(), rate), maxLoad))
}

// balanceStreams measures streams now and then, and sends some away when other servers are less loaded. The intervals vary by a fifth, so that servers do
// not act together.
func (s *Server) balanceStreams(ctx context.Context) {
	last := s.clock()
	for {
		if backoff.Sleep(ctx, backoff.Jitter(s.cfg.BalanceEvery, 0.1)) != nil {
			return
		}
		now := s.clock()
		own, shares := s.measureLoad(now, now.Sub(last))
		last = now
		if s.deps.Peers == nil {
			continue
		}
		for _, away := range chooseEvictions(own, s.deps.Peers(), shares, s.cfg.MinStreamAge) {
			away.st.sendAway(evictionNotice{
				scribev1.Reason_REASON_OVERLOADED,
				fmt.Sprintf("this server has a load of %.0f, others have less: the stream can go on at one of them", own),
			})
		}
	}
}

// measureLoad returns the server's load and what each stream adds to it.
func (s *Server) measureLoad(now time.Time, passed time.Duration) (own float64, shares []streamShare) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rate float64
	for st := range s.mu.open {
		sent := st.sentPointers.Load()
		// Of one that is younger than the last measurement: since it was opened, but what it sends at first is a burst.
		r := float64(sent-st.measured) / max(min(passed, max(now.Sub(st.since), time.Second)).Seconds(), 1e-3)
		st.measured = sent
		rate += r
		shards := st.shards.Load()
		shares = append(shares, streamShare{st: st, load: s.cfg.loadOf(1, shards, r), age: now.Sub(st.since)})
	}
	s.mu.rate, s.mu.measured = rate, len(s.mu.open)
	return min(s.cfg.loadOf(int64(len(s.mu.open)), s.cursors.Load(), rate), maxLoad), shares
}
