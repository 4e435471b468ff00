package feed

import (
	"context"
	"errors"
	"log/slog"
	"math/bits"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"scribe/internal/base/lifecycle"
	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 2 * time.Minute

var errBroken = errors.New("broken")

// brittle is an engine whose subscriptions and listings break when a test says so.
type brittle struct {
	metalog.Log
	mu struct {
		sync.Mutex
		subscribed int // calls of Subscribe
		down       bool
		cut        chan struct{} // closed to break the subscriptions that run
	}
}

func (b *brittle) set(down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.down = down; down {
		close(b.mu.cut)
		b.mu.cut = make(chan struct{})
	}
}

func (b *brittle) Subscribe(ctx context.Context, from []metalog.Position, heartbeat time.Duration, fn func([]metalog.Update) error) error {
	b.mu.Lock()
	down, cut := b.mu.down, b.mu.cut
	b.mu.subscribed++
	b.mu.Unlock()
	if down {
		return errBroken
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-cut:
			cancel(errBroken)
		case <-stop:
		}
	}()
	err := b.Log.Subscribe(ctx, from, heartbeat, fn)
	if context.Cause(ctx) == errBroken { //nolint:errorlint // the very one
		err = errBroken
	}
	return err
}

// events is a listener that a test can wait for.
type events struct {
	mu      sync.Mutex
	l       *listener
	data    [][]byte
	changed lifecycle.WakeChannel
}

func newEvents(t testing.TB) *events {
	return &events{l: newListener(t), changed: lifecycle.NewWakeChannel()}
}

func (e *events) note(fn func()) {
	e.mu.Lock()
	fn()
	e.mu.Unlock()
	e.changed.WakeUp()
}

func (e *events) Updates(updates []metalog.Update) {
	e.note(func() {
		e.l.Updates(updates)
		for _, u := range updates {
			for _, x := range u.Entries {
				e.data = append(e.data, x.Data)
			}
		}
	})
}

func (e *events) Tail(shard record.ShardID, next record.LSN, mark int64, sealed bool) {
	e.note(func() { e.l.Tail(shard, next, mark, sealed) })
}
func (e *events) Floor(t int64) { e.note(func() { e.l.Floor(t) }) }
func (e *events) Shards(fresh []record.ShardID, horizon int64) {
	e.note(func() { e.l.Shards(fresh, horizon) })
}
func (e *events) Fail(err error) { e.note(func() { e.l.Fail(err) }) }

// until waits until what the listener has noted is as wanted.
func (e *events) until(t testing.TB, what string, ok func(*listener) bool) {
	t.Helper()
	timeout := time.After(patience)
	for {
		e.mu.Lock()
		done := ok(e.l)
		e.mu.Unlock()
		if done {
			return
		}
		select {
		case <-e.changed:
		case <-timeout:
			t.Fatalf("waited for: %s", what)
		}
	}
}

type harness struct {
	t      testing.TB
	log    *brittle
	hub    *Hub
	states map[record.ShardID]metalog.State
}

func newHarness(t testing.TB, cfg Config) *harness {
	t.Helper()
	engine, err := pebblelog.Open("log", pebblelog.Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	log := &brittle{Log: engine}
	log.mu.cut = make(chan struct{})
	return &harness{t: t, log: log, hub: NewHub(cfg, Deps{Log: log, Logger: slog.New(slog.DiscardHandler)}), states: map[record.ShardID]metalog.State{}}
}

// slow is a configuration in which nothing is told by heartbeats while a test runs.
var slow = Config{Heartbeat: time.Hour, FailAfter: time.Hour}

func shard(i int) record.ShardID { return record.MakeShardID(7, uint16(i), 1) }

func (h *harness) create(ids ...record.ShardID) []metalog.State {
	h.t.Helper()
	states, err := h.log.Open(h.t.Context(), "test", ids)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, st := range states {
		h.states[st.Shard] = st
	}
	return states
}

func (h *harness) append(id record.ShardID, data string) {
	h.t.Helper()
	_, err := h.log.Append(h.t.Context(), &metalog.Append{Shards: []metalog.ShardAppend{
		{Shard: id, Epoch: h.states[id].Epoch, Records: [][]byte{[]byte(data)}},
	}})
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) wantSubscriptions(ok func(int64) bool) {
	h.t.Helper()
	for deadline := time.Now().Add(patience); !ok(h.hub.Stats().Subscriptions); {
		if time.Now().After(deadline) {
			h.t.Fatalf("%d subscriptions", h.hub.Stats().Subscriptions)
		}
		<-time.After(time.Millisecond)
	}
}

// A thousand members of one shard cost one subscription, and share each record's memory.
func TestOneSubscription(t *testing.T) {
	h := newHarness(t, slow)
	states := h.create(shard(1))
	all := make([]*events, 1000)
	members := make([]*Member, len(all))
	for i := range all {
		all[i] = newEvents(t)
		members[i] = h.hub.Join(7, all[i])
		members[i].Follow(states)
	}
	for i := range 3 {
		h.append(shard(1), string(rune('a'+i)))
	}
	for _, e := range all {
		e.until(t, "three records", func(l *listener) bool { return l.at[shard(1)] == 4 })
		if e.data[2][0] != 'c' || &e.data[2][0] != &all[0].data[2][0] {
			t.Fatal("the record is another one, or another copy")
		}
	}
	h.wantSubscriptions(func(n int64) bool { return n == 1 })
	h.log.mu.Lock()
	if n := h.log.mu.subscribed; n != 1 {
		t.Errorf("the engine was asked for %d subscriptions", n)
	}
	h.log.mu.Unlock()
	for _, m := range members {
		m.Leave()
	}
	if s := h.hub.Stats(); s.Subscriptions != 0 || s.Categories != 0 {
		t.Errorf("when all have left: %+v", s)
	}
}

// Shards that come one at a time are in few subscriptions; shards that nobody follows any more leave them.
func TestGroups(t *testing.T) {
	h := newHarness(t, slow)
	const n = 200
	e, stays := newEvents(t), newEvents(t)
	m, stay := h.hub.Join(7, e), h.hub.Join(7, stays)
	most := int64(bits.Len(n)) + 1
	for i := range n {
		states := h.create(shard(i))
		m.Follow(states)
		if i == n/2 {
			stay.Follow(states)
		}
		h.append(shard(i), "x")
		e.until(t, "a record of the new shard", func(l *listener) bool { return l.at[shard(i)] == 2 })
		if s := h.hub.Stats(); s.Subscriptions > most {
			t.Fatalf("%d subscriptions for %d shards", s.Subscriptions, i+1)
		}
	}
	m.Leave()
	h.wantSubscriptions(func(n int64) bool { return n == 1 })
	h.append(shard(n/2), "y")
	stays.until(t, "what is new in the shard that is left", func(l *listener) bool { return l.at[shard(n/2)] == 3 })
	// Somebody comes back to a shard that was left.
	e = newEvents(t)
	m = h.hub.Join(7, e)
	states, err := h.log.Tail(t.Context(), []record.ShardID{shard(0)})
	if err != nil {
		t.Fatal(err)
	}
	m.Follow(states)
	h.append(shard(0), "z")
	e.until(t, "what is new", func(l *listener) bool { return l.at[shard(0)] == 3 })
	m.Leave()
	stay.Leave()
}

// A subscription that breaks goes on where it was: nothing is missing, and members do not notice.
func TestReconnect(t *testing.T) {
	h := newHarness(t, slow)
	e := newEvents(t)
	m := h.hub.Join(7, e)
	defer m.Leave()
	m.Follow(h.create(shard(1)))
	for i := range 5 {
		h.append(shard(1), "before")
		e.until(t, "a record", func(l *listener) bool { return l.at[shard(1)] == record.LSN(2*i)+2 })
		h.log.set(true)
		h.append(shard(1), "during")
		h.log.set(false)
		e.until(t, "what came while it was broken", func(l *listener) bool { return l.at[shard(1)] == record.LSN(2*i)+3 })
	}
	if len(e.data) != 10 || len(e.l.failed) > 0 {
		t.Errorf("%d records, failures %v", len(e.data), e.l.failed)
	}
}

// A look tells of new shards, and brings floor and horizon up to the clock of the engine, without a heartbeat.
func TestLook(t *testing.T) {
	h := newHarness(t, slow)
	e := newEvents(t)
	m := h.hub.Join(7, e)
	defer m.Leave()
	states := h.create(shard(1), shard(2))
	m.Follow(states)
	h.append(shard(1), "x")
	h.create(shard(3))
	e.until(t, "the record, and a watch that tells of shards", func(l *listener) bool { return l.at[shard(1)] == 2 && len(l.known) == 3 })
	after, err := h.log.Tail(t.Context(), []record.ShardID{shard(1)})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the horizon is what was seen before a look
		before := h.hub.Stats().Looks
		m.Look()
		e.until(t, "a look", func(*listener) bool { return h.hub.Stats().Looks > before })
	}
	e.until(t, "floor and horizon", func(l *listener) bool { return l.floor >= after[0].LastTime && l.horizon >= after[0].LastTime })
}

func TestFailures(t *testing.T) {
	cfg := slow
	cfg.FailAfter = 10 * time.Millisecond
	h := newHarness(t, cfg)
	h.log.set(true)
	e := newEvents(t)
	m := h.hub.Join(7, e)
	m.Follow(h.create(shard(1)))
	e.until(t, "a failure", func(l *listener) bool { return len(l.failed) > 0 && errors.Is(l.failed[0], errBroken) })
	m.Leave()
	h.log.set(false)
	e = newEvents(t)
	m = h.hub.Join(7, e)
	m.Follow(h.create(shard(2)))
	if err := h.log.Close(); err != nil {
		t.Fatal(err)
	}
	e.until(t, "the engine's end", func(l *listener) bool { return len(l.failed) > 0 && errors.Is(l.failed[0], metalog.ErrClosed) })
	m.Leave()
}

// The rest between looks goes with what they cost and bring, but a look during which the engine was away for a moment keeps nobody back.
func TestRest(t *testing.T) {
	cfg := Config{Heartbeat: time.Second, LookPause: 5 * time.Millisecond}
	for _, c := range []struct {
		last, took time.Duration
		gained     bool
		want       time.Duration
	}{
		{5 * time.Millisecond, 0, true, 5 * time.Millisecond},
		{5 * time.Millisecond, 20 * time.Millisecond, true, 200 * time.Millisecond},
		{200 * time.Millisecond, 0, true, 5 * time.Millisecond},
		{5 * time.Millisecond, 0, false, 10 * time.Millisecond},
		{5 * time.Millisecond, 20 * time.Millisecond, false, 200 * time.Millisecond},
		{800 * time.Millisecond, 0, false, time.Second},
		{5 * time.Millisecond, 2 * time.Second, true, time.Second},
		{5 * time.Millisecond, 2 * time.Second, false, time.Second},
	} {
		if got := cfg.rest(c.last, c.took, c.gained); got != c.want {
			t.Errorf("after a rest of %v and a look of %v (gained %v) it rests %v, want %v", c.last, c.took, c.gained, got, c.want)
		}
	}
}
