package pebblelog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"scribe/internal/format/record"
	"scribe/internal/testkit/testclock"
	"scribe/storage/metalog"
)

// promises are what a workload was told so far.
type promises struct {
	appends   int        // appends that were acknowledged, one record in each of the two shards
	epoch     uint64     // of shardA
	first     record.LSN // of shardA
	boundary  int64
	watermark int64
	lastTime  int64
}

// TestCrashPoints runs a workload and crashes it before each write, sync, creation, rename and removal in turn: what was promised
// until then must hold, and what is there must fit together. Memory tables are small, so the workload rotates logs, flushes and
// compacts.
func TestCrashPoints(t *testing.T) {
	rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
	total := crashAt(t, -1, rng)
	t.Logf("the workload makes about %d operations", total)
	step := 1
	if testing.Short() {
		step = 7
	}
	for point := rng.IntN(step + 1); point < total; point += step {
		crashAt(t, point, rng)
		if t.Failed() {
			t.Fatalf("crashed before operation %d of about %d", point, total)
		}
	}
}

// crashAt runs the workload on a file system that is copied, as after a crash, before the point-th operation, and checks the copy.
// It returns the number of operations.
func crashAt(t *testing.T, point int, rng *rand.Rand) (operations int) {
	t.Helper()
	mem := vfs.NewCrashableMem()
	var mu sync.Mutex
	var told, then promises
	var crashed *vfs.MemFS
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() != errorfs.OpIsWrite || op.Kind == errorfs.OpFileClose {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if operations == point {
			then = told
			crashed = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(3) * 50, RNG: rng})
		}
		operations++
		return nil
	}))
	clock := testclock.New()
	workload(t, Options{FS: fs, Clock: clock.Now, MemTableBytes: 64 << 10}, func(change func(*promises)) {
		mu.Lock()
		defer mu.Unlock()
		change(&told)
	})
	if crashed == nil {
		return operations
	}
	clock.Advance(-1e12) // the wall clock is behind, too
	e, err := Open(testDir, Options{FS: crashed, Clock: clock.Now})
	if err != nil {
		t.Errorf("Open after the crash: %v", err)
		return operations
	}
	recovered(t, e, then)
	if err := e.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	return operations
}

// workload does some of everything, and notes what it was told.
func workload(t *testing.T, o Options, note func(func(*promises))) {
	t.Helper()
	ctx := t.Context()
	e, err := Open(testDir, o)
	if err != nil {
		t.Fatal(err)
	}
	states := mustOpen(t, e, shardA, shardB)
	note(func(p *promises) { p.epoch, p.first = states[0].Epoch, 1 })
	for i := range 30 {
		a := &metalog.Append{OldestBlob: 1 << 40, Shards: []metalog.ShardAppend{
			{Shard: shardA, Epoch: states[0].Epoch, Records: [][]byte{payload(i)}, Sequences: []metalog.Sequence{{Producer: 9, Epoch: 1, First: uint64(i), Last: uint64(i)}}},
			{Shard: shardB, Epoch: states[1].Epoch, Records: [][]byte{payload(i)}},
		}}
		done, err := e.Append(ctx, a)
		if err != nil {
			t.Fatal(err)
		}
		note(func(p *promises) { p.appends, p.lastTime = i+1, done[0].Time })
		switch i % 6 {
		case 2:
			before := record.LSN(i/2 + 1)
			if err := e.Trim(ctx, shardA, before); err != nil {
				t.Fatal(err)
			}
			note(func(p *promises) { p.first = before })
		case 3:
			states[0] = mustOpen(t, e, shardA)[0]
			note(func(p *promises) { p.epoch = states[0].Epoch })
		case 4:
			if _, err := e.AdvanceBoundary(ctx, int64(i)); err != nil {
				t.Fatal(err)
			}
			note(func(p *promises) { p.boundary = int64(i) })
		case 5:
			tail, err := e.Tail(ctx, []record.ShardID{shardA})
			if err != nil {
				t.Fatal(err)
			}
			note(func(p *promises) { p.watermark = tail[0].Watermark })
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// payload is what the i-th record holds: of very different lengths.
func payload(i int) []byte {
	return fmt.Appendf(make([]byte, (i%5)*(i%5)*500), "record %d", i)
}

// recovered checks an engine against what was promised before it crashed.
func recovered(t *testing.T, e *Engine, p promises) {
	t.Helper()
	ctx := t.Context()
	states, err := e.Tail(ctx, []record.ShardID{shardA, shardB})
	if err != nil {
		t.Errorf("Tail: %v", err)
		return
	}
	a, b := states[0], states[1]
	if int(a.NextLSN) < p.appends+1 || a.NextLSN != b.NextLSN || a.Epoch < p.epoch || a.FirstLSN < p.first || a.LastTime < p.lastTime || a.Watermark < p.watermark {
		t.Errorf("%+v was promised, the states are %+v and %+v", p, a, b)
		return
	}
	for _, st := range states {
		entries, err := e.Read(ctx, st.Shard, st.FirstLSN, 0, 0)
		if err != nil || len(entries) != int(st.NextLSN-st.FirstLSN) {
			t.Errorf("shard %v has %d records from %d to %d: %v", st.Shard, len(entries), st.FirstLSN, st.NextLSN, err)
			return
		}
		for i, en := range entries {
			if want := payload(int(st.FirstLSN) - 1 + i); string(en.Data) != string(want) {
				t.Errorf("shard %v has another record at LSN %d", st.Shard, en.LSN)
			}
		}
		if _, err := e.Read(ctx, st.Shard, max(st.FirstLSN-1, 1), 0, 0); st.FirstLSN > 1 && !errors.Is(err, metalog.ErrTrimmed) {
			t.Errorf("shard %v below its first record: %v", st.Shard, err)
		}
	}
	if b.FirstLSN != 1 {
		t.Errorf("the shard that nobody trimmed begins at %d", b.FirstLSN)
	}
	known, err := e.Sequences(ctx, shardA, []uint64{9})
	if err != nil || known[0].Next != uint64(a.NextLSN-1) {
		t.Errorf("with %d records the sequences are %+v, %v", a.NextLSN-1, known, err)
	}
	if boundary, err := e.AdvanceBoundary(ctx, 0); err != nil || boundary < p.boundary {
		t.Errorf("the boundary is %d after %d, %v", boundary, p.boundary, err)
	}
	if a.Epoch == 0 {
		return
	}
	done, err := e.Append(ctx, one(shardA, a.Epoch, "after"))
	if err != nil || done[0].FirstLSN != a.NextLSN || done[0].Time < max(p.lastTime, p.watermark) {
		t.Errorf("the append after the crash: %+v, %v", done, err)
	}
}
