package pebblelog

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/format/record"
	"scribe/internal/testkit/testclock"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog/schema"
)

// The tests of this file hold a lock of the engine to see in which order it does things: orders that are wrong show so seldom
// otherwise that no load finds them.

// TestWatermarkBeforeStates checks that the clock is read before the states are.
func TestWatermarkBeforeStates(t *testing.T) {
	var reads atomic.Int64
	e := start(t, Options{FS: vfs.NewMem(), Clock: func() int64 { reads.Add(1); return 1_000_000 }})
	mustOpen(t, e, shardA)
	e.table.mu.Lock()
	before := reads.Load()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := e.publishedStates(t.Context(), []record.ShardID{shardA}, make([]schema.State, 1)); err != nil {
			t.Error(err)
		}
	}()
	for reads.Load() == before { // forever, if the states come first
		runtime.Gosched()
	}
	e.table.mu.Unlock()
	<-done
}

// TestPublishOrder stops the committer where it publishes the states: until then the clock stands at the batch, what it trimmed is
// still there, and nobody has an answer.
func TestPublishOrder(t *testing.T) {
	e, g, clock := gated(t)
	ctx := t.Context()
	epoch := mustOpen(t, e, shardA)[0].Epoch
	for range 3 {
		if _, err := e.Append(ctx, one(shardA, epoch, "x")); err != nil {
			t.Fatal(err)
		}
	}
	g.close()
	var wg sync.WaitGroup
	var answered atomic.Bool
	wg.Go(func() {
		if err := e.Trim(ctx, shardA, 3); err != nil {
			t.Error(err)
		}
		answered.Store(true)
	})
	<-g.reached
	batch := e.clock.mu.batch // the committer waits for its sync
	e.table.mu.RLock()
	g.open()
	for e.table.mu.TryRLock() { // until the committer waits for the lock
		e.table.mu.RUnlock()
		runtime.Gosched()
	}
	clock.Advance(time.Millisecond)
	if w, _, _ := e.clock.watermark(); w > batch {
		t.Errorf("the watermark is %d before the batch of time %d is published", w, batch)
	}
	_, closer, err := e.db.Get(schema.AppendRecordKey(nil, shardA, 1))
	if err != nil {
		t.Errorf("a record that the published state has is gone: %v", err)
	} else if err := closer.Close(); err != nil {
		t.Error(err)
	}
	if answered.Load() {
		t.Error("the answer came before the state was published")
	}
	e.table.mu.RUnlock()
	wg.Wait()
}

// TestOneBatchDecidesInTurn puts calls that depend on each other into one batch.
func TestOneBatchDecidesInTurn(t *testing.T) {
	e, g, _ := gated(t)
	ctx := t.Context()
	epoch := mustOpen(t, e, shardA, shardB)[0].Epoch
	g.close()
	var wg sync.WaitGroup
	queue := func(want error, call func() error) {
		n := len(e.queue)
		wg.Go(func() {
			if err := call(); !errors.Is(err, want) || want == nil && err != nil {
				t.Errorf("a call ended with %v, want %v", err, want)
			}
		})
		for len(e.queue) == n {
			runtime.Gosched()
		}
	}
	add := func(expect record.LSN, first uint64) func() error {
		return func() error {
			_, err := e.Append(ctx, &metalog.Append{Shards: []metalog.ShardAppend{{
				Shard: shardA, Epoch: epoch, ExpectLSN: expect, Records: [][]byte{{1}},
				Sequences: []metalog.Sequence{{Producer: 1, Epoch: 1, First: first, Last: first + 9}},
			}}})
			return err
		}
	}
	wg.Go(func() {
		if err := add(1, 0)(); err != nil {
			t.Error(err)
		}
	})
	<-g.reached
	queue(nil, add(2, 10))
	queue(metalog.ErrConflict, add(2, 20))
	queue(metalog.ErrSequence, add(3, 10))
	queue(nil, add(3, 20))
	queue(nil, func() error {
		known, err := e.Sequences(ctx, shardA, []uint64{1})
		if err == nil && known[0].Next != 30 {
			t.Errorf("the shard knows %+v", known)
		}
		return err
	})
	queue(metalog.ErrInvalid, func() error { return e.Trim(ctx, shardA, 5) })
	queue(nil, func() error { return e.Trim(ctx, shardA, 3) })
	queue(nil, func() error { return e.Trim(ctx, shardA, 4) })
	queue(nil, func() error { _, err := e.AdvanceBoundary(ctx, 100); return err })
	queue(metalog.ErrStaleBlob, func() error {
		a := one(shardA, epoch, "x")
		a.OldestBlob = 99
		_, err := e.Append(ctx, a)
		return err
	})
	queue(nil, func() error { _, err := e.Open(ctx, "test", []record.ShardID{shardA}); return err })
	queue(metalog.ErrFenced, add(4, 30))
	queue(nil, func() error { _, err := e.Seal(ctx, shardB); return err })
	queue(metalog.ErrSealed, func() error { _, err := e.Append(ctx, one(shardB, epoch, "x")); return err })
	g.open()
	wg.Wait()
	states, err := e.Tail(ctx, []record.ShardID{shardA, shardB})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := states[0], states[1]; a.FirstLSN != 4 || a.NextLSN != 4 || a.Epoch != epoch+1 || !b.Sealed || b.NextLSN != 1 {
		t.Errorf("the states are %+v", states)
	}
}

// TestWithdrawWaits checks that a caller gets its memory back only once the committer does not look at it any more.
func TestWithdrawWaits(t *testing.T) {
	e := start(t, Options{FS: vfs.NewMem()})
	r := newRequest(tickOp{})
	r.claim.Store(claimStaged)
	e.staging.Lock()
	done := make(chan bool, 1)
	go func() { done <- e.withdraw(r) }()
	for range 1000 {
		runtime.Gosched()
	}
	select {
	case <-done:
		t.Error("withdraw did not wait")
	default:
	}
	e.staging.Unlock()
	if <-done {
		t.Error("a request that was staged is said to have no effect")
	}
	r.claim.Store(claimQueued)
	if !e.withdraw(r) {
		t.Error("a request that was queued is said to have an effect")
	}
}

// TestWatchNeitherMissesNorRepeats creates a shard between the steps of WatchShards.
func TestWatchNeitherMissesNorRepeats(t *testing.T) {
	e := start(t, Options{FS: vfs.NewMem(), Clock: testclock.New().Now})
	mustOpen(t, e, shardA)
	w := &categoryWatch{wake: make(chan struct{}, 1)}
	e.table.addWatch(7, w)
	defer e.table.removeWatch(7, w)
	ids, err := e.shardIDs(t.Context(), 7, schema.KindState)
	if err != nil {
		t.Fatal(err)
	}
	mustOpen(t, e, shardB)
	if got := e.table.existingShards(ids, w); len(got) != 2 {
		t.Errorf("the shards are %v", got)
	}
	if got := e.table.takeFresh(w); len(got) != 0 {
		t.Errorf("%v came twice", got)
	}
	mustOpen(t, e, shardA, shardB, record.MakeShardID(7, 1, 1))
	if got := e.table.takeFresh(w); len(got) != 1 || got[0] != record.MakeShardID(7, 1, 1) {
		t.Errorf("the new shards are %v", got)
	}
}

// TestTrimBetween trims a shard after a reader has seen its state and before it reads: what is missing then is not damage.
func TestTrimBetween(t *testing.T) {
	e := start(t, Options{FS: vfs.NewMem()})
	ctx := t.Context()
	epoch := mustOpen(t, e, shardA)[0].Epoch
	for range 9 {
		if _, err := e.Append(ctx, one(shardA, epoch, "x")); err != nil {
			t.Fatal(err)
		}
	}
	stale, err := e.table.stateOf(shardA)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Trim(ctx, shardA, 6); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, e, record.MakeShardID(9, 0, 1)) // what is committed next comes after the trimmed records are removed
	if err := e.checkMissing(shardA, 1, stale); err != nil {
		t.Errorf("a record that was trimmed: %v", err)
	}
	var damage *metalog.CorruptError
	if now, err := e.table.stateOf(shardA); err != nil {
		t.Error(err)
	} else if err := e.checkMissing(shardA, 7, now); !errors.As(err, &damage) || damage.Shard != shardA || damage.LSN != 7 {
		t.Errorf("a record that was lost: %v", err)
	}
	s := newSubscription(e, []metalog.Position{{Shard: shardA, LSN: 2}}, nil)
	r := recordReader{db: e.db}
	defer func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}()
	if err := s.makeUpdate(&s.shards[0], stale, 1, &r, &readBudget{records: 100, bytes: 100}); err != nil {
		t.Fatal(err)
	}
	if u := s.updates[0]; u.TrimmedTo != 6 || len(u.Entries) != 4 || u.Entries[0].LSN != 6 || u.NextLSN != 10 {
		t.Errorf("the update is %+v", u)
	}
}
