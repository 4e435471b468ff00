package metalogtest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

var openCases = []testCase{
	{name: "open creates shards and raises epochs", test: func(e *env) {
		st := e.tail(shardA)
		if st.Epoch != 0 || st.FirstLSN != 1 || st.NextLSN != 1 || st.Sealed || st.LastTime != 0 {
			e.Fatalf("a shard that does not exist has the state %+v", st)
		}
		states, err := e.log.Open(e.ctx, "one", []record.ShardID{shardB, shardA})
		if err != nil {
			e.Fatal(err)
		}
		for i, want := range []record.ShardID{shardB, shardA} {
			if st := states[i]; st.Shard != want || st.Epoch == 0 || st.FirstLSN != 1 || st.NextLSN != 1 {
				e.Fatalf("the state of new shard %v is %+v", want, st)
			}
		}
		first := states[1].Epoch
		e.fill(shardA, first, "r", 3)
		states, err = e.log.Open(e.ctx, "two", []record.ShardID{shardA})
		if err != nil {
			e.Fatal(err)
		}
		if st := states[0]; st.Epoch <= first || st.NextLSN != 4 || st.FirstLSN != 1 {
			e.Fatalf("the state after the second Open is %+v", st)
		}
		equal(e, "epoch of the tail", e.tail(shardA).Epoch, states[0].Epoch)
	}},
	{name: "epochs are unique under concurrent opens", test: func(e *env) {
		var mu sync.Mutex
		seen := map[uint64]int{}
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for range 10 {
					states, err := e.log.Open(e.ctx, "racer", []record.ShardID{shardA, shardB})
					if err != nil {
						e.Error(err)
						return
					}
					mu.Lock()
					seen[states[0].Epoch]++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		equal(e, "distinct epochs", len(seen), 160)
	}},
}

var appendCases = []testCase{
	{name: "records come back as they were appended", test: func(e *env) {
		epoch := e.openOne(shardA)
		want := [][]byte{{0}, bytes.Repeat([]byte{0xff}, metalog.MaxRecord), []byte("text"), {0, 1, 2}}
		done := e.append(metalog.ShardAppend{Shard: shardA, Epoch: epoch, Records: want})
		equal(e, "first LSN", done[0].FirstLSN, 1)
		entries := e.read(shardA, 1)
		equal(e, "records", len(entries), len(want))
		for i, en := range entries {
			if !bytes.Equal(en.Data, want[i]) {
				e.Fatalf("record %d came back different", i)
			}
			equal(e, "time", en.Time, done[0].Time)
		}
	}},
	{name: "the engine does not keep the caller's memory", test: func(e *env) {
		epoch := e.openOne(shardA)
		buf := []byte("before")
		e.append(metalog.ShardAppend{Shard: shardA, Epoch: epoch, Records: [][]byte{buf}})
		copy(buf, "AFTER!")
		e.holds(shardA, 1, "before")
		entries := e.read(shardA, 1)
		copy(entries[0].Data, "mine!!") // entries belong to the caller
		_ = append(entries[0].Data, "more"...)
		e.holds(shardA, 1, "before")
	}},
	{name: "LSNs are dense under 16 writers", test: denseUnderWriters},
	{name: "an append is visible at once when it returns", test: func(e *env) {
		epoch := e.openOne(shardA)
		for i := range 50 {
			done := e.append(to(shardA, epoch, fmt.Sprint(i)))[0]
			st := e.tail(shardA)
			equal(e, "next LSN", st.NextLSN, done.FirstLSN+1)
			equal(e, "last time", st.LastTime, done.Time)
			e.holds(shardA, done.FirstLSN, fmt.Sprint(i))
		}
	}},
	{name: "an append over several shards is all or none", test: func(e *env) {
		epochs := e.open(shardA, shardB, shardC)
		e.is(e.try(to(shardA, epochs[0], "a"), to(shardB, epochs[1]+1, "b"), to(shardC, epochs[2], "c")), metalog.ErrFenced)
		for _, s := range []record.ShardID{shardA, shardB, shardC} {
			equal(e, "next LSN", e.tail(s).NextLSN, 1)
		}
		done := e.append(to(shardC, epochs[2], "c0", "c1"), to(shardA, epochs[0], "a0"))
		equal(e, "time", done[0].Time, done[1].Time)
		e.holds(shardC, 1, "c0", "c1")
		e.holds(shardA, 1, "a0")
		e.holds(shardB, 1)
	}},
	{name: "an append over several shards is visible at once", test: visibleTogether},
	{name: "a refused append names every shard that refused", test: func(e *env) {
		epochs := e.open(shardA, shardB, shardC)
		if _, err := e.log.Seal(e.ctx, shardA); err != nil {
			e.Fatal(err)
		}
		gone := record.MakeShardID(8, 0, 0)
		conflict := to(shardC, epochs[2], "c")
		conflict.ExpectLSN = 5
		err := e.try(to(shardA, epochs[0], "a"), to(shardB, epochs[1], "b"), conflict, to(gone, 1, "d"))
		refused := as[*metalog.RefusedError](e, err)
		equal(e, "refusals", len(refused.Refusals), 3)
		for i, want := range []struct {
			shard record.ShardID
			err   error
		}{{shardA, metalog.ErrSealed}, {shardC, metalog.ErrConflict}, {gone, metalog.ErrFenced}} {
			r := refused.Refusals[i]
			equal(e, "shard", r.State.Shard, want.shard)
			e.is(r.Err, want.err)
			e.is(err, want.err)
		}
		equal(e, "epoch of the shard that does not exist", refused.Refusals[2].State.Epoch, 0)
		equal(e, "next LSN of the conflict", refused.Refusals[1].State.NextLSN, 1)
		e.holds(shardB, 1)
	}},
	{name: "an expected LSN makes a repeat harmless", test: func(e *env) {
		epoch := e.openOne(shardA)
		s := to(shardA, epoch, "x", "y")
		s.ExpectLSN = 1
		e.append(s)
		e.is(e.try(s), metalog.ErrConflict)
		equal(e, "next LSN", e.tail(shardA).NextLSN, 3)
		s.ExpectLSN = 3
		equal(e, "first LSN", e.append(s)[0].FirstLSN, 3)
		s.ExpectLSN = 9
		e.is(e.try(s), metalog.ErrConflict)
		e.holds(shardA, 1, "x", "y", "x", "y")
	}},
	{name: "concurrent repeats are stored once", test: func(e *env) {
		epoch := e.openOne(shardA)
		for i := range 20 {
			var stored sync.Map
			var wg sync.WaitGroup
			for w := range 8 {
				wg.Go(func() {
					s := to(shardA, epoch, fmt.Sprint(i))
					s.ExpectLSN = record.LSN(i + 1)
					if err := e.try(s); err == nil {
						stored.Store(w, true)
					} else if !errors.Is(err, metalog.ErrConflict) {
						e.Error(err)
					}
				})
			}
			wg.Wait()
			n := 0
			stored.Range(func(any, any) bool { n++; return true })
			equal(e, "appends that were stored", n, 1)
		}
		equal(e, "next LSN", e.tail(shardA).NextLSN, 21)
	}},
	{name: "an old blob is refused from the boundary on", test: func(e *env) {
		epoch := e.openOne(shardA)
		at := func(blob int64) error {
			_, err := e.log.Append(e.ctx, &metalog.Append{Shards: []metalog.ShardAppend{to(shardA, epoch, "x")}, OldestBlob: blob})
			return err
		}
		advance := func(t, want int64) {
			got, err := e.log.AdvanceBoundary(e.ctx, t)
			if err != nil {
				e.Fatal(err)
			}
			equal(e, "boundary", got, want)
		}
		advance(0, 0)
		e.is(at(1), nil)
		advance(1000, 1000)
		e.is(at(999), metalog.ErrStaleBlob)
		e.is(at(1000), nil)
		e.is(at(0), nil) // refers to no blob
		advance(500, 1000)
		advance(0, 1000)
		advance(1001, 1001)
		e.is(at(1000), metalog.ErrStaleBlob)
		equal(e, "next LSN", e.tail(shardA).NextLSN, 4)
	}},
	{name: "times never decrease", needs: hasClock, test: func(e *env) {
		epochs := e.open(shardA, shardB)
		var last int64
		for i, d := range []time.Duration{0, time.Hour, -2 * time.Hour, 0, time.Second, -time.Minute, 3 * time.Hour} {
			e.in.Clock.Advance(d)
			s := []record.ShardID{shardA, shardB}[i%2]
			done := e.append(to(s, epochs[i%2], "x"))[0]
			if done.Time < last || done.Time <= 0 {
				e.Fatalf("a record has time %d after one of %d", done.Time, last)
			}
			last = done.Time
		}
		// The clock is ahead by now, so time is the clock's again.
		before := e.in.Clock.Now()
		done := e.append(to(shardA, epochs[0], "x"))[0]
		if done.Time <= before {
			e.Fatalf("the time is %d, but the clock was at %d before", done.Time, before)
		}
	}},
	{name: "a transaction over 5,000 shards", test: func(e *env) {
		var shards []record.ShardID
		for i := range 5000 {
			shards = append(shards, record.MakeShardID(uint32(i/10+1), uint16(i%10), 3))
		}
		epochs := e.open(shards...)
		var all []metalog.ShardAppend
		for i, s := range shards {
			all = append(all, to(s, epochs[i], s.String()))
		}
		e.append(all...)
		states, err := e.log.Tail(e.ctx, shards)
		if err != nil {
			e.Fatal(err)
		}
		for _, st := range states {
			equal(e, "next LSN", st.NextLSN, 2)
		}
		for i := 0; i < len(shards); i += 500 {
			e.holds(shards[i], 1, shards[i].String())
		}
	}},
	{name: "a transaction at the limit of bytes", test: func(e *env) {
		epochs := e.open(shardA, shardB)
		big := bytes.Repeat([]byte("0123456789abcdef"), metalog.MaxRecord/16)
		var half [][]byte
		for range metalog.MaxAppend / metalog.MaxRecord / 2 {
			half = append(half, big)
		}
		e.append(metalog.ShardAppend{Shard: shardA, Epoch: epochs[0], Records: half}, metalog.ShardAppend{Shard: shardB, Epoch: epochs[1], Records: half})
		e.append(to(shardA, epochs[0], "after"))
		equal(e, "records", len(e.read(shardB, 1)), len(half))
		entries := e.read(shardA, 1)
		equal(e, "records", len(entries), len(half)+1)
		equal(e, "last", string(entries[len(half)].Data), "after")
		if !bytes.Equal(entries[len(half)-1].Data, big) {
			e.Fatal("a record came back different")
		}
	}},
}

func denseUnderWriters(e *env) {
	const writers, each = 16, 60
	epoch := e.openOne(shardA)
	got := make([]map[record.LSN]uint64, writers)
	var wg sync.WaitGroup
	for w := range writers {
		got[w] = map[record.LSN]uint64{}
		wg.Go(func() {
			for i := range each {
				id := uint64(w)<<32 | uint64(i)
				var recs [][]byte
				for k := range 1 + i%3 {
					recs = append(recs, binary.BigEndian.AppendUint64(nil, id|uint64(k)<<16))
				}
				done, err := e.log.Append(e.ctx, &metalog.Append{Shards: []metalog.ShardAppend{{Shard: shardA, Epoch: epoch, Records: recs}}})
				if err != nil {
					e.Error(err)
					return
				}
				for k := range recs {
					got[w][done[0].FirstLSN+record.LSN(k)] = id | uint64(k)<<16
				}
			}
		})
	}
	wg.Wait()
	entries := e.read(shardA, 1)
	total := 0
	for w, of := range got {
		total += len(of)
		for lsn, id := range of {
			if int(lsn) > len(entries) || binary.BigEndian.Uint64(entries[lsn-1].Data) != id {
				e.Fatalf("writer %d was told that LSN %d is its own, but it is not", w, lsn)
			}
		}
	}
	equal(e, "records", len(entries), total)
	if !slices.IsSortedFunc(entries, func(a, b metalog.Entry) int { return int(a.Time - b.Time) }) {
		e.Fatal("times decrease")
	}
}

// visibleTogether appends to two shards in each transaction while readers look: who saw a transaction in one sees it in the other.
func visibleTogether(e *env) {
	epochs := e.open(shardA, shardB)
	const n = 200
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range n {
			if err := e.try(to(shardA, epochs[0], fmt.Sprint(i)), to(shardB, epochs[1], fmt.Sprint(i))); err != nil {
				e.Error(err)
				return
			}
		}
	})
	for k := range 2 {
		first, second := shardA, shardB
		if k == 1 {
			first, second = second, first
		}
		wg.Go(func() {
			for seen := record.LSN(1); seen <= n && !e.Failed(); {
				one, err1 := e.log.Tail(e.ctx, []record.ShardID{first})
				other, err2 := e.log.Tail(e.ctx, []record.ShardID{second})
				if err := errors.Join(err1, err2); err != nil {
					e.Error(err)
					return
				}
				if seen = one[0].NextLSN; other[0].NextLSN < seen {
					e.Errorf("shard %v is at %d, but %v, looked at later, at %d", first, seen, second, other[0].NextLSN)
				}
			}
		})
	}
	wg.Wait()
}

var fenceCases = []testCase{
	{name: "an earlier epoch is fenced", test: func(e *env) {
		first := e.openOne(shardA)
		e.append(to(shardA, first, "one"))
		second := e.openOne(shardA)
		e.is(e.try(to(shardA, first, "no")), metalog.ErrFenced)
		e.is(e.try(to(shardA, second+1, "no")), metalog.ErrFenced)
		e.append(to(shardA, second, "two"))
		e.holds(shardA, 1, "one", "two")
	}},
	{name: "a shard that was never opened takes nothing", test: func(e *env) {
		e.is(e.try(to(shardA, 1, "no")), metalog.ErrFenced)
		equal(e, "epoch", e.tail(shardA).Epoch, 0)
		if states, err := e.log.Shards(e.ctx, shardA.Category()); err != nil || len(states) != 0 {
			e.Fatalf("Shards returned %v, %v", states, err)
		}
	}},
	{name: "after an epoch nothing at or below it commits", test: fencedForGood},
}

// fencedForGood has writers that go on with what they have while others open: behind the next LSN that an Open returned, there are
// records of later epochs only.
func fencedForGood(e *env) {
	const openers, opens = 3, 8
	type fence struct {
		epoch uint64
		next  record.LSN
	}
	var mu sync.Mutex
	var fences []fence
	var writers, all sync.WaitGroup
	write := func(epoch uint64) {
		for {
			err := e.try(to(shardA, epoch, fmt.Sprint(epoch)))
			if errors.Is(err, metalog.ErrFenced) {
				return
			}
			if err != nil {
				e.Error(err)
				return
			}
		}
	}
	for range openers {
		all.Go(func() {
			for range opens {
				states, err := e.log.Open(e.ctx, "opener", []record.ShardID{shardA})
				if err != nil {
					e.Error(err)
					return
				}
				mu.Lock()
				fences = append(fences, fence{states[0].Epoch, states[0].NextLSN})
				mu.Unlock()
				for range 2 {
					writers.Go(func() { write(states[0].Epoch) })
				}
			}
		})
	}
	all.Wait()
	e.openOne(shardA)
	writers.Wait()
	entries := e.read(shardA, 1)
	for _, f := range fences {
		for _, en := range entries[f.next-1:] {
			var epoch uint64
			if _, err := fmt.Sscan(string(en.Data), &epoch); err != nil || epoch < f.epoch {
				e.Fatalf("LSN %d holds a record of epoch %s, but epoch %d began at LSN %d", en.LSN, en.Data, f.epoch, f.next)
			}
		}
	}
}

var sealCases = []testCase{
	{name: "a sealed shard takes nothing from anyone", test: func(e *env) {
		epoch := e.openOne(shardA)
		e.fill(shardA, epoch, "r", 2)
		st, err := e.log.Seal(e.ctx, shardA)
		if err != nil || !st.Sealed || st.NextLSN != 3 || st.Epoch != epoch {
			e.Fatalf("Seal returned %+v, %v", st, err)
		}
		e.is(e.try(to(shardA, epoch, "no")), metalog.ErrSealed)
		if st, err = e.log.Seal(e.ctx, shardA); err != nil || !st.Sealed {
			e.Fatalf("the second Seal returned %+v, %v", st, err)
		}
		states, err := e.log.Open(e.ctx, "again", []record.ShardID{shardA, shardB})
		if err != nil {
			e.Fatal(err)
		}
		if st := states[0]; !st.Sealed || st.Epoch != epoch || st.NextLSN != 3 {
			e.Fatalf("Open of a sealed shard returned %+v", st)
		}
		if st := states[1]; st.Sealed || st.Epoch == 0 {
			e.Fatalf("Open of the other shard returned %+v", st)
		}
		e.is(e.try(to(shardA, epoch, "no")), metalog.ErrSealed)
		e.holds(shardA, 1, "r0", "r1")
		if err := e.log.Trim(e.ctx, shardA, 3); err != nil {
			e.Fatal(err)
		}
		equal(e, "first LSN", e.tail(shardA).FirstLSN, 3)
	}},
	{name: "what does not exist can't be sealed", test: func(e *env) {
		_, err := e.log.Seal(e.ctx, shardA)
		e.is(err, metalog.ErrInvalid)
		equal(e, "epoch", e.tail(shardA).Epoch, 0)
	}},
}
