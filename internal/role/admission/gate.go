package admission

import (
	"sync"
	"time"

	"scribe/internal/role/shedding"
	scribev1 "scribe/proto/scribe/v1"
)

// Causes of refusals, as values of a metric's label.
const (
	// CauseRate means that more requests come than the rate allows.
	CauseRate = "rate"
	// CauseQueue means that as many requests are in progress as may be.
	CauseQueue = "queue"
	// CausePriority means that the request gives way to others of higher priority.
	CausePriority = "priority"
)

// GateConfig bounds a gate. It must be valid: the roles declare the settings.
type GateConfig struct {
	// Most bounds the requests in progress.
	Most int
	// Slow, if not 0, is the mean time of requests at which the role counts as fully busy: from nine tenths of it on, fewer requests come in, down to Least.
	Slow  time.Duration
	Least int
	// PerSecond bounds the rate of requests, 0 means no bound; Burst is the size of its token bucket.
	PerSecond float64
	Burst     int
}

// gateTarget is the part of GateConfig.Slow that the controller keeps to.
const gateTarget = 0.9

// gateSample is the least time between two measurements.
const gateSample = 100 * time.Millisecond

// Gate bounds the requests that a role has in progress. It is for a role that waits for something behind it, whose queue grows with what is let in. With
// [GateConfig.Slow], a [LengthController] lowers the bound while requests take long. Requests that come too fast, or while too many are in progress, are
// refused at once, those of the lowest priority first.
//
// What is in progress can't be taken back. So lower priorities do not count against higher ones: a request comes in unless as many of its own
// priority and above are in progress as may be, and how many may be follows the time that those take. All priorities together are at most as many times
// that as there are priorities.
//
// It is safe for concurrent use.
type Gate struct {
	cfg   GateConfig
	rate  *TokenBucket
	begun time.Time

	mu struct {
		sync.Mutex
		shedder shedding.Shedder
		inside  [shedding.Levels]int
		// tiers are those of each priority and all above it.
		tiers   [shedding.Levels]gateTier
		sampled time.Time
		at      time.Time // the latest that was seen
	}
}

// gateTier has how long the requests of some priorities take, and how many of them may be in progress.
type gateTier struct {
	meter      latencyMeter
	latency    time.Duration // of the last sample
	controller *LengthController
}

// NewGate returns a gate. now is before the times of all calls.
func NewGate(cfg GateConfig, now time.Time) *Gate {
	g := &Gate{cfg: cfg, rate: NewBucket(cfg.PerSecond, float64(cfg.Burst)), begun: now}
	for l := range g.mu.tiers {
		t := &g.mu.tiers[l]
		t.controller = NewController(ControllerConfig{Target: gateTarget, Least: min(cfg.Least, cfg.Most), Most: cfg.Most})
		t.meter.at = now
	}
	g.mu.sampled, g.mu.at = now, now
	return g
}

// Priorities are a set of priorities.
type Priorities [shedding.Levels]bool

// Refusal is why requests of a priority are refused, and after which time they may be tried again; 0 where the gate can't tell.
type Refusal struct {
	Cause string
	After time.Duration
}

// Refusals has the refusals of a request by priority. Those without a cause came in.
type Refusals [shedding.Levels]Refusal

// EnterRequest decides about a request with parts of some priorities: those that are not refused come in together, until leave. Where all are
// refused leave is nil.
func (g *Gate) EnterRequest(now time.Time, asked Priorities) (refused Refusals, leave func(now time.Time)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now = g.advance(now)
	g.resize(now)
	highest := -1 // of those that come in
	for level := shedding.Levels - 1; level >= 0; level-- {
		if !asked[level] {
			continue
		}
		g.mu.shedder.Note(now.Sub(g.begun), scribev1.Priority(level)) //nolint:gosec // below Levels
		refused[level] = g.decide(now, level, highest >= 0)
		if refused[level].Cause == "" && highest < 0 {
			highest = level
		}
	}
	if highest < 0 {
		return refused, nil
	}
	g.mu.inside[highest]++
	tiers := g.mu.tiers[:highest+1]
	for l := range tiers {
		tiers[l].meter.begin(now)
	}
	return refused, func(end time.Time) {
		g.mu.Lock()
		defer g.mu.Unlock()
		end = g.advance(end)
		g.mu.inside[highest]--
		for l := range tiers {
			tiers[l].meter.end(now, end)
		}
		g.resize(end)
	}
}

// decide decides about one priority of a request. paid says that a part of higher priority has come in already. g.mu is held.
func (g *Gate) decide(now time.Time, level int, paid bool) Refusal {
	since, priority := now.Sub(g.begun), scribev1.Priority(level) //nolint:gosec // below Levels
	above := 0                                                    // and of its own: what lower ones have does not count against it
	for _, n := range g.mu.inside[level:] {
		above += n
	}
	length := g.mu.tiers[level].controller.Length()
	reserved := g.mu.shedder.ReservedShare(since, priority)
	switch {
	case shedding.GivesWay(reserved, int64(above), int64(length)):
		return Refusal{Cause: CausePriority}
	case above >= length:
		g.mu.shedder.NoteRefused(since, priority)
		return Refusal{Cause: CauseQueue}
	case paid:
		return Refusal{}
	}
	after, ok := g.rate.TakeTokenAbove(now, reserved)
	if !ok {
		if reserved == 0 {
			g.mu.shedder.NoteRefused(since, priority)
		}
		return Refusal{Cause: CauseRate, After: after}
	}
	return Refusal{}
}

// advance returns the latest time: those of concurrent calls may be in another order than the calls. g.mu is held.
func (g *Gate) advance(now time.Time) time.Time {
	if now.After(g.mu.at) {
		g.mu.at = now
	}
	return g.mu.at
}

// resize takes a sample of the latency, if it is due. g.mu is held.
func (g *Gate) resize(now time.Time) {
	dt := now.Sub(g.mu.sampled)
	if dt < gateSample {
		return
	}
	g.mu.sampled = now
	for l := range g.mu.tiers {
		t := &g.mu.tiers[l]
		if t.latency = t.meter.sample(now); g.cfg.Slow > 0 {
			t.controller.AdjustLength(min(float64(t.latency)/float64(g.cfg.Slow), 1), dt)
		}
	}
}

// GateState describes a gate.
type GateState struct {
	// Length bounds the requests in progress of the lowest priority and above, Inside is their number.
	Length, Inside int
	// Latency is the mean time that requests took last.
	Latency time.Duration
}

// ReadState returns the gate's state.
func (g *Gate) ReadState() GateState {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := &g.mu.tiers[0]
	s := GateState{Length: t.controller.Length(), Latency: t.latency}
	for _, n := range g.mu.inside {
		s.Inside += n
	}
	return s
}

// latencyMeter measures how long requests take by what is in progress and what ends (Little's law): a few that hang weigh no more than their number. Where
// nothing ends, the age of what runs tells. Times never decrease.
type latencyMeter struct {
	count   int // of those that ended since the last sample
	running int
	busy    time.Duration // time of all that ran since the last sample, added up
	age     time.Duration // sum of the ages of those that run, at the time of at
	at      time.Time
}

func (m *latencyMeter) advance(now time.Time) {
	all := now.Sub(m.at) * time.Duration(m.running)
	m.age += all
	m.busy += all
	m.at = now
}

func (m *latencyMeter) begin(now time.Time) {
	m.advance(now)
	m.running++
}

func (m *latencyMeter) end(began, now time.Time) {
	m.advance(now)
	m.count++
	m.running--
	m.age -= now.Sub(began)
}

// sample returns the mean time of requests since the last sample.
func (m *latencyMeter) sample(now time.Time) (latency time.Duration) {
	m.advance(now)
	switch {
	case m.count > 0:
		latency = m.busy / time.Duration(m.count)
	case m.running > 0:
		latency = m.age / time.Duration(m.running)
	}
	m.busy, m.count = 0, 0
	return latency
}
