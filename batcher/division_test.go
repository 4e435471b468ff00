package batcher

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/format/record"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog"
)

var (
	beta0 = record.MakeShardID(2, 0, 7)
	beta1 = record.MakeShardID(2, 1, 7)
)

// takes checks how long a call takes by the bubble's clock.
func takes(t *testing.T, what string, least, most time.Duration, call func()) {
	t.Helper()
	start := time.Now()
	call()
	if d := time.Since(start); d < least || d > most {
		t.Errorf("%s took %v, want %v to %v", what, d, least, most)
	}
}

func text(t testing.TB, category string, shard uint32, text string) []byte {
	t.Helper()
	return makeFrame(t, category, shard, nil, text)
}

// A put hangs. Frames of its shards wait for it, those of others in the flushes behind it do not: the first of these is divided, later
// ones leave the stalled shard out.
func TestSlowPutHoldsOnlyItsShards(t *testing.T) {
	bubble(t, testConfig(), func(t *testing.T, c *cell) {
		c.commit(text(t, "alpha", 0, "0"), text(t, "beta", 0, "0"))
		hold, seen := make(chan struct{}), make(chan struct{})
		c.store.puts.plan(step{hold: hold, seen: seen})
		first := c.background("1")
		<-seen
		c.submit(none, text(t, "alpha", 0, "2"))
		takes(t, "the flush that is divided", time.Second, time.Second, func() { c.commit(text(t, "beta", 0, "1")) })
		c.submit(none, text(t, "alpha", 0, "3"))
		for i := range 20 {
			takes(t, "a flush without the stalled shard", 0, 0, func() { c.commit(text(t, "beta", 0, fmt.Sprint(i+2))) })
		}
		synctest.Wait()
		c.mustBe(alpha0, "0")
		if got := counterValue(t, c.metrics.divided); got != 1 {
			t.Errorf("%v flushes were divided", got)
		}
		close(hold)
		if r := (<-first)[0]; r.GetLsn() != 2 {
			t.Errorf("the first flush: %v", r)
		}
		c.commit(text(t, "alpha", 0, "4"))
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		c.mustBe(alpha0, "0", "1", "2", "3", "4")
		if n := len(c.frames(beta0)); n != 22 {
			t.Errorf("%d frames of the other shard", n)
		}
		c.mustOrphan(1) // of the flush that was divided
		c.verify()
	})
}

// Retention classes wait for each other in nothing, not even for a place among the flushes in flight.
func TestClassesDoNotWaitForEachOther(t *testing.T) {
	cfg := testConfig()
	cfg.MaxInFlight, cfg.GroupCommit = 1, 1
	bubble(t, cfg, func(t *testing.T, c *cell) {
		back := make(chan struct{})
		c.store.onPut.set(func(ctx context.Context, class uint32) error {
			if class == 1 {
				return until(ctx, back)
			}
			return nil
		})
		stuck := c.async(text(t, "brief", 0, "x"), text(t, "alpha", 0, "y"))
		for i := range 10 {
			takes(t, "a commit of another class", 0, 0, func() { c.commit(text(t, "alpha", 0, fmt.Sprint(i))) })
		}
		close(back)
		if got := reasons(<-stuck); !slices.Equal(got, []scribev1.Reason{0, 0}) {
			t.Errorf("reasons %v", got)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		c.verify()
	})
}

// Another batcher takes a log whenever this one has it. Others are committed as if nothing were, and after some attempts new frames of
// that shard are refused at once. When it is over everything goes on.
func TestContestedLogHoldsOnlyItsShard(t *testing.T) {
	cfg := testConfig()
	cfg.CommitAttempts = 100
	bubble(t, cfg, func(t *testing.T, c *cell) {
		c.log.onAppend.set(func(ctx context.Context, shards []record.ShardID) error {
			if slices.Contains(shards, once0) {
				_, err := c.log.Log.Open(ctx, "other", []record.ShardID{once0})
				return err
			}
			return nil
		})
		c.submit(none, c.run(1, 0, 1, 1))
		takes(t, "the flush with the contested log", 0, 0, func() { c.commit(text(t, "alpha", 0, "0")) })
		<-time.After(50 * time.Millisecond)
		synctest.Wait()
		takes(t, "a request with the contested log", 0, 0, func() {
			results := c.submit(committed, c.run(1, 0, 2, 2), text(t, "alpha", 0, "1"), c.run(1, 0, 3, 3))
			want := []scribev1.Reason{scribev1.Reason_REASON_FENCED, 0, scribev1.Reason_REASON_FENCED}
			if got := reasons(results); !slices.Equal(got, want) {
				t.Errorf("reasons %v", got)
			}
			if results[0].GetError().GetRetryAfter().AsDuration() <= 0 {
				t.Error("no hint")
			}
		})
		c.mustBe(once0)
		c.log.onAppend.set(nil)
		<-time.After(50 * time.Millisecond)
		c.commit(c.run(1, 0, 2, 3))
		c.mustBe(once0, "1.0.1", "1.0.2", "1.0.3")
		c.mustBe(alpha0, "0", "1")
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		c.verify()
	})
}

// What is contested for too long fails, and only that.
func TestContestedLogIsGivenUp(t *testing.T) {
	cfg := testConfig()
	cfg.CommitAttempts = 5
	c := newCell(t, cfg, nil, nil)
	c.log.onAppend.set(func(ctx context.Context, shards []record.ShardID) error {
		if slices.Contains(shards, once0) {
			_, err := c.log.Log.Open(ctx, "other", []record.ShardID{once0})
			return err
		}
		return nil
	})
	results := c.submit(committed, c.run(1, 0, 1, 1), text(t, "alpha", 0, "0"), text(t, "once", 1, "x"))
	if got := reasons(results); !slices.Equal(got, []scribev1.Reason{scribev1.Reason_REASON_FENCED, 0, 0}) {
		t.Errorf("reasons %v", got)
	}
	c.mustBe(once0)
	c.mustBe(alpha0, "0")
	c.log.onAppend.set(nil)
	c.commit(c.run(1, 0, 1, 1)) // the next one begins anew
	c.verify()
}

// One log of many cannot be opened. It is found, and the others of its flush go on.
func TestLogThatCannotBeOpenedHoldsOnlyItsShard(t *testing.T) {
	bubble(t, testConfig(), func(t *testing.T, c *cell) {
		bad := func(_ context.Context, shards []record.ShardID) error {
			if slices.Contains(shards, beta1) {
				return errInjected
			}
			return nil
		}
		c.log.onOpen.set(bad)
		var frames [][]byte
		for i := range uint32(300) {
			name := fmt.Sprintf("trickle-%d", i)
			c.catalog[name] = &scribev1.Category{Name: name, Id: 100 + i, Shards: 1}
			frames = append(frames, text(t, name, 0, "x"))
		}
		c.submit(none, text(t, "beta", 1, "0"))
		takes(t, "the flush with the log that cannot be opened", time.Millisecond, 100*time.Millisecond, func() { c.commit(frames...) })
		takes(t, "flushes of other logs", 0, 0, func() { c.commit(frames...) })
		takes(t, "a request for the log", 0, 0, func() {
			results := c.submit(committed, text(t, "beta", 1, "1"), text(t, "beta", 0, "1"))
			if got := reasons(results); !slices.Equal(got, []scribev1.Reason{scribev1.Reason_REASON_NO_BACKEND, 0}) {
				t.Errorf("reasons %v", got)
			}
		})
		c.log.onOpen.set(nil)
		<-time.After(50 * time.Millisecond)
		c.commit(text(t, "beta", 1, "2"))
		c.mustBe(beta1, "0", "2")
		// And when it lasts, its frames fail after the batcher's patience, and those of no other.
		c.log.onOpen.set(bad)
		if _, err := c.log.Log.Open(t.Context(), "other", []record.ShardID{beta1}); err != nil {
			t.Fatal(err)
		}
		takes(t, "what is given up", 30*time.Second, 31*time.Second, func() {
			results := c.submit(committed, text(t, "beta", 1, "3"), text(t, "alpha", 0, "0"))
			if got := reasons(results); !slices.Equal(got, []scribev1.Reason{scribev1.Reason_REASON_NO_BACKEND, 0}) {
				t.Errorf("reasons %v", got)
			}
		})
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		c.mustBe(beta1, "0", "2")
		c.verify()
	})
}

// A log's state is damaged: that log's frames fail at once, by name, and the others' do not.
func TestDamagedLogFailsAlone(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	c.log.onOpen.set(func(_ context.Context, shards []record.ShardID) error {
		if slices.Contains(shards, beta0) {
			return &metalog.CorruptError{Shard: beta0, Detail: "a flipped bit"}
		}
		return nil
	})
	results := c.submit(committed, text(t, "alpha", 0, "0"), text(t, "beta", 0, "x"), text(t, "beta", 1, "y"))
	if got := reasons(results); results[1].GetError() == nil || got[0] != 0 || results[2].GetError() != nil {
		t.Errorf("results %v", results)
	}
	c.mustBe(alpha0, "0")
	c.mustBe(beta1, "y")
	c.verify()
}

// Appends to some logs hang. Those of others go on, and the flushes that hang do not take the places of others for long.
func TestHungAppendsHoldOnlyTheirShards(t *testing.T) {
	bubble(t, testConfig(), func(t *testing.T, c *cell) {
		c.commit(text(t, "alpha", 0, "0"), text(t, "beta", 0, "0"), text(t, "beta", 1, "0"))
		back := make(chan struct{})
		c.log.onAppend.set(func(ctx context.Context, shards []record.ShardID) error {
			if slices.Contains(shards, beta0) || slices.Contains(shards, beta1) {
				return until(ctx, back)
			}
			return nil
		})
		one, two := c.async(text(t, "beta", 0, "1")), c.async(text(t, "beta", 1, "1"))
		synctest.Wait()
		// Two flushes hang, which is all that batch commit wants; by age there is one more.
		takes(t, "the first one", 0, time.Second, func() { c.commit(text(t, "alpha", 0, "1")) })
		<-time.After(2 * time.Second)
		for i := range 10 {
			takes(t, "a commit of another log", 0, 0, func() { c.commit(text(t, "alpha", 0, fmt.Sprint(i+2))) })
		}
		// Frames behind those that hang are divided off, once.
		c.submit(none, text(t, "beta", 0, "2"))
		takes(t, "a flush that is divided", 0, 2*time.Second, func() { c.commit(text(t, "alpha", 0, "x")) })
		c.submit(none, text(t, "beta", 0, "3"))
		takes(t, "a flush without the stalled shard", 0, 0, func() { c.commit(text(t, "alpha", 0, "y")) })
		close(back)
		<-one
		<-two
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		c.mustBe(beta0, "0", "1", "2", "3")
		c.mustBe(beta1, "0", "1")
		c.verify()
	})
}

// The metadata engine is closed and comes back. Frames wait for it, whether their logs were open or not.
func TestFlushesOutliveARestartOfTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newRestarted(t)
		c := newCell(t, testConfig(), log, nil)
		c.commit(text(t, "alpha", 0, "0"))
		log.stop()
		known, fresh := c.async(text(t, "alpha", 0, "1")), c.async(text(t, "beta", 0, "1"))
		<-time.After(10 * time.Second)
		log.start()
		for _, results := range []<-chan []*scribev1.FrameResult{known, fresh} {
			if r := (<-results)[0]; r.GetError() != nil {
				t.Errorf("result %v", r)
			}
		}
		c.mustBe(alpha0, "0", "1")
		c.mustBe(beta0, "1")
		// One that does not come back is told after a while.
		log.stop()
		takes(t, "giving up", 30*time.Second, 35*time.Second, func() {
			results := c.submit(committed, text(t, "alpha", 0, "2"), text(t, "beta", 1, "2"))
			if got := reasons(results); !slices.Equal(got, []scribev1.Reason{scribev1.Reason_REASON_NO_BACKEND, scribev1.Reason_REASON_NO_BACKEND}) {
				t.Errorf("reasons %v", got)
			}
		})
		log.start()
		c.commit(text(t, "alpha", 0, "3"))
		c.mustBe(alpha0, "0", "1", "3")
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		c.verify()
	})
}

// restarted is an engine that can be closed and opened again.
type restarted struct {
	t  *testing.T
	fs vfs.FS
	mu sync.Mutex
	metalog.Log
}

func newRestarted(t *testing.T) *restarted {
	t.Helper()
	r := &restarted{t: t, fs: vfs.NewMem()}
	r.start()
	t.Cleanup(r.stop)
	return r
}

func (r *restarted) start() {
	engine, err := pebblelog.Open("log", pebblelog.Options{FS: r.fs})
	if err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Log = engine
}

func (r *restarted) stop() {
	if err := r.engine().Close(); err != nil {
		r.t.Error(err)
	}
}

func (r *restarted) engine() metalog.Log {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Log
}

func (r *restarted) Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error) {
	return r.engine().Open(ctx, owner, shards)
}

func (r *restarted) Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error) {
	return r.engine().Append(ctx, a)
}

// A category is retired while frames of it are on their way: they are refused for good, and nothing of them is stored.
func TestRetiredCategoryTakesNothing(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	c.commit(text(t, "alpha", 0, "0"))
	hold, seen := make(chan struct{}), make(chan struct{})
	c.log.appends.plan(step{hold: hold, seen: seen})
	late := c.async(text(t, "alpha", 0, "late"), text(t, "beta", 0, "0"), text(t, "once", 0, "0"))
	<-seen
	if err := c.log.Retire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	close(hold)
	sealed := scribev1.Reason_REASON_SEALED
	if got := reasons(<-late); !slices.Equal(got, []scribev1.Reason{sealed, 0, 0}) {
		t.Errorf("reasons %v", got)
	}
	// Known logs, new ones, and those of others beside them.
	results := c.submit(committed, text(t, "alpha", 0, "1"), text(t, "alpha", 1, "1"), text(t, "beta", 1, "1"))
	if got := reasons(results); !slices.Equal(got, []scribev1.Reason{sealed, sealed, 0}) {
		t.Errorf("reasons %v", got)
	}
	if results[0].GetError().GetRetryAfter() != nil || retry.ClassOf(results[0].GetError().GetReason()).Retryable() {
		t.Error("the refusal is one to repeat")
	}
	c.mustBe(alpha0, "0")
	c.mustBe(record.MakeShardID(1, 1, 7))
	c.verify()
}

// The frames of one shard in one request are stored as a prefix, in however many flushes they are written.
func TestFramesAreStoredAsAPrefix(t *testing.T) {
	for _, tc := range []struct {
		name   string
		puts   []step
		stored int
		first  scribev1.Reason // of the first frame that is not stored
	}{
		{"the first flush fails", []step{{err: errInjected}}, 0, scribev1.Reason_REASON_NO_BACKEND},
		{"the second flush fails", []step{{}, {err: errInjected}}, 3, scribev1.Reason_REASON_NO_BACKEND},
		{"none fails", nil, 8, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, frames := prefixCell(t)
			c.store.puts.plan(tc.puts...)
			results := c.submit(committed, frames...)
			for i, r := range results {
				switch {
				case i < tc.stored:
					if r.GetError() != nil {
						t.Errorf("frame %d: %v", i, r.GetError())
						continue
					}
					c.mustHold(r, frames[i])
				case r.GetError() == nil:
					t.Errorf("frame %d is stored, and one before it is not", i)
				case !retry.ClassOf(r.GetError().GetReason()).Retryable() || r.GetError().GetRetryAfter().AsDuration() <= 0:
					t.Errorf("frame %d: %v", i, r.GetError())
				}
			}
			if tc.stored < len(results) && results[tc.stored].GetError().GetReason() != tc.first {
				t.Errorf("the first one: %v", results[tc.stored].GetError())
			}
			// Sending what is left keeps the order.
			c.commit(frames[tc.stored:]...)
			if got := c.frames(alpha0); !slices.EqualFunc(got, frames, slices.Equal) {
				t.Errorf("%d frames are stored, or in another order", len(got))
			}
			c.verify()
		})
	}
}

// The same when nobody knows what became of the first flush: those behind it are certainly not stored.
func TestPrefixBehindAnUnknownOutcome(t *testing.T) {
	c, frames := prefixCell(t)
	c.cfg.CommitPatience = 0
	c.log.appends.plan(step{err: errInjected, after: true})
	got := reasons(c.submit(committed, frames...))
	for i, r := range got {
		want := scribev1.Reason_REASON_NO_BACKEND
		if i < 3 {
			want = scribev1.Reason_REASON_UNKNOWN_OUTCOME
		}
		if r != want {
			t.Errorf("frame %d: %v", i, r)
		}
	}
	if n := len(c.frames(alpha0)); n != 3 {
		t.Errorf("%d frames are stored", n)
	}
	// Another request's frames do not depend on it.
	c.commit(frames[3:]...)
	c.verify()
}

// Frames whose category cannot be looked up now fail, and with them those behind them, also when it is found again meanwhile.
func TestPrefixOfWhatCannotBeLookedUp(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	c.categories.Catalog = &flaky{catalog: c.catalog, misses: 1}
	results := c.submit(committed, text(t, "alpha", 0, "1"), text(t, "beta", 0, "1"), text(t, "alpha", 0, "2"), text(t, "alpha", 1, "1"))
	want := []scribev1.Reason{scribev1.Reason_REASON_NO_BACKEND, 0, scribev1.Reason_REASON_NO_BACKEND, 0}
	if got := reasons(results); !slices.Equal(got, want) {
		t.Errorf("reasons %v, want %v", got, want)
	}
	c.mustBe(alpha0)
	c.mustBe(beta0, "1")
}

// flaky is a catalog that is unavailable for some calls.
type flaky struct {
	catalog
	misses int
}

func (f *flaky) Lookup(name string) (*scribev1.Category, bool) {
	if name == "alpha" && f.misses > 0 {
		return nil, false
	}
	return f.catalog.Lookup(name)
}

func (f *flaky) Resolve(ctx context.Context, name string) (*scribev1.Category, error) {
	if f.misses > 0 {
		f.misses--
		return nil, rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "the control plane is away")
	}
	return f.catalog.Resolve(ctx, name)
}

// prefixCell returns a batcher that writes one flush at a time, and frames of one shard that take three: three, three, and two.
func prefixCell(t *testing.T) (*cell, [][]byte) {
	t.Helper()
	cfg := testConfig()
	cfg.PayloadBytes, cfg.BlockBytes, cfg.FlushBytes = 1000, 1000, 2500
	cfg.MaxInFlight, cfg.GroupCommit, cfg.PutAttempts = 1, 1, 1
	c := newCell(t, cfg, nil, nil)
	rng := rand.NewChaCha8([32]byte{7})
	frames := make([][]byte, 8)
	for i := range frames {
		noise := make([]byte, 900)
		_, _ = rng.Read(noise)
		frames[i] = text(t, "alpha", 0, string(noise))
	}
	return c, frames
}

// A category whose shard is stuck does not get the memory of others: it is refused, and they are not.
func TestStuckCategoryDoesNotTakeTheMemory(t *testing.T) {
	cfg := testConfig()
	cfg.MemoryBytes, cfg.PayloadBytes, cfg.FlushBytes = 4<<20, 64<<10, 256<<10
	bubble(t, cfg, func(t *testing.T, c *cell) {
		c.commit(text(t, "alpha", 0, "0"), text(t, "beta", 0, "0"))
		back := make(chan struct{})
		c.log.onAppend.set(func(ctx context.Context, shards []record.ShardID) error {
			if slices.Contains(shards, alpha0) {
				return until(ctx, back)
			}
			return nil
		})
		noise := make([]byte, 20<<10)
		_, _ = rand.NewChaCha8([32]byte{1}).Read(noise)
		loud, quiet := text(t, "alpha", 0, string(noise)), text(t, "beta", 0, string(noise))
		stored, refused, mixed := 0, 0, 0
		for range 3000 {
			_, err := c.Submit(t.Context(), &scribev1.SubmitRequest{Frames: loud, Ack: none})
			switch {
			case err == nil:
				stored++
			case rpc.ReasonOf(err) == scribev1.Reason_REASON_OVERLOADED && rpc.Info(err).GetRetryAfter().AsDuration() > 0:
				refused++
			default:
				t.Fatal(err)
			}
			<-time.After(time.Millisecond)
			if refused%100 == 99 {
				resp, err := c.Submit(t.Context(), &scribev1.SubmitRequest{Frames: slices.Concat(loud, quiet), Ack: none})
				if err != nil {
					t.Fatalf("a request with both: %v", err)
				}
				got := reasons(resp.GetResults())
				if got[1] != 0 {
					t.Fatalf("reasons of a request with both: %v", got)
				}
				if got[0] == 0 {
					stored++
				} else {
					mixed++
				}
			}
		}
		if refused == 0 || stored == 0 || mixed == 0 {
			t.Errorf("%d taken, %d refused, %d of a request with both", stored, refused, mixed)
		}
		c.mu.Lock()
		free := cfg.MemoryBytes - c.mu.acc.memory.Used()
		c.mu.Unlock()
		if free < cfg.MemoryBytes/8 {
			t.Errorf("%d bytes are left of %d", free, cfg.MemoryBytes)
		}
		for range 50 {
			takes(t, "a commit of another category", 0, 10*time.Millisecond, func() { c.commit(quiet) })
		}
		close(back)
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if n := len(c.frames(alpha0)); n != stored+1 {
			t.Errorf("%d frames are stored, %d were taken", n-1, stored)
		}
		c.verify()
	})
}

func TestAdmit(t *testing.T) {
	cfg := testConfig()
	cfg.MemoryBytes, cfg.BodyBytes = 1<<20, 1<<20
	c := newCell(t, cfg, nil, nil)
	release, err := c.Admit(400 << 10)
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.Admit(400 << 10)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Admit(400 << 10); rpc.ReasonOf(err) != scribev1.Reason_REASON_OVERLOADED || rpc.Info(err).GetRetryAfter().AsDuration() <= 0 {
		t.Errorf("beyond the bound: %v", err)
	}
	if _, err := c.Admit(2 << 20); rpc.ReasonOf(err) != scribev1.Reason_REASON_TOO_LARGE {
		t.Errorf("what never fits: %v", err)
	}
	release()
	release() // harmless
	again()

	// What would find no room once it is read need not be read.
	hold, seen := make(chan struct{}), make(chan struct{})
	c.store.puts.plan(step{hold: hold, seen: seen})
	noise := make([]byte, 300<<10)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(noise)
	waiting := c.async(text(t, "alpha", 0, string(noise)))
	<-seen
	if _, err := c.Admit(500 << 10); rpc.ReasonOf(err) != scribev1.Reason_REASON_OVERLOADED || rpc.Info(err).GetRetryAfter().AsDuration() <= 0 {
		t.Errorf("beside frames in memory: %v", err)
	}
	release, err = c.Admit(100 << 10)
	if err != nil {
		t.Fatal(err)
	}
	release()
	close(hold)
	<-waiting
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := c.Admit(1); rpc.ReasonOf(err) != scribev1.Reason_REASON_SHUTTING_DOWN {
		t.Errorf("after Close: %v", err)
	}
}

// The load grows while flushes are slow, and is forgotten when nothing is.
func TestLoad(t *testing.T) {
	bubble(t, testConfig(), func(t *testing.T, c *cell) {
		c.commit(text(t, "alpha", 0, "0"))
		if l := c.Load(); l > 10 {
			t.Errorf("load %d of an idle batcher", l)
		}
		hold := make(chan struct{})
		c.store.puts.plan(step{hold: hold})
		slow := c.background("1")
		<-time.After(3 * time.Second)
		if l := c.Load(); l < 700 || l >= 1000 {
			t.Errorf("load %d when a flush takes 3 s", l)
		}
		close(hold)
		<-slow
		if l := c.Load(); l < 300 {
			t.Errorf("load %d after a flush of 3 s", l)
		}
		<-time.After(time.Minute)
		if l := c.Load(); l > 100 {
			t.Errorf("load %d a minute later", l)
		}
	})
}
