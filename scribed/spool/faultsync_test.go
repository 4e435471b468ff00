package spool

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// TestFailedSync: those who wait are told, the file is never synced or written again, what was synced stays readable, and what was not
// is written to another file from memory.
func TestFailedSync(t *testing.T) { synctest.Test(t, testFailedSync) }

func testFailedSync(t *testing.T) {
	mem := vfs.NewCrashableMem()
	var fail atomic.Bool
	var bad atomic.Pointer[string]
	var touched atomic.Int64
	told := make(chan struct{})
	fs := faults(mem, func(op errorfs.Op) error {
		if op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, segmentTemp) {
			<-told // nothing is put right before the caller knows
		}
		if p := bad.Load(); p != nil && *p == op.Path {
			if isSync(op) || op.Kind == errorfs.OpFileWriteAt {
				touched.Add(1)
			}
		}
		if isSync(op) && isSegment(op) && fail.CompareAndSwap(true, false) {
			path := op.Path
			bad.Store(&path)
			return errInjected
		}
		return nil
	})
	c := testConfig()
	s := openSpool(t, c, fs)
	first := appendOne(t, s, "a", 0, 500, true)
	appendOne(t, s, "a", 1, 500, false)
	syncAll(t, s)
	second := appendOne(t, s, "a", 2, 500, true)
	appendOne(t, s, "a", 3, 500, false)
	fail.Store(true)
	if err := s.Sync(t.Context()); !errors.Is(err, ErrFailed) {
		t.Fatalf("sync: %v, want ErrFailed", err)
	}
	close(told)
	appendOne(t, s, "a", 4, 500, false)
	syncAll(t, s) // waits until what failed is on disk after all
	settle(t, s)
	check(t, s)
	if n := touched.Load(); n > 0 {
		t.Errorf("the failed file was written or synced %d times", n)
	}
	clone := mem.CrashClone(vfs.CrashCloneCfg{})

	got := claimAll(t, s, "a")
	if len(got) != 3 || string(got[1].Data) != string(payload("a", 3, 500)) {
		t.Fatalf("%d records of the backlog, want 3", len(got))
	}
	s.Release(second)
	if got := claimAll(t, s, "a"); len(got) != 1 || got[0].Ref != second {
		t.Errorf("after the release: %+v", got)
	}
	s.Done(first)
	if q := s.Queue("a"); q.Held.Records != 4 {
		t.Errorf("%d records are held, want 4", q.Held.Records)
	}

	again := openSpool(t, c, clone)
	if got := claimAll(t, again, "a"); len(got) != 5 {
		t.Errorf("after a crash: %d records of 5", len(got))
	}
}

// TestFailedSyncReachesLateCallers: who appended before a sync failed and asks afterwards is not told that all is well before it is.
func TestFailedSyncReachesLateCallers(t *testing.T) {
	synctest.Test(t, testFailedSyncReachesLateCallers)
}

func testFailedSyncReachesLateCallers(t *testing.T) {
	mem := vfs.NewCrashableMem()
	var fail atomic.Bool
	fs := faults(mem, func(op errorfs.Op) error {
		if fail.Load() && (isSync(op) && isSegment(op) || strings.HasSuffix(op.Path, tempSuffix)) {
			return errInjected
		}
		return nil
	})
	s := openSpool(t, testConfig(), fs)
	appendOne(t, s, "a", 0, 500, false)
	fail.Store(true)
	for range 2 {
		if err := s.Sync(t.Context()); !errors.Is(err, ErrFailed) {
			t.Fatalf("sync: %v, want ErrFailed", err)
		}
	}
	fail.Store(false)
	for s.Sync(t.Context()) != nil { // one attempt may still be on its way
		continue
	}
	again := openSpool(t, testConfig(), mem.CrashClone(vfs.CrashCloneCfg{}))
	if got := claimAll(t, again, "a"); len(got) != 1 {
		t.Errorf("%d records of 1", len(got))
	}
}

// TestSharedSync: many callers share a sync.
func TestSharedSync(t *testing.T) {
	const callers = 64
	var gate sync.Mutex
	var syncs atomic.Int64
	d := faults(vfs.NewMem(), func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSyncData && isSegment(op) {
			syncs.Add(1)
			gate.Lock() // held below until all are waiting
			defer gate.Unlock()
		}
		return nil
	})
	s := openSpool(t, testConfig(), d)
	gate.Lock()
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			appendOne(t, s, "a", i, 10, false)
			if err := s.Sync(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	for s.Queue("a").Held.Records < callers {
		continue
	}
	gate.Unlock()
	wg.Wait()
	// One that began before all had appended, and one for the rest; one more if the second began early, too.
	if n := syncs.Load(); n > 3 {
		t.Errorf("%d syncs for %d callers", n, callers)
	}
	if got := claimAll(t, s, "a"); len(got) != callers {
		t.Errorf("%d records of %d", len(got), callers)
	}
}

// TestSyncContext: a caller whose context ends does not wait for the disk.
func TestSyncContext(t *testing.T) {
	hold := make(chan struct{})
	fs := faults(vfs.NewMem(), func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSyncData && isSegment(op) {
			<-hold
		}
		return nil
	})
	s := openSpool(t, testConfig(), fs)
	appendOne(t, s, "a", 0, 10, false)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Sync(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("sync: %v, want the context's error", err)
	}
	close(hold)
	syncAll(t, s)
}
