package batcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/role/request"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob/encryption"
	"scribe/storage/blob/encryption/encryptiontest"
	"scribe/storage/blob/layout"
	"scribe/storage/blob/memory"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog"
)

// catalog is a fixed set of categories.
type catalog map[string]*scribev1.Category

func (c catalog) Lookup(name string) (*scribev1.Category, bool) {
	v, ok := c[name]
	return v, ok
}

func (c catalog) Resolve(_ context.Context, name string) (*scribev1.Category, error) {
	if v, ok := c[name]; ok {
		return v, nil
	}
	return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "there is no category %q", name)
}

func testCatalog() catalog {
	c := catalog{}
	add := func(name string, id uint32, retention time.Duration, delivery scribev1.Delivery) {
		c[name] = &scribev1.Category{Name: name, Id: id, Shards: 4, Retention: durationpb.New(retention), Delivery: delivery}
	}
	add("alpha", 1, 72*time.Hour, scribev1.Delivery_DELIVERY_AT_LEAST_ONCE)
	add("beta", 2, 72*time.Hour, scribev1.Delivery_DELIVERY_AT_LEAST_ONCE)
	add("brief", 3, time.Hour, scribev1.Delivery_DELIVERY_AT_LEAST_ONCE)
	add("once", 4, 72*time.Hour, scribev1.Delivery_DELIVERY_EXACTLY_ONCE)
	return c
}

// step is a planned fault: what happens to one call.
type step struct {
	err   error           // returned instead of, or after, the call
	after bool            // the call is carried out, and its answer lost
	hold  <-chan struct{} // the call waits for this first
	seen  chan<- struct{} // closed when the call arrives
	delay time.Duration   // the call takes that long before anything happens
}

// faults is a script of what happens to the calls of one kind, in order; calls beyond it pass.
type faults struct {
	mu    sync.Mutex
	steps []step
	calls int
	// random, when set, says what happens to calls beyond the script.
	random func() step
}

func (f *faults) plan(steps ...step) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.steps = append(f.steps, steps...)
}

// always says what happens to all calls beyond the script.
func (f *faults) always(s step) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.random = func() step { return s }
}

func (f *faults) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// run carries out call under the next step of the script.
func (f *faults) run(ctx context.Context, call func() error) error {
	f.mu.Lock()
	var s step
	if len(f.steps) > 0 {
		s, f.steps = f.steps[0], f.steps[1:]
	} else if f.random != nil {
		s = f.random()
	}
	f.calls++
	f.mu.Unlock()
	if s.seen != nil {
		close(s.seen)
	}
	if s.hold != nil {
		select {
		case <-s.hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if s.delay > 0 {
		select {
		case <-time.After(s.delay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if s.err != nil && !s.after {
		return s.err
	}
	if err := call(); err != nil {
		return err
	}
	return s.err
}

var errInjected = errors.New("injected fault")

// faultyStore is a memory store with faults.
type faultyStore struct {
	*memory.Store
	puts faults
	// onPut, when set, is asked before a blob of a retention class is put.
	onPut hook[uint32]
}

func (s *faultyStore) Put(ctx context.Context, key string, parts ...[]byte) error {
	class, _, err := pointer.ParseKey(key)
	if err != nil {
		return err
	}
	if err := s.onPut.ask(ctx, class); err != nil {
		return err
	}
	return s.puts.run(ctx, func() error { return s.Store.Put(ctx, key, parts...) })
}

// hook is what a test wants to happen before calls, by what they are about. It may be set at any time.
type hook[T any] struct {
	mu sync.Mutex
	fn func(context.Context, T) error
}

func (h *hook[T]) set(fn func(context.Context, T) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fn = fn
}

func (h *hook[T]) ask(ctx context.Context, about T) error {
	h.mu.Lock()
	fn := h.fn
	h.mu.Unlock()
	if fn == nil {
		return nil
	}
	return fn(ctx, about)
}

// until waits for a channel, as a call that hangs.
func until(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// faultyLog is an engine with faults.
type faultyLog struct {
	metalog.Log
	opens, appends, reads, sequences faults
	// onOpen and onAppend, when set, are asked before the calls with the shards that they are about.
	onOpen, onAppend hook[[]record.ShardID]
}

func (l *faultyLog) Open(ctx context.Context, owner string, shards []record.ShardID) (states []metalog.State, err error) {
	if err := l.onOpen.ask(ctx, shards); err != nil {
		return nil, err
	}
	err = l.opens.run(ctx, func() error { states, err = l.Log.Open(ctx, owner, shards); return err })
	return states, err
}

func (l *faultyLog) Append(ctx context.Context, a *metalog.Append) (where []metalog.Appended, err error) {
	shards := make([]record.ShardID, len(a.Shards))
	for i := range shards {
		shards[i] = a.Shards[i].Shard
	}
	if err := l.onAppend.ask(ctx, shards); err != nil {
		return nil, err
	}
	err = l.appends.run(ctx, func() error { where, err = l.Log.Append(ctx, a); return err })
	if err != nil {
		return nil, err
	}
	return where, nil
}

func (l *faultyLog) Read(ctx context.Context, s record.ShardID, from record.LSN, n, size int) (entries []metalog.Entry, err error) {
	err = l.reads.run(ctx, func() error { entries, err = l.Log.Read(ctx, s, from, n, size); return err })
	return entries, err
}

func (l *faultyLog) Sequences(ctx context.Context, s record.ShardID, producers []uint64) (states []metalog.ProducerState, err error) {
	err = l.sequences.run(ctx, func() error { states, err = l.Log.Sequences(ctx, s, producers); return err })
	return states, err
}

// cell is a batcher over real stores in memory.
type cell struct {
	t       testing.TB
	store   *faultyStore
	log     *faultyLog
	catalog catalog
	keys    *encryption.Keys
	slot    atomic.Uint32
	*Batcher
}

func testConfig() Config {
	cfg := DefaultConfig()
	cfg.RetryBase, cfg.RetryMax = time.Millisecond, 4*time.Millisecond
	return cfg
}

func newLog(t testing.TB) metalog.Log {
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
	return engine
}

// newCell starts a batcher over log, a new one when it is nil, and store, likewise.
func newCell(t testing.TB, cfg Config, log metalog.Log, store *memory.Store) *cell {
	t.Helper()
	return newCellWith(t, cfg, log, store, func(*Deps) {})
}

func newCellWith(t testing.TB, cfg Config, log metalog.Log, store *memory.Store, edit func(*Deps)) *cell {
	t.Helper()
	if log == nil {
		log = newLog(t)
	}
	if store == nil {
		store = memory.New()
	}
	c := &cell{t: t, store: &faultyStore{Store: store}, log: &faultyLog{Log: log}, catalog: testCatalog()}
	c.slot.Store(7)
	var err error
	if c.keys, err = encryption.NewKeys(encryption.Config{Store: store, Wrapper: encryptiontest.KeyFile(t, "test")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.keys.Close)
	deps := Deps{Keys: c.keys, Blobs: c.store, Log: c.log, Categories: c.catalog, Slot: func() uint16 { return uint16(c.slot.Load()) }, Owner: "test"}
	edit(&deps)
	if c.Batcher, err = New(cfg, deps); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Logf("close: %v", err)
		}
	})
	return c
}

// sequence is what makes a frame sequenced.
type sequence struct {
	producer uint64
	epoch    uint32
	first    uint64
}

// makeFrame encodes messages.
func makeFrame(t testing.TB, category string, shard uint32, seq *sequence, messages ...string) []byte {
	t.Helper()
	env := record.Envelope{Category: category, Shard: shard, BaseTime: 1_700_000_000_000_000}
	if seq != nil {
		env.Sequenced, env.Producer, env.Epoch, env.FirstSequence = true, seq.producer, seq.epoch, seq.first
	}
	var b record.Builder
	if err := b.Reset(nil, env); err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		if err := b.AppendPayload([]byte(m)); err != nil {
			t.Fatal(err)
		}
	}
	out, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// submit sends frames and returns their results.
func (c *cell) submit(ack scribev1.AckLevel, frames ...[]byte) []*scribev1.FrameResult {
	c.t.Helper()
	resp, err := c.Submit(c.t.Context(), &scribev1.SubmitRequest{Frames: slices.Concat(frames...), Ack: ack})
	if err == nil && len(resp.GetResults()) == len(frames) {
		return resp.GetResults()
	}
	// Not fatal: it may be called in any goroutine.
	c.t.Errorf("Submit: %d results for %d frames, %v", len(resp.GetResults()), len(frames), err)
	results := make([]*scribev1.FrameResult, len(frames))
	for i := range results {
		results[i] = &scribev1.FrameResult{Error: rpc.Info(errInjected)}
	}
	return results
}

// commit sends frames that must all be committed, and checks that each can be read where it is said to be.
func (c *cell) commit(frames ...[]byte) []*scribev1.FrameResult {
	c.t.Helper()
	results := c.submit(scribev1.AckLevel_ACK_LEVEL_COMMITTED, frames...)
	for i, r := range results {
		if r.GetError() != nil {
			c.t.Fatalf("frame %d: %v", i, r.GetError())
		}
		if !r.GetDuplicate() {
			c.mustHold(r, frames[i])
		}
	}
	return results
}

// mustHold checks that the frame is in the payload at the place that a result names.
func (c *cell) mustHold(r *scribev1.FrameResult, frame []byte) {
	c.t.Helper()
	entries, err := c.log.Log.Read(c.t.Context(), record.ShardID(r.GetShard()), record.LSN(r.GetLsn()), 1, 0)
	if err != nil || len(entries) != 1 {
		c.t.Fatalf("read %v/%d: %d entries, %v", record.ShardID(r.GetShard()), r.GetLsn(), len(entries), err)
	}
	for f, err := range record.Split(c.payload(entries[0].Data)) {
		if err != nil {
			c.t.Fatal(err)
		}
		if bytes.Equal(f.Bytes, frame) {
			return
		}
	}
	c.t.Fatalf("the frame is not in the payload at %v/%d", record.ShardID(r.GetShard()), r.GetLsn())
}

// payload follows a pointer.
func (c *cell) payload(encoded []byte) []byte {
	c.t.Helper()
	p, err := pointer.Decode(encoded)
	if err != nil {
		c.t.Fatal(err)
	}
	stored, err := layout.ReadBlock(c.t.Context(), c.store.Store, &p)
	if err != nil {
		c.t.Fatal(err)
	}
	if p.Codec.IsEncrypted() {
		if stored, err = c.keys.DecryptBlock(c.t.Context(), p.Codec, stored, int(p.BlockRawLen)); err != nil {
			c.t.Fatal(err)
		}
	}
	raw, err := layout.Decompress(nil, p.Codec.Compression(), stored, int(p.BlockRawLen))
	if err != nil {
		c.t.Fatal(err)
	}
	payload, err := layout.Payload(raw, &p)
	if err != nil {
		c.t.Fatal(err)
	}
	return payload
}

// frames returns all frames of a shard in the order of its log, and checks what their pointers say of them.
func (c *cell) frames(shard record.ShardID) [][]byte {
	c.t.Helper()
	var out [][]byte
	for lsn := record.FirstLSN; ; {
		entries, err := c.log.Log.Read(c.t.Context(), shard, lsn, 100, 0)
		if err != nil {
			c.t.Fatal(err)
		}
		if len(entries) == 0 {
			return out
		}
		for _, e := range entries {
			if e.LSN != lsn {
				c.t.Fatalf("LSN %d follows %d", e.LSN, lsn-1)
			}
			lsn++
			out = append(out, c.checkPayload(shard, e)...)
		}
	}
}

func (c *cell) checkPayload(shard record.ShardID, e metalog.Entry) (out [][]byte) {
	c.t.Helper()
	p, err := pointer.Decode(e.Data)
	if err != nil {
		c.t.Fatal(err)
	}
	var frames, messages uint32
	for f, err := range record.Split(c.payload(e.Data)) {
		if err != nil {
			c.t.Fatal(err)
		}
		if _, err := record.Check(f.Bytes); err != nil {
			c.t.Fatal(err)
		}
		if uint16(f.Shard) != shard.Logical() || f.BaseTime < p.MinTime || f.BaseTime > p.MaxTime {
			c.t.Fatalf("frame of shard %d at %d in a payload of %v from %d to %d", f.Shard, f.BaseTime, shard, p.MinTime, p.MaxTime)
		}
		frames++
		messages += uint32(f.Count)
		out = append(out, f.Bytes)
	}
	if p.Frames != frames || p.Messages != messages {
		c.t.Fatalf("pointer with %d frames and %d messages, payload with %d and %d", p.Frames, p.Messages, frames, messages)
	}
	c.checkFooter(shard, e, &p)
	return out
}

// checkFooter checks that the blob describes the pointer as it is in the log, and nothing that is not in one.
func (c *cell) checkFooter(shard record.ShardID, e metalog.Entry, p *pointer.Pointer) {
	c.t.Helper()
	footer, err := layout.ReadFooter(c.t.Context(), c.store.Store, p.Key())
	if err != nil {
		c.t.Fatal(err)
	}
	found := false
	for _, fe := range footer.Entries {
		if fe.Shard == shard && fe.LSN == e.LSN {
			found = bytes.Equal(pointer.Append(nil, &fe.Pointer), e.Data)
		}
		there, err := c.log.Log.Read(c.t.Context(), fe.Shard, fe.LSN, 1, 0)
		if err != nil || len(there) != 1 || !bytes.Equal(there[0].Data, pointer.Append(nil, &fe.Pointer)) {
			c.t.Errorf("the footer of %s has %v/%d, which is not in the log: %v", p.Key(), fe.Shard, fe.LSN, err)
		}
	}
	if !found {
		c.t.Fatalf("the footer of %s does not have %v/%d", p.Key(), shard, e.LSN)
	}
}

// verify checks all blobs, that the counters add up, and that no memory is in use.
func (c *cell) verify() {
	c.t.Helper()
	for info, err := range c.store.List(c.t.Context(), pointer.KeyRoot) {
		if err != nil {
			c.t.Fatal(err)
		}
		if _, err := layout.Verify(c.t.Context(), c.store.Store, info.Key, c.keys); err != nil {
			c.t.Errorf("blob %s: %v", info.Key, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if acc := &c.mu.acc; acc.memory.Used() != 0 || len(acc.accounts)+len(acc.batches)+len(acc.stalled)+acc.parts+acc.detached != 0 {
		c.t.Errorf("%d bytes are still charged; %d categories, %d groups, %d stalled shards, %d parts, %d detached",
			acc.memory.Used(), len(acc.accounts), len(acc.batches), len(acc.stalled), acc.parts, acc.detached)
	}
	for _, fl := range c.mu.acc.queues {
		if fl.held != 0 || fl.running != 0 || fl.urgent != 0 || fl.large != 0 || fl.awaited != (flushVolume{}) || len(fl.awaitedBatches) != 0 || fl.pending != (flushVolume{}) || fl.waiters != 0 || fl.lingered != 0 || len(fl.runningFlushes) != 0 {
			c.t.Errorf("class %d: %+v", fl.class, *fl)
		}
	}
	if busy, troubled := c.queues.Busy(), c.queues.Troubled(); busy+troubled != 0 {
		c.t.Errorf("%d logs are in use, and %d have trouble", busy, troubled)
	}
	if b := c.mu.counts.buffered(); b != (request.Amount{}) {
		c.t.Errorf("%+v are still buffered", b)
	}
}

// placeOf names where a result is, for messages.
func placeOf(r *scribev1.FrameResult) string {
	return fmt.Sprintf("%v/%d", record.ShardID(r.GetShard()), r.GetLsn())
}

// bubble runs f with a new batcher under a clock that only the test moves.
func bubble(t *testing.T, cfg Config, f func(t *testing.T, c *cell)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newCell(t, cfg, nil, nil)) })
}

func counterValue(t testing.TB, c prometheus.Counter) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	if err := registry.Register(c); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families[0].GetMetric()[0].GetCounter().GetValue()
}
