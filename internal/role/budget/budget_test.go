package budget

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/base/account"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func TestAdmit(t *testing.T) {
	b := New("requests", 100)
	first, err := b.Admit(60)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Admit(60)
	if info := rpc.Info(err); info.GetReason() != scribev1.Reason_REASON_OVERLOADED || info.GetRetryAfter().AsDuration() <= 0 {
		t.Errorf("beyond the limit: %v", err)
	}
	if _, err := b.Admit(101); rpc.ReasonOf(err) != scribev1.Reason_REASON_TOO_LARGE {
		t.Errorf("more than ever fits: %v", err)
	}
	first()
	first() // harmless
	second, err := b.Admit(100)
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
					b.Release(n)
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
		if got := hint(1); got != account.UnknownHint {
			t.Errorf("a hint of %v when nothing is known", got)
		}
		// 100 KiB a tenth of a second: 1 MiB takes about a second.
		for range 50 {
			<-time.After(100 * time.Millisecond)
			b.Release(100 << 10)
			if err := b.Charge(100 << 10); err != nil {
				t.Fatal(err)
			}
		}
		if got := hint(limit); got < 900*time.Millisecond || got > 1200*time.Millisecond {
			t.Errorf("a hint of %v at 1 MiB/s", got)
		}
		if got := hint(1); got != account.MinHint {
			t.Errorf("a hint of %v for one byte", got)
		}
		<-time.After(time.Minute)
		if got := hint(limit); got != account.MaxHint {
			t.Errorf("a hint of %v after a minute without anything", got)
		}
		b.Release(limit)
		// What was idle is not slow.
		for range 10 {
			<-time.After(time.Minute)
			for range 10 {
				if err := b.Charge(100 << 10); err != nil {
					t.Fatal(err)
				}
				<-time.After(100 * time.Millisecond)
				b.Release(100 << 10)
			}
		}
		if err := b.Charge(limit); err != nil {
			t.Fatal(err)
		}
		if got := hint(limit); got > 1500*time.Millisecond {
			t.Errorf("a hint of %v after idle minutes at 1 MiB/s", got)
		}
		b.Release(limit)
	})
}

// BenchmarkCharge is what a request pays.
//
//	go test ./internal/role/budget -run '^$' -bench Charge -count 6
func BenchmarkCharge(b *testing.B) {
	budget := New("requests", 1<<40)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if budget.Charge(1000) == nil {
				budget.Release(1000)
			}
		}
	})
}

func TestUsedPart(t *testing.T) {
	b := New("requests", 200)
	if err := b.Charge(50); err != nil || b.UsedPart() != 0.25 {
		t.Errorf("%v, %v is used", err, b.UsedPart())
	}
	b.Release(50)
	if b.UsedPart() != 0 {
		t.Errorf("%v is used at the end", b.UsedPart())
	}
}
