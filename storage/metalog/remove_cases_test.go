package metalog_test

import (
	"context"
	"errors"
	"slices"
	"sync"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

var removeCases = []testCase{
	{name: "only removed shards that were written since a time are told", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, 2)
		other := e.openOne(shardC)
		last := e.tailOf(shardA).LastTime
		e.mustSucceed(e.log.Trim(e.ctx, shardA, 3))
		e.removeAll(metalog.Unused{Shard: shardA, Epoch: epoch}, metalog.Unused{Shard: shardC, Epoch: other})
		for since, want := range map[int64][]record.ShardID{0: {shardA, shardC}, 1: {shardA}, last: {shardA}, last + 1: nil} {
			states, err := e.log.RemovedShards(e.ctx, 7, since)
			e.mustSucceed(err)
			var got []record.ShardID
			for _, st := range states {
				got = append(got, st.Shard)
			}
			slices.Sort(want)
			if !slices.Equal(got, want) {
				e.Errorf("removed since %d: %v, want %v", since, got, want)
			}
		}
	}},
	{name: "a removed shard begins where it ended", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, 2)
		e.mustSucceed(e.log.Trim(e.ctx, shardA, 3))
		before := e.tailOf(shardA)
		e.removeAll(metalog.Unused{Shard: shardA, Epoch: epoch})
		st := e.tailOf(shardA)
		wantEqual(e, "origin", st.Origin, 3)
		wantEqual(e, "time of the origin", st.OriginTime, before.LastTime)
		wantEqual(e, "last time", st.LastTime, before.LastTime)
		wantEqual(e, "removed", st.Removed, true)
		e.fillShard(shardA, e.openOne(shardA), 1)
		st = e.tailOf(shardA)
		wantEqual(e, "origin after it was opened", st.Origin, 3)
		wantEqual(e, "time of the origin after it was written", st.OriginTime, before.LastTime)
		wantEqual(e, "removed after it was opened", st.Removed, false)
	}},
	{name: "a shard that never had a record has no origin", test: func(e *caseEnv) {
		e.removeAll(metalog.Unused{Shard: shardA, Epoch: e.openOne(shardA)})
		st := e.tailOf(shardA)
		wantEqual(e, "origin", st.Origin, 0)
		wantEqual(e, "next LSN", st.NextLSN, record.FirstLSN)
		wantEqual(e, "removed", st.Removed, true)
	}},
	{name: "a watch is told when a removed shard appears again", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.removeAll(metalog.Unused{Shard: shardA, Epoch: epoch})
		told := make(chan []record.ShardID, 4)
		ctx, cancel := context.WithCancel(e.ctx)
		ended := make(chan error, 1)
		log := e.log
		go func() {
			ended <- log.WatchShards(ctx, 7, func(shards []record.ShardID) error {
				told <- slices.Clone(shards)
				return nil
			})
		}()
		wantEqual(e, "shards at first", len(<-told), 0)
		e.openOne(shardA)
		select {
		case got := <-told:
			if !slices.Equal(got, []record.ShardID{shardA}) {
				e.Errorf("told %v", got)
			}
		case <-e.ctx.Done():
			e.Error("the shard was not told")
		}
		cancel()
		e.wantError(<-ended, context.Canceled)
	}},
	{name: "nothing that is acknowledged is lost to removing", test: removeUnderWriters},
}

// removeAll removes shards, all of which must be removable.
func (e *caseEnv) removeAll(shards ...metalog.Unused) {
	e.Helper()
	n, err := e.log.Remove(e.ctx, shards)
	e.mustSucceed(err)
	wantEqual(e, "removed shards", n, len(shards))
}

// removeUnderWriters has writers open, append and trim shards that others remove whenever they are empty. LSNs go on, epochs grow, and what was
// acknowledged and not trimmed can be read.
func removeUnderWriters(e *caseEnv) {
	const writers, rounds = 4, 60
	var mu sync.Mutex
	removed := 0
	wait := e.startAll(writers, func(w int) error {
		shard := record.MakeShardID(7, uint16(w), 0)
		var epoch uint64
		next := record.FirstLSN
		for range rounds {
			states, err := e.log.Open(e.ctx, "writer", []record.ShardID{shard})
			if err != nil {
				return err
			}
			if states[0].Epoch <= epoch || states[0].NextLSN != next || states[0].FirstLSN != next {
				return errors.New("the shard was opened at another place, or in an old epoch")
			}
			epoch = states[0].Epoch
			done, err := e.log.Append(e.ctx, &metalog.Append{Shards: []metalog.ShardAppend{appendTo(shard, epoch, "r")}})
			if errors.Is(err, metalog.ErrFenced) {
				continue // it was removed after it was opened
			}
			if err != nil {
				return err
			}
			if entries, err := e.log.Read(e.ctx, shard, next, 1, 0); err != nil || len(entries) != 1 || done[0].FirstLSN != next {
				return errors.New("an acknowledged record can't be read")
			}
			next++
			if err := e.log.Trim(e.ctx, shard, next); err != nil {
				return err
			}
		}
		return nil
	})
	stop := make(chan struct{})
	var remover sync.WaitGroup
	remover.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			states, err := e.log.Shards(e.ctx, 7)
			if err != nil || len(states) == 0 {
				continue
			}
			var unused []metalog.Unused
			for _, st := range states {
				unused = append(unused, metalog.Unused{Shard: st.Shard, Epoch: st.Epoch})
			}
			n, err := e.log.Remove(e.ctx, unused)
			mu.Lock()
			removed += n
			mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	wait()
	close(stop)
	remover.Wait()
	wantEqual(e, "shards were removed", removed > 0, true)
}
