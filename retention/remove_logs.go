package retention

import (
	"context"
	"fmt"
	"slices"
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
	// maxQueuedRemovals bounds the logs that wait for the pace of removing, 16 bytes each. A category with more is visited again when they are
	// removed.
	maxQueuedRemovals = 10_000
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

// removalQueue are the logs that wait for the pace of removing, as they were when their category was visited last. The engine compares, so a log
// that was opened since stays.
type removalQueue struct {
	logs   []metalog.Unused
	queued map[uint32]int // how many of logs, by category
	left   map[uint32]int // how many more did not fit, by category
}

func newRemovalQueue() *removalQueue {
	return &removalQueue{queued: map[uint32]int{}, left: map[uint32]int{}}
}

// replace takes the logs of a category that are to be removed now.
func (q *removalQueue) replace(id uint32, logs []metalog.Unused) {
	if q.queued[id] > 0 {
		q.logs = slices.DeleteFunc(q.logs, func(l metalog.Unused) bool { return l.Shard.Category() == id })
	}
	delete(q.queued, id)
	delete(q.left, id)
	n := min(len(logs), maxQueuedRemovals-len(q.logs))
	q.logs = append(q.logs, logs[:n]...)
	if n > 0 {
		q.queued[id] = n
	}
	if n < len(logs) {
		q.left[id] = len(logs) - n
	}
}

// take returns the first n logs, which leave the queue.
func (q *removalQueue) take(n int) []metalog.Unused {
	logs := slices.Clone(q.logs[:n])
	q.logs = slices.Delete(q.logs, 0, n)
	for _, l := range logs {
		id := l.Shard.Category()
		if q.queued[id]--; q.queued[id] == 0 {
			delete(q.queued, id)
		}
	}
	return logs
}

// putBack returns logs that could not be removed to the front.
func (q *removalQueue) putBack(logs []metalog.Unused) {
	q.logs = slices.Insert(q.logs, 0, logs...)
	for _, l := range logs {
		q.queued[l.Shard.Category()]++
	}
}

// takeLeft returns a category of which more is to be removed than was queued, once the queue is empty. It does not return it again before the
// next replace.
func (q *removalQueue) takeLeft() (id uint32, ok bool) {
	if len(q.logs) > 0 {
		return 0, false
	}
	for id := range q.left {
		delete(q.left, id)
		return id, true
	}
	return 0, false
}

// waiting returns how many logs wait, as far as is known.
func (q *removalQueue) waiting() int {
	n := len(q.logs)
	for _, left := range q.left {
		n += left
	}
	return n
}

// observeCell looks who is in the cell and what is planned. Without an answer of the control plane nothing is removed in this round.
func (r *logTrimmer) observeCell(ctx context.Context, now int64) {
	if r.c.cfg.LogRemovals == 0 {
		return
	}
	r.mayRemove = false
	res, err := r.c.deps.Control.ListMembers(ctx, &scribev1.ListMembersRequest{})
	if err != nil {
		if ctx.Err() == nil {
			r.c.reportFailure("removal", fmt.Errorf("list the members of the cell: %w", err))
		}
		return
	}
	var plans map[uint32]*scribev1.CategoryPlan
	if r.c.deps.Plans != nil {
		plans, _ = r.c.deps.Plans()
	}
	r.cell.observe(res.GetMembers(), plans, now)
	r.mayRemove = r.cell.mayRemove(now)
	held := 1.0
	if r.mayRemove {
		held = 0
	}
	r.c.metrics.removalsHeld.Set(held)
}

// queueUnused queues those logs of a category that nobody has used for long, and says in found when to look again.
func (r *logTrimmer) queueUnused(cat *scribev1.Category, states []metalog.State, at, now int64, found *trimResult) {
	if r.c.cfg.LogRemovals == 0 {
		return
	}
	remove, next := r.unused.chooseLogs(cat, states, at, now, r.cell.isPlanned)
	if !r.mayRemove && len(remove) > 0 {
		// Some of them may not be planned only because this keeper has not seen the plan yet.
		remove, next = nil, now+r.c.cfg.LogGrace.Microseconds()
	}
	found.nextUnused = next
	r.removals.replace(cat.GetId(), remove)
}

// removeQueued removes queued logs, as fast as the pace allows. A failure, as of an engine of before there was removing, does not stop the
// trimming: the logs are tried again in the next round.
func (r *logTrimmer) removeQueued(ctx context.Context, now int64) {
	defer func() { r.c.metrics.unused.Set(float64(r.removals.waiting())) }()
	for r.mayRemove {
		n := min(len(r.removals.logs), int(r.c.removals.Tokens()), removalBurst)
		if n <= 0 || !r.c.removals.AllowN(time.Now(), n) {
			break
		}
		logs := r.removals.take(n)
		if err := r.removeLogs(ctx, logs); err != nil {
			r.removals.putBack(logs)
			if ctx.Err() == nil {
				r.c.reportFailure("removal", fmt.Errorf("remove empty logs: %w", err))
			}
			return
		}
	}
	// Not before: the visits of a large category would delay those of others, and bring nothing that can be removed.
	if id, ok := r.removals.takeLeft(); ok {
		r.schedule.visitNow(id, now)
	}
}

// removeLogs removes those of some logs that nobody plans by now.
func (r *logTrimmer) removeLogs(ctx context.Context, logs []metalog.Unused) error {
	logs = slices.DeleteFunc(slices.Clone(logs), func(l metalog.Unused) bool { return r.cell.isPlanned(l.Shard) })
	if len(logs) == 0 {
		return nil
	}
	if err := r.c.waitForLog(ctx); err != nil {
		return err
	}
	removed, err := r.c.deps.Log.Remove(ctx, logs)
	if err != nil {
		return err
	}
	r.c.metrics.removed.Add(float64(removed))
	r.c.log.InfoContext(ctx, "empty logs removed", "logs", removed, "in_use", len(logs)-removed, "waiting", r.removals.waiting())
	return nil
}
