package pebblelog

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"scribe/internal/format/record"
	"scribe/internal/testkit/testclock"
	"scribe/storage/metalog"
)

var (
	shardA = record.MakeShardID(7, 0, 1)
	shardB = record.MakeShardID(7, 0, 2)
)

// gate holds syncs of the write-ahead log until it is opened.
type gate struct {
	vfs.FS
	mu      sync.Mutex
	held    chan struct{} // nil: open
	reached chan struct{} // one for each sync that is held
	syncs   int
}

func newGate() *gate {
	g := &gate{reached: make(chan struct{}, 100)}
	g.FS = errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSyncData && strings.HasSuffix(op.Path, ".log") {
			g.sync()
		}
		return nil
	}))
	return g
}

func (g *gate) sync() {
	g.mu.Lock()
	g.syncs++
	held := g.held
	g.mu.Unlock()
	if held != nil {
		g.reached <- struct{}{}
		<-held
	}
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = make(chan struct{})
}

// open lets held syncs go on and returns how many there were since the engine began.
func (g *gate) open() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.held)
	g.held = nil
	return g.syncs
}

// gated returns an engine with a gate, and its clock.
func gated(t *testing.T) (*Engine, *gate, *testclock.Clock) {
	t.Helper()
	g, clock := newGate(), testclock.New()
	return start(t, Options{FS: g, Clock: clock.Now}), g, clock
}

// start opens an engine that is closed with the test.
func start(t testing.TB, o Options) *Engine {
	t.Helper()
	e, err := Open(testDir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return e
}

func mustOpen(t testing.TB, e *Engine, shards ...record.ShardID) []metalog.State {
	t.Helper()
	states, err := e.Open(t.Context(), "test", shards)
	if err != nil {
		t.Fatal(err)
	}
	return states
}

func one(shard record.ShardID, epoch uint64, data string) *metalog.Append {
	return &metalog.Append{Shards: []metalog.ShardAppend{{Shard: shard, Epoch: epoch, Records: [][]byte{[]byte(data)}}}}
}

// TestGroupCommit checks that what waits during a sync shares the next one.
func TestGroupCommit(t *testing.T) {
	e, g, _ := gated(t)
	epoch := mustOpen(t, e, shardA)[0].Epoch
	g.close()
	const n = 64
	var wg sync.WaitGroup
	add := func(i int) {
		wg.Go(func() {
			if _, err := e.Append(t.Context(), one(shardA, epoch, fmt.Sprint(i))); err != nil {
				t.Error(err)
			}
		})
	}
	add(0)
	<-g.reached
	for i := range n - 1 {
		add(i + 1)
	}
	for len(e.queue) < n-1 {
		runtime.Gosched()
	}
	before := g.open()
	wg.Wait()
	g.close()
	if syncs := g.open() - before; syncs != 1 {
		t.Errorf("%d appends that waited took %d syncs", n-1, syncs)
	}
	entries, err := e.Read(t.Context(), shardA, 1, 0, 0)
	if err != nil || len(entries) != n {
		t.Errorf("read %d records, %v", len(entries), err)
	}
}

// TestNothingShowsBeforeTheSync looks at an engine while a batch is committed to Pebble and not synced yet.
func TestNothingShowsBeforeTheSync(t *testing.T) {
	e, g, clock := gated(t)
	ctx := t.Context()
	epoch := mustOpen(t, e, shardA)[0].Epoch
	fresh := record.MakeShardID(7, 9, 9)
	g.close()
	var done []metalog.Appended
	var wg sync.WaitGroup
	wg.Go(func() {
		var err error
		if done, err = e.Append(ctx, one(shardA, epoch, "x")); err != nil {
			t.Error(err)
		}
	})
	<-g.reached
	clock.Advance(time.Millisecond)
	states, err := e.Tail(ctx, []record.ShardID{shardA})
	if err != nil {
		t.Fatal(err)
	}
	if states[0].NextLSN != 1 || states[0].LastTime != 0 {
		t.Errorf("the state before the sync is %+v", states[0])
	}
	if entries, err := e.Read(ctx, shardA, 1, 0, 0); err != nil || len(entries) != 0 {
		t.Errorf("Read before the sync returned %v, %v", entries, err)
	}
	if lsns, err := e.Seek(ctx, []record.ShardID{shardA}, 1); err != nil || lsns[0] != 1 {
		t.Errorf("Seek before the sync returned %v, %v", lsns, err)
	}
	// A subscription sees a watermark that the batch in progress keeps.
	seen := errors.New("seen")
	var watermark int64
	err = e.Subscribe(ctx, []metalog.Position{{Shard: shardA, LSN: 1}}, 0, func(u []metalog.Update) error {
		watermark = u[0].Watermark
		if len(u[0].Entries) != 0 || u[0].NextLSN != 1 {
			t.Errorf("Subscribe before the sync returned %+v", u[0])
		}
		return seen
	})
	if !errors.Is(err, seen) {
		t.Error(err)
	}
	g.open()
	wg.Wait()
	for _, w := range []int64{states[0].Watermark, watermark} {
		if w == 0 || w > done[0].Time {
			t.Errorf("the watermark was %d while a record of time %d was being committed", w, done[0].Time)
		}
	}

	g.close()
	wg.Go(func() { mustOpen(t, e, fresh) })
	<-g.reached
	if states, err := e.Tail(ctx, []record.ShardID{fresh}); err != nil || states[0].Epoch != 0 {
		t.Errorf("the state of a shard being created is %+v, %v", states, err)
	}
	if states, err := e.Shards(ctx, 7); err != nil || len(states) != 1 {
		t.Errorf("Shards during the creation returned %+v, %v", states, err)
	}
	err = e.WatchShards(ctx, 7, func(shards []record.ShardID) error {
		if len(shards) != 1 || shards[0] != shardA {
			t.Errorf("WatchShards during the creation returned %v", shards)
		}
		return seen
	})
	if !errors.Is(err, seen) {
		t.Error(err)
	}
	g.open()
	wg.Wait()
	if states, err := e.Shards(ctx, 7); err != nil || len(states) != 2 {
		t.Errorf("Shards after the creation returned %+v, %v", states, err)
	}
}

// TestImpatientCaller checks that a caller who gives up has its memory back, whatever becomes of the append.
func TestImpatientCaller(t *testing.T) {
	e, g, _ := gated(t)
	epoch := mustOpen(t, e, shardA)[0].Epoch
	g.close()
	ctx, cancel := context.WithCancel(t.Context())
	buffers := [][]byte{[]byte("first"), []byte("second")}
	errs := make([]chan error, len(buffers))
	begin := func(i int) {
		errs[i] = make(chan error, 1)
		go func() {
			_, err := e.Append(ctx, &metalog.Append{Shards: []metalog.ShardAppend{{Shard: shardA, Epoch: epoch, Records: [][]byte{buffers[i]}}}})
			errs[i] <- err
		}()
	}
	begin(0) // is being synced
	<-g.reached
	begin(1) // is queued
	for len(e.queue) < 1 {
		runtime.Gosched()
	}
	cancel()
	for i := range errs {
		if err := <-errs[i]; !errors.Is(err, context.Canceled) {
			t.Errorf("append %d ended with %v", i, err)
		}
		copy(buffers[i], "XXXXXX")
	}
	g.open()
	if _, err := e.Append(t.Context(), one(shardA, epoch, "third")); err != nil {
		t.Fatal(err)
	}
	entries, err := e.Read(t.Context(), shardA, 1, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	// The first was on its way; the second was taken back.
	if len(entries) != 2 || string(entries[0].Data) != "first" || string(entries[1].Data) != "third" {
		t.Errorf("the shard holds %+v", entries)
	}
}

// TestTheQueueIsBounded checks that callers beyond the queue wait, and can give up.
func TestTheQueueIsBounded(t *testing.T) {
	e, g, _ := gated(t)
	epoch := mustOpen(t, e, shardA)[0].Epoch
	g.close()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	const n = 2 * maxGroup
	var mu sync.Mutex
	ended := 0
	for range n {
		wg.Go(func() {
			_, err := e.Append(ctx, one(shardA, epoch, "x"))
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			ended++
		})
	}
	<-g.reached
	for len(e.queue) < maxGroup {
		runtime.Gosched()
	}
	cancel()
	wg.Wait()
	g.open()
	if _, err := e.Append(t.Context(), one(shardA, epoch, "x")); err != nil {
		t.Fatal(err)
	}
}
