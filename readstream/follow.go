package readstream

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"scribe/internal/record"
	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readstream/merge"
	"scribe/storage/metalog"
)

// Waits between attempts of a call of the engine that failed.
const (
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = 2 * time.Second
)

// retrying runs call until it succeeds or ctx ends, with growing waits between, and ends the stream when the engine is closed or
// has failed for too long. A call that ran for a while was well before it failed.
func (st *stream) retrying(ctx context.Context, name string, call func() error) {
	backoff := firstBackoff
	var since time.Time // of the first failure in a row
	for {
		began := time.Now()
		err := call()
		now := time.Now()
		if now.Sub(began) > lastBackoff {
			since, backoff = time.Time{}, firstBackoff
		}
		switch {
		case ctx.Err() != nil || err == nil:
			return
		case errors.Is(err, metalog.ErrClosed):
			st.engineClosed()
			return
		}
		st.s.metrics.engineErrors.WithLabelValues(name).Inc()
		if since.IsZero() {
			since = began
			st.log.Warn("the metadata engine failed", "call", name, "error", err)
		}
		if now.Sub(since) >= st.s.cfg.FailAfter {
			st.fail(st.lost(err))
			return
		}
		timer := time.NewTimer(backoff)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		backoff = min(2*backoff, lastBackoff)
	}
}

func (st *stream) lost(err error) error {
	return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, st.s.cfg.RetryAfter,
		"the metadata engine has failed for more than %v: %w", st.s.cfg.FailAfter, err)
}

// engineClosed sends the client away: the engine of this process is closed with the process.
func (st *stream) engineClosed() {
	st.mu.Lock()
	st.mu.evict = "the metadata engine of this server is closed"
	st.mu.Unlock()
	st.notify()
}

// group is shards whose tails one subscription follows.
type group struct {
	shards []record.ShardID
	cancel context.CancelFunc
	done   sync.WaitGroup
}

func (g *group) stop() {
	g.cancel()
	g.done.Wait()
}

// follow begins to follow the tails of shards. Groups that are not larger than the new one are taken into it, so there are few,
// and a shard changes its group few times.
func (st *stream) follow(ctx context.Context, shards []record.ShardID) {
	for part := range slices.Chunk(shards, metalog.MaxShards) {
		g := &group{shards: slices.Clone(part)}
		for len(st.groups) > 0 {
			last := st.groups[len(st.groups)-1]
			if len(last.shards) > len(g.shards) || len(last.shards)+len(g.shards) > metalog.MaxShards {
				break
			}
			last.stop()
			g.shards = append(g.shards, last.shards...)
			st.groups = st.groups[:len(st.groups)-1]
		}
		var gctx context.Context
		gctx, g.cancel = context.WithCancel(ctx)
		st.groups = append(st.groups, g)
		g.done.Go(func() {
			st.retrying(gctx, "subscribe", func() error { return st.subscribe(gctx, g.shards) })
		})
	}
}

func (st *stream) stopGroups() {
	for _, g := range st.groups {
		g.stop()
	}
	st.groups = nil
}

// errEnded is a subscription that ended although shards in it did not.
var errEnded = errors.New("readstream: the subscription ended")

// subscribe follows the tails of shards until all are sealed. It begins at the tails: what is before them is read.
func (st *stream) subscribe(ctx context.Context, shards []record.ShardID) error {
	states, err := st.s.deps.Log.Tail(ctx, shards)
	if err != nil {
		return err
	}
	from := make([]metalog.Position, 0, len(states))
	st.mu.Lock()
	for _, v := range states {
		st.merge.Tail(v.Shard, v.NextLSN, v.Watermark, v.Sealed)
		if !v.Sealed {
			from = append(from, metalog.Position{Shard: v.Shard, LSN: v.NextLSN})
		}
	}
	st.mu.Unlock()
	st.notify()
	if len(from) == 0 {
		return nil
	}
	sealed := 0
	err = st.s.deps.Log.Subscribe(ctx, from, st.plan.heartbeat, func(updates []metalog.Update) error {
		st.mu.Lock()
		for i := range updates {
			st.merge.Update(&updates[i])
			if updates[i].Sealed {
				sealed++
			}
		}
		st.mu.Unlock()
		st.notify()
		return nil
	})
	if err == nil && sealed < len(from) {
		err = errEnded
	}
	return err
}

// watch tells the driver of shards that appear.
func (st *stream) watch(ctx context.Context) {
	st.retrying(ctx, "watch", func() error {
		err := st.s.deps.Log.WatchShards(ctx, st.cat.GetId(), func(shards []record.ShardID) error {
			st.mu.Lock()
			var fresh []record.ShardID
			for _, shard := range shards {
				if st.plan.wants(shard) && !st.merge.Has(shard) {
					fresh = append(fresh, shard)
				}
			}
			st.mu.appeared = append(st.mu.appeared, fresh...)
			st.mu.Unlock()
			if len(fresh) > 0 {
				st.notify()
			}
			return nil
		})
		if err == nil {
			err = errEnded
		}
		return err
	})
}

// appear takes shards in that the watch has told of.
func (st *stream) appear(ctx context.Context, shards []record.ShardID) error {
	slices.Sort(shards)
	shards = slices.Compact(shards)
	for part := range slices.Chunk(shards, metalog.MaxShards) {
		states, err := st.s.deps.Log.Tail(ctx, part)
		if err != nil {
			st.mu.Lock()
			st.mu.appeared = append(st.mu.appeared, part...)
			st.mu.Unlock()
			return st.trouble(ctx, wholeCategory, "tail", err)
		}
		delete(st.failing, wholeCategory)
		if err := st.join(ctx, states); err != nil {
			return err
		}
	}
	return nil
}

// discover looks for shards, for the merge to know up to which time it knows of all.
func (st *stream) discover(ctx context.Context) error {
	st.mu.Lock()
	seen := st.merge.Seen()
	st.mu.Unlock()
	st.s.metrics.looks.Inc()
	states, err := st.s.deps.Log.Shards(ctx, st.cat.GetId())
	if err != nil {
		st.blind = true
		return st.trouble(ctx, wholeCategory, "shards", err)
	}
	delete(st.failing, wholeCategory)
	if err := st.join(ctx, slices.DeleteFunc(slices.Clone(states), func(v metalog.State) bool { return !st.plan.wants(v.Shard) })); err != nil {
		return err
	}
	st.mu.Lock()
	st.merge.Discovered(seen)
	st.mu.Unlock()
	return nil
}

// join takes in those of the shards that are not in the stream, from their first records on.
func (st *stream) join(ctx context.Context, states []metalog.State) error {
	st.mu.Lock()
	var fresh []record.ShardID
	for _, v := range states {
		if !st.merge.Has(v.Shard) {
			fresh = append(fresh, v.Shard)
			st.add(v, record.FirstLSN)
		}
	}
	total := st.merge.Total()
	st.mu.Unlock()
	if len(fresh) == 0 {
		return nil
	}
	st.s.metrics.shards.Add(float64(len(fresh)))
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
	st.follow(ctx, fresh)
	return nil
}

// wholeCategory stands in stream.failing for calls that are not about one shard.
const wholeCategory record.ShardID = 0

// trouble is what the driver makes of a failed call: it goes on, and tries again at the next tick, unless it has failed for too
// long without a success between.
func (st *stream) trouble(ctx context.Context, shard record.ShardID, call string, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, metalog.ErrClosed):
		st.engineClosed()
		return nil
	}
	st.s.metrics.engineErrors.WithLabelValues(call).Inc()
	since, ok := st.failing[shard]
	if !ok {
		since = time.Now()
		st.failing[shard] = since
		st.log.Warn("the metadata engine failed", "call", call, "shard", shard.String(), "error", err)
	}
	if time.Since(since) >= st.s.cfg.FailAfter {
		return st.lost(err)
	}
	return nil
}

// read does the reads that the merge wants, some at a time.
func (st *stream) read(ctx context.Context) error {
	st.mu.Lock()
	st.wants = st.merge.Wants(st.wants[:0], st.s.cfg.Reads)
	st.mu.Unlock()
	errs := make([]error, len(st.wants))
	if len(st.wants) == 1 {
		errs[0] = st.readOne(ctx, st.wants[0])
	} else {
		var reads sync.WaitGroup
		for i, w := range st.wants {
			reads.Go(func() { errs[i] = st.readOne(ctx, w) })
		}
		reads.Wait()
	}
	for i, err := range errs {
		shard := st.wants[i].Shard
		if err == nil {
			delete(st.failing, shard)
			continue
		}
		if err := st.trouble(ctx, shard, "read", err); err != nil {
			return err
		}
	}
	return nil
}

// recordCost is what a small record takes in a queue, to keep a read of many small ones within its room.
const recordCost = 160

// readOne does one read and tells the merge.
func (st *stream) readOne(ctx context.Context, w merge.Want) error {
	st.s.metrics.reads.Inc()
	entries, err := st.s.deps.Log.Read(ctx, w.Shard, w.LSN, w.MaxBytes/recordCost+1, w.MaxBytes)
	at := damagedAt(err, w.LSN)
	if at > w.LSN {
		// The damage is behind good records, or the engine does not say where; then the first record alone tells.
		good := 1
		if at > w.LSN && at != unknownPlace {
			good = int(at - w.LSN)
		}
		entries, err = st.s.deps.Log.Read(ctx, w.Shard, w.LSN, good, w.MaxBytes)
		if at = damagedAt(err, w.LSN); at == unknownPlace && good == 1 {
			at = w.LSN
		}
	}
	to, cause := record.LSN(0), merge.Trimmed
	switch {
	case at == w.LSN:
		st.log.Error("a record is damaged in the metadata engine", "shard", w.Shard.String(), "lsn", uint64(w.LSN), "error", err)
		to, cause, err = w.LSN+1, merge.Corrupt, nil
	case errors.Is(err, metalog.ErrTrimmed):
		to, err = st.firstLSN(ctx, w.Shard, err)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case err != nil:
		st.merge.Fail(w.Shard)
	case to > 0:
		st.merge.Skip(w.Shard, to, cause)
	default:
		st.merge.Loaded(w.Shard, entries)
	}
	return err
}

// Answers of damagedAt that are no LSN of a record.
const (
	// unknownPlace: some record is damaged.
	unknownPlace record.LSN = 1<<64 - 1
	// noRecord: none is. The shard's own state may be.
	noRecord record.LSN = 0
)

// damagedAt returns which record the error of a read from an LSN says is damaged.
func damagedAt(err error, from record.LSN) record.LSN {
	c := new(metalog.CorruptError)
	switch {
	case errors.As(err, &c) && c.LSN >= from:
		return c.LSN
	case errors.Is(err, metalog.ErrCorrupt) && (c.Shard == 0 || c.LSN != 0):
		return unknownPlace
	}
	return noRecord
}

// firstLSN is where a shard begins whose read failed with ErrTrimmed.
func (st *stream) firstLSN(ctx context.Context, shard record.ShardID, err error) (record.LSN, error) {
	if t := new(metalog.TrimmedError); errors.As(err, &t) && t.First > 0 {
		return t.First, nil
	}
	states, terr := st.s.deps.Log.Tail(ctx, []record.ShardID{shard})
	if terr != nil {
		return 0, terr
	}
	return states[0].FirstLSN, nil
}
