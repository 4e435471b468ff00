package readstream

import (
	"context"
	"errors"
	"slices"

	"scribe/internal/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readstream/feed"
	"scribe/readstream/merge"
	"scribe/storage/metalog"
)

// listener is what a feed tells a stream. It only takes notes: the driver acts on them.
type listener struct{ *stream }

var _ feed.Listener = listener{}

// Updates implements feed.Listener.
func (l listener) Updates(updates []metalog.Update) {
	l.mu.Lock()
	for i := range updates {
		l.merge.Update(&updates[i])
	}
	l.mu.Unlock()
	l.notify()
}

// Tail implements feed.Listener.
func (l listener) Tail(shard record.ShardID, next record.LSN, mark int64, sealed bool) {
	l.mu.Lock()
	l.merge.Tail(shard, next, mark, sealed)
	l.mu.Unlock()
	l.notify()
}

// Floor implements feed.Listener.
func (l listener) Floor(t int64) {
	l.mu.Lock()
	l.merge.Floor(t)
	l.mu.Unlock()
	if l.plan.window != merge.Unbounded { // else nothing waits for it
		l.notify()
	}
}

// Shards implements feed.Listener.
func (l listener) Shards(fresh []record.ShardID, horizon int64) {
	l.mu.Lock()
	for _, shard := range fresh {
		if l.plan.wants(shard) && !l.merge.Has(shard) {
			l.mu.appeared = append(l.mu.appeared, shard)
		}
	}
	l.mu.horizon = max(l.mu.horizon, horizon)
	l.looked()
	l.mu.Unlock()
	l.notify()
}

// Fail implements feed.Listener.
func (l listener) Fail(err error) {
	if errors.Is(err, metalog.ErrClosed) {
		l.engineClosed()
		return
	}
	l.fail(l.lost(err))
}

// looked tells the merge of a look once the shards that it found are in it. The mutex is held.
func (st *stream) looked() {
	if len(st.mu.appeared) == 0 && !st.mu.joining {
		st.merge.Looked(st.mu.horizon)
	}
}

// appear takes shards in that the feed has told of, from their first records on.
func (st *stream) appear(ctx context.Context, shards []record.ShardID) error {
	slices.Sort(shards)
	shards = slices.Compact(shards)
	st.member.Hold() // so that what is fetched now is newer than any floor
	for len(shards) > 0 {
		part := shards[:min(len(shards), metalog.MaxShards)]
		states, err := st.s.deps.Log.Tail(ctx, part)
		if err != nil {
			st.mu.Lock()
			st.mu.appeared, st.mu.joining = append(st.mu.appeared, shards...), false
			st.mu.Unlock()
			st.resting = true
			return st.trouble(ctx, wholeCategory, "tail", err)
		}
		delete(st.failing, wholeCategory)
		if err := st.join(states); err != nil {
			return err
		}
		shards = shards[len(part):]
	}
	st.mu.Lock()
	st.mu.joining = false
	st.looked()
	st.mu.Unlock()
	return nil
}

// join takes in those of the shards that are not in the stream.
func (st *stream) join(states []metalog.State) error {
	st.mu.Lock()
	var fresh []metalog.State
	for _, v := range states {
		if !st.merge.Has(v.Shard) {
			fresh = append(fresh, v)
			st.add(v, record.FirstLSN)
		}
	}
	total := st.merge.Total()
	st.mu.Unlock()
	if len(fresh) == 0 {
		return nil
	}
	st.addShards(len(fresh))
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
	return nil
}
