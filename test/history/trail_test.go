package history_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"scribe/test/history"
)

// epoch is when the messages of these tests were persisted; the i-th i seconds later.
var epoch = time.UnixMicro(1_700_000_000_000_000)

// road is what a consumer is given: messages of two shards in turn, two under an LSN, one a second.
type road struct {
	h     *history.History
	steps []roadStep
}

type roadStep struct {
	delivered
	// gap, if set, is told instead.
	gap *roadGap
	// kept: a checkpoint is kept behind it. dies: the consumer dies behind it.
	kept, dies bool
}

type roadGap struct {
	shard, from, to uint64
	delivered       int
	reason          string
	told            time.Time
}

// newRoad writes twenty messages that are committed.
func newRoad() *road {
	r := &road{h: history.New()}
	r.h.Category("c", history.Guarantees{})
	for i := range 20 {
		m := writtenMessage("ann", i)
		r.h.Begin("c", 0, m).Acked(0, history.Committed)
		r.steps = append(r.steps, roadStep{delivered: delivered{
			payload: m.Payload, shard: uint64(1 + i%2), lsn: uint64(1 + i/4), index: i / 2 % 2, persisted: epoch.Add(time.Duration(i) * time.Second).UnixMicro(),
		}})
	}
	return r
}

// whole is all of it.
func (r *road) whole() *history.Reading {
	reading := r.h.Read("c")
	for _, d := range newRoad().steps {
		reading.Record(d.payload, d.logical, d.shard, d.lsn, d.index, d.persisted)
	}
	return reading
}

func (r *road) walk(t *history.Trail) *history.Trail {
	for _, s := range r.steps {
		if g := s.gap; g != nil {
			t.Gap(g.shard, g.from, g.to, g.delivered, g.reason, g.told)
		} else {
			t.Record(s.payload, s.logical, s.shard, s.lsn, s.index, s.persisted)
		}
		if s.kept {
			t.Keep()
		}
		if s.dies {
			t.Die()
		}
	}
	return t
}

// instead puts a gap where the i-th to the twelfth message are, but for those of the other shard.
func (r *road) instead(i int, g roadGap) {
	const j = 12
	var left []roadStep
	for _, s := range r.steps[i:j] {
		if s.shard != g.shard {
			left = append(left, s)
		}
	}
	r.steps = slices.Concat(r.steps[:i], []roadStep{{gap: &g}}, left, r.steps[j:])
}

// again lets the consumer die behind the i-th message and go on with the j-th.
func (r *road) again(i, j int) {
	rest := slices.Clone(r.steps[j:])
	r.steps = slices.Concat(r.steps[:i], rest)
	r.steps[i-1].dies = true
}

// TestTrails plants each violation, and wants just that found.
func TestTrails(t *testing.T) {
	at := func(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }
	for _, c := range []struct {
		name   string
		plant  func(r *road)
		window time.Duration
		late   time.Time
		missed int
		want   []history.Kind
	}{
		{name: "everything in order", plant: func(*road) {}},
		{name: "a death, and what was not kept comes again", plant: func(r *road) {
			r.steps[6].kept = true
			r.again(10, 7)
		}},
		{name: "a death in the middle of a payload", plant: func(r *road) {
			r.steps[4].kept, r.steps[4].dies = true, true
		}},
		{name: "what was kept comes again", plant: func(r *road) {
			r.steps[6].kept = true
			r.again(10, 6)
		}, want: []history.Kind{history.Repeated}},
		{name: "what was not kept does not come again", plant: func(r *road) {
			r.steps[5].kept, r.steps[9].dies = true, true
		}, want: []history.Kind{history.Skipped}},
		{name: "one comes twice", plant: func(r *road) { r.steps = slices.Insert(r.steps, 5, r.steps[4]) }, want: []history.Kind{history.Repeated}},
		{name: "one does not come", plant: func(r *road) { r.steps = slices.Delete(r.steps, 5, 6) }, want: []history.Kind{history.Skipped}},
		{name: "the first does not come", plant: func(r *road) { r.steps = r.steps[1:] }, want: []history.Kind{history.Skipped}},
		{name: "the last does not come", plant: func(r *road) { r.steps = r.steps[:19] }, want: []history.Kind{history.Skipped}},
		{name: "another message is there", plant: func(r *road) {
			r.steps[2].payload, r.steps[6].payload = r.steps[6].payload, r.steps[2].payload
		}, want: []history.Kind{history.Changed}},
		{name: "a byte is wrong", plant: func(r *road) {
			r.steps[2].payload = slices.Clone(r.steps[2].payload)
			r.steps[2].payload[20]++
		}, want: []history.Kind{history.WrongBytes, history.Changed}},
		{name: "out of order within the window", window: 3 * time.Second, plant: func(r *road) { apart(r, 4) }},
		{name: "out of order in a window that is too narrow", window: 2 * time.Second, plant: func(r *road) { apart(r, 4) }, want: []history.Kind{history.OutOfWindow}},
		{name: "out of order where the order is strict", plant: func(r *road) { apart(r, 2) }, want: []history.Kind{history.OutOfWindow}},
		{name: "out of order without a window", window: history.Unbounded, plant: func(r *road) { apart(r, 4) }},
		{name: "the same time, in another order of shards", plant: func(r *road) {
			r.steps[3].persisted = r.steps[4].persisted
		}, want: []history.Kind{history.OutOfWindow}},
		{name: "out of order over a death", window: time.Second, plant: func(r *road) {
			apart(r, 6)
			r.steps[8].kept, r.steps[8].dies = true, true
		}, want: []history.Kind{history.OutOfWindow}},
		{name: "a gap of what expired", plant: func(r *road) {
			r.instead(4, roadGap{1, 2, 4, 0, "trimmed", at(21)})
		}, missed: 4},
		{name: "a gap behind a part of a payload", plant: func(r *road) {
			r.instead(6, roadGap{1, 2, 4, 1, "trimmed", at(21)})
		}, missed: 3},
		{name: "a gap of what is owed", plant: func(r *road) {
			r.instead(4, roadGap{1, 2, 4, 0, "trimmed", at(19)})
		}, missed: 4, want: []history.Kind{history.Owed}},
		{name: "a gap with too many", plant: func(r *road) {
			r.instead(4, roadGap{1, 2, 5, 0, "trimmed", at(21)})
		}, missed: 4, want: []history.Kind{history.Repeated}},
		{name: "a gap with too few", plant: func(r *road) {
			r.instead(4, roadGap{1, 2, 3, 0, "trimmed", at(21)})
		}, missed: 2, want: []history.Kind{history.Skipped}},
		{name: "a gap that begins too early", plant: func(r *road) {
			r.instead(4, roadGap{1, 1, 4, 0, "trimmed", at(21)})
		}, missed: 4, want: []history.Kind{history.WrongGap}},
		{name: "a gap with other delivered messages", plant: func(r *road) {
			r.instead(6, roadGap{1, 2, 4, 0, "trimmed", at(21)})
		}, missed: 3, want: []history.Kind{history.WrongGap}},
		{name: "an empty gap", plant: func(r *road) {
			r.steps = slices.Insert(r.steps, 8, roadStep{gap: &roadGap{1, 3, 3, 0, "trimmed", at(21)}})
		}, want: []history.Kind{history.WrongGap}},
		{name: "a payload that is damaged", plant: func(r *road) {
			r.instead(4, roadGap{1, 2, 4, 0, "damaged", at(21)})
		}, missed: 4, want: []history.Kind{history.Unresolved}},
		{name: "a payload that expired before it was asked for", plant: func(r *road) {
			r.instead(4, roadGap{1, 2, 4, 0, "missing", at(21)})
		}, missed: 4},
		{name: "a payload that is gone before it expired", plant: func(r *road) {
			r.instead(4, roadGap{1, 2, 4, 0, "missing", at(19)})
		}, missed: 4, want: []history.Kind{history.Owed}},
		{name: "a beginning behind what expired", late: at(20), plant: func(r *road) { r.steps = r.steps[8:] }, missed: 8},
		{name: "a beginning behind what is owed", late: at(12), plant: func(r *road) { r.steps = r.steps[8:] }, missed: 8, want: []history.Kind{history.Owed}},
		{name: "a beginning in the middle", late: at(20), plant: func(r *road) { r.steps = slices.Delete(r.steps, 10, 11)[8:] }, missed: 8, want: []history.Kind{history.Skipped}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRoad()
			r.h.Retain("c", time.Hour, epoch)
			r.h.Retain("c", 10*time.Second, at(8)) // what came at 10 or before has expired at 20
			r.h.Retain("c", time.Hour, at(40))
			whole := r.whole()
			c.plant(r)
			trail := r.h.Follow("c", "eve", c.window)
			if !c.late.IsZero() {
				trail = r.h.FollowLate("c", "eve", c.window, c.late)
			}
			r.walk(trail)
			report := r.h.CheckTrail(trail, whole)
			for _, v := range report.Violations {
				if !slices.Contains(c.want, v.Kind) {
					t.Error(v)
				}
			}
			for _, kind := range c.want {
				if !slices.ContainsFunc(report.Violations, func(v *history.Violation) bool { return v.Kind == kind }) {
					t.Errorf("no violation of kind %q is found, but: %v", kind, report.Err())
				}
			}
			if report.Missed != c.missed {
				t.Errorf("%d messages are missed, want %d", report.Missed, c.missed)
			}
		})
	}
}

// apart lets those of the first shard among six messages come before those of the second: three seconds out of order.
func apart(r *road, i int) {
	slices.SortStableFunc(r.steps[i:i+6], func(a, b roadStep) int { return cmp.Compare(a.shard, b.shard) })
}

// TestRetentionOverTime: a message may be gone when it was expired at any moment before.
func TestRetentionOverTime(t *testing.T) {
	for _, c := range []struct {
		told  int // seconds
		wrong bool
	}{{14, true}, {20, false}, {29, false}, {60, false}} {
		r := newRoad()
		r.h.Retain("c", time.Hour, epoch)
		r.h.Retain("c", 10*time.Second, epoch.Add(8*time.Second))
		r.h.Retain("c", time.Hour, epoch.Add(21*time.Second)) // from 23 on it is known to everybody
		whole := r.whole()
		r.instead(4, roadGap{1, 2, 4, 0, "trimmed", epoch.Add(time.Duration(c.told) * time.Second)})
		report := r.h.CheckTrail(r.walk(r.h.Follow("c", "eve", 0)), whole)
		if (report.Err() != nil) != c.wrong {
			t.Errorf("told after %d s: %v", c.told, report.Err())
		}
	}
	// A change that is asked for is made a while later.
	for made, wrong := range map[time.Duration]bool{15 * time.Second: true, 19 * time.Second: false} {
		r := newRoad()
		r.h.Retain("c", 10*time.Second, epoch)
		r.h.Retain("c", time.Hour, epoch.Add(15*time.Second))
		r.h.Retained("c", epoch.Add(made))
		whole := r.whole()
		r.instead(4, roadGap{1, 2, 4, 0, "trimmed", epoch.Add(21 * time.Second)})
		if report := r.h.CheckTrail(r.walk(r.h.Follow("c", "eve", 0)), whole); (report.Err() != nil) != wrong {
			t.Errorf("made at %v: %v", made, report.Err())
		}
	}
	r := newRoad()
	whole := r.whole()
	r.instead(4, roadGap{1, 2, 4, 0, "trimmed", epoch.Add(time.Hour)})
	if err := r.h.CheckTrail(r.walk(r.h.Follow("c", "eve", 0)), whole).Err(); err == nil {
		t.Error("a gap in a category without retention is not found")
	}
	r = newRoad()
	r.instead(4, roadGap{1, 2, 4, 0, "missing", epoch.Add(time.Hour)})
	report := r.h.CheckTrail(r.walk(r.h.Follow("c", "eve", 0)), nil)
	if len(report.Violations) != 1 || report.Violations[0].Kind != history.Unresolved || !strings.Contains(report.Err().Error(), "invariant 8") {
		t.Errorf("a payload that is missing, in a category without retention: %v", report.Err())
	}
}

// TestAgree: trails of one order, one of which is behind; and another order.
func TestAgree(t *testing.T) {
	r := newRoad()
	long := r.walk(r.h.Follow("c", "long", 0))
	short := newRoad()
	short.steps = short.steps[:7]
	other := newRoad()
	other.steps[4], other.steps[5] = other.steps[5], other.steps[4]
	brief := short.walk(r.h.Follow("c", "short", 0))
	if err := r.h.Agree(brief, long, brief).Err(); err != nil {
		t.Error(err)
	}
	for _, trails := range [][]*history.Trail{
		{long, other.walk(r.h.Follow("c", "other", 0))}, {other.walk(r.h.Follow("c", "other", 0)), brief},
	} {
		if report := r.h.Agree(trails...); len(report.Violations) != 1 || report.Violations[0].Kind != history.Disagreement {
			t.Errorf("found: %v", report.Err())
		}
	}
}

// TestLate: who begins when a shard is empty need not meet it.
func TestLate(t *testing.T) {
	r := newRoad()
	r.h.Retain("c", 10*time.Second, epoch)
	whole := r.whole() // of 0 to 19
	for late, want := range map[time.Duration]bool{20 * time.Second: false, 35 * time.Second: true} {
		if got := r.h.Reaches(r.h.FollowLate("c", "eve", 0, epoch.Add(late)), whole); got != want {
			t.Errorf("who begins at %v without a message has everything: %v", late, got)
		}
	}
	slow := r.h.FollowLate("c", "eve", 0, epoch.Add(20*time.Second))
	slow.Begun(epoch.Add(35 * time.Second))
	if !r.h.Reaches(slow, whole) {
		t.Error("who took until 35 s to begin is asked for what had expired by then")
	}
	if r.h.Reaches(r.h.Follow("c", "ann", 0), whole) {
		t.Error("who began in time has everything without a message")
	}
}

// TestProgress: how far a trail is.
func TestProgress(t *testing.T) {
	r := newRoad()
	whole := r.whole()
	r.steps[6].kept = true
	full := r.steps
	r.steps = full[:10]
	trail := r.walk(r.h.Follow("c", "eve", 0))
	if n := r.h.CountMissing(trail, r.h.Now()); n != 10 || trail.Len() != 10 || r.h.Reaches(trail, whole) {
		t.Errorf("%d behind, %d there, at the end %v", n, trail.Len(), r.h.Reaches(trail, whole))
	}
	if err := r.h.CheckTrail(trail, trail.Until(whole)).Err(); err != nil {
		t.Errorf("the part that it has: %v", err)
	}
	trail.Die()
	if n := r.h.CountMissing(trail, r.h.Now()); n != 13 || trail.Lives() != 1 {
		t.Errorf("%d behind after a death", n)
	}
	r.steps = full[7:]
	r.walk(trail)
	if n := r.h.CountMissing(trail, r.h.Now()); n != 0 || !r.h.Reaches(trail, whole) {
		t.Errorf("%d behind in the end", n)
	}
	if got := r.h.Check(trail.Reading(), history.Committed); got.Err() != nil || got.Seen != 20 {
		t.Errorf("read as a whole: %+v, %v", got, got.Err())
	}
}
