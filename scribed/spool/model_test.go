package spool

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"
)

// modelRecord is what the model knows of a record.
type modelRecord struct {
	n       int // order of append
	data    []byte
	ref     Ref
	synced  bool
	claimed bool
	done    bool // or dropped
	saved   bool // the state was saved since it was done
}

// model is a spool and what it should hold.
type model struct {
	t       *rapid.T
	cfg     Config
	mem     *vfs.MemFS
	disk    *disk
	s       *Spool
	records map[string][]*modelRecord // in order of append
	next    int
}

var modelCategories = []string{"a", "b", "quiet", "with.a.longer-name"}

func newModel(t *rapid.T) *model {
	m := &model{t: t, cfg: testConfig(), mem: vfs.NewCrashableMem(), records: map[string][]*modelRecord{}}
	m.open()
	return m
}

func (m *model) open() {
	m.disk = newDisk(m.mem)
	s, err := Open(m.cfg, testDeps(m.disk))
	if err != nil {
		m.t.Fatal(err)
	}
	m.s = s
}

func (m *model) append(t *rapid.T) {
	n := rapid.IntRange(1, 8).Draw(t, "records")
	claimed := rapid.Bool().Draw(t, "claimed")
	var recs []Record
	var made []*modelRecord
	for range n {
		c := rapid.SampledFrom(modelCategories).Draw(t, "category")
		size := rapid.SampledFrom([]int{1, 20, 300, 1500, 3000}).Draw(t, "size")
		r := &modelRecord{n: m.next, data: payload(c, m.next, size), claimed: claimed}
		m.next++
		recs = append(recs, Record{Category: c, Messages: m.next % 5, Data: r.data})
		made = append(made, r)
	}
	refs, err := appendRecords(m.s, recs, claimed)
	if errors.Is(err, ErrFull) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range made {
		r.ref = refs[i]
		m.records[recs[i].Category] = append(m.records[recs[i].Category], r)
	}
}

func (m *model) sync(t *rapid.T) {
	if err := m.s.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, list := range m.records {
		for _, r := range list {
			r.synced = true
		}
	}
}

func (m *model) backlog(c string) []*modelRecord {
	var out []*modelRecord
	for _, r := range m.records[c] {
		if !r.done && !r.claimed {
			out = append(out, r)
		}
	}
	return out
}

func (m *model) claim(t *rapid.T) {
	c := rapid.SampledFrom(modelCategories).Draw(t, "category")
	buf := make([]byte, rapid.SampledFrom([]int{0, 500, 5000}).Draw(t, "buffer"))
	got, err := m.s.Claim(c, rapid.IntRange(0, 4000).Draw(t, "bytes"), ^Position(0), buf)
	if err != nil {
		t.Fatal(err)
	}
	want := m.backlog(c)
	if len(got) == 0 && len(want) > 0 || len(got) > len(want) {
		t.Fatalf("%d records of %s, the backlog has %d", len(got), c, len(want))
	}
	for i, g := range got {
		if g.Ref != want[i].ref || !bytes.Equal(g.Data, want[i].data) || g.Messages != (want[i].n+1)%5 {
			t.Fatalf("record %d of %s is %+v, want %d at %+v", i, c, g.Ref, want[i].n, want[i].ref)
		}
		want[i].claimed = true
	}
}

// some picks claimed records.
func (m *model) some(t *rapid.T) []*modelRecord {
	var all []*modelRecord
	for _, c := range modelCategories {
		for _, r := range m.records[c] {
			if r.claimed && !r.done {
				all = append(all, r)
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	from := rapid.IntRange(0, len(all)-1).Draw(t, "from")
	to := rapid.IntRange(from, len(all)).Draw(t, "to")
	return all[from:to]
}

func modelRefs(list []*modelRecord) []Ref {
	out := make([]Ref, len(list))
	for i, r := range list {
		out[i] = r.ref
	}
	return out
}

func (m *model) done(t *rapid.T) {
	list := m.some(t)
	m.s.Done(modelRefs(list)...)
	for _, r := range list {
		r.done = true
	}
}

func (m *model) release(t *rapid.T) {
	list := m.some(t)
	m.s.Release(modelRefs(list)...)
	for _, r := range list {
		r.claimed = false
	}
}

func (m *model) drop(t *rapid.T) {
	c := rapid.SampledFrom(modelCategories).Draw(t, "category")
	atLeast := int64(rapid.IntRange(0, 6000).Draw(t, "at least"))
	var want Amount
	for _, r := range m.backlog(c) {
		if want.Bytes >= atLeast {
			break
		}
		want.plus(Amount{1, int64((r.n + 1) % 5), int64(len(r.data))})
		r.done, r.claimed = true, true
	}
	if got := m.s.Drop(c, atLeast, time.Time{}, "test"); got != want {
		t.Fatalf("dropped %+v of %s, want %+v", got, c, want)
	}
}

func (m *model) save(t *rapid.T) {
	saveNow(t, m.s)
	for _, list := range m.records {
		for _, r := range list {
			r.saved = r.done
		}
	}
}

// pressure lets the keeper rewrite what it would if the spool were full.
func (m *model) pressure(t *rapid.T) {
	m.s.mu.Lock()
	was := m.s.mu.diskFull
	m.s.mu.diskFull = true
	m.s.mu.Unlock()
	m.s.kickKeeper.WakeUp()
	m.sync(t)
	settle(t, m.s)
	m.s.mu.Lock()
	m.s.mu.diskFull = was
	m.s.mu.Unlock()
}

// crash ends the spool as a power loss does, and checks what is found afterwards.
func (m *model) crash(t *rapid.T) {
	percent := rapid.SampledFrom([]int{0, 30, 70, 100}).Draw(t, "percent")
	seed := rapid.Uint64().Draw(t, "seed")
	after := m.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(seed, 1))})
	m.end(t)
	m.mem = after
	m.open()
	m.recovered(t)
}

func (m *model) end(t *rapid.T) {
	if err := m.s.Close(); err != nil {
		t.Fatal(err)
	}
	if most := m.disk.mostUsed(); most > m.cfg.MaxBytes {
		t.Fatalf("the files took %d bytes, the limit is %d", most, m.cfg.MaxBytes)
	}
}

// restart ends it in order.
func (m *model) restart(t *rapid.T) {
	m.sync(t)
	m.end(t)
	for _, list := range m.records {
		for _, r := range list {
			r.saved = r.done
		}
	}
	m.open()
	m.recovered(t)
}

// recovered checks what a spool holds that was opened again, and makes that the model.
func (m *model) recovered(t *rapid.T) {
	if l := m.s.Losses(); len(l) > 0 {
		t.Fatalf("a crash is no damage: %+v", l)
	}
	for _, c := range modelCategories {
		want := map[string]*modelRecord{}
		for _, r := range m.records[c] {
			want[string(r.data)] = r
		}
		last := -1
		var found []*modelRecord
		got := claimAll(t, m.s, c)
		for _, g := range got {
			r := want[string(g.Data)]
			if r == nil {
				t.Fatalf("%s: %d bytes were never appended", c, len(g.Data))
			}
			if r.saved {
				t.Fatalf("%s: %d was done, saved, and is given out again", c, r.n)
			}
			if r.n <= last {
				t.Fatalf("%s: %d after %d", c, r.n, last)
			}
			last = r.n
			delete(want, string(g.Data))
			r.ref, r.claimed, r.done, r.synced = g.Ref, false, false, true
			found = append(found, r)
		}
		for _, r := range want {
			if r.synced && !r.done {
				t.Fatalf("%s: %d was synced, not done, and is gone", c, r.n)
			}
		}
		slices.SortFunc(found, func(a, b *modelRecord) int { return a.n - b.n })
		m.records[c] = found
		m.s.Release(refsOfClaimed(got)...)
	}
}

func (m *model) check(t *rapid.T) {
	check(t, m.s)
	for _, c := range modelCategories {
		var want CategorySums
		for _, r := range m.records[c] {
			if r.done {
				continue
			}
			a := Amount{1, int64((r.n + 1) % 5), int64(len(r.data))}
			want.Held.plus(a)
			if !r.claimed {
				want.Unclaimed.plus(a)
			}
		}
		if got := m.s.Queue(c); got.Held != want.Held || got.Unclaimed != want.Unclaimed {
			t.Fatalf("%s: %+v, want %+v", c, got, want)
		}
	}
	if used, limit := m.s.Used(); used > limit {
		t.Fatalf("%d of %d bytes are used", used, limit)
	}
}

// TestModel runs random operations with crashes against a model: what is synced and not done is given out after a crash, in order,
// with its bytes; nothing else is; what was done and saved is not; and the limit holds at all times.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		defer func() { _ = m.s.Close() }()
		t.Repeat(map[string]func(*rapid.T){
			"append": m.append, "append again": m.append, "append more": m.append, "sync": m.sync, "claim": m.claim, "claim again": m.claim,
			"done": m.done, "done again": m.done, "release": m.release,
			"drop": m.drop, "save": m.save, "pressure": m.pressure, "crash": m.crash, "restart": m.restart, "": m.check,
		})
		m.end(t)
	})
}
