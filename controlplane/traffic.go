package controlplane

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"scribe/controlplane/provision"
	"scribe/internal/format/sequenced"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
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

// LogLister is the part of the metadata engine that says which logs categories have.
type LogLister interface {
	Shards(ctx context.Context, category uint32) ([]metalog.State, error)
	RemovedShards(ctx context.Context, category uint32, since int64) ([]metalog.State, error)
}

// listLimit bounds how long the description of a category waits for the metadata engine.
const listLimit = 2 * time.Second

// listLogs returns the logs of a category that exist and those that were removed. It reports false if the metadata engine does not say.
func (c *ControlPlane) listLogs(ctx context.Context, category uint32) (existing, removed []metalog.State, ok bool) {
	if c.deps.Logs == nil {
		return nil, nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	existing, err := c.deps.Logs.Shards(ctx, category)
	if err == nil {
		removed, err = c.deps.Logs.RemovedShards(ctx, category, 0)
	}
	if err != nil {
		c.logger.WarnContext(ctx, "the logs of a category can't be listed", "category_id", category, "error", err)
		return nil, nil, false
	}
	return existing, removed, true
}

// describeShards describes the logical shards of a category that have traffic, a plan or logs, by number. It reports whether logs were counted.
func (c *ControlPlane) describeShards(ctx context.Context, category uint32) (shards []*scribev1.ShardStatus, counted bool) {
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
	existing, removed, counted := c.listLogs(ctx, category)
	for _, st := range existing {
		if sequenced.Reserved(st.Shard) {
			continue
		}
		s := of(uint32(st.Shard.Logical()))
		s.ExistingLogs++
		if st.FirstLSN == st.NextLSN {
			s.EmptyLogs++
		}
	}
	for _, st := range removed {
		of(uint32(st.Shard.Logical())).RemovedLogs++
	}
	return slices.SortedFunc(maps.Values(byShard), func(a, b *scribev1.ShardStatus) int { return cmp.Compare(a.GetShard(), b.GetShard()) }), counted
}
