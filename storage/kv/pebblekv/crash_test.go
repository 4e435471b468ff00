package pebblekv_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"scribe/storage/kv"
)

// TestCrash crashes a store while writers and a reader run: what was acknowledged or read survives, transactions are whole, and
// revisions are not given out again.
func TestCrash(t *testing.T) {
	for _, unsynced := range []int{0, 50, 100} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("unsynced=%d/seed=%d", unsynced, seed), func(t *testing.T) { crash(t, unsynced, seed) })
		}
	}
}

const crashWriters = 4

func crash(t *testing.T, unsynced int, seed uint64) {
	fs := vfs.NewCrashableMem()
	s := open(t, fs)
	var acked [crashWriters]atomic.Uint64 // count and revision of each writer's newest acknowledged transaction
	var seen, revision atomic.Uint64
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	progress := make(chan struct{}, 1)
	for w := range crashWriters {
		wg.Go(func() {
			for i := uint64(1); ; i++ {
				value := []byte(strconv.FormatUint(i, 10))
				r, err := s.Commit(ctx, kv.Put(fmt.Sprintf("w%d/a", w), value), kv.Put(fmt.Sprintf("w%d/b", w), value))
				if err != nil {
					return
				}
				acked[w].Store(i)
				for old := revision.Load(); r > old && !revision.CompareAndSwap(old, r); old = revision.Load() {
				}
				select {
				case progress <- struct{}{}:
				default:
				}
			}
		})
	}
	wg.Go(func() {
		for ctx.Err() == nil {
			if e, err := s.Get(ctx, "w0/a"); err == nil {
				n, _ := strconv.ParseUint(string(e.Value), 10, 64)
				seen.Store(n)
			}
		}
	})
	for range 20 + rand.New(rand.NewPCG(seed, 1)).IntN(60) {
		<-progress
	}
	// What is acknowledged before the crash must be in the clone; later acknowledgements may be.
	var must [crashWriters]uint64
	for w := range must {
		must[w] = acked[w].Load()
	}
	mustRead, mustRevision := seen.Load(), revision.Load()
	clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: unsynced, RNG: rand.New(rand.NewPCG(seed, 2))})
	cancel()
	wg.Wait()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = open(t, clone)
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	for w := range crashWriters {
		a, aerr := s.Get(t.Context(), fmt.Sprintf("w%d/a", w))
		b, berr := s.Get(t.Context(), fmt.Sprintf("w%d/b", w))
		if !errors.Is(aerr, berr) || string(a.Value) != string(b.Value) || a.Revision != b.Revision {
			t.Errorf("writer %d: a transaction was torn: %+v %v, %+v %v", w, a, aerr, b, berr)
		}
		if n, _ := strconv.ParseUint(string(a.Value), 10, 64); n < must[w] {
			t.Errorf("writer %d: %d was acknowledged, %d is there", w, must[w], n)
		}
	}
	if e, _ := s.Get(t.Context(), "w0/a"); mustRead > 0 {
		if n, _ := strconv.ParseUint(string(e.Value), 10, 64); n < mustRead {
			t.Errorf("%d was read, %d is there", mustRead, n)
		}
	}
	r, err := s.Commit(t.Context(), kv.Put("after", nil))
	if err != nil || r <= mustRevision {
		t.Errorf("revision %d after %d, %v", r, mustRevision, err)
	}
}

// TestCrashAtFirstOpen crashes right after opening: the state of a new store is whole or not there.
func TestCrashAtFirstOpen(t *testing.T) {
	for seed := range uint64(8) {
		fs := vfs.NewCrashableMem()
		s := open(t, fs)
		clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(seed, 3))})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, clone)
		if r, err := s.Commit(t.Context(), kv.Put("a", nil)); err != nil || r != 1 {
			t.Errorf("seed %d: revision %d, %v", seed, r, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWriteFails: after a failed write nothing is acknowledged any more, reads go on with what is durable, and opening again
// brings back everything acknowledged.
func TestWriteFails(t *testing.T) {
	var broken atomic.Bool
	mem := vfs.NewCrashableMem()
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && strings.HasSuffix(op.Path, ".log") {
			return errorfs.ErrInjected
		}
		return nil
	}))
	s := open(t, fs)
	r, err := s.Commit(t.Context(), kv.Put("a", []byte("1")))
	if err != nil || s.Err() != nil {
		t.Fatal(err, s.Err())
	}
	broken.Store(true)
	for range 3 {
		_, err := s.Commit(t.Context(), kv.Put("a", []byte("2")))
		if err == nil || errors.Is(err, kv.ErrConflict) || errors.Is(err, kv.ErrClosed) {
			t.Fatalf("a write that fails: %v", err)
		}
	}
	broken.Store(false)
	if _, err := s.Commit(t.Context(), kv.Put("b", []byte("2"))); err == nil {
		t.Fatal("a store goes on writing after an unknown outcome")
	}
	if e, err := s.Get(t.Context(), "a"); err != nil || string(e.Value) != "1" || e.Revision != r {
		t.Fatalf("%+v, %v: what is not durable is visible", e, err)
	}
	if s.Err() == nil {
		t.Error("the store does not say that it is broken")
	}
	clone := mem.CrashClone(vfs.CrashCloneCfg{})
	_ = s.Close() // may report the failure again
	s = open(t, clone)
	if e, err := s.Get(t.Context(), "a"); err != nil || string(e.Value) != "1" {
		t.Errorf("after opening again: %+v, %v", e, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
