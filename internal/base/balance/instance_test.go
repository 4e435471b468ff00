package balance

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"scribe/internal/base/entropy"
)

// fleet is an instance among others that are all alike.
type fleet struct {
	now    time.Duration
	one    Instance
	others View
	random *entropy.Source
}

// newFleet returns one whose others have a load and, unless it is 0, a latency.
func newFleet(load float64, latency time.Duration) *fleet {
	f := &fleet{others: View{known: true, peak: load, mean: load, latency: latency.Seconds(), warmth: 1}, random: entropy.NewSeeded(1, "fleet")}
	f.one.Begin(0, 0, 0)
	return f
}

func (f *fleet) decide() bool {
	return f.one.Decide(f.now, TypicalOf([]View{f.one.View(f.now), f.others, f.others, f.others, f.others}), f.random)
}

// answer lets the instance answer with a load for a time, and returns how often its weight turned from falling to rising, or back.
func (f *fleet) answer(d time.Duration, load func() uint32, latency time.Duration) (turns int) {
	last := 0
	for end := f.now + d; f.now < end; {
		f.now += 100 * time.Millisecond
		f.one.NoteLoad(f.now, load())
		if latency > 0 {
			f.one.NoteLatency(f.now, latency)
		}
		before := f.one.Level()
		if f.decide() {
			direction := 1
			if f.one.Level() < before {
				direction = -1
			}
			if direction == -last {
				turns++
			}
			last = direction
		}
	}
	return turns
}

func always(load uint32) func() uint32 { return func() uint32 { return load } }

func TestWeights(t *testing.T) {
	const ms = time.Millisecond
	for _, tc := range []struct {
		name            string
		load            uint32
		latency         time.Duration
		others          float64
		typical         time.Duration
		soon, low, high float64 // at most after a second; between low and high in the end
	}{
		{"all idle", 0, 0, 0, 0, 1, 1, 1},
		{"as full as the others", 500, 0, 500, 0, 1, 1, 1},
		{"all nearly full", 900, 0, 900, 0, 1, 1, 1},
		{"a little fuller", 580, 0, 500, 0, 1, 1, 1},
		{"with a little less room", 640, 0, 500, 0, 0.8, 0.7, 0.8},
		{"clearly fuller, and it stays so", 450, 0, 150, 0, 1, 1.0 / 32, 1.0 / 32},
		{"nearly full", 900, 0, 200, 0, 0.2, 1.0 / 32, 1.0 / 32},
		{"full", 1000, 0, 200, 0, 1.0 / 32, 1.0 / 32, 1.0 / 32},
		{"emptier", 10, 0, 700, 0, 1, 1, 1},
		{"as fast as the others", 0, 20 * ms, 0, 20 * ms, 1, 1, 1},
		{"twice as slow", 0, 40 * ms, 0, 20 * ms, 1, 1, 1},
		{"four times as slow", 0, 80 * ms, 0, 20 * ms, 0.5, 1.0 / 32, 1.0 / 32},
		{"no difference that matters", 0, 9 * ms, 0, ms, 1, 1, 1},
	} {
		f := newFleet(tc.others, tc.typical)
		f.one.NoteLoad(0, uint32(tc.others))
		f.decide()
		f.answer(time.Second, always(tc.load), tc.latency)
		if w := f.one.Weight(); w > tc.soon+1e-9 {
			t.Errorf("%s: weight %v after a second, want at most %v", tc.name, w, tc.soon)
		}
		f.answer(60*time.Second, always(tc.load), tc.latency)
		if w := f.one.Weight(); w < tc.low-1e-9 || w > tc.high+1e-9 {
			t.Errorf("%s: weight %v, want %v to %v", tc.name, w, tc.low, tc.high)
		}
		// When it is as the others are it gets its share back, step by step.
		f.answer(2*time.Second, always(uint32(tc.others)), tc.typical)
		if w := f.one.Weight(); tc.low < 0.5 && w > 0.2 {
			t.Errorf("%s: weight %v two seconds afterwards", tc.name, w)
		}
		f.answer(40*time.Second, always(uint32(tc.others)), tc.typical)
		if w := f.one.Weight(); w != 1 {
			t.Errorf("%s: weight %v afterwards", tc.name, w)
		}
	}
}

// TestOldLatency: an instance that was slow and is not called is not thought slow forever.
func TestOldLatency(t *testing.T) {
	f := newFleet(0, 20*time.Millisecond)
	f.answer(30*time.Second, always(0), time.Second)
	before := f.one.Weight()
	for range 150 {
		f.now += time.Second
		f.decide()
	}
	if before > 0.1 || f.one.Weight() != 1 {
		t.Errorf("weight %v, and %v after 150 s of silence", before, f.one.Weight())
	}
}

// TestNoise: a load that only varies never moves the weight to and fro.
func TestNoise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := rapid.Uint32Range(0, 900).Draw(t, "load")
		f := newFleet(rapid.Float64Range(0, 900).Draw(t, "others"), 0)
		noise := rapid.Uint32Range(0, 60).Draw(t, "noise")
		seed := rapid.Uint64().Draw(t, "seed")
		random := entropy.NewSeeded(seed, "noise")
		f.one.NoteLoad(0, base)
		f.decide()
		if turns := f.answer(60*time.Second, func() uint32 { return base + uint32(random.IntN(int(noise)+1)) }, 0); turns > 1 { // one trial
			t.Fatalf("the weight turned %d times for loads of %d to %d beside %v", turns, base, base+noise, f.others.mean)
		}
	})
}

// follower is an instance whose load follows its share, with a delay.
type follower struct {
	factor  float64 // its load beside the typical one, with its whole share
	typical float64
	told    bool // by the membership, which is late
	delay   int  // tenths of a second
}

// TestLoadFollowsWeight: an instance whose load follows its share, with a delay, finds its place and stays there, whatever it can do.
func TestLoadFollowsWeight(t *testing.T) {
	for _, in := range []follower{
		{factor: 3.53125, typical: 400, delay: 10}, // a mean that was late called for a second step up
		{factor: 2.96, typical: 270.6, delay: 10},  // and for a second one down
		{factor: 3.53125, typical: 400, told: true, delay: 43},
	} {
		in.check(t)
	}
	rapid.Check(t, func(t *rapid.T) {
		in := follower{
			factor:  rapid.Float64Range(0.3, 6).Draw(t, "factor"),
			typical: rapid.Float64Range(50, 400).Draw(t, "typical"),
			told:    rapid.Bool().Draw(t, "told"),
		}
		longest := 10
		if in.told {
			longest = 43
		}
		in.delay = rapid.IntRange(0, longest).Draw(t, "delay")
		in.check(t)
	})
}

func (in follower) check(t rapid.TB) {
	t.Helper()
	f := newFleet(in.typical, 0)
	f.one.Advertise(0, uint32(in.typical), true)
	f.decide()
	late := make([]uint32, 1+in.delay)
	run := func(d time.Duration) (changes, turns int) {
		last := 0
		for end := f.now + d; f.now < end; {
			f.now += 100 * time.Millisecond
			copy(late, late[1:])
			late[len(late)-1] = uint32(min(in.typical*in.factor*f.one.Weight(), MaxLoad))
			if in.told {
				f.one.Advertise(f.now, late[0], true)
			} else {
				f.one.NoteLoad(f.now, late[0])
			}
			before := f.one.Level()
			if f.decide() {
				changes++
				if f.one.Level()-before == -last {
					turns++
				}
				last = f.one.Level() - before
			}
		}
		return changes, turns
	}
	run(8 * time.Minute)
	// Once it has found its place, it tries a step now and then, and goes back.
	above := 0
	for range 60 {
		if changes, turns := run(time.Second); changes > 1 || turns > 1 {
			t.Fatalf("%+v: %d changes in a second, %d of them turns", in, changes, turns)
		}
		load := in.typical * in.factor * f.one.Weight()
		if load > highLoad(in.typical)*1.1 {
			above++
		}
		if f.one.Level() > 0 && load < in.typical*0.55 {
			t.Fatalf("%+v: it ends with a load of %.0f, at level %d", in, load, f.one.Level())
		}
	}
	if above > 20 {
		t.Fatalf("%+v: in %d of 60 s its load was above what is normal, at level %d", in, above, f.one.Level())
	}
	if changes, _ := run(5 * time.Minute); changes > 6 {
		t.Fatalf("%+v: %d changes in five minutes", in, changes)
	}
}

// TestLoadSources: what an instance says itself counts before the membership, as long as it is fresh; more is believed at once.
func TestLoadSources(t *testing.T) {
	var v Instance
	v.Advertise(0, 900, true)
	if v.mean != 900 || v.peak != 900 {
		t.Errorf("load %v from the membership", v.mean)
	}
	v.NoteLoad(20*time.Second, 100)
	v.Advertise(21*time.Second, 900, true)
	if v.mean > 200 || v.peak > 110 {
		t.Errorf("load %v, peak %v: it said 100 a moment ago", v.mean, v.peak)
	}
	v.Decide(21*time.Second, Typical{loads: true, peak: 100, mean: 100, warmth: 1}, entropy.NewSeeded(1, ""))
	v.NoteLoad(22*time.Second, 1000)
	if v.peak != 1000 || !v.IsPressed() {
		t.Errorf("peak %v when it says 1000", v.peak)
	}
	v.Advertise(28*time.Second, 300, true)
	if v.mean != 300 {
		t.Errorf("load %v long after its own word", v.mean)
	}
	v.Advertise(29*time.Second, 0, false)
	if v.known {
		t.Error("an instance that advertises nothing any more is known")
	}
}

// TestUnknownLoad: an instance of an older program neither attracts nor repels, however the others are.
func TestUnknownLoad(t *testing.T) {
	for _, load := range []float64{0, 500, 950} {
		f := newFleet(load, 0)
		f.one.Advertise(0, 0, false)
		f.decide()
		if f.one.Weight() != 1 {
			t.Errorf("weight %v beside loads of %v", f.one.Weight(), load)
		}
		typical := TypicalOf([]View{f.one.View(0), f.others, f.others})
		if typical.mean != load {
			t.Errorf("it counts as a load: %v is typical of %v", typical.mean, load)
		}
	}
}

// TestWarmUp: an instance that has just started comes to its full share in about half a minute, with a weight that only rises; one that
// starts again begins again, and where all have just started none gets less.
func TestWarmUp(t *testing.T) {
	f := newFleet(0, 0)
	f.one.Begin(f.now, 77, 2*time.Second)
	f.one.Advertise(f.now, 0, true)
	last, full := 0.0, time.Duration(0)
	for range 400 {
		f.decide()
		w := f.one.Weight()
		if w < last {
			t.Fatalf("the weight falls from %v to %v", last, w)
		}
		if last == 0 && w > 0.126 {
			t.Errorf("it begins with %v", w)
		}
		if last = w; w == 1 && full == 0 {
			full = f.now
		}
		f.now += 100 * time.Millisecond
		f.one.Begin(f.now, 77, time.Hour) // its age is told once
	}
	if full < 12*time.Second || full > 40*time.Second {
		t.Errorf("it has its full share after %v", full)
	}
	f.one.NoteLoad(f.now, 900)
	f.one.Begin(f.now, 78, 0)
	if f.decide(); f.one.Weight() > 0.126 || f.one.known {
		t.Errorf("after another start: weight %v; known is %v, as if the former start counted", f.one.Weight(), f.one.known)
	}
	f.others.warmth = f.one.View(f.now).warmth
	if f.decide(); f.one.Weight() != 1 {
		t.Errorf("weight %v among others that have just started", f.one.Weight())
	}
}

// TestPause: a caller that made no decisions for a while goes by what is so now.
func TestPause(t *testing.T) {
	f := newFleet(100, 0)
	f.answer(30*time.Second, always(600), 0)
	if f.one.Weight() > 0.1 {
		t.Fatalf("weight %v", f.one.Weight())
	}
	f.now += startOver + time.Second
	f.one.Advertise(f.now, 100, true)
	if f.decide(); f.one.Weight() != 1 {
		t.Errorf("weight %v after a pause", f.one.Weight())
	}
}

func TestTypical(t *testing.T) {
	of := func(loads ...float64) float64 {
		var views []View
		for _, l := range loads {
			views = append(views, View{known: true, mean: l, peak: l})
		}
		return TypicalOf(views).mean
	}
	for _, tc := range []struct {
		loads []float64
		want  float64
	}{
		{nil, 0}, {[]float64{300}, 300}, {[]float64{0, 0, 900}, 0}, {[]float64{900, 0, 900}, 600}, {[]float64{400, 400, 400, 1000}, 400},
	} {
		if got := of(tc.loads...); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("typical of %v is %v, want %v", tc.loads, got, tc.want)
		}
	}
}

func TestMeter(t *testing.T) {
	var m LoadMeter
	for _, step := range []struct{ load, want uint32 }{{200, 200}, {0, 100}, {100, 100}, {950, 950}, {50, 500}, {2000, 1000}} {
		if got := m.Smooth(step.load); got != step.want {
			t.Errorf("a load of %d is advertised as %d, want %d", step.load, got, step.want)
		}
	}
}

func TestDiffers(t *testing.T) {
	for _, tc := range []struct {
		announced, load uint32
		want            bool
	}{
		{0, 0, false}, {0, 99, false}, {0, 100, true}, {100, 0, true}, {600, 700, false}, {600, 800, true}, {850, 900, true}, {900, 850, true}, {950, 1000, false},
	} {
		if got := Differs(tc.announced, tc.load); got != tc.want {
			t.Errorf("%d after %d: %v", tc.load, tc.announced, got)
		}
	}
}

// TestFloor: an instance that lost its share gets it back although its load, or its latency, has a floor within what is normal that does not follow the share.
func TestFloor(t *testing.T) {
	const ms = time.Millisecond
	for _, tc := range []struct {
		load    uint32
		latency time.Duration
		others  float64
		typical time.Duration
	}{{300, 0, 200, 0}, {0, 35 * ms, 0, 20 * ms}, {700, 0, 700, 0}, {900, 0, 900, 0}, {750, 0, 700, 0}} {
		f := newFleet(tc.others, tc.typical)
		f.answer(20*time.Second, always(tc.load), tc.latency)
		f.answer(3*time.Second, always(MaxLoad), tc.latency) // one bad moment
		if f.one.Weight() > 0.3 && tc.others < 900 {
			t.Errorf("%v: weight %v when it is full", tc, f.one.Weight())
		}
		f.answer(6*time.Minute, always(tc.load), tc.latency)
		if f.one.Weight() != 1 {
			t.Errorf("%v: weight %v six minutes afterwards", tc, f.one.Weight())
		}
	}
}

// TestBadMoments: bad moments that are far apart do not make each other's trials rare.
func TestBadMoments(t *testing.T) {
	f := newFleet(200, 0)
	for i := range 12 {
		f.answer(3*time.Second, always(MaxLoad), 0)
		f.answer(6*time.Minute, always(300), 0)
		if f.one.Weight() != 1 {
			t.Errorf("weight %v six minutes after bad moment %d", f.one.Weight(), i+1)
		}
		f.answer(time.Hour, always(300), 0)
	}
}

// TestTrialsGetRare: where more is too much, trials get rare.
func TestTrialsGetRare(t *testing.T) {
	f := newFleet(100, 0)
	run := func(d time.Duration) (above int) {
		for end := f.now + d; f.now < end; {
			load := uint32(800 * f.one.Weight())
			f.answer(time.Second, always(load), 0)
			if float64(load) > highLoad(100) {
				above++
			}
		}
		return above
	}
	run(20 * time.Minute)
	if above := run(time.Hour); above < 5 || above > 180 {
		t.Errorf("it got too much for %d s of an hour", above)
	}
}

// TestNothingKnown: without instances to compare with, or with the loads of a few only, no load is too high.
func TestNothingKnown(t *testing.T) {
	f := newFleet(0, 0)
	f.one.NoteLoad(0, 900)
	f.one.NoteLatency(0, time.Second)
	if f.one.Decide(0, TypicalOf(nil), f.random); f.one.Weight() != 1 {
		t.Errorf("weight %v beside nobody", f.one.Weight())
	}
	unknown := View{warmth: 1}
	idle := View{known: true, warmth: 1}
	var v Instance
	v.Begin(0, 0, 0)
	v.Advertise(0, 700, true)
	if v.Decide(0, TypicalOf([]View{v.View(0), idle, unknown, unknown, unknown, unknown}), f.random); v.Weight() != 1 {
		t.Errorf("weight %v while four of six have not spoken", v.Weight())
	}
	for now := time.Second; now < 8*time.Second; now += time.Second {
		v.Decide(now, TypicalOf([]View{v.View(now), idle, idle, idle, unknown, unknown}), f.random)
		if light := v.Weight() < 1; light != (now >= 6*time.Second) {
			t.Errorf("weight %v after %v beside three that are idle", v.Weight(), now)
		}
	}
	v.NoteLoad(8*time.Second, MaxLoad)
	if v.Decide(8*time.Second, TypicalOf([]View{v.View(8 * time.Second), idle, idle}), f.random); v.Weight() > 0.1 {
		t.Errorf("weight %v when it says itself that it is full", v.Weight())
	}
}

// TestFailures: an instance that fails gets little while another one works, says nothing of what is normal, and comes back; single failures mean nothing.
func TestFailures(t *testing.T) {
	var bad, well Instance
	now, random := time.Duration(0), entropy.NewSeeded(1, "")
	decide := func() Typical {
		typical := TypicalOf([]View{bad.View(now), well.View(now)})
		bad.Decide(now, typical, random)
		well.Decide(now, typical, random)
		return typical
	}
	bad.Begin(0, 0, 0)
	well.Begin(0, 0, 0)
	answer := func(d time.Duration, ok, others bool) (typical Typical) {
		for end := now + d; now < end; now += 250 * time.Millisecond {
			bad.NoteLoad(now, 10)
			bad.NoteOutcome(now, ok)
			well.NoteLoad(now, 600)
			well.NoteOutcome(now, others)
			well.NoteLatency(now, 80*time.Millisecond)
			typical = decide()
		}
		return typical
	}
	decide()
	for range 20 {
		answer(2*time.Second, true, true)
		answer(250*time.Millisecond, false, true)
		if bad.failsNow(now) > failingShare {
			t.Fatalf("a share of %v fails", bad.failsNow(now))
		}
	}
	bad, well = Instance{}, Instance{}
	decide()
	typical := answer(20*time.Second, false, true)
	if bad.Weight() > 0.1 || well.Weight() != 1 || typical.mean < 500 {
		t.Errorf("weights %v and %v of one that fails and one that works; a load of %v is typical", bad.Weight(), well.Weight(), typical.mean)
	}
	well.Advertise(now, 0, false)
	now += time.Minute
	for range 200 {
		bad.NoteLoad(now, 600)
		answer(250*time.Millisecond, true, true)
	}
	if bad.Weight() != 1 {
		t.Errorf("weight %v when it works again", bad.Weight())
	}
	bad, well = Instance{}, Instance{}
	decide()
	answer(20*time.Second, false, false)
	if bad.fails < 0.9 || bad.needByFailures(now, decide()) > 0 {
		t.Error("where all fail, one is failing")
	}
}

// TestStarts: a start is named by its incarnation, so an instance that joins again is not new.
func TestStarts(t *testing.T) {
	if a, b := StartOf("x", 1), StartOf("x", 2); a != b || a == StartOf("y", 1) || StartOf("", 0) != 0 || StartOf("", 5) != 5 {
		t.Errorf("starts %d and %d", a, b)
	}
	f := newFleet(0, 0)
	f.one.Begin(0, StartOf("x", 1), time.Hour)
	f.one.Begin(time.Second, StartOf("x", 2), 0)
	f.now = time.Second
	if f.decide(); f.one.Weight() != 1 {
		t.Errorf("weight %v after it joined again", f.one.Weight())
	}
}

// TestIdleForAReason: one of two that is idle since it gets little, being slow, or since a third of its calls fails at once, does not make the
// other one look busy.
func TestIdleForAReason(t *testing.T) {
	for _, slow := range []bool{false, true} {
		var one, other Instance
		one.Begin(0, 0, 0)
		other.Begin(0, 0, 0)
		random := entropy.NewSeeded(1, "")
		for i := range 240 {
			now := time.Duration(i) * 250 * time.Millisecond
			if slow {
				one.NoteLatency(now, 300*time.Millisecond)
			} else {
				one.NoteOutcome(now, i%3 > 0)
			}
			other.NoteLatency(now, 20*time.Millisecond)
			other.NoteOutcome(now, true)
			other.NoteLoad(now, 500)
			if i == 0 {
				one.NoteLoad(now, 500)
			} else {
				one.NoteLoad(now, 20)
			}
			typical := TypicalOf([]View{one.View(now), other.View(now)})
			one.Decide(now, typical, random)
			if other.Decide(now, typical, random); other.Weight() != 1 {
				t.Fatalf("slow: %v: after %v the other one's weight is %v", slow, now, other.Weight())
			}
		}
	}
}
