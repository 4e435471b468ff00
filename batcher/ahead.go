package batcher

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"scribe/internal/format/record"
	"scribe/internal/role/affinity"
	scribev1 "scribe/proto/scribe/v1"
)

const (
	// aheadChunk is how many logs are opened ahead in one call. A flush that needs one of them waits for that call at most.
	aheadChunk = 1000
	// aheadRetry is the pause before logs are opened ahead again that could not be, or while the batcher has no slot.
	aheadRetry = time.Second
)

// Provision is what a batcher needs to know to open logs before their records come.
type Provision struct {
	// Plans returns the plans of all categories by id, and a channel that is closed when there are others.
	Plans func() (byID map[uint32]*scribev1.CategoryPlan, replaced <-chan struct{})
	// Batchers returns the ids of the cell's batchers, and a channel that is closed when there may be others.
	Batchers func() (ids []string, replaced <-chan struct{})
}

// aheadState is what was opened ahead. Its goroutine owns it.
type aheadState struct {
	slot     uint16
	batchers []string
	// done has the plans whose logs were opened, for this slot among these batchers.
	done map[uint32]*scribev1.CategoryPlan
}

// runAhead opens logs ahead of need whenever the plans, the batchers or the slot change, until ctx ends.
func (b *Batcher) runAhead(ctx context.Context) {
	var s aheadState
	for {
		plans, plansReplaced := b.deps.Provision.Plans()
		batchers, batchersReplaced := b.deps.Provision.Batchers()
		var again <-chan time.Time
		if !b.openAhead(ctx, &s, plans, batchers) {
			again = time.After(aheadRetry)
		}
		select {
		case <-plansReplaced:
		case <-batchersReplaced:
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}

// openAhead opens the logs that plans ask this batcher for and that were not opened yet, and reports whether all of them are.
func (b *Batcher) openAhead(ctx context.Context, s *aheadState, plans map[uint32]*scribev1.CategoryPlan, batchers []string) bool {
	slot := b.deps.Slot()
	if slot != s.slot || !slices.Equal(batchers, s.batchers) {
		*s = aheadState{slot: slot, batchers: slices.Clone(batchers)}
	}
	if s.done == nil {
		s.done = make(map[uint32]*scribev1.CategoryPlan)
	}
	maps.DeleteFunc(s.done, func(id uint32, p *scribev1.CategoryPlan) bool { return plans[id] != p })
	fresh := make([]*scribev1.CategoryPlan, 0, len(plans)-len(s.done))
	for id, p := range plans {
		if s.done[id] == nil {
			fresh = append(fresh, p)
		}
	}
	// A list of batchers without this one is not complete yet: by it everybody would open everything.
	if slot == 0 || !slices.Contains(batchers, b.deps.Owner) {
		return len(fresh) == 0
	}
	slices.SortFunc(fresh, func(a, b *scribev1.CategoryPlan) int { return cmp.Compare(a.GetCategory(), b.GetCategory()) })
	logs := plannedLogs(fresh, b.deps.Owner, batchers, slot)
	if most := b.cfg.MaxLogs / 2; len(logs) > most { // the other half is for logs with records
		b.deps.Logger.WarnContext(ctx, "too many logs to open ahead of need", slog.Int("logs", len(logs)), slog.Int("limit", most))
		logs = logs[:most]
	}
	complete := true
	for some := range slices.Chunk(logs, aheadChunk) {
		b.closeOutdated(ctx, some)
		// Only the logs of this call are marked: a flush opens by itself what has not had its turn yet.
		if some = b.queues.BeginOpening(some); len(some) > 0 {
			opened, ok := b.openSome(ctx, some)
			b.metrics.opensAhead.Add(float64(opened))
			complete = complete && ok
		}
		if ctx.Err() != nil {
			return false
		}
	}
	if complete {
		for _, p := range fresh {
			s.done[p.GetCategory()] = p
		}
	}
	return complete
}

// plannedLogs returns the logs that plans ask a batcher for: of the shards of which it is one of the first batchers, as many as planned.
func plannedLogs(plans []*scribev1.CategoryPlan, batcher string, batchers []string, slot uint16) (logs []record.ShardID) {
	own, all := affinity.HashOf(batcher), make([]uint64, len(batchers))
	for i, id := range batchers {
		all[i] = affinity.HashOf(id)
	}
	for _, p := range plans {
		for _, s := range p.GetShards() {
			if affinity.IsAmong(affinity.KeyOf(p.GetCategory(), s.GetShard()), own, all, int(s.GetLogs())) {
				logs = append(logs, record.MakeShardID(p.GetCategory(), uint16(s.GetShard()), slot)) //nolint:gosec // numbers of shards have 16 bits
			}
		}
	}
	return logs
}

// closeOutdated finds the planned logs that this batcher takes to be open although they were removed: while nothing was planned for them, they
// were empty for longer than the retention. Where the engine does not answer, their first flush finds out.
func (b *Batcher) closeOutdated(ctx context.Context, logs []record.ShardID) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.LogTimeout)
	defer cancel()
	if states, err := b.deps.Log.Tail(ctx, logs); err == nil {
		b.queues.CloseOutdated(states)
	}
}
