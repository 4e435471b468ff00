package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"scribe/internal/format/record"
	"scribe/internal/testkit/testclock"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog"
)

const dir = "log"

var shard = record.MakeShardID(7, 0, 1)

// fault is a kind of operation that fails.
type fault struct {
	name  string
	match func(errorfs.Op) bool
	// survives says that the engine goes on.
	survives bool
}

// on matches operations of some kinds on files whose path contains a part.
func on(part string, kinds ...errorfs.OpKind) func(errorfs.Op) bool {
	return func(op errorfs.Op) bool {
		return slices.Contains(kinds, op.Kind) && strings.Contains(op.Path, part)
	}
}

var faults = []fault{
	{name: "log write", match: on(".log", errorfs.OpFileWrite)},
	{name: "log sync", match: on(".log", errorfs.OpFileSync, errorfs.OpFileSyncData)},
	{name: "log creation", match: on(".log", errorfs.OpCreate, errorfs.OpReuseForWrite)},
	{name: "manifest write", match: on("MANIFEST", errorfs.OpFileWrite)},
	{name: "manifest sync", match: on("MANIFEST", errorfs.OpFileSync, errorfs.OpFileSyncData)},
	{name: "folder sync", match: func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileSync && op.Path == dir }},
	{name: "table creation", match: on(".sst", errorfs.OpCreate), survives: true},
	{name: "table write", match: on(".sst", errorfs.OpFileWrite), survives: true},
	{name: "removal", match: func(op errorfs.Op) bool { return op.Kind == errorfs.OpRemove }, survives: true},
}

// TestFaults makes one operation fail, each kind and at random, under load: nothing may be acknowledged that is not on disk, the
// engine must fail as a whole if the fault is one of its log, and a restart must bring back what was acknowledged.
func TestFaults(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			for range 3 {
				inject(t, f, rand.Uint64())
			}
		})
	}
}

func inject(t *testing.T, f fault, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 0))
	mem := vfs.NewCrashableMem()
	var armed atomic.Bool
	var skip atomic.Int64
	skip.Store(rng.Int64N(3))
	hit := make(chan struct{})
	var once sync.Once
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !armed.Load() || !f.match(op) {
			return nil
		}
		if n := skip.Add(-1); n < 0 && (!f.survives || n >= -3) { // what is survived passes
			once.Do(func() { close(hit) })
			return fmt.Errorf("%s: %w", op.Path, syscall.EIO)
		}
		return nil
	}))
	clock := testclock.New()
	e, err := pebblelog.Open(dir, pebblelog.Options{FS: fs, Clock: clock.Now, MemTableBytes: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	states, err := e.Open(ctx, "test", []record.ShardID{shard})
	if err != nil {
		t.Fatal(err)
	}
	subscribed, begun := make(chan error, 1), make(chan struct{})
	var first sync.Once
	go func() {
		subscribed <- e.Subscribe(ctx, []metalog.Position{{Shard: shard, LSN: 1}}, 0, func([]metalog.Update) error {
			first.Do(func() { close(begun) })
			return nil
		})
	}()
	<-begun
	l := load{e: e, epoch: states[0].Epoch, acked: map[record.LSN]string{}}
	armed.Store(true)
	l.run(ctx, hit, f.survives)
	if f.survives {
		armed.Store(false)
		if err := e.Err(); err != nil {
			t.Fatalf("seed %d: the engine failed: %v", seed, err)
		}
		if err := e.Close(); err != nil {
			t.Fatalf("seed %d: Close: %v", seed, err)
		}
		if err := <-subscribed; !errors.Is(err, metalog.ErrClosed) {
			t.Errorf("seed %d: the subscription ended with %v", seed, err)
		}
	} else {
		failed(ctx, t, e, l.epoch)
		if err := <-subscribed; !errors.Is(err, syscall.EIO) {
			t.Errorf("seed %d: the subscription ended with %v", seed, err)
		}
	}
	for _, percent := range []int{0, 50, 100} {
		crashed := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
		l.check(ctx, t, crashed, fmt.Sprintf("seed %d, %d%% of what was not synced", seed, percent))
	}
}

// load appends from several goroutines and notes what was acknowledged.
type load struct {
	e     *pebblelog.Engine
	epoch uint64
	mu    sync.Mutex
	acked map[record.LSN]string
}

// run appends until the engine fails, or, when it survives, for a while after the fault.
func (l *load) run(ctx context.Context, hit <-chan struct{}, survives bool) {
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			after := 0
			for i := 0; after < 20; i++ {
				data := fmt.Sprintf("%d %d %s", w, i, strings.Repeat("x", 2000))
				done, err := l.e.Append(ctx, &metalog.Append{Shards: []metalog.ShardAppend{{Shard: shard, Epoch: l.epoch, Records: [][]byte{[]byte(data)}}}})
				if err != nil {
					return
				}
				l.mu.Lock()
				l.acked[done[0].FirstLSN] = data
				l.mu.Unlock()
				select {
				case <-hit:
					if survives {
						after++
					}
				default:
				}
			}
		})
	}
	wg.Wait()
}

// failed checks an engine that failed.
func failed(ctx context.Context, t *testing.T, e *pebblelog.Engine, epoch uint64) {
	t.Helper()
	select {
	case <-e.Failed():
	case <-ctx.Done():
		t.Fatal("the engine did not fail")
	}
	second := func(_ any, err error) error { return err }
	a := &metalog.Append{Shards: []metalog.ShardAppend{{Shard: shard, Epoch: epoch, Records: [][]byte{{1}}}}}
	for what, err := range map[string]error{
		"Err":       e.Err(),
		"Append":    second(e.Append(ctx, a)),
		"Open":      second(e.Open(ctx, "test", []record.ShardID{shard})),
		"Read":      second(e.Read(ctx, shard, 1, 0, 0)),
		"Tail":      second(e.Tail(ctx, []record.ShardID{shard})),
		"Trim":      e.Trim(ctx, shard, 1),
		"Subscribe": e.Subscribe(ctx, []metalog.Position{{Shard: shard, LSN: 1}}, 0, func([]metalog.Update) error { return nil }),
		"Close":     e.Close(),
	} {
		if !errors.Is(err, syscall.EIO) || errors.Is(err, metalog.ErrClosed) {
			t.Errorf("%s of a failed engine: %v", what, err)
		}
	}
}

// check opens what a crash left and looks for what was acknowledged.
func (l *load) check(ctx context.Context, t *testing.T, fs vfs.FS, what string) {
	t.Helper()
	e, err := pebblelog.Open(dir, pebblelog.Options{FS: fs})
	if err != nil {
		t.Errorf("%s: Open: %v", what, err)
		return
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Errorf("%s: Close: %v", what, err)
		}
	}()
	stored := map[record.LSN]string{}
	for from := record.LSN(1); ; {
		entries, err := e.Read(ctx, shard, from, 0, 0)
		if err != nil {
			t.Errorf("%s: Read: %v", what, err)
			return
		}
		if len(entries) == 0 {
			break
		}
		for _, en := range entries {
			stored[en.LSN] = string(en.Data)
		}
		from += record.LSN(len(entries))
	}
	for lsn, data := range l.acked {
		if stored[lsn] != data {
			t.Errorf("%s: LSN %d was acknowledged, but is not there", what, lsn)
			return
		}
	}
	if _, err := e.Append(ctx, &metalog.Append{Shards: []metalog.ShardAppend{{Shard: shard, Epoch: l.epoch, Records: [][]byte{{1}}}}}); err != nil {
		t.Errorf("%s: Append: %v", what, err)
	}
}
