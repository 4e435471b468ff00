package writeproxy

import (
	"math"
	"time"
)

const (
	// levels of weight: 1, and each next one less by the square root of 2, down to an eighth. Nobody gets less: who gets nothing is
	// not known to have recovered.
	maxLevel = 6
	// levelSlack is how far, in levels, a batcher's condition must be from its weight before the weight changes.
	levelSlack = 0.75
	// fairLoad is the load up to which a batcher gets its full share: memory that fills and empties with each flush is no trouble.
	fairLoad = 500
	fullLoad = 1000
	// loadMemory is how fast a lower load is believed; a higher one is at once.
	loadMemory = 2 * time.Second
	// freshLoad is for how long a batcher's own answers say more of its load than the membership.
	freshLoad = 5 * time.Second
	// latencyMemory is how many answers the average latency looks back.
	latencyMemory = 16
	// slowFactor and slowFloor are how much slower than the median a batcher is before it gets less: batchers commit at different
	// moments of a flush.
	slowFactor = 2.0
	slowFloor  = 10 * time.Millisecond
	// oldLatency is how fast a latency is forgotten of a batcher that is not spoken to.
	oldLatency = 10 * time.Second

	// maxGone is how often in a row a batcher is not there before it is left alone.
	maxGone = 3
	// minOpen and maxOpen bound how long a batcher is left alone before it is probed; doubling.
	minOpen = time.Second
	maxOpen = 30 * time.Second
)

// callEnding is how a request to a batcher ended, as far as it tells of the batcher.
type callEnding uint8

const (
	// endAnswered: it answered, whatever it said of the frames.
	endAnswered callEnding = iota
	// endGone: no connection, or one that broke.
	endGone
	// endLeaving: it is shutting down.
	endLeaving
	// endSilent: no answer within the time of the attempt.
	endSilent
	// endUnknown: the caller canceled it, or it ended in another way that tells nothing.
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
	heard  bool // load is its own

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

// beginRequest notes a request.
func (v *batcherHealth) beginRequest(now time.Duration) {
	if v.outstanding == 0 {
		v.answered = now
	}
	v.outstanding++
}

// endRequest notes how a request ended.
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

// noteAnswer notes an answer.
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

// takeProbe reports whether a probe is due, which the caller then sends.
func (v *batcherHealth) takeProbe(now time.Duration) bool {
	if !v.open || v.probing || now < v.until {
		return false
	}
	v.probing = true
	return true
}

// endProbe notes how a probe ended.
func (v *batcherHealth) endProbe(now time.Duration, ok bool) {
	v.probing = false
	if ok {
		v.noteAnswer(now)
		return
	}
	v.pause = min(2*max(v.pause, minOpen), maxOpen)
	v.until = now + v.pause
}

// noteOwnLoad notes the load that it told with an answer.
func (v *batcherHealth) noteOwnLoad(now time.Duration, load uint32) {
	v.setLoad(now, float64(min(load, fullLoad)))
	v.heard = true
}

// noteAdvertised notes the load that the membership tells, unless its own word is newer.
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

// noteLatency notes how long it took to commit.
func (v *batcherHealth) noteLatency(now, latency time.Duration) {
	v.samples = min(v.samples+1, latencyMemory)
	v.latency += (latency.Seconds() - v.latency) / float64(v.samples)
	v.latencyAt = now
}

// currentLatency is the latency that counts, in seconds: the average, nearer to the median the longer it is ago; 0 when nothing is known.
func (v *batcherHealth) currentLatency(now time.Duration, median float64) float64 {
	if v.samples == 0 {
		return 0
	}
	return median + (v.latency-median)*math.Exp(-(now-v.latencyAt).Seconds()/oldLatency.Seconds())
}

// conditionAt is the weight that suits it, from 1 down to an eighth.
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

// updateLevel decides about its weight again; it stays what it is while the condition is near it. It reports whether it changed.
func (v *batcherHealth) updateLevel(now time.Duration, median float64) bool {
	want := -2 * math.Log2(v.conditionAt(now, median))
	if math.Abs(want-float64(v.level)) < levelSlack {
		return false
	}
	v.level = int(math.Round(want))
	return true
}

// isPressed reports whether its load alone asks for less weight than it has.
func (v *batcherHealth) isPressed(now time.Duration) bool {
	return v.load > fairLoad && -2*math.Log2(v.conditionAt(now, 0))-float64(v.level) >= levelSlack
}

// weight is its weight, 0 while it is left alone.
func (v *batcherHealth) weight() float64 {
	if v.open {
		return 0
	}
	return levelWeight(v.level)
}

func levelWeight(level int) float64 { return math.Exp2(-float64(level) / 2) }
