package metalog_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

var modelCases = []testCase{
	{name: "any sequence of calls does what the model does", many: func(t *testing.T, f logFactory) {
		rapid.Check(t, func(rt *rapid.T) {
			m := &modelMachine{caseEnv: newEnv(t, f), shards: map[record.ShardID]*modelShard{}, retired: map[uint32]bool{}}
			defer m.closeLog()
			rt.Repeat(m.actions())
		})
	}},
}

// modelShard is the model's state of a shard.
type modelShard struct {
	epoch     uint64
	first     record.LSN
	entries   []metalog.Entry // from LSN 1 on, trimmed ones included
	sealed    bool
	removed   bool
	origin    record.LSN
	since     int64 // the time of the newest record below origin
	producers map[uint64]metalog.ProducerState
	watermark int64 // the highest that was promised
}

func (s *modelShard) next() record.LSN { return record.LSN(len(s.entries) + 1) }

// modelMachine makes the same calls on an engine and on the model.
type modelMachine struct {
	*caseEnv
	shards   map[record.ShardID]*modelShard
	retired  map[uint32]bool
	boundary int64
	last     int64 // newest persisted time
}

func (m *modelMachine) actions() map[string]func(*rapid.T) {
	seldom := func(action func(*rapid.T)) func(*rapid.T) {
		return func(rt *rapid.T) {
			if rapid.IntRange(0, 9).Draw(rt, "seldom") == 0 {
				action(rt)
			}
		}
	}
	actions := map[string]func(*rapid.T){
		"open":      m.openSome,
		"append":    m.appendSome,
		"append2":   m.appendSome, // the most frequent one
		"read":      m.readSome,
		"tail":      m.tailSome,
		"seek":      m.seekSome,
		"trim":      m.trimSome,
		"seal":      seldom(m.sealSome),
		"retire":    seldom(m.retireSome),
		"erase":     m.eraseSome,
		"remove":    m.removeSome,
		"sequences": m.sequencesSome,
		"boundary":  m.advanceBoundary,
		"list":      m.listShards,
		"clock": func(rt *rapid.T) {
			m.in.clock.Advance(time.Duration(rapid.Int64Range(-int64(time.Minute), int64(time.Minute)).Draw(rt, "by")))
		},
		"restart": func(*rapid.T) { m.restartLog() },
	}
	if m.in.crash != nil {
		actions["crash"] = func(*rapid.T) { m.crashLog() }
	}
	return actions
}

var anyShard = rapid.Custom(func(rt *rapid.T) record.ShardID {
	return record.MakeShardID(rapid.Uint32Range(1, 2).Draw(rt, "category"), 0, rapid.Uint16Range(0, 2).Draw(rt, "writer"))
})

var someShards = rapid.SliceOfNDistinct(anyShard, 1, 4, rapid.ID[record.ShardID])

// wantOutcome reports whether a call succeeded, and fails the test unless it ended with want.
func wantOutcome(rt *rapid.T, call string, err, want error) bool {
	if !errors.Is(err, want) {
		rt.Fatalf("%s ended with %v, want %v", call, err, want)
	}
	return err == nil
}

// shardOf returns the model of a shard; the model of a missing shard is not kept.
func (m *modelMachine) shardOf(id record.ShardID) *modelShard {
	if s := m.shards[id]; s != nil {
		return s
	}
	return &modelShard{first: 1, producers: map[uint64]metalog.ProducerState{}, sealed: m.retired[id.Category()]}
}

func (m *modelMachine) openSome(rt *rapid.T) {
	ids := someShards.Draw(rt, "shards")
	var want error
	if slices.ContainsFunc(ids, func(id record.ShardID) bool { return m.retired[id.Category()] }) {
		want = metalog.ErrSealed
	}
	states, err := m.log.Open(m.ctx, "model", ids)
	if !wantOutcome(rt, "Open", err, want) {
		return
	}
	for i, id := range ids {
		s := m.shardOf(id)
		if s.sealed && states[i].Epoch != s.epoch || !s.sealed && states[i].Epoch <= s.epoch {
			rt.Fatalf("Open gave shard %v epoch %d after %d (sealed %v)", id, states[i].Epoch, s.epoch, s.sealed)
		}
		s.epoch, s.removed = states[i].Epoch, s.removed && s.sealed
		m.shards[id] = s
		m.checkState(rt, id, states[i])
	}
}

// checkState compares a state with the model.
func (m *modelMachine) checkState(rt *rapid.T, id record.ShardID, st metalog.State) {
	s := m.shardOf(id)
	var last int64
	if n := len(s.entries); n > 0 {
		last = s.entries[n-1].Time
	}
	want := metalog.State{Shard: id, FirstLSN: s.first, NextLSN: s.next(), Epoch: s.epoch, Sealed: s.sealed, LastTime: last, Watermark: st.Watermark, Origin: s.origin, OriginTime: s.since, Removed: s.removed}
	if st != want {
		rt.Fatalf("the state is %+v, want %+v", st, want)
	}
	if st.Watermark < s.watermark && !m.in.lags {
		rt.Fatalf("the watermark of %v went from %d to %d", id, s.watermark, st.Watermark)
	}
	if m.shards[id] != nil {
		s.watermark = max(s.watermark, st.Watermark)
	}
}

func (m *modelMachine) appendSome(rt *rapid.T) {
	ids := someShards.Draw(rt, "shards")
	a := &metalog.Append{OldestBlob: rapid.SampledFrom([]int64{0, 5, 50}).Draw(rt, "blob")}
	for _, id := range ids {
		s := m.shardOf(id)
		sa := metalog.ShardAppend{Shard: id, Epoch: s.epoch}
		if rapid.IntRange(0, 15).Draw(rt, "other epoch") == 0 || s.epoch == 0 {
			sa.Epoch = rapid.Uint64Range(1, s.epoch+1).Draw(rt, "epoch")
		}
		if rapid.IntRange(0, 3).Draw(rt, "expect") == 0 {
			sa.ExpectLSN = s.next() + record.LSN(rapid.SampledFrom([]int{0, 0, 0, 0, 0, 1}).Draw(rt, "off by"))
		}
		for range rapid.IntRange(1, 3).Draw(rt, "records") {
			sa.Records = append(sa.Records, rapid.SliceOfN(rapid.Byte(), 1, 5).Draw(rt, "record"))
		}
		for range rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(rt, "runs") {
			p := rapid.Uint64Range(1, 2).Draw(rt, "producer")
			q := metalog.Sequence{Producer: p, Epoch: s.producers[p].Epoch, First: s.producers[p].Next}
			if rapid.IntRange(0, 4).Draw(rt, "other sequence") == 0 {
				q.Epoch, q.First = rapid.Uint32Range(0, 2).Draw(rt, "epoch"), rapid.Uint64Range(0, 9).Draw(rt, "first")
			}
			q.Last = q.First + rapid.Uint64Range(0, 3).Draw(rt, "more")
			sa.Sequences = append(sa.Sequences, q)
		}
		a.Shards = append(a.Shards, sa)
	}
	want := m.decideAppend(a)
	done, err := m.log.Append(m.ctx, a)
	if !wantOutcome(rt, fmt.Sprintf("Append %+v", a), err, want) {
		return
	}
	for i, sa := range a.Shards {
		s := m.shardOf(sa.Shard)
		if done[i].FirstLSN != s.next() || done[i].Time < m.last || done[i].Time < s.watermark {
			rt.Fatalf("Append put shard %v at %+v; next is %d, the newest time %d, the watermark %d", sa.Shard, done[i], s.next(), m.last, s.watermark)
		}
		for _, r := range sa.Records {
			s.entries = append(s.entries, metalog.Entry{LSN: s.next(), Time: done[i].Time, Data: r})
		}
		for _, q := range sa.Sequences {
			s.producers[q.Producer] = metalog.ProducerState{Producer: q.Producer, Epoch: q.Epoch, Next: q.Last + 1}
		}
	}
	m.last = done[0].Time
}

// decideAppend returns the sentinel that an append must fail with. If several shards refuse, any of theirs is accepted: the first
// found.
func (m *modelMachine) decideAppend(a *metalog.Append) error {
	if a.OldestBlob != 0 && a.OldestBlob < m.boundary {
		return metalog.ErrStaleBlob
	}
	for _, sa := range a.Shards {
		s := m.shardOf(sa.Shard)
		switch {
		case s.sealed, m.retired[sa.Shard.Category()]:
			return metalog.ErrSealed
		case sa.Epoch != s.epoch, s.removed:
			return metalog.ErrFenced
		case sa.ExpectLSN != 0 && sa.ExpectLSN != s.next():
			return metalog.ErrConflict
		}
	}
	for _, sa := range a.Shards {
		known := map[uint64]metalog.ProducerState{}
		maps.Copy(known, m.shardOf(sa.Shard).producers)
		for _, q := range sa.Sequences {
			st, ok := known[q.Producer]
			if ok && (q.Epoch < st.Epoch || q.Epoch == st.Epoch && q.First != st.Next) {
				return metalog.ErrSequence
			}
			known[q.Producer] = metalog.ProducerState{Producer: q.Producer, Epoch: q.Epoch, Next: q.Last + 1}
		}
	}
	return nil
}

func (m *modelMachine) readSome(rt *rapid.T) {
	id := anyShard.Draw(rt, "shard")
	s := m.shardOf(id)
	from := record.LSN(rapid.IntRange(1, len(s.entries)+2).Draw(rt, "from"))
	limit := rapid.IntRange(0, 4).Draw(rt, "limit")
	entries, err := m.log.Read(m.ctx, id, from, limit, 0)
	if from < s.first {
		var trimmed *metalog.TrimmedError
		if !errors.As(err, &trimmed) || *trimmed != (metalog.TrimmedError{Shard: id, LSN: from, First: s.first}) {
			rt.Fatalf("Read from %d ended with %v, the first is %d", from, err, s.first)
		}
		return
	}
	want := s.entries[min(int(from-1), len(s.entries)):]
	if limit > 0 {
		want = want[:min(limit, len(want))]
	}
	if err != nil || fmt.Sprint(entries) != fmt.Sprint(want) {
		rt.Fatalf("Read from %d returned %v, %v, want %v", from, entries, err, want)
	}
}

func (m *modelMachine) tailSome(rt *rapid.T) {
	ids := someShards.Draw(rt, "shards")
	states, err := m.log.Tail(m.ctx, ids)
	wantOutcome(rt, "Tail", err, nil)
	for i, id := range ids {
		m.checkState(rt, id, states[i])
	}
}

func (m *modelMachine) seekSome(rt *rapid.T) {
	id := anyShard.Draw(rt, "shard")
	s := m.shardOf(id)
	t := m.last + rapid.Int64Range(-1, 1).Draw(rt, "near the last")
	if n := len(s.entries); n > 0 {
		t = s.entries[rapid.IntRange(0, n-1).Draw(rt, "record")].Time + rapid.Int64Range(-1, 1).Draw(rt, "near")
	}
	got, err := m.log.Seek(m.ctx, []record.ShardID{id}, t)
	wantOutcome(rt, "Seek", err, nil)
	want := s.first
	for want < s.next() && s.entries[want-1].Time < t {
		want++
	}
	if got[0] != want {
		rt.Fatalf("Seek of %d returned %d, want %d", t, got[0], want)
	}
}

func (m *modelMachine) trimSome(rt *rapid.T) {
	id := anyShard.Draw(rt, "shard")
	s := m.shardOf(id)
	before := record.LSN(rapid.IntRange(0, len(s.entries)+2).Draw(rt, "before"))
	var want error
	if before > s.next() {
		want = metalog.ErrInvalid
	}
	if wantOutcome(rt, "Trim", m.log.Trim(m.ctx, id, before), want) {
		s.first = max(s.first, before)
	}
}

func (m *modelMachine) sealSome(rt *rapid.T) {
	id := anyShard.Draw(rt, "shard")
	var want error
	s := m.shards[id]
	if s == nil {
		want = metalog.ErrInvalid
	}
	st, err := m.log.Seal(m.ctx, id)
	if wantOutcome(rt, "Seal", err, want) {
		s.sealed = true
		m.checkState(rt, id, st)
	}
}

func (m *modelMachine) retireSome(rt *rapid.T) {
	category := rapid.Uint32Range(1, 2).Draw(rt, "category")
	wantOutcome(rt, "Retire", m.log.Retire(m.ctx, category), nil)
	m.retired[category] = true
	for id, s := range m.shards {
		s.sealed = s.sealed || id.Category() == category
	}
}

func (m *modelMachine) eraseSome(rt *rapid.T) {
	if rapid.IntRange(0, 4).Draw(rt, "seldom") != 0 {
		return
	}
	category := rapid.Uint32Range(1, 2).Draw(rt, "category")
	var want error
	if !m.retired[category] {
		want = metalog.ErrInvalid
	}
	if wantOutcome(rt, "Erase", m.log.Erase(m.ctx, category), want) {
		maps.DeleteFunc(m.shards, func(id record.ShardID, _ *modelShard) bool { return id.Category() == category })
	}
}

func (m *modelMachine) removeSome(rt *rapid.T) {
	ids := someShards.Draw(rt, "shards")
	unused := make([]metalog.Unused, len(ids))
	want := 0
	for i, id := range ids {
		unused[i] = metalog.Unused{Shard: id, Epoch: m.shardOf(id).epoch}
		if rapid.IntRange(0, 5).Draw(rt, "other epoch") == 0 {
			unused[i].Epoch++
		}
		s := m.shards[id]
		if s == nil || s.removed || s.sealed || s.first != s.next() || len(s.producers) > 0 || unused[i].Epoch != s.epoch {
			continue
		}
		want++
		s.removed = true
		s.epoch++
		if s.next() > record.FirstLSN {
			s.origin, s.since = s.next(), s.entries[len(s.entries)-1].Time
		}
	}
	n, err := m.log.Remove(m.ctx, unused)
	if wantOutcome(rt, "Remove", err, nil) && n != want {
		rt.Fatalf("Remove of %v removed %d, want %d", unused, n, want)
	}
}

func (m *modelMachine) sequencesSome(rt *rapid.T) {
	id := anyShard.Draw(rt, "shard")
	got, err := m.log.Sequences(m.ctx, id, []uint64{1, 2, 3})
	wantOutcome(rt, "Sequences", err, nil)
	for i, p := range []uint64{1, 2, 3} {
		want := m.shardOf(id).producers[p]
		want.Producer = p
		if got[i] != want {
			rt.Fatalf("shard %v knows %+v, want %+v", id, got[i], want)
		}
	}
}

func (m *modelMachine) advanceBoundary(rt *rapid.T) {
	t := rapid.SampledFrom([]int64{0, 0, 1, 6, 51}).Draw(rt, "boundary")
	got, err := m.log.AdvanceBoundary(m.ctx, t)
	m.boundary = max(m.boundary, t)
	if err != nil || got != m.boundary {
		rt.Fatalf("AdvanceBoundary returned %d, %v, want %d", got, err, m.boundary)
	}
}

func (m *modelMachine) listShards(rt *rapid.T) {
	category := rapid.Uint32Range(1, 3).Draw(rt, "category")
	for call, list := range map[string]func() ([]metalog.State, error){
		"Shards":        func() ([]metalog.State, error) { return m.log.Shards(m.ctx, category) },
		"RemovedShards": func() ([]metalog.State, error) { return m.log.RemovedShards(m.ctx, category, 0) },
	} {
		states, err := list()
		wantOutcome(rt, call, err, nil)
		want := slices.DeleteFunc(slices.Sorted(maps.Keys(m.shards)), func(id record.ShardID) bool {
			return id.Category() != category || m.shards[id].removed != (call == "RemovedShards")
		})
		if len(states) != len(want) {
			rt.Fatalf("%s returned %v, want %v", call, states, want)
		}
		for i, st := range states {
			m.checkState(rt, want[i], st)
		}
	}
}
