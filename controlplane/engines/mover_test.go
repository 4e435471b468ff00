package engines

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/format/record"
	"scribe/storage/kv"
	"scribe/storage/kv/memkv"
	"scribe/storage/metalog"
	"scribe/storage/metalog/linear"
	"scribe/storage/metalog/pebblelog"
	"scribe/storage/metalog/router"
)

// errKilled is what a process that was killed sees of its calls.
var errKilled = errors.New("killed")

// process is one that leads the control planes, until it has made so many calls that change something.
type process struct {
	mu sync.Mutex
	// left counts the calls that it still makes; negative means any number. after says that the last one takes effect, and is not answered.
	left  int
	after bool
	dead  bool
}

// call makes a call that changes something.
func (p *process) call(do func() error) error {
	p.mu.Lock()
	dead, last := p.dead, p.left == 0
	p.dead = p.dead || last
	p.left--
	p.mu.Unlock()
	if dead || last && !p.after {
		return errKilled
	}
	if err := do(); err != nil {
		return err
	}
	if last {
		return errKilled
	}
	return nil
}

// engineOf is an engine as the process calls it.
type engineOf struct {
	metalog.Log
	p *process
}

func (e engineOf) MoveOut(ctx context.Context, shard record.ShardID, from, to string) (h metalog.Handover, err error) {
	err = e.p.call(func() error { h, err = e.Log.MoveOut(ctx, shard, from, to); return err })
	return h, err
}

func (e engineOf) MoveIn(ctx context.Context, h metalog.Handover, producers []metalog.MovedProducer) (st metalog.State, err error) {
	err = e.p.call(func() error { st, err = e.Log.MoveIn(ctx, h, producers); return err })
	return st, err
}

func (e engineOf) ForwardCategory(ctx context.Context, category uint32, f metalog.Forward) (mark metalog.Forward, err error) {
	if f == (metalog.Forward{}) {
		return e.Log.ForwardCategory(ctx, category, f)
	}
	err = e.p.call(func() error { mark, err = e.Log.ForwardCategory(ctx, category, f); return err })
	return mark, err
}

func (e engineOf) AdvanceBoundary(ctx context.Context, t int64) (b int64, err error) {
	err = e.p.call(func() error { b, err = e.Log.AdvanceBoundary(ctx, t); return err })
	return b, err
}

// storeOf is the store as the process calls it.
type storeOf struct {
	kv.Store
	p *process
}

func (s storeOf) Commit(ctx context.Context, ops ...kv.Op) (revision uint64, err error) {
	err = s.p.call(func() error { revision, err = s.Store.Commit(ctx, ops...); return err })
	return revision, err
}

// testCell is engines with clocks that are apart, and a store.
type testCell struct {
	t       *testing.T
	store   *memkv.Store
	engines []router.Engine
	// reader is the log as a process has it that no move is told to.
	reader *router.Log
	epochs map[record.ShardID]uint64
	wrote  map[record.ShardID][]string
}

var cellEngines = []string{"main", "b", "c"}

const moved = uint32(1) // the category that moves

func newTestCell(t *testing.T) *testCell {
	c := &testCell{t: t, store: memkv.New(), epochs: map[record.ShardID]uint64{}, wrote: map[record.ShardID][]string{}}
	for i, name := range cellEngines {
		ahead := int64(i) * (3 - 4*int64(i%2)) * time.Second.Microseconds() // 0, -1 s and 6 s
		e, err := pebblelog.Open("log", pebblelog.Options{FS: vfs.NewMem(), Clock: func() int64 { return time.Now().UnixMicro() + ahead }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		c.engines = append(c.engines, router.Engine{Name: name, Log: e})
	}
	c.reader = c.newRouter(c.engines)
	return c
}

func (c *testCell) newRouter(engines []router.Engine) *router.Log {
	c.t.Helper()
	l, err := router.New(engines, router.Options{Root: "main"})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = l.Close() })
	return l
}

// lead leads as a process that has just started, with what the store has, until nothing is left to do or the process is dead. It reports which.
func (c *testCell) lead(p *process, list List) (finished bool) {
	c.t.Helper()
	var own []router.Engine
	for _, e := range c.engines {
		own = append(own, router.Engine{Name: e.Name, Log: engineOf{e.Log, p}})
	}
	m := &Mover{Store: storeOf{c.store, p}, Log: c.newRouter(own)}
	m.Moves.Patience = time.Nanosecond
	planner := NewPlanner("main")
	page, err := c.store.Range(c.t.Context(), kv.KeyRange{Prefix: HomePrefix})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, e := range page.Entries {
		id, h, err := DecodeHome(e.Key, e.Value)
		if err != nil {
			c.t.Fatal(err)
		}
		planner.Restore(id, h)
	}
	planner.AddCategory(moved)
	planner.SetEngines(list)
	for range 100 {
		s, _, ok := planner.Next(0)
		if !ok {
			return true
		}
		learned, err := m.Take(c.t.Context(), s)
		switch {
		case errors.Is(err, errKilled):
			return false
		case err != nil:
			c.t.Fatalf("%+v: %v", s, err)
		case learned != nil:
			planner.Restore(s.Category, *learned)
		default:
			planner.Done(s)
		}
	}
	c.t.Fatal("the mover does not end")
	return false
}

// write appends a record of producer 5 to a log. While the log has no writer that fails; then it reports false, and nothing was written.
func (c *testCell) write(shard record.ShardID, text string) bool {
	c.t.Helper()
	states, err := c.reader.Open(c.t.Context(), "test", []record.ShardID{shard})
	if err != nil {
		if metalog.FindSentinel(err) != nil {
			c.t.Fatalf("open %v: %v", shard, err)
		}
		return false
	}
	if states[0].Epoch <= c.epochs[shard] {
		c.t.Fatalf("shard %v was opened in epoch %d after %d", shard, states[0].Epoch, c.epochs[shard])
	}
	c.epochs[shard] = states[0].Epoch
	n := uint64(len(c.wrote[shard]))
	a := &metalog.Append{Shards: []metalog.ShardAppend{{
		Shard: shard, Epoch: states[0].Epoch, ExpectLSN: record.LSN(n + 1), Records: [][]byte{[]byte(text)},
		Sequences: []metalog.Sequence{{Producer: 5, Epoch: 1, First: n, Last: n}},
	}}}
	if _, err := c.reader.Append(c.t.Context(), a); err != nil {
		c.t.Fatalf("append to %v: %v", shard, err)
	}
	c.wrote[shard] = append(c.wrote[shard], text)
	// The same run again is known, wherever the log is.
	if _, err := c.reader.Append(c.t.Context(), &metalog.Append{Shards: []metalog.ShardAppend{{
		Shard: shard, Epoch: states[0].Epoch, Records: [][]byte{[]byte("twice")}, Sequences: a.Shards[0].Sequences,
	}}}); !errors.Is(err, metalog.ErrSequence) {
		c.t.Fatalf("a run of sequences was stored twice in %v: %v", shard, err)
	}
	return true
}

// check reads every log through a router that has heard of nothing.
func (c *testCell) check(what string) {
	c.t.Helper()
	fresh := c.newRouter(c.engines)
	for shard, want := range c.wrote {
		entries, err := fresh.Read(c.t.Context(), shard, 1, 0, 0)
		var got []string
		last := int64(0)
		for _, e := range entries {
			got = append(got, string(e.Data))
			if e.Time < last {
				c.t.Errorf("%s: LSN %d of %v has time %d after %d", what, e.LSN, shard, e.Time, last)
			}
			last = e.Time
		}
		if err != nil || !slices.Equal(got, want) {
			c.t.Fatalf("%s: shard %v has %q, %v; want %q", what, shard, got, err, want)
		}
	}
}

// follow follows logs until they have ended, and checks each update.
func (c *testCell) follow(shards []record.ShardID) (wait func()) {
	followed := map[record.ShardID]*linear.FollowedShard{}
	var from []metalog.Position
	for _, s := range shards {
		followed[s] = &linear.FollowedShard{Next: record.FirstLSN}
		from = append(from, metalog.Position{Shard: s, LSN: record.FirstLSN})
	}
	ended, all := make(chan error, 1), errors.New("all have ended")
	go func() {
		ended <- c.reader.Subscribe(c.t.Context(), from, metalog.MinHeartbeat, func(updates []metalog.Update) error {
			for i := range updates {
				if err := followed[updates[i].Shard].TakeUpdate(&updates[i]); err != nil {
					return fmt.Errorf("shard %v: %w", updates[i].Shard, err)
				}
			}
			for _, f := range followed {
				if !f.Sealed {
					return nil
				}
			}
			return all
		})
	}()
	return func() {
		c.t.Helper()
		if err := <-ended; !errors.Is(err, all) {
			c.t.Errorf("the follower ended with %v", err)
		}
		for s, f := range followed {
			if f.Next != record.LSN(len(c.wrote[s])+1) || f.TrimmedTo != 0 {
				c.t.Errorf("the follower of %v ended at %d, trimmed to %d; want %d", s, f.Next, f.TrimmedTo, len(c.wrote[s])+1)
			}
		}
	}
}

// TestMoverKilledAtEachStep adds an engine, to which a category with two logs moves, and drains it. The process that does so is killed at each of the
// calls with which it changes something, before the call and after it; between, writers go on or are told to wait; then another process goes on. Nobody
// loses or repeats a record, and the category ends where it belongs.
func TestMoverKilledAtEachStep(t *testing.T) {
	target := "" // the engine that gets the category
	for _, name := range cellEngines[1:] {
		p := NewPlanner("main")
		p.SetEngines(List{{Name: "main"}, {Name: name}})
		if p.engineFor(moved) == name {
			target = name
		}
	}
	if target == "" {
		t.Fatal("the category stays in the root whatever is added: take another id")
	}
	for _, after := range []bool{false, true} {
		for kill := 0; ; kill++ {
			killed := false
			t.Run(fmt.Sprintf("call %d, after it %v", kill, after), func(t *testing.T) {
				killed = killMover(t, target, kill, after)
			})
			if !killed || t.Failed() {
				if kill < 8 {
					t.Errorf("only %d calls change something", kill)
				}
				break
			}
		}
	}
}

// killMover kills a process at a call, and reports whether it made so many.
func killMover(t *testing.T, target string, kill int, after bool) (killed bool) {
	c := newTestCell(t)
	old := []record.ShardID{record.MakeShardID(moved, 0, 1), record.MakeShardID(moved, 1, 1)}
	fresh := record.MakeShardID(moved, 2, 1)
	for i, s := range old {
		for n := range 3 {
			c.write(s, fmt.Sprint("before ", i, n))
		}
	}
	wait := c.follow(append(slices.Clone(old), fresh))
	between := func(when string) {
		c.reader = c.newRouter(c.engines) // one that has heard of nothing
		for _, s := range append(slices.Clone(old), fresh) {
			c.write(s, when)
		}
		c.check(when)
	}
	list, err := List{{Name: "main"}}.Add(target, 1)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{left: kill, after: after}
	draining := List(nil)
	if draining, err = list.Drain(target, 2); err != nil {
		t.Fatal(err)
	}
	// One process adds and drains, so that each call of both is one at which it is killed.
	added := c.lead(p, list)
	between("when it was added, or the process was killed")
	if !added {
		killed = true
		if !c.lead(&process{left: -1}, list) {
			t.Fatal("the next process did not finish")
		}
	}
	c.wantHome(target)
	between("after it was added")
	if added {
		if !c.lead(p, draining) {
			killed = true
			between("when the process was killed as it drained")
		}
	}
	if !c.lead(&process{left: -1}, draining) {
		t.Fatal("the next process did not finish")
	}
	c.wantHome("main")
	between("after it was drained")
	for _, e := range c.engines {
		states, err := e.Log.Shards(t.Context(), moved)
		if err != nil {
			t.Fatal(err)
		}
		for _, st := range states {
			if here := st.MovedTo == ""; here != (e.Name == "main") {
				t.Errorf("in the engine %q: %+v", e.Name, st)
			}
		}
	}
	for _, s := range append(slices.Clone(old), fresh) {
		if _, err := c.reader.Seal(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	wait()
	return killed
}

// wantHome checks where the category is, in the engines and in the store.
func (c *testCell) wantHome(engine string) {
	c.t.Helper()
	h, err := c.reader.HomeOf(c.t.Context(), moved)
	if err != nil || h.Engine != engine || h.From != "" {
		c.t.Fatalf("the home of the category is %+v, %v; want %q", h, err, engine)
	}
	e, err := c.store.Get(c.t.Context(), HomeKey(moved))
	if err != nil {
		c.t.Fatal(err)
	}
	if _, stored, err := DecodeHome(e.Key, e.Value); err != nil || stored != (Home{Engine: engine, Mark: h.Version}) {
		c.t.Fatalf("the stored home is %+v, %v; want %q with mark %d", stored, err, engine, h.Version)
	}
}

// A store that was lost is learned from the engines: nothing is taken for what it was at first.
func TestMoverLearnsFromTheEngines(t *testing.T) {
	c := newTestCell(t)
	shard := record.MakeShardID(moved, 0, 1)
	c.write(shard, "a")
	list := List{{Name: "main"}, {Name: "b", AddedAt: 1}, {Name: "c", AddedAt: 1}}
	c.lead(&process{left: -1}, list)
	h, err := c.reader.HomeOf(t.Context(), moved)
	if err != nil {
		t.Fatal(err)
	}
	other := slices.Clone(list)
	for i := range other[1:] {
		if other[1+i].Name == h.Engine {
			other[1+i].DrainingSince = 2
		}
	}
	c.store = memkv.New()
	if !c.lead(&process{left: -1}, other) {
		t.Fatal("the process did not finish")
	}
	c.write(shard, "b")
	c.check("after the store was lost")
	if now, err := c.reader.HomeOf(t.Context(), moved); err != nil || h.Engine != "main" && now.Engine == h.Engine {
		t.Errorf("the home is %+v, %v, which is drained", now, err)
	}
}
