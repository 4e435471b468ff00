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

// maxLoad is the load of a server that is at its limits.
const maxLoad = 1000

// streamShare is a stream's contribution to its server's load.
type streamShare struct {
	st   *consumerStream
	load float64 // of maxLoad
	age  time.Duration
}

// Limits of rebalancing. Moving streams costs their consumers something, so a server that is hardly loaded, or loaded about as
// much as the others, keeps its streams.
const (
	idleLoad    = 50 // a server below this load keeps its streams
	evenMargin  = 50 // a server above the mean by less than this, or by less than evenPart of it, is even
	evenPart    = 0.25
	evictedPart = 10 // at most one in this many streams is evicted at a time, but at least one
)

// chooseEvictions returns the streams that a server with load own evicts when other servers have the loads peers. It chooses
// streams that a less loaded server can take without becoming the more loaded one of the two, the largest first, until the server
// is even with the mean. It does no I/O; it changes streams.
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

// loadOf returns the load, of maxLoad, of streams, the shards that they follow and the pointers that they send per second.
func (c *Config) loadOf(streams, shards int64, rate float64) float64 {
	return maxLoad * (float64(streams)/float64(c.MaxStreams) + float64(shards)/float64(c.TotalShards) + rate/float64(c.PointersPerSecond))
}

// Load returns how busy the role is, 0 to 1000 (refusing): the sum of its used shares of the limits for streams, shards and
// pointers per second. What a new stream sends shows only seconds after it was opened; until then it counts as an average one, so
// that other servers do not evict all their streams toward a server whose load does not show yet.
func (s *Server) Load() uint32 {
	s.mu.Lock()
	streams, rate := len(s.mu.open), s.mu.rate
	if fresh := streams - s.mu.measured; fresh > 0 && s.mu.measured > 0 {
		rate += float64(fresh) * s.mu.rate / float64(s.mu.measured)
	}
	s.mu.Unlock()
	return uint32(min(s.cfg.loadOf(int64(streams), s.cursors.Load(), rate), maxLoad))
}

// balanceStreams periodically measures streams, and evicts some when other servers are less loaded. The intervals are jittered by
// a fifth, so that servers do not act together.
func (s *Server) balanceStreams(ctx context.Context) {
	last := s.clock()
	for {
		if backoff.Sleep(ctx, backoff.Jitter(s.deps.Random, s.cfg.BalanceEvery, 0.1)) != nil {
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

// measureLoad returns the server's load and each stream's contribution to it.
func (s *Server) measureLoad(now time.Time, passed time.Duration) (own float64, shares []streamShare) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rate float64
	for st := range s.mu.open {
		sent := st.sentPointers.Load()
		// A stream younger than the last measurement is measured since it was opened, but over at least a second: at first it
		// sends a burst.
		r := float64(sent-st.measured) / max(min(passed, max(now.Sub(st.since), time.Second)).Seconds(), 1e-3)
		st.measured = sent
		rate += r
		shards := st.shards.Load()
		shares = append(shares, streamShare{st: st, load: s.cfg.loadOf(1, shards, r), age: now.Sub(st.since)})
	}
	s.mu.rate, s.mu.measured = rate, len(s.mu.open)
	return min(s.cfg.loadOf(int64(len(s.mu.open)), s.cursors.Load(), rate), maxLoad), shares
}
