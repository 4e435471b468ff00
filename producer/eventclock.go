package producer

import (
	"sync/atomic"
	"time"
)

// eventClock provides event times. Reading the system's clock takes longer than all other work for a small message. So under load
// the sending loop reads it once a tick, and messages get the last reading. At light load it is read for each message. Event
// times are therefore accurate to a few milliseconds, or to the time that the loop waits for a core.
type eventClock struct {
	exact func() time.Time // the caller's clock; nil = the system's
	zero  time.Time
	wake  func() // starts the ticks

	coarse atomic.Pointer[time.Time] // the loop's last reading; nil while it does not tick
	last   atomic.Int64              // the last reading for a message, in ns since zero
	quick  atomic.Int32              // consecutive readings that were close together
	ticks  int                       // remaining ticks; owned by the loop
}

const (
	// clockTick is the interval at which the loop reads the clock.
	clockTick = time.Millisecond
	// maxTicks is the number of ticks after which messages must prove again that they arrive close together.
	maxTicks = 16
	// closeTogether is the maximum distance of two readings that count as close together. quickReadings of them start the ticks.
	closeTogether = 20 * time.Microsecond
	quickReadings = 16
)

// readTime returns the event time for a message that arrives now.
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

// takeTick is called in every iteration of the loop. It returns the time of the next tick, or the zero time if the clock does not
// tick.
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
