package sim

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
)

// drawHour makes a seed draw clocks that are up to an hour apart.
const drawHour = "hour"

// maxOffset bounds how far a host's clock is from the true time. docs/operations.md says what it must stay below.
func (p *plan) maxOffset() time.Duration {
	if p.Hour {
		return 30 * time.Minute
	}
	return 25 * time.Second
}

// maxSkew is how far two clocks are from each other at most, with their drift.
func (p *plan) maxSkew() time.Duration { return 2*p.maxOffset() + 2*time.Second }

// clock is the wall clock of a host: off by some time, and a little fast or slow. It jumps when somebody sets it.
type clock struct {
	mu     sync.Mutex
	offset time.Duration
	// drift is in millionths.
	drift float64
	began time.Time
}

func newClock(offset time.Duration, drift float64) *clock {
	return &clock{offset: offset, drift: drift, began: time.Now()}
}

// setOffset makes the clock jump.
func (c *clock) setOffset(offset time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset = offset
}

// now is what time.Now is on the host.
func (c *clock) now() time.Time {
	t := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return withWall(t, t.Add(c.offset+time.Duration(c.drift*float64(t.Sub(c.began))/1e6)))
}

// withWall returns a time that shows the wall time of another one, and has t for its monotonic reading, as times of a clock that was set have.
// Times of a bubble have no monotonic reading, and package time has no function to give them one. A role may subtract such times from each
// other, but not from those of time.Now.
func withWall(t, wall time.Time) time.Time {
	const (
		hasMonotonic = 1 << 63
		since1885    = 2682288000 // seconds from 1885, where times with a monotonic reading begin, until 1970
	)
	monotonic := t.UnixNano()
	fields := (*struct {
		wall uint64
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&t)) //nolint:gosec // TestClock fails when a time has other fields
	fields.wall = hasMonotonic | uint64(wall.Unix()+since1885)<<30 | uint64(wall.Nanosecond()) //nolint:gosec // neither is negative
	fields.ext = monotonic
	return t
}

// A clock that was set shows another time, and durations do not notice.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		c := newClock(-3*time.Second, 200)
		before := c.now()
		<-time.After(1000 * time.Second)
		c.setOffset(time.Minute)
		after := c.now()
		if got := after.Sub(before); got != 1000*time.Second {
			t.Errorf("%v passed by the monotonic clock", got)
		}
		if got, want := before.UnixNano(), began.Add(-3*time.Second).UnixNano(); got != want {
			t.Errorf("the clock shows %d, want %d", got, want)
		}
		if got, want := after.UnixNano(), began.Add(1060*time.Second+200*time.Millisecond).UnixNano(); got != want {
			t.Errorf("after it was set, the clock shows %d, want %d", got, want)
		}
	})
}
