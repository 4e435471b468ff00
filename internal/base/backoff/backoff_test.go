package backoff

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/base/entropy"
)

// constant is a source of one number.
type constant uint64

func (c constant) Uint64() uint64 { return uint64(c) }

func TestPauseDoubles(t *testing.T) {
	for _, c := range []struct {
		min, max time.Duration
		failures int
		want     time.Duration
	}{
		{time.Second, time.Minute, 0, time.Second},
		{time.Second, time.Minute, 1, time.Second},
		{time.Second, time.Minute, 4, 8 * time.Second},
		{time.Second, time.Minute, 7, time.Minute},
		{time.Second, math.MaxInt64, 33, math.MaxInt64},
		{time.Hour, math.MaxInt64, 32, math.MaxInt64}, // the shift overflows
		{time.Minute, time.Second, 1, time.Second},
	} {
		for _, random := range []float64{0, 0.5, 1 - 1.0/(1<<53)} {
			b := Backoff{Min: c.min, Max: c.max, Random: entropy.FromSource(constant(random*(1<<53)) << 11)}
			if got := b.Mean(c.failures); got != c.want {
				t.Errorf("Mean(%d) from %v to %v = %v, want %v", c.failures, c.min, c.max, got, c.want)
			}
			if got, want := b.Pause(c.failures), c.want/2+time.Duration(random*float64(c.want/2)); got != want {
				t.Errorf("Pause(%d) from %v to %v = %v, want %v", c.failures, c.min, c.max, got, want)
			}
		}
	}
	for range 1000 {
		if d := Jitter(nil, time.Second, 0.2); d < 800*time.Millisecond || d > 1200*time.Millisecond {
			t.Fatalf("jittered to %v", d)
		}
	}
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := Sleep(t.Context(), time.Hour); err != nil || time.Since(began) != time.Hour {
			t.Errorf("slept for %v: %v", time.Since(began), err)
		}
		cause := errors.New("closed")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		if err := Sleep(ctx, time.Hour); !errors.Is(err, cause) {
			t.Errorf("slept on: %v", err)
		}
	})
}

func TestBudget(t *testing.T) {
	b := NewBudget(0.25, 3)
	take := func() (n int) {
		for b.TakeRetry() {
			n++
		}
		return n
	}
	if n := take(); n != 3 {
		t.Errorf("%d retries at first", n)
	}
	for range 9 {
		b.Earn()
	}
	if n := take(); n != 2 {
		t.Errorf("%d retries after nine requests", n)
	}
	for range 100 {
		b.Earn()
	}
	if n := take(); n != 3 {
		t.Errorf("%d retries after many requests", n)
	}
	if NewBudget(0, 3).TakeRetry() {
		t.Error("a retry without a share")
	}
}
