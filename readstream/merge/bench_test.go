package merge

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"

	"scribe/internal/format/record"
	"scribe/internal/testkit/testsize"
	"scribe/storage/metalog"
)

// history is records of many shards, whose times are those of one clock.
func history(shards, records int) [][]metalog.Entry {
	random := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, 80)
	out := make([][]metalog.Entry, shards)
	for i := range records {
		s := random.IntN(shards)
		out[s] = append(out[s], metalog.Entry{LSN: record.LSN(len(out[s]) + 1), Time: int64(i + 1), Data: data})
	}
	return out
}

// Merges a history that is in memory: the merge with all that it does beside the order (reads, bounds, watermarks), a plain heap of the
// same shards, and a copy of the records one shard after another.
//
// go test ./readstream/merge -run - -bench History -count 6
func BenchmarkHistory(b *testing.B) {
	records := testsize.Benchmark(1_000_000, 20_000)
	for _, shards := range []int{1, 100, 10_000} {
		all := history(shards, records)
		for _, way := range []struct {
			name string
			run  func([][]metalog.Entry) int
		}{{"merge", merged}, {"heap", heaped}, {"copy", copied}} {
			b.Run(fmt.Sprintf("shards=%d/%s", shards, way.name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if n := way.run(all); n != records {
						b.Fatalf("%d records of %d", n, records)
					}
				}
				b.ReportMetric(float64(b.N*records)/b.Elapsed().Seconds(), "pointers/s")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// benchLimit is Config.StreamBytes' default of the role.
const benchLimit = 4 << 20

func merged(all [][]metalog.Entry) (n int) {
	m := New(Options{Window: 1000, Limit: benchLimit, Budget: NewBudget(256 << 20)})
	defer m.Close()
	for i := range all {
		m.Add(record.ShardID(i), 1)
		m.Tail(record.ShardID(i), record.LSN(len(all[i])+1), 1<<40, false)
	}
	m.Looked(1 << 40)
	var wants []Want
	var out []Item // the batch that is sent
	for {
		it, status := m.Next()
		switch status {
		case Ready:
			n++
			if out = append(out, it); len(out) == 512 {
				out = out[:0]
			}
		case Read:
			wants = m.Wants(wants[:0], 8)
			for _, w := range wants {
				rest := all[w.Shard][w.LSN-1:]
				room := 0
				for k := range rest {
					if room += len(rest[k].Data) + entryOverhead; room > w.MaxBytes && k > 0 {
						rest = rest[:k]
						break
					}
				}
				m.Loaded(w.Shard, rest)
			}
		case Look, Idle:
			return n
		}
	}
}

type plainHeap [][]metalog.Entry

func (h plainHeap) Len() int           { return len(h) }
func (h plainHeap) Less(i, j int) bool { return h[i][0].Time < h[j][0].Time }
func (h plainHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *plainHeap) Push(x any)        { *h = append(*h, x.([]metalog.Entry)) }
func (h *plainHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

func heaped(all [][]metalog.Entry) (n int) {
	h := make(plainHeap, 0, len(all))
	for _, shard := range all {
		if len(shard) > 0 {
			h = append(h, shard)
		}
	}
	heap.Init(&h)
	var out []metalog.Entry
	for len(h) > 0 {
		n++
		if out = append(out, h[0][0]); len(out) == 512 {
			out = out[:0]
		}
		if h[0] = h[0][1:]; len(h[0]) == 0 {
			heap.Pop(&h)
		} else {
			heap.Fix(&h, 0)
		}
	}
	return n
}

func copied(all [][]metalog.Entry) (n int) {
	out := make([]metalog.Entry, 512)
	for _, shard := range all {
		for len(shard) > 0 {
			k := copy(out, shard)
			shard = shard[k:]
			n += k
		}
	}
	return n
}

// What is new in one shard after another goes through at once.
//
// go test ./readstream/merge -run - -bench Live -count 6
func BenchmarkLive(b *testing.B) {
	for _, shards := range []int{1, 100, 10_000} {
		for _, window := range []int64{Unbounded, 1000} {
			b.Run(fmt.Sprintf("shards=%d/window=%v", shards, window != Unbounded), func(b *testing.B) {
				m := New(Options{Window: window, Limit: 64 << 20})
				data := make([]byte, 80)
				next := make([]record.LSN, shards)
				for i := range shards {
					m.Add(record.ShardID(i), 1)
					m.Tail(record.ShardID(i), 1, 0, false)
					next[i] = 1
				}
				now := int64(1)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					id := i % shards
					now++
					u := metalog.Update{Shard: record.ShardID(id), Entries: []metalog.Entry{{LSN: next[id], Time: now, Data: data}}, NextLSN: next[id] + 1, Watermark: now}
					next[id]++
					m.Update(&u)
					for {
						_, s := m.Next()
						if s == Look {
							m.Floor(now)
							m.Looked(now)
						} else if s != Ready {
							break
						}
					}
				}
			})
		}
	}
}
