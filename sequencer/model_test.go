package sequencer

import (
	"maps"
	"testing"
	"time"

	"pgregory.net/rapid"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// model is the two logs, and a stream, without anything in between: what a ledger decides is checked in every order of commits and crashes.
type model struct {
	t        *rapid.T
	sources  int
	stream   []sourceStep // everything there is, in order
	log      []sequenced.Record
	changes  [][]byte
	trimmed  int // records of the log of positions that are gone
	ledger   *appendLedger
	received *streamChecker
	at       int // in the stream, of the stream checker
}

// restart is another sequencer: it knows what is in the logs.
func (m *model) restart() {
	r := sequenced.NewReader(testID)
	for _, b := range m.changes[m.trimmed:] {
		if err := r.Add(b); err != nil {
			m.t.Fatal(err)
		}
	}
	state := r.State()
	if state == nil {
		if len(m.changes) > 0 {
			m.t.Fatal("there is no state")
		}
		state = sequenced.NewState()
	}
	m.ledger = &appendLedger{category: testID, state: state, nextPosition: record.FirstLSN + record.LSN(len(m.changes)), limit: rapid.IntRange(1, 400).Draw(m.t, "limit")}
	m.reopen()
}

// reopen is another stream: it begins where the ledger says.
func (m *model) reopen() {
	m.received = newStreamChecker(m.ledger.state)
	resume := map[record.ShardID]record.LSN{}
	for _, p := range m.ledger.resumePositions() {
		resume[record.ShardID(p.GetShard())] = record.LSN(p.GetLsn())
	}
	// A strict stream is in one order: what is behind the positions is behind one place.
	for m.at = 0; m.at < len(m.stream); m.at++ {
		if s := &m.stream[m.at]; s.lsn >= max(resume[s.source], record.FirstLSN) {
			break
		}
	}
	for i := range m.stream[m.at:] {
		if s := &m.stream[m.at+i]; s.lsn < max(resume[s.source], record.FirstLSN) {
			m.t.Fatalf("positions %v are no place in the stream: %v %d", resume, s.source, s.lsn)
		}
	}
	for i := range m.sources {
		shard := sourceID(i, 1)
		if step, err := m.received.joinShard(&scribev1.StreamShard{Shard: uint64(shard), Lsn: uint64(max(resume[shard], record.FirstLSN))}); err != nil || step != nil {
			m.t.Fatalf("%v, %v", step, err)
		}
	}
}

// receive takes the next steps of the stream.
func (m *model) receive(n int) (steps []sourceStep) {
	for ; n > 0 && m.at < len(m.stream); n-- {
		s := &m.stream[m.at]
		m.at++
		var got sourceStep
		var err error
		if s.to == 0 {
			got, err = m.received.checkEntry(&scribev1.StreamEntry{Shard: uint64(s.source), Lsn: uint64(s.lsn), Time: s.time, Pointer: s.data})
		} else {
			reason := scribev1.Reason_REASON_TRIMMED
			if s.cause == sequenced.CauseDamaged {
				reason = scribev1.Reason_REASON_CORRUPT
			}
			got, err = m.received.checkGap(&scribev1.StreamGap{Shard: uint64(s.source), From: uint64(s.lsn), To: uint64(s.to), Reason: reason})
		}
		if err != nil {
			m.t.Fatal(err)
		}
		steps = append(steps, got)
	}
	return steps
}

// apply carries an append out, as the engine does.
func (m *model) apply(a *metalog.Append) {
	if len(a.Shards) != 2 || a.OldestBlob != 0 {
		m.t.Fatalf("%+v", a)
	}
	log, changes := &a.Shards[0], &a.Shards[1]
	if log.Shard != sequenced.Log(testID) || log.ExpectLSN != record.FirstLSN+record.LSN(len(m.log)) {
		m.t.Fatalf("expects LSN %d, there are %d", log.ExpectLSN, len(m.log))
	}
	if changes.Shard != sequenced.Positions(testID) || changes.ExpectLSN != record.FirstLSN+record.LSN(len(m.changes)) {
		m.t.Fatalf("expects LSN %d of the positions, there are %d", changes.ExpectLSN, len(m.changes))
	}
	for _, b := range log.Records {
		rec, err := sequenced.Decode(testID, b)
		if err != nil {
			m.t.Fatal(err)
		}
		m.log = append(m.log, rec)
	}
	m.changes = append(m.changes, changes.Records...)
}

func (m *model) append() {
	steps := m.receive(rapid.IntRange(1, 12).Draw(m.t, "steps"))
	if len(steps) == 0 {
		return
	}
	was := maps.Clone(m.ledger.state.At)
	b, err := m.ledger.prepareAppend(steps)
	if err != nil {
		m.t.Fatal(err)
	}
	if !maps.Equal(was, m.ledger.state.At) {
		m.t.Fatal("to prepare changes what is committed")
	}
	switch rapid.IntRange(0, 5).Draw(m.t, "outcome") {
	case 0: // it was not carried out
		m.restart()
	case 1: // it was, and nobody was told
		m.apply(b.append)
		m.restart()
	default:
		m.apply(b.append)
		m.ledger.commitAppend(b)
		if b.trim > 0 && rapid.Bool().Draw(m.t, "trim") {
			m.trimmed = int(b.trim - record.FirstLSN)
		}
	}
}

// TestModel: however appends end and sequencers and streams are replaced, the log is the stream.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{t: t, sources: rapid.IntRange(1, 6).Draw(t, "sources")}
		next := map[record.ShardID]record.LSN{}
		for i := range rapid.IntRange(0, 120).Draw(t, "stream") {
			shard := sourceID(rapid.IntRange(0, m.sources-1).Draw(t, "source"), 1)
			s := sourceStep{source: shard, lsn: max(next[shard], record.FirstLSN), time: int64(1000 + i/3)}
			if rapid.IntRange(0, 9).Draw(t, "gap") == 0 {
				s.time, s.to = 0, s.lsn+record.LSN(rapid.IntRange(1, 5).Draw(t, "lost"))
				s.cause = sequenced.Cause(rapid.IntRange(1, 2).Draw(t, "cause"))
			} else {
				s.data = pointer.Append(nil, &pointer.Pointer{
					Blob: pointer.NewBlobID(), Class: 72, Codec: pointer.CodecNone, BlockLen: 9, BlockRawLen: 9, Length: 9, Frames: 1,
					Messages: rapid.Uint32Range(1, 9).Draw(t, "messages"),
				})
			}
			next[shard] = s.nextLSN()
			m.stream = append(m.stream, s)
		}
		m.restart()
		for tries := 0; len(m.log) < len(m.stream) && tries < 1000; tries++ {
			switch rapid.IntRange(0, 7).Draw(t, "action") {
			case 0:
				m.restart()
			case 1:
				m.reopen()
			default:
				m.append()
			}
		}
		offset := uint64(0)
		for i := range m.log {
			rec, s := &m.log[i], &m.stream[i]
			if rec.Source != s.source || rec.LSN != s.lsn || rec.Next() != s.nextLSN() || rec.Offset != offset || rec.Horizon < s.time {
				t.Fatalf("record %d is %+v, the stream has %+v (offset %d)", i, rec, s, offset)
			}
			if rec.Kind == sequenced.KindPointer {
				p, err := pointer.Decode(s.data)
				if err != nil {
					t.Fatal(err)
				}
				offset += uint64(p.Messages)
			} else if rec.Cause != s.cause {
				t.Fatalf("record %d has cause %d", i, rec.Cause)
			}
		}
		if len(m.log) != len(m.stream) {
			t.Fatalf("%d of %d steps", len(m.log), len(m.stream))
		}
	})
}

// TestWorldModel: sequencers start, stop, crash anywhere and overlap, while messages are written to sources that appear.
func TestWorldModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t.Context(), rt)
		defer w.close()
		cfg := eager()
		cfg.AppendRecords, cfg.Pointers = rapid.IntRange(1, 9).Draw(rt, "records"), rapid.IntRange(1, 20).Draw(rt, "credits")
		var running []*Sequencer
		stopOne := func() {
			w.stop(running[0])
			running = running[1:]
		}
		for range rapid.IntRange(1, 10).Draw(rt, "actions") {
			switch rapid.IntRange(0, 3).Draw(rt, "action") {
			case 0:
				w.writeAll(rapid.IntRange(1, 4).Draw(rt, "sources"), rapid.IntRange(1, 10).Draw(rt, "pointers"))
			case 1:
				kind := rapid.SampledFrom([]string{"open", "read", "append", "trim"}).Draw(rt, "kind")
				log := newCrashing(w.engine, kind, rapid.IntRange(1, 4).Draw(rt, "call"), rapid.Bool().Draw(rt, "carried out"))
				running = append(running, w.start(cfg, w.deps("crashes", log, &streams{w: w})))
				select {
				case <-log.crashed:
				case <-time.After(5 * time.Millisecond):
				}
			case 2:
				if len(running) < 3 {
					running = append(running, w.start(cfg, w.deps("lives", w.engine, &streams{w: w})))
				}
			case 3:
				if len(running) > 0 {
					stopOne()
				}
			}
			w.log()
		}
		for len(running) > 0 {
			stopOne()
		}
		last := w.start(cfg, w.deps("last", w.engine, &streams{w: w}))
		w.complete()
		w.stop(last)
	})
}

// TestReceptionBeginsAtOrigin: a source that began in a recovery goes on there, and no step says that something is missing.
func TestReceptionBeginsAtOrigin(t *testing.T) {
	const origin = 1 << 50
	r, shard := newStreamChecker(sequenced.NewState()), uint64(sourceID(0, 1))
	if step, err := r.joinShard(&scribev1.StreamShard{Shard: shard, Lsn: 1}); err != nil || step != nil {
		t.Fatal(step, err)
	}
	if err := r.startSource(&scribev1.StreamGap{Shard: shard, From: 1, To: origin, BeforeOrigin: true}); err != nil {
		t.Fatal(err)
	}
	step, err := r.checkEntry(&scribev1.StreamEntry{Shard: shard, Lsn: origin})
	if err != nil || step.lsn != origin || step.to != 0 {
		t.Errorf("%+v, %v", step, err)
	}
}

// TestReceptionRefuses: a stream that does not continue what was sequenced is not followed.
func TestReceptionRefuses(t *testing.T) {
	state := sequenced.NewState()
	state.At[sourceID(0, 1)] = 5
	shard := uint64(sourceID(0, 1))
	for name, take := range map[string]func(*streamChecker) error{
		"joins elsewhere": func(r *streamChecker) error {
			_, err := r.joinShard(&scribev1.StreamShard{Shard: shard, Lsn: 4})
			return err
		},
		"an origin behind what was sequenced": func(r *streamChecker) error {
			return r.startSource(&scribev1.StreamGap{Shard: shard, From: 5, To: 9, BeforeOrigin: true})
		},
		"joins nowhere": func(r *streamChecker) error {
			_, err := r.joinShard(&scribev1.StreamShard{Shard: uint64(sourceID(1, 1))})
			return err
		},
		"reserved": func(r *streamChecker) error {
			_, err := r.joinShard(&scribev1.StreamShard{Shard: uint64(sequenced.Log(testID)), Lsn: 1})
			return err
		},
		"a repeat": func(r *streamChecker) error {
			_, err := r.checkEntry(&scribev1.StreamEntry{Shard: shard, Lsn: 4})
			return err
		},
		"a hole": func(r *streamChecker) error {
			_, err := r.checkEntry(&scribev1.StreamEntry{Shard: shard, Lsn: 6})
			return err
		},
		"a stranger": func(r *streamChecker) error {
			_, err := r.checkEntry(&scribev1.StreamEntry{Shard: 9, Lsn: 1})
			return err
		},
		"a gap elsewhere": func(r *streamChecker) error {
			_, err := r.checkGap(&scribev1.StreamGap{Shard: shard, From: 7, To: 8})
			return err
		},
		"no gap": func(r *streamChecker) error {
			_, err := r.checkGap(&scribev1.StreamGap{Shard: shard, From: 5, To: 5})
			return err
		},
	} {
		if err := take(newStreamChecker(state)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
