package writeproxy

import (
	"time"

	"scribe/internal/base/balance"
)

const (
	// maxGone is the number of missing or broken connections in a row that opens a batcher's breaker.
	maxGone = 3
	// minOpen and maxOpen bound the pause before a batcher is probed; it doubles.
	minOpen = time.Second
	maxOpen = 30 * time.Second
)

// callEnding is the outcome of a request to a batcher, as far as it says something about the batcher.
type callEnding uint8

const (
	// endAnswered: it answered, whatever the results of the frames.
	endAnswered callEnding = iota
	// endGone: there was no connection, or it broke.
	endGone
	// endLeaving: it is shutting down.
	endLeaving
	// endSilent: no answer within the time of the attempt.
	endSilent
	// endUnknown: the caller canceled it, or the outcome says nothing about the batcher.
	endUnknown
)

// callVerdict is what an answer tells about how the batcher works.
type callVerdict uint8

const (
	// callUnjudged: nothing.
	callUnjudged callVerdict = iota
	// callWorked: it took a frame at least.
	callWorked
	// callFailed: it took none, for a reason of its own.
	callFailed
)

// batcherHealth is the health of one batcher, as a plain state machine: methods take events and times, and yield a weight. Times
// are relative to any fixed instant.
//
// The breaker of a batcher opens if the batcher cannot be reached, or does not answer for a while although it has outstanding
// requests. While it is open, the weight is 0, and empty requests probe the batcher. Any answer closes the breaker.
type batcherHealth struct {
	stall time.Duration // time without an answer after which the breaker opens

	// balance decides about the weight while the breaker is closed.
	balance balance.Instance

	outstanding int
	// answered is the time of the last answer, or of the last request that began with none outstanding.
	answered time.Duration
	gone     int

	open  bool
	until time.Duration // the time of the next probe
	pause time.Duration
	// probing: a probe is in flight.
	probing bool
}

// beginRequest records the start of a request.
func (v *batcherHealth) beginRequest(now time.Duration) {
	if v.outstanding == 0 {
		v.answered = now
	}
	v.outstanding++
}

// endRequest records the outcome of a request.
func (v *batcherHealth) endRequest(now time.Duration, how callEnding) {
	v.outstanding--
	switch how {
	case endAnswered:
		v.noteAnswer(now)
	case endGone:
		if v.gone++; v.gone >= maxGone {
			v.tripOpen(now)
		}
	case endLeaving:
		v.tripOpen(now)
	case endSilent:
		if now-v.answered >= v.stall {
			v.tripOpen(now)
		}
	case endUnknown:
	}
}

// noteAnswer records an answer.
func (v *batcherHealth) noteAnswer(now time.Duration) {
	v.answered, v.gone = now, 0
	v.open, v.pause = false, 0
}

// tripOpen opens the breaker; failed probes lengthen the pause.
func (v *batcherHealth) tripOpen(now time.Duration) {
	if v.open {
		return
	}
	v.open = true
	v.pause = minOpen
	v.until = now + v.pause
}

// tripStalled opens the breaker if outstanding requests have waited too long without any answer.
func (v *batcherHealth) tripStalled(now time.Duration) {
	if v.outstanding > 0 && now-v.answered >= v.stall {
		v.tripOpen(now)
	}
}

// takeProbe reports whether a probe is due, and if so marks it as in flight: the caller sends it.
func (v *batcherHealth) takeProbe(now time.Duration) bool {
	if !v.open || v.probing || now < v.until {
		return false
	}
	v.probing = true
	return true
}

// endProbe records the outcome of a probe.
func (v *batcherHealth) endProbe(now time.Duration, ok bool) {
	v.probing = false
	if ok {
		v.noteAnswer(now)
		return
	}
	v.pause = min(2*max(v.pause, minOpen), maxOpen)
	v.until = now + v.pause
}

// weight returns the batcher's weight, 0 while its breaker is open.
func (v *batcherHealth) weight() float64 {
	if v.open {
		return 0
	}
	return v.balance.Weight()
}
