package budget

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func TestTake(t *testing.T) {
	b := New("requests", 100)
	first, err := b.Take(60)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Take(60)
	if info := rpc.Info(err); info.GetReason() != scribev1.Reason_REASON_OVERLOADED || info.GetRetryAfter().AsDuration() <= 0 {
		t.Errorf("beyond the limit: %v", err)
	}
	if _, err := b.Take(101); rpc.ReasonOf(err) != scribev1.Reason_REASON_TOO_LARGE {
		t.Errorf("more than ever fits: %v", err)
	}
	first()
	first() // harmless
	second, err := b.Take(100)
	if err != nil {
		t.Fatalf("after the release: %v", err)
	}
	second()
	if b.Used() != 0 || b.Limit() != 100 {
		t.Errorf("%d of %d bytes are charged at the end", b.Used(), b.Limit())
	}
}

// TestNeverBeyond: whatever happens at the same time, no more is granted than there is.
func TestNeverBeyond(t *testing.T) {
	b := New("requests", 1000)
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for i := range 2000 {
				n := int64(worker*37+i*13)%400 + 1
				if b.Charge(n) == nil {
					b.Return(n)
				}
			}
		})
	}
	group.Wait()
	if b.Used() != 0 {
		t.Errorf("%d bytes are charged at the end", b.Used())
	}
}

// TestHintFollowsTheDrain: a role that gives bytes back slowly tells callers to wait longer, one that stands still the longest.
func TestHintFollowsTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 1 << 20
		b := New("requests", limit)
		hint := func(n int64) time.Duration {
			err := b.Charge(n)
			if rpc.ReasonOf(err) != scribev1.Reason_REASON_OVERLOADED {
				t.Fatalf("granted, or %v", err)
			}
			return rpc.Info(err).GetRetryAfter().AsDuration()
		}
		if err := b.Charge(limit); err != nil {
			t.Fatal(err)
		}
		if got := hint(1); got != unknownHint {
			t.Errorf("a hint of %v when nothing is known", got)
		}
		// 100 KiB a tenth of a second: 1 MiB takes about a second.
		for range 50 {
			<-time.After(100 * time.Millisecond)
			b.Return(100 << 10)
			if err := b.Charge(100 << 10); err != nil {
				t.Fatal(err)
			}
		}
		if got := hint(limit); got < 900*time.Millisecond || got > 1200*time.Millisecond {
			t.Errorf("a hint of %v at 1 MiB/s", got)
		}
		if got := hint(1); got != minHint {
			t.Errorf("a hint of %v for one byte", got)
		}
		<-time.After(time.Minute)
		if got := hint(limit); got != maxHint {
			t.Errorf("a hint of %v after a minute without anything", got)
		}
		b.Return(limit)
		// What was idle is not slow.
		for range 10 {
			<-time.After(time.Minute)
			for range 10 {
				if err := b.Charge(100 << 10); err != nil {
					t.Fatal(err)
				}
				<-time.After(100 * time.Millisecond)
				b.Return(100 << 10)
			}
		}
		if err := b.Charge(limit); err != nil {
			t.Fatal(err)
		}
		if got := hint(limit); got > 1500*time.Millisecond {
			t.Errorf("a hint of %v after idle minutes at 1 MiB/s", got)
		}
		b.Return(limit)
	})
}

// TestDrainConverges: the speed is that of a steady stream, whatever it was before.
func TestDrainConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d drain
		now, total := time.Duration(0), int64(0)
		run := func(rate int64, lasts time.Duration) {
			for end := now + lasts; now < end; {
				step := time.Duration(rapid.IntRange(50, 300).Draw(t, "step")) * time.Millisecond
				now += step
				total += rate * step.Milliseconds() / 1000
				d.observe(now, total)
			}
		}
		run(rapid.Int64Range(0, 1<<30).Draw(t, "before"), 2*time.Second)
		rate := rapid.Int64Range(1<<16, 1<<30).Draw(t, "rate")
		run(rate, 30*memory)
		if d.rate < 0.98*float64(rate) || d.rate > 1.02*float64(rate) {
			t.Fatalf("measured %v of %v", d.rate, rate)
		}
		need := rapid.Int64Range(1, 1<<34).Draw(t, "need")
		h := d.hint(need)
		want := min(max(time.Duration(float64(need)/float64(rate)*1e9), minHint), maxHint)
		if h < want*95/100 || h > want*105/100 {
			t.Fatalf("hint %v, want %v", h, want)
		}
	})
}

// BenchmarkTake is what a request pays.
//
//	go test ./internal/role/budget -run '^$' -bench Take -count 6
func BenchmarkTake(b *testing.B) {
	budget := New("requests", 1<<40)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if budget.Charge(1000) == nil {
				budget.Return(1000)
			}
		}
	})
}
