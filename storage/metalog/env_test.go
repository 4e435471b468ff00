package metalog_test

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// shardA and its neighbours are shards of one category.
var (
	shardA = record.MakeShardID(7, 0, 1)
	shardB = record.MakeShardID(7, 0, 2)
	shardC = record.MakeShardID(7, 1, 1)
)

// openShards opens shards and returns their epochs.
func (e *caseEnv) openShards(shards ...record.ShardID) []uint64 {
	e.Helper()
	states, err := e.log.Open(e.ctx, "suite", shards)
	if err != nil {
		e.Fatalf("Open: %v", err)
	}
	if len(states) != len(shards) {
		e.Fatalf("Open returned %d states for %d shards", len(states), len(shards))
	}
	epochs := make([]uint64, len(states))
	for i, st := range states {
		if st.Shard != shards[i] {
			e.Fatalf("Open: state %d is of shard %v, not %v", i, st.Shard, shards[i])
		}
		epochs[i] = st.Epoch
	}
	return epochs
}

// openOne opens a shard and returns its epoch.
func (e *caseEnv) openOne(shard record.ShardID) uint64 {
	e.Helper()
	return e.openShards(shard)[0]
}

// appendTo returns an append of texts to one shard.
func appendTo(shard record.ShardID, epoch uint64, texts ...string) metalog.ShardAppend {
	s := metalog.ShardAppend{Shard: shard, Epoch: epoch}
	for _, t := range texts {
		s.Records = append(s.Records, []byte(t))
	}
	return s
}

// tryAppend appends and returns the error.
func (e *caseEnv) tryAppend(shards ...metalog.ShardAppend) error {
	_, err := e.log.Append(e.ctx, &metalog.Append{Shards: shards})
	return err
}

// appendAll appends and fails the case if it can't.
func (e *caseEnv) appendAll(shards ...metalog.ShardAppend) []metalog.Appended {
	e.Helper()
	done, err := e.log.Append(e.ctx, &metalog.Append{Shards: shards})
	if err != nil {
		e.Fatalf("Append: %v", err)
	}
	if len(done) != len(shards) {
		e.Fatalf("Append returned %d results for %d shards", len(done), len(shards))
	}
	return done
}

// fillShard appends n records "r0", "r1", ... one by one.
func (e *caseEnv) fillShard(shard record.ShardID, epoch uint64, n int) {
	e.Helper()
	for i := range n {
		e.appendAll(appendTo(shard, epoch, fmt.Sprint("r", i)))
	}
}

// readAll reads a shard from an LSN to its tail, in as many calls as it takes, and checks that LSNs are dense.
func (e *caseEnv) readAll(shard record.ShardID, from record.LSN) []metalog.Entry {
	e.Helper()
	var all []metalog.Entry
	for {
		entries, err := e.log.Read(e.ctx, shard, from, 0, 0)
		if err != nil {
			e.Fatalf("Read from %d: %v", from, err)
		}
		if len(entries) == 0 {
			return all
		}
		for _, en := range entries {
			if en.LSN != from {
				e.Fatalf("Read returned LSN %d, not %d", en.LSN, from)
			}
			from++
		}
		all = append(all, entries...)
	}
}

func makeRun(producer, first, last uint64) metalog.Sequence {
	return metalog.Sequence{Producer: producer, Epoch: 1, First: first, Last: last}
}

// wantKnown checks a shard's state of a producer.
func (e *caseEnv) wantKnown(shard record.ShardID, want metalog.ProducerState) {
	e.Helper()
	got, err := e.log.Sequences(e.ctx, shard, []uint64{want.Producer})
	if err != nil || len(got) != 1 || got[0] != want {
		e.Fatalf("the shard knows %+v (%v), want %+v", got, err, want)
	}
}

// appendUntil appends a record again and again, until that fails with the given error.
func (e *caseEnv) appendUntil(want error, shard record.ShardID, epoch uint64, text string) {
	for {
		err := e.tryAppend(appendTo(shard, epoch, text))
		if err == nil {
			continue
		}
		if !errors.Is(err, want) {
			e.Error(err)
		}
		return
	}
}

// startAll calls run on n goroutines at once. The function that it returns waits for them, and fails the case with their first error.
func (e *caseEnv) startAll(n int, run func(i int) error) (wait func()) {
	var all errgroup.Group
	for i := range n {
		all.Go(func() error { return run(i) })
	}
	return func() {
		e.Helper()
		e.mustSucceed(all.Wait())
	}
}

// tailOf returns the state of one shard.
func (e *caseEnv) tailOf(shard record.ShardID) metalog.State {
	e.Helper()
	states, err := e.log.Tail(e.ctx, []record.ShardID{shard})
	if err != nil {
		e.Fatalf("Tail: %v", err)
	}
	if len(states) != 1 || states[0].Shard != shard {
		e.Fatalf("Tail returned %+v for shard %v", states, shard)
	}
	return states[0]
}

// wantRecords checks the records of a shard from an LSN on.
func (e *caseEnv) wantRecords(shard record.ShardID, from record.LSN, want ...string) {
	e.Helper()
	if got := textsOf(e.readAll(shard, from)); strings.Join(got, ",") != strings.Join(want, ",") {
		e.Fatalf("shard %v holds %q from LSN %d on, want %q", shard, got, from, want)
	}
}

func textsOf(entries []metalog.Entry) []string {
	var out []string
	for _, en := range entries {
		out = append(out, string(en.Data))
	}
	return out
}

// wantError fails the case unless err is target.
func (e *caseEnv) wantError(err, target error) {
	e.Helper()
	if !errors.Is(err, target) {
		e.Fatalf("the error is %v, want %v", err, target)
	}
}

// asError returns err as a T.
func asError[T error](e *caseEnv, err error) T {
	e.Helper()
	var want T
	if !errors.As(err, &want) {
		e.Fatalf("the error is %T (%v), want %T", err, err, want)
	}
	return want
}

func wantEqual[T comparable](e *caseEnv, what string, got, want T) {
	e.Helper()
	if got != want {
		e.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// mustSucceed fails the case unless err is nil.
func (e *caseEnv) mustSucceed(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}
