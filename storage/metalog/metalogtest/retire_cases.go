package metalogtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// retireCategory retires a category.
func (e *caseEnv) retireCategory(category uint32) {
	e.Helper()
	if err := e.log.Retire(e.ctx, category); err != nil {
		e.Fatalf("Retire: %v", err)
	}
}

// refusesRetired checks that a shard of a retired category can neither be opened nor appended to.
func (e *caseEnv) refusesRetired(shard record.ShardID, epoch uint64) {
	e.Helper()
	_, err := e.log.Open(e.ctx, "late", []record.ShardID{shard})
	e.wantError(err, metalog.ErrSealed)
	if r := asError[*metalog.RefusedError](e, err).Refusals; len(r) != 1 || r[0].State.Shard != shard || !errors.Is(r[0].Err, metalog.ErrSealed) {
		e.Fatalf("Open of %v was refused with %+v", shard, r)
	}
	e.wantError(e.tryAppend(appendTo(shard, epoch, "no")), metalog.ErrSealed)
}

var retireCases = []testCase{
	{name: "a retired category takes nothing from anyone", test: func(e *caseEnv) {
		other := record.MakeShardID(8, 0, 1)
		never := record.MakeShardID(7, 9, 9)
		epochs := e.openShards(shardA, shardC, other)
		e.fillShard(shardA, epochs[0], "r", 3)
		e.retireCategory(7)
		e.refusesRetired(shardA, epochs[0])
		e.refusesRetired(shardC, epochs[1])
		e.refusesRetired(never, 1)
		wantEqual(e, "epoch of what never existed", e.tailOf(never).Epoch, 0)
		wantEqual(e, "epoch", e.tailOf(shardA).Epoch, epochs[0])
		e.appendAll(appendTo(other, epochs[2], "other"))
		e.openOne(record.MakeShardID(6, 0, 1))
		e.openOne(record.MakeShardID(8, 0, 2))
		// All or none: the shards of other categories are not opened either, and the answer names the retired ones.
		fresh := record.MakeShardID(9, 0, 0)
		_, err := e.log.Open(e.ctx, "late", []record.ShardID{fresh, never, shardA})
		e.wantError(err, metalog.ErrSealed)
		wantEqual(e, "refusals", len(asError[*metalog.RefusedError](e, err).Refusals), 2)
		wantEqual(e, "epoch of the shard beside", e.tailOf(fresh).Epoch, 0)
		e.wantError(e.tryAppend(appendTo(other, epochs[2], "no"), appendTo(never, 1, "no")), metalog.ErrSealed)
		e.wantRecords(other, 1, "other")
	}},
	{name: "a retired category can be read until it is trimmed", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, "r", 3)
		f := e.follow(long, positionAt(shardA, 1))
		f.waitPosition(shardA, 4)
		e.retireCategory(7)
		f.waitFor(shardA, "the end", func(s *followedShard) bool { return s.sealed })
		f.stopChecked()
		e.wantRecords(shardA, 1, "r0", "r1", "r2")
		st := e.tailOf(shardA)
		if !st.Sealed || st.NextLSN != 4 {
			e.Fatalf("the state is %+v", st)
		}
		if listed, err := e.log.Shards(e.ctx, 7); err != nil || len(listed) != 1 || !listed[0].Sealed {
			e.Fatalf("Shards returned %+v, %v", listed, err)
		}
		e.mustSucceed(e.log.Trim(e.ctx, shardA, 3))
		e.wantRecords(shardA, 3, "r2")
	}},
	{name: "retiring again is harmless, and any id can be retired", test: func(e *caseEnv) {
		for _, id := range []uint32{5, 3, 4, 5, 1, math.MaxUint32, 0, 2, math.MaxUint32} {
			e.retireCategory(id)
		}
		for _, id := range []uint32{0, 1, 2, 3, 4, 5, math.MaxUint32} {
			e.refusesRetired(record.MakeShardID(id, 1, 1), 1)
		}
		e.openOne(record.MakeShardID(6, 0, 0))
		e.openOne(record.MakeShardID(math.MaxUint32-1, 0, 0))
	}},
	{name: "a long list of refusals is cut off", test: func(e *caseEnv) {
		shards := make([]record.ShardID, metalog.MaxConflicts+500)
		for i := range shards {
			shards[i] = record.MakeShardID(7, uint16(i), 0)
		}
		e.retireCategory(7)
		_, err := e.log.Open(e.ctx, "late", shards)
		e.wantError(err, metalog.ErrSealed)
		wantEqual(e, "refusals", len(asError[*metalog.RefusedError](e, err).Refusals), metalog.MaxConflicts)
	}},
	{name: "nothing slips in while a category is retired", test: func(e *caseEnv) { retireUnderWriters(e) }},
	{name: "retired categories outlive a restart", needs: canRestart, test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, "r", 2)
		e.retireCategory(7)
		e.retireCategory(8)
		for range 2 {
			e.restartLog()
			e.refusesRetired(shardA, epoch)
			e.refusesRetired(record.MakeShardID(8, 0, 0), 1)
			e.wantRecords(shardA, 1, "r0", "r1")
			e.openOne(record.MakeShardID(9, 0, 0))
		}
	}},
	{name: "retired categories outlive a crash", needs: canCrash, test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.retireCategory(7)
		e.log = e.in.Crash(e)
		e.refusesRetired(shardA, epoch)
		e.refusesRetired(shardB, 1)
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
	var (
		mu   sync.Mutex
		acks []acked
		wg   sync.WaitGroup
	)
	warm := make(chan struct{}, 10*writers)
	for w := range uint16(writers) {
		wg.Go(func() {
			for i := uint16(0); ; i++ {
				shard := record.MakeShardID(7, w, i)
				states, err := e.log.Open(e.ctx, "racer", []record.ShardID{shard})
				var done []metalog.Appended
				if err == nil {
					done, err = e.log.Append(e.ctx, &metalog.Append{Shards: []metalog.ShardAppend{appendTo(shard, states[0].Epoch, fmt.Sprint(i))}})
				}
				if err != nil {
					if !errors.Is(err, metalog.ErrSealed) {
						e.Errorf("writer %d: %v", w, err)
					}
					return
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
	}
	for range 10 * writers {
		<-warm
	}
	e.retireCategory(7)
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
	wg.Wait()
	wantEqual(e, "records after the end of the writers", count(), before)
	wantEqual(e, "acknowledged", len(acks), before)
	for _, a := range acks {
		if entries, err := e.log.Read(e.ctx, a.shard, a.lsn, 1, 0); err != nil || len(entries) != 1 {
			e.Fatalf("%v/%d was acknowledged: %d entries, %v", a.shard, a.lsn, len(entries), err)
		}
	}
}
