package catalog

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	scribev1 "scribe/proto/scribe/v1"
)

// TestIndexModel compares an index with two maps.
func TestIndexModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := newIndex()
		names := map[string]*scribev1.Category{}
		name := rapid.Map(rapid.IntRange(0, 40), func(i int) string { return fmt.Sprintf("c%d", i) })
		remove := func(n string) bool {
			_, ok := names[n]
			delete(names, n)
			return ok
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				c := &scribev1.Category{Name: name.Draw(t, "name"), Id: rapid.Uint32Range(1, 60).Draw(t, "id")}
				for n, other := range names {
					if other.GetId() == c.GetId() && n != c.GetName() {
						remove(n)
					}
				}
				names[c.GetName()] = c
				x.putCategory(c)
			},
			"remove": func(t *rapid.T) {
				n := name.Draw(t, "name")
				if got, want := x.removeName(n), remove(n); got != want {
					t.Fatalf("remove(%q) = %v, want %v", n, got, want)
				}
			},
			"": func(t *rapid.T) {
				ids := map[uint32]*scribev1.Category{}
				for i := range 41 {
					n := fmt.Sprintf("c%d", i)
					if got := x.lookup(n); got != names[n] || x.lookupBytes([]byte(n)) != got {
						t.Fatalf("%q is %v, want %v", n, got, names[n])
					}
					if c := names[n]; c != nil {
						ids[c.GetId()] = c
					}
				}
				for id := range uint32(61) {
					if got := x.lookupID(id); got != ids[id] {
						t.Fatalf("id %d is %v, want %v", id, got, ids[id])
					}
				}
				n := 0
				x.eachCategory(func(c *scribev1.Category) bool { n++; return names[c.GetName()] == c })
				if n != len(names) || int(x.count.Load()) != n {
					t.Fatalf("%d categories, count %d, want %d", n, x.count.Load(), len(names))
				}
				if x.lookup("") != nil {
					t.Fatal("the empty name is a category")
				}
			},
		})
	})
}

// TestIndexConcurrently reads an index while it grows, shrinks and changes: what is always there is always found.
func TestIndexConcurrently(t *testing.T) {
	x := newIndex()
	for i := range 10 {
		x.putCategory(&scribev1.Category{Name: fmt.Sprintf("fixed%d", i), Id: uint32(i + 1)})
	}
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				id := uint32(i%10 + 1)
				if c := x.lookup(fmt.Sprintf("fixed%d", i%10)); c.GetId() != id {
					t.Errorf("fixed%d is %v", i%10, c)
				}
				if c := x.lookupID(id); c.GetId() != id {
					t.Errorf("id %d is %v", id, c)
				}
				if c := x.lookup(fmt.Sprintf("moving%d", i%500)); c != nil && c.GetName() != fmt.Sprintf("moving%d", i%500) {
					t.Errorf("moving%d is %v", i%500, c)
				}
			}
		})
	}
	for round := range uint32(20) {
		for i := range uint32(500) {
			x.putCategory(&scribev1.Category{Name: fmt.Sprintf("moving%d", i), Id: 100 + i + 1000*(round%2)})
			if i%10 == 0 {
				x.putCategory(&scribev1.Category{Name: fmt.Sprintf("fixed%d", i/50), Id: i/50 + 1, Shards: round})
			}
		}
		for i := range 500 {
			if (i+int(round))%3 != 0 {
				x.removeName(fmt.Sprintf("moving%d", i))
			}
		}
	}
	close(done)
	readers.Wait()
}

// TestLookupAllocates nothing.
func TestLookupAllocates(t *testing.T) {
	v := newView(t, newPlane(), nil)
	name := strings.Repeat("long-", 20)
	v.index.Load().putCategory(&scribev1.Category{Name: name, Id: 7})
	buf := []byte("frame " + name)
	if n := testing.AllocsPerRun(100, func() {
		_, ok1 := v.Lookup(name)
		_, ok2 := v.LookupBytes(buf[6:])
		_, ok3 := v.ByID(7)
		_, ok4 := v.LookupBytes(buf)
		if !ok1 || !ok2 || !ok3 || ok4 {
			t.Error("a lookup is wrong")
		}
	}); n != 0 {
		t.Errorf("lookups allocate %v times", n)
	}
}

func manyCategory(i int) *scribev1.Category {
	return &scribev1.Category{
		Name: fmt.Sprintf("team-%03d.service.requests-%06d", i%100, i), Id: uint32(i + 1), Revision: uint64(i + 1), Owner: "team@example.com",
		Retention: durationpb.New(1), Shards: 1, Delivery: scribev1.Delivery_DELIVERY_AT_LEAST_ONCE, MaxMessageBytes: 1 << 20, CreatedAt: 1, UpdatedAt: 1,
	}
}

// TestMemory: an idle category costs a role little.
func TestMemory(t *testing.T) {
	const many, limit = 100_000, 2048
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	v := newView(t, newPlane(), nil)
	before := heap()
	v.applyMessage(&scribev1.WatchCategoriesResponse{Reset_: true})
	for i := range many {
		v.applyMessage(&scribev1.WatchCategoriesResponse{Updated: []*scribev1.Category{manyCategory(i)}})
	}
	v.applyMessage(&scribev1.WatchCategoriesResponse{Synced: true})
	if used := (heap() - before) / many; used > limit {
		t.Errorf("%d bytes of memory per category, the limit is %d", used, limit)
	} else {
		t.Logf("%d bytes of memory per category", used)
	}
	if v.Len() != many {
		t.Errorf("%d categories", v.Len())
	}
	runtime.KeepAlive(v)
}

// go test ./internal/cell/catalog -run '^$' -bench . -count=6 | benchstat -
func BenchmarkLookup(b *testing.B) {
	x := newIndex()
	var names [][]byte
	for i := range 100_000 {
		c := manyCategory(i)
		x.putCategory(c)
		names = append(names, []byte(c.GetName()))
	}
	b.Run("categories=100000", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for i := 0; pb.Next(); i += 7919 {
				if x.lookupBytes(names[i%len(names)]) == nil {
					b.Error("not found")
				}
			}
		})
	})
}
