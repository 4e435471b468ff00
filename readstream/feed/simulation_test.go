package feed

import (
	"cmp"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"scribe/internal/format/record"
	"scribe/readstream/merge"
	"scribe/storage/metalog"
)

// This simulates streams over an engine in virtual time, in one goroutine: the table and the merge are the real ones, and what is
// around them (the engine's answers, the driver of a stream) is a few lines that take as long as they say. The same seed gives the
// same run.

const (
	ms = int64(1000)
	s  = 1000 * ms
)

// scenario is what a simulation is made of.
type scenario struct {
	shards   int   // that exist at the start
	appear   int   // that come while it runs
	appends  int   // in all
	length   int64 // microseconds during which there are appends
	idle     float64
	stalls   int // times that a shard's subscription or reads do not answer for a while
	limit    int // bytes that a stream may hold
	slowPace int // records a second that the slow stream takes
}

type event struct {
	at  int64
	seq int
	do  func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].at, h[j].at), h[i].seq-h[j].seq) < 0
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

type simulation struct {
	t      *testing.T
	random *rand.Rand
	now    int64
	seq    int
	queue  eventHeap

	shards map[record.ShardID]*simShard
	ids    []record.ShardID
	table  *tailTable
	// A look that runs, and when the next one may begin.
	looking  bool
	wanted   bool
	nextLook int64
	streams  []*simStream
	stalls   []stall
	pause    int64 // between looks
}

type simShard struct {
	entries []metalog.Entry
	coming  bool // an update is on its way
	// stalled: until then its subscription and its reads do not answer.
	stalled int64
}

func (sh *simShard) next() record.LSN { return record.LSN(len(sh.entries)) + 1 }

func (sim *simulation) after(d int64, do func()) {
	sim.seq++
	heap.Push(&sim.queue, event{sim.now + d, sim.seq, do})
}

func (sim *simulation) between(least, most int64) int64 {
	return least + sim.random.Int64N(most-least+1)
}

func (sim *simulation) run(until int64) {
	for len(sim.queue) > 0 && sim.queue[0].at <= until {
		e := heap.Pop(&sim.queue).(event)
		sim.now = e.at
		e.do()
	}
	sim.now = until
}

func (sim *simulation) create() record.ShardID {
	id := record.MakeShardID(1, uint16(sim.random.IntN(10_000)), uint16(len(sim.ids)+1))
	sim.shards[id], sim.ids = &simShard{}, append(sim.ids, id)
	return id
}

func (sim *simulation) append(ids ...record.ShardID) {
	for _, id := range ids {
		sh := sim.shards[id]
		sh.entries = append(sh.entries, metalog.Entry{LSN: sh.next(), Time: sim.now, Data: make([]byte, 80)})
		sim.deliver(id)
	}
}

// deliver brings what is new in a shard, some time from now.
func (sim *simulation) deliver(id record.ShardID) {
	sh, x := sim.shards[id], sim.table.tails[id]
	if sh.coming || x == nil {
		return
	}
	sh.coming = true
	sim.after(max(sh.stalled-sim.now, 0)+sim.between(100, 2*ms), func() {
		// What it brings was gathered now; it arrives a little later.
		x := sim.table.tails[id]
		u := metalog.Update{Shard: id, Entries: sh.entries[x.sent-1:], NextLSN: sh.next(), Watermark: sim.now}
		sim.after(sim.between(0, ms), func() {
			sh.coming = false
			sim.table.applyUpdates([]metalog.Update{u})
			if u.NextLSN < sh.next() {
				sim.deliver(id)
			}
			sim.pump()
		})
	})
}

// heartbeat tells the watermarks of idle shards.
func (sim *simulation) heartbeat() {
	updates := make([]metalog.Update, 0, len(sim.ids))
	for _, id := range sim.ids {
		sh, x := sim.shards[id], sim.table.tails[id]
		if x != nil && !sh.coming && sh.stalled <= sim.now && x.sent == sh.next() {
			updates = append(updates, metalog.Update{Shard: id, NextLSN: sh.next(), Watermark: sim.now})
		}
	}
	sim.table.applyUpdates(updates)
	sim.pump()
	sim.after(s, sim.heartbeat)
}

func (sim *simulation) state(id record.ShardID) metalog.State {
	return metalog.State{Shard: id, FirstLSN: 1, NextLSN: sim.shards[id].next(), Epoch: 1, Watermark: sim.now}
}

func (sim *simulation) states() []metalog.State {
	out := make([]metalog.State, len(sim.ids))
	for i, id := range sim.ids {
		out[i] = sim.state(id)
	}
	return out
}

// look is what the looks of a feed do.
func (sim *simulation) look() {
	sim.wanted = true
	if sim.looking {
		return
	}
	sim.looking = true
	sim.after(max(sim.nextLook-sim.now, 0), func() {
		sim.wanted = false
		seen := sim.table.seen
		sim.after(sim.between(100, ms), func() {
			states := sim.states()
			sim.after(sim.between(100, ms), func() {
				sim.looking, sim.nextLook = false, sim.now+sim.pause
				sim.table.noteLooked(states, seen)
				sim.pump()
				if sim.wanted {
					sim.look()
				}
			})
		})
	})
}

func (sim *simulation) pump() {
	for _, st := range sim.streams {
		st.pump()
	}
}

// simStream is a stream's driver and its consumer.
type simStream struct {
	sim    *simulation
	name   string
	window int64
	merge  *merge.Merge
	member *Member
	limit  int

	appeared []record.ShardID
	joining  bool
	horizon  int64
	grace    int64 // until then it waits for its reads
	reading  map[record.ShardID]bool
	credits  int // -1 = no end

	at      map[record.ShardID]record.LSN
	got     []merge.Item
	newest  int64
	opened  int64
	longest map[string]int64 // time from append to delivery, by what was stalled
}

func (sim *simulation) open(name string, window int64, limit, credits int) *simStream {
	st := &simStream{
		sim: sim, name: name, window: window, limit: limit, credits: credits, merge: merge.New(merge.Options{Window: window, Limit: limit}),
		reading: map[record.ShardID]bool{}, at: map[record.ShardID]record.LSN{}, longest: map[string]int64{}, opened: sim.now,
	}
	st.member = &Member{listener: st}
	sim.table.joinMember(st.member)
	st.add(sim.states())
	sim.streams = append(sim.streams, st)
	return st
}

func (st *simStream) add(states []metalog.State) {
	for _, v := range states {
		st.merge.Add(v.Shard, 1)
		st.merge.Tail(v.Shard, v.NextLSN, v.Watermark, v.Sealed)
		st.at[v.Shard] = 1
	}
	st.sim.table.followShards(st.member, states)
	for _, v := range states {
		st.sim.deliver(v.Shard) // a subscription begins with what there is
	}
}

func (st *simStream) Updates(updates []metalog.Update) {
	for i := range updates {
		st.merge.Update(&updates[i])
	}
}

func (st *simStream) Tail(shard record.ShardID, next record.LSN, mark int64, sealed bool) {
	st.merge.Tail(shard, next, mark, sealed)
}
func (st *simStream) Floor(t int64)  { st.merge.Floor(t) }
func (st *simStream) Fail(err error) { st.sim.t.Fatal(err) }

func (st *simStream) Shards(fresh []record.ShardID, horizon int64) {
	for _, id := range fresh {
		if !st.merge.Has(id) {
			st.appeared = append(st.appeared, id)
		}
	}
	st.horizon = max(st.horizon, horizon)
	if len(st.appeared) == 0 && !st.joining {
		st.merge.Looked(st.horizon)
		return
	}
	if !st.joining {
		st.joining = true
		st.sim.after(0, st.appear)
	}
}

func (st *simStream) appear() {
	ids := st.appeared
	st.appeared = nil
	st.member.held = true
	st.sim.after(st.sim.between(100, 2*ms), func() {
		states := make([]metalog.State, len(ids))
		for i, id := range ids {
			states[i] = st.sim.state(id)
		}
		st.sim.after(st.sim.between(0, ms), func() {
			st.add(states)
			if len(st.appeared) > 0 {
				st.appear()
				return
			}
			st.joining = false
			st.merge.Looked(st.horizon)
			st.sim.pump()
		})
	})
}

const graceOfReads = 250 * ms

// forced is what a merge may hold beyond its limit: three records, see merge.Options.
const forced = 3 * (80 + 96)

// pump is the loop of a stream's driver.
func (st *simStream) pump() {
	for st.sim.now >= st.grace || len(st.reading) == 0 {
		kind, status := st.merge.Peek()
		switch {
		case status == merge.Look:
			st.sim.look()
			return
		case status == merge.Read:
			if len(st.reading) >= 8 {
				return
			}
			st.read()
		case status != merge.Ready, kind == merge.Entry && st.credits == 0:
			return
		default:
			it, _ := st.merge.Next()
			st.take(it)
		}
		if used := st.merge.Buffered(); used > st.limit+forced {
			st.sim.t.Fatalf("%s: %d bytes are buffered, the limit is %d", st.name, used, st.limit)
		}
	}
}

func (st *simStream) read() {
	sim := st.sim
	for _, w := range st.merge.Wants(nil, 8-len(st.reading)) {
		st.reading[w.Shard] = true
		sh := sim.shards[w.Shard]
		sim.after(max(sh.stalled-sim.now, 0)+sim.between(200, 3*ms), func() {
			delete(st.reading, w.Shard)
			room := w.MaxBytes
			var out []metalog.Entry
			for _, e := range sh.entries[w.LSN-1:] {
				if room -= len(e.Data); room < 0 && len(out) > 0 {
					break
				}
				out = append(out, e)
			}
			st.merge.Loaded(w.Shard, out)
			st.pump()
		})
	}
	st.grace = sim.now + graceOfReads
	sim.after(graceOfReads, func() {
		if st.grace <= sim.now {
			for id := range st.reading {
				st.merge.Late(id)
			}
			st.pump()
		}
	})
}

func (st *simStream) take(it merge.Item) {
	if it.Kind != merge.Entry || it.LSN != st.at[it.Shard] {
		st.sim.t.Fatalf("%s: %+v, want LSN %d", st.name, it, st.at[it.Shard])
	}
	st.at[it.Shard]++
	if st.window != merge.Unbounded && it.Time < st.newest-st.window {
		st.sim.t.Fatalf("%s: a record of %d after one of %d", st.name, it.Time, st.newest)
	}
	st.newest = max(st.newest, it.Time)
	st.got = append(st.got, it)
	if st.credits > 0 {
		st.credits--
	}
	if it.Time < st.opened+s {
		return // history, which is read in some time
	}
	when := calm
	for _, stall := range st.sim.stalls {
		if stall.from > st.sim.now || stall.to < it.Time-s { // it takes a while to catch up
			continue
		}
		if stall.shard == it.Shard {
			when = own
			break
		}
		when = others
	}
	st.longest[when] = max(st.longest[when], st.sim.now-it.Time)
}

// What was stalled when a record was delivered, or shortly before it was appended.
const (
	calm   = "nothing"
	others = "another shard"
	own    = "its shard"
)

// stall is when a shard did not answer.
type stall struct {
	shard    record.ShardID
	from, to int64
}

const longestStall = 3 * s

func newSimulation(t *testing.T, seed uint64, sc scenario) *simulation {
	sim := &simulation{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), pause: 5*ms + int64(sc.shards)*5, now: 1_000_000 * s, shards: map[record.ShardID]*simShard{}, table: newTailTable(),
	}
	for range sc.shards {
		sim.create()
	}
	busy := func() record.ShardID { // few shards get most, many get nothing
		n := int(float64(len(sim.ids)) * (1 - sc.idle))
		u := sim.random.Float64()
		return sim.ids[len(sim.ids)-1-int(u*u*float64(max(n, 1)-1))]
	}
	for range sc.appends {
		sim.after(sim.between(0, sc.length), func() {
			ids := []record.ShardID{busy()}
			for range sim.random.IntN(3) { // one transaction, one time
				if id := busy(); !slices.Contains(ids, id) {
					ids = append(ids, id)
				}
			}
			sim.append(ids...)
		})
	}
	for range sc.appear {
		sim.after(sim.between(0, sc.length), func() {
			id := sim.create()
			sim.append(id)
			if sim.random.IntN(2) == 0 { // else a look finds it
				sim.after(sim.between(0, 5*ms), func() { sim.table.noteAppeared([]record.ShardID{id}) })
			}
		})
	}
	for range sc.stalls {
		sim.after(sim.between(0, sc.length), func() {
			id := busy()
			sh := sim.shards[id]
			sh.stalled = max(sh.stalled, sim.now+sim.between(ms, longestStall))
			sim.stalls = append(sim.stalls, stall{id, sim.now, sh.stalled})
		})
	}
	sim.after(0, sim.heartbeat)
	return sim
}

// No window is broken and none deadlocks, whatever shards do: idle ones cost a look, a stalled one keeps back what the window does
// not allow before it and only while it is stalled, and one that appears is in time.
func TestSimulation(t *testing.T) {
	for name, sc := range map[string]scenario{
		"one shard":       {shards: 1, appends: 500, length: 20 * s, limit: 1 << 20, slowPace: 100},
		"skewed and idle": {shards: 50, appends: 3000, length: 20 * s, idle: 0.8, limit: 1 << 20, slowPace: 500},
		"appearing":       {shards: 0, appear: 60, appends: 2000, length: 20 * s, limit: 1 << 20, slowPace: 500},
		"stalled":         {shards: 20, appends: 3000, length: 40 * s, stalls: 6, limit: 1 << 20, slowPace: 500},
		"little memory":   {shards: 30, appear: 20, appends: 2000, length: 20 * s, stalls: 3, limit: 1000, slowPace: 300},
		"everything":      {shards: 200, appear: 100, appends: 5000, length: 100 * s, idle: 0.5, stalls: 10, limit: 20_000, slowPace: 200},
	} {
		if sc.shards == 0 {
			sc.appear++ // the first one, so that there is something to append to
		}
		seeds := uint64(4)
		if testing.Short() {
			seeds = 1
		}
		for seed := range seeds {
			t.Run(fmt.Sprintf("%s/seed=%d", name, seed), func(t *testing.T) { simulate(t, seed, sc) })
		}
	}
}

func TestSimulationOfTenThousandShards(t *testing.T) {
	simulate(t, 1, scenario{shards: 10_000, appear: 50, appends: 10_000, length: 5 * s, idle: 0.9, limit: 1 << 20, slowPace: 5000})
}

func simulate(t *testing.T, seed uint64, sc scenario) {
	sim := newSimulation(t, seed, sc)
	if sc.shards == 0 {
		sim.create()
	}
	sim.run(sim.now + sc.length/10) // there is some history
	windows := []struct {
		name   string
		window int64
	}{{"strict", 0}, {"strict too", 0}, {"1 s", s}, {"1 min", 60 * s}, {"unbounded", merge.Unbounded}}
	for _, w := range windows {
		sim.open(w.name, w.window, sc.limit, -1)
	}
	slow := sim.open("slow", s, sc.limit, 10)
	var pay func()
	pay = func() {
		slow.credits += max(sc.slowPace/100, 1)
		slow.pump()
		sim.after(10*ms, pay)
	}
	pay()
	sim.pump()
	sim.run(sim.now + sc.length + 5*longestStall)

	for _, st := range sim.streams {
		total := 0
		for id, sh := range sim.shards {
			if total += len(sh.entries); st.at[id] != sh.next() {
				t.Errorf("%s stopped in shard %v at %d of %d", st.name, id, st.at[id], sh.next())
			}
		}
		if len(st.got) != total || st.merge.Buffered() != 0 || st.merge.Pending() != 0 {
			t.Errorf("%s: %d of %d records, %d bytes left", st.name, len(st.got), total, st.merge.Buffered())
		}
		t.Logf("%s: longest waits %v", st.name, waits(st.longest))
		if st != slow && sc.limit >= 1<<20 {
			st.checkWaits()
		}
	}
	if a, b := sim.streams[0].got, sim.streams[1].got; !slices.EqualFunc(a, b, func(x, y merge.Item) bool { return x.Shard == y.Shard && x.LSN == y.LSN }) {
		t.Error("two strict streams differ")
	}
}

// checkWaits holds the longest waits of a stream that has memory and credits enough against what its window allows.
func (st *simStream) checkWaits() {
	st.sim.t.Helper()
	const aLittle = 100 * ms
	most := map[string]int64{calm: aLittle, own: longestStall + aLittle, others: longestStall + aLittle}
	if st.window > longestStall {
		most[others] = graceOfReads + aLittle // nothing waits for a shard that is stalled for less than the window
	}
	for when, longest := range st.longest {
		if longest > most[when] {
			st.sim.t.Errorf("%s: a record waited for %v while %s was stalled, expected at most %v", st.name,
				time.Duration(longest)*time.Microsecond, when, time.Duration(most[when])*time.Microsecond)
		}
	}
}

func waits(longest map[string]int64) map[string]time.Duration {
	out := map[string]time.Duration{}
	for k, v := range longest {
		out[k] = time.Duration(v) * time.Microsecond
	}
	return out
}
