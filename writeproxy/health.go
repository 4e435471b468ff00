package writeproxy

import (
	"math"
	"time"
)

const (
	// The levels of weight: 1, each next one less by the square root of 2, down to an eighth. No batcher gets less, since without
	// requests its recovery would go unnoticed.
	maxLevel = 6
	// levelSlack is the distance, in levels, of a batcher's condition from its weight at which the weight changes.
	levelSlack = 0.75
	// fairLoad is the load up to which a batcher gets its full share: memory that fills and empties with each flush is normal.
	fairLoad = 500
	fullLoad = 1000
	// loadMemory is the time constant with which the load follows a lower value; a higher one counts at once.
	loadMemory = 2 * time.Second
	// freshLoad is the time for which the load in a batcher's own answers takes precedence over that in the membership.
	freshLoad = 5 * time.Second
	// latencyMemory is the number of answers in the average latency.
	latencyMemory = 16
	// slowFactor and slowFloor define how much slower than the median a batcher may be before it gets less. Some difference is
	// normal, since batchers commit at different moments of a flush.
	slowFactor = 2.0
	slowFloor  = 10 * time.Millisecond
	// oldLatency is the time constant with which the latency of a batcher without requests is forgotten.
	oldLatency = 10 * time.Second

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

// batcherHealth is the health of one batcher, as a plain state machine: methods take events and times, and yield a weight. Times
// are relative to any fixed instant.
//
// The breaker of a batcher opens if the batcher cannot be reached, or does not answer for a while although it has outstanding
// requests. While it is open, the weight is 0, and empty requests probe the batcher. Any answer closes the breaker.
type batcherHealth struct {
	stall time.Duration // time without an answer after which the breaker opens

	load   float64
	loadAt time.Duration
	heard  bool // load is from the batcher's own answer

	latency   float64 // seconds
	samples   int
	latencyAt time.Duration

	outstanding int
	// answered is the time of the last answer, or of the last request that began with none outstanding.
	answered time.Duration
	gone     int

	open  bool
	until time.Duration // the time of the next probe
	pause time.Duration
	// probing: a probe is in flight.
	probing bool

	level int
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

// noteOwnLoad records the load in a batcher's answer.
func (v *batcherHealth) noteOwnLoad(now time.Duration, load uint32) {
	v.setLoad(now, float64(min(load, fullLoad)))
	v.heard = true
}

// noteAdvertised records the load in the membership, unless the batcher's own is newer.
func (v *batcherHealth) noteAdvertised(now time.Duration, load uint32) {
	if v.heard && now-v.loadAt < freshLoad {
		return
	}
	v.heard = false
	v.setLoad(now, float64(min(load, fullLoad)))
}

func (v *batcherHealth) setLoad(now time.Duration, load float64) {
	if load < v.load {
		load += (v.load - load) * math.Exp(-(now-v.loadAt).Seconds()/loadMemory.Seconds())
	}
	v.load, v.loadAt = load, now
}

// noteLatency records the latency of a commit.
func (v *batcherHealth) noteLatency(now, latency time.Duration) {
	v.samples = min(v.samples+1, latencyMemory)
	v.latency += (latency.Seconds() - v.latency) / float64(v.samples)
	v.latencyAt = now
}

// currentLatency returns the latency in seconds: the average, which approaches the median as it gets older; 0 if nothing is
// known.
func (v *batcherHealth) currentLatency(now time.Duration, median float64) float64 {
	if v.samples == 0 {
		return 0
	}
	return median + (v.latency-median)*math.Exp(-(now-v.latencyAt).Seconds()/oldLatency.Seconds())
}

// conditionAt returns the weight that suits the batcher's condition, from 1 down to an eighth.
func (v *batcherHealth) conditionAt(now time.Duration, median float64) float64 {
	w := 1.0
	if v.load > fairLoad {
		w -= (v.load - fairLoad) / (fullLoad - fairLoad)
	}
	if bound := slowFactor*median + slowFloor.Seconds(); median > 0 {
		if s := v.currentLatency(now, median); s > bound {
			w *= bound / s
		}
	}
	return max(w, levelWeight(maxLevel))
}

// updateLevel updates the weight, unless the condition is near it, and reports whether it changed.
func (v *batcherHealth) updateLevel(now time.Duration, median float64) bool {
	want := -2 * math.Log2(v.conditionAt(now, median))
	if math.Abs(want-float64(v.level)) < levelSlack {
		return false
	}
	v.level = int(math.Round(want))
	return true
}

// isPressed reports whether the load alone calls for a lower weight.
func (v *batcherHealth) isPressed(now time.Duration) bool {
	return v.load > fairLoad && -2*math.Log2(v.conditionAt(now, 0))-float64(v.level) >= levelSlack
}

// weight returns the batcher's weight, 0 while its breaker is open.
func (v *batcherHealth) weight() float64 {
	if v.open {
		return 0
	}
	return levelWeight(v.level)
}

func levelWeight(level int) float64 { return math.Exp2(-float64(level) / 2) }
