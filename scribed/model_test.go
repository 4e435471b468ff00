package scribed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"scribe/internal/base/buffers"
	"scribe/internal/format/record"
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

	categories []string
	// first is the limit in bytes with which windows open; 0 = the agent's.
	first int64

	appends []*spoolAppend
	live    []*upstreamBatch
	plans   []*fillPlan // planned, not claimed yet
	fills   []*filling

	// ends are where the frames of the stream end that were stored. followed counts those that followed others in flight.
	ends     map[uint64]bool
	followed int
	// layout places the next frames of the stream: into a shard of its own.
	layout uint32
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
		now: time.Unix(1e6, 0), stored: map[string][]int{}, written: map[string]int{}, taken: map[string]int{}, ends: map[uint64]bool{0: true},
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
	e.frames = []queuedFrame{{bytes: data, messages: 1}}
	if category == "stream" {
		f, first := &e.frames[0], uint64(w.written[category]) //nolint:gosec // a few
		f.bytes = makeStreamFrame(1, w.layout, first)
		f.sequenced, f.sequences = true, frameSequences{stream: streamKey{producer: 1, shard: w.layout}, placement: w.layout, first: first, next: first + 1}
	}
	e.bytes = e.countBytes()
	return e
}

// makeStreamFrame is a frame with sequences, with one message. Each layout has a shard of its own.
func makeStreamFrame(producer uint64, layout uint32, first uint64) []byte {
	var b record.Builder
	err := b.Reset(nil, record.Envelope{Category: "stream", Sequenced: true, Producer: producer, FirstSequence: first, Shard: layout, Placement: layout})
	if err == nil {
		err = b.AppendPayload([]byte("x"))
	}
	frame, other := b.Finish()
	if err = errors.Join(err, other); err != nil {
		panic(err)
	}
	return frame
}

// numberOf returns the number by which a frame names itself.
func numberOf(f *queuedFrame) (n int) {
	if f.sequenced {
		return int(f.sequences.first) //nolint:gosec // a few
	}
	_, _ = fmt.Sscan(string(f.bytes), &n)
	return n
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
	category, ack := rapid.SampledFrom(w.categories).Draw(t, "category"), ackNone
	if rapid.IntRange(0, 3).Draw(t, "committed") == 0 {
		ack = ackCommitted
	}
	e, q := w.newEntry(category, ack), &w.s.mu.queue
	l := q.queueOf(category)
	if w.first > 0 {
		l.live.window.First, l.backfill.window.First = w.first, w.first
	}
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

// answers makes up results for a request: frames of a shard are stored as a prefix, and one that follows others only after them.
func (w *world) answers(t *rapid.T, b *upstreamBatch) ([]*scribev1.FrameResult, *scribev1.ErrorInfo) {
	toldUnknown := func(e *queueEntry) bool { return e.awaitsUpstream() && !e.frames[0].sequenced } // its caller would have to send it again
	lost := false
	switch rapid.IntRange(0, 15).Draw(t, "whole") {
	case 0:
		return nil, rpc.Info(rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "away"))
	case 1:
		if !slices.ContainsFunc(b.entries, toldUnknown) {
			return nil, rpc.Info(rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "lost on the way"))
		}
	case 2:
		lost = !slices.ContainsFunc(b.entries, toldUnknown)
	}
	follows := b.listFollowers(false)
	b.ordered, b.took = rapid.IntRange(0, 19).Draw(t, "ordered") > 0, time.Millisecond
	type shard struct {
		category string
		number   uint32
	}
	failed := map[shard]bool{}
	var results []*scribev1.FrameResult
	for _, e := range b.entries {
		for i := range e.frames {
			f, r := &e.frames[i], &scribev1.FrameResult{Shard: 1 << 32}
			of := shard{e.category, f.sequences.stream.shard}
			if e.category == "plain" {
				r.Shard++
			}
			behind := len(follows) > 0 && int(follows[0]) == len(results)
			if behind {
				follows = follows[1:]
				w.followed++
			}
			switch {
			case behind && !w.ends[f.sequences.first]:
				failed[of] = true
				r.Error = rpc.Info(rpc.Errorf(scribev1.Reason_REASON_OUT_OF_ORDER, "early"))
			case failed[of] || rapid.IntRange(0, 19).Draw(t, "refused") == 0:
				failed[of] = true
				r.Error = rpc.Info(rpc.Errorf(scribev1.Reason_REASON_OVERLOADED, "quota"))
			default:
				w.stored[e.category] = append(w.stored[e.category], numberOf(f))
				if f.sequenced {
					w.ends[f.sequences.next] = true
				}
			}
			results = append(results, r)
		}
	}
	if lost {
		return nil, rpc.Info(rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "the answer is lost"))
	}
	return results, nil
}

func (w *world) send() {
	for b := w.s.mu.queue.nextLive(w.now); b != nil; b = w.s.mu.queue.nextLive(w.now) {
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

// plan begins a request with backlog.
func (w *world) plan() bool {
	f := w.s.mu.queue.nextFill(w.now)
	if f != nil {
		w.plans = append(w.plans, f)
	}
	return f != nil
}

// claim claims backlog as the driver does, and returns the request; nil if there is none.
func (w *world) claim(t fataler, plan int) *filling {
	q := &w.s.mu.queue
	f := w.plans[plan]
	w.plans = slices.Delete(w.plans, plan, plan+1)
	var entries []*queueEntry
	for i, l := range f.queues {
		got, err := w.s.spool.Claim(l.name, f.wants[i], f.upTo[i], nil)
		switch {
		case err != nil || len(got) == 0 && !f.follows:
			t.Fatal("nothing could be claimed of", l.name, err)
		case len(got) == 0:
			q.noteEmptyClaim(l, f, f.upTo[i], w.now)
		default:
			entries = append(entries, newBackfillEntry(l, got))
		}
	}
	x := &filling{f: f, b: q.backfillBatch(f, entries)}
	if x.b == nil {
		q.finishFill(w.now, f, nil, nil)
		return nil
	}
	w.fills = append(w.fills, x)
	return x
}

// fill begins a request with backlog, and claims it.
func (w *world) fill(t fataler) *filling {
	if !w.plan() {
		return nil
	}
	return w.claim(t, len(w.plans)-1)
}

func (w *world) filled(t *rapid.T) {
	if len(w.fills) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.fills)-1).Draw(t, "request")
	x := w.fills[i]
	w.fills = slices.Delete(w.fills, i, i+1)
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
	used, owed, sending := int64(0), int64(0), int64(0)
	for _, l := range q.queues {
		used += l.bytes
		owed += l.owed
		queued := int64(0)
		for _, e := range l.entries {
			queued += e.bytes
		}
		if l.bytes < 0 || l.owed < 0 || queued != l.queued || !slices.IsSortedFunc(l.entries, compareEntries) {
			t.Fatalf("queue %+v", l)
		}
	}
	for _, b := range w.live {
		sending += b.bytes
	}
	plans := slices.Clone(w.plans)
	for _, x := range w.fills {
		plans = append(plans, x.f)
	}
	for _, f := range plans {
		used += f.reserved
		sending += f.bytes
	}
	if used != q.used || owed != q.owed || q.running != len(w.live)+len(plans) || q.filling != len(plans) || sending != q.sending {
		t.Fatalf("%d used, %d owed by queues; %d, %d, %d and %d in all", used, owed, q.used, q.owed, q.running, q.filling)
	}
	for _, category := range []string{"strict", "stream"} {
		last, seen := -1, map[int]bool{}
		for _, n := range w.stored[category] {
			if !seen[n] && n < last { // copies may come again
				t.Fatalf("%s is stored out of order: %v", category, w.stored[category])
			}
			seen[n], last = true, max(last, n)
		}
	}
}

// Whatever the order in which the parts of everything end, a strict category and a stream are stored in the order in which they came, also
// when another layout gives the stream another shard, and everything that was taken is stored in the end.
func TestQueueModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.categories = []string{"strict", "plain", "stream"}
		w.play(t)
	})
}

// TestStreamModel: so is a stream of which many requests are in flight, of live traffic and of the backlog.
func TestStreamModel(t *testing.T) {
	followed := 0
	rapid.Check(t, func(t *rapid.T) {
		cfg := spooling(DefaultConfig())
		cfg.MaxInFlight, cfg.BatchBytes, cfg.Linger = rapid.IntRange(2, 4).Draw(t, "inFlight"), rapid.IntRange(60, 250).Draw(t, "batch"), 0
		cfg.SpillAfter = 20 * time.Second
		w := openWorld(t, cfg)
		w.categories, w.first = []string{"stream"}, 8*int64(cfg.BatchBytes)
		w.play(t)
		followed += w.followed
	})
	if followed < 10 && !testing.Short() {
		t.Errorf("%d frames followed others", followed)
	}
}

// play takes random steps, and then those that come to an end.
func (w *world) play(t *rapid.T) {
	defer func() { _ = w.s.spool.Close() }()
	step := func(t *rapid.T) {
		w.now = w.now.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 10, 300, 3000}).Draw(t, "pause")) * time.Millisecond)
	}
	actions := map[string]func(*rapid.T){
		"": w.check,
		"write": func(t *rapid.T) {
			step(t)
			for range rapid.IntRange(1, 12).Draw(t, "frames") {
				w.write(t)
			}
		},
		"append": func(t *rapid.T) { step(t); w.append(t, false) },
		"send":   func(t *rapid.T) { step(t); w.send() },
		"answer": func(t *rapid.T) { step(t); w.answer(t) },
		"plan":   func(t *rapid.T) { step(t); w.plan() },
		"claim": func(t *rapid.T) {
			if step(t); len(w.plans) > 0 {
				w.claim(t, rapid.IntRange(0, len(w.plans)-1).Draw(t, "plan"))
			}
		},
		"filled": func(t *rapid.T) { step(t); w.filled(t) },
		"spill":  func(t *rapid.T) { step(t); w.spill() },
		"grow": func(t *rapid.T) {
			if rapid.IntRange(0, 2).Draw(t, "grows") == 0 {
				w.layout++
			}
		},
	}
	for _, often := range []string{"write", "send", "answer", "plan", "claim"} {
		actions[often+", again"] = actions[often]
	}
	for range 3 {
		t.Repeat(actions)
	}
	for range 10_000 {
		w.now = w.now.Add(time.Second)
		w.append(t, true)
		w.send()
		if rapid.Bool().Draw(t, "answered") {
			w.answer(t)
		}
		for len(w.plans) > 0 && rapid.Bool().Draw(t, "claimed") {
			w.claim(t, 0)
		}
		w.plan()
		if rapid.Bool().Draw(t, "filled") {
			w.filled(t)
		}
		w.check(t)
		if len(w.s.mu.queue.queues) == 0 && len(w.live)+len(w.fills)+len(w.plans)+len(w.appends) == 0 {
			break
		}
	}
	for category, n := range w.taken {
		got := slices.Sorted(slices.Values(w.stored[category]))
		if got = slices.Compact(got); len(got) != n {
			t.Fatalf("%s: %d of %d are stored: %v, queues %+v", category, len(got), n, w.stored[category], w.s.mu.queue.queues[category])
		}
	}
}

// openStream opens a world with a stream whose window is large once it opens.
func openStream(t *testing.T) (*world, *categoryQueue) {
	t.Helper()
	cfg := spooling(DefaultConfig())
	cfg.BatchBytes, cfg.Linger = 1, 0
	w := openWorld(t, cfg)
	t.Cleanup(func() { _ = w.s.spool.Close() })
	l := w.s.mu.queue.queueOf("stream")
	l.live.window.First, l.backfill.window.First = 1<<20, 1<<20
	return w, l
}

// endRequest ends a request: all its frames are stored, or all failed for a reason.
func (w *world) endRequest(b *upstreamBatch, f *fillPlan, reason scribev1.Reason) {
	b.ordered, b.took = true, time.Millisecond
	var results []*scribev1.FrameResult
	for range b.frames {
		r := &scribev1.FrameResult{Shard: 1 << 32}
		if reason != 0 {
			r.Error = &scribev1.ErrorInfo{Reason: reason}
		}
		results = append(results, r)
	}
	o := w.s.decideOutcome(b, results, nil)
	if f != nil {
		w.s.mu.queue.finishFill(w.now, f, b, o.held)
	} else {
		w.s.mu.queue.finishLive(w.now, b, o.held)
	}
}

// TestFailureWhileClaiming: backlog that is being claimed when a request before it fails returns to the spool.
func TestFailureWhileClaiming(t *testing.T) {
	w, l := openStream(t)
	q := &w.s.mu.queue
	for range 6 {
		e := w.newEntry("stream", ackNone)
		w.written["stream"]++
		w.end(t, q.appendPassing(l, e))
	}
	first := w.fill(t)
	w.endRequest(first.b, first.f, 0)
	second := w.fill(t) // of frame 1
	if !w.plan() {
		t.Fatal("the window is closed")
	}
	w.endRequest(second.b, second.f, scribev1.Reason_REASON_OVERLOADED)
	if x := w.claim(t, 0); x != nil {
		t.Errorf("%d is sent after 1 has failed", numberOf(&x.b.entries[0].frames[0]))
	}
	w.now = w.now.Add(time.Minute)
	if x := w.fill(t); x == nil || numberOf(&x.b.entries[0].frames[0]) != 1 {
		t.Errorf("%+v follows", x)
	}
}

// TestAppendAfterFailure: what failed goes to the spool before what follows it and is still in flight.
func TestAppendAfterFailure(t *testing.T) {
	w, l := openStream(t)
	q := &w.s.mu.queue
	for i := range 5 {
		e := w.newEntry("stream", ackNone)
		if q.chooseDestination(l, e, w.now) == inMemory {
			w.enter(e)
		}
		if i == 1 { // the first one opens the window
			w.endRequest(w.live[0], nil, 0)
			w.live = nil
		}
		if i < 4 {
			w.send()
		}
	}
	if len(w.live) != 3 {
		t.Fatalf("%d requests are in flight", len(w.live))
	}
	w.endRequest(w.live[0], nil, scribev1.Reason_REASON_OVERLOADED)
	w.now = w.now.Add(time.Minute)
	if b := q.nextLive(w.now); b != nil {
		t.Errorf("%d is sent while what follows it is in flight", numberOf(&b.entries[0].frames[0]))
	}
	if a := q.planSpill(w.now, true); a != nil {
		t.Errorf("%d entries are spilled", len(a.parts))
	}
	var got []int
	for _, p := range q.appendPassing(l, w.newEntry("stream", ackNone)).parts {
		got = append(got, numberOf(&p.e.frames[0]))
	}
	if !slices.Equal(got, []int{1, 2, 3, 4, 5}) {
		t.Errorf("%v are appended", got)
	}
}
