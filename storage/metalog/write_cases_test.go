package metalog_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

var openCases = []testCase{
	{name: "epochs are unique under concurrent opens", test: func(e *caseEnv) {
		var mu sync.Mutex
		seen := map[uint64]bool{}
		e.startAll(16, func(int) error {
			for range 10 {
				states, err := e.log.Open(e.ctx, "racer", []record.ShardID{shardA, shardB})
				if err != nil {
					return err
				}
				mu.Lock()
				seen[states[0].Epoch] = true
				mu.Unlock()
			}
			return nil
		})()
		wantEqual(e, "distinct epochs", len(seen), 160)
	}},
}

var appendCases = []testCase{
	{name: "LSNs are dense under 16 writers", test: denseUnderWriters},
	{name: "an append over several shards is visible at once", test: visibleTogether},
	{name: "concurrent repeats are stored once", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		for i := range 20 {
			var stored atomic.Int64
			e.startAll(8, func(int) error {
				s := appendTo(shardA, epoch, fmt.Sprint(i))
				s.ExpectLSN = record.LSN(i + 1)
				err := e.tryAppend(s)
				if errors.Is(err, metalog.ErrConflict) {
					return nil
				}
				stored.Add(1)
				return err
			})()
			wantEqual(e, "appends that were stored", stored.Load(), 1)
		}
		wantEqual(e, "next LSN", e.tailOf(shardA).NextLSN, 21)
	}},
	{name: "many conflicts are cut at the limit", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		var runs []metalog.Sequence
		for i := range uint64(metalog.MaxConflicts + 50) {
			runs = append(runs, makeRun(i, 0, 0))
		}
		s := appendTo(shardA, epoch, "r")
		s.Sequences = runs
		e.appendAll(s)
		err := e.tryAppend(s)
		wantEqual(e, "conflicts", len(asError[*metalog.SequenceError](e, err).Conflicts), metalog.MaxConflicts)
	}},
	{name: "concurrent writers store each run once", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.startAll(8, func(int) error { // each tries to store the whole of a producer's past, as retries do
			for i := range uint64(30) {
				s := appendTo(shardA, epoch, fmt.Sprint(i))
				s.Sequences = []metalog.Sequence{makeRun(9, i*10, i*10+9)}
				if err := e.tryAppend(s); err != nil && !errors.Is(err, metalog.ErrSequence) {
					return err
				}
			}
			return nil
		})()
		e.wantKnown(shardA, metalog.ProducerState{Producer: 9, Epoch: 1, Next: 300})
		var want []string
		for i := range 30 {
			want = append(want, fmt.Sprint(i))
		}
		e.wantRecords(shardA, 1, want...)
	}},
	{name: "times never decrease", test: func(e *caseEnv) {
		epochs := e.openShards(shardA, shardB)
		var last int64
		for i, d := range []time.Duration{0, time.Hour, -2 * time.Hour, 0, time.Second, -time.Minute, 3 * time.Hour} {
			e.in.clock.Advance(d)
			s := []record.ShardID{shardA, shardB}[i%2]
			done := e.appendAll(appendTo(s, epochs[i%2], "x"))[0]
			if done.Time < last || done.Time <= 0 {
				e.Fatalf("a record has time %d after one of %d", done.Time, last)
			}
			last = done.Time
		}
		// The clock has passed the last time, so the next time is the clock's again.
		before := e.in.clock.Now()
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
	{name: "a transaction at the limit of bytes", needs: isNotRaced, test: func(e *caseEnv) {
		epochs := e.openShards(shardA, shardB)
		big := bytes.Repeat([]byte("0123456789abcdef"), metalog.MaxRecord/16)
		var half [][]byte
		for range metalog.MaxAppend / metalog.MaxRecord / 2 {
			half = append(half, big)
		}
		e.appendAll(metalog.ShardAppend{Shard: shardA, Epoch: epochs[0], Records: half}, metalog.ShardAppend{Shard: shardB, Epoch: epochs[1], Records: half})
		e.appendAll(appendTo(shardA, epochs[0], "after"))
		e.awaitReader(shardA)
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
	e.startAll(writers, func(w int) error {
		got[w] = map[record.LSN]uint64{}
		for i := range each {
			id := uint64(w)<<32 | uint64(i)
			var recs [][]byte
			for k := range 1 + i%3 {
				recs = append(recs, binary.BigEndian.AppendUint64(nil, id|uint64(k)<<16))
			}
			done, err := e.log.Append(e.ctx, &metalog.Append{Shards: []metalog.ShardAppend{{Shard: shardA, Epoch: epoch, Records: recs}}})
			if err != nil {
				return err
			}
			for k := range recs {
				got[w][done[0].FirstLSN+record.LSN(k)] = id | uint64(k)<<16
			}
		}
		return nil
	})()
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
	shards := []record.ShardID{shardA, shardB}
	wait := e.startAll(2, func(i int) error {
		for seen := record.LSN(1); seen <= n; {
			one, err1 := e.log.Tail(e.ctx, shards[i:i+1])
			other, err2 := e.log.Tail(e.ctx, shards[1-i:2-i])
			if err := errors.Join(err1, err2); err != nil {
				return err
			}
			if seen = one[0].NextLSN; other[0].NextLSN < seen {
				return fmt.Errorf("shard %v is at %d, but %v, looked at later, at %d", shards[i], seen, shards[1-i], other[0].NextLSN)
			}
		}
		return nil
	})
	for i := range n {
		e.appendAll(appendTo(shardA, epochs[0], fmt.Sprint(i)), appendTo(shardB, epochs[1], fmt.Sprint(i)))
	}
	wait()
}

var fenceCases = []testCase{
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
	var writers sync.WaitGroup
	e.startAll(openers, func(int) error {
		for range opens {
			states, err := e.log.Open(e.ctx, "opener", []record.ShardID{shardA})
			if err != nil {
				return err
			}
			mu.Lock()
			fences = append(fences, fence{states[0].Epoch, states[0].NextLSN})
			mu.Unlock()
			for range 2 {
				writers.Go(func() { e.appendUntil(metalog.ErrFenced, shardA, states[0].Epoch, fmt.Sprint(states[0].Epoch)) })
			}
		}
		return nil
	})()
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
