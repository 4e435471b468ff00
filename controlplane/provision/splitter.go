package provision

import (
	"cmp"
	"math"
	"slices"
	"time"
)

const (
	// splitMemory is the time constant of a shard's mean load: what lasts for minutes counts, not a burst.
	splitMemory = 5 * time.Minute
	// splitLoad is the mean load above which a shard is to be split. Of a load, mostCounted is counted at most, so that a burst of a
	// minute, however large, is none.
	splitLoad   = 1
	mostCounted = 2
	// SplitPause is the time after a split in which no shard of the category is split: writers learn of it, and the means settle.
	SplitPause = 15 * time.Minute
)

// Splitter decides which logical shards that have one log are to be split, because one batcher has to take more of them than it should.
// Other shards are divided into micro-shards, which costs readers nothing. It is a state machine without I/O, like Planner.
type Splitter struct {
	settings Settings
	shards   map[ShardID]*meanLoad
	// resting holds, by category, the time before which none of its shards is split.
	resting map[uint32]time.Duration
}

type meanLoad struct {
	mean float64
	at   time.Duration
}

// NewSplitter returns a splitter that knows of no traffic.
func NewSplitter(settings Settings) *Splitter {
	return &Splitter{settings: settings, shards: make(map[ShardID]*meanLoad), resting: make(map[uint32]time.Duration)}
}

// Step takes the traffic of all shards that have one log, and returns those to be split: the busiest of each category.
func (s *Splitter) Step(at time.Duration, traffic map[ShardID]Rate) []ShardID {
	for id, rate := range traffic {
		if s.shards[id] == nil && len(s.shards) < maxShards && s.settings.loadOf(rate) > splitLoad/2 {
			s.shards[id] = &meanLoad{at: at}
		}
	}
	busiest := make(map[uint32]ShardID)
	for id, m := range s.shards {
		m.mean += (min(s.settings.loadOf(traffic[id]), mostCounted) - m.mean) * (1 - math.Exp(-max(at-m.at, 0).Seconds()/splitMemory.Seconds()))
		m.at = at
		if _, reported := traffic[id]; !reported && m.mean < splitLoad/4.0 {
			delete(s.shards, id)
			continue
		}
		before, known := busiest[id.Category]
		if m.mean > splitLoad && (!known || m.mean > s.shards[before].mean || m.mean == s.shards[before].mean && id.Shard < before.Shard) {
			busiest[id.Category] = id
		}
	}
	for category, until := range s.resting {
		if at >= until {
			delete(s.resting, category)
		}
	}
	var out []ShardID
	for category, id := range busiest {
		if _, rests := s.resting[category]; !rests {
			out = append(out, id)
		}
	}
	slices.SortFunc(out, func(a, b ShardID) int { return cmp.Compare(a.Category, b.Category) })
	return out
}

// Rest says that a shard of a category was split, or that none is to be: the category rests for a while.
func (s *Splitter) Rest(at time.Duration, category uint32) { s.resting[category] = at + SplitPause }
