package balance

import (
	"cmp"
	"math"
	"slices"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/base/entropy"
)

// MaxLoad is the load of an instance that refuses work; 0 is that of an idle one.
const MaxLoad = 1000

const (
	// LeastLevel is the level of the smallest weight, a thirty-second. Nobody gets nothing: an instance without work is not seen to recover.
	// With eight instances it is less than one call in a hundred, so that a slow one is not the 99th percentile of all.
	LeastLevel = 10
	// levelSlack is by how many levels what an instance needs has to exceed its level for an immediate change.
	levelSlack = 0.75

	// noiseLoad and noiseShare are by how much a load may exceed the typical one: what fills and empties with each flush is normal.
	noiseLoad  = 100
	noiseShare = 1.3
	// fairLoad is the load from which on an instance that exceeds the typical one is about to refuse.
	fairLoad = 500
	// reliefShare and reliefLoad bound the load at which an instance gets more again. What one step of the weight changes, a factor of 1.41,
	// fits between this bound and noiseShare.
	reliefShare = 0.9
	reliefLoad  = 60
	// peakMemory is the time constant with which the peak of the load follows lower values; meanMemory that of the mean.
	peakMemory = 2 * time.Second
	meanMemory = 5 * time.Second
	// freshLoad is the time for which the load in an instance's own answers takes precedence over the advertised one.
	freshLoad = 5 * time.Second

	// latencyMemory is the number of answers in the mean latency.
	latencyMemory = 16
	// slowFactor and slowFloor define how much slower than the others an instance may be; reliefFactor and reliefFloor when it is not
	// slow any more. Some difference is normal, since batchers commit at different moments of a flush.
	slowFactor   = 2.0
	slowFloor    = 10 * time.Millisecond
	reliefFactor = 1.4
	reliefFloor  = 5 * time.Millisecond
	// oldLatency is the time constant with which the latency of an instance without calls is forgotten.
	oldLatency = 10 * time.Second
	// stepSamples is the number of latencies between two steps.
	stepSamples = 4

	// settleTold is the mean time between two steps by advertised loads: a heartbeat and the delay of its announcement. settleHeard is
	// that of steps by what the caller sees itself.
	settleTold  = 5 * time.Second
	settleHeard = 2 * time.Second
	// settleSlow is the time between two steps down by latency, which show at once.
	settleSlow = 500 * time.Millisecond
	// startOver is the time without decisions after which earlier ones are not continued.
	startOver = 30 * time.Second

	// WarmUp is the time in which an instance that has just started comes to its full share; it begins with coldShare of it.
	WarmUp    = 30 * time.Second
	coldShare = 1.0 / 8
)

// Instance is what a caller knows of one instance, and its weight.
type Instance struct {
	start int64         // names the start of the instance, and so what since is of
	since time.Duration // when it began to serve

	known bool // it advertises its load, or has answered with it
	// peak follows a higher load at once and a lower one slowly; mean follows both.
	peak, mean float64
	loadAt     time.Duration
	heard      bool // the load is from the instance's own answer

	latency   float64 // seconds
	samples   int
	latencyAt time.Duration
	unjudged  int // samples since the last step

	decided   bool
	decidedAt time.Duration
	nextStep  time.Duration
	exceeds   bool          // the load exceeded the typical one at the last decision
	loadStep  time.Duration // the earliest step by load
	warmUp    time.Duration // WarmUp, jittered: callers do not step together
	typical   Typical       // of the last decision
	level     int           // by load and latency
	cold      int           // by age
}

// Begin notes which start of the instance the caller deals with, and how long ago that was. What was known of an earlier start is forgotten.
// A start of 0 is unknown, and long ago.
func (v *Instance) Begin(now time.Duration, start int64, age time.Duration) {
	if start == v.start && v.start != 0 {
		return
	}
	if v.start != 0 && start != 0 {
		*v = Instance{}
	}
	v.start, v.since = start, now-age
	if start == 0 {
		v.since = now - 2*WarmUp
	}
}

// Advertise notes the load that the membership has of the instance, unless its own answers said so lately. known is false for one that does
// not advertise any.
func (v *Instance) Advertise(now time.Duration, load uint32, known bool) {
	switch {
	case v.heard && now-v.loadAt < freshLoad:
	case !known:
		v.known, v.heard = false, false
	default:
		v.setLoad(now, load)
		v.mean, v.heard = float64(min(load, MaxLoad)), false // advertised loads are smoothed already: LoadMeter
	}
}

// NoteLoad notes the load in an instance's own answer.
func (v *Instance) NoteLoad(now time.Duration, load uint32) {
	v.setLoad(now, load)
	v.heard = true
}

func (v *Instance) setLoad(now time.Duration, load uint32) {
	l, passed := float64(min(load, MaxLoad)), max(now-v.loadAt, 0).Seconds()
	if !v.known {
		v.peak, v.mean = l, l
	} else {
		v.peak = max(l, l+(v.peak-l)*math.Exp(-passed/peakMemory.Seconds()))
		v.mean = l + (v.mean-l)*math.Exp(-passed/meanMemory.Seconds())
	}
	v.known, v.loadAt = true, now
}

// NoteLatency notes how long an answer took, of a call whose latency is comparable with that of the other instances.
func (v *Instance) NoteLatency(now, took time.Duration) {
	v.samples = min(v.samples+1, latencyMemory)
	v.latency += (took.Seconds() - v.latency) / float64(v.samples)
	v.latencyAt = now
	v.unjudged++
}

// Level returns the number of steps that the weight is below 1.
func (v *Instance) Level() int { return min(v.level+v.cold, LeastLevel) }

// Weight returns the instance's weight: 1, or less by the square root of 2 for each step.
func (v *Instance) Weight() float64 { return levelWeight(v.Level()) }

func levelWeight(level int) float64 { return math.Exp2(-float64(level) / 2) }

// View is what decisions about all instances need of one.
type View struct {
	known      bool
	peak, mean float64
	latency    float64 // 0 if it is not known
	warmth     float64
}

// View returns the instance as it is now.
func (v *Instance) View(now time.Duration) View {
	w := View{known: v.known, peak: v.peak, mean: v.mean, warmth: v.warmth(now)}
	if v.samples > 0 && now-v.latencyAt < oldLatency {
		w.latency = v.latency
	}
	return w
}

// warmth returns the part of its share that an instance gets at its age.
func (v *Instance) warmth(now time.Duration) float64 {
	whole := cmp.Or(v.warmUp, WarmUp)
	return min(max((now-v.since).Seconds()/whole.Seconds(), coldShare), 1)
}

// Typical is what is normal for the instances of a service.
type Typical struct {
	peak, mean float64
	latency    float64 // seconds; 0 if none is known
	warmth     float64 // of the warmest
}

// TypicalOf returns what is normal for instances. The typical load is the mean or the median, whichever is lower: neither one instance
// that is far above the others nor a full half of them makes others look idle.
func TypicalOf(views []View) Typical {
	var peaks, means, latencies []float64
	t := Typical{}
	for _, w := range views {
		t.warmth = max(t.warmth, w.warmth)
		if w.known {
			peaks, means = append(peaks, w.peak), append(means, w.mean)
		}
		if w.latency > 0 {
			latencies = append(latencies, w.latency)
		}
	}
	t.peak, t.mean = typicalLoad(peaks), typicalLoad(means)
	t.latency = lowerMedian(latencies)
	return t
}

func typicalLoad(loads []float64) float64 {
	if len(loads) == 0 {
		return 0
	}
	sum := 0.0
	for _, l := range loads {
		sum += l
	}
	return min(sum/float64(len(loads)), lowerMedian(loads))
}

// lowerMedian returns the lower median, 0 of nothing. It sorts.
func lowerMedian(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[(len(values)-1)/2]
}

// levelsBetween returns by how many levels a value is above a bound, at least 0.
func levelsBetween(value, bound float64) float64 {
	if value <= bound || bound <= 0 {
		return 0
	}
	return 2 * math.Log2(value/bound)
}

// loadNeed is by how many levels the load of an instance, under the present weight, is above what is normal.
type loadNeed struct {
	// excess is by its distance from the typical load, room by what it has left before it refuses.
	excess, room float64
}

func (n loadNeed) sum() float64 { return min(n.excess+n.room, LeastLevel) }

func (v *Instance) needByLoad(t Typical) (need loadNeed) {
	if !v.known {
		return need
	}
	need.excess = levelsBetween(v.mean, noiseShare*t.mean+noiseLoad)
	if v.peak > t.peak+noiseLoad {
		need.room = levelsBetween(roomAt(t.peak), roomAt(v.peak))
	}
	return need
}

// roomAt returns what an instance of a load has left before it refuses, as a part of what it has at fairLoad.
func roomAt(load float64) float64 {
	return min(max((MaxLoad-load)/(MaxLoad-fairLoad), 1e-3), 1)
}

// needByLatency is needByLoad for the latency.
func (v *Instance) needByLatency(now time.Duration, t Typical) float64 {
	if t.latency == 0 {
		return 0
	}
	return min(levelsBetween(v.currentLatency(now, t), slowFactor*t.latency+slowFloor.Seconds()), LeastLevel)
}

// currentLatency returns the mean latency, which approaches the typical one as it gets older; 0 if nothing is known.
func (v *Instance) currentLatency(now time.Duration, t Typical) float64 {
	if v.samples == 0 {
		return 0
	}
	return t.latency + (v.latency-t.latency)*math.Exp(-(now-v.latencyAt).Seconds()/oldLatency.Seconds())
}

// isRelieved reports whether load and latency are so low, under the present weight, that a step back is safe.
func (v *Instance) isRelieved(now time.Duration, t Typical) bool {
	return (!v.known || v.mean <= reliefShare*t.mean+reliefLoad) && v.currentLatency(now, t) <= reliefFactor*t.latency+reliefFloor.Seconds()
}

// IsPressed reports whether the load alone calls for an immediate change, compared with what was normal at the last decision.
func (v *Instance) IsPressed() bool {
	need := v.needByLoad(v.typical)
	return v.decided && need.room > 0 && need.sum() >= float64(v.level)+levelSlack
}

// Decide decides about the weight again, and reports whether it changed.
//
// Loads and latencies are those under the present weight. So as long as they are above what is normal the level rises; an instance stays
// where neither more nor less is called for. Little room, or a latency far above the others', is a reason for several levels at once.
func (v *Instance) Decide(now time.Duration, t Typical, random *entropy.Source) (changed bool) {
	before := v.Level()
	if v.warmUp == 0 {
		v.warmUp = backoff.Jitter(random, WarmUp, 0.25)
	}
	byLoad, byLatency := v.needByLoad(t), v.needByLatency(now, t)
	settle := v.settleTime(byLatency)
	if exceeds := byLoad.excess > 0; exceeds != v.exceeds {
		// Reports do not come together: for a moment, those that have come make their instances look busy.
		if v.exceeds = exceeds; exceeds {
			v.loadStep = now + settleTold
		}
	}
	level := v.level
	switch need := max(byLoad.sum(), byLatency); {
	case !v.decided || now-v.decidedAt > startOver:
		level = int(math.Round(need))
	case byLoad.room > 0 && byLoad.sum() >= float64(v.level)+levelSlack, byLatency >= float64(v.level)+levelSlack:
		level = int(math.Round(need))
	case now < v.nextStep:
	case byLoad.excess > 0 && now >= v.loadStep, byLatency > 0 && v.unjudged >= stepSamples:
		level++
	case need == 0 && v.isRelieved(now, t):
		level--
	}
	if level = min(max(level, 0), LeastLevel); level != v.level || !v.decided {
		v.nextStep = now + backoff.Jitter(random, settle, 0.25)
		v.level, v.unjudged = level, 0
	}
	v.decided, v.decidedAt, v.typical = true, now, t
	v.cold = 0
	if warmth := v.warmth(now); warmth < t.warmth {
		v.cold = int(math.Round(levelsBetween(t.warmth, warmth)))
	}
	return v.Level() != before
}

// settleTime returns the mean time after a step before the next one.
func (v *Instance) settleTime(byLatency float64) time.Duration {
	switch {
	case byLatency > 0:
		return settleSlow
	case v.known && !v.heard:
		return settleTold
	default:
		return settleHeard
	}
}
