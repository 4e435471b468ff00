package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/batcher"
	"scribe/cmd/scribe/recovery"
	"scribe/internal/base/config"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/testkit/testsize"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob/layout"
	"scribe/storage/blob/memory"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog"
)

// The categories of the histories.
var historyCategories = map[string]*scribev1.Category{
	"alpha": {Name: "alpha", Id: 1, Shards: 3, Retention: durationpb.New(72 * time.Hour), Delivery: scribev1.Delivery_DELIVERY_AT_LEAST_ONCE},
	"beta":  {Name: "beta", Id: 2, Shards: 2, Retention: durationpb.New(72 * time.Hour), Delivery: scribev1.Delivery_DELIVERY_AT_LEAST_ONCE},
	"brief": {Name: "brief", Id: 3, Shards: 2, Retention: durationpb.New(time.Hour), Delivery: scribev1.Delivery_DELIVERY_AT_LEAST_ONCE},
	"once":  {Name: "once", Id: 4, Shards: 2, Retention: durationpb.New(72 * time.Hour), Delivery: scribev1.Delivery_DELIVERY_EXACTLY_ONCE},
	"bound": {
		Name: "bound", Id: 5, Shards: 1, Retention: durationpb.New(72 * time.Hour), Delivery: scribev1.Delivery_DELIVERY_AT_LEAST_ONCE,
		Repeatable: scribev1.Repeatability_REPEATABILITY_BOUND,
	},
	"doomed": {Name: "doomed", Id: 6, Shards: 1, Retention: durationpb.New(72 * time.Hour), Delivery: scribev1.Delivery_DELIVERY_AT_LEAST_ONCE},
}

type fixedCatalog struct{}

func (fixedCatalog) Lookup(name string) (*scribev1.Category, bool) {
	c, ok := historyCategories[name]
	return c, ok
}

func (fixedCatalog) Resolve(_ context.Context, name string) (*scribev1.Category, error) {
	if c, ok := historyCategories[name]; ok {
		return c, nil
	}
	return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "there is no category %q", name)
}

var errInjected = errors.New("injected fault")

// line is what a batcher calls the engine and the store through: calls fail at random, before or after they were carried out, and once it
// is cut nothing goes through any more, as if the batcher's process had been killed.
type line struct {
	log   metalog.Log
	store *memory.Store
	mu    struct {
		sync.Mutex
		rng  *rand.Rand
		rate float64
		cut  bool
	}
}

func newLine(seed uint64, log metalog.Log, store *memory.Store) *line {
	l := &line{log: log, store: store}
	l.mu.rng = rand.New(rand.NewPCG(seed, 77))
	l.mu.rate = 0.2 * l.mu.rng.Float64()
	return l
}

func (l *line) calm() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.rate = 0
}

func (l *line) sever() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.cut = true
}

// call carries something out, or not, and says so, or not.
func (l *line) call(ctx context.Context, fn func() error) error {
	l.mu.Lock()
	before, after, delay := false, false, time.Duration(l.mu.rng.IntN(3000))*time.Microsecond
	if l.mu.rng.Float64() < l.mu.rate {
		before, after = l.mu.rng.IntN(2) == 0, true
	}
	l.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return ctx.Err()
	}
	l.mu.Lock()
	cut := l.mu.cut
	l.mu.Unlock()
	if cut || before {
		return errInjected
	}
	if err := fn(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.cut || after {
		return errInjected
	}
	return nil
}

func (l *line) Put(ctx context.Context, key string, parts ...[]byte) error {
	return l.call(ctx, func() error { return l.store.Put(ctx, key, parts...) })
}

func (l *line) Open(ctx context.Context, owner string, shards []record.ShardID) (out []metalog.State, err error) {
	err = l.call(ctx, func() error { out, err = l.log.Open(ctx, owner, shards); return err })
	return out, err
}

func (l *line) Append(ctx context.Context, a *metalog.Append) (out []metalog.Appended, err error) {
	err = l.call(ctx, func() error { out, err = l.log.Append(ctx, a); return err })
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (l *line) Read(ctx context.Context, s record.ShardID, from record.LSN, n, size int) (out []metalog.Entry, err error) {
	err = l.call(ctx, func() error { out, err = l.log.Read(ctx, s, from, n, size); return err })
	return out, err
}

func (l *line) Sequences(ctx context.Context, s record.ShardID, producers []uint64) (out []metalog.ProducerState, err error) {
	err = l.call(ctx, func() error { out, err = l.log.Sequences(ctx, s, producers); return err })
	return out, err
}

// world is a cell of batchers over an engine and a store in memory.
type world struct {
	t      *testing.T
	fs     vfs.FS // of the engine
	engine *pebblelog.Engine
	store  *memory.Store
	rng    *rand.Rand
	lives  uint64
	// next are the sequences of the producers of the category once, by logical shard and producer.
	next map[[2]uint64]uint64
	// base is a copy of the logs, with its watermark, with which a recovery begins; nil for none.
	base      *pebblelog.Copy
	watermark int64
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	fs := vfs.NewMem()
	engine, err := pebblelog.Open("log", pebblelog.Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	return &world{t: t, fs: fs, engine: engine, store: memory.New(), rng: rand.New(rand.NewPCG(seed, 5)), next: map[[2]uint64]uint64{}}
}

// batcher starts a batcher with a writer slot.
func (w *world) batcher(log metalog.Log, slot uint16, seed uint64) (*batcher.Batcher, *line) {
	w.t.Helper()
	cfg := batcher.DefaultConfig()
	cfg.RetryBase, cfg.RetryMax = time.Millisecond, 4*time.Millisecond
	cfg.PayloadBytes, cfg.BlockBytes, cfg.FlushBytes = 256, 512, 1<<10
	cfg.PutAttempts, cfg.CommitPatience, cfg.StallAfter = 3, 20*time.Millisecond, 10*time.Millisecond
	l := newLine(seed, log, w.store)
	b, err := batcher.New(cfg, batcher.Deps{
		Blobs: l, Log: l, Categories: fixedCatalog{}, Slot: func() uint16 { return slot }, Owner: fmt.Sprintf("slot %d", slot),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return b, l
}

// frameOf encodes messages.
func frameOf(t *testing.T, category string, shard uint32, producer, first uint64, messages ...string) []byte {
	t.Helper()
	env := record.Envelope{Category: category, Shard: shard, BaseTime: 1_700_000_000_000_000}
	if producer != 0 {
		env.Sequenced, env.Producer, env.Epoch, env.FirstSequence = true, producer, 1, first
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
	f, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// frames are for a request: of all categories, also repetitions of what producers of the category once have sent already.
func (w *world) frames(n int) []byte {
	names := []string{"alpha", "beta", "brief", "once", "bound", "doomed"}
	var out []byte
	for range n {
		name := names[w.rng.IntN(len(names))]
		shard := w.rng.Uint32N(historyCategories[name].GetShards())
		if name != "once" {
			out = append(out, frameOf(w.t, name, shard, 0, 0, fmt.Sprintf("%s %d", name, w.rng.Uint64()), "x")...)
			continue
		}
		k := [2]uint64{uint64(shard), 1 + w.rng.Uint64N(3)}
		first := w.next[k]
		if first >= 2 && w.rng.IntN(4) == 0 {
			first -= 2
		} else {
			w.next[k] += 2
		}
		out = append(out, frameOf(w.t, name, shard, k[1], first, fmt.Sprintf("%d.%d", k[1], first), fmt.Sprintf("%d.%d", k[1], first+1))...)
	}
	return out
}

// live runs batchers for a while under faults. At the end they are killed, or, if it is to be calm, there are no more faults, and they write to
// every log of theirs once more before they are closed.
func (w *world) live(requests int, calm bool) {
	w.t.Helper()
	w.lives++
	var batchers []*batcher.Batcher
	var lines []*line
	for slot := range uint16(2) {
		b, l := w.batcher(w.engine, slot+1, w.lives*10+uint64(slot))
		batchers, lines = append(batchers, b), append(lines, l)
	}
	var sent sync.WaitGroup
	for range requests {
		b, frames := batchers[w.rng.IntN(2)], w.frames(1+w.rng.IntN(8))
		ack := scribev1.AckLevel_ACK_LEVEL_COMMITTED
		if w.rng.IntN(3) == 0 {
			ack = scribev1.AckLevel_ACK_LEVEL_NONE
		}
		sent.Go(func() {
			ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
			defer cancel()
			_, _ = b.Submit(ctx, &scribev1.SubmitRequest{Frames: frames, Ack: ack}) // what becomes of it the engine tells
		})
		if w.rng.IntN(3) == 0 {
			<-time.After(time.Duration(w.rng.IntN(4000)) * time.Microsecond)
		}
	}
	for _, l := range lines {
		if calm {
			l.calm()
		} else {
			l.sever()
		}
	}
	sent.Wait()
	for _, b := range batchers {
		if calm {
			w.writeEverywhere(b)
		}
		ctx, cancel := context.WithTimeout(w.t.Context(), 100*time.Millisecond)
		if err := b.Close(ctx); err != nil && calm {
			w.t.Error(err)
		}
		cancel()
	}
}

// touch has a new batcher write to every log, so that the fate of all that was before is known.
func (w *world) touch() {
	w.t.Helper()
	w.lives++
	for slot := range uint16(2) {
		b, l := w.batcher(w.engine, slot+1, w.lives*10+uint64(slot))
		l.calm()
		w.writeEverywhere(b)
		if err := b.Close(w.t.Context()); err != nil {
			w.t.Error(err)
		}
	}
}

// writeEverywhere writes to every log of a batcher.
func (w *world) writeEverywhere(b *batcher.Batcher) {
	w.t.Helper()
	for name, c := range historyCategories {
		for shard := range c.GetShards() {
			f := frameOf(w.t, name, shard, 0, 0, "touched")
			r, err := b.Submit(w.t.Context(), &scribev1.SubmitRequest{Frames: f, Ack: scribev1.AckLevel_ACK_LEVEL_COMMITTED})
			if err != nil || r.GetResults()[0].GetError() != nil && name != "doomed" {
				w.t.Fatalf("%s: %v, %v", name, r.GetResults(), err)
			}
		}
	}
}

// collect trims the logs of the category brief, and deletes the blobs that nothing refers to any more and that were trimmed, as a collector
// would. Orphans stay.
func (w *world) collect() {
	w.t.Helper()
	states, err := w.engine.Shards(w.t.Context(), 3)
	if err != nil {
		w.t.Fatal(err)
	}
	first := map[record.ShardID]record.LSN{}
	for _, st := range states {
		if err := w.engine.Trim(w.t.Context(), st.Shard, st.NextLSN); err != nil {
			w.t.Fatal(err)
		}
		first[st.Shard] = st.NextLSN
	}
	alive := map[string]bool{}
	for _, st := range w.states() {
		for _, e := range readLog(w.t, w.engine, st) {
			p, err := pointer.Decode(e.Data)
			if err != nil {
				w.t.Fatal(err)
			}
			alive[p.Key()] = true
		}
	}
	for info, err := range w.store.List(w.t.Context(), pointer.KeyRoot) {
		if err != nil {
			w.t.Fatal(err)
		}
		f, err := layout.ReadFooter(w.t.Context(), w.store, info.Key)
		if err != nil {
			w.t.Fatal(err)
		}
		trimmed := slices.ContainsFunc(f.Entries, func(e layout.Entry) bool { return e.LSN < first[e.Shard] })
		if trimmed && !alive[info.Key] {
			if err := w.store.Delete(w.t.Context(), info.Key); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

func (w *world) states() (all []metalog.State) {
	w.t.Helper()
	for _, c := range historyCategories {
		states, err := w.engine.Shards(w.t.Context(), c.GetId())
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, states...)
	}
	slices.SortFunc(all, func(a, b metalog.State) int { return int(int64(a.Shard) - int64(b.Shard)) })
	return all
}

func readLog(t *testing.T, log metalog.Log, st metalog.State) (out []metalog.Entry) {
	t.Helper()
	for next := st.FirstLSN; next < st.NextLSN; {
		entries, err := log.Read(t.Context(), st.Shard, next, 0, 0)
		if err != nil || len(entries) == 0 {
			t.Fatalf("read %v from %d: %d records, %v", st.Shard, next, len(entries), err)
		}
		out = append(out, entries...)
		next = entries[len(entries)-1].LSN + 1
	}
	return out
}

// recover builds the logs again.
func (w *world) recover(catalog *recovery.Catalog) (*pebblelog.Engine, *recovery.Report, []recovery.Finding) {
	w.t.Helper()
	dir := w.t.TempDir()
	logs, err := pebblelog.NewRestorer(filepath.Join(dir, "metalog"), pebblelog.Options{})
	if err != nil {
		w.t.Fatal(err)
	}
	cfg := config.Defaults[recovery.Config]()
	cfg.Scratch, cfg.Catalog, cfg.Workers = filepath.Join(dir, "scratch"), catalog, 3
	var findings []recovery.Finding
	deps := recovery.Deps{Blobs: w.store, Found: func(f recovery.Finding) error { findings = append(findings, f); return nil }}
	if w.base != nil {
		deps.Base, deps.Watermark = w.base, w.watermark
	}
	report, err := recovery.Run(w.t.Context(), cfg, deps, logs)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := logs.Finish(report.Clock, report.Clock, pebblelog.Origin{LSN: report.Origin, End: report.NextID}); err != nil {
		w.t.Fatal(err)
	}
	engine, err := pebblelog.Open(filepath.Join(dir, "metalog"), pebblelog.Options{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			w.t.Error(err)
		}
	})
	return engine, report, findings
}

// same compares the recovered logs with what they were, record by record.
func (w *world) same(got *pebblelog.Engine, deleted uint32) {
	w.t.Helper()
	for _, want := range w.states() {
		states, err := got.Tail(w.t.Context(), []record.ShardID{want.Shard})
		if err != nil {
			w.t.Fatal(err)
		}
		st := states[0]
		if want.Shard.Category() == deleted {
			if st.Epoch != 0 || !st.Sealed {
				w.t.Errorf("shard %v of a deleted category: %+v", want.Shard, st)
			}
			continue
		}
		if st.NextLSN != want.NextLSN || st.Epoch <= want.Epoch || st.Sealed != want.Sealed || st.LastTime == 0 && want.NextLSN > 1 {
			w.t.Errorf("shard %v: %+v, was %+v", want.Shard, st, want)
			continue
		}
		entries := readLog(w.t, got, st)
		// Trims are not in blobs: what was trimmed comes back as far as blobs are still there, and is trimmed again since it is as old.
		if st.FirstLSN > want.FirstLSN || st.FirstLSN < want.FirstLSN && want.Shard.Category() != 3 {
			w.t.Errorf("shard %v begins at %d, was %d", want.Shard, st.FirstLSN, want.FirstLSN)
			continue
		}
		entries = entries[want.FirstLSN-st.FirstLSN:]
		last := int64(0)
		for i, e := range readLog(w.t, w.engine, want) {
			g := entries[i]
			if g.LSN != e.LSN || !bytes.Equal(g.Data, e.Data) {
				w.t.Errorf("shard %v, LSN %d: the record is another one", want.Shard, e.LSN)
				break
			}
			if g.Time < last || g.Time > e.Time {
				w.t.Errorf("shard %v, LSN %d: time %d, was %d, the one before %d", want.Shard, e.LSN, g.Time, e.Time, last)
			}
			last = g.Time
		}
		w.sameProducers(got, want.Shard)
	}
}

func (w *world) sameProducers(got *pebblelog.Engine, shard record.ShardID) {
	w.t.Helper()
	producers := []uint64{1, 2, 3, 4}
	a, err := w.engine.Sequences(w.t.Context(), shard, producers)
	if err != nil {
		w.t.Fatal(err)
	}
	b, err := got.Sequences(w.t.Context(), shard, producers)
	if err != nil {
		w.t.Fatal(err)
	}
	if !slices.Equal(a, b) {
		w.t.Errorf("shard %v: producers %+v, were %+v", shard, b, a)
	}
}

// TestRecoverHistories has batchers write under faults and kills, and compares what is recovered from their blobs with what the engine
// holds: the same logs, record by record, and the same memory of producers.
func TestRecoverHistories(t *testing.T) {
	for seed := range testsize.Test[uint64](12, 4, 2) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { recoverHistory(t, seed, false) })
		})
	}
}

// TestRestoreHistories does the same with a copy of the logs that is made while batchers write and are killed. What it has comes from it, and what was committed since from the blobs.
func TestRestoreHistories(t *testing.T) {
	for seed := range testsize.Test[uint64](12, 4, 2) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { recoverHistory(t, 1000+seed, true) })
		})
	}
}

// copyLogs makes a copy of the logs after a while, which is a part of a second.
func (w *world) copyLogs() (done func()) {
	var copying sync.WaitGroup
	delay := time.Duration(w.rng.IntN(100)) * time.Millisecond
	copying.Go(func() {
		<-time.After(delay)
		err := w.engine.WithCopy(w.t.Context(), func(dir string, watermark int64) error {
			w.watermark = watermark
			_, err := vfs.Clone(w.fs, w.fs, dir, "base")
			return err
		})
		if err == nil {
			w.base, err = pebblelog.OpenCopy("base", pebblelog.Options{FS: w.fs})
		}
		if err != nil {
			w.t.Error(err)
			return
		}
		w.t.Cleanup(func() {
			if err := w.base.Close(); err != nil {
				w.t.Error(err)
			}
		})
	})
	return copying.Wait
}

func recoverHistory(t *testing.T, seed uint64, base bool) {
	w := newWorld(t, seed)
	for range 1 + w.rng.IntN(3) {
		w.live(40, false)
	}
	if base {
		// What is older can't be committed any more, so the footers of those blobs are not needed.
		<-time.After(time.Minute)
		if _, err := w.engine.AdvanceBoundary(t.Context(), time.Now().UnixMicro()-1_000_000); err != nil {
			t.Fatal(err)
		}
		done := w.copyLogs()
		w.live(60, false)
		done()
		if w.base == nil {
			return
		}
	}
	<-time.After(2 * time.Hour) // what is in the category brief expires
	w.collect()
	// Either the batchers that come next tell what became of those that were killed, or batchers tell of themselves.
	calm := w.rng.IntN(2) == 0
	for range w.rng.IntN(3) {
		w.live(40, false)
	}
	w.live(120, calm)
	if !calm {
		w.touch()
	}
	if err := w.engine.Retire(t.Context(), 6); err != nil {
		t.Fatal(err)
	}
	<-time.After(2 * time.Minute)
	catalog := &recovery.Catalog{SavedAt: time.Now().UnixMicro()}
	for _, c := range historyCategories {
		if c.GetId() != 6 {
			catalog.Categories = append(catalog.Categories, c)
		}
	}
	got, report, findings := w.recover(catalog)
	w.same(got, 6)
	if !report.Whole() || report.Committed == 0 {
		t.Errorf("%+v", report)
	}
	for _, f := range findings {
		if f.Kind == recovery.FindingConflict || f.Kind == recovery.FindingContradiction || f.Kind == recovery.FindingGap {
			t.Errorf("%+v", f)
		}
	}
	if base && (report.Settled == 0 || report.Copied == 0 || report.Copied == report.Records) {
		t.Errorf("%d blobs settled, %d records of %d from the copy", report.Settled, report.Copied, report.Records)
	}
	t.Logf("%d blobs: %d committed, %d void, %d uncertain; %d records in %d logs", report.Blobs, report.Committed, report.Void, report.Uncertain, report.Records, report.Logs)
	w.goOn(got)
}

// goOn writes to the recovered logs: writers of before are fenced, repetitions are recognised, new messages go where they belong.
func (w *world) goOn(got *pebblelog.Engine) {
	w.t.Helper()
	boundary, err := got.AdvanceBoundary(w.t.Context(), 0)
	if err != nil || boundary == 0 {
		w.t.Errorf("boundary %d, %v", boundary, err)
	}
	for _, st := range w.states()[:3] {
		a := &metalog.Append{Shards: []metalog.ShardAppend{{Shard: st.Shard, Epoch: st.Epoch, Records: [][]byte{{1}}}}, OldestBlob: boundary}
		if _, err := got.Append(w.t.Context(), a); !errors.Is(err, metalog.ErrFenced) {
			w.t.Errorf("a writer of before: %v", err)
		}
		a.OldestBlob = boundary - 1
		if _, err := got.Append(w.t.Context(), a); !errors.Is(err, metalog.ErrStaleBlob) {
			w.t.Errorf("a blob of before: %v", err)
		}
	}
	<-time.After(time.Second)
	b, l := w.batcher(got, 1, 4711)
	l.calm()
	for shard := range uint64(2) {
		for producer := range uint64(3) {
			states, err := w.engine.Sequences(w.t.Context(), record.MakeShardID(4, uint16(shard), 0), []uint64{producer + 1})
			if err != nil {
				w.t.Fatal(err)
			}
			next := states[0].Next
			if next < 2 {
				continue
			}
			old := frameOf(w.t, "once", uint32(shard), producer+1, next-2, "old", "old")
			fresh := frameOf(w.t, "once", uint32(shard), producer+1, next, "new", "new")
			r, err := b.Submit(w.t.Context(), &scribev1.SubmitRequest{Frames: slices.Concat(old, fresh), Ack: scribev1.AckLevel_ACK_LEVEL_COMMITTED})
			if err != nil || !r.GetResults()[0].GetDuplicate() || r.GetResults()[1].GetError() != nil || r.GetResults()[1].GetDuplicate() {
				w.t.Errorf("shard %d, producer %d: %v, %v", shard, producer+1, r.GetResults(), err)
			}
		}
	}
	if err := b.Close(w.t.Context()); err != nil {
		w.t.Error(err)
	}
}

// TestRecoverAfterKill recovers what batchers that were killed left behind, with nothing later that tells of it: everything that was
// committed is there in its place, and what is there beside it is counted as uncertain, at the ends of logs.
func TestRecoverAfterKill(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 100+seed)
				for range 2 {
					w.live(40, false)
				}
				got, report, _ := w.recover(nil)
				more := int64(0)
				for _, want := range w.states() {
					states, err := got.Tail(t.Context(), []record.ShardID{want.Shard})
					if err != nil {
						t.Fatal(err)
					}
					st := states[0]
					if want.NextLSN == 1 && st.FirstLSN == st.NextLSN && st.NextLSN >= report.Origin {
						continue // it was opened, and no blob says that there is anything in it
					}
					if st.FirstLSN > want.FirstLSN || st.NextLSN < want.NextLSN {
						t.Errorf("shard %v: %+v, was %+v", want.Shard, st, want)
						continue
					}
					more += int64(st.NextLSN - want.NextLSN)
					entries := readLog(t, got, st)
					for i, e := range readLog(t, w.engine, want) {
						if !bytes.Equal(entries[i].Data, e.Data) {
							t.Errorf("shard %v, LSN %d: the record is another one", want.Shard, e.LSN)
						}
					}
				}
				if more > report.UncertainRecords || !report.Whole() {
					t.Errorf("%d records more than there were, %d uncertain, %d lost", more, report.UncertainRecords, report.Lost)
				}
				t.Logf("%d records, %d uncertain, %d of them were not committed", report.Records, report.UncertainRecords, more)
			})
		})
	}
}
