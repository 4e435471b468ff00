package pebblelog

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// TestThousandSubscribers has a thousand subscriptions follow one shard, with no goroutine but their callers'.
func TestThousandSubscribers(t *testing.T) {
	e := start(t, Options{FS: vfs.NewMem()})
	epoch := mustOpen(t, e, shardA)[0].Epoch
	const subscribers, records = 1000, 30
	ctx, cancel := context.WithCancel(t.Context())
	before := runtime.NumGoroutine()
	var wg, started, reached sync.WaitGroup
	started.Add(subscribers)
	reached.Add(subscribers)
	for range subscribers {
		wg.Go(func() {
			next := record.LSN(0)
			err := e.Subscribe(ctx, []metalog.Position{{Shard: shardA, LSN: 1}}, time.Hour, func(updates []metalog.Update) error {
				if next == 0 {
					next = 1
					started.Done()
				}
				for _, en := range updates[0].Entries {
					if en.LSN != next || string(en.Data) != fmt.Sprint(next) {
						return fmt.Errorf("got LSN %d %q instead of %d", en.LSN, en.Data, next)
					}
					next++
				}
				if next == records+1 {
					reached.Done()
				}
				return nil
			})
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	started.Wait()
	if n := runtime.NumGoroutine() - before; n > subscribers+10 {
		t.Errorf("%d subscriptions run on %d goroutines", subscribers, n)
	}
	for i := range records {
		if _, err := e.Append(t.Context(), one(shardA, epoch, fmt.Sprint(i+1))); err != nil {
			t.Fatal(err)
		}
	}
	reached.Wait()
	cancel()
	wg.Wait()
	if n := len(e.watchers.mu.byShard); n != 0 {
		t.Errorf("%d shards are still followed", n)
	}
}

// TestSubscriptionKeepsLittle checks that a subscription that waits holds no buffers of the past that it sent.
func TestSubscriptionKeepsLittle(t *testing.T) {
	e := start(t, Options{FS: vfs.NewMem()})
	epoch := mustOpen(t, e, shardA)[0].Epoch
	records := make([][]byte, 400)
	for i := range records {
		records[i] = make([]byte, 20<<10)
	}
	if _, err := e.Append(t.Context(), &metalog.Append{Shards: []metalog.ShardAppend{{Shard: shardA, Epoch: epoch, Records: records}}}); err != nil {
		t.Fatal(err)
	}
	s := newSubscription(e, []metalog.Position{{Shard: shardA, LSN: 1}}, func([]metalog.Update) error { return nil })
	rounds := 0
	for len(s.ready) > 0 {
		if err := s.sendRound(t.Context()); err != nil {
			t.Fatal(err)
		}
		if cap(s.buf) > keptBuffer || len(s.entries) != 0 || len(s.updates) != 0 {
			t.Fatalf("after a round the subscription holds a buffer of %d bytes, %d entries", cap(s.buf), len(s.entries))
		}
		rounds++
	}
	if rounds < 400*20<<10/maxRoundBytes {
		t.Errorf("%d bytes came in %d rounds", 400*20<<10, rounds)
	}
}

// TestRoundsAreFair checks that a shard with a long past does not keep the others of a subscription waiting.
func TestRoundsAreFair(t *testing.T) {
	e := start(t, Options{FS: vfs.NewMem()})
	epochs := mustOpen(t, e, shardA, shardB)
	for range 20 {
		records := make([][]byte, 20)
		for i := range records {
			records[i] = make([]byte, metalog.MaxRecord)
		}
		if _, err := e.Append(t.Context(), &metalog.Append{Shards: []metalog.ShardAppend{{Shard: shardA, Epoch: epochs[0].Epoch, Records: records}}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.Append(t.Context(), one(shardB, epochs[1].Epoch, "x")); err != nil {
		t.Fatal(err)
	}
	calls := 0
	seen := errors.New("seen")
	err := e.Subscribe(t.Context(), []metalog.Position{{Shard: shardA, LSN: 1}, {Shard: shardB, LSN: 1}}, 0, func(updates []metalog.Update) error {
		calls++
		for _, u := range updates {
			if u.Shard == shardB && len(u.Entries) > 0 {
				return seen
			}
		}
		return nil
	})
	if !errors.Is(err, seen) || calls > 2 {
		t.Errorf("the small shard came with call %d: %v", calls, err)
	}
}

// TestIdleEngineDoesNothing checks that an engine whose subscribers wait, and that nobody asks, neither polls nor writes.
func TestIdleEngineDoesNothing(t *testing.T) {
	g := newGate()
	var reads atomic.Int64
	e := start(t, Options{FS: g, Clock: func() int64 { reads.Add(1); return 1_000_000 }})
	mustOpen(t, e, shardA)
	// A call is answered before the followers of what it changed are woken. The answer of the next one, which changes no shard, says that
	// this has been done: a subscription that begins now has nothing to come.
	if _, err := e.AdvanceBoundary(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan struct{})
	var calls atomic.Int64
	ended := make(chan error, 1)
	go func() {
		ended <- e.Subscribe(ctx, []metalog.Position{{Shard: shardA, LSN: 1}}, time.Hour, func([]metalog.Update) error {
			if calls.Add(1) == 1 {
				close(first)
			}
			return nil
		})
	}()
	<-first
	g.close()
	before, clockReads := g.open(), reads.Load()
	for range 2000 {
		runtime.Gosched()
	}
	g.close()
	if after := g.open(); after != before || calls.Load() != 1 || reads.Load() != clockReads {
		t.Errorf("an idle engine made %d syncs, %d updates, %d readings of the clock", after-before, calls.Load()-1, reads.Load()-clockReads)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
