package controlplane

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"scribe/controlplane/provision"
	scribev1 "scribe/proto/scribe/v1"
)

const (
	// maxReported bounds the shards that one member reports; further ones are ignored. They come busiest first.
	maxReported = 1000
	// reportTTL is how long a report counts. Members report several times in it.
	reportTTL = 20 * time.Second
	// maxReportedRate bounds what a report is believed, in bytes or messages a second.
	maxReportedRate = 1 << 50
)

// trafficTable has what the members reported last of the traffic of logical shards. It lives in the memory of the leader: reports are
// repeated every few seconds.
type trafficTable struct {
	mu struct {
		sync.Mutex
		reports map[string]trafficReport
	}
}

// trafficReport is the report of one member. It is not changed.
type trafficReport struct {
	expires time.Time
	shards  []*scribev1.ShardTraffic
}

func newTrafficTable() *trafficTable {
	t := &trafficTable{}
	t.mu.reports = make(map[string]trafficReport)
	return t
}

// replaceReport replaces the report of a member.
func (t *trafficTable) replaceReport(now time.Time, member string, shards []*scribev1.ShardTraffic) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(shards) == 0 {
		delete(t.mu.reports, member)
		return
	}
	t.mu.reports[member] = trafficReport{expires: now.Add(reportTTL), shards: shards[:min(len(shards), maxReported)]}
}

// shardRate is the traffic of a logical shard in all of the cell.
type shardRate struct {
	provision.Rate
	// oneLog: the shard has one log whatever its traffic is, so there is nothing to plan.
	oneLog bool
}

// addUp returns the traffic of all shards that are reported.
func (t *trafficTable) addUp(now time.Time) map[provision.ShardID]shardRate {
	t.mu.Lock()
	defer t.mu.Unlock()
	total := make(map[provision.ShardID]shardRate)
	for member, r := range t.mu.reports {
		if !now.Before(r.expires) {
			delete(t.mu.reports, member)
			continue
		}
		for _, s := range r.shards {
			id := provision.ShardID{Category: s.GetCategory(), Shard: s.GetShard()}
			if id.Category == 0 || id.Shard > math.MaxUint16 {
				continue
			}
			rate := total[id]
			rate.Bytes += float64(min(s.GetBytesPerSecond(), maxReportedRate))
			rate.Messages += float64(min(s.GetMessagesPerSecond(), maxReportedRate))
			rate.oneLog = rate.oneLog || s.GetOneLog()
			total[id] = rate
		}
	}
	return total
}

// describeShards describes the logical shards of a category that have traffic or a plan, by number.
func (c *ControlPlane) describeShards(category uint32) []*scribev1.ShardStatus {
	byShard := make(map[uint32]*scribev1.ShardStatus)
	of := func(shard uint32) *scribev1.ShardStatus {
		if byShard[shard] == nil {
			byShard[shard] = &scribev1.ShardStatus{Shard: shard, MicroShards: 1}
		}
		return byShard[shard]
	}
	for id, rate := range c.traffic.addUp(time.Now()) {
		if id.Category == category {
			s := of(id.Shard)
			s.BytesPerSecond, s.MessagesPerSecond = uint64(rate.Bytes), uint64(rate.Messages)
		}
	}
	value, _ := c.plans.stateOf(planKey(category))
	if plan, err := decodePlan(planKey(category), value); err == nil {
		for _, p := range plan.GetShards() {
			s := of(p.GetShard())
			s.MicroShards, s.Logs = p.GetMicroShards(), p.GetLogs()
		}
	}
	return slices.SortedFunc(maps.Values(byShard), func(a, b *scribev1.ShardStatus) int { return cmp.Compare(a.GetShard(), b.GetShard()) })
}
