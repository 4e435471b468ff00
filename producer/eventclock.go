package producer

import (
	"sync/atomic"
	"time"
)

// eventClock tells event times. Reading the system's takes longer than all else that is done with a small message, so under a stream of
// messages it is read by the sending loop, once in a tick, and messages are given what it read last. At light load each message
// reads it by itself. Event times are therefore right to a few milliseconds, or to how long the loop waits for a core.
type eventClock struct {
	exact func() time.Time // a clock of the caller's; nil = the system's
	zero  time.Time
	wake  func() // starts the ticks

	coarse atomic.Pointer[time.Time] // what the loop read last; nil = it does not
	last   atomic.Int64              // what a message read last, in ns since zero
	quick  atomic.Int32              // readings in a row that were close together
	ticks  int                       // that are left; the loop's own
}

const (
	// clockTick is how often the loop reads the clock. Event times are cut to it.
	clockTick = time.Millisecond
	// maxTicks is after how many ticks messages must show again that they come close together.
	maxTicks = 16
	// closeTogether is how far apart two readings may be to count, quickReadings how many of them start the ticks.
	closeTogether = 20 * time.Microsecond
	quickReadings = 16
)

// readTime is the time of a message.
func (k *eventClock) readTime() time.Time {
	if t := k.coarse.Load(); t != nil {
		return *t
	}
	if k.exact != nil {
		return k.exact()
	}
	now := time.Now()
	d := int64(now.Sub(k.zero))
	if d-k.last.Swap(d) >= int64(closeTogether) {
		k.quick.Store(0)
	} else if k.quick.Add(1) == quickReadings {
		k.wake()
	}
	return now
}

// takeTick is called by the loop at each turn. It returns when the loop must take another one for the clock; the zero time when it need not.
func (k *eventClock) takeTick(now time.Time) time.Time {
	if k.quick.Load() >= quickReadings {
		k.quick.Store(0)
		k.ticks = maxTicks
	}
	if k.ticks == 0 {
		return time.Time{}
	}
	if t := k.coarse.Load(); t != nil && now.Sub(*t) < clockTick {
		return t.Add(clockTick)
	}
	if k.ticks--; k.ticks == 0 {
		k.coarse.Store(nil)
		return time.Time{}
	}
	k.coarse.Store(&now)
	return now.Add(clockTick)
}

// stopTicks is called when the loop ends.
func (k *eventClock) stopTicks() { k.coarse.Store(nil) }
