package sequencer

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/cell/positions"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// TestSequences: what is there before and what comes while it runs, in many sources, of which some appear later.
func TestSequences(t *testing.T) {
	w := newWorld(t.Context(), t)
	defer w.close()
	w.writeAll(3, 20)
	registry := prometheus.NewRegistry()
	deps := w.deps("a", w.engine, &streams{w: w})
	deps.Registerer = registry
	s := w.start(eager(), deps)
	w.complete()
	var recs []sequenced.Record
	for range 10 {
		w.writeAll(9, 2)
		recs = w.complete()
	}
	// The log has a pointer before its sequencer has counted it.
	for deadline := time.Now().Add(patience); value(s.metrics.pointers) < float64(len(recs)) && time.Now().Before(deadline); {
		<-time.After(time.Millisecond)
	}
	// Without the newest positions, and with no more than is read again.
	st, err := w.engine.Tail(t.Context(), []record.ShardID{sequenced.Positions(testID)})
	if err != nil || st[0].FirstLSN == record.FirstLSN {
		t.Errorf("the log of positions is not trimmed: %+v, %v", st, err)
	}
	for name, want := range map[string]float64{"pointers_total": float64(len(recs)), "gaps_total": 0, "late_pointers_total": 0, "terms_total": 1, "categories": 1, "failing_categories": 0} {
		metrics, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range metrics {
			if f.GetName() == "scribe_sequencer_"+name {
				if got := f.GetMetric()[0].GetCounter().GetValue() + f.GetMetric()[0].GetGauge().GetValue(); got != want {
					t.Errorf("%s is %v, want %v", name, got, want)
				}
			}
		}
	}
	w.stop(s)
	w.stop(s)
	if left, err := registry.Gather(); err != nil || len(left) != 0 {
		t.Errorf("%d metrics are left (%v)", len(left), err)
	}
}

// TestFailover: a sequencer crashes at each of its steps, before the step is carried out and after, and another one goes on. Nothing is
// sequenced twice, and nothing is passed over.
func TestFailover(t *testing.T) {
	for _, kind := range []string{"open", "tail", "read", "append", "trim"} {
		for _, after := range []bool{false, true} {
			for n := 1; n <= 3; n++ {
				t.Run(fmt.Sprintf("%s %d, carried out %v", kind, n, after), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t.Context(), t)
					defer w.close()
					w.writeAll(3, 12)
					cfg := eager()
					cfg.AppendRecords, cfg.Pointers, cfg.ChangeBytes = 3, 7, 1
					// Someone was there before, so that there are positions to read.
					before := w.start(cfg, w.deps("before", w.engine, &streams{w: w}))
					w.complete()
					w.stop(before)
					w.writeAll(4, 12)
					log := newCrashing(w.engine, kind, n, after)
					s := w.start(cfg, w.deps("a", log, &streams{w: w}))
					select {
					case <-log.crashed:
						w.stop(s)
					case <-time.After(100 * time.Millisecond): // some steps are made once
						w.stop(s)
					}
					w.log()
					next := w.start(cfg, w.deps("b", w.engine, &streams{w: w}))
					w.complete()
					w.stop(next)
				})
			}
		}
	}
}

// TestTroubles: calls of the engine fail once, some with their effect, while one sequencer lives through it.
func TestTroubles(t *testing.T) {
	w := newWorld(t.Context(), t)
	defer w.close()
	w.writeAll(2, 5)
	random := rand.New(rand.NewPCG(1, 2))
	log := &moody{Log: w.engine, random: random}
	src := &streams{w: w, fault: func() error {
		if log.chance(8) {
			return errStreamFault
		}
		return nil
	}}
	cfg := eager()
	cfg.AppendRecords = 2
	s := w.start(cfg, w.deps("a", log, src))
	failures := func(step string) float64 { return value(s.metrics.failures.WithLabelValues(step)) }
	for deadline := time.Now().Add(patience); failures(stepOpen) < 3 || failures(stepAppend) < 3 || failures(stepStream) < 3; {
		w.writeAll(5, 1)
		w.log()
		if time.Now().After(deadline) {
			t.Fatal("nothing fails")
		}
	}
	log.calm.Store(true)
	w.complete()
	w.stop(s)
}

// TestEvicted: a stream that ends in good order is opened again, by the same term.
func TestEvicted(t *testing.T) {
	w := newWorld(t.Context(), t)
	defer w.close()
	var said atomic.Int64
	src := &streams{w: w}
	ending := streamsFunc(func(ctx ctxType, recv recvType, send sendType) error {
		n := 0
		err := src.Stream(ctx, recv, func(r *scribev1.StreamResponse) error {
			if err := send(r); err != nil {
				return err
			}
			said.Add(1)
			if n++; n == 5 {
				_ = send(&scribev1.StreamResponse{Step: &scribev1.StreamResponse_Evicted{Evicted: &scribev1.StreamEvicted{}}})
				return errEnd
			}
			return nil
		})
		if err == errEnd { //nolint:errorlint // it is our own
			return nil
		}
		return err
	})
	s := w.start(eager(), w.deps("a", w.engine, ending))
	for range 10 {
		w.writeAll(3, 5)
		w.complete()
	}
	w.stop(s)
	if src.mu.opened < 3 || value(s.metrics.terms) != 1 {
		t.Errorf("%d streams in %v terms", src.mu.opened, value(s.metrics.terms))
	}
}

// TestTwoAtOnce: two that both believe to be the one. Their records never mix, and both get on.
func TestTwoAtOnce(t *testing.T) {
	w := newWorld(t.Context(), t)
	defer w.close()
	w.writeAll(3, 10)
	cfg := eager()
	cfg.AppendRecords = 2
	a := w.start(cfg, w.deps("a", w.engine, &streams{w: w}))
	b := w.start(cfg, w.deps("b", w.engine, &streams{w: w}))
	fenced := func(s *Sequencer) float64 { return value(s.metrics.fenced) }
	for deadline := time.Now().Add(patience); fenced(a) < 3 || fenced(b) < 3; {
		w.writeAll(4, 2)
		w.log()
		if time.Now().After(deadline) {
			t.Fatalf("fenced %v and %v times", fenced(a), fenced(b))
		}
	}
	w.complete()
	w.stop(a)
	w.writeAll(3, 5)
	w.complete()
	w.stop(b)
}

// TestFencedWhileItAppends: one that is paused between its look and its append, for as long as another one takes to do all of it, changes
// nothing.
func TestFencedWhileItAppends(t *testing.T) {
	w := newWorld(t.Context(), t)
	defer w.close()
	w.writeAll(2, 10)
	paused := &pausing{Log: w.engine, reached: make(chan struct{}), goOn: make(chan struct{})}
	members := atomic.Pointer[[]string]{}
	members.Store(&[]string{"a"})
	deps := w.deps("a", paused, &streams{w: w})
	deps.Members = func() []string { return *members.Load() }
	a := w.start(eager(), deps)
	<-paused.reached
	b := w.start(eager(), w.deps("b", w.engine, &streams{w: w}))
	before := len(w.complete())
	members.Store(&[]string{"b"})
	close(paused.goOn)
	for deadline := time.Now().Add(patience); a.readStatus().categories > 0; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the category is not given up")
		}
	}
	if after := len(w.complete()); after != before {
		t.Errorf("%d records, %d before", after, before)
	}
	w.stop(a)
	w.stop(b)
}

// TestCatchUp: a backlog of many times what may be under way is sequenced in parts, by one that is replaced in the middle, while more comes.
func TestCatchUp(t *testing.T) {
	w := newWorld(t.Context(), t)
	defer w.close()
	w.writeAll(5, 100)
	cfg := eager()
	cfg.Pointers, cfg.AppendRecords = 16, 5
	for _, appends := range []int{1, 2, 9} { // less than one window of credits, and more than one
		log := newCrashing(w.engine, "append", appends+1, false)
		s := w.start(cfg, w.deps("a", log, &streams{w: w}))
		<-log.crashed
		w.stop(s)
		if n := len(w.log()); n == 0 || n >= 500 {
			t.Fatalf("%d records", n)
		}
		w.writeAll(5, 1)
	}
	s := w.start(cfg, w.deps("b", w.engine, &streams{w: w}))
	w.complete()
	w.stop(s)
}

// TestGaps: what retention took before it was sequenced is a gap, at one place for all.
func TestGaps(t *testing.T) {
	w := newWorld(t.Context(), t)
	defer w.close()
	w.writeAll(3, 10)
	trim := func(shard record.ShardID, to record.LSN) {
		t.Helper()
		if err := w.engine.Trim(t.Context(), shard, to); err != nil {
			t.Fatal(err)
		}
	}
	trim(sourceID(0, 1), 5) // before anybody knows of it
	s := w.start(eager(), w.deps("a", w.engine, &streams{w: w}))
	w.complete()
	w.stop(s)
	w.writeAll(3, 10)
	trim(sourceID(0, 2), 15) // known up to 10
	s = w.start(eager(), w.deps("a", w.engine, &streams{w: w}))
	recs := w.complete()
	w.stop(s)
	var gaps []string
	for i := range recs {
		if r := &recs[i]; r.Kind == sequenced.KindGap {
			gaps = append(gaps, fmt.Sprintf("%v %d-%d %d", r.Source, r.LSN, r.To, r.Cause))
		}
	}
	if got, want := strings.Join(gaps, ", "), "7/0/1 1-5 1, 7/0/2 11-15 1"; got != want {
		t.Errorf("gaps are %q, want %q", got, want)
	}
}

// TestTakesOver: the members share the categories, and those of one that leaves go to the others.
func TestTakesOver(t *testing.T) {
	w := newWorld(t.Context(), t)
	defer w.close()
	for id := uint32(100); id < 160; id++ {
		w.cats.put(&scribev1.Category{Id: id, Name: fmt.Sprint("c", id), Repeatable: scribev1.Repeatability_REPEATABILITY_SEQUENCED})
		w.cats.put(&scribev1.Category{Id: id + 1000, Name: fmt.Sprint("d", id), Repeatable: scribev1.Repeatability_REPEATABILITY_BOUND})
	}
	var mu sync.Mutex
	members := []string{"c", "a", "b"}
	list := func() []string { mu.Lock(); defer mu.Unlock(); return members }
	var all []*Sequencer
	nothing := streamsFunc(func(ctx ctxType, _ recvType, _ sendType) error { <-ctx.Done(); return ctx.Err() })
	for _, id := range []string{"a", "b", "c"} {
		deps := w.deps(id, w.engine, nothing)
		deps.Members = list
		cfg := eager()
		all = append(all, w.start(cfg, deps))
	}
	wait := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(patience); !ok(); <-time.After(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d, %d, %d", what, all[0].readStatus().categories, all[1].readStatus().categories, all[2].readStatus().categories)
			}
		}
	}
	wait("all are there", func() bool {
		sum := 0
		for _, s := range all {
			n := s.readStatus().categories
			if n < 5 {
				return false
			}
			sum += n
		}
		return sum == 61
	})
	mu.Lock()
	members = []string{"a", "b"}
	mu.Unlock()
	wait("c is not", func() bool {
		return all[0].readStatus().categories+all[1].readStatus().categories == 61 && all[2].readStatus().categories == 0
	})
	w.cats.remove(100)
	wait("one was deleted", func() bool { return all[0].readStatus().categories+all[1].readStatus().categories == 60 })
	for _, s := range all {
		w.stop(s)
	}
}

// TestTooMany: what is over the limit is counted, and not begun.
func TestTooMany(t *testing.T) {
	w := newWorld(t.Context(), t)
	defer w.close()
	for id := range uint32(5) {
		w.cats.put(&scribev1.Category{Id: id + 1, Name: fmt.Sprint(id), Repeatable: scribev1.Repeatability_REPEATABILITY_SEQUENCED})
	}
	cfg := eager()
	cfg.MaxCategories = 4
	nothing := streamsFunc(func(ctx ctxType, _ recvType, _ sendType) error { <-ctx.Done(); return ctx.Err() })
	s := w.start(cfg, w.deps("a", w.engine, nothing))
	for deadline := time.Now().Add(patience); s.readStatus().categories != 4 || value(s.metrics.refused) != 2; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%+v, %v refused", s.readStatus(), value(s.metrics.refused))
		}
	}
	w.stop(s)
}

func TestChosen(t *testing.T) {
	members := []string{"a", "b", "c", "d"}
	counts := map[string]int{}
	for id := range uint32(4000) {
		m := chooseMember(id, members)
		counts[m]++
		if again := chooseMember(id, []string{"d", "c", "b", "a"}); again != m {
			t.Fatalf("category %d is %s's or %s's", id, m, again)
		}
		if m != "d" && chooseMember(id, members[:3]) != m {
			t.Fatalf("category %d moves when another one leaves", id)
		}
	}
	for m, n := range counts {
		if n < 800 || n > 1200 {
			t.Errorf("%s has %d of 4000", m, n)
		}
	}
	if chooseMember(1, nil) != "" {
		t.Error("nobody is somebody")
	}
}

// TestLostMetadata: logs that do not belong together are not gone on with.
func TestLostMetadata(t *testing.T) {
	w := newWorld(t.Context(), t)
	defer w.close()
	w.writeAll(1, 3)
	s := w.start(eager(), w.deps("a", w.engine, &streams{w: w}))
	w.complete()
	w.stop(s)
	st, err := positions.Read(t.Context(), w.engine, testID)
	if err != nil {
		t.Fatal(err)
	}
	st.Next += 5
	shard := sequenced.Positions(testID)
	states, err := w.engine.Open(t.Context(), "somebody", []record.ShardID{shard})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.engine.Append(t.Context(), &metalog.Append{Shards: []metalog.ShardAppend{{Shard: shard, Epoch: states[0].Epoch, Records: st.Whole()}}}); err != nil {
		t.Fatal(err)
	}
	s = w.start(eager(), w.deps("a", w.engine, &streams{w: w}))
	for deadline := time.Now().Add(patience); value(s.metrics.failures.WithLabelValues(stepOpen)) < 2; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing failed")
		}
	}
	if s.readStatus().failing != 1 {
		t.Errorf("%+v", s.readStatus())
	}
	w.stop(s)
}

func TestConfig(t *testing.T) {
	cfg := DefaultConfig()
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
	cfg = Config{Contest: -1}
	err := cfg.Validate()
	for _, name := range []string{
		"Interval", "MaxCategories", "Starts", "Pointers", "AppendRecords", "ChangeBytes", "Heartbeat", "OpenTimeout", "AppendTimeout", "MinBackoff", "MaxBackoff", "Contest",
	} {
		if err == nil || !strings.Contains(err.Error(), name+": ") && name != "MaxBackoff" {
			t.Errorf("%s is not named: %v", name, err)
		}
	}
	_, err = New(DefaultConfig(), Deps{})
	for _, name := range []string{"Log", "Streams", "Categories", "Members", "ID"} {
		if err == nil || !strings.Contains(err.Error(), "Deps."+name) {
			t.Errorf("%s is not named: %v", name, err)
		}
	}
}
