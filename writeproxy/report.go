package writeproxy

import (
	"cmp"
	"slices"
	"time"

	scribev1 "scribe/proto/scribe/v1"
)

const (
	// maxReported bounds the shards of a report. The control plane takes as many.
	maxReported = 1000
	// reportedPart is the part of a micro-shard's load from which on a shard is reported: a cell has any number of trickles.
	reportedPart = 1.0 / 256
)

// TrafficReport returns what the proxy has sent since the last report, of the busiest logical shards that have any traffic to speak of,
// the busiest first. It is not called concurrently.
func (p *Proxy) TrafficReport() []*scribev1.ShardTraffic {
	now := p.now()
	// Heartbeats after a failed one come at once. What passed in so short a time is no rate.
	if since := now - p.reported; since >= time.Second {
		p.reported, p.lastReport = now, p.traffic.takeReport(since, maxReported)
	}
	return p.lastReport
}

// takeReport returns the rates of the busiest shards in the time since the last report, and begins another.
func (s *shardTraffic) takeReport(since time.Duration, most int) []*scribev1.ShardTraffic {
	type counted struct {
		load    float64
		traffic *scribev1.ShardTraffic
	}
	var all []counted
	for i := range s.stripes {
		stripe := &s.stripes[i]
		stripe.Lock()
		for _, t := range stripe.byKey {
			rate := microLoad{float64(t.bytes) / since.Seconds(), float64(t.messages) / since.Seconds()}
			t.bytes, t.messages = 0, 0
			if load := s.target.countFor(rate); load >= reportedPart {
				all = append(all, counted{load, &scribev1.ShardTraffic{
					Category: t.category, Shard: t.shard, BytesPerSecond: uint64(rate.bytes), MessagesPerSecond: uint64(rate.messages), OneLog: t.oneLog,
				}})
			}
		}
		stripe.Unlock()
	}
	slices.SortFunc(all, func(a, b counted) int {
		return cmp.Or(cmp.Compare(b.load, a.load), cmp.Compare(a.traffic.GetCategory(), b.traffic.GetCategory()), cmp.Compare(a.traffic.GetShard(), b.traffic.GetShard()))
	})
	out := make([]*scribev1.ShardTraffic, 0, min(len(all), most))
	for _, c := range all[:min(len(all), most)] {
		out = append(out, c.traffic)
	}
	return out
}

// plannedMicro returns how many micro-shards a plan gives a logical shard at least; 1 without a plan.
func plannedMicro(plan *scribev1.CategoryPlan, shard uint32) int {
	shards := plan.GetShards()
	at, found := slices.BinarySearchFunc(shards, shard, func(s *scribev1.ShardPlan, shard uint32) int { return cmp.Compare(s.GetShard(), shard) })
	if !found {
		return 1
	}
	return int(shards[at].GetMicroShards())
}
