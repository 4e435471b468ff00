package provision

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	scribev1 "scribe/proto/scribe/v1"
)

// Bounds of a planner. What is not tracked has one micro-shard, and its logs are opened by their first records.
const (
	// MaxPlanned bounds the shards of a category that are tracked and planned.
	MaxPlanned = 256
	// maxCategories and maxShards bound what is tracked in all: 30 MB of histories, 10 MB of shards.
	maxCategories = 10_000
	maxShards     = 65_536
	// maxLogs bounds the micro-shards and the logs of a shard.
	maxLogs = 1024
)

// Settings are what one micro-shard takes, a second: what one batcher should get of a logical shard.
type Settings struct {
	MicroShardBytes    float64
	MicroShardMessages float64
}

// loadOf returns a rate in micro-shards.
func (s *Settings) loadOf(r Rate) float64 {
	return max(r.Bytes/s.MicroShardBytes, r.Messages/s.MicroShardMessages)
}

// ShardID names a logical shard.
type ShardID struct{ Category, Shard uint32 }

// Rate is traffic a second.
type Rate struct{ Bytes, Messages float64 }

// Planner plans for all categories. Make it with New.
type Planner struct {
	settings   Settings
	categories map[uint32]*categoryTrack
	shards     int // of all categories
}

// categoryTrack is the planner's state of one category.
type categoryTrack struct {
	shards  map[uint32]*shardTrack
	history hourlyHistory
	plan    *scribev1.CategoryPlan // nil is no plan
	// planChanged and historyChanged say that what is stored differs; hasHistory that a history is stored.
	planChanged, historyChanged, hasHistory bool
}

// New returns a planner that knows of no traffic.
func New(settings Settings) *Planner {
	return &Planner{settings: settings, categories: make(map[uint32]*categoryTrack)}
}

// RestorePlan takes over the stored plan of a category. It comes before RestoreHistory and Step.
func (p *Planner) RestorePlan(at time.Duration, plan *scribev1.CategoryPlan) {
	c := p.trackCategory(plan.GetCategory())
	if c == nil {
		return
	}
	for _, s := range plan.GetShards() {
		if t := p.trackShard(c, s.GetShard()); t != nil {
			t.restore(at, int(min(s.GetMicroShards(), maxLogs)), int(min(s.GetLogs(), maxLogs)))
		}
	}
	c.plan = plan
}

// RestoreHistory takes over the stored history of a category. hour is the present one.
func (p *Planner) RestoreHistory(category uint32, h *scribev1.TrafficHistory, hour int64) {
	c := p.trackCategory(category)
	if c == nil {
		return
	}
	c.hasHistory = true
	c.history.restore(h, hour)
	for _, s := range h.GetShares() {
		if t := p.trackShard(c, s.GetShard()); t != nil {
			t.share = float64(min(s.GetMillionths(), 1e6)) / 1e6
		}
	}
}

// trackCategory returns the category, tracked from now on; nil if there are too many.
func (p *Planner) trackCategory(id uint32) *categoryTrack {
	c := p.categories[id]
	if c == nil && len(p.categories) < maxCategories {
		c = &categoryTrack{shards: make(map[uint32]*shardTrack)}
		p.categories[id] = c
	}
	return c
}

// trackShard returns a shard of the category, tracked from now on; nil if there are too many.
func (p *Planner) trackShard(c *categoryTrack, shard uint32) *shardTrack {
	t := c.shards[shard]
	if t == nil && len(c.shards) < MaxPlanned && p.shards < maxShards {
		t = &shardTrack{}
		c.shards[shard] = t
		p.shards++
	}
	return t
}

// Step takes the traffic of all shards that have any worth mentioning, and plans. at is the time by a clock that does not go back, hour
// the hour of the day and year, in hours since 1970.
func (p *Planner) Step(at time.Duration, hour int64, traffic map[ShardID]Rate) {
	for id, rate := range traffic {
		if c := p.trackCategory(id.Category); c != nil {
			if t := p.trackShard(c, id.Shard); t != nil {
				t.rate = rate
			}
		}
	}
	for id, c := range p.categories {
		p.stepCategory(c, at, hour)
		c.makePlan(id)
		if c.isIdle() {
			p.forget(id)
		}
	}
}

// forget ends the tracking of a category.
func (p *Planner) forget(id uint32) {
	p.shards -= len(p.categories[id].shards)
	delete(p.categories, id)
}

// stepCategory plans the shards of one category.
func (p *Planner) stepCategory(c *categoryTrack, at time.Duration, hour int64) {
	if c.history.advance(hour) {
		c.endHour()
	}
	var total Rate
	for _, t := range c.shards {
		total.Bytes += t.rate.Bytes
		total.Messages += t.rate.Messages
	}
	c.history.noteRate(at, total)
	historic := p.settings.loadOf(c.history.expected())
	for shard, t := range c.shards {
		t.observe(at, p.settings.loadOf(t.rate), historic*t.share)
		t.rate = Rate{}
		if t.isIdle() {
			delete(c.shards, shard)
			p.shards--
		}
	}
}

// endHour learns from the hour that has ended how the traffic is divided among the shards.
func (c *categoryTrack) endHour() {
	c.historyChanged = c.hasHistory || !c.history.isEmpty()
	total := 0.0
	for _, t := range c.shards {
		total += t.sum
	}
	for _, t := range c.shards {
		switch {
		case c.history.isEmpty():
			t.share = 0
		case total == 0: // it keeps its shares for the days on which it has traffic
		case t.share == 0:
			t.share = t.sum / total
		default:
			t.share += (t.sum/total - t.share) * shareMemory
		}
		t.sum = 0
	}
}

// makePlan makes the plan of a category from those of its shards.
func (c *categoryTrack) makePlan(id uint32) {
	plan := &scribev1.CategoryPlan{Category: id}
	for _, shard := range slices.Sorted(maps.Keys(c.shards)) {
		if t := c.shards[shard]; t.logs > 0 {
			plan.Shards = append(plan.Shards, &scribev1.ShardPlan{Shard: shard, MicroShards: uint32(t.micro), Logs: uint32(t.logs)}) //nolint:gosec // at most maxLogs
		}
	}
	if len(plan.GetShards()) == 0 {
		plan = nil
	}
	if (plan == nil) != (c.plan == nil) || !proto.Equal(plan, c.plan) {
		c.plan, c.planChanged = plan, true
	}
}

// isIdle reports whether there is nothing to know of a category, and nothing of it is stored.
func (c *categoryTrack) isIdle() bool {
	return len(c.shards) == 0 && c.plan == nil && !c.planChanged && !c.historyChanged && !c.hasHistory
}

// Change is what is to be stored of a category.
type Change struct {
	Category uint32
	// NewPlan says that Plan, nil for none, is to be stored; NewHistory the same of History.
	NewPlan, NewHistory bool
	Plan                *scribev1.CategoryPlan
	History             *scribev1.TrafficHistory
}

// Changes returns what is to be stored, by category. It is returned again until Stored was called for it, before the next Step.
func (p *Planner) Changes() []Change {
	var out []Change
	for id, c := range p.categories {
		if !c.planChanged && !c.historyChanged {
			continue
		}
		ch := Change{Category: id, NewPlan: c.planChanged, NewHistory: c.historyChanged, Plan: c.plan}
		if c.historyChanged && !c.history.isEmpty() {
			ch.History = c.history.encode()
			for _, shard := range slices.Sorted(maps.Keys(c.shards)) {
				if t := c.shards[shard]; t.share >= leastShare {
					ch.History.Shares = append(ch.History.Shares, &scribev1.ShardShare{Shard: shard, Millionths: uint32(t.share * 1e6)})
				}
			}
		}
		out = append(out, ch)
	}
	slices.SortFunc(out, func(a, b Change) int { return cmp.Compare(a.Category, b.Category) })
	return out
}

// Stored says that a change is stored.
func (p *Planner) Stored(ch Change) {
	c := p.categories[ch.Category]
	c.planChanged = c.planChanged && !ch.NewPlan
	if ch.NewHistory {
		c.historyChanged, c.hasHistory = false, ch.History != nil
	}
}

// Tracked returns how many categories and shards are tracked.
func (p *Planner) Tracked() (categories, shards int) { return len(p.categories), p.shards }

// Forget forgets categories that were deleted. What is stored of them is to be removed.
func (p *Planner) Forget(deleted func(category uint32) bool) {
	for id, c := range p.categories {
		if !deleted(id) {
			continue
		}
		p.shards -= len(c.shards)
		c.shards, c.history = make(map[uint32]*shardTrack), hourlyHistory{}
		c.planChanged, c.historyChanged = c.planChanged || c.plan != nil, c.historyChanged || c.hasHistory
		c.plan = nil
	}
}
