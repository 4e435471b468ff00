package metalogtest

import (
	"errors"
	"sync"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// eraseCategory erases the category of shardA.
func (e *caseEnv) eraseCategory() {
	e.Helper()
	if err := e.log.Erase(e.ctx, shardA.Category()); err != nil {
		e.Fatalf("Erase: %v", err)
	}
}

// wantErased checks that shards of an erased category are empty, and can't get records.
func (e *caseEnv) wantErased(shards ...record.ShardID) {
	e.Helper()
	for _, shard := range shards {
		st := e.tailOf(shard)
		if st.Epoch != 0 || st.FirstLSN != 1 || st.NextLSN != 1 || st.LastTime != 0 || !st.Sealed {
			e.Fatalf("the state of an erased shard is %+v", st)
		}
		e.wantRecords(shard, 1)
		e.refusesRetired(shard, 1)
		known, err := e.log.Sequences(e.ctx, shard, []uint64{1})
		if err != nil || known[0].Known() {
			e.Fatalf("Sequences returned %+v, %v", known, err)
		}
		if listed, err := e.log.Shards(e.ctx, shard.Category()); err != nil || len(listed) != 0 {
			e.Fatalf("Shards returned %+v, %v", listed, err)
		}
	}
}

var eraseCases = []testCase{
	{name: "nothing is left of an erased category", test: func(e *caseEnv) {
		neighbours := []record.ShardID{record.MakeShardID(6, 65535, 65535), record.MakeShardID(8, 0, 0)}
		epochs := e.openShards(append(neighbours, shardA, shardC)...)
		for i, shard := range append(neighbours, shardA) {
			a := appendTo(shard, epochs[i], "r0", "r1")
			a.Sequences = []metalog.Sequence{{Producer: 1, First: 1, Last: 2}}
			e.appendAll(a)
		}
		e.retireCategory(7)
		e.eraseCategory()
		e.wantErased(shardA, shardB, shardC)
		e.eraseCategory()
		e.wantErased(shardA, shardB, shardC)
		for i, shard := range neighbours {
			e.wantRecords(shard, 1, "r0", "r1")
			known, err := e.log.Sequences(e.ctx, shard, []uint64{1})
			if err != nil || known[0].Next != 3 {
				e.Fatalf("the neighbour knows %+v, %v", known, err)
			}
			e.appendAll(appendTo(shard, epochs[i], "r2"))
		}
	}},
	{name: "what was not retired can't be erased", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, "r", 2)
		e.wantError(e.log.Erase(e.ctx, 7), metalog.ErrInvalid)
		e.wantError(e.log.Erase(e.ctx, 9), metalog.ErrInvalid)
		e.wantRecords(shardA, 1, "r0", "r1")
		e.appendAll(appendTo(shardA, epoch, "r2"))
	}},
	{name: "followers of an erased category come to its end", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, "r", 2)
		f := e.follow(long, positionAt(shardA, 1), positionAt(shardB, 1))
		f.waitPosition(shardA, 3)
		e.retireCategory(7)
		e.eraseCategory()
		f.waitFor(shardA, "the end", func(s *followedShard) bool { return s.sealed })
		f.stopChecked()
		late := e.follow(long, positionAt(shardA, 1))
		late.waitFor(shardA, "the end", func(s *followedShard) bool { return s.sealed })
		late.stopChecked()
	}},
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
		e.retireCategory(7)
		e.eraseCategory()
		close(release)
		sealed := func(s *followedShard) bool { return s.sealed }
		a, b := f.waitFor(shardA, "the end", sealed), f.waitFor(shardB, "the end", sealed)
		f.stopChecked()
		wantEqual(e, "end", a.next, n+1)
		wantEqual(e, "records that came or were trimmed", len(a.entries) == n || a.trimmedTo == n+1, true)
		wantEqual(e, "end beyond the tail", b.next, 5)
		late := e.follow(long, positionAt(shardA, n))
		wantEqual(e, "end of a late follower", late.waitFor(shardA, "the end", sealed).tail, n)
		late.stopChecked()
	}},
	{name: "an append either finds the category or not, while it is erased", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		done := make(chan error, 1)
		go func() {
			for {
				if err := e.tryAppend(appendTo(shardA, epoch, "x")); err != nil {
					done <- err
					return
				}
			}
		}()
		e.retireCategory(7)
		e.eraseCategory()
		if err := <-done; !errors.Is(err, metalog.ErrSealed) {
			e.Fatalf("the writer ended with %v", err)
		}
		e.wantErased(shardA)
	}},
	{name: "an erased category is gone after a restart", needs: canRestart, test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, "r", 2)
		e.retireCategory(7)
		e.restartLog()
		e.eraseCategory()
		e.wantErased(shardA)
		e.restartLog()
		e.wantErased(shardA, shardB)
	}},
	{name: "an erased category is gone after a crash", needs: canCrash, test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, "r", 2)
		e.retireCategory(7)
		e.eraseCategory()
		e.log = e.in.Crash(e)
		e.wantErased(shardA)
	}},
}
