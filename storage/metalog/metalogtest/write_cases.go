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
	{name: "open creates shards and raises epochs", test: func(e *caseEnv) {
		st := e.tailOf(shardA)
		if st.Epoch != 0 || st.FirstLSN != 1 || st.NextLSN != 1 || st.Sealed || st.LastTime != 0 {
			e.Fatalf("a shard that does not exist has the state %+v", st)
		}
		states, err := e.log.Open(e.ctx, "one", []record.ShardID{shardB, shardA})
		e.mustSucceed(err)
		for i, want := range []record.ShardID{shardB, shardA} {
			if st := states[i]; st.Shard != want || st.Epoch == 0 || st.FirstLSN != 1 || st.NextLSN != 1 {
				e.Fatalf("the state of new shard %v is %+v", want, st)
			}
		}
		first := states[1].Epoch
		e.fillShard(shardA, first, "r", 3)
		states, err = e.log.Open(e.ctx, "two", []record.ShardID{shardA})
		e.mustSucceed(err)
		if st := states[0]; st.Epoch <= first || st.NextLSN != 4 || st.FirstLSN != 1 {
			e.Fatalf("the state after the second Open is %+v", st)
		}
		wantEqual(e, "epoch of the tail", e.tailOf(shardA).Epoch, states[0].Epoch)
	}},
	{name: "epochs are unique under concurrent opens", test: func(e *caseEnv) {
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
		wantEqual(e, "distinct epochs", len(seen), 160)
	}},
}

var appendCases = []testCase{
	{name: "records come back as they were appended", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		want := [][]byte{{0}, bytes.Repeat([]byte{0xff}, metalog.MaxRecord), []byte("text"), {0, 1, 2}}
		done := e.appendAll(metalog.ShardAppend{Shard: shardA, Epoch: epoch, Records: want})
		wantEqual(e, "first LSN", done[0].FirstLSN, 1)
		entries := e.readAll(shardA, 1)
		wantEqual(e, "records", len(entries), len(want))
		for i, en := range entries {
			if !bytes.Equal(en.Data, want[i]) {
				e.Fatalf("record %d came back different", i)
			}
			wantEqual(e, "time", en.Time, done[0].Time)
		}
	}},
	{name: "the engine does not keep the caller's memory", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		buf := []byte("before")
		e.appendAll(metalog.ShardAppend{Shard: shardA, Epoch: epoch, Records: [][]byte{buf}})
		copy(buf, "AFTER!")
		e.wantRecords(shardA, 1, "before")
		entries := e.readAll(shardA, 1)
		copy(entries[0].Data, "mine!!") // entries belong to the caller
		_ = append(entries[0].Data, "more"...)
		e.wantRecords(shardA, 1, "before")
	}},
	{name: "LSNs are dense under 16 writers", test: denseUnderWriters},
	{name: "an append is visible at once when it returns", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		for i := range 50 {
			done := e.appendAll(appendTo(shardA, epoch, fmt.Sprint(i)))[0]
			st := e.tailOf(shardA)
			wantEqual(e, "next LSN", st.NextLSN, done.FirstLSN+1)
			wantEqual(e, "last time", st.LastTime, done.Time)
			e.wantRecords(shardA, done.FirstLSN, fmt.Sprint(i))
		}
	}},
	{name: "an append over several shards is all or none", test: func(e *caseEnv) {
		epochs := e.openShards(shardA, shardB, shardC)
		e.wantError(e.tryAppend(appendTo(shardA, epochs[0], "a"), appendTo(shardB, epochs[1]+1, "b"), appendTo(shardC, epochs[2], "c")), metalog.ErrFenced)
		for _, s := range []record.ShardID{shardA, shardB, shardC} {
			wantEqual(e, "next LSN", e.tailOf(s).NextLSN, 1)
		}
		done := e.appendAll(appendTo(shardC, epochs[2], "c0", "c1"), appendTo(shardA, epochs[0], "a0"))
		wantEqual(e, "time", done[0].Time, done[1].Time)
		e.wantRecords(shardC, 1, "c0", "c1")
		e.wantRecords(shardA, 1, "a0")
		e.wantRecords(shardB, 1)
	}},
	{name: "an append over several shards is visible at once", test: visibleTogether},
	{name: "a refused append names every shard that refused", test: func(e *caseEnv) {
		epochs := e.openShards(shardA, shardB, shardC)
		if _, err := e.log.Seal(e.ctx, shardA); err != nil {
			e.Fatal(err)
		}
		gone := record.MakeShardID(8, 0, 0)
		conflict := appendTo(shardC, epochs[2], "c")
		conflict.ExpectLSN = 5
		err := e.tryAppend(appendTo(shardA, epochs[0], "a"), appendTo(shardB, epochs[1], "b"), conflict, appendTo(gone, 1, "d"))
		refused := asError[*metalog.RefusedError](e, err)
		wantEqual(e, "refusals", len(refused.Refusals), 3)
		for i, want := range []struct {
			shard record.ShardID
			err   error
		}{{shardA, metalog.ErrSealed}, {shardC, metalog.ErrConflict}, {gone, metalog.ErrFenced}} {
			r := refused.Refusals[i]
			wantEqual(e, "shard", r.State.Shard, want.shard)
			e.wantError(r.Err, want.err)
			e.wantError(err, want.err)
		}
		wantEqual(e, "epoch of the shard that does not exist", refused.Refusals[2].State.Epoch, 0)
		wantEqual(e, "next LSN of the conflict", refused.Refusals[1].State.NextLSN, 1)
		e.wantRecords(shardB, 1)
	}},
	{name: "an expected LSN makes a repeat harmless", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		s := appendTo(shardA, epoch, "x", "y")
		s.ExpectLSN = 1
		e.appendAll(s)
		e.wantError(e.tryAppend(s), metalog.ErrConflict)
		wantEqual(e, "next LSN", e.tailOf(shardA).NextLSN, 3)
		s.ExpectLSN = 3
		wantEqual(e, "first LSN", e.appendAll(s)[0].FirstLSN, 3)
		s.ExpectLSN = 9
		e.wantError(e.tryAppend(s), metalog.ErrConflict)
		e.wantRecords(shardA, 1, "x", "y", "x", "y")
	}},
	{name: "concurrent repeats are stored once", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		for i := range 20 {
			var stored sync.Map
			var wg sync.WaitGroup
			for w := range 8 {
				wg.Go(func() {
					s := appendTo(shardA, epoch, fmt.Sprint(i))
					s.ExpectLSN = record.LSN(i + 1)
					if err := e.tryAppend(s); err == nil {
						stored.Store(w, true)
					} else if !errors.Is(err, metalog.ErrConflict) {
						e.Error(err)
					}
				})
			}
			wg.Wait()
			n := 0
			stored.Range(func(any, any) bool { n++; return true })
			wantEqual(e, "appends that were stored", n, 1)
		}
		wantEqual(e, "next LSN", e.tailOf(shardA).NextLSN, 21)
	}},
	{name: "an old blob is refused from the boundary on", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		at := func(blob int64) error {
			_, err := e.log.Append(e.ctx, &metalog.Append{Shards: []metalog.ShardAppend{appendTo(shardA, epoch, "x")}, OldestBlob: blob})
			return err
		}
		advance := func(t, want int64) {
			got, err := e.log.AdvanceBoundary(e.ctx, t)
			e.mustSucceed(err)
			wantEqual(e, "boundary", got, want)
		}
		advance(0, 0)
		e.wantError(at(1), nil)
		advance(1000, 1000)
		e.wantError(at(999), metalog.ErrStaleBlob)
		e.wantError(at(1000), nil)
		e.wantError(at(0), nil) // refers to no blob
		advance(500, 1000)
		advance(0, 1000)
		advance(1001, 1001)
		e.wantError(at(1000), metalog.ErrStaleBlob)
		wantEqual(e, "next LSN", e.tailOf(shardA).NextLSN, 4)
	}},
	{name: "times never decrease", needs: hasClock, test: func(e *caseEnv) {
		epochs := e.openShards(shardA, shardB)
		var last int64
		for i, d := range []time.Duration{0, time.Hour, -2 * time.Hour, 0, time.Second, -time.Minute, 3 * time.Hour} {
			e.in.Clock.Advance(d)
			s := []record.ShardID{shardA, shardB}[i%2]
			done := e.appendAll(appendTo(s, epochs[i%2], "x"))[0]
			if done.Time < last || done.Time <= 0 {
				e.Fatalf("a record has time %d after one of %d", done.Time, last)
			}
			last = done.Time
		}
		// The clock has passed the last time, so the next time is the clock's again.
		before := e.in.Clock.Now()
		done := e.appendAll(appendTo(shardA, epochs[0], "x"))[0]
		if done.Time <= before {
			e.Fatalf("the time is %d, but the clock was at %d before", done.Time, before)
		}
	}},
	{name: "a transaction over 5,000 shards", test: func(e *caseEnv) {
		var shards []record.ShardID
		for i := range 5000 {
			shards = append(shards, record.MakeShardID(uint32(i/10+1), uint16(i%10), 3))
		}
		epochs := e.openShards(shards...)
		var all []metalog.ShardAppend
		for i, s := range shards {
			all = append(all, appendTo(s, epochs[i], s.String()))
		}
		e.appendAll(all...)
		states, err := e.log.Tail(e.ctx, shards)
		e.mustSucceed(err)
		for _, st := range states {
			wantEqual(e, "next LSN", st.NextLSN, 2)
		}
		for i := 0; i < len(shards); i += 500 {
			e.wantRecords(shards[i], 1, shards[i].String())
		}
	}},
	{name: "a transaction at the limit of bytes", test: func(e *caseEnv) {
		epochs := e.openShards(shardA, shardB)
		big := bytes.Repeat([]byte("0123456789abcdef"), metalog.MaxRecord/16)
		var half [][]byte
		for range metalog.MaxAppend / metalog.MaxRecord / 2 {
			half = append(half, big)
		}
		e.appendAll(metalog.ShardAppend{Shard: shardA, Epoch: epochs[0], Records: half}, metalog.ShardAppend{Shard: shardB, Epoch: epochs[1], Records: half})
		e.appendAll(appendTo(shardA, epochs[0], "after"))
		wantEqual(e, "records", len(e.readAll(shardB, 1)), len(half))
		entries := e.readAll(shardA, 1)
		wantEqual(e, "records", len(entries), len(half)+1)
		wantEqual(e, "last", string(entries[len(half)].Data), "after")
		if !bytes.Equal(entries[len(half)-1].Data, big) {
			e.Fatal("a record came back different")
		}
	}},
}

func denseUnderWriters(e *caseEnv) {
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
	entries := e.readAll(shardA, 1)
	total := 0
	for w, of := range got {
		total += len(of)
		for lsn, id := range of {
			if int(lsn) > len(entries) || binary.BigEndian.Uint64(entries[lsn-1].Data) != id {
				e.Fatalf("writer %d was told that LSN %d is its own, but it is not", w, lsn)
			}
		}
	}
	wantEqual(e, "records", len(entries), total)
	if !slices.IsSortedFunc(entries, func(a, b metalog.Entry) int { return int(a.Time - b.Time) }) {
		e.Fatal("times decrease")
	}
}

// visibleTogether appends to two shards in each transaction while readers look: a transaction seen in one shard is visible in the
// other.
func visibleTogether(e *caseEnv) {
	epochs := e.openShards(shardA, shardB)
	const n = 200
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range n {
			if err := e.tryAppend(appendTo(shardA, epochs[0], fmt.Sprint(i)), appendTo(shardB, epochs[1], fmt.Sprint(i))); err != nil {
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
	{name: "an earlier epoch is fenced", test: func(e *caseEnv) {
		first := e.openOne(shardA)
		e.appendAll(appendTo(shardA, first, "one"))
		second := e.openOne(shardA)
		e.wantError(e.tryAppend(appendTo(shardA, first, "no")), metalog.ErrFenced)
		e.wantError(e.tryAppend(appendTo(shardA, second+1, "no")), metalog.ErrFenced)
		e.appendAll(appendTo(shardA, second, "two"))
		e.wantRecords(shardA, 1, "one", "two")
	}},
	{name: "a shard that was never opened takes nothing", test: func(e *caseEnv) {
		e.wantError(e.tryAppend(appendTo(shardA, 1, "no")), metalog.ErrFenced)
		wantEqual(e, "epoch", e.tailOf(shardA).Epoch, 0)
		if states, err := e.log.Shards(e.ctx, shardA.Category()); err != nil || len(states) != 0 {
			e.Fatalf("Shards returned %v, %v", states, err)
		}
	}},
	{name: "after an epoch nothing at or below it commits", test: fencedForGood},
}

// fencedForGood runs writers that keep using their epochs while others open: after the next LSN that an Open returned, all
// records must be of later epochs.
func fencedForGood(e *caseEnv) {
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
			err := e.tryAppend(appendTo(shardA, epoch, fmt.Sprint(epoch)))
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
	entries := e.readAll(shardA, 1)
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
	{name: "a sealed shard takes nothing from anyone", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, "r", 2)
		st, err := e.log.Seal(e.ctx, shardA)
		if err != nil || !st.Sealed || st.NextLSN != 3 || st.Epoch != epoch {
			e.Fatalf("Seal returned %+v, %v", st, err)
		}
		e.wantError(e.tryAppend(appendTo(shardA, epoch, "no")), metalog.ErrSealed)
		if st, err = e.log.Seal(e.ctx, shardA); err != nil || !st.Sealed {
			e.Fatalf("the second Seal returned %+v, %v", st, err)
		}
		states, err := e.log.Open(e.ctx, "again", []record.ShardID{shardA, shardB})
		e.mustSucceed(err)
		if st := states[0]; !st.Sealed || st.Epoch != epoch || st.NextLSN != 3 {
			e.Fatalf("Open of a sealed shard returned %+v", st)
		}
		if st := states[1]; st.Sealed || st.Epoch == 0 {
			e.Fatalf("Open of the other shard returned %+v", st)
		}
		e.wantError(e.tryAppend(appendTo(shardA, epoch, "no")), metalog.ErrSealed)
		e.wantRecords(shardA, 1, "r0", "r1")
		e.mustSucceed(e.log.Trim(e.ctx, shardA, 3))
		wantEqual(e, "first LSN", e.tailOf(shardA).FirstLSN, 3)
	}},
	{name: "what does not exist can't be sealed", test: func(e *caseEnv) {
		_, err := e.log.Seal(e.ctx, shardA)
		e.wantError(err, metalog.ErrInvalid)
		wantEqual(e, "epoch", e.tailOf(shardA).Epoch, 0)
	}},
}
