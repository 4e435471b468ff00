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

// retire retires a category.
func (e *env) retire(category uint32) {
	e.Helper()
	if err := e.log.Retire(e.ctx, category); err != nil {
		e.Fatalf("Retire: %v", err)
	}
}

// refusesRetired checks that a shard of a retired category can neither be opened nor appended to.
func (e *env) refusesRetired(shard record.ShardID, epoch uint64) {
	e.Helper()
	_, err := e.log.Open(e.ctx, "late", []record.ShardID{shard})
	e.is(err, metalog.ErrSealed)
	if r := as[*metalog.RefusedError](e, err).Refusals; len(r) != 1 || r[0].State.Shard != shard || !errors.Is(r[0].Err, metalog.ErrSealed) {
		e.Fatalf("Open of %v was refused with %+v", shard, r)
	}
	e.is(e.try(to(shard, epoch, "no")), metalog.ErrSealed)
}

var retireCases = []testCase{
	{name: "a retired category takes nothing from anyone", test: func(e *env) {
		other := record.MakeShardID(8, 0, 1)
		never := record.MakeShardID(7, 9, 9)
		epochs := e.open(shardA, shardC, other)
		e.fill(shardA, epochs[0], "r", 3)
		e.retire(7)
		e.refusesRetired(shardA, epochs[0])
		e.refusesRetired(shardC, epochs[1])
		e.refusesRetired(never, 1)
		equal(e, "epoch of what never existed", e.tail(never).Epoch, 0)
		equal(e, "epoch", e.tail(shardA).Epoch, epochs[0])
		e.append(to(other, epochs[2], "other"))
		e.openOne(record.MakeShardID(6, 0, 1))
		e.openOne(record.MakeShardID(8, 0, 2))
		// All or none: the shards of other categories are not opened either, and the answer names those that are in the way.
		fresh := record.MakeShardID(9, 0, 0)
		_, err := e.log.Open(e.ctx, "late", []record.ShardID{fresh, never, shardA})
		e.is(err, metalog.ErrSealed)
		equal(e, "refusals", len(as[*metalog.RefusedError](e, err).Refusals), 2)
		equal(e, "epoch of the shard beside", e.tail(fresh).Epoch, 0)
		e.is(e.try(to(other, epochs[2], "no"), to(never, 1, "no")), metalog.ErrSealed)
		e.holds(other, 1, "other")
	}},
	{name: "a retired category can be read until it is trimmed", test: func(e *env) {
		epoch := e.openOne(shardA)
		e.fill(shardA, epoch, "r", 3)
		f := e.follow(long, at(shardA, 1))
		f.reaches(shardA, 4)
		e.retire(7)
		f.until(shardA, "the end", func(s *followed) bool { return s.sealed })
		f.stop()
		e.holds(shardA, 1, "r0", "r1", "r2")
		st := e.tail(shardA)
		if !st.Sealed || st.NextLSN != 4 {
			e.Fatalf("the state is %+v", st)
		}
		if listed, err := e.log.Shards(e.ctx, 7); err != nil || len(listed) != 1 || !listed[0].Sealed {
			e.Fatalf("Shards returned %+v, %v", listed, err)
		}
		if err := e.log.Trim(e.ctx, shardA, 3); err != nil {
			e.Fatal(err)
		}
		e.holds(shardA, 3, "r2")
	}},
	{name: "retiring again is harmless, and any id can be retired", test: func(e *env) {
		for _, id := range []uint32{5, 3, 4, 5, 1, math.MaxUint32, 0, 2, math.MaxUint32} {
			e.retire(id)
		}
		for _, id := range []uint32{0, 1, 2, 3, 4, 5, math.MaxUint32} {
			e.refusesRetired(record.MakeShardID(id, 1, 1), 1)
		}
		e.openOne(record.MakeShardID(6, 0, 0))
		e.openOne(record.MakeShardID(math.MaxUint32-1, 0, 0))
	}},
	{name: "a long list of refusals is cut off", test: func(e *env) {
		shards := make([]record.ShardID, metalog.MaxConflicts+500)
		for i := range shards {
			shards[i] = record.MakeShardID(7, uint16(i), 0)
		}
		e.retire(7)
		_, err := e.log.Open(e.ctx, "late", shards)
		e.is(err, metalog.ErrSealed)
		equal(e, "refusals", len(as[*metalog.RefusedError](e, err).Refusals), metalog.MaxConflicts)
	}},
	{name: "nothing slips in while a category is retired", test: func(e *env) { retireUnderWriters(e) }},
	{name: "retired categories outlive a restart", needs: canRestart, test: func(e *env) {
		epoch := e.openOne(shardA)
		e.fill(shardA, epoch, "r", 2)
		e.retire(7)
		e.retire(8)
		for range 2 {
			e.restart()
			e.refusesRetired(shardA, epoch)
			e.refusesRetired(record.MakeShardID(8, 0, 0), 1)
			e.holds(shardA, 1, "r0", "r1")
			e.openOne(record.MakeShardID(9, 0, 0))
		}
	}},
	{name: "retired categories outlive a crash", needs: canCrash, test: func(e *env) {
		epoch := e.openOne(shardA)
		e.retire(7)
		e.log = e.in.Crash(e)
		e.refusesRetired(shardA, epoch)
		e.refusesRetired(shardB, 1)
	}},
}

// retireUnderWriters has writers that open shards of a category and append to them while it is retired. What was acknowledged is
// there, and nothing is there that came after Retire had returned.
func retireUnderWriters(e *env) {
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
					done, err = e.log.Append(e.ctx, &metalog.Append{Shards: []metalog.ShardAppend{to(shard, states[0].Epoch, fmt.Sprint(i))}})
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
	e.retire(7)
	count := func() (n int) {
		e.Helper()
		shards, err := e.log.Shards(context.WithoutCancel(e.ctx), 7)
		if err != nil {
			e.Fatal(err)
		}
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
	equal(e, "records after the end of the writers", count(), before)
	equal(e, "acknowledged", len(acks), before)
	for _, a := range acks {
		if entries, err := e.log.Read(e.ctx, a.shard, a.lsn, 1, 0); err != nil || len(entries) != 1 {
			e.Fatalf("%v/%d was acknowledged: %d entries, %v", a.shard, a.lsn, len(entries), err)
		}
	}
}
