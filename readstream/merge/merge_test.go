package merge

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// First bytes of records that tell something to the test.
const (
	damaged     = 0xBA
	overwritten = 0xEE
)

// engine is a metadata engine of a few lines: one clock, shards with records, trimming and sealing.
type engine struct {
	now    int64
	shards map[record.ShardID]*shardLog
	ids    []record.ShardID
}

type shardLog struct {
	first   record.LSN // oldest record that is left
	records []metalog.Entry
	sealed  bool
	erased  bool // then also sealed
}

func (l *shardLog) next() record.LSN { return record.LSN(len(l.records)) + 1 }

func (e *engine) create() record.ShardID {
	id := record.MakeShardID(1, 0, uint16(len(e.ids)+1))
	// Ids do not come in order of creation.
	id ^= record.ShardID(len(e.ids)%3) << 16
	e.shards[id] = &shardLog{first: 1}
	e.ids = append(e.ids, id)
	return id
}

func (e *engine) append(id record.ShardID, size int) {
	if l := e.shards[id]; !l.sealed {
		l.records = append(l.records, metalog.Entry{LSN: l.next(), Time: e.now, Data: make([]byte, size)})
	}
}

// read is what metalog.Log.Read does; trimmed is where to go on when the position was trimmed.
func (e *engine) read(id record.ShardID, from record.LSN, maxBytes int) (out []metalog.Entry, trimmed record.LSN) {
	l := e.shards[id]
	if l.erased {
		return nil, 0
	}
	if from < l.first {
		return nil, l.first
	}
	for _, r := range l.records[min(int(from)-1, len(l.records)):] {
		if maxBytes -= len(r.Data); maxBytes < 0 && len(out) > 0 {
			break
		}
		out = append(out, metalog.Entry{LSN: r.LSN, Time: r.Time, Data: slices.Clone(r.Data)})
	}
	return out, 0
}

// subscription sends updates of one shard.
type subscription struct {
	at record.LSN
}

func (s *subscription) update(e *engine, id record.ShardID, limit int) metalog.Update {
	l := e.shards[id]
	if l.erased { // as a subscription tells that was opened again: it knows of no tail
		return metalog.Update{Shard: id, NextLSN: s.at, Watermark: e.now, Sealed: true}
	}
	u := metalog.Update{Shard: id, NextLSN: l.next()}
	if s.at < l.first {
		s.at, u.TrimmedTo = l.first, l.first
	}
	for s.at < l.next() && len(u.Entries) < limit {
		r := l.records[s.at-1]
		u.Entries = append(u.Entries, metalog.Entry{LSN: r.LSN, Time: r.Time, Data: slices.Clone(r.Data)})
		s.at++
	}
	if s.at == l.next() {
		u.Watermark, u.Sealed = e.now, l.sealed
	}
	return u
}

// world is an engine, a merge of its shards, and what was handed out.
type world struct {
	t      *rapid.T
	engine engine
	merge  *Merge
	opts   Options
	subs   map[record.ShardID]*subscription
	at     map[record.ShardID]record.LSN // next expected of each shard
	told   map[record.ShardID]record.LSN // tails that the merge was told
	ended  map[record.ShardID]bool
	got    []Item
	newest int64 // largest time handed out
	fails  bool  // reads may fail
}

func newWorld(t *rapid.T, window int64) *world {
	w := &world{
		t: t, engine: engine{now: 1000, shards: map[record.ShardID]*shardLog{}},
		subs: map[record.ShardID]*subscription{}, told: map[record.ShardID]record.LSN{}, at: map[record.ShardID]record.LSN{}, ended: map[record.ShardID]bool{},
		opts: Options{Window: window, Limit: rapid.IntRange(100, 3000).Draw(t, "limit")},
	}
	if rapid.Bool().Draw(t, "shared") {
		w.opts.Budget = NewBudget(int64(rapid.IntRange(100, 3000).Draw(t, "budget")))
	}
	w.merge = New(w.opts)
	return w
}

// look is what the driver does on Look. It reports whether that told the merge anything.
func (w *world) look() bool {
	floor, horizon, shards := w.merge.floor, w.merge.horizon, w.merge.Total()
	w.discover()
	w.floor()
	return w.merge.floor > floor || w.merge.horizon > horizon || w.merge.Total() > shards
}

// floor tells what holds for all records beyond the tails that were told.
func (w *world) floor() {
	least := w.engine.now
	for id, told := range w.told {
		if l := w.engine.shards[id]; told < l.next() {
			least = min(least, l.records[told-1].Time)
		}
	}
	w.merge.Floor(least)
}

// discover looks for new shards.
func (w *world) discover() {
	seen := w.merge.Seen()
	for _, id := range w.engine.ids {
		if w.merge.Has(id) {
			continue
		}
		l := w.engine.shards[id]
		if l.erased {
			continue
		}
		w.merge.Add(id, 1)
		w.merge.Tail(id, l.next(), w.engine.now, l.sealed)
		w.subs[id], w.told[id] = &subscription{at: l.next()}, l.next()
		w.at[id] = 1
	}
	w.merge.Looked(seen)
}

// pump answers reads and takes items until the merge waits, or limit items were taken.
func (w *world) pump(limit int) {
	for limit > 0 {
		it, status := w.merge.Next()
		switch status {
		case Idle:
			return
		case Look:
			if !w.look() {
				return
			}
		case Read:
			w.answer(rapid.IntRange(1, 4).Draw(w.t, "parallel"))
		case Ready:
			w.take(it)
			limit--
		}
		w.checkMemory()
	}
}

func (w *world) answer(n int) {
	wants := w.merge.Wants(nil, n)
	if len(wants) == 0 {
		w.t.Fatal("Read without a want")
	}
	for _, want := range wants {
		if w.fails {
			switch rapid.IntRange(0, 8).Draw(w.t, "fail") {
			case 0:
				w.merge.Fail(want.Shard)
				continue
			case 1:
				if !w.engine.shards[want.Shard].sealed {
					w.merge.Loaded(want.Shard, nil) // an engine that is behind itself
					continue
				}
			}
		}
		entries, trimmed := w.engine.read(want.Shard, want.LSN, want.MaxBytes)
		switch {
		case trimmed > 0:
			w.merge.Skip(want.Shard, trimmed, Trimmed)
		case len(entries) > 0 && entries[0].Data[0] == damaged:
			w.merge.Skip(want.Shard, want.LSN+1, Corrupt)
		default:
			w.merge.Loaded(want.Shard, entries)
		}
	}
}

func (w *world) checkMemory() {
	largest := 64 + entryOverhead // of the records that this test appends
	if used := w.merge.Buffered(); used > w.opts.Limit+largest {
		w.t.Fatalf("%d bytes are buffered, the limit is %d", used, w.opts.Limit)
	}
	if b := w.opts.Budget; b != nil && b.Used() != int64(w.merge.Buffered()) {
		w.t.Fatalf("the budget has %d bytes, the merge %d", b.Used(), w.merge.Buffered())
	}
}

func (w *world) take(it Item) {
	if w.ended[it.Shard] {
		w.t.Fatalf("%+v after the end of the shard", it)
	}
	if it.LSN != w.at[it.Shard] {
		w.t.Fatalf("%+v: want LSN %d", it, w.at[it.Shard])
	}
	switch it.Kind {
	case Entry:
		want := w.engine.shards[it.Shard].records[it.LSN-1]
		if it.Time != want.Time || len(it.Data) != len(want.Data) || slices.Contains(it.Data, overwritten) {
			w.t.Fatalf("%+v: want %+v", it, want)
		}
		if w.opts.Window != Unbounded && it.Time < w.newest-w.opts.Window {
			w.t.Fatalf("%+v after one of time %d, the window is %d", it, w.newest, w.opts.Window)
		}
		w.newest = max(w.newest, it.Time)
		w.at[it.Shard]++
		w.got = append(w.got, it)
	case Gap:
		if l := w.engine.shards[it.Shard]; it.To <= it.LSN || it.Cause == Trimmed && it.To > l.first && !l.erased {
			w.t.Fatalf("%+v: nothing was trimmed there", it)
		}
		w.at[it.Shard] = it.To
	case End:
		if l := w.engine.shards[it.Shard]; !l.sealed || it.LSN != l.next() && !l.erased {
			w.t.Fatalf("%+v: the shard has not ended there", it)
		}
		w.ended[it.Shard] = true
	}
	if p, _ := w.merge.Held(it.Shard); p != w.at[it.Shard] {
		w.t.Fatalf("position %d after %+v", p, it)
	}
}

func (w *world) anyShard(t *rapid.T) record.ShardID {
	if len(w.engine.ids) == 0 {
		return w.engine.create()
	}
	return rapid.SampledFrom(w.engine.ids).Draw(t, "shard")
}

// actions are the moves of the outside world, in any order.
func (w *world) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"create": func(*rapid.T) {
			if len(w.engine.ids) < 8 {
				w.engine.create()
			}
		},
		"append": func(t *rapid.T) {
			// One transaction may append to several shards: their records have one time.
			for range rapid.IntRange(1, 4).Draw(t, "shards") {
				w.engine.append(w.anyShard(t), rapid.IntRange(1, 64).Draw(t, "size"))
			}
		},
		"tick": func(t *rapid.T) { w.engine.now += rapid.Int64Range(1, 50).Draw(t, "by") },
		"update": func(t *rapid.T) {
			id := w.anyShard(t)
			if s := w.subs[id]; s != nil {
				u := s.update(&w.engine, id, rapid.IntRange(0, 5).Draw(t, "entries"))
				w.merge.Update(&u)
				w.told[id] = max(w.told[id], u.NextLSN)
				for i := range u.Entries { // the merge may keep nothing but the data
					u.Entries[i] = metalog.Entry{Time: math.MaxInt64, Data: []byte{overwritten}}
				}
			}
		},
		"damage": func(t *rapid.T) {
			if l := w.engine.shards[w.anyShard(t)]; len(l.records) > 0 {
				rapid.SampledFrom(l.records).Draw(t, "record").Data[0] = damaged
			}
		},
		"trim": func(t *rapid.T) {
			l := w.engine.shards[w.anyShard(t)]
			l.first = max(l.first, record.LSN(rapid.Uint64Range(1, uint64(l.next())).Draw(t, "to")))
		},
		"seal": func(t *rapid.T) { w.engine.shards[w.anyShard(t)].sealed = true },
		"erase": func(t *rapid.T) {
			l := w.engine.shards[w.anyShard(t)]
			l.sealed, l.erased = true, true
		},
		"retry":    func(*rapid.T) { w.merge.Retry() },
		"discover": func(*rapid.T) { w.discover() },
		"floor":    func(*rapid.T) { w.floor() },
		"shrink": func(t *rapid.T) {
			before := w.merge.Low()
			w.merge.Shrink()
			if b := w.opts.Budget; b != nil && b.Used() > b.shareBytes() {
				t.Fatalf("%d bytes are held of a share of %d", b.Used(), b.shareBytes())
			}
			if low := w.merge.Low(); low < before {
				t.Fatalf("the low watermark goes back from %d to %d", before, low)
			}
		},
		"pump": func(t *rapid.T) { w.pump(rapid.IntRange(1, 20).Draw(t, "items")) },
	}
}

// finish lets all that was appended through, and checks that it came.
func (w *world) finish() {
	w.fails = false
	w.discover()
	for range 2 { // a read may fail no more, but one that did is repeated only now
		w.engine.now++
		w.merge.Retry()
		for _, id := range w.engine.ids {
			if w.subs[id] == nil {
				continue // erased before it was discovered
			}
			u := w.subs[id].update(&w.engine, id, math.MaxInt)
			w.merge.Update(&u)
			w.told[id] = u.NextLSN
		}
		w.pump(math.MaxInt)
	}
	for _, id := range w.engine.ids {
		l := w.engine.shards[id]
		if w.subs[id] == nil {
			continue
		}
		if w.at[id] != l.next() && !l.erased {
			w.t.Fatalf("shard %v stopped at %d of %d", id, w.at[id], l.next())
		}
		if l.sealed != w.ended[id] {
			w.t.Fatalf("shard %v: sealed %v, ended %v", id, l.sealed, w.ended[id])
		}
	}
	if w.merge.Buffered() != 0 || w.merge.Pending() != 0 {
		w.t.Fatalf("%d bytes and %d records are left", w.merge.Buffered(), w.merge.Pending())
	}
}

func TestMerge(t *testing.T) {
	for _, window := range []int64{Unbounded, 0, 1, 30, math.MaxInt64 - 1} {
		t.Run(fmt.Sprintf("window=%d", window), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := newWorld(t, window)
				w.fails = true
				t.Repeat(w.actions())
				w.finish()
				if window == 0 && !slices.IsSortedFunc(w.got, inOrder) {
					t.Fatalf("not in the total order: %v", w.got)
				}
			})
		})
	}
}

func inOrder(a, b Item) int {
	return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(a.Shard, b.Shard), cmp.Compare(a.LSN, b.LSN))
}

// What is there when the merge begins comes in order of time also without a window, whatever the memory.
func TestHistoryIsOrdered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, Unbounded)
		for range rapid.IntRange(1, 6).Draw(t, "shards") {
			w.engine.create()
		}
		for range rapid.IntRange(0, 100).Draw(t, "records") {
			w.engine.now += rapid.Int64Range(0, 2).Draw(t, "tick")
			w.engine.append(w.anyShard(t), rapid.IntRange(1, 64).Draw(t, "size"))
		}
		w.discover()
		w.pump(math.MaxInt)
		if !slices.IsSortedFunc(w.got, inOrder) {
			t.Fatalf("not in order: %v", w.got)
		}
		w.finish()
	})
}

// The low watermark is a promise about what comes later, minus the window.
func TestLow(t *testing.T) {
	for _, window := range []int64{0, 30} {
		rapid.Check(t, func(t *rapid.T) {
			w := newWorld(t, window)
			var low int64
			actions := w.actions()
			actions[""] = func(t *rapid.T) {
				low = max(low, w.merge.Low())
				seen := len(w.got)
				w.pump(3)
				for _, it := range w.got[seen:] {
					if it.Time < low-window {
						t.Fatalf("%+v after a watermark of %d", it, low)
					}
				}
			}
			delete(actions, "pump")
			t.Repeat(actions)
		})
	}
}

func TestFailedShardDoesNotHoldUpOthers(t *testing.T) {
	m := New(Options{Window: Unbounded, Limit: 1 << 20})
	for _, id := range []record.ShardID{1, 2} {
		m.Add(id, 1)
		m.Tail(id, 2, 0, false)
	}
	for _, want := range m.Wants(nil, 10) {
		if want.Shard == 1 {
			m.Fail(1)
		} else {
			m.Loaded(2, []metalog.Entry{{LSN: 1, Time: 7, Data: []byte("x")}})
		}
	}
	if it, s := m.Next(); s != Ready || it.Shard != 2 {
		t.Fatalf("got %+v, %v", it, s)
	}
	if _, s := m.Next(); s != Idle {
		t.Fatalf("status %v, want %v", s, Idle)
	}
	if !m.Retry() {
		t.Fatal("nothing to retry")
	}
	if _, s := m.Next(); s != Read {
		t.Fatalf("status %v, want %v", s, Read)
	}
}

// A record that there is no room for is ordered by its time and read when it is its turn; a read of it that fails waits like any
// other for Retry, instead of being repeated at once.
func TestNoRoom(t *testing.T) {
	for name, answer := range map[string]func(*Merge){
		"failed": func(m *Merge) { m.Fail(1) },
		"empty":  func(m *Merge) { m.Loaded(1, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			m := New(Options{Window: Unbounded, Limit: 1})
			e := []metalog.Entry{{LSN: 1, Time: 7, Data: []byte("x")}}
			read := func() {
				t.Helper()
				if _, s := m.Next(); s != Read {
					t.Fatalf("status %v, want a read", s)
				}
				if wants := m.Wants(nil, 10); len(wants) != 1 || wants[0].LSN != 1 {
					t.Fatalf("wants %+v", wants)
				}
			}
			m.Add(1, 1)
			m.Tail(1, 2, 0, false)
			read()
			m.Loaded(1, e)
			if m.Buffered() != 0 || m.Low() != 7 {
				t.Fatalf("%d bytes buffered, low %d", m.Buffered(), m.Low())
			}
			read()
			answer(m)
			if _, s := m.Next(); s != Idle {
				t.Fatalf("status %v after a failure, want %v", s, Idle)
			}
			m.Retry()
			read()
			m.Loaded(1, e)
			if _, s := m.Next(); s == Read {
				read()
				m.Loaded(1, e)
			}
			if it, s := m.Next(); s != Ready || it.LSN != 1 {
				t.Fatalf("got %+v, %v", it, s)
			}
		})
	}
}

// The rest of a record that was handed out in part comes before older ones, and they wait for it; a trimmed one is told of, and one that
// does not exist holds up nothing.
func TestBegin(t *testing.T) {
	for _, window := range []int64{0, 10, Unbounded} {
		m := New(Options{Window: window, Limit: 1 << 20})
		m.Looked(100)
		for _, id := range []record.ShardID{1, 2} {
			m.Add(id, 1)
			m.Tail(id, 2, 50, false)
		}
		m.Begin(2)
		m.Wants(nil, 10)
		m.Loaded(1, []metalog.Entry{{LSN: 1, Time: 7, Data: []byte("x")}})
		if it, s := m.Next(); s != Idle {
			t.Fatalf("window %d: %+v, %v before the record that was begun", window, it, s)
		}
		m.Loaded(2, []metalog.Entry{{LSN: 1, Time: 9, Data: []byte("y")}})
		for _, want := range []record.ShardID{2, 1} {
			if _, s := m.Peek(); s != Ready {
				t.Fatalf("window %d: %v before shard %d", window, s, want)
			}
			if shard, lsn := m.Head(); shard != want || lsn != 1 {
				t.Fatalf("window %d: the next one is LSN %d of shard %v, want shard %d", window, lsn, shard, want)
			}
			if it, s := m.Next(); s != Ready || it.Shard != want {
				t.Fatalf("window %d: %+v, %v, want shard %d", window, it, s, want)
			}
		}
	}
	m := New(Options{Window: Unbounded, Limit: 1 << 20})
	for _, id := range []record.ShardID{1, 2, 3} {
		m.Add(id, 1)
		m.Tail(id, 2, 50, false)
	}
	m.Add(4, 2)
	m.Tail(4, 2, 50, false)
	m.Begin(4)
	m.Begin(2)
	m.Wants(nil, 10)
	m.Loaded(1, []metalog.Entry{{LSN: 1, Time: 7, Data: []byte("x")}})
	m.Skip(2, 2, Trimmed)
	if it, s := m.Next(); s != Ready || it.Kind != Gap || it.Shard != 2 {
		t.Fatalf("%+v, %v, want the gap", it, s)
	}
	if it, s := m.Next(); s != Ready || it.Shard != 1 {
		t.Fatalf("%+v, %v", it, s)
	}
}
