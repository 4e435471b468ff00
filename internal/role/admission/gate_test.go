package admission

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"scribe/internal/role/shedding"
	scribev1 "scribe/proto/scribe/v1"
)

const (
	low      = int(scribev1.Priority_PRIORITY_LOW)
	normal   = int(scribev1.Priority_PRIORITY_NORMAL)
	high     = int(scribev1.Priority_PRIORITY_HIGH)
	critical = int(scribev1.Priority_PRIORITY_CRITICAL)
)

// gateRun is a gate, its clock and the requests inside.
type gateRun struct {
	gate *Gate
	now  time.Time
}

func newGateRun(cfg GateConfig) *gateRun {
	now := time.Unix(1_000_000, 0)
	return &gateRun{gate: NewGate(cfg, now), now: now}
}

// enter asks for one priority; leave is nil if it was refused.
func (r *gateRun) enter(level int) (leave func(time.Time), cause string) {
	var asked Priorities
	asked[level] = true
	refused, leave := r.gate.EnterRequest(r.now, asked)
	return leave, refused[level].Cause
}

// TestGateFollowsLatency: while requests take longer than they should, fewer come in; when they are fast again all do; a standstill counts before
// anything ends.
func TestGateFollowsLatency(t *testing.T) {
	r := newGateRun(GateConfig{Least: 4, Most: 1000, Slow: time.Second})
	serve := func(takes, lasts time.Duration) {
		for end := r.now.Add(lasts); r.now.Before(end); {
			leave, _ := r.enter(normal)
			if leave == nil {
				t.Fatalf("one at a time is refused: %+v", r.gate.ReadState())
			}
			r.now = r.now.Add(takes)
			leave(r.now)
		}
	}
	serve(500*time.Millisecond, 20*time.Second)
	if s := r.gate.ReadState(); s.Length != 1000 || s.Inside != 0 || s.Latency < 400*time.Millisecond || s.Latency > 600*time.Millisecond {
		t.Fatalf("at half of what is slow: %+v", s)
	}
	serve(2*time.Second, 5*time.Minute)
	if s := r.gate.ReadState(); s.Length != 4 {
		t.Fatalf("at twice of what is slow: %+v", s)
	}
	serve(10*time.Millisecond, 20*time.Second)
	if s := r.gate.ReadState(); s.Length != 1000 {
		t.Fatalf("when it is fast again: %+v", s)
	}
	var inside []func(time.Time)
	for range 300 { // nothing ends any more
		r.now = r.now.Add(100 * time.Millisecond)
		if leave, _ := r.enter(normal); leave != nil {
			inside = append(inside, leave)
		}
	}
	if s := r.gate.ReadState(); s.Length != 4 || len(inside) > 200 {
		t.Errorf("at a standstill %d came in: %+v", len(inside), s)
	}
	for _, leave := range inside {
		leave(r.now)
	}
	if s := r.gate.ReadState(); s.Inside != 0 {
		t.Errorf("%+v", s)
	}
}

// TestFewThatHang: one in a hundred requests that hangs, or some hundred at once, do not close the gate to those that are fast.
func TestFewThatHang(t *testing.T) {
	r := newGateRun(GateConfig{Least: 64, Most: 8192, Slow: 10 * time.Second})
	type request struct {
		leave func(time.Time)
		until time.Time
	}
	var inside []request
	refused := 0
	enter := func(takes time.Duration) {
		leave, _ := r.enter(normal)
		if leave == nil {
			refused++
			return
		}
		inside = append(inside, request{leave, r.now.Add(takes)})
	}
	for i := range 60_000 { // a thousand a second, of 50 ms each
		r.now = r.now.Add(time.Millisecond)
		left := inside[:0]
		for _, x := range inside {
			if x.until.After(r.now) {
				left = append(left, x)
			} else {
				x.leave(r.now)
			}
		}
		inside = left
		switch {
		case i == 30_000:
			for range 300 {
				enter(30 * time.Second)
			}
		case i%100 == 0:
			enter(30 * time.Second)
		default:
			enter(50 * time.Millisecond)
		}
	}
	if s := r.gate.ReadState(); refused > 0 || s.Length != 8192 {
		t.Errorf("%d are refused: %+v", refused, s)
	}
}

// TestSlowLowerPriorities: how many of a priority may be in progress follows the time that it and higher ones take, so slow or hanging requests of lower ones
// do not close the gate to them. Without a time that is slow, only the number bounds.
func TestSlowLowerPriorities(t *testing.T) {
	for _, slow := range []time.Duration{time.Second, 0} {
		r := newGateRun(GateConfig{Least: 2, Most: 50, Slow: slow})
		var hang []func(time.Time)
		for range 600 { // a minute
			for range 5 {
				if leave, _ := r.enter(low); leave != nil {
					hang = append(hang, leave)
				}
			}
			var quick []func(time.Time)
			for range 20 {
				leave, cause := r.enter(critical)
				if leave == nil {
					t.Fatalf("the highest is refused: %s, %+v", cause, r.gate.ReadState())
				}
				quick = append(quick, leave)
			}
			r.now = r.now.Add(100 * time.Millisecond)
			for _, leave := range quick {
				leave(r.now)
			}
			if n := len(hang); n > 0 && r.gate.ReadState().Length > 2 { // the oldest of the slow ones end
				hang[0](r.now)
				hang = hang[1:]
			}
		}
		for range 100 { // of the highest alone, and nothing but those of low that hang
			r.now = r.now.Add(100 * time.Millisecond)
			r.enter(low)
		}
		if s := r.gate.ReadState(); (s.Length == 50) != (slow == 0) || s.Latency < time.Second {
			t.Errorf("with slow = %v: %+v", slow, s)
		}
		for range 50 {
			if leave, cause := r.enter(critical); leave == nil {
				t.Fatalf("with slow = %v the highest is refused: %s", slow, cause)
			}
		}
	}
}

// TestTimesOutOfOrder: what is measured does not drift where times of concurrent calls are in another order than the calls.
func TestTimesOutOfOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newGateRun(GateConfig{Least: 1, Most: 1000, Slow: time.Second})
		begun := r.now
		var leaves []func(time.Time)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			r.now = begun.Add(time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "at")))
			if len(leaves) > 0 && rapid.Bool().Draw(t, "leaves") {
				leaves[0](r.now)
				leaves = leaves[1:]
			} else if leave, _ := r.enter(rapid.IntRange(low, critical).Draw(t, "level")); leave != nil {
				leaves = append(leaves, leave)
			}
			for l := range r.gate.mu.tiers {
				if m := r.gate.mu.tiers[l].meter; m.age < 0 || m.busy < 0 {
					t.Fatalf("less than no time: %+v", m)
				}
			}
		}
		for _, leave := range leaves {
			leave(begun)
		}
		for l := range r.gate.mu.tiers {
			if m := r.gate.mu.tiers[l].meter; m.age != 0 || m.running != 0 {
				t.Fatalf("with nothing in progress: %+v", m)
			}
		}
	})
}

// TestHighestIsNotTouched: whatever comes and goes, a request is never refused for what has a lower priority, and after a
// refusal for its own number lower ones are refused, too.
func TestHighestIsNotTouched(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.IntRange(1, 20).Draw(t, "length")
		r := newGateRun(GateConfig{Least: length, Most: length, Slow: time.Hour})
		type request struct {
			level int
			leave func(time.Time)
		}
		var inside []request
		count := func(from int) (n int) {
			for _, x := range inside {
				if x.level >= from {
					n++
				}
			}
			return n
		}
		var refusedAt [shedding.Levels]time.Time
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			r.now = r.now.Add(time.Duration(rapid.Int64Range(0, int64(500*time.Millisecond)).Draw(t, "pause")))
			if rapid.IntRange(0, 2).Draw(t, "what") == 0 && len(inside) > 0 {
				i := rapid.IntRange(0, len(inside)-1).Draw(t, "leaves")
				inside[i].leave(r.now)
				inside = append(inside[:i], inside[i+1:]...)
				continue
			}
			level := rapid.IntRange(low, critical).Draw(t, "level")
			same := count(level)
			leave, cause := r.enter(level)
			if (leave == nil) != (cause != "") {
				t.Fatalf("leave and cause %q contradict each other", cause)
			}
			switch {
			case level == critical && (leave == nil) != (same >= length):
				t.Fatalf("the highest is refused: %q with %d of it of %d in progress", cause, same, length)
			case cause == CauseQueue && same < length:
				t.Fatalf("priority %d is refused for lower ones: %d of it and above of %d", level, same, length)
			case leave != nil && same >= length:
				t.Fatalf("%d of priority %d and above are in progress, more than %d", same+1, level, length)
			}
			for l := level + 1; leave != nil && l <= critical; l++ {
				if at := refusedAt[l]; !at.IsZero() && r.now.Sub(at) < time.Second {
					t.Fatalf("priority %d comes in %v after %d was refused", level, r.now.Sub(at), l)
				}
			}
			if cause == CauseQueue {
				refusedAt[level] = r.now
			}
			if leave != nil {
				inside = append(inside, request{level, leave})
			}
		}
	})
}

// TestLowerDoNotCount: what lower priorities have in progress leaves a middle one its places, while there are higher ones.
func TestLowerDoNotCount(t *testing.T) {
	r := newGateRun(GateConfig{Least: 1000, Most: 1000})
	for i := range 1000 {
		if leave, cause := r.enter(low); leave == nil {
			t.Fatalf("request %d of 1,000 is refused: %s", i+1, cause)
		}
	}
	if leave, cause := r.enter(critical); leave == nil {
		t.Fatalf("the highest is refused: %s", cause)
	}
	for i := range 500 {
		if leave, cause := r.enter(normal); leave == nil {
			t.Fatalf("request %d of a middle priority is refused: %s", i+1, cause)
		}
	}
	if leave, cause := r.enter(low); leave != nil || cause == "" {
		t.Error("one more of the lowest came in")
	}
}

// TestGateRate: lower priorities leave tokens to higher ones, so these come in at their own rate under any flood of the others.
func TestGateRate(t *testing.T) {
	r := newGateRun(GateConfig{Least: 1000, Most: 1000, Slow: time.Hour, PerSecond: 100, Burst: 100})
	var came, refused [shedding.Levels]int
	try := func(level int) {
		leave, cause := r.enter(level)
		if leave == nil {
			if refused[level]++; cause == "" {
				t.Fatal("refused without a cause")
			}
			return
		}
		leave(r.now)
		came[level]++
	}
	for i := range 10_000 { // 1,000 of low and 50 of critical a second, for ten seconds
		r.now = r.now.Add(time.Millisecond)
		if try(low); i%20 == 0 {
			try(critical)
		}
	}
	if refused[critical] != 0 || came[critical] != 500 {
		t.Errorf("of the highest %d came in and %d were refused", came[critical], refused[critical])
	}
	if came[low] < 400 || came[low] > 650 {
		t.Errorf("%d requests of the lowest priority came in, want about 500 and the burst", came[low])
	}
	var asked Priorities
	asked[low] = true
	for {
		if _, leave := r.gate.EnterRequest(r.now, asked); leave == nil {
			break
		}
	}
	if got, _ := r.gate.EnterRequest(r.now, asked); got[low].Cause != CauseRate || got[low].After <= 0 {
		t.Errorf("refused with %+v, want a hint", got[low])
	}
}

// TestMixedRequest: the parts of a request are decided by priority, and it takes one place, that of the highest.
func TestMixedRequest(t *testing.T) {
	r := newGateRun(GateConfig{Least: 8, Most: 8, Slow: time.Hour})
	for range 8 {
		if leave, cause := r.enter(low); leave == nil {
			t.Fatalf("alone the lowest is refused: %s", cause)
		}
	}
	var asked Priorities
	asked[low], asked[high] = true, true
	refused, leave := r.gate.EnterRequest(r.now, asked)
	if leave == nil || refused[high].Cause != "" || refused[low].Cause != CausePriority {
		t.Fatalf("%+v", refused)
	}
	if s := r.gate.ReadState(); s.Inside != 9 {
		t.Errorf("%+v", s)
	}
	leave(r.now)
	if s := r.gate.ReadState(); s.Inside != 8 {
		t.Errorf("%+v", s)
	}
}

// BenchmarkGate measures what a request pays, beside others.
func BenchmarkGate(b *testing.B) {
	g := NewGate(GateConfig{Least: 1 << 10, Most: 1 << 20, Slow: time.Second}, time.Now())
	var asked Priorities
	asked[critical] = true
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			_, leave := g.EnterRequest(time.Now(), asked)
			leave(time.Now())
		}
	})
}
