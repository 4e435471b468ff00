package controlplane

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/columnar/near"
	"scribe/internal/base/config"
	"scribe/internal/testkit/testsize"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
	"scribe/storage/kv/pebblekv"
)

// allCategories is how many categories one cell must carry.
const allCategories = 100_000

// maxBytesPerCategory is what a category may cost in the memory of the control plane, its store's caches included.
const maxBytesPerCategory = 2048

func createMany(tb testing.TB, c *ControlPlane, n int) {
	tb.Helper()
	const workers = 128
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n; i += workers {
				if _, err := c.CreateCategory(tb.Context(), &scribev1.CreateCategoryRequest{Category: manyCategory(i)}); err != nil {
					tb.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// readAll runs a watch until it is synced, and returns how many categories it told of.
func readAll(tb testing.TB, c *ControlPlane) int {
	errSynced := errors.New("synced")
	n := 0
	err := c.WatchCategories(tb.Context(), &scribev1.WatchCategoriesRequest{}, func(msg *scribev1.WatchCategoriesResponse) error {
		n += len(msg.GetUpdated())
		if msg.GetSynced() {
			return errSynced
		}
		return nil
	})
	if !errors.Is(err, errSynced) {
		tb.Error(err)
	}
	return n
}

func heapBytes() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func openPebble(tb testing.TB, fs vfs.FS) *pebblekv.Store {
	tb.Helper()
	store, err := pebblekv.Open(pebblekv.DefaultConfig("kv"), pebblekv.Deps{FS: fs})
	if err != nil {
		tb.Fatal(err)
	}
	return store
}

// fillStore makes a store with many categories, in large transactions: TestCreateMany is about creating them.
func fillStore(t *testing.T, fs vfs.FS, many int) {
	t.Helper()
	store := openPebble(t, fs)
	for i := 0; i < many; {
		var ops []kv.Op
		for ; len(ops) < kv.MaxOps && i < many; i++ {
			cat := manyCategory(i)
			setDefaults(cat)
			cat.Id, cat.CreatedAt, cat.UpdatedAt = uint32(i+1), time.Now().UnixMicro(), time.Now().UnixMicro()
			value, err := encodeCategory(cat)
			if err != nil {
				t.Fatal(err)
			}
			ops = append(ops, kv.Put(categoryKey(cat.GetName()), value))
		}
		if _, err := store.Commit(t.Context(), ops...); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
}

func manyCategory(i int) *scribev1.Category {
	return &scribev1.Category{Name: fmt.Sprintf("team-%03d.service.requests-%06d", i%100, i), Owner: "team@example.com"}
}

// TestCreateMany: many creates at a time, more than a block of ids each, give dense ids.
func TestCreateMany(t *testing.T) {
	store := openPebble(t, vfs.NewMem())
	c, err := New(config.Defaults[Config](), Deps{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	const n = 3_000
	createMany(t, c, n)
	resp, err := c.ListCategories(t.Context(), &scribev1.ListCategoriesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	ids := map[uint32]bool{}
	for _, cat := range resp.GetCategories() {
		ids[cat.GetId()] = true
	}
	if len(ids) != n || len(resp.GetCategories()) != n || !ids[1] || !ids[n] {
		t.Errorf("%d ids for %d categories, want %d of each, up to that number", len(ids), len(resp.GetCategories()), n)
	}
	stop(t, c)
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestManyCategories: 100,000 categories can be listed and watched by many, are searched for names, and fit in memory.
func TestManyCategories(t *testing.T) {
	fs := vfs.NewMem() // so that it is the control plane that is tested, not a disk
	many := testsize.Test(allCategories, allCategories, allCategories/5)
	fillStore(t, fs, many)
	cfg := config.Defaults[Config]()
	store := openPebble(t, fs)
	before := heapBytes() // with the files, which are in memory here
	c, err := New(cfg, Deps{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	if n := readAll(t, c); n != many {
		t.Errorf("a watch tells of %d categories, want %d", n, many)
	}
	used := (heapBytes() - before) / uint64(many) //nolint:gosec // not negative
	t.Logf("%d bytes of memory per category", used)
	if many == allCategories && used > maxBytesPerCategory {
		t.Errorf("%d bytes of memory per category, the limit is %d", used, maxBytesPerCategory)
	}
	var watches sync.WaitGroup
	for range 3 {
		watches.Go(func() {
			if n := readAll(t, c); n != many {
				t.Errorf("a watch tells of %d categories, want %d", n, many)
			}
		})
	}
	watches.Wait()

	ids, after := map[uint32]bool{}, ""
	for more := true; more; {
		resp, err := c.ListCategories(t.Context(), &scribev1.ListCategoriesRequest{After: after})
		if err != nil {
			t.Fatal(err)
		}
		for _, cat := range resp.GetCategories() {
			if cat.GetName() <= after || cat.GetId() == 0 || ids[cat.GetId()] {
				t.Fatalf("%v after %q", cat, after)
			}
			ids[cat.GetId()], after = true, cat.GetName()
		}
		more = resp.GetMore()
	}
	if len(ids) != many {
		t.Errorf("%d categories in the list, want %d", len(ids), many)
	}
	_, err = c.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: "team-007.service.request-000007"})
	wantReason(t, err, scribev1.Reason_REASON_UNKNOWN_CATEGORY, `"team-007.service.requests-000007"`)
	stop(t, c)
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
}

// go test ./controlplane -run '^$' -bench . -count=6 | benchstat -
func BenchmarkCreateCategory(b *testing.B) {
	store, err := pebblekv.Open(pebblekv.DefaultConfig(b.TempDir()), pebblekv.Deps{})
	if err != nil {
		b.Fatal(err)
	}
	c, err := New(config.Defaults[Config](), Deps{Store: store})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("writers=128", func(b *testing.B) {
		begin := time.Now().UnixNano()
		var wg sync.WaitGroup
		for w := range 128 {
			wg.Go(func() {
				for i := w; i < b.N; i += 128 {
					_, err := c.CreateCategory(b.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: fmt.Sprintf("b%d.%d", begin, i)}})
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	})
	if err := errors.Join(c.Close(context.Background()), store.Close()); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkWatchSync(b *testing.B) {
	store := openPebble(b, vfs.NewMem())
	c, err := New(config.Defaults[Config](), Deps{Store: store})
	if err != nil {
		b.Fatal(err)
	}
	n := testsize.Benchmark(10_000, 1000)
	createMany(b, c, n)
	b.Run(fmt.Sprintf("categories=%d", n), func(b *testing.B) {
		for b.Loop() {
			readAll(b, c)
		}
	})
	if err := errors.Join(c.Close(context.Background()), store.Close()); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkSuggest(b *testing.B) {
	store := openPebble(b, vfs.NewMem())
	c, err := New(config.Defaults[Config](), Deps{Store: store})
	if err != nil {
		b.Fatal(err)
	}
	n := testsize.Benchmark(10_000, 1000)
	createMany(b, c, n)
	b.Run(fmt.Sprintf("categories=%d", n), func(b *testing.B) {
		for b.Loop() {
			f := near.NewFinder("team-007.service.request-000007")
			c.feed.eachName(f.Offer)
		}
	})
	if err := errors.Join(c.Close(context.Background()), store.Close()); err != nil {
		b.Fatal(err)
	}
}
