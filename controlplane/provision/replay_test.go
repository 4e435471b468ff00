package provision

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"scribe/internal/testkit/testsize"
)

const (
	testStep = 5 * time.Second // of planning
	// reportDelay is how old reports are, and openDelay how long batchers take to learn of a plan and to open logs.
	reportDelay = 4 * time.Second
	openDelay   = 3 * time.Second
	testTarget  = 1e6
)

// replay is a category with one shard, its write proxies and its batchers, in steps of a second.
type replay struct {
	t       *testing.T
	p       *Planner
	at      time.Duration
	traffic func(at time.Duration) float64 // bytes a second
	// opened is how many logs are open from when on.
	opened []openedLogs

	// What came of it.
	plans, most, least int
	waits              int // seconds in which write proxies needed a log that was not open
	needSeconds        float64
	logSeconds         float64
	turns              int // times that the plan grew after it had shrunk, or the other way round
	grew               int // 1 or -1: what the last change did
}

type openedLogs struct {
	from time.Duration
	logs int
}

func newReplay(t *testing.T, traffic func(time.Duration) float64) *replay {
	return &replay{t: t, p: New(Settings{MicroShardBytes: testTarget, MicroShardMessages: 1e9}), traffic: traffic, least: math.MaxInt}
}

// need is what write proxies use: they follow the traffic within a second.
func (r *replay) need() int { return max(int(math.Ceil(r.traffic(r.at)/testTarget)), 1) }

func (r *replay) planned() int {
	c := r.p.categories[7]
	if c == nil || len(c.plan.GetShards()) == 0 {
		return 0
	}
	return int(c.plan.GetShards()[0].GetLogs())
}

// run goes on until a time. Waits are counted after a warm-up.
func (r *replay) run(until time.Duration, counted bool) {
	before := r.planned()
	for ; r.at < until; r.at += time.Second {
		if r.at%testStep == 0 {
			traffic := map[ShardID]Rate{}
			if rate := r.traffic(max(r.at-reportDelay, 0)); rate > testTarget/256 {
				traffic[ShardID{7, 0}] = Rate{Bytes: rate, Messages: rate / 100}
			}
			r.p.Step(r.at+time.Second, int64(r.at/time.Hour)+1_000_000, traffic)
			for _, ch := range r.p.Changes() {
				r.p.Stored(ch)
			}
			if now := r.planned(); now != before {
				if direction := map[bool]int{true: 1, false: -1}[now > before]; counted {
					r.plans++
					if direction != r.grew && r.grew != 0 {
						r.turns++
					}
					r.grew = direction
				}
				// What was opened stays open: it costs nothing more. Only a batcher that starts opens what is planned then.
				r.opened, before = append(r.opened, openedLogs{r.at + openDelay, now}), now
			}
		}
		if !counted {
			continue
		}
		open := 1 // the first one since the category's first record
		for _, o := range r.opened {
			if o.from <= r.at {
				open = max(o.logs, 1) // that of the present plan alone, as if every batcher had just started
			}
		}
		if need := r.need(); need > open && r.traffic(r.at) > testTarget/256 {
			r.waits++
		}
		r.needSeconds += float64(r.need())
		r.logSeconds += float64(open)
		r.most, r.least = max(r.most, open), min(r.least, open)
	}
}

// day is the traffic of a day: a night trough, a business day, a peak of ten times within two minutes at 14:00 that lasts for
// half an hour, and noise of a tenth. It is the same at each call.
func day(base float64) func(time.Duration) float64 {
	return func(at time.Duration) float64 {
		hour := math.Mod(at.Hours(), 24)
		rate := base * (0.02 + 0.98*math.Max(math.Sin((hour-6)/24*2*math.Pi), 0))
		peak := hour - 14
		switch {
		case peak < 0 || peak > 0.5+2.0/60:
		case peak < 2.0/60:
			rate *= 1 + 9*peak*30
		case peak < 0.5:
			rate *= 10
		default:
			rate *= 1 + 9*(0.5+2.0/60-peak)*30
		}
		noise := rand.New(rand.NewPCG(uint64(at/time.Second), 1)).Float64()
		return rate * (0.9 + 0.2*noise)
	}
}

// TestReplayOfADay: no write waits for a log, whatever the size of the category, although the peak of ten times comes within two minutes
// and is in no history; the night needs little; and the plan follows the day without going to and fro.
func TestReplayOfADay(t *testing.T) {
	for _, base := range []float64{0.05, 0.5, 3, 20} {
		t.Run(fmt.Sprint(base), func(t *testing.T) {
			r := newReplay(t, day(base*testTarget))
			r.run(time.Hour, false)
			r.run(25*time.Hour, true)
			t.Logf("%d plans, %d turns, %d to %d logs open, %.2f open for each one used, %d s waited", r.plans, r.turns, r.least, r.most, r.logSeconds/r.needSeconds, r.waits)
			if r.waits > 0 {
				t.Errorf("write proxies needed a log that was not open in %d seconds", r.waits)
			}
			if night := roundUp(spare * 0.022 * base / shrinkShare); r.least > max(night, 1) {
				t.Errorf("at night %d logs are open, want %d", r.least, night)
			}
			// Up in the morning, down after noon; up and down again at the peak.
			if r.turns > 6 || r.plans > 50 {
				t.Errorf("the plan went to and fro: %d changes, %d turns", r.plans, r.turns)
			}
			if r.logSeconds > 4*r.needSeconds {
				t.Errorf("%.1f logs are open for each one used", r.logSeconds/r.needSeconds)
			}
		})
	}
}

// TestReplayOfTwoWeeks: beside the peak of each day there is a burst on one night of the week, tenfold and without any rise. In the second week
// no write waits, that burst included, and no day has the plan go to and fro.
func TestReplayOfTwoWeeks(t *testing.T) {
	const dayLong = 24 * time.Hour
	usual := day(3 * testTarget)
	r := newReplay(t, func(at time.Duration) float64 {
		rate := usual(at)
		if since := at % (7 * dayLong); since >= 51*time.Hour && since < 51*time.Hour+30*time.Minute {
			rate = 30 * testTarget
		}
		return rate
	})
	r.run(time.Hour, false)
	for n := time.Duration(1); n <= testsize.Test[time.Duration](14, 4, 4); n++ {
		r.waits, r.plans, r.turns, r.grew = 0, 0, 0, 0
		r.needSeconds, r.logSeconds, r.most, r.least = 0, 0, 0, math.MaxInt
		r.opened = r.opened[len(r.opened)-1:]
		r.run(n*dayLong, true)
		t.Logf("day %d: %d plans, %d turns, %d to %d logs open, %.2f open for each one used, %d s waited", n, r.plans, r.turns, r.least, r.most, r.logSeconds/r.needSeconds, r.waits)
		if first := n == 3; first != (r.waits > 0) {
			t.Errorf("day %d: write proxies needed a log that was not open in %d seconds; only the first burst can't be known", n, r.waits)
		}
		if r.turns > 8 || r.plans > 50 {
			t.Errorf("day %d: the plan went to and fro: %d changes, %d turns", n, r.plans, r.turns)
		}
		if r.least > 1 && n != 3 && n != 4 && n != 10 && n != 11 {
			t.Errorf("day %d: at night %d logs are open, want one", n, r.least)
		}
	}
}

// TestHistoryOpensAhead: a burst without any rise, at the same hour of each day, finds its logs open from the second day on, and one that
// came on one day of the week a week later.
func TestHistoryOpensAhead(t *testing.T) {
	for name, tc := range map[string]struct{ every, first time.Duration }{
		"daily":  {24 * time.Hour, 33 * time.Hour},
		"weekly": {168 * time.Hour, 177 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			burst := func(at time.Duration) float64 {
				if since := at % tc.every; since >= 9*time.Hour && since < 10*time.Hour {
					return 12 * testTarget
				}
				return 0.01 * testTarget
			}
			r := newReplay(t, burst)
			r.run(9*time.Hour-time.Minute, false)
			r.run(10*time.Hour, true)
			if r.waits == 0 {
				t.Fatal("the first burst did not wait: the test shows nothing")
			}
			r.run(tc.first-time.Minute, false)
			r.waits, r.opened = 0, r.opened[len(r.opened)-1:]
			r.run(tc.first+time.Hour, true)
			if r.waits > 0 {
				t.Errorf("write proxies needed a log that was not open in %d seconds", r.waits)
			}
		})
	}
}

// TestSteadyTrafficMovesNothing: once it has settled, traffic that moves by a sixth around any level makes no plan.
func TestSteadyTrafficMovesNothing(t *testing.T) {
	for level := 0.02; level < 40; level *= 1.17 {
		r := newReplay(t, func(at time.Duration) float64 {
			return level * testTarget * (1 + math.Sin(at.Seconds()/700)/6)
		})
		r.run(90*time.Minute, false)
		r.run(12*time.Hour, true)
		if r.plans > 0 {
			t.Errorf("%d plans at %.2f micro-shards", r.plans, level)
		}
	}
}

// TestRestart: a planner that takes over plans and histories goes on as the one before: nothing shrinks before its time, what history
// expects is expected, and what the store has is not written again.
func TestRestart(t *testing.T) {
	p := New(Settings{MicroShardBytes: testTarget, MicroShardMessages: 1e9})
	var plan, history Change
	hour := int64(500_000)
	step := func(p *Planner, at time.Duration, rate float64) {
		p.Step(at, hour+int64(at/time.Hour), map[ShardID]Rate{{3, 1}: {Bytes: rate * 3}, {3, 2}: {Bytes: rate}})
		for _, ch := range p.Changes() {
			if ch.NewPlan {
				plan = ch
			}
			if ch.NewHistory {
				history = ch
			}
			p.Stored(ch)
		}
	}
	at := time.Second
	for ; at < 2*time.Hour; at += testStep {
		step(p, at, 4*testTarget)
	}
	if got := plan.Plan.GetShards(); len(got) != 2 || got[0].GetLogs() != 24 || got[0].GetMicroShards() != 12 || got[1].GetLogs() != 8 {
		t.Fatalf("planned %v", got)
	}
	next := New(p.settings)
	next.RestorePlan(at, plan.Plan)
	next.RestoreHistory(3, history.History, hour+2)
	for range 12 * 10 { // ten minutes of silence
		at += testStep
		next.Step(at, hour+2, nil)
		if ch := next.Changes(); len(ch) > 0 {
			t.Fatalf("after a restart: %v", ch)
		}
	}
	for range 12 * 10 {
		at += testStep
		next.Step(at, hour+2, nil)
	}
	if ch := next.Changes(); len(ch) != 1 || ch[0].Plan != nil {
		t.Fatalf("after twenty minutes without traffic: %v", ch)
	}
	next.Stored(next.Changes()[0])
	// A day later history asks for what was needed, divided as it was.
	next.Step(at+22*time.Hour, hour+24, nil)
	got := next.Changes()[0].Plan.GetShards()
	if len(got) != 2 || got[0].GetLogs() != 16 || got[1].GetLogs() != 6 {
		t.Fatalf("a day later: %v", got)
	}
	next.Forget(func(category uint32) bool { return category == 3 })
	if ch := next.Changes(); len(ch) != 1 || ch[0].Plan != nil || ch[0].History != nil || !ch[0].NewHistory {
		t.Fatalf("of a deleted category: %v", ch)
	}
	next.Stored(next.Changes()[0])
	next.Step(at+23*time.Hour, hour+25, nil)
	if categories, shards := next.Tracked(); categories != 0 || shards != 0 {
		t.Errorf("%d categories and %d shards are tracked that are gone", categories, shards)
	}
}

// TestBounds: any number of shards and categories takes bounded memory, and what is idle for a week is forgotten.
func TestBounds(t *testing.T) {
	p := New(Settings{MicroShardBytes: testTarget, MicroShardMessages: 1e9})
	traffic := map[ShardID]Rate{}
	for i := range uint32(400) {
		traffic[ShardID{1, i}] = Rate{Bytes: testTarget}
	}
	for i := range uint32(12_000) {
		traffic[ShardID{2 + i, 0}] = Rate{Messages: 1e12}
	}
	p.Step(time.Second, 1, traffic)
	categories, shards := p.Tracked()
	if categories != maxCategories || shards > maxCategories+MaxPlanned {
		t.Errorf("%d categories, %d shards", categories, shards)
	}
	for _, ch := range p.Changes() {
		if n := len(ch.Plan.GetShards()); n > MaxPlanned || ch.Category != 1 && ch.Plan.GetShards()[0].GetLogs() != maxLogs {
			t.Fatalf("category %d: %d shards are planned, of the first %v", ch.Category, n, ch.Plan.GetShards()[0])
		}
	}
	for hour := int64(1); hour < 400; hour++ {
		p.Step(time.Duration(hour)*time.Hour, hour, nil)
		for _, ch := range p.Changes() {
			p.Stored(ch)
		}
	}
	if categories, shards := p.Tracked(); categories != 0 || shards != 0 {
		t.Errorf("%d categories and %d shards are tracked after two weeks without traffic", categories, shards)
	}
}
