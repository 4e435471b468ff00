package readstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readstream/feed"
	"scribe/readstream/merge"
	"scribe/storage/metalog"
)

// feedListener receives a feed's notifications for a stream. It only records them: the driver acts on them.
type feedListener struct{ *consumerStream }

var _ feed.Listener = feedListener{}

// Updates implements feed.Listener.
func (l feedListener) Updates(updates []metalog.Update) {
	l.mu.Lock()
	for i := range updates {
		l.merge.Update(&updates[i])
	}
	l.mu.Unlock()
	l.wake.WakeUp()
}

// Tail implements feed.Listener.
func (l feedListener) Tail(shard record.ShardID, next record.LSN, mark int64, sealed bool) {
	l.mu.Lock()
	l.merge.Tail(shard, next, mark, sealed)
	l.mu.Unlock()
	l.wake.WakeUp()
}

// Floor implements feed.Listener.
func (l feedListener) Floor(t int64) {
	l.mu.Lock()
	l.merge.Floor(t)
	l.mu.Unlock()
	if l.plan.window != merge.Unbounded { // otherwise nothing waits for it
		l.wake.WakeUp()
	}
}

// Shards implements feed.Listener.
func (l feedListener) Shards(fresh []record.ShardID, horizon int64) {
	l.mu.Lock()
	for _, shard := range fresh {
		if l.plan.wantsShard(shard) && !l.merge.Has(shard) {
			l.mu.appeared = append(l.mu.appeared, shard)
		}
	}
	l.mu.horizon = max(l.mu.horizon, horizon)
	l.noteLooked()
	l.mu.Unlock()
	l.wake.WakeUp()
}

// Fail implements feed.Listener.
func (l feedListener) Fail(err error) {
	if errors.Is(err, metalog.ErrClosed) {
		l.engineClosed()
		return
	}
	l.failStream(l.engineLost(err))
}

// noteLooked tells the merge of a look once the shards that it found were added. The mutex is held.
func (st *consumerStream) noteLooked() {
	if len(st.mu.appeared) == 0 && !st.mu.joining {
		st.merge.Looked(st.mu.horizon)
	}
}

// joinedShards are new shards with their states.
type joinedShards struct {
	shards []record.ShardID
	states []metalog.State
	err    error
}

// startJoin starts adding the shards that the feed has reported, from their first records on. Meanwhile the stream continues as
// far as its window allows without them.
func (st *consumerStream) startJoin(ctx context.Context, shards []record.ShardID) {
	slices.Sort(shards)
	shards = slices.Compact(shards)
	st.member.Hold() // so that the tails fetched now are newer than any floor
	st.running.Go(func() {
		found := joinedShards{shards: shards}
		if slices.ContainsFunc(shards, func(log record.ShardID) bool { return isUnknownShard(st.cat, log) }) && !st.checkSplit(ctx) {
			return
		}
		for part := range slices.Chunk(shards, metalog.MaxShards) {
			tctx, cancel := context.WithTimeout(ctx, st.s.cfg.ReadTimeout)
			states, err := st.s.deps.Log.Tail(tctx, part)
			cancel()
			if found.err = err; err != nil {
				break
			}
			found.states = append(found.states, states...)
		}
		st.mu.Lock()
		st.mu.joined = &found
		st.mu.Unlock()
		st.wake.WakeUp()
	})
}

// checkSplit asks the control plane for the category before a logical shard is read that the stream's copy does not have: if it came from a
// split, its messages must not go before earlier ones of their keys in the other half, so the stream ends. It reports whether the stream goes
// on.
func (st *consumerStream) checkSplit(ctx context.Context) bool {
	for {
		asking, cancel := context.WithTimeout(ctx, resolveTimeout)
		now, err := st.s.deps.Categories.Resolve(asking, st.plan.category)
		cancel()
		if err == nil || rpc.ReasonOf(err) == scribev1.Reason_REASON_UNKNOWN_CATEGORY {
			st.compareCategory(now)
			return now.GetId() == st.cat.GetId() && now.KeepsOrder() == st.cat.KeepsOrder()
		}
		if backoff.Sleep(ctx, st.s.cfg.RetryAfter) != nil {
			return false
		}
	}
}

// finishJoin adds those of the shards that are not in the stream.
func (st *consumerStream) finishJoin(ctx context.Context, found *joinedShards) error {
	if found.err != nil {
		st.mu.Lock()
		st.mu.appeared, st.mu.joining = append(st.mu.appeared, found.shards...), false
		st.mu.Unlock()
		st.resting = true
		return st.handleFailure(ctx, wholeCategory, "tail", found.err)
	}
	delete(st.failing, wholeCategory)
	if err := st.admitShards(found.states); err != nil {
		return err
	}
	st.mu.Lock()
	st.mu.joining = false
	st.noteLooked()
	st.mu.Unlock()
	st.wake.WakeUp() // more may have appeared in the meantime
	return nil
}

func (st *consumerStream) admitShards(states []metalog.State) error {
	st.mu.Lock()
	var fresh []metalog.State
	for _, v := range states {
		if !st.merge.Has(v.Shard) {
			fresh = append(fresh, v)
			st.noteUnowed(v, st.metUntil())
			st.addShard(v, record.FirstLSN)
		}
	}
	total := st.merge.Total()
	st.mu.Unlock()
	all := st.addShards(len(fresh))
	if total > st.s.cfg.MaxShards {
		return tooManyShards(total, st.s.cfg.MaxShards)
	}
	for _, v := range st.opening {
		st.log.Info("shard appeared", "shard", record.ShardID(v.GetShard()).String())
		if err := st.sendNow(&scribev1.StreamResponse{Step: &scribev1.StreamResponse_ShardAdded{ShardAdded: v}}); err != nil {
			return err
		}
	}
	st.opening = nil
	st.member.Follow(fresh)
	if all > int64(st.s.cfg.TotalShards) {
		st.sendAway(evictionNotice{
			scribev1.Reason_REASON_OVERLOADED,
			fmt.Sprintf("the streams of this server follow %d shards, the limit is %d: others have appeared", all, st.s.cfg.TotalShards),
		})
	}
	return nil
}

// resolveTimeout bounds a request to the control plane.
const resolveTimeout = 5 * time.Second

// categoryExists ends the stream when its category was deleted, or deleted and created again, and evicts it when the category's
// order has changed.
func (st *consumerStream) categoryExists(ctx context.Context) {
	if cat, ok := st.s.deps.Categories.Lookup(st.plan.category); ok && cat.GetId() == st.cat.GetId() {
		st.compareCategory(cat)
		return
	}
	// The local view may lag what the control plane reported when the stream opened.
	st.mu.Lock()
	asking := st.mu.asking
	st.mu.asking = true
	st.mu.Unlock()
	if asking {
		return
	}
	st.running.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
		defer cancel()
		cat, err := st.s.deps.Categories.Resolve(ctx, st.plan.category)
		if err == nil || rpc.ReasonOf(err) == scribev1.Reason_REASON_UNKNOWN_CATEGORY {
			st.compareCategory(cat)
		} // otherwise the control plane is unavailable: assume no change
		st.mu.Lock()
		defer st.mu.Unlock()
		st.mu.asking = false
	})
}

// compareCategory compares the stream's category with the one that has its name now; nil = none.
func (st *consumerStream) compareCategory(now *scribev1.Category) {
	switch {
	case now.GetId() != st.cat.GetId():
		st.failStream(rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "category %q was deleted while the stream ran", st.plan.category))
	case now.KeepsOrder() != st.cat.KeepsOrder():
		st.sendAway(evictionNotice{scribev1.Reason_REASON_SHUTTING_DOWN, "the category's order is another one from now on: open the stream again"})
	}
}
