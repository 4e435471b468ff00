package quota

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestBucketIsExact: whatever is offered, what passes in any stretch of time is at most the rate, a burst and one frame; and when a
// frame is refused, the hint is exactly when one passes.
func TestBucketIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := float64(rapid.Int64Range(1, 1<<30).Draw(t, "rate"))
		largest := rapid.Int64Range(1, 64<<20).Draw(t, "largest")
		now := time.Duration(0)
		b := NewBucket(now, rate)
		type passed struct {
			at    time.Duration
			bytes int64
		}
		var log []passed
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			now += time.Duration(rapid.Int64Range(0, int64(2*time.Second)).Draw(t, "pause"))
			size := rapid.Int64Range(1, largest).Draw(t, "size")
			if !b.IsReady(now) {
				after := b.WaitFor(0)
				if early := after - 2*time.Microsecond; early > 0 {
					probe := b
					if probe.IsReady(now + early) {
						t.Fatalf("passes before the hint of %v", after)
					}
				}
				if !rapid.Bool().Draw(t, "wait") {
					continue
				}
				now += after
				if !b.IsReady(now) {
					t.Fatalf("does not pass after the hint of %v: %v tokens at %v", after, b.tokens, rate)
				}
			}
			b.Charge(float64(size))
			log = append(log, passed{now, size})
		}
		for i := range log {
			sum := 0.0
			for _, p := range log[i:] {
				sum += float64(p.bytes)
				bound := rate*(p.at-log[i].at).Seconds() + burstOf(rate) + float64(largest)
				if sum > bound*(1+1e-9)+1 {
					t.Fatalf("%v bytes passed from %v to %v, at most %v", sum, log[i].at, p.at, bound)
				}
			}
		}
	})
}

// TestBucketChangesItsShare: proxies that come and go change what passes from then on, not what was charged.
func TestBucketChangesItsShare(t *testing.T) {
	b := NewBucket(0, 1000)
	b.Charge(1500)
	b.SetRate(0, 500) // another proxy came
	if b.WaitFor(0).Round(time.Millisecond) != time.Second {
		t.Errorf("a debt of 500 at 500 a second takes %v", b.WaitFor(0))
	}
	b.SetRate(500*time.Millisecond, 1000)
	if b.WaitFor(0).Round(time.Millisecond) != 250*time.Millisecond {
		t.Errorf("the rest of the debt takes %v", b.WaitFor(0))
	}
	b.SetRate(time.Hour, 10)
	if b.tokens != 10 {
		t.Errorf("%v tokens were kept beyond the new burst", b.tokens)
	}
	if b = NewBucket(0, 1e-9); b.IsReady(0) {
		b.Charge(math.MaxInt64)
	}
	if b.WaitFor(math.MaxInt64) <= 0 {
		t.Error("a wait beyond all bounds overflows")
	}
}

// offer gives a sampler a steady stream from producers that take turns, and returns what was kept: frames, bytes, and the estimate
// of bytes that the rates of kept frames give, overall and by producer.
func offer(q *State, from, to time.Duration, rate float64, size int64, producers int) (kept int64, estimate float64, by []int64) {
	by = make([]int64, producers)
	step := time.Duration(float64(size) / rate * float64(time.Second))
	for i, now := 0, from; now < to; i, now = i+1, now+step {
		if n := q.sampler.SampleUnit(now, size, &q.bytes); n > 0 {
			kept += size
			estimate += float64(size) * float64(n)
			by[i%producers] += size * int64(n)
		}
	}
	return kept, estimate, by
}

// TestSamplingKeepsTheQuota: what is kept is the quota in the long run, its rates tell how much was offered, and producers that take
// turns are treated alike.
func TestSamplingKeepsTheQuota(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const quotaRate, size = 1e6, 1000
		excess := rapid.Float64Range(0.1, 100).Draw(t, "excess")
		producers := rapid.IntRange(1, 8).Draw(t, "producers")
		q := &State{bytes: NewBucket(0, quotaRate)}
		offer(q, 0, 10*time.Second, quotaRate*excess, size, producers) // until it has settled
		const lasts = 10 * time.Second
		kept, estimate, by := offer(q, 10*time.Second, 10*time.Second+lasts, quotaRate*excess, size, producers)
		offered := quotaRate * excess * lasts.Seconds()
		want := min(offered, quotaRate*lasts.Seconds())
		if float64(kept) > 1.05*want || float64(kept) < 0.9*want {
			t.Fatalf("kept %d bytes of %.0f, want about %.0f", kept, offered, want)
		}
		if estimate < 0.97*offered || estimate > 1.03*offered {
			t.Fatalf("the rates tell of %.0f bytes, %.0f were offered", estimate, offered)
		}
		for i, n := range by {
			share := float64(n) * float64(producers) / offered
			if share < 0.9 || share > 1.1 {
				t.Fatalf("producer %d of %d is seen as %v of its share", i, producers, share)
			}
		}
	})
}

// TestSamplingSettles: from nothing to 100 times the quota at once, what passes beyond it is made up for.
func TestSamplingSettles(t *testing.T) {
	const rate, size = 1e6, 10_000
	q := &State{bytes: NewBucket(0, rate)}
	total := int64(0)
	for second := range 30 {
		from := time.Duration(second) * time.Second
		kept, _, _ := offer(q, from, from+time.Second, 100*rate, size, 3)
		total += kept
		if second == 0 && kept > 15*rate {
			t.Errorf("%d bytes passed in the first second", kept)
		}
	}
	if total > 1.2*30*rate || total < 0.8*30*rate {
		t.Errorf("%d bytes were kept in 30 s", total)
	}
	// When the flood is over nothing is left out for long.
	offer(q, 30*time.Second, 60*time.Second, rate/2, size, 3)
	if kept, _, _ := offer(q, 60*time.Second, 61*time.Second, rate/2, size, 3); float64(kept) < 0.98*rate/2 {
		t.Errorf("%d bytes were kept of half the quota", kept)
	}
	// One frame of a thousand times the burst does not silence the category.
	q = &State{bytes: NewBucket(0, 1000)}
	q.sampler.SampleUnit(0, 1_000_000, &q.bytes)
	kept := 0
	for i := range 600 {
		if q.sampler.SampleUnit(time.Duration(i)*100*time.Millisecond, 10, &q.bytes) > 0 {
			kept++
		}
	}
	if kept < 200 {
		t.Errorf("%d of 600 small frames were kept in the minute after", kept)
	}
}

func TestScaleRate(t *testing.T) {
	for _, tc := range []struct{ had, n, want uint32 }{{0, 3, 3}, {1, 3, 3}, {5, 3, 15}, {math.MaxUint32, 2, math.MaxUint32}, {1 << 31, 4, math.MaxUint32}} {
		if got := ScaleRate(tc.had, tc.n); got != tc.want {
			t.Errorf("rate %d sampled 1 in %d is %d, want %d", tc.had, tc.n, got, tc.want)
		}
	}
}

// TestLineModel: waiters pass in the order in which they came, each when the bucket has room after those before it, and nothing is
// left of those who went.
func TestLineModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := float64(rapid.Int64Range(100, 10_000).Draw(t, "rate"))
		q := &State{bytes: NewBucket(0, rate)}
		q.bytes.Charge(burstOf(rate))
		now := time.Duration(0)
		var model []*Waiter
		eta := map[*Waiter]time.Duration{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				after := q.waitTime(now)
				w := q.line.joinLine(rapid.Int64Range(1, 5000).Draw(t, "bytes"), rapid.Int64Range(1, 10).Draw(t, "held"))
				model = append(model, w)
				eta[w] = now + after
			case 1:
				now += time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "pause"))
			case 2:
				if len(model) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(model)-1).Draw(t, "goes")
				q.line.leaveLine(model[i])
				model = append(model[:i:i], model[i+1:]...)
				eta = map[*Waiter]time.Duration{} // those behind come earlier now
			case 3:
				if len(model) == 0 {
					continue
				}
				if len(model) > 1 {
					if passed, after := q.serveWaiter(now, model[1]); passed || after != 0 {
						t.Fatal("the second passes before the first")
					}
				}
				passed, after := q.serveWaiter(now, model[0])
				if want, ok := eta[model[0]]; ok && passed && now < want-10*time.Microsecond {
					t.Fatalf("passed at %v, expected at %v", now, want)
				}
				if !passed {
					now += after
					if passed, _ = q.serveWaiter(now, model[0]); !passed {
						t.Fatalf("does not pass after its time, %v", after)
					}
				}
				model = model[1:]
			}
			bytes, held := int64(0), int64(0)
			for i, w := range model {
				bytes += w.bytes
				held += w.held
				if (i == 0) != (len(w.turn) == 1) {
					t.Fatalf("waiter %d of %d was told that it is its turn %d times", i, len(model), len(w.turn))
				}
			}
			if q.line.bytes != bytes || q.line.held != held || len(q.line.waiters) != len(model) {
				t.Fatalf("line of %d, %d bytes, %d held; want %d, %d, %d", len(q.line.waiters), q.line.bytes, q.line.held, len(model), bytes, held)
			}
			if n := q.passLeading(now, 1, func(int) int64 { return 1 }); len(model) > 0 && n != 0 {
				t.Fatal("somebody overtakes the line")
			}
		}
	})
}
