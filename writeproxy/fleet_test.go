package writeproxy

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/base/config"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// spread writes a frame for each of many keys and returns how many requests' frames each batcher got of them.
func (c *cell) spread(keys int) []int {
	c.t.Helper()
	before := make([]int, len(c.batchers))
	for i, b := range c.batchers {
		before[i] = len(b.stored(c.t))
	}
	for k := range keys {
		if r := c.write(makeFrame(c.t, "least", uint32(k%64), false, fmt.Sprint(k)))[0]; r.GetError() != nil {
			c.t.Fatal(r)
		}
	}
	after := make([]int, len(c.batchers))
	for i, b := range c.batchers {
		after[i] = len(b.stored(c.t)) - before[i]
	}
	return after
}

func (b *fakeBatcher) set(change func(b *fakeBatcher)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(b)
}

// TestFullBatcherGetsLess: what a batcher says of its load counts with the next request; what moves goes to the others, which keep
// theirs, and all comes back when it has room again.
func TestFullBatcherGetsLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 4)
		even := c.spread(64)
		c.batchers[1].set(func(b *fakeBatcher) { b.load = 1000 })
		c.spread(64)
		if light := c.spread(64); light[1] > even[1]/2 || light[0] < even[0] || light[2] < even[2] || light[3] < even[3] {
			t.Errorf("with one full: %v, before %v", light, even)
		}
		c.batchers[1].set(func(b *fakeBatcher) { b.load = 0 })
		for range 60 {
			c.spread(64)
			<-time.After(time.Second)
		}
		if again := c.spread(64); !slices.Equal(again, even) {
			t.Errorf("afterwards: %v, before %v", again, even)
		}
	})
}

// TestAdvertisedLoad: the membership's word counts for batchers that were not spoken to.
func TestAdvertisedLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 4, func(d *Deps) {
			snapshot := slices.Clone(d.Batchers())
			for i := range snapshot {
				snapshot[i].LoadKnown = true
			}
			snapshot[2].Load = 1000
			d.Batchers = func() []Batcher { return snapshot }
		})
		tab := c.fleet.currentTable()
		if w := tab.weights; w[2] != 1.0/32 || w[0] != 1 || w[1] != 1 || w[3] != 1 {
			t.Errorf("weights %v", w)
		}
	})
}

// TestSlowBatcherGetsLess: a batcher that takes much longer than the others to commit gets less.
func TestSlowBatcherGetsLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 3)
		first := c.spread(64)
		for i, b := range c.batchers {
			took := []time.Duration{5, 5, 400}[i] * time.Millisecond
			b.answer = func(int, [][]byte) (*scribev1.SubmitResponse, error) {
				<-time.After(took)
				return nil, nil
			}
		}
		for range 5 {
			c.spread(64)
		}
		if last := c.spread(64); last[2] > first[2]/2 {
			t.Errorf("the slow one got %d of 64 frames at first, %d at last", first[2], last[2])
		}
	})
}

// TestSilentBatcher: frames that a batcher does not answer for go to another within the request's time; then it is left alone, probed
// now and then, and gets its share again when it answers.
func TestSilentBatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 3)
		even := c.spread(64)
		silent := c.batchers[0]
		hold := make(chan struct{})
		silent.set(func(b *fakeBatcher) { b.hold = hold })
		start := time.Now()
		var group sync.WaitGroup
		for k := range 64 {
			group.Go(func() {
				if r := c.write(makeFrame(t, "least", uint32(k), false, "x"))[0]; r.GetError() != nil {
					t.Errorf("shard %d: %v", k, r)
				}
			})
		}
		group.Wait()
		if d := time.Since(start); d < 10*time.Second || d > 20*time.Second {
			t.Errorf("answered after %v of 30 s", d)
		}
		// Nothing waits for it any more.
		start = time.Now()
		got := c.spread(64)
		if got[0] != 0 || time.Since(start) != 0 {
			t.Errorf("frames %v, after %v", got, time.Since(start))
		}
		if open, _ := c.fleet.countDegraded(); open != 1 {
			t.Errorf("%d are left alone", open)
		}
		for range 300 {
			<-time.After(time.Second)
			c.spread(1)
		}
		close(hold) // probes wait there
		<-time.After(30 * time.Second)
		c.spread(1) // one more probe is due
		synctest.Wait()
		silent.set(func(b *fakeBatcher) { b.hold = nil })
		if n := silent.probes; n < 1 || n > 2 {
			t.Errorf("%d probes were answered", n)
		}
		if again := c.spread(64); !slices.Equal(again, even) {
			t.Errorf("afterwards: %v, before %v", again, even)
		}
	})
}

// TestStallIsNoticedByOthers: requests need not each find out for themselves: while some wait for a silent batcher, later ones go
// elsewhere at once.
func TestStallIsNoticedByOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 2)
		c.spread(1)
		c.batchers[0].set(func(b *fakeBatcher) { b.hold = make(chan struct{}) })
		var group sync.WaitGroup
		for k := range 64 {
			group.Go(func() { c.write(makeFrame(t, "least", uint32(k), false, "x")) })
		}
		synctest.Wait()
		<-time.After(config.Defaults[Config]().StallAfter)
		start := time.Now()
		if got := c.spread(64); got[0] != 0 || time.Since(start) != 0 {
			t.Errorf("frames %v after %v", got, time.Since(start))
		}
		group.Wait()
	})
}

// TestProbesAreFew: a batcher that is gone is asked now and then, not by every request.
func TestProbesAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 3)
		var mu sync.Mutex
		calls := 0
		c.batchers[0].answer = func(int, [][]byte) (*scribev1.SubmitResponse, error) {
			mu.Lock()
			defer mu.Unlock()
			calls++
			return nil, rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "refused")
		}
		for range 100 {
			c.spread(64)
			<-time.After(time.Second)
			synctest.Wait()
		}
		if calls < maxGone+3 || calls > maxGone+12 {
			t.Errorf("%d calls in 100 s", calls)
		}
	})
}

// TestAllAreIll: when no batcher is well, requests are sent all the same.
func TestAllAreIll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 2)
		for _, b := range c.batchers {
			b.answer = failing(12, scribev1.Reason_REASON_NO_BACKEND)
		}
		for k := range 20 {
			c.write(makeFrame(t, "least", uint32(k), false, "x"))
		}
		if open, _ := c.fleet.countDegraded(); open == 2 {
			t.Fatal("all are left alone")
		}
		if got := c.spread(64); got[0]+got[1] != 64 {
			t.Errorf("frames %v", got)
		}
	})
}

// TestMembershipKeepsConditions: what is known of a batcher outlives changes of the membership.
func TestMembershipKeepsConditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		all := []Batcher{{ID: "a", Service: taking{}}, {ID: "b", Service: taking{}}, {ID: "c", Service: taking{}}}
		known := all[:2]
		c := newCell(t, config.Defaults[Config](), 0, func(d *Deps) {
			d.Batchers = func() []Batcher {
				mu.Lock()
				defer mu.Unlock()
				return known
			}
		})
		first := c.fleet.currentTable()
		if c.fleet.currentTable() != first {
			t.Error("a new table for nothing")
		}
		m := first.members[1]
		m.endRequest(m.beginRequest(), endLeaving, noLoad, callUnjudged, false)
		mu.Lock()
		known = slices.Clone(all)
		mu.Unlock()
		next := c.fleet.currentTable()
		if next == first || next.members[1] != m || !slices.Equal(next.weights, []float64{1, 0, 1}) {
			t.Errorf("weights %v", next.weights)
		}
	})
}

// TestHotShard: the traffic of one busy shard is divided over batchers, a request's frames of it stay together, and what must have one
// log keeps it.
func TestHotShard(t *testing.T) {
	for _, category := range []string{"least", "once", "bound"} {
		synctest.Test(t, func(t *testing.T) {
			cfg := config.Defaults[Config]()
			cfg.MicroShardBytes = 1 << 20
			c := newCell(t, cfg, 4)
			c.catalog.limit("bound", 0, 0).Repeatable = scribev1.Repeatability_REPEATABILITY_BOUND
			hot, calm := makeFrame(t, category, 5, true, string(make([]byte, 64<<10))), makeFrame(t, category, 6, true, "calm")
			for range 200 { // 256 KiB 20 times a second: 5 MB/s
				c.write(hot, calm, hot, hot, calm, hot)
				<-time.After(50 * time.Millisecond)
			}
			used, calmAt := 0, 0
			for _, b := range c.batchers {
				mine, hasCalm := 0, false
				for _, r := range b.requests {
					n := 0
					for f, err := range record.Split(r.GetFrames()) {
						if err != nil {
							t.Fatal(err)
						}
						if f.Shard == 5 {
							n++
						} else {
							hasCalm = true
						}
					}
					if n != 0 && n != 4 {
						t.Fatalf("%d of 4 frames of a request came together", n)
					}
					mine += n
				}
				if mine > 0 {
					used++
				}
				if hasCalm {
					calmAt++
				}
			}
			if want := map[string]int{"least": 4, "once": 1, "bound": 1}[category]; used != want || calmAt != 1 {
				t.Errorf("%s: the busy shard is at %d batchers, want %d; the calm one at %d", category, used, want, calmAt)
			}
		})
	}
}

// TestCallerGoesAway: a caller that loses its patience says nothing of the batcher.
func TestCallerGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 2)
		for _, b := range c.batchers {
			b.hold = make(chan struct{})
		}
		for k := range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			if _, err := c.Write(ctx, &scribev1.WriteRequest{Frames: makeFrame(t, "least", uint32(k), false, "x")}); err != nil {
				t.Fatal(err)
			}
			cancel()
		}
		if open, _ := c.fleet.countDegraded(); open != 0 {
			t.Errorf("%d are left alone after 100 ms each", open)
		}
	})
}

// TestNewBatcherGetsLittle: a batcher that has just started gets few frames at first, and its share after half a minute; one whose age is
// not known gets it at once.
func TestNewBatcherGetsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var list atomic.Pointer[[]Batcher]
		c := newCell(t, config.Defaults[Config](), 4, func(d *Deps) {
			all := d.Batchers()
			three := all[:3]
			list.Store(&three)
			known := slices.Clone(all)
			known[3].Start, known[3].Age = 7, 0
			time.AfterFunc(time.Second, func() { list.Store(&known) })
			d.Batchers = func() []Batcher { return *list.Load() }
		})
		if before := c.spread(64); before[3] != 0 || before[0] == 0 {
			t.Fatalf("frames %v", before)
		}
		<-time.After(2 * time.Second)
		first := c.spread(64)
		<-time.After(45 * time.Second)
		c.spread(1)
		last := c.spread(64)
		if first[3] > 5 || last[3] < 8 {
			t.Errorf("the new one got %d of 64 frames at first, %d at last", first[3], last[3])
		}
	})
}

// TestOlderBatcher: a batcher that does not tell its load is taken to be like the others, not idle.
func TestOlderBatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 3, func(d *Deps) {
			snapshot := slices.Clone(d.Batchers())
			for i := range snapshot[:2] {
				snapshot[i].Load, snapshot[i].LoadKnown = 400, true
			}
			d.Batchers = func() []Batcher { return snapshot }
		})
		if tab := c.fleet.currentTable(); !tab.even {
			t.Errorf("weights %v", tab.weights)
		}
	})
}

// TestProxyLoad: the proxy's load is the used part of its memory.
func TestProxyLoad(t *testing.T) {
	c := newCell(t, config.Defaults[Config](), 1)
	if got := c.Load(); got != 0 {
		t.Errorf("load %d at rest", got)
	}
	release, err := c.Admit(c.bodies.Limit() / 4)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Load(); got != 250 {
		t.Errorf("load %d with a quarter of the memory in use", got)
	}
	release()
}

// flushingBatcher is the time of a batcher that flushes one after another: what comes during a flush waits for the next one.
type flushingBatcher struct {
	mu      sync.Mutex
	took    time.Duration // by a flush
	end     time.Time     // of the running flush
	awaited bool          // another one follows
}

func (f *flushingBatcher) setTime(took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.took = took
}

// answerAfter returns how long a request that comes now waits for its commit.
func (f *flushingBatcher) answerAfter() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if now.Before(f.end) {
		f.awaited = true
		return f.end.Add(f.took).Sub(now)
	}
	if f.awaited && now.Before(f.end.Add(f.took)) {
		f.end, f.awaited = f.end.Add(f.took), true
		return f.end.Add(f.took).Sub(now)
	}
	f.end, f.awaited = now.Add(f.took), false
	return f.took
}

// writeFor lets 48 writers write one frame after another for a time, and returns the latencies, in order.
func (c *cell) writeFor(d time.Duration) (all []time.Duration) {
	var (
		mu    sync.Mutex
		group sync.WaitGroup
		shard atomic.Uint32
	)
	end := time.Now().Add(d)
	for range 48 {
		group.Go(func() {
			for time.Now().Before(end) {
				frame := makeFrame(c.t, "wide", shard.Add(1)*7%512, false, "x")
				begin := time.Now()
				if r := c.write(frame)[0]; r.GetError() != nil {
					c.t.Error(r)
				}
				mu.Lock()
				all = append(all, time.Since(begin))
				mu.Unlock()
				<-time.After(20 * time.Millisecond)
			}
		})
	}
	group.Wait()
	slices.Sort(all)
	return all
}

// TestTailOfUnevenBatchers: a batcher that is four times slower than seven others, or has just started with cold logs, is not the 99th
// percentile of committed writes. Time is virtual.
func TestTailOfUnevenBatchers(t *testing.T) {
	for _, started := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var list atomic.Pointer[[]Batcher]
			c := newCell(t, config.Defaults[Config](), 8, func(d *Deps) {
				all := d.Batchers()
				list.Store(&all)
				d.Batchers = func() []Batcher { return *list.Load() }
			})
			c.catalog.limit("wide", 0, 0).Shards = 512
			flushing := make([]*flushingBatcher, len(c.batchers))
			for i, b := range c.batchers {
				f := &flushingBatcher{took: 40 * time.Millisecond}
				flushing[i] = f
				b.wait = f.answerAfter
			}
			percentile := func(all []time.Duration) time.Duration { return all[len(all)*99/100] }
			if started {
				seven := (*list.Load())[1:]
				list.Store(&seven)
			}
			c.writeFor(20 * time.Second)
			equal := percentile(c.writeFor(10 * time.Second))
			if started {
				again := append([]Batcher{{ID: "b0", Service: c.batchers[0], Start: 1}}, *list.Load()...)
				list.Store(&again)
				flushing[0].setTime(160 * time.Millisecond) // its logs have to be opened, its connections made
				time.AfterFunc(3*time.Second, func() { flushing[0].setTime(40 * time.Millisecond) })
			} else {
				flushing[0].setTime(160 * time.Millisecond)
				c.writeFor(20 * time.Second)
			}
			uneven := percentile(c.writeFor(10 * time.Second))
			t.Logf("just started: %v; 99th percentile %v beside %v over equal batchers", started, uneven, equal)
			if uneven > equal*13/10 {
				t.Errorf("99th percentile %v, over equal batchers %v", uneven, equal)
			}
		})
	}
}

// TestFastFailures: batchers that refuse all frames at once, and so look idle and fast, do not become what is normal: the others keep their
// weights, and those get little.
func TestFastFailures(t *testing.T) {
	refused := func(_ int, frames [][]byte) (*scribev1.SubmitResponse, error) {
		resp := taken(frames)
		for i := range resp.GetResults() {
			resp.Results[i] = &scribev1.FrameResult{Error: &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_NO_BACKEND}}
		}
		return resp, nil
	}
	for _, answer := range []func(int, [][]byte) (*scribev1.SubmitResponse, error){refused, failing(1<<30, scribev1.Reason_REASON_UNSPECIFIED)} {
		for _, n := range []int{2, 4} {
			synctest.Test(t, func(t *testing.T) {
				c := newCell(t, config.Defaults[Config](), n)
				c.spread(64)
				for i, b := range c.batchers {
					if i < n/2 {
						b.answer = answer
						continue
					}
					b.set(func(b *fakeBatcher) {
						b.load = 350
						b.wait = func() time.Duration { return 60 * time.Millisecond }
					})
				}
				for k := range 300 {
					c.write(makeFrame(t, "least", uint32(k%64), false, "x"))
					for i, w := range c.fleet.currentTable().weights[n/2:] {
						if w != 1 {
							t.Fatalf("%d batchers, write %d: the weight of one that works, %d, is %v", n, k, n/2+i, w)
						}
					}
				}
				for _, w := range c.fleet.currentTable().weights[:n/2] {
					if w > 0.25 {
						t.Errorf("%d batchers: the weight of one that fails is %v", n, w)
					}
				}
				for _, b := range c.batchers {
					b.set(func(b *fakeBatcher) { b.answer, b.wait, b.load = nil, nil, 0 })
				}
				for range 90 {
					c.spread(4)
					<-time.After(time.Second)
				}
				c.spread(1)
				if tab := c.fleet.currentTable(); !tab.even {
					t.Errorf("%d batchers: weights %v after they work again", n, tab.weights)
				}
			})
		}
	}
}

// TestRefusedFramesAreNoFailure: what is wrong with frames says nothing of the batcher that refuses them.
func TestRefusedFramesAreNoFailure(t *testing.T) {
	for reason, want := range map[scribev1.Reason]callVerdict{
		scribev1.Reason_REASON_TOO_LARGE: callUnjudged, scribev1.Reason_REASON_OVERLOADED: callUnjudged, scribev1.Reason_REASON_SEALED: callUnjudged,
		scribev1.Reason_REASON_NO_BACKEND: callFailed, scribev1.Reason_REASON_UNSPECIFIED: callFailed, scribev1.Reason_REASON_UNKNOWN_OUTCOME: callFailed,
	} {
		results := []*scribev1.FrameResult{{Error: &scribev1.ErrorInfo{Reason: reason}}}
		if got := verdictOf(endAnswered, &scribev1.SubmitResponse{Results: results}, nil); got != want {
			t.Errorf("%v: verdict %v, want %v", reason, got, want)
		}
		results = append(results, &scribev1.FrameResult{})
		if got := verdictOf(endAnswered, &scribev1.SubmitResponse{Results: results}, nil); got != callWorked {
			t.Errorf("%v beside a frame that was taken: verdict %v", reason, got)
		}
	}
	if got := verdictOf(endGone, nil, rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "gone")); got != callUnjudged {
		t.Errorf("verdict %v of a broken connection", got)
	}
}

// TestRefusalsAreNotFast: how soon a batcher refuses frames that nobody would take does not make the others look slow.
func TestRefusalsAreNotFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 2)
		c.batchers[0].answer = func(_ int, frames [][]byte) (*scribev1.SubmitResponse, error) {
			resp := taken(frames)
			for i := range resp.GetResults() {
				resp.Results[i] = &scribev1.FrameResult{Error: &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_TOO_LARGE}}
			}
			return resp, nil
		}
		c.batchers[0].wait = func() time.Duration { return time.Millisecond }
		c.batchers[1].wait = func() time.Duration { return 60 * time.Millisecond }
		for k := range 300 {
			c.write(makeFrame(t, "least", uint32(k%64), false, "x"))
			if tab := c.fleet.currentTable(); !tab.even {
				t.Fatalf("write %d: weights %v", k, tab.weights)
			}
		}
	})
}
