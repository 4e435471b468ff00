package balance

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

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
	// quietLoad is a load that is not high beside any other: one key is enough for a store's latency to show as some hundreds at the instance that
	// has it, and it goes where the key goes.
	quietLoad = 400
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

	// trialPause is the mean time after which an instance whose weight is reduced, and which is not above what is normal, gets more on trial:
	// a load may have a floor that does not follow its share. The pause doubles up to longestPause while trials fail, and halves down to
	// shortestPause while they succeed. It is widely jittered: few callers try at the same time.
	trialPause    = 30 * time.Second
	shortestPause = 8 * time.Second
	longestPause  = 8 * time.Minute

	// failingShare is the share of failed calls from which on an instance is failing, if that of another one is below wellShare: where all
	// fail, there is no better place.
	failingShare = 0.5
	wellShare    = 0.25
	// lateShare is the share of failed calls up to which an instance tells what is normal. An instance that gets none any more, since it
	// failed, comes below it only after it has got some again. unusualLevel is the level from which on it does not tell, either.
	lateShare    = 0.1
	unusualLevel = 4
	// failSamples is the number of outcomes in the share at most; it begins with trustedSamples good ones.
	failSamples    = 16
	trustedSamples = 3
	// oldOutcome is the time constant with which outcomes count less beside a new one, and lostOutcome that with which the share of an
	// instance without calls is forgotten.
	oldOutcome  = 10 * time.Second
	lostOutcome = 30 * time.Second

	// WarmUp is the time in which an instance that has just started comes to its full share; it begins with coldShare of it.
	WarmUp    = 30 * time.Second
	coldShare = 1.0 / 8
)

// Instance is what a caller knows of one instance, and its weight.
type Instance struct {
	start int64         // names the start of the instance, and so what since is of
	since time.Duration // when it began to serve

	known bool // it advertises its load, or has answered with it
	// load is the last one that was told, peak follows a higher one at once and a lower one slowly, mean follows both. After a step the mean
	// still shows for seconds what was before it, so the load itself has to call for the next one, too.
	load, peak, mean float64
	loadAt           time.Duration
	heard            bool // the load is from the instance's own answer

	latency   float64 // seconds
	samples   int
	latencyAt time.Duration
	unjudged  int // samples since the last step

	fails    float64 // share of calls that failed
	outcomes int
	failsAt  time.Duration

	decided   bool
	decidedAt time.Duration
	nextStep  time.Duration
	exceeds   bool          // the load exceeded the typical one at the last decision
	loadStep  time.Duration // the earliest step by load
	short     bool          // it had less room than the typical one at the last decision
	roomStep  time.Duration // the earliest change by the advertised room
	warmUp    time.Duration // SetWarmUp
	typical   Typical       // of the last decision
	level     int           // by load and latency
	cold      int           // by age

	calm  bool          // within what is normal, under a reduced weight, since the last step
	pause time.Duration // mean time before a trial; 0 for trialPause
	// barredPause is pause for trials of the level barred, or less, at which one has failed; 0 if none has.
	barredPause time.Duration
	barred      int
	tryAt       time.Duration // of the next trial, while calm
	trying      bool          // the last step was a trial, and may yet have been too much
	triedAt     time.Duration
}

// StartOf names a start of an instance: by its incarnation, which stays the same when the instance joins again, or by when it joined if it has
// none.
func StartOf(incarnation string, joinedAt int64) int64 {
	if incarnation == "" {
		return joinedAt
	}
	return int64(xxhash.Sum64String(incarnation) | 1) //nolint:gosec // only whether two are the same counts
}

// Begin notes which start of the instance the caller deals with, and how long ago that was. What was known of an earlier start is forgotten.
// A start of 0 is unknown, and long ago.
func (v *Instance) Begin(now time.Duration, start int64, age time.Duration) {
	if start == v.start && v.start != 0 {
		return
	}
	if v.start != 0 && start != 0 {
		*v = Instance{warmUp: v.warmUp}
	}
	v.start, v.since = start, now-age
	if start == 0 {
		v.since = now - 2*WarmUp
	}
}

// SetWarmUp sets the time in which the instance comes to its full share. Each caller has one for all instances, which it draws once: so callers
// do not step together, and instances that started together stay equal.
func (v *Instance) SetWarmUp(d time.Duration) { v.warmUp = d }

// DrawWarmUp draws a caller's time for SetWarmUp.
func DrawWarmUp(random *entropy.Source) time.Duration { return backoff.Jitter(random, WarmUp, 0.25) }

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
	v.known, v.load, v.loadAt = true, l, now
}

// NoteLatency notes how long an answer took, of a call whose latency is comparable with that of the other instances.
func (v *Instance) NoteLatency(now, took time.Duration) {
	v.samples = min(v.samples+1, latencyMemory)
	v.latency += (took.Seconds() - v.latency) / float64(v.samples)
	v.latencyAt = now
	v.unjudged++
}

// NoteOutcome notes whether a call did what it was to do. What fails for a reason of the call's own is neither.
func (v *Instance) NoteOutcome(now time.Duration, ok bool) {
	outcome, weight := 1.0, 0.0
	if ok {
		outcome = 0
	}
	if v.outcomes > 0 {
		weight = min(1-math.Exp(-(now-v.failsAt).Seconds()/oldOutcome.Seconds()), 0.5)
	}
	v.outcomes = min(max(v.outcomes, trustedSamples)+1, failSamples)
	v.fails += (outcome - v.fails) * max(weight, 1/float64(v.outcomes))
	v.failsAt = now
}

// failsNow returns the share of calls that failed.
func (v *Instance) failsNow(now time.Duration) float64 {
	return v.fails * math.Exp(-(now-v.failsAt).Seconds()/lostOutcome.Seconds())
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
	fails      float64
	level      int
}

// View returns the instance as it is now.
func (v *Instance) View(now time.Duration) View {
	w := View{known: v.known, peak: v.peak, mean: v.mean, warmth: v.warmth(now), fails: v.failsNow(now), level: v.level}
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
	loads      bool // those of at least half of the instances are known; without, no load is too high
	peak, mean float64
	latency    float64 // seconds; 0 if none is known
	warmth     float64 // of the warmest
	failing    float64 // the share of failed calls from which on an instance is failing
}

// TypicalOf returns what is normal for instances. The typical load is the mean or the median, whichever is lower: neither one instance
// that is far above the others nor a full half of them makes others look idle. Instances that fail and those that do not have their
// share say nothing about the others, unless all are such: they are idle, and those that fail are fast.
func TypicalOf(views []View) Typical {
	t := Typical{failing: math.Inf(1)}
	for _, w := range views {
		if w.fails < wellShare {
			t.failing = failingShare
		}
	}
	for _, w := range views {
		if w.fails <= t.failing {
			t.warmth = max(t.warmth, w.warmth)
		}
	}
	var peaks, means, latencies []float64
	counted := 0
	for _, usual := range []bool{true, false} {
		for _, w := range views {
			if usual && !w.isUsual(t) || w.fails > t.failing {
				continue
			}
			counted++
			if w.known {
				peaks, means = append(peaks, w.peak), append(means, w.mean)
			}
			if w.latency > 0 {
				latencies = append(latencies, w.latency)
			}
		}
		if counted > 0 {
			break
		}
	}
	t.loads = len(means) > 0 && 2*len(means) >= counted
	t.peak, t.mean = typicalLoad(peaks), typicalLoad(means)
	t.latency = lowerMedian(latencies)
	return t
}

// isUsual reports whether what the instance shows is that of one with its share of the work.
func (w *View) isUsual(t Typical) bool {
	return coldLevel(w.warmth, t.warmth) == 0 && w.level < unusualLevel && (w.fails <= lateShare || math.IsInf(t.failing, 1))
}

// coldLevel returns the number of steps that an instance has less for its age than the warmest one.
func coldLevel(warmth, warmest float64) int { return int(math.Round(levelsBetween(warmest, warmth))) }

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
	if !v.known || !t.loads {
		return need // the loads of a few that have spoken are not what is normal
	}
	need.excess = levelsBetween(v.mean, highLoad(t.mean))
	if v.peak > t.peak+noiseLoad {
		need.room = levelsBetween(roomAt(t.peak), roomAt(v.peak))
	}
	return need
}

// highLoad returns above what a load is high beside a typical one.
func highLoad(typical float64) float64 { return max(noiseShare*typical+noiseLoad, quietLoad) }

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

// needByFailures is needByLoad for calls that fail.
func (v *Instance) needByFailures(now time.Duration, t Typical) float64 {
	if share := v.failsNow(now); share > t.failing {
		return LeastLevel * share
	}
	return 0
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
	bound := reliefShare*t.mean + reliefLoad
	if t.mean*math.Sqrt2 <= MaxLoad {
		bound = max(bound, t.mean) // one that is like the others, and would not be full with a step more, is not above them
	}
	return (!v.known || max(v.mean, v.load) <= bound) && v.failsNow(now) < wellShare && v.currentLatency(now, t) <= reliefFactor*t.latency+reliefFloor.Seconds()
}

// IsPressed reports whether the load alone calls for an immediate change, compared with what was normal at the last decision.
func (v *Instance) IsPressed() bool {
	t := v.typical
	t.loads = true // what was not known then may be by now
	need := v.needByLoad(t)
	return v.decided && need.room > 0 && need.sum() >= float64(v.level)+levelSlack
}

// Decide decides about the weight again, and reports whether it changed.
//
// Loads and latencies are those under the present weight. So as long as they are above what is normal the level rises; an instance stays
// where neither more nor less is called for. Little room, or a latency far above the others', is a reason for several levels at once.
func (v *Instance) Decide(now time.Duration, t Typical, random *entropy.Source) (changed bool) {
	before := v.Level()
	v.endTrial(now)
	byLoad, byLatency, byFailures := v.needByLoad(t), v.needByLatency(now, t), v.needByFailures(now, t)
	settle := v.settleTime(byLatency)
	if exceeds := byLoad.excess > 0; exceeds != v.exceeds {
		// Reports do not come together: for a moment, those that have come make their instances look busy.
		if v.exceeds = exceeds; exceeds {
			v.loadStep = now + settleTold
		}
	}
	if short := byLoad.room > 0; short != v.short {
		if v.short = short; short {
			v.roomStep = now + settleTold
		}
	}
	believed := v.heard || v.peak >= urgentLoad || now >= v.roomStep
	level, need := v.level, max(byLoad.sum(), byLatency, byFailures)
	high := byLoad.excess > 0 && v.load > highLoad(t.mean)
	try := v.isTrialDue(now, !high && byLoad.room == 0 && byLatency == 0 && byFailures == 0, random)
	switch {
	case !v.decided || now-v.decidedAt > startOver:
		level = int(math.Round(need))
	case believed && byLoad.room > 0 && byLoad.sum() >= float64(v.level)+levelSlack, byLatency >= float64(v.level)+levelSlack,
		byFailures >= float64(v.level)+levelSlack:
		level = int(math.Round(need))
	case now < v.nextStep:
	case high && now >= v.loadStep, byLatency > 0 && v.unjudged >= stepSamples:
		level++
	case need == 0 && v.isRelieved(now, t):
		level--
	case try:
		level--
	}
	if level = min(max(level, 0), LeastLevel); level != v.level || !v.decided {
		v.nextStep = now + backoff.Jitter(random, settle, 0.25)
		v.noteTrial(now, level, try)
		v.level, v.unjudged = level, 0
	}
	v.decided, v.decidedAt, v.typical = true, now, t
	v.cold = coldLevel(v.warmth(now), t.warmth)
	return v.Level() != before
}

// isTrialDue reports whether the instance has been within what is normal, under a reduced weight, for so long that it should get more on trial.
func (v *Instance) isTrialDue(now time.Duration, normal bool, random *entropy.Source) bool {
	if v.level == 0 || !normal {
		v.calm = false
		return false
	}
	if !v.calm {
		pause := cmp.Or(v.pause, trialPause)
		if v.barredPause > 0 && v.level-1 <= v.barred {
			pause = v.barredPause
		}
		v.calm, v.tryAt = true, now+backoff.Jitter(random, pause, 0.5)
	}
	return now >= v.tryAt
}

// noteTrial notes a step to another level, and judges by it the trial before.
func (v *Instance) noteTrial(now time.Duration, level int, trial bool) {
	switch {
	case v.trying && level > v.level:
		v.pause, v.barred, v.barredPause = 0, v.level, min(2*max(v.barredPause, trialPause), longestPause)
	case v.trying && level < v.level:
		v.pause = max(cmp.Or(v.pause, trialPause)/2, shortestPause)
		if v.level <= v.barred {
			v.barredPause = 0
		}
	}
	v.trying, v.triedAt, v.calm = trial && level < v.level, now, false
}

// endTrial takes a trial for good that has held for long: what happens later has other causes.
func (v *Instance) endTrial(now time.Duration) {
	if !v.trying || now-v.triedAt < 2*trialPause {
		return
	}
	v.trying = false
	if v.level <= v.barred {
		v.barredPause = 0
	}
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
