package faults

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"scribe/producer"
	"scribe/test/history"
	"scribe/test/program"
)

// Categories of the workload.
const (
	catLeast   = "least"   // at_least_once
	catOnce    = "once"    // exactly_once, writers never give up
	catBest    = "best"    // best_effort
	catColumns = "columns" // at_least_once, Arrow batches
	catHost    = "host"    // at_least_once, through the agent
	catBound   = "bound"   // at_least_once, repeatable; only where readers are what is tested
)

// workload are writers of every sort, and what they know.
type workload struct {
	t       *testing.T
	c       *cell
	h       *history.History
	seed    uint64
	writers []*writer
	// categories of the history.
	categories []string
	stop       chan struct{}
	running    sync.WaitGroup
	// held keeps writers from beginning a call. Each has calling, to read, while it makes one.
	held    atomic.Bool
	calling sync.RWMutex
	// meanwhile, if set, is called again and again while somebody waits for the writers.
	meanwhile func()
}

// writer writes its source, message by message, to one shard of a category.
type writer struct {
	w        *workload
	name     string
	category string
	shard    uint32
	level    producer.AckLevel
	options  []producer.Option
	server   func() string
	write    func(w *writer, ctx context.Context) error
	// pace is the pause between two calls.
	pace time.Duration
	// size is the largest payload.
	size int
	// keys is how many keys its messages have; 0 = none.
	keys int
	// until ends this writer alone; it may be nil. Nobody waits for its progress then.
	until chan struct{}

	rng  *rand.Rand
	p    *producer.Producer
	next int // in the source
	// saved is what a writer that restarts goes back to.
	saved struct {
		identity producer.Identity
		next     int
	}
	restarts int
	// flight are messages of flowing whose outcome nobody has waited for yet, the oldest first.
	flight []messageInFlight

	// log is what the producer says of retries and losses.
	log program.Log

	acked, failed, unknown atomic.Int64
}

// newWorkload declares the categories of the standard load in a history and creates them.
func newWorkload(c *cell, seed uint64) *workload {
	c.t.Helper()
	w := emptyWorkload(c, seed)
	w.create(catLeast, history.Guarantees{}, "--delivery", "at_least_once")
	w.create(catOnce, history.Guarantees{ExactlyOnce: true, NoGivingUp: true}, "--delivery", "exactly_once")
	w.create(catBest, history.Guarantees{}, "--delivery", "best_effort")
	w.create(catColumns, history.Guarantees{}, "--delivery", "at_least_once")
	w.create(catHost, history.Guarantees{}, "--delivery", "at_least_once")
	return w
}

func emptyWorkload(c *cell, seed uint64) *workload {
	return &workload{t: c.t, c: c, h: history.New(), seed: seed, stop: make(chan struct{})}
}

// create declares a category of four shards and creates it.
func (w *workload) create(name string, g history.Guarantees, flags ...string) {
	w.t.Helper()
	w.h.Category(name, g)
	w.categories = append(w.categories, name)
	w.c.ok(append([]string{"category", "create", name, "--server", w.c.url(controlPlane), "--shards", "4", "--shard-by", "explicit"}, flags...)...)
}

// patient repeats a request until it is answered, whatever comes.
func patient() []producer.Option {
	return []producer.Option{producer.WithDeliveryTimeout(0), producer.WithRequestTimeout(4 * time.Second), producer.WithBackoff(10*time.Millisecond, 500*time.Millisecond)}
}

// impatient sends a request once.
func impatient() []producer.Option {
	return []producer.Option{producer.WithRetries(0), producer.WithRequestTimeout(2 * time.Second)}
}

// standardLoad are writers of every sort: some write directly to the cell, some through the agent.
func (w *workload) standardLoad(c *cell) {
	direct := func(name string) func() string { return func() string { return c.url(name) } }
	w.add(&writer{name: "single", category: catLeast, shard: 0, options: patient(), server: direct(writeProxy1), write: (*writer).single})
	w.add(&writer{name: "batches", category: catLeast, shard: 1, options: patient(), server: direct(writeProxy2), write: (*writer).batch})
	w.add(&writer{name: "atomic", category: catLeast, shard: 2, options: patient(), server: direct(writeProxy1), write: (*writer).atomic})
	w.add(&writer{name: "impatient", category: catLeast, shard: 0, options: impatient(), server: direct(writeProxy2), write: (*writer).single})
	w.add(&writer{name: "once-single", category: catOnce, shard: 0, options: patient(), server: direct(writeProxy2), write: (*writer).single})
	w.add(&writer{name: "once-async", category: catOnce, shard: 0, options: patient(), server: direct(writeProxy1), write: (*writer).async})
	w.add(&writer{name: "once-atomic", category: catOnce, shard: 1, options: patient(), server: direct(writeProxy1), write: (*writer).atomic})
	w.add(&writer{name: "once-restarts", category: catOnce, shard: 2, options: patient(), server: direct(writeProxy2), write: (*writer).restarting})
	w.add(&writer{name: "best", category: catBest, shard: 3, options: impatient(), server: direct(writeProxy1), write: (*writer).batch})
	w.add(&writer{name: "columns", category: catColumns, shard: 0, options: patient(), server: direct(writeProxy2), write: (*writer).columns})
}

// agentLoad are writers through an agent.
func (w *workload) agentLoad(server func() string) {
	w.add(&writer{name: "host-none", category: catHost, shard: 0, level: producer.AckNone, options: patient(), server: server, write: (*writer).batch})
	w.add(&writer{name: "host-spooled", category: catHost, shard: 1, level: producer.AckSpooled, options: patient(), server: server, write: (*writer).batch})
	w.add(&writer{name: "host-committed", category: catHost, shard: 2, options: patient(), server: server, write: (*writer).single})
	w.add(&writer{name: "host-once", category: catOnce, shard: 3, options: patient(), server: server, write: (*writer).batch})
	w.add(&writer{name: "host-restarts", category: catOnce, shard: 3, options: patient(), server: server, write: (*writer).restarting})
}

func (w *workload) add(wr *writer) {
	wr.w = w
	wr.rng = rngOf(w.seed, "writer "+wr.name)
	if wr.level == 0 {
		wr.level = producer.AckCommitted
	}
	if wr.pace == 0 {
		wr.pace = 30 * time.Millisecond
	}
	if wr.size == 0 {
		wr.size = 2000
	}
	w.writers = append(w.writers, wr)
}

// start lets every writer write until finish.
func (w *workload) start() {
	for _, wr := range w.writers {
		w.running.Go(func() { wr.run(w.t.Context()) })
	}
	w.t.Cleanup(w.end)
}

// end tells the writers to stop and waits until they have.
func (w *workload) end() {
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}
	w.running.Wait()
}

// hold waits until each call of the writers has its outcome, and keeps them from making others until release.
func (w *workload) hold() {
	w.t.Helper()
	w.held.Store(true)
	eventually(w.t, "the writers stand still: "+w.progress(), w.calling.TryLock)
	w.calling.Unlock()
}

// release lets the writers go on.
func (w *workload) release() { w.held.Store(false) }

// finish ends the load once each write has its outcome.
func (w *workload) finish() {
	w.t.Helper()
	done := make(chan struct{})
	go func() { w.end(); close(done) }()
	select {
	case <-done:
	case <-time.After(program.WaitLimit):
		w.t.Fatalf("the writers do not get an outcome: %s\n%s", w.progress(), w.c.accounts())
	}
	w.t.Log(w.progress())
}

// progress says what each writer was told.
func (w *workload) progress() string {
	s := ""
	for _, wr := range w.writers {
		s += fmt.Sprintf("%s %d acked %d failed %d unknown; ", wr.name, wr.acked.Load(), wr.failed.Load(), wr.unknown.Load())
	}
	return s
}

// advance waits until each of some writers has n more messages acknowledged; without names, each of all.
func (w *workload) advance(n int64, names ...string) {
	w.t.Helper()
	goal := map[*writer]int64{}
	for _, wr := range w.writers {
		if wr.until == nil && (len(names) == 0 || slices.Contains(names, wr.name)) {
			goal[wr] = wr.acked.Load() + n
		}
	}
	deadline := time.After(program.WaitLimit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for wr, want := range goal {
		for wr.acked.Load() < want {
			select {
			case <-tick.C:
				if w.meanwhile != nil {
					w.meanwhile()
				}
			case <-deadline:
				w.t.Fatalf("writer %s has no acknowledgements any more: %s\n%s%s", wr.name, w.progress(), wr.log.Tail(20), w.c.accounts())
			}
		}
	}
}

func (wr *writer) run(ctx context.Context) {
	if err := wr.open(nil); err != nil {
		wr.w.t.Errorf("writer %s: %v", wr.name, err)
		return
	}
	tick := time.NewTicker(wr.pace)
	defer tick.Stop()
	for {
		select {
		case <-wr.w.stop:
			wr.close(ctx)
			return
		case <-wr.until:
			wr.close(ctx)
			return
		case <-ctx.Done():
			wr.close(ctx)
			return
		case <-tick.C:
		}
		if err := wr.writeUnlessHeld(ctx); err != nil {
			wr.w.t.Errorf("writer %s: %v", wr.name, err)
			return
		}
	}
}

func (wr *writer) writeUnlessHeld(ctx context.Context) error {
	wr.w.calling.RLock()
	defer wr.w.calling.RUnlock()
	if wr.w.held.Load() {
		return nil
	}
	return wr.write(wr, ctx)
}

func (wr *writer) open(id *producer.Identity) error {
	options := append([]producer.Option{
		producer.WithAck(wr.level), producer.WithLogger(slog.New(slog.NewTextHandler(&wr.log, nil))),
	}, wr.options...)
	if id != nil {
		options = append(options, producer.WithIdentity(*id))
	}
	if wr.w.c.outside != nil {
		options = append(options, producer.WithHTTPClient(wr.w.c.outside.client))
	}
	p, err := producer.New(wr.server(), options...)
	if wr.p = p; err == nil && wr.keys > 0 {
		err = p.Prepare(wr.w.t.Context(), wr.category) // servers do not place what is numbered
	}
	return err
}

// close waits for what is not known yet, and compares the producer's account with ours.
func (wr *writer) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, program.WaitLimit)
	defer cancel()
	err := wr.p.Close(ctx)
	if wr.w.t.Context().Err() != nil {
		return // the test has ended, and the cell with it
	}
	wr.land(ctx, 0)
	if err != nil {
		wr.w.t.Errorf("writer %s: close: %v", wr.name, err)
	}
	if s := wr.p.Stats(); s.Accepted != s.Acked+s.Failed+s.Buffered || s.Buffered != 0 || s.Memory != 0 {
		wr.w.t.Errorf("writer %s: its account does not balance: %+v", wr.name, s)
	}
}

// source returns the next n messages of the writer's source. Their bytes depend on the seed, the writer and the index alone.
func (wr *writer) source(n int) []history.Message {
	msgs := make([]history.Message, n)
	for i := range msgs {
		id := history.ID{Writer: wr.name, Index: wr.next}
		rng := rngOf(wr.w.seed, id.String())
		msgs[i] = history.Message{ID: id, Payload: history.Payload(id, 20+rng.IntN(wr.size), rng)}
		if wr.keys > 0 {
			msgs[i].Key = keyOf(rng.IntN(wr.keys))
		}
		wr.next++
	}
	return msgs
}

func toMessages(msgs []history.Message, shard uint32) []producer.Message {
	out := make([]producer.Message, len(msgs))
	for i := range msgs {
		out[i] = toMessage(&msgs[i], shard)
	}
	return out
}

func toMessage(m *history.Message, shard uint32) producer.Message {
	out := producer.Message{Payload: m.Payload, Shard: shard}
	if m.Key != "" {
		out.Key = []byte(m.Key)
	}
	return out
}

// levelOf is a level of acknowledgement as the history names it.
func levelOf(l producer.AckLevel) history.Level {
	switch l {
	case producer.AckNone:
		return history.None
	case producer.AckSpooled:
		return history.Spooled
	default:
		return history.Committed
	}
}

// tell notes the outcome of a message.
func (wr *writer) tell(a *history.Attempt, i int, err error) {
	switch {
	case err == nil:
		a.Acked(i, levelOf(wr.level))
		wr.acked.Add(1)
	case errors.Is(err, producer.ErrUnknownOutcome):
		wr.unknown.Add(1)
	default:
		a.Failed(i)
		wr.failed.Add(1)
	}
}

// tellAll notes the outcomes of a call of Write.
func (wr *writer) tellAll(a *history.Attempt, n int, err error) {
	failed := map[int]error{}
	if batch := new(producer.BatchError); errors.As(err, &batch) {
		for _, m := range batch.Messages {
			failed[m.Index] = m.Err
		}
		err = nil
	}
	for i := range n {
		if failed[i] != nil {
			wr.tell(a, i, failed[i])
		} else {
			wr.tell(a, i, err)
		}
	}
}

// single writes one message and waits.
func (wr *writer) single(ctx context.Context) error { return wr.several(ctx, 1) }

// batch writes up to twenty and waits.
func (wr *writer) batch(ctx context.Context) error { return wr.several(ctx, 1+wr.rng.IntN(10)) }

func (wr *writer) several(ctx context.Context, n int) error {
	msgs := wr.source(n)
	a := wr.w.h.Begin(wr.category, wr.shard, msgs...)
	wr.tellAll(a, n, wr.p.Write(ctx, wr.category, toMessages(msgs, wr.shard)...))
	return nil
}

// atomic writes a batch that is whole and contiguous.
func (wr *writer) atomic(ctx context.Context) error {
	msgs := wr.source(2 + wr.rng.IntN(10))
	a := wr.w.h.BeginAtomic(wr.category, wr.shard, msgs...)
	wr.tellAll(a, len(msgs), wr.p.WriteAtomic(ctx, wr.category, wr.shard, toMessages(msgs, wr.shard)...))
	return nil
}

// async has several writes under way, and waits for all of them at times.
func (wr *writer) async(ctx context.Context) error {
	msgs := wr.source(10)
	results := make([]*producer.Result, len(msgs))
	attempts := make([]*history.Attempt, len(msgs))
	for i := range msgs {
		attempts[i] = wr.w.h.Begin(wr.category, wr.shard, msgs[i])
		results[i] = wr.p.WriteAsyncContext(ctx, wr.category, new(toMessage(&msgs[i], wr.shard)))
	}
	for i, r := range results {
		wr.tell(attempts[i], 0, r.Wait(ctx))
	}
	return nil
}

// messageInFlight is a message that was written, and its outcome.
type messageInFlight struct {
	attempt *history.Attempt
	result  *producer.Result
}

// maxFlight is how many messages of flowing have no outcome at most.
const maxFlight = 500

// flowing writes without waiting for what it wrote before, also while nobody answers.
func (wr *writer) flowing(ctx context.Context) error {
	for _, m := range wr.source(10) {
		a := wr.w.h.Begin(wr.category, wr.shard, m)
		wr.flight = append(wr.flight, messageInFlight{a, wr.p.WriteAsyncContext(ctx, wr.category, new(toMessage(&m, wr.shard)))})
	}
	wr.land(ctx, maxFlight)
	return nil
}

// land tells the outcomes of messages in flight: those that are known, in order, and those of all but the last few.
func (wr *writer) land(ctx context.Context, few int) {
	for len(wr.flight) > 0 {
		f := wr.flight[0]
		select {
		case <-f.result.Done():
		default:
			if len(wr.flight) <= few {
				return
			}
		}
		wr.tell(f.attempt, 0, f.result.Wait(ctx))
		wr.flight = wr.flight[1:]
	}
}

// restarting writes like batch, saves its identity with its place in the source now and then, and crashes at times: then it goes on
// from what it saved, and writes again what it may have written.
func (wr *writer) restarting(ctx context.Context) error {
	switch luck := wr.rng.IntN(30); {
	case luck == 0:
		gone, cancel := context.WithCancel(ctx)
		cancel()
		// In the middle of a write, whose outcome nobody waits for.
		msgs := wr.source(5)
		wr.w.h.Begin(wr.category, wr.shard, msgs...)
		for i := range msgs {
			wr.p.WriteAsync(wr.category, &producer.Message{Payload: msgs[i].Payload, Shard: wr.shard})
		}
		_ = wr.p.Close(gone)
		wr.next = wr.saved.next
		wr.restarts++
		if wr.saved.identity.ID == 0 {
			return wr.open(nil)
		}
		return wr.open(&wr.saved.identity)
	case luck < 4 || wr.saved.identity.ID == 0:
		wr.saved.identity, wr.saved.next = wr.p.Identity(), wr.next // every write before was acknowledged
	}
	return wr.batch(ctx)
}
