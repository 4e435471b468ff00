package metalog_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

var retireCases = []testCase{
	{name: "a long list of refusals is cut off", test: func(e *caseEnv) {
		shards := make([]record.ShardID, metalog.MaxConflicts+500)
		for i := range shards {
			shards[i] = record.MakeShardID(7, uint16(i), 0)
		}
		e.wantCalls("retire 7")
		_, err := e.log.Open(e.ctx, "late", shards)
		e.wantError(err, metalog.ErrSealed)
		wantEqual(e, "refusals", len(asError[*metalog.RefusedError](e, err).Refusals), metalog.MaxConflicts)
	}},
	{name: "nothing slips in while a category is retired", test: retireUnderWriters},
	{name: "a follower that stood still while its category was erased", test: func(e *caseEnv) {
		// More records than one update holds. The follower is held in the first update, so it has seen neither the rest nor the
		// seal.
		const n = 12_000
		epoch := e.openOne(shardA)
		e.appendAll(metalog.ShardAppend{Shard: shardA, Epoch: epoch, Records: repeatRecord([]byte("r"), n)})
		reached, release := make(chan struct{}), make(chan struct{})
		var once sync.Once
		f := e.followWith(metalog.MinHeartbeat, func([]metalog.Update) {
			once.Do(func() { close(reached) })
			select {
			case <-release:
			case <-e.ctx.Done():
			}
		}, positionAt(shardA, 1), positionAt(shardB, 5))
		<-reached
		e.wantCalls("retire 7\nerase 7")
		close(release)
		sealed := func(s *followedShard) bool { return s.Sealed }
		a, b := f.waitFor(shardA, "the end", sealed), f.waitFor(shardB, "the end", sealed)
		f.stopChecked()
		wantEqual(e, "end", a.Next, n+1)
		wantEqual(e, "records that came or were trimmed", len(a.entries) == n || a.TrimmedTo == n+1, true)
		wantEqual(e, "end beyond the tail", b.Next, 5)
		late := e.follow(long, positionAt(shardA, n))
		wantEqual(e, "end of a late follower", late.waitFor(shardA, "the end", sealed).Tail, n)
		late.stopChecked()
	}},
	{name: "an append either finds the category or not, while it is erased", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		var writer sync.WaitGroup
		writer.Go(func() { e.appendUntil(metalog.ErrSealed, shardA, epoch, "x") })
		e.wantCalls("retire 7\nerase 7")
		writer.Wait()
		e.wantCalls(`
			tail A -> A [1,1) sealed
			read A@1 -> none
			open A -> error: A [1,1): the shard is sealed
			append A no -> error: A [1,1): the shard is sealed
			sequences A 1 -> 1:unknown
			shards 7 -> none
		`)
	}},
}

// retireUnderWriters retires a category while writers open its shards and append to them. All acknowledged records must be readable,
// and no record appended after Retire returned.
func retireUnderWriters(e *caseEnv) {
	const writers = 8
	type acked struct {
		shard record.ShardID
		lsn   record.LSN
	}
	var mu sync.Mutex
	var acks []acked
	warm := make(chan struct{}, 10*writers)
	wait := e.startAll(writers, func(w int) error {
		for i := uint16(0); ; i++ {
			shard := record.MakeShardID(7, uint16(w), i)
			states, err := e.log.Open(e.ctx, "racer", []record.ShardID{shard})
			var done []metalog.Appended
			if err == nil {
				done, err = e.log.Append(e.ctx, &metalog.Append{Shards: []metalog.ShardAppend{appendTo(shard, states[0].Epoch, fmt.Sprint(i))}})
			}
			switch {
			case errors.Is(err, metalog.ErrSealed):
				return nil
			case err != nil:
				return err
			}
			mu.Lock()
			acks = append(acks, acked{shard, done[0].FirstLSN})
			mu.Unlock()
			select {
			case warm <- struct{}{}:
			default:
			}
		}
	})
	for range 10 * writers {
		<-warm
	}
	e.wantCalls("retire 7")
	count := func() (n int) {
		e.Helper()
		shards, err := e.log.Shards(context.WithoutCancel(e.ctx), 7)
		e.mustSucceed(err)
		for _, st := range shards {
			if !st.Sealed {
				e.Fatalf("shard %v is not sealed", st.Shard)
			}
			n += int(st.NextLSN - 1)
		}
		return n
	}
	before := count()
	wait()
	wantEqual(e, "records after the end of the writers", count(), before)
	wantEqual(e, "acknowledged", len(acks), before)
	for _, a := range acks {
		if entries, err := e.log.Read(e.ctx, a.shard, a.lsn, 1, 0); err != nil || len(entries) != 1 {
			e.Fatalf("%v/%d was acknowledged: %d entries, %v", a.shard, a.lsn, len(entries), err)
		}
	}
}
