package admission

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A herd that comes at once and keeps to what it is told is spread: it is served at the bucket's rate, and each asks again few times.
func TestHerdIsSpread(t *testing.T) {
	const herd, rate, burst = 300, 30, 15
	b := NewBucket(rate, burst)
	begin := time.Unix(1000, 0)
	due := make([]time.Time, herd) // of each one's next try
	for i := range due {
		due[i] = begin
	}
	served := make(map[int]int) // by second
	tries := 0
	var last time.Time
	for left := herd; left > 0; left-- {
		for {
			i := slices.IndexFunc(due, func(d time.Time) bool { return !d.IsZero() && d.Equal(earliest(due)) })
			tries++
			now := due[i]
			after, ok := b.TakeToken(now)
			if ok {
				due[i] = time.Time{}
				served[int(now.Sub(begin).Seconds())]++
				last = now
				break
			}
			if after <= 0 || after > farthest {
				t.Fatalf("told to come back after %v", after)
			}
			due[i] = now.Add(after)
		}
	}
	for second, n := range served {
		if n > rate+burst+1 {
			t.Errorf("%d were served in second %d", n, second)
		}
	}
	if took := last.Sub(begin); took < 9*time.Second || took > 12*time.Second {
		t.Errorf("serving %d took %v", herd, took)
	}
	if tries > 3*herd {
		t.Errorf("%d tries for %d", tries, herd)
	}
}

func earliest(due []time.Time) time.Time {
	var first time.Time
	for _, d := range due {
		if !d.IsZero() && (first.IsZero() || d.Before(first)) {
			first = d
		}
	}
	return first
}

// Over any time, no more are let through than the burst and what the rate gives.
func TestBucketBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate, burst := rapid.Float64Range(0.1, 1000).Draw(t, "rate"), rapid.Float64Range(1, 100).Draw(t, "burst")
		b := NewBucket(rate, burst)
		begin := time.Unix(1000, 0)
		now := begin.Add(time.Hour)
		b.TakeToken(now) // now it runs
		begin = now
		latest, taken := now, 1.0
		for range rapid.IntRange(1, 300).Draw(t, "tries") {
			// The clock may go back: what it gave before stays given, and nothing is given twice.
			now = now.Add(time.Duration(rapid.Int64Range(-int64(time.Second), int64(time.Second)).Draw(t, "pause")))
			take := b.TakeToken
			if rapid.Bool().Draw(t, "next") {
				take = b.TakeOrWait
			}
			after, ok := take(now)
			if ok {
				taken++
			} else if after < time.Millisecond || after > farthest {
				t.Fatalf("told to come back after %v", after)
			}
			if now.After(latest) {
				latest = now
			}
			if most := burst + rate*latest.Sub(begin).Seconds() + 1e-6; taken > most {
				t.Fatalf("%v were let through, at most %v", taken, most)
			}
		}
	})
	b := NewBucket(0, 0)
	for range 1000 {
		if _, ok := b.TakeToken(time.Now()); !ok {
			t.Fatal("a bucket without a rate has a limit")
		}
		if _, ok := b.TakeOrWait(time.Now()); !ok {
			t.Fatal("a bucket without a rate has a limit")
		}
	}
}

func TestNextIsWhenThereIsOne(t *testing.T) {
	b, now := NewBucket(10, 1), time.Unix(1000, 0)
	b.TakeOrWait(now)
	after, ok := b.TakeOrWait(now)
	if ok || after != 100*time.Millisecond {
		t.Fatalf("%v, %v", after, ok)
	}
	if _, ok := b.TakeOrWait(now.Add(after)); !ok {
		t.Fatal("there was none when there should have been")
	}
}

func TestBreaker(t *testing.T) {
	b, now := NewBreaker(3, time.Second, 4*time.Second), time.Unix(1000, 0)
	for range 3 {
		if !b.Allow(now) || b.Tripped() {
			t.Fatal("it gave up early")
		}
		b.ReportResult(now, false)
	}
	for _, pause := range []time.Duration{1, 2, 4, 4} {
		pause *= time.Second
		b.ReportResult(now, false) // of a call that began before
		if b.Allow(now.Add(pause-1)) || !b.Tripped() {
			t.Fatalf("a call within the pause of %v", pause)
		}
		now = now.Add(pause)
		if !b.Allow(now) {
			t.Fatalf("none after %v", pause)
		}
		if b.Allow(now) {
			t.Fatal("a second one while the first tries")
		}
		b.ReportResult(now, false)
	}
	now = now.Add(4 * time.Second)
	if !b.Allow(now) {
		t.Fatal("it does not try")
	}
	b.ReportResult(now, true)
	for range 10 {
		if !b.Allow(now) || b.Tripped() {
			t.Fatal("it is well, and not asked")
		}
	}
	b.ReportResult(now, false)
	if !b.Allow(now) {
		t.Fatal("one failure is none in a row")
	}
}
