package metalogtest

import (
	"errors"
	"sync"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// erase erases the category of shardA.
func (e *env) erase() {
	e.Helper()
	if err := e.log.Erase(e.ctx, shardA.Category()); err != nil {
		e.Fatalf("Erase: %v", err)
	}
}

// gone checks that nothing is left of shards of an erased category, and that nothing can come.
func (e *env) gone(shards ...record.ShardID) {
	e.Helper()
	for _, shard := range shards {
		st := e.tail(shard)
		if st.Epoch != 0 || st.FirstLSN != 1 || st.NextLSN != 1 || st.LastTime != 0 || !st.Sealed {
			e.Fatalf("the state of an erased shard is %+v", st)
		}
		e.holds(shard, 1)
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
	{name: "nothing is left of an erased category", test: func(e *env) {
		neighbours := []record.ShardID{record.MakeShardID(6, 65535, 65535), record.MakeShardID(8, 0, 0)}
		epochs := e.open(append(neighbours, shardA, shardC)...)
		for i, shard := range append(neighbours, shardA) {
			a := to(shard, epochs[i], "r0", "r1")
			a.Sequences = []metalog.Sequence{{Producer: 1, First: 1, Last: 2}}
			e.append(a)
		}
		e.retire(7)
		e.erase()
		e.gone(shardA, shardB, shardC)
		e.erase()
		e.gone(shardA, shardB, shardC)
		for i, shard := range neighbours {
			e.holds(shard, 1, "r0", "r1")
			known, err := e.log.Sequences(e.ctx, shard, []uint64{1})
			if err != nil || known[0].Next != 3 {
				e.Fatalf("the neighbour knows %+v, %v", known, err)
			}
			e.append(to(shard, epochs[i], "r2"))
		}
	}},
	{name: "what was not retired can't be erased", test: func(e *env) {
		epoch := e.openOne(shardA)
		e.fill(shardA, epoch, "r", 2)
		e.is(e.log.Erase(e.ctx, 7), metalog.ErrInvalid)
		e.is(e.log.Erase(e.ctx, 9), metalog.ErrInvalid)
		e.holds(shardA, 1, "r0", "r1")
		e.append(to(shardA, epoch, "r2"))
	}},
	{name: "followers of an erased category come to its end", test: func(e *env) {
		epoch := e.openOne(shardA)
		e.fill(shardA, epoch, "r", 2)
		f := e.follow(long, at(shardA, 1), at(shardB, 1))
		f.reaches(shardA, 3)
		e.retire(7)
		e.erase()
		f.until(shardA, "the end", func(s *followed) bool { return s.sealed })
		f.stop()
		late := e.follow(long, at(shardA, 1))
		late.until(shardA, "the end", func(s *followed) bool { return s.sealed })
		late.stop()
	}},
	{name: "a follower that stood still while its category was erased", test: func(e *env) {
		// More than one update brings. The follower is held in the first one, so it has seen neither the rest nor the seal.
		const n = 12_000
		epoch := e.openOne(shardA)
		e.append(metalog.ShardAppend{Shard: shardA, Epoch: epoch, Records: repeat([]byte("r"), n)})
		reached, release := make(chan struct{}), make(chan struct{})
		var once sync.Once
		f := e.followWith(metalog.MinHeartbeat, func([]metalog.Update) {
			once.Do(func() { close(reached) })
			select {
			case <-release:
			case <-e.ctx.Done():
			}
		}, at(shardA, 1), at(shardB, 5))
		<-reached
		e.retire(7)
		e.erase()
		close(release)
		sealed := func(s *followed) bool { return s.sealed }
		a, b := f.until(shardA, "the end", sealed), f.until(shardB, "the end", sealed)
		f.stop()
		equal(e, "end", a.next, n+1)
		equal(e, "records that came or were trimmed", len(a.entries) == n || a.trimmedTo == n+1, true)
		equal(e, "end beyond the tail", b.next, 5)
		late := e.follow(long, at(shardA, n))
		equal(e, "end of a late follower", late.until(shardA, "the end", sealed).tail, n)
		late.stop()
	}},
	{name: "an append either finds the category or not, while it is erased", test: func(e *env) {
		epoch := e.openOne(shardA)
		done := make(chan error, 1)
		go func() {
			for {
				if err := e.try(to(shardA, epoch, "x")); err != nil {
					done <- err
					return
				}
			}
		}()
		e.retire(7)
		e.erase()
		if err := <-done; !errors.Is(err, metalog.ErrSealed) {
			e.Fatalf("the writer ended with %v", err)
		}
		e.gone(shardA)
	}},
	{name: "an erased category is gone after a restart", needs: canRestart, test: func(e *env) {
		epoch := e.openOne(shardA)
		e.fill(shardA, epoch, "r", 2)
		e.retire(7)
		e.restart()
		e.erase()
		e.gone(shardA)
		e.restart()
		e.gone(shardA, shardB)
	}},
	{name: "an erased category is gone after a crash", needs: canCrash, test: func(e *env) {
		epoch := e.openOne(shardA)
		e.fill(shardA, epoch, "r", 2)
		e.retire(7)
		e.erase()
		e.log = e.in.Crash(e)
		e.gone(shardA)
	}},
}
