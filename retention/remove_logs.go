package retention

import (
	"context"
	"fmt"
	"time"

	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

const (
	// neverUsedAge is how long a log stays that never had a record, from when this keeper saw it first: what is opened ahead for some hour of
	// each day is not removed in the others.
	neverUsedAge = 24 * time.Hour
	// maxNeverUsed bounds the logs without a record that are remembered, some 100 bytes each. Further ones have their turn later.
	maxNeverUsed = 100_000
	// removalBurst is how many logs may be removed at once, and in one call.
	removalBurst = 1000
)

// unusedLogs decides which empty logs are removed. It does no I/O. Times are the engine's, in Unix microseconds.
//
// A log is removed when it has no records and nobody has written it for the retention and the grace. That nobody reads it follows: the horizon
// of trimming is earlier while a reader pins what is before it.
type unusedLogs struct {
	grace time.Duration
	// never are the logs that never had a record, by category.
	never map[uint32]map[record.ShardID]neverUsedLog
	count int
}

// neverUsedLog is a log without a record: its epoch, and since when the keeper has seen it so.
type neverUsedLog struct {
	epoch uint64
	since int64
}

func newUnusedLogs(grace time.Duration) *unusedLogs {
	return &unusedLogs{grace: grace, never: map[uint32]map[record.ShardID]neverUsedLog{}}
}

// chooseLogs returns which logs of a category are to be removed now, of those that are not planned, and when the next one may be; 0 for none.
// at is the time below which the category was trimmed. Logs of a category that has one for each logical shard stay: there are as many as
// shards, and what they know of producers must. So do the sources of a sequenced one, whose positions the sequencer has.
func (u *unusedLogs) chooseLogs(cat *scribev1.Category, states []metalog.State, at, now int64, planned func(record.ShardID) bool) (remove []metalog.Unused, next int64) {
	before, never := u.never[cat.GetId()], map[record.ShardID]neverUsedLog{}
	u.dropCategory(cat.GetId())
	if cat.OneLog() || cat.IsSequenced() {
		return nil, 0
	}
	for i := range states {
		st := &states[i]
		if sequenced.Reserved(st.Shard) || st.Sealed || st.LastTime == 0 && st.FirstLSN < st.NextLSN {
			continue
		}
		due := st.LastTime + (now - at) + u.grace.Microseconds()
		if st.LastTime == 0 {
			seen := before[st.Shard]
			if seen.epoch != st.Epoch {
				seen = neverUsedLog{epoch: st.Epoch, since: now}
			}
			if u.count+len(never) < maxNeverUsed {
				never[st.Shard] = seen
			}
			due = seen.since + neverUsedAge.Microseconds()
		}
		switch {
		case due > now:
			if next == 0 || due < next {
				next = due
			}
		case st.FirstLSN == st.NextLSN && !planned(st.Shard):
			remove = append(remove, metalog.Unused{Shard: st.Shard, Epoch: st.Epoch})
		}
	}
	if len(never) > 0 {
		u.never[cat.GetId()] = never
		u.count += len(never)
	}
	return remove, next
}

// dropCategory forgets the logs of a category.
func (u *unusedLogs) dropCategory(id uint32) {
	u.count -= len(u.never[id])
	delete(u.never, id)
}

// removeUnused removes logs of a category that nobody has used for long, as fast as the pace allows, and says in found when to look again. A
// failure, as of an engine of before there was removing, does not stop the trimming.
func (r *logTrimmer) removeUnused(ctx context.Context, cat *scribev1.Category, states []metalog.State, at, now int64, found *trimResult) {
	if r.c.cfg.LogRemovals == 0 {
		return
	}
	remove, next := r.unused.chooseLogs(cat, states, at, now, r.c.plannedLogs())
	found.nextUnused = next
	n := min(len(remove), int(r.c.removals.Tokens()))
	if n > 0 && !r.c.removals.AllowN(time.Now(), n) {
		n = 0
	}
	r.setWaiting(cat.GetId(), len(remove)-n)
	found.waiting = n < len(remove)
	if n == 0 {
		return
	}
	err := r.c.waitForLog(ctx)
	var removed int
	if err == nil {
		removed, err = r.c.deps.Log.Remove(ctx, remove[:n])
	}
	if err != nil {
		if ctx.Err() == nil {
			r.c.reportFailure("removal", fmt.Errorf("remove empty logs of category %q: %w", cat.GetName(), err))
		}
		return
	}
	r.c.metrics.removed.Add(float64(removed))
	r.c.log.InfoContext(ctx, "empty logs removed", "category", cat.GetName(), "logs", removed, "in_use", n-removed, "waiting", len(remove)-n)
}

// setWaiting notes how many logs of a category wait for the pace of removing.
func (r *logTrimmer) setWaiting(id uint32, logs int) {
	r.waiting[id] = logs
	if logs == 0 {
		delete(r.waiting, id)
	}
	sum := 0
	for _, n := range r.waiting {
		sum += n
	}
	r.c.metrics.unused.Set(float64(sum))
}

// plannedLogs returns what says of a log whether its batcher is to have it open.
func (c *Keeper) plannedLogs() func(record.ShardID) bool {
	if c.deps.Planned == nil {
		return func(record.ShardID) bool { return false }
	}
	return c.deps.Planned()
}
