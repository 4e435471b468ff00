package feed

import (
	"testing"

	"pgregory.net/rapid"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// listener notes what it is told.
type listener struct {
	t       fataler
	tails   map[record.ShardID]record.LSN
	at      map[record.ShardID]record.LSN // the record that is to come next
	sealed  map[record.ShardID]bool
	known   map[record.ShardID]bool
	floor   int64
	horizon int64
	failed  []error
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

func newListener(t fataler) *listener {
	return &listener{
		t: t, tails: map[record.ShardID]record.LSN{}, at: map[record.ShardID]record.LSN{},
		sealed: map[record.ShardID]bool{}, known: map[record.ShardID]bool{},
	}
}

func (l *listener) Updates(updates []metalog.Update) {
	if len(updates) == 0 {
		l.t.Fatalf("no updates")
	}
	for _, u := range updates {
		if _, ok := l.tails[u.Shard]; !ok {
			l.t.Fatalf("shard %v is not followed", u.Shard)
		}
		for _, e := range u.Entries {
			if e.LSN > l.at[u.Shard] && u.TrimmedTo == 0 {
				l.t.Fatalf("shard %v: LSN %d after %d", u.Shard, e.LSN, l.at[u.Shard])
			}
			l.at[u.Shard] = max(l.at[u.Shard], e.LSN+1)
		}
		l.tails[u.Shard] = max(l.tails[u.Shard], u.NextLSN)
		l.sealed[u.Shard] = l.sealed[u.Shard] || u.Sealed
	}
}

func (l *listener) Tail(shard record.ShardID, next record.LSN, _ int64, sealed bool) {
	if _, ok := l.tails[shard]; ok {
		l.t.Fatalf("the tail of shard %v is told twice", shard)
	}
	l.tails[shard], l.at[shard], l.sealed[shard] = next, next, sealed
}

func (l *listener) Floor(t int64) { l.floor = max(l.floor, t) }

func (l *listener) Shards(fresh []record.ShardID, horizon int64) {
	for _, shard := range fresh {
		if l.known[shard] {
			l.t.Fatalf("shard %v is told twice", shard)
		}
		l.known[shard] = true
	}
	l.horizon = max(l.horizon, horizon)
}

func (l *listener) Fail(err error) { l.failed = append(l.failed, err) }

// world is an engine of a few lines, a table, and members at any stage.
type world struct {
	t       *rapid.T
	now     int64
	shards  map[record.ShardID][]metalog.Entry
	sealed  map[record.ShardID]bool
	ids     []record.ShardID
	sub     map[record.ShardID]record.LSN // where the subscription of a shard stands
	table   *tailTable
	members []*Member
	looks   []pendingLook
	held    map[*Member]metalog.State // what a member has asked for and not followed yet
	coming  map[record.ShardID]metalog.Update
	ghost   record.ShardID // a shard that is known before it exists
}

// pendingLook is a look whose answer is on its way.
type pendingLook struct {
	seen   int64
	states []metalog.State
}

func (w *world) state(id record.ShardID) metalog.State {
	st := metalog.State{Shard: id, FirstLSN: 1, NextLSN: record.LSN(len(w.shards[id])) + 1, Watermark: w.now, Sealed: w.sealed[id]}
	if _, ok := w.shards[id]; ok {
		st.Epoch = 1
	}
	return st
}

func (w *world) anyShard(t *rapid.T) record.ShardID {
	if len(w.ids) == 0 {
		w.create()
	}
	return rapid.SampledFrom(w.ids).Draw(t, "shard")
}

func (w *world) create() {
	id := w.ghost
	if w.ghost = 0; id == 0 {
		id = record.MakeShardID(1, 0, uint16(len(w.ids)+1))
	}
	w.ids, w.shards[id] = append(w.ids, id), []metalog.Entry{}
}

// follow makes a member follow a shard, as a stream does: one that follows nothing yet with what was known of it some time ago;
// others hold, ask, and follow some time later.
func (w *world) follow(t *rapid.T) {
	m := rapid.SampledFrom(w.members).Draw(t, "member")
	id := w.anyShard(t)
	if rapid.IntRange(0, 9).Draw(t, "ghost") == 0 {
		if w.ghost == 0 {
			w.ghost = record.MakeShardID(1, 0, uint16(len(w.ids)+1))
		}
		id = w.ghost
	}
	st, asked := w.held[m]
	switch _, has := m.listener.(*listener).tails[id]; {
	case asked:
		delete(w.held, m)
		id = st.Shard
	case has:
		return
	default:
		st = w.state(id)
	}
	if len(m.shards) > 0 && !asked {
		m.held = true
		w.held[m] = st
		return
	}
	if len(m.shards) == 0 {
		if old := rapid.IntRange(0, len(w.shards[id])).Draw(t, "old"); old < len(w.shards[id]) {
			st.NextLSN, st.Watermark, st.Sealed = record.LSN(old)+1, w.shards[id][old].Time, false
		}
	}
	w.table.followShards(m, []metalog.State{st})
	l := m.listener.(*listener)
	l.tails[id] = max(l.tails[id], st.NextLSN) // it knows what it has asked for
	if _, ok := w.sub[id]; !ok {
		w.sub[id] = w.table.tails[id].next
	}
}

// gather is what a subscription is about to bring; deliver brings it, later.
func (w *world) gather(t *rapid.T) {
	id := w.anyShard(t)
	at, ok := w.sub[id]
	if _, busy := w.coming[id]; !ok || busy {
		return
	}
	u := metalog.Update{Shard: id, NextLSN: record.LSN(len(w.shards[id])) + 1}
	n := rapid.IntRange(0, int(u.NextLSN-at)).Draw(t, "entries")
	u.Entries = w.shards[id][at-1 : int(at)-1+n]
	if w.sub[id] += record.LSN(n); w.sub[id] == u.NextLSN {
		u.Watermark, u.Sealed = w.now, w.sealed[id]
	}
	w.coming[id] = u
}

func (w *world) deliver(t *rapid.T) {
	id := w.anyShard(t)
	if u, ok := w.coming[id]; ok {
		delete(w.coming, id)
		w.table.applyUpdates([]metalog.Update{u})
	}
}

func (w *world) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"tick":   func(t *rapid.T) { w.now += rapid.Int64Range(0, 5).Draw(t, "by") },
		"create": func(*rapid.T) { w.create() },
		"append": func(t *rapid.T) {
			if id := w.anyShard(t); !w.sealed[id] {
				w.shards[id] = append(w.shards[id], metalog.Entry{LSN: record.LSN(len(w.shards[id])) + 1, Time: w.now, Data: []byte{1}})
			}
		},
		"seal":    func(t *rapid.T) { w.sealed[w.anyShard(t)] = true },
		"gather":  w.gather,
		"deliver": w.deliver,
		"reconnect": func(t *rapid.T) { // a subscription is opened again at what was told
			id := w.anyShard(t)
			delete(w.coming, id)
			if x := w.table.tails[id]; x != nil {
				w.sub[id] = x.sent
			}
		},
		"join": func(*rapid.T) {
			m := &Member{listener: newListener(w.t)}
			w.table.joinMember(m)
			w.members = append(w.members, m)
		},
		"follow": func(t *rapid.T) {
			if len(w.members) > 0 {
				w.follow(t)
			}
		},
		"leave": func(t *rapid.T) {
			if len(w.members) == 0 {
				return
			}
			i := rapid.IntRange(0, len(w.members)-1).Draw(t, "member")
			w.table.leaveMember(w.members[i])
			w.members = append(w.members[:i], w.members[i+1:]...)
			for id := range w.sub {
				if w.table.tails[id] == nil {
					delete(w.sub, id)
					delete(w.coming, id)
				}
			}
		},
		"look": func(*rapid.T) {
			l := pendingLook{seen: w.table.seen}
			for _, id := range w.ids {
				l.states = append(l.states, w.state(id))
			}
			w.looks = append(w.looks, l)
		},
		"looked": func(*rapid.T) {
			if len(w.looks) > 0 {
				w.table.noteLooked(w.looks[0].states, w.looks[0].seen)
				w.looks = w.looks[1:]
			}
		},
		"watch": func(t *rapid.T) { w.table.noteAppeared([]record.ShardID{w.anyShard(t)}) },
		"":      func(*rapid.T) { w.check() },
	}
}

// check holds what members were told against what is so.
func (w *world) check() {
	for _, m := range w.members {
		l := m.listener.(*listener)
		for id, tail := range l.tails {
			for _, e := range w.shards[id][tail-1:] {
				if e.Time < l.floor {
					w.t.Fatalf("shard %v: LSN %d has time %d, the floor is %d", id, e.LSN, e.Time, l.floor)
				}
			}
		}
		for _, id := range w.ids {
			if entries := w.shards[id]; !l.known[id] && len(entries) > 0 && entries[0].Time < l.horizon {
				w.t.Fatalf("shard %v began at %d and is not known, the horizon is %d", id, entries[0].Time, l.horizon)
			}
		}
		if l.floor > w.now || l.horizon > w.now {
			w.t.Fatalf("floor %d, horizon %d, it is %d", l.floor, l.horizon, w.now)
		}
	}
	if n := len(w.table.order); n > 0 {
		for _, x := range w.table.order {
			if x.mark < w.table.order[0].mark || len(x.members) == 0 || x.sealed {
				w.t.Fatalf("the order is broken at shard %v", x.shard)
			}
		}
	}
}

// What members are told is true, whatever the order of events; and once everything was delivered and looked at, it is all there is.
func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			t: t, now: 1000, shards: map[record.ShardID][]metalog.Entry{}, sealed: map[record.ShardID]bool{},
			sub: map[record.ShardID]record.LSN{}, table: newTailTable(), held: map[*Member]metalog.State{}, coming: map[record.ShardID]metalog.Update{},
		}
		t.Repeat(w.actions())
		w.now++
		if w.ghost != 0 {
			w.create()
		}
		for range 2 {
			states := make([]metalog.State, 0, len(w.ids))
			for _, id := range w.ids {
				states = append(states, w.state(id))
				if x := w.table.tails[id]; x != nil { // what was on its way is lost
					at := min(x.sent, record.LSN(len(w.shards[id]))+1)
					w.table.applyUpdates([]metalog.Update{{
						Shard: id, Entries: w.shards[id][at-1:], NextLSN: record.LSN(len(w.shards[id])) + 1, Watermark: w.now, Sealed: w.sealed[id],
					}})
				}
			}
			w.table.noteLooked(states, w.table.seen)
		}
		w.check()
		for _, m := range w.members {
			l := m.listener.(*listener)
			live := false
			for id, at := range l.at {
				if at != record.LSN(len(w.shards[id]))+1 || l.sealed[id] != w.sealed[id] {
					t.Fatalf("shard %v: told up to %d of %d, sealed %v of %v", id, at, len(w.shards[id]), l.sealed[id], w.sealed[id])
				}
				live = live || !w.sealed[id] && !m.held
			}
			if len(l.known) != len(w.ids) || live && l.floor != w.now || len(w.table.list) > 0 && w.table.seen == w.now && l.horizon != w.now {
				t.Fatalf("knows %d of %d shards, floor %d, horizon %d, it is %d", len(l.known), len(w.ids), l.floor, l.horizon, w.now)
			}
		}
	})
}

// TestLookWithoutAShard: a look that does not find a followed shard, which was removed or does not exist yet, brings it as far as one that finds it
// empty: nobody waits for its next heartbeat.
func TestLookWithoutAShard(t *testing.T) {
	listed, removed, absent := record.MakeShardID(7, 0, 1), record.MakeShardID(7, 0, 2), record.MakeShardID(7, 0, 3)
	table, l := newTailTable(), newListener(t)
	m := &Member{listener: l}
	table.joinMember(m)
	table.followShards(m, []metalog.State{
		{Shard: listed, Epoch: 1, FirstLSN: 1, NextLSN: 1, Watermark: 10},
		{Shard: removed, Epoch: 1, FirstLSN: 5, NextLSN: 5, Watermark: 10},
		{Shard: absent, FirstLSN: 1, NextLSN: 1, Watermark: 10},
	})
	table.noteLooked([]metalog.State{
		{Shard: listed, Epoch: 1, FirstLSN: 1, NextLSN: 1, Watermark: 20}, {Shard: removed, Epoch: 1, FirstLSN: 5, NextLSN: 5, Watermark: 20},
	}, 15)
	if l.floor != 15 {
		t.Errorf("with both shards: floor %d", l.floor)
	}
	table.noteLooked([]metalog.State{{Shard: listed, Epoch: 1, FirstLSN: 1, NextLSN: 1, Watermark: 40}}, 30)
	if l.floor != 30 {
		t.Errorf("without the removed one: floor %d", l.floor)
	}
}

// TestRemovedShardsAreForgotten: a member that comes after a look is not told of shards that the look has not found, and is told of one that appears
// again. What was told while the look ran is not forgotten, and nobody is told of anything twice.
func TestRemovedShardsAreForgotten(t *testing.T) {
	stays, removed, fresh := record.MakeShardID(7, 0, 1), record.MakeShardID(7, 0, 2), record.MakeShardID(7, 0, 3)
	found := func(shards ...record.ShardID) (states []metalog.State) {
		for _, s := range shards {
			states = append(states, metalog.State{Shard: s, Epoch: 1, FirstLSN: 1, NextLSN: 1, Watermark: 20})
		}
		return states
	}
	table := newTailTable()
	join := func(states ...metalog.State) *listener {
		l := newListener(t)
		m := &Member{listener: l}
		table.joinMember(m)
		table.followShards(m, states)
		return l
	}
	first := join()
	table.noteAppeared([]record.ShardID{removed, stays})
	table.beginLook()
	table.noteAppeared([]record.ShardID{fresh})
	table.noteLooked(found(stays), 10)
	// Its positions name the removed one.
	late := join(metalog.State{Shard: removed, Epoch: 2, FirstLSN: 5, NextLSN: 5, Watermark: 20, Removed: true})
	if len(first.known) != 3 || len(late.known) != 2 || late.known[removed] {
		t.Errorf("told of %v, and later of %v", first.known, late.known)
	}
	if last := join(); last.known[removed] {
		t.Error("a member follows a removed shard because another one does")
	}
	table.beginLook()
	table.noteLooked(found(stays, fresh), 15)
	delete(first.known, removed) // it may be told again
	table.noteAppeared([]record.ShardID{removed})
	if len(first.known) != 3 || len(late.known) != 3 || len(table.list) != 3 {
		t.Errorf("when it appears again: told of %v and %v, the list is %v", first.known, late.known, table.list)
	}
}
