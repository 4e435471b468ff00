package retention

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"scribe/internal/cell/positions"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	"scribe/internal/testkit/testsize"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob/memory"
	"scribe/storage/metalog"
)

// createSequenced creates a category that is sequenced.
func (c *cell) createSequenced(retention time.Duration, now int64) uint32 {
	id := c.create(retention, now)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cats[id].Repeatable = scribev1.Repeatability_REPEATABILITY_SEQUENCED
	return id
}

// orderer is a sequencer in the hands of a test.
type orderer struct {
	w      *world
	id     uint32
	epochs [2]uint64
	next   record.LSN // of the positions
	state  *sequenced.State
	open   bool
	// inHand is an append that was prepared and not made.
	inHand *metalog.Append
	after  *sequenced.State
}

// take opens the logs, as a sequencer does before anything else.
func (o *orderer) take() {
	o.w.Helper()
	states, err := o.w.log.Open(o.w.ctx, "sequencer", []record.ShardID{sequenced.Log(o.id), sequenced.Positions(o.id)})
	if err != nil {
		o.w.Fatalf("open: %v", err)
	}
	o.epochs, o.next = [2]uint64{states[0].Epoch, states[1].Epoch}, states[1].NextLSN
	if o.state, err = positions.Read(o.w.ctx, o.w.log, o.id); err != nil {
		o.w.Fatalf("positions: %v", err)
	}
	o.open, o.inHand = true, nil
}

// prepare reads up to n records of the sources, in order, and makes an append of them.
func (o *orderer) prepare(n int) {
	o.w.Helper()
	if !o.open {
		o.take()
	}
	states, err := o.w.log.Shards(o.w.ctx, o.id)
	if err != nil {
		o.w.Fatalf("shards: %v", err)
	}
	type found struct {
		shard record.ShardID
		metalog.Entry
	}
	var all []found
	var recs []sequenced.Record
	after := sequenced.NewState()
	after.Next, after.Offset, after.Horizon = o.state.Next, o.state.Offset, o.state.Horizon
	maps.Copy(after.At, o.state.At)
	add := func(r sequenced.Record) {
		r.Horizon = max(after.Horizon, r.Time)
		recs = append(recs, r)
		after.At[r.Source], after.Horizon = r.Next(), r.Horizon
		after.Next++
	}
	for _, st := range states {
		if sequenced.Reserved(st.Shard) {
			continue
		}
		if at := o.state.Position(st.Shard); at < st.FirstLSN {
			add(sequenced.Record{Kind: sequenced.KindGap, Source: st.Shard, LSN: at, To: st.FirstLSN, Cause: sequenced.CauseTrimmed})
		}
		entries, err := o.w.log.Read(o.w.ctx, st.Shard, max(o.state.Position(st.Shard), st.FirstLSN), 0, 0)
		if err != nil {
			o.w.Fatalf("read: %v", err)
		}
		for _, e := range entries {
			all = append(all, found{st.Shard, e})
		}
	}
	slices.SortFunc(all, func(a, b found) int {
		return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(a.shard, b.shard), cmp.Compare(a.LSN, b.LSN))
	})
	for _, f := range all[:min(n, len(all))] {
		add(sequenced.Record{Kind: sequenced.KindPointer, Source: f.shard, LSN: f.LSN, Time: f.Time, Pointer: f.Data})
	}
	if len(recs) == 0 {
		return
	}
	a := &metalog.Append{Shards: []metalog.ShardAppend{
		{Shard: sequenced.Log(o.id), Epoch: o.epochs[0], ExpectLSN: o.state.Next}, {Shard: sequenced.Positions(o.id), Epoch: o.epochs[1], ExpectLSN: o.next, Records: after.Whole()},
	}}
	for i := range recs {
		a.Shards[0].Records = append(a.Shards[0].Records, sequenced.Append(nil, &recs[i]))
	}
	o.inHand, o.after = a, after
}

// commit makes the append in hand. Who was fenced opens the logs the next time.
func (o *orderer) commit() error {
	o.w.Helper()
	if o.inHand == nil {
		return nil
	}
	_, err := o.w.log.Append(o.w.ctx, o.inHand)
	switch {
	case errors.Is(err, metalog.ErrFenced):
		o.open = false
	case err != nil:
		o.w.Fatalf("append: %v", err)
	default:
		o.state, o.next = o.after, o.next+record.LSN(len(o.inHand.Shards[1].Records))
	}
	o.inHand = nil
	return err
}

func (o *orderer) sequence(n int) {
	o.w.Helper()
	o.prepare(n)
	if err := o.commit(); err != nil {
		o.prepare(n)
		if err := o.commit(); err != nil {
			o.w.Fatalf("append: %v", err)
		}
	}
}

// rests checks that each record of the sequenced log was copied from one that is there: blobs are kept for that one.
func (o *orderer) rests() {
	o.w.Helper()
	first := map[record.ShardID]record.LSN{}
	states, err := o.w.log.Shards(o.w.ctx, o.id)
	if err != nil {
		o.w.Fatalf("shards: %v", err)
	}
	for _, st := range states {
		first[st.Shard] = st.FirstLSN
	}
	for _, rec := range o.log() {
		if rec.Kind == sequenced.KindPointer && rec.LSN < first[rec.Source] {
			o.w.Fatalf("the pointer of LSN %d of %v is in the sequenced log, and trimmed where it was (%d)", rec.LSN, rec.Source, first[rec.Source])
		}
	}
}

func (o *orderer) log() (out []sequenced.Record) {
	o.w.Helper()
	states, err := o.w.log.Tail(o.w.ctx, []record.ShardID{sequenced.Log(o.id)})
	if err != nil {
		o.w.Fatalf("tail: %v", err)
	}
	for lsn := states[0].FirstLSN; lsn < states[0].NextLSN; lsn++ {
		entries, err := o.w.log.Read(o.w.ctx, states[0].Shard, lsn, 1, 0)
		if err != nil {
			o.w.Fatalf("read: %v", err)
		}
		rec, err := sequenced.Decode(o.id, entries[0].Data)
		if err != nil {
			o.w.Fatalf("decode: %v", err)
		}
		out = append(out, rec)
	}
	return out
}

// TestSequencedLogIsTrimmed: the sequenced log loses what expired where it was written, however late it was sequenced, before its source does;
// what stays has its blobs; and the positions stay when all else is gone.
func TestSequencedLogIsTrimmed(t *testing.T) {
	w := testWorld(t)
	id := w.cell.createSequenced(2*time.Hour, w.clock.Now())
	l := w.mustLead("one")
	defer l.close()
	o := &orderer{w: w, id: id}
	for i := range 24 {
		w.write(uint16(1+i%3), 2, id)
		if i%5 == 4 {
			o.sequence(100)
		}
		l.run(10*time.Minute, 10*time.Minute)
		o.rests()
		w.resolves()
		if i == 23 {
			o.sequence(100)
		}
	}
	if n := len(o.log()); n < 11 || n > 14 {
		t.Errorf("%d records are left of two hours with one every ten minutes", n)
	}
	l.run(4*time.Hour, 10*time.Minute)
	if n, keys := len(o.log()), w.keys(); n != 0 || len(keys) != 0 {
		t.Errorf("%d records and blobs %v are left", n, keys)
	}
	o.take()
	if o.state.Offset != 0 || o.state.Next != 25 || len(o.state.At) != 3 {
		t.Errorf("positions %+v", o.state)
	}
	w.write(1, 2, id)
	o.sequence(100)
	if recs := o.log(); len(recs) != 1 || recs[0].LSN != 9 {
		t.Errorf("%+v", recs)
	}
	w.cell.drop(id)
	l.run(time.Hour, 10*time.Minute)
	if states, err := w.log.Shards(w.ctx, id); err != nil || len(states) != 0 {
		t.Errorf("of the deleted category there is left %v (%v)", states, err)
	}
}

// TestUnsequencedIsHeld: what is not sequenced stays beyond its time, up to the limit. Then it goes, what a sequencer had in its hands is refused,
// and the next one finds the gap.
func TestUnsequencedIsHeld(t *testing.T) {
	w := testWorld(t)
	w.cfg.PinLimit, w.cfg.Linger = time.Hour, 0
	id := w.cell.createSequenced(2*time.Hour, w.clock.Now())
	l := w.mustLead("one")
	defer l.close()
	o := &orderer{w: w, id: id}
	w.write(1, 2, id)
	o.sequence(1)
	w.write(1, 2, id)
	w.write(2, 2, id)
	o.prepare(1)
	l.run(150*time.Minute, 10*time.Minute)
	o.rests()
	if states, err := w.log.Shards(w.ctx, id); err != nil || states[0].FirstLSN != 2 || states[1].FirstLSN != 1 {
		t.Fatalf("after two and a half hours: %+v, %v", states, err)
	}
	if n := len(w.keys()); n != 2 {
		t.Fatalf("%d blobs, want those that are not sequenced", n)
	}
	l.run(time.Hour, 10*time.Minute)
	if n := len(w.keys()); n != 0 {
		t.Fatalf("%d blobs are left after three and a half hours", n)
	}
	epoch := func() uint64 {
		t.Helper()
		states, err := w.log.Tail(w.ctx, []record.ShardID{sequenced.Log(id)})
		if err != nil {
			t.Fatal(err)
		}
		return states[0].Epoch
	}
	before := epoch()
	w.write(1, 2, id)
	l.run(150*time.Minute, 10*time.Minute) // held for half an hour, so it is looked at each time
	if after := epoch(); after != before {
		t.Errorf("the logs were opened again without need: epoch %d, %d before", after, before)
	}
	if err := o.commit(); !errors.Is(err, metalog.ErrFenced) {
		t.Errorf("what was trimmed is appended: %v", err)
	}
	o.sequence(10)
	recs := o.log()
	if len(recs) != 3 || recs[0].Kind != sequenced.KindGap || recs[1].Kind != sequenced.KindGap || recs[2].LSN != 3 {
		t.Errorf("%+v", recs)
	}
	w.resolves()
}

// hooked is an engine that tells of trims that it has carried out.
type hooked struct {
	Log
	trimmed func(record.ShardID)
}

func (h hooked) Trim(ctx context.Context, shard record.ShardID, before record.LSN) error {
	err := h.Log.Trim(ctx, shard, before)
	h.trimmed(shard)
	return err
}

// TestOvertakenInTheMiddle: a sequencer appends just what is being trimmed, between the trimming and the fence. It does not stay.
func TestOvertakenInTheMiddle(t *testing.T) {
	w := testWorld(t)
	w.cfg.PinLimit, w.cfg.Linger = time.Hour, 0
	id := w.cell.createSequenced(2*time.Hour, w.clock.Now())
	o := &orderer{w: w, id: id}
	w.write(1, 2, id)
	o.sequence(1)
	w.write(1, 2, id)
	o.prepare(1)
	appended := 0
	deps := w.deps("one")
	deps.Log = hooked{deps.Log, func(shard record.ShardID) {
		if states, err := w.log.Tail(w.ctx, []record.ShardID{shard}); err != nil || sequenced.Reserved(shard) || states[0].FirstLSN < 3 || appended > 0 {
			return
		}
		appended++
		if err := o.commit(); err != nil {
			t.Errorf("append: %v", err)
		}
	}}
	w.clock.Advance(200 * time.Minute)
	l, err := w.lead(deps)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	if _, err := l.logs.runRound(w.ctx); err != nil || appended != 1 {
		t.Fatalf("%d appends, %v", appended, err)
	}
	o.rests()
	if n := len(o.log()); n != 0 {
		t.Errorf("%d records are left", n)
	}
}

// TestUnsequencedFromTheStart: a category that no sequencer was ever there for is trimmed as well, when it must be.
func TestUnsequencedFromTheStart(t *testing.T) {
	w := testWorld(t)
	w.cfg.PinLimit = 30 * time.Minute
	id := w.cell.createSequenced(time.Hour, w.clock.Now())
	l := w.mustLead("one")
	defer l.close()
	w.write(1, 1, id)
	l.run(80*time.Minute, 10*time.Minute)
	if n := len(w.referred()); n != 1 {
		t.Fatalf("%d pointers after 80 minutes", n)
	}
	l.run(40*time.Minute, 10*time.Minute)
	if n := len(w.referred()); n != 0 {
		t.Fatalf("%d pointers after two hours", n)
	}
}

// TestSequencedKilled: a keeper is killed at each of its steps while it trims a sequenced category whose sequencer is behind, and
// has something in its hands. No pointer of any log is without its blob, at any time.
func TestSequencedKilled(t *testing.T) {
	for _, after := range []bool{false, true} {
		for n := 0; n < 40; n += testsize.Test(1, 1, 4) {
			t.Run(fmt.Sprintf("step %d, carried out %v", n, after), func(t *testing.T) {
				w := testWorld(t)
				w.cfg.PinLimit, w.cfg.Linger, w.cfg.Grace = 20*time.Minute, 0, 0
				id := w.cell.createSequenced(time.Hour, w.clock.Now())
				o := &orderer{w: w, id: id}
				for i := range 4 {
					w.write(uint16(1+i%2), 1, id)
					w.clock.Advance(10 * time.Minute)
				}
				o.sequence(1)
				o.prepare(2)
				w.clock.Advance(50 * time.Minute) // the first three are beyond the limit
				deps, _ := kill(w.deps("killed"), n, after)
				l, err := w.lead(deps)
				if err == nil {
					err = l.pass()
					l.close()
				}
				w.resolves()
				if err := o.commit(); err != nil && !errors.Is(err, metalog.ErrFenced) {
					t.Fatal(err)
				}
				next := w.mustLead("next")
				defer next.close()
				next.run(time.Minute, time.Minute)
				w.resolves()
				o.rests()
				o.sequence(10)
				next.run(20*time.Minute, 10*time.Minute)
				w.resolves()
				o.rests()
				if err == nil && n < 5 {
					t.Error("it was not killed")
				}
			})
		}
	}
}

// TestSequencedWorld: writers, a sequencer that falls behind, pauses with something in its hands and comes back, retention that changes, and
// keepers that are killed, in any order: what the sequenced log refers to is always there.
func TestSequencedWorld(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t.Context(), rt, memory.New())
		defer w.close()
		w.cfg.PinLimit = rapid.SampledFrom([]time.Duration{0, 8 * time.Hour, 120 * time.Hour}).Draw(rt, "limit")
		w.cfg.Linger, w.cfg.Grace = 0, rapid.SampledFrom([]time.Duration{2 * time.Hour, 12 * time.Hour}).Draw(rt, "grace")
		id := w.cell.createSequenced(24*time.Hour, w.clock.Now())
		plain := w.cell.create(48*time.Hour, w.clock.Now())
		o := &orderer{w: w, id: id}
		var l *leader
		defer func() { l.close() }()
		for range rapid.IntRange(5, 40).Draw(rt, "actions") {
			switch rapid.IntRange(0, 7).Draw(rt, "action") {
			case 0, 1:
				w.write(uint16(rapid.IntRange(1, 3).Draw(rt, "writer")), pointer.RetentionClass(24*time.Hour), id, plain)
			case 2:
				o.sequence(rapid.IntRange(1, 5).Draw(rt, "sequenced"))
			case 3:
				if o.inHand == nil {
					o.prepare(rapid.IntRange(1, 5).Draw(rt, "in hand"))
				}
			case 4:
				if err := o.commit(); err != nil && !errors.Is(err, metalog.ErrFenced) {
					rt.Fatal(err)
				}
				if l != nil { // what was overtaken is set right by the next round at the latest
					if err := l.pass(); err != nil {
						rt.Fatal(err)
					}
				}
			case 5:
				w.clock.Advance(time.Duration(rapid.IntRange(1, 20).Draw(rt, "hours")) * time.Hour)
			case 6:
				l.close()
				l = nil
				deps, _ := kill(w.deps("killed"), rapid.IntRange(0, 30).Draw(rt, "step"), rapid.Bool().Draw(rt, "carried out"))
				if k, err := w.lead(deps); err == nil {
					_ = k.pass()
					k.close()
				}
			case 7:
				if l == nil {
					l = w.mustLead("lives")
				}
				if err := l.pass(); err != nil {
					l.close()
					l = w.mustLead("lives")
					if err := l.pass(); err != nil {
						rt.Fatal(err)
					}
				}
				o.rests()
			}
			w.resolves()
		}
		if err := o.commit(); err != nil && !errors.Is(err, metalog.ErrFenced) {
			rt.Fatal(err)
		}
		l.close()
		l = w.mustLead("last")
		l.run(25*time.Hour, 25*time.Hour)
		o.sequence(1000)
		l.run(75*time.Hour, 25*time.Hour)
		if keys := w.keys(); len(keys) != 0 {
			rt.Fatalf("left: %v", keys)
		}
		w.resolves()
	})
}

// TestOriginIsNotOvertaken: a source that began in a recovery has nothing that a sequencer could be behind, until it is trimmed there.
func TestOriginIsNotOvertaken(t *testing.T) {
	source := record.MakeShardID(7, 0, 1)
	s := &sequencedTrim{state: sequenced.NewState(), origins: map[record.ShardID]record.LSN{source: 1 << 50}}
	if at := s.positionOf(source); at != 1<<50 {
		t.Errorf("before anything was sequenced: LSN %d", at)
	}
	s.state.At[source] = 1<<50 + 3
	if at := s.positionOf(source); at != 1<<50+3 {
		t.Errorf("after three records: LSN %d", at)
	}
	if at := s.positionOf(record.MakeShardID(7, 0, 2)); at != record.FirstLSN {
		t.Errorf("a source that began at the first LSN: LSN %d", at)
	}
}
