package account

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestCharge(t *testing.T) {
	now := time.Unix(1000, 0)
	a := New(100)
	if !a.Charge(now, 60) || a.Charge(now, 41) || a.Free() != 40 || a.Used() != 60 {
		t.Fatalf("%d of %d bytes are charged, want 60", a.Used(), a.Limit())
	}
	if ok, _ := a.WithinShare(30, 10, 1); !ok {
		t.Error("40 held bytes are beyond a share of 1 with 40 free")
	}
	if ok, excess := a.WithinShare(50, 10, 1); ok || excess != 10 {
		t.Errorf("60 held bytes are within a share of 1 with 40 free, or %d bytes are beyond it", excess)
	}
	a.Cancel(10)
	a.Release(now.Add(time.Second), 50)
	if a.Used() != 0 || a.Peak() != 60 {
		t.Errorf("%d bytes are charged at the end, at most %d", a.Used(), a.Peak())
	}
	if got := a.Hint(now.Add(time.Second), 50); got != time.Second {
		t.Errorf("a hint of %v for 50 bytes at 50 bytes a second: a cancelled charge counts as speed", got)
	}
}

// TestHintConverges: the speed is that of a steady stream, whatever it was before.
func TestHintConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := New(1 << 62)
		now := time.Unix(1000, 0)
		a.Charge(now, 1<<62)
		run := func(rate int64, lasts time.Duration) {
			for end := now.Add(lasts); now.Before(end); {
				step := time.Duration(rapid.IntRange(50, 300).Draw(t, "step")) * time.Millisecond
				now = now.Add(step)
				a.Release(now, rate*step.Milliseconds()/1000)
			}
		}
		run(rapid.Int64Range(0, 1<<30).Draw(t, "before"), 2*time.Second)
		rate := rapid.Int64Range(1<<16, 1<<30).Draw(t, "rate")
		run(rate, 30*memory)
		if a.speed < 0.98*float64(rate) || a.speed > 1.02*float64(rate) {
			t.Fatalf("measured %v of %v", a.speed, rate)
		}
		need := rapid.Int64Range(1, 1<<34).Draw(t, "need")
		got, want := a.Hint(now, need), time.Duration(float64(need)/float64(rate)*1e9)
		want = min(max(want, MinHint), MaxHint)
		if got < want*95/100 || got > want*105/100 {
			t.Fatalf("hint %v, want %v", got, want)
		}
	})
}
