package scribed

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"scribe/internal/base/buffers"
	"scribe/internal/role/request"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/spool"
)

// world is the queue with a spool in memory, an upstream that is a list, and a clock that is a number. Everything that may happen in any
// order is a step of its own: the parts of an append, of a request with live traffic, and of one with backlog.
type world struct {
	s       *Scribed
	now     time.Time
	stored  map[string][]int
	written map[string]int
	taken   map[string]int // frames accepted and acknowledged

	appends []*spoolAppend
	live    []*upstreamBatch
	fills   []*filling
}

// fataler is a test of package testing or rapid.
type fataler interface{ Fatal(args ...any) }

type filling struct {
	f *fillPlan
	b *upstreamBatch
}

func newWorld(t *rapid.T) *world {
	cfg := spooling(DefaultConfig())
	cfg.MaxInFlight, cfg.BatchBytes = rapid.IntRange(1, 3).Draw(t, "inFlight"), rapid.IntRange(1, 400).Draw(t, "batch")
	return openWorld(t, cfg)
}

func openWorld(t fataler, cfg Config) *world {
	cfg.Rules = []Rule{{Pattern: "strict", Strict: true}}
	w := &world{
		now: time.Unix(1e6, 0), stored: map[string][]int{}, written: map[string]int{}, taken: map[string]int{},
	}
	w.s = &Scribed{cfg: cfg, ctx: context.Background(), now: func() time.Time { return w.now }, changed: make(chan struct{}, 1), crowded: make(chan struct{}, 1)}
	w.s.throttled = newNotes(slog.New(slog.DiscardHandler), w.s.now)
	w.s.deps.Logger = w.s.throttled.log
	w.s.mu.queue = newQueue(cfg, &w.s.buffers, nil)
	var err error
	if w.s.spool, err = spool.Open(*cfg.Spool, spool.Deps{FS: vfs.NewMem()}); err != nil {
		t.Fatal(err)
	}
	w.s.mu.queue.spool = w.s.spool
	return w
}

// newEntry is a frame that comes: it names itself by its number.
func (w *world) newEntry(category string, ack ackLevel) *queueEntry {
	e := &queueEntry{category: category, ack: ack, since: w.now}
	if ack == ackCommitted {
		e.sub = &pendingCall{results: make([]*scribev1.FrameResult, 1), pending: 1, done: make(chan struct{})}
	}
	data := fmt.Appendf(nil, "%d", w.written[category])
	e.frames, e.bytes = []queuedFrame{{bytes: data, messages: 1}}, int64(len(data))
	return e
}

// enter brings an entry into memory.
func (w *world) enter(e *queueEntry) {
	e.mem = &sharedBuffer{buf: &buffers.Buffer{B: e.frames[0].bytes}, refs: 1}
	w.s.mu.queue.counts.accepted = w.s.mu.queue.counts.accepted.Plus(e.amount())
	w.s.mu.queue.addEntry(e)
	w.written[e.category]++
	w.taken[e.category]++
}

// write is a frame of none or committed that comes.
func (w *world) write(t *rapid.T) {
	category, ack := rapid.SampledFrom([]string{"strict", "plain"}).Draw(t, "category"), ackNone
	if rapid.IntRange(0, 3).Draw(t, "committed") == 0 {
		ack = ackCommitted
	}
	e, q := w.newEntry(category, ack), &w.s.mu.queue
	l := q.queueOf(category)
	switch q.chooseDestination(l, e, w.now) {
	case inMemory:
		w.enter(e)
		if ack == ackNone && rapid.Bool().Draw(t, "spooled") { // written besides, before it is answered
			w.finish(t, q.appendEntry(e))
		}
	case onDisk:
		// The next frame of its writer comes when it is answered, so the model waits for it, and for what it waits for.
		a := q.appendPassing(l, e)
		if w.finish(t, a); a.err == nil {
			w.written[category]++
			w.taken[category]++
		}
	case nowhere, tooLarge:
		q.forgetIdle(l)
	}
}

// finish ends an append, and those before it.
func (w *world) finish(t *rapid.T, a *spoolAppend) {
	w.appends = append(w.appends, a)
	for slices.Contains(w.appends, a) {
		w.append(t, true)
	}
}

// append ends the oldest append, in one way or the other.
func (w *world) append(t *rapid.T, succeed bool) {
	if len(w.appends) == 0 {
		return
	}
	a := w.appends[0]
	w.appends = w.appends[1:]
	for _, prev := range a.prevs {
		if prev.ordered && prev.a.err != nil {
			a.err = prev.a.err
		}
	}
	if !succeed && a.err == nil && rapid.IntRange(0, 4).Draw(t, "full") == 0 {
		a.err = spool.ErrFull
	}
	w.end(t, a)
}

// end carries an append out that has not failed.
func (w *world) end(t fataler, a *spoolAppend) {
	var refs []spool.Ref
	if a.err == nil {
		if refs, a.err = w.s.spool.Append(a.records); a.err != nil {
			t.Fatal(a.err)
		}
	}
	close(a.done)
	w.s.mu.queue.finishAppend(a, refs, w.now)
}

// answers makes up results for a request: frames of a category are stored as a prefix.
func (w *world) answers(t *rapid.T, b *upstreamBatch) ([]*scribev1.FrameResult, *scribev1.ErrorInfo) {
	if rapid.IntRange(0, 3).Draw(t, "whole") == 0 {
		return nil, rpc.Info(rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "away"))
	}
	failed := map[string]bool{}
	var results []*scribev1.FrameResult
	for _, e := range b.entries {
		for i := range e.frames {
			r := &scribev1.FrameResult{}
			if failed[e.category] = failed[e.category] || rapid.IntRange(0, 4).Draw(t, "refused") == 0; failed[e.category] {
				r.Error = rpc.Info(rpc.Errorf(scribev1.Reason_REASON_OVERLOADED, "quota"))
			} else {
				number := 0
				_, _ = fmt.Sscan(string(e.frames[i].bytes), &number)
				w.stored[e.category] = append(w.stored[e.category], number)
			}
			results = append(results, r)
		}
	}
	return results, nil
}

func (w *world) send() {
	if b := w.s.mu.queue.nextLive(w.now); b != nil {
		w.live = append(w.live, b)
	}
}

func (w *world) answer(t *rapid.T) {
	if len(w.live) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.live)-1).Draw(t, "request")
	b := w.live[i]
	w.live = slices.Delete(w.live, i, i+1)
	results, info := w.answers(t, b)
	o := w.s.decideOutcome(b, results, info)
	w.s.mu.queue.finishLive(w.now, b, o.held)
}

// fill claims backlog as the driver does.
func (w *world) fill(t fataler) *filling {
	q := &w.s.mu.queue
	f := q.nextFill(w.now)
	if f == nil {
		return nil
	}
	var entries []*queueEntry
	for i, l := range f.queues {
		got, err := w.s.spool.Claim(l.name, f.wants[i], f.upTo[i], nil)
		if err != nil || len(got) == 0 {
			t.Fatal("nothing could be claimed of", l.name, err)
		}
		entries = append(entries, newBackfillEntry(l, got))
	}
	x := &filling{f: f, b: q.backfillBatch(f, entries)}
	if x.b == nil {
		q.finishFill(w.now, f, nil, nil)
		return nil
	}
	w.fills = append(w.fills, x)
	return x
}

func (w *world) filled(t *rapid.T) {
	if len(w.fills) == 0 {
		return
	}
	x := w.fills[0]
	w.fills = w.fills[1:]
	results, info := w.answers(t, x.b)
	o := w.s.decideOutcome(x.b, results, info)
	w.s.mu.queue.finishFill(w.now, x.f, x.b, o.held)
}

func (w *world) spill() {
	w.s.mu.queue.quietLanes()
	if a := w.s.mu.queue.planSpill(w.now, false); a != nil {
		w.appends = append(w.appends, a)
	}
}

// quietLanes lets spills be tried that failed before.
func (q *sendQueue) quietLanes() {
	for _, l := range q.queues {
		l.fullTill = time.Time{}
	}
}

func (w *world) check(t *rapid.T) {
	q := &w.s.mu.queue
	if a := q.counts.findImbalance(w.s.readBacklog()); a != (request.Amount{}) {
		t.Fatalf("%+v are not accounted for", a)
	}
	used, owed := int64(0), int64(0)
	for _, l := range q.queues {
		used += l.bytes
		owed += l.owed
		if l.bytes < 0 || l.owed < 0 {
			t.Fatalf("queue %+v", l)
		}
	}
	for _, x := range w.fills {
		used += x.f.reserved
	}
	if used != q.used || owed != q.owed || q.running != len(w.live)+len(w.fills) || q.filling != len(w.fills) {
		t.Fatalf("%d used, %d owed by queues; %d, %d, %d and %d in all", used, owed, q.used, q.owed, q.running, q.filling)
	}
	if got := w.stored["strict"]; !slices.IsSorted(got) {
		t.Fatalf("stored out of order: %v", got)
	}
}

// Whatever the order in which the parts of everything end, a strict category is stored in the order in which it came, and
// everything that was taken is stored in the end.
func TestQueueModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		defer func() { _ = w.s.spool.Close() }()
		step := func(t *rapid.T) {
			w.now = w.now.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 10, 300, 3000}).Draw(t, "pause")) * time.Millisecond)
		}
		t.Repeat(map[string]func(*rapid.T){
			"":       w.check,
			"write":  func(t *rapid.T) { step(t); w.write(t) },
			"append": func(t *rapid.T) { step(t); w.append(t, false) },
			"send":   func(t *rapid.T) { step(t); w.send() },
			"answer": func(t *rapid.T) { step(t); w.answer(t) },
			"fill":   func(t *rapid.T) { step(t); w.fill(t) },
			"filled": func(t *rapid.T) { step(t); w.filled(t) },
			"spill":  func(t *rapid.T) { step(t); w.spill() },
		})
		for range 10_000 {
			w.now = w.now.Add(time.Second)
			w.append(t, true)
			w.send()
			w.answer(t)
			w.fill(t)
			w.filled(t)
			w.check(t)
			if len(w.s.mu.queue.queues) == 0 && len(w.live)+len(w.fills)+len(w.appends) == 0 {
				break
			}
		}
		for category, n := range w.taken {
			got := slices.Sorted(slices.Values(w.stored[category]))
			if len(got) != n {
				t.Fatalf("%s: %d of %d are stored: %v, queues %+v", category, len(got), n, w.stored[category], w.s.mu.queue.queues[category])
			}
		}
	})
}
