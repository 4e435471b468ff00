package router_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"scribe/internal/format/record"
	"scribe/internal/testkit/testclock"
	"scribe/internal/transport/retry"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog"
	"scribe/storage/metalog/router"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const category = 7

var (
	full   = record.MakeShardID(category, 0, 1)
	empty  = record.MakeShardID(category, 1, 1)
	sealed = record.MakeShardID(category, 2, 1)
	fresh  = record.MakeShardID(category, 3, 1) // does not exist at first
)

// pair is two engines with clocks of their own, and a router that has heard of no move.
type pair struct {
	t             *testing.T
	first, second router.Engine
	clocks        [2]*testclock.Clock
	stale         *router.Log
	stored        []string // what full has been acknowledged
	epoch         uint64   // of full
}

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{t: t, clocks: [2]*testclock.Clock{testclock.New(), testclock.New()}}
	open := func(name string, clock *testclock.Clock) router.Engine {
		e, err := pebblelog.Open("log", pebblelog.Options{FS: vfs.NewMem(), Clock: clock.Now})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
		return router.Engine{Name: name, Log: e}
	}
	p.first, p.second = open("first", p.clocks[0]), open("second", p.clocks[1])
	p.stale = p.newRouter()
	return p
}

// newRouter returns a router of both engines that knows nothing of their logs.
func (p *pair) newRouter() *router.Log {
	p.t.Helper()
	l, err := router.New([]router.Engine{p.first, p.second}, router.Options{Root: "first"})
	p.must(err)
	p.t.Cleanup(func() {
		if err := l.Close(); err != nil {
			p.t.Error(err)
		}
	})
	return l
}

func (p *pair) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// fill makes the logs that exist at first.
func (p *pair) fill() {
	p.t.Helper()
	p.open(p.stale)
	_, err := p.stale.Open(p.t.Context(), "test", []record.ShardID{empty, sealed})
	p.must(err)
	_, err = p.stale.Seal(p.t.Context(), sealed)
	p.must(err)
	_, err = p.stale.AdvanceBoundary(p.t.Context(), 1000)
	p.must(err)
	for i := range 3 {
		p.must(p.append(p.stale, fmt.Sprint("before ", i)))
	}
}

func (p *pair) open(l metalog.Log) {
	p.t.Helper()
	states, err := l.Open(p.t.Context(), "test", []record.ShardID{full})
	p.must(err)
	p.epoch = states[0].Epoch
}

// append stores a record with the next sequence of a producer.
func (p *pair) append(l metalog.Log, text string) error {
	next := uint64(len(p.stored))
	_, err := l.Append(p.t.Context(), &metalog.Append{Shards: []metalog.ShardAppend{{
		Shard: full, Epoch: p.epoch, ExpectLSN: record.LSN(next + 1), Records: [][]byte{[]byte(text)},
		Sequences: []metalog.Sequence{{Producer: 5, Epoch: 1, First: next, Last: next}},
	}}})
	if err == nil {
		p.stored = append(p.stored, text)
	}
	return err
}

// relocation moves the category to the second engine, by way of engines that may fail.
func (p *pair) relocation(wrap func(metalog.Log) metalog.Log) *router.Relocation {
	from, to := router.Engine{Name: "first", Log: wrap(p.first.Log)}, router.Engine{Name: "second", Log: wrap(p.second.Log)}
	return &router.Relocation{Category: category, From: from, To: to, Version: 1}
}

func (p *pair) relocate() {
	p.t.Helper()
	if _, err := p.relocation(func(l metalog.Log) metalog.Log { return l }).Run(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
}

// crash is a process that ends at one of its calls that change something: before or after the call is carried out.
type crash struct {
	at    int
	after bool
	calls int
	end   context.CancelFunc
}

var errCrashed = errors.New("the process has ended")

func (c *crash) call(do func() error) error {
	n := c.calls
	c.calls++
	if n > c.at || n == c.at && !c.after {
		c.end()
		return errCrashed
	}
	err := do()
	if n == c.at {
		c.end()
		return errors.Join(errCrashed, err)
	}
	return err
}

// crashingLog is an engine as that process sees it.
type crashingLog struct {
	metalog.Log
	c *crash
}

func (l *crashingLog) MoveOut(ctx context.Context, shard record.ShardID, from, to string) (h metalog.Handover, err error) {
	err = l.c.call(func() error { h, err = l.Log.MoveOut(ctx, shard, from, to); return err })
	return h, err
}

func (l *crashingLog) MoveIn(ctx context.Context, h metalog.Handover, producers []metalog.MovedProducer) (st metalog.State, err error) {
	err = l.c.call(func() error { st, err = l.Log.MoveIn(ctx, h, producers); return err })
	return st, err
}

func (l *crashingLog) ForwardCategory(ctx context.Context, category uint32, f metalog.Forward) (mark metalog.Forward, err error) {
	err = l.c.call(func() error { mark, err = l.Log.ForwardCategory(ctx, category, f); return err })
	return mark, err
}

func (l *crashingLog) AdvanceBoundary(ctx context.Context, t int64) (at int64, err error) {
	err = l.c.call(func() error { at, err = l.Log.AdvanceBoundary(ctx, t); return err })
	return at, err
}

// A relocation ends at each of its calls, before and after the call has had its effect. Whoever runs it again finishes it. Until then and afterwards a
// router that knows nothing of it stores nothing twice and reads all that was acknowledged.
func TestRelocationEndsAnywhere(t *testing.T) {
	for at := 0; ; at++ {
		finished := false
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("call %d, carried out %v", at, after), func(t *testing.T) {
				p := newPair(t)
				p.fill()
				follower := p.follow(p.stale)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				c := &crash{at: at, after: after, end: cancel}
				_, err := p.relocation(func(l metalog.Log) metalog.Log { return &crashingLog{l, c} }).Run(ctx)
				finished = finished || err == nil
				p.tryWriting("between")
				p.checkStored(p.newRouter())
				p.relocate()
				p.checkMoved()
				p.tryWriting("after")
				p.checkStored(p.newRouter())
				p.checkStored(p.stale)
				follower.await(p.stored)
			})
		}
		if finished {
			return
		}
	}
}

// tryWriting writes as a batcher does: with the epoch that it has, then with one that it asks for. Between the steps of a move it may be told to try
// again, and then nothing was stored.
func (p *pair) tryWriting(text string) {
	p.t.Helper()
	err := p.append(p.stale, text)
	if err == nil {
		return
	}
	if !errors.Is(err, metalog.ErrFenced) && retry.Classify(err).Class != retry.Unavailable {
		p.t.Fatalf("an append with the epoch of before: %v", err)
	}
	states, err := p.stale.Open(p.t.Context(), "test", []record.ShardID{full})
	if err != nil {
		if retry.Classify(err).Class != retry.Unavailable {
			p.t.Fatalf("opening the log: %v", err)
		}
		return
	}
	p.epoch = states[0].Epoch
	p.must(p.append(p.stale, text))
}

// checkStored reads all that was acknowledged.
func (p *pair) checkStored(l metalog.Log) {
	p.t.Helper()
	states, err := l.Tail(p.t.Context(), []record.ShardID{full, sealed, fresh})
	p.must(err)
	if st := states[0]; st.FirstLSN != 1 || int(st.NextLSN) != len(p.stored)+1 || st.Sealed {
		p.t.Errorf("the state is %+v, and %d records were stored", st, len(p.stored))
	}
	if !states[1].Sealed || states[1].Epoch == 0 {
		p.t.Errorf("the sealed log is %+v", states[1])
	}
	var texts []string
	for lsn := record.FirstLSN; ; {
		entries, err := l.Read(p.t.Context(), full, lsn, 0, 0)
		p.must(err)
		if len(entries) == 0 {
			break
		}
		for _, e := range entries {
			if e.LSN != lsn {
				p.t.Fatalf("LSN %d follows %d", e.LSN, lsn-1)
			}
			lsn++
			texts = append(texts, string(e.Data))
		}
	}
	if fmt.Sprint(texts) != fmt.Sprint(p.stored) {
		p.t.Errorf("the log has %q, stored were %q", texts, p.stored)
	}
	known, err := l.Sequences(p.t.Context(), full, []uint64{5})
	p.must(err)
	if known[0].Next != uint64(len(p.stored)) {
		p.t.Errorf("of the producer sequence %d is expected, want %d", known[0].Next, len(p.stored))
	}
}

// checkMoved checks where the logs are, and that a new one is created where they went, through a router that has not heard of it.
func (p *pair) checkMoved() {
	p.t.Helper()
	boundary, err := p.second.Log.AdvanceBoundary(p.t.Context(), 0)
	p.must(err)
	if boundary != 1000 {
		p.t.Errorf("the boundary of the second engine is %d, that of the first is 1000", boundary)
	}
	_, err = p.stale.Open(p.t.Context(), "test", []record.ShardID{fresh})
	p.must(err)
	there, err := p.second.Log.Tail(p.t.Context(), []record.ShardID{full, empty, sealed, fresh})
	p.must(err)
	for _, st := range there {
		if st.Epoch == 0 || st.MovedTo != "" {
			p.t.Errorf("the second engine has %+v", st)
		}
	}
	here, err := p.first.Log.Tail(p.t.Context(), []record.ShardID{fresh})
	p.must(err)
	if here[0].Epoch != 0 {
		p.t.Errorf("the first engine has created %+v as well", here[0])
	}
	list, err := p.stale.Shards(p.t.Context(), category)
	p.must(err)
	if len(list) != 4 {
		p.t.Errorf("the category has %d logs, want 4: %+v", len(list), list)
	}
}

// follower is a subscription of the log that is full.
type follower struct {
	p     *pair
	texts chan string
	seen  []string
}

func (p *pair) follow(l metalog.Log) *follower {
	f := &follower{p: p, texts: make(chan string, 100)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		next, watermark := record.FirstLSN, int64(0)
		_ = l.Subscribe(ctx, []metalog.Position{{Shard: full, LSN: next}}, metalog.MinHeartbeat, func(updates []metalog.Update) error {
			for _, u := range updates {
				for _, e := range u.Entries {
					if e.LSN != next || e.Time < watermark {
						p.t.Errorf("LSN %d at %d came after LSN %d and the watermark %d", e.LSN, e.Time, next-1, watermark)
					}
					next++
					f.texts <- string(e.Data)
				}
				if u.Watermark != 0 && u.Watermark < watermark || u.Sealed || u.MovedTo != "" {
					p.t.Errorf("the update is %+v after the watermark %d", u, watermark)
				}
				watermark = max(watermark, u.Watermark)
			}
			return nil
		})
	}()
	p.t.Cleanup(func() { cancel(); <-done })
	return f
}

// await waits until the subscription has brought texts, in order.
func (f *follower) await(want []string) {
	f.p.t.Helper()
	for len(f.seen) < len(want) {
		select {
		case text := <-f.texts:
			f.seen = append(f.seen, text)
		case <-f.p.t.Context().Done():
			f.p.t.Fatalf("the subscription has brought %q, want %q", f.seen, want)
		}
	}
	if fmt.Sprint(f.seen) != fmt.Sprint(want) {
		f.p.t.Errorf("the subscription has brought %q, want %q", f.seen, want)
	}
}

// An append of unknown outcome at the first engine is repeated after the log has moved, by a router that does not know of it: it is refused for good, and
// the record at its place tells that it was stored.
func TestRepeatedAppendAfterMove(t *testing.T) {
	p := newPair(t)
	p.fill()
	lost := p.stored[len(p.stored)-1] // its answer, say
	p.relocate()
	p.stored = p.stored[:len(p.stored)-1]
	if err := p.append(p.stale, lost); !errors.Is(err, metalog.ErrFenced) {
		t.Fatalf("the repetition: %v", err)
	}
	entries, err := p.stale.Read(t.Context(), full, record.LSN(len(p.stored)+1), 1, 0)
	if err != nil || len(entries) != 1 || string(entries[0].Data) != lost {
		t.Errorf("the record that it stored is %v, %v", entries, err)
	}
}

// An append over logs of two engines changes nothing and says so, also through a router that learns only by it where they are.
func TestAppendOverEngines(t *testing.T) {
	p := newPair(t)
	p.fill()
	other := record.MakeShardID(category+1, 0, 1)
	states, err := p.stale.Open(t.Context(), "test", []record.ShardID{other})
	p.must(err)
	p.relocate()
	a := &metalog.Append{Shards: []metalog.ShardAppend{
		{Shard: other, Epoch: states[0].Epoch, Records: [][]byte{{1}}}, {Shard: full, Epoch: p.epoch, Records: [][]byte{{2}}},
	}}
	for range 2 {
		spread := new(metalog.SpreadError)
		if _, err := p.stale.Append(t.Context(), a); !errors.As(err, &spread) || !errors.Is(err, metalog.ErrInvalid) || spread.Engine == spread.OtherEngine {
			t.Errorf("an append over two engines: %v", err)
		}
	}
	now, err := p.stale.Tail(t.Context(), []record.ShardID{other})
	p.must(err)
	if now[0].NextLSN != 1 {
		t.Errorf("a part of it was stored: %+v", now[0])
	}
	if p.stale.EngineOf(full) != "second" || p.stale.EngineOf(other) != "first" {
		t.Errorf("the logs are said to be in %q and %q", p.stale.EngineOf(full), p.stale.EngineOf(other))
	}
}

// What a router does not know of is an error that passes, never an answer: neither "there is no log" nor a log created a second time.
func TestUnknownEngine(t *testing.T) {
	p := newPair(t)
	p.fill()
	alone, err := router.New([]router.Engine{p.first}, router.Options{Root: "first"})
	p.must(err)
	t.Cleanup(func() { p.must(alone.Close()) })
	p.relocate()
	for name, call := range map[string]func() error{
		"open":   func() error { _, err := alone.Open(t.Context(), "test", []record.ShardID{full}); return err },
		"create": func() error { _, err := alone.Open(t.Context(), "test", []record.ShardID{fresh}); return err },
		"append": func() error { return p.append(alone, "x") },
		"tail":   func() error { _, err := alone.Tail(t.Context(), []record.ShardID{full}); return err },
		"absent": func() error { _, err := alone.Tail(t.Context(), []record.ShardID{fresh}); return err },
		"read":   func() error { _, err := alone.Read(t.Context(), full, 4, 0, 0); return err },
		"shards": func() error { _, err := alone.Shards(t.Context(), category); return err },
		"look":   func() error { _, _, err := alone.Look(t.Context(), category); return err },
	} {
		if err := call(); retry.Classify(err).Class != retry.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := alone.Retire(t.Context(), category); retry.Classify(err).Class != retry.Unavailable {
		t.Errorf("retire: %v", err)
	}
	p.must(alone.SetEngines([]router.Engine{p.first, p.second}))
	p.checkStored(alone)
}

// Trims go over a move: what is told of the oldest record is one answer at a time, and history in the first engine is given up with it.
func TestTrimOverMove(t *testing.T) {
	p := newPair(t)
	p.fill()
	p.relocate()
	p.tryWriting("after 0")
	p.tryWriting("after 1") // LSN 5
	for _, before := range []record.LSN{2, 4, 5, 6} {
		p.must(p.stale.Trim(t.Context(), full, before))
		for _, l := range []*router.Log{p.stale, p.newRouter()} {
			states, err := l.Tail(t.Context(), []record.ShardID{full})
			p.must(err)
			if states[0].FirstLSN != before {
				t.Errorf("trimmed below %d, the first LSN is %d", before, states[0].FirstLSN)
			}
			trimmed := new(metalog.TrimmedError)
			if _, err := l.Read(t.Context(), full, before-1, 0, 0); !errors.As(err, &trimmed) || trimmed.First != before {
				t.Errorf("a read below %d: %v", before, err)
			}
			lsns, err := l.Seek(t.Context(), []record.ShardID{full}, 0)
			p.must(err)
			if lsns[0] != before {
				t.Errorf("the oldest record after a trim below %d is at %d", before, lsns[0])
			}
		}
	}
	if err := p.stale.Trim(t.Context(), full, 7); !errors.Is(err, metalog.ErrInvalid) {
		t.Errorf("a trim beyond the tail: %v", err)
	}
}

// A category that is deleted while it moves ends in the engine that it goes to as well.
func TestRelocationOfRetired(t *testing.T) {
	p := newPair(t)
	p.fill()
	p.must(p.first.Log.Retire(t.Context(), category)) // by a process that does not know the second engine
	p.relocate()
	for _, e := range []router.Engine{p.first, p.second} {
		if _, err := e.Log.Open(t.Context(), "test", []record.ShardID{fresh}); !errors.Is(err, metalog.ErrSealed) {
			t.Errorf("the engine %q opens a log of a deleted category: %v", e.Name, err)
		}
	}
}
