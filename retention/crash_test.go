package retention

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"scribe/internal/testkit/testsize"
	"scribe/storage/metalog"
)

// script is what happens in a cell while its collector is killed: everything that a keeper does is in it.
func script(w *world, at int) {
	id := func(n uint32) uint32 { return w.cell.live()[n] }
	switch at {
	case 0:
		for _, d := range []time.Duration{time.Hour, 3 * time.Hour, 24 * time.Hour, 24 * time.Hour} {
			w.cell.create(d, w.clock.Now())
		}
		w.write(1, 4, id(0), id(1))
		w.put(2, 4, id(1))
		w.write(1, 24, id(2), id(3))
		w.write(6, 24, id(2))
	case 4:
		w.write(1, 1, id(0))
		w.put(3, 24, id(2))
	case 8:
		w.cell.drop(id(2))
		w.cell.retain(id(1), time.Hour)
	case 12:
		w.write(4, 24, id(2))
		w.put(5, 1, id(0))
	}
}

// killedAt runs the script and kills the keeper at the n-th step that changes something, with its answer lost or
// the call not carried out; then another one goes on. It reports whether it came to that step.
func killedAt(t *testing.T, n int, after bool) (killed bool) {
	t.Helper()
	w := newWorld(t.Context(), t, nil)
	defer w.close()
	w.cfg.SweepInterval = 24 * time.Hour
	deps, f := kill(w.deps("one"), n, after)
	l, err := w.lead(deps)
	defer func() { l.close() }()
	for at := range 16 {
		script(w, at)
		w.clock.Advance(30 * time.Minute)
		if err == nil {
			err = l.pass()
		}
		if err != nil && !errors.Is(err, errKilled) {
			t.Fatalf("step %d: %v", n, err)
		}
		if err != nil {
			killed = true
			l.close()
			l, err = w.mustLead("two"), nil
			f.left.Store(1 << 60)
		}
		w.resolves()
	}
	if !killed {
		l.close()
		l = w.mustLead("two")
	}
	l.run(2*time.Hour, 30*time.Minute)
	w.resolves()
	w.clean()
	if w.cell.waiting() != 0 {
		t.Fatalf("step %d: a deleted category was not forgotten", n)
	}
	l.run(30*time.Hour, 6*time.Hour)
	if keys := w.keys(); len(keys) != 0 {
		t.Fatalf("step %d: left in the end: %v", n, keys)
	}
	return killed
}

// TestKilledAtEveryStep: whatever a keeper was doing, the next one finishes it, and nothing owed is lost. With -short at some steps.
func TestKilledAtEveryStep(t *testing.T) {
	stride := testsize.Test(1, 7, 29)
	for _, after := range []bool{false, true} {
		steps := 0
		for killedAt(t, steps, after) {
			steps += stride
		}
		if steps < 40 {
			t.Errorf("only %d steps", steps)
		}
		t.Logf("%d steps", steps)
	}
}

// TestSimulation: writers that are fast, stalled and killed, categories that come, change and go, readers' pins, and keepers that are killed,
// paused for hours and replaced, in any order. At every moment each pointer resolves and what is owed can be read; in the end nothing is
// left that nobody needs.
func TestSimulation(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t.Context(), rt, nil)
		defer w.close()
		s := &simulation{world: w, owed: map[string]owed{}}
		defer func() {
			for _, l := range s.leaders {
				l.close()
			}
		}()
		for range 3 {
			s.create(rt)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"":        func(*rapid.T) { w.resolves(); s.readable() },
			"create":  s.create,
			"drop":    s.drop,
			"retain":  s.retain,
			"pin":     s.pin,
			"write":   s.write,
			"stall":   s.stall,
			"resume":  s.resume,
			"time":    s.time,
			"collect": s.collect,
			"again":   s.collect,
			"replace": s.replace,
			"kill":    s.kill,
			"paused":  s.paused,
		})
		s.end()
	})
}

// owed is a message that was committed, in the eyes of who wrote it.
type owed struct {
	blob     string
	category uint32
	written  int64
}

type simulation struct {
	*world
	stalled []*draft
	// leaders are keepers, the last of which has the lease; the others do not know that they lost it, or were killed.
	leaders []*leader
	owed    map[string]owed
}

func (s *simulation) any(rt *rapid.T) (uint32, bool) {
	ids := s.cell.live()
	if len(ids) == 0 {
		return 0, false
	}
	return rapid.SampledFrom(ids).Draw(rt, "category"), true
}

var anyRetention = rapid.SampledFrom([]time.Duration{time.Minute, time.Hour, 90 * time.Minute, 3 * time.Hour, 9 * time.Hour})

func (s *simulation) create(rt *rapid.T) {
	if len(s.cell.live()) < 6 {
		s.cell.create(anyRetention.Draw(rt, "retention"), s.clock.Now())
	}
}

func (s *simulation) drop(rt *rapid.T) {
	if id, ok := s.any(rt); ok && rapid.IntRange(0, 2).Draw(rt, "seldom") == 0 {
		s.cell.drop(id)
		s.forget(func(o owed) bool { return o.category == id })
	}
}

// retain changes a retention. What expires by it is not owed any more, also if it is raised again later.
func (s *simulation) retain(rt *rapid.T) {
	s.expire()
	if id, ok := s.any(rt); ok {
		s.cell.retain(id, anyRetention.Draw(rt, "retention"))
	}
	s.expire()
}

func (s *simulation) pin(rt *rapid.T) {
	if id, ok := s.any(rt); ok {
		s.cell.pin(id, rapid.SampledFrom([]int64{0, s.clock.Now() - classLength(1), s.clock.Now() - classLength(5)}).Draw(rt, "from"))
	}
}

func (s *simulation) draft(rt *rapid.T) *draft {
	var cats []uint32
	for range rapid.IntRange(1, 3).Draw(rt, "payloads") {
		if id, ok := s.any(rt); ok && (len(cats) == 0 || id != cats[0]) && (len(cats) < 2 || id != cats[1]) {
			cats = append(cats, id)
		}
	}
	if len(cats) == 0 {
		return nil
	}
	class := rapid.SampledFrom([]uint32{1, 4, 12}).Draw(rt, "class")
	// Writers with drafts of their own: an append of one never makes that of another fail.
	return s.put(uint16(1+rapid.IntRange(0, 3).Draw(rt, "writer")), class, cats...)
}

func (s *simulation) write(rt *rapid.T) {
	if d := s.draft(rt); d != nil {
		s.try(d)
	}
}

func (s *simulation) stall(rt *rapid.T) {
	if d := s.draft(rt); d != nil && len(s.stalled) < 5 {
		s.stalled = append(s.stalled, d)
	}
}

func (s *simulation) resume(*rapid.T) {
	if len(s.stalled) > 0 {
		s.try(s.stalled[0])
		s.stalled = s.stalled[1:]
	}
}

// try commits a draft, which may be refused for good reasons.
func (s *simulation) try(d *draft) {
	err := s.commit(d)
	switch {
	case err == nil:
		for _, a := range d.append.Shards {
			s.owed[d.key+a.Shard.String()] = owed{d.key, a.Shard.Category(), s.clock.Now()}
		}
		s.resolves()
	case errors.Is(err, metalog.ErrStaleBlob), errors.Is(err, metalog.ErrConflict), errors.Is(err, metalog.ErrSealed), errors.Is(err, metalog.ErrFenced):
	default:
		s.Fatalf("append: %v", err)
	}
}

func (s *simulation) time(rt *rapid.T) {
	s.clock.Advance(time.Duration(rapid.Int64Range(0, int64(100*time.Minute)).Draw(rt, "by")))
	s.expire()
}

func (s *simulation) leader() *leader {
	if len(s.leaders) == 0 {
		s.leaders = append(s.leaders, s.mustLead("one"))
	}
	return s.leaders[len(s.leaders)-1]
}

func (s *simulation) collect(*rapid.T) {
	if err := s.leader().pass(); err != nil {
		s.Fatalf("pass: %v", err)
	}
}

// replace has another keeper take over.
func (s *simulation) replace(*rapid.T) {
	s.leaders = append(s.leaders, s.mustLead("two"))
}

// kill kills the keeper in the middle of a pass.
func (s *simulation) kill(rt *rapid.T) {
	deps, _ := kill(s.deps("three"), rapid.IntRange(0, 40).Draw(rt, "step"), rapid.Bool().Draw(rt, "after"))
	l, err := s.lead(deps)
	if err == nil {
		err = l.pass()
		l.close()
	}
	if err != nil && !errors.Is(err, errKilled) {
		s.Fatalf("a keeper that is killed: %v", err)
	}
	s.replace(rt)
}

// paused lets a keeper that lost the lease go on with what it was doing.
func (s *simulation) paused(rt *rapid.T) {
	if len(s.leaders) < 2 {
		return
	}
	l := s.leaders[rapid.IntRange(0, len(s.leaders)-2).Draw(rt, "which")]
	if err := l.pass(); !errors.Is(err, errLost) {
		s.Fatalf("a keeper that lost the lease saved its state: %v", err)
	}
}

// expire drops what is not owed any more, and does so before retention is changed.
func (s *simulation) expire() {
	now := s.clock.Now()
	s.forget(func(o owed) bool { return o.written < now-s.cell.retention(o.category).Microseconds() })
}

func (s *simulation) forget(which func(owed) bool) {
	for key, o := range s.owed {
		if which(o) {
			delete(s.owed, key)
		}
	}
}

// readable checks that pointers to all that is owed are there.
func (s *simulation) readable() {
	s.expire()
	referred := s.referred()
	for _, o := range s.owed {
		if !referred[o.blob] {
			s.Fatalf("%s of category %d, %v old with a retention of %v, can't be read", o.blob, o.category,
				time.Duration(s.clock.Now()-o.written)*time.Microsecond, s.cell.retention(o.category))
		}
	}
}

// end lets everything expire.
func (s *simulation) end() {
	l := s.leader()
	l.run(48*time.Hour, time.Hour)
	s.resolves()
	s.clean()
	if keys := s.keys(); len(keys) != 0 {
		s.Fatalf("left: %v", keys)
	}
	if s.cell.waiting() != 0 {
		s.Fatalf("%d deleted categories are left", s.cell.waiting())
	}
}
