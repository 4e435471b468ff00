package pebblelog

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/format/record"
	"scribe/internal/testkit/testsize"
	"scribe/storage/metalog"
)

// pointerLen is about what a pointer takes.
const pointerLen = 120

// onDisk opens an engine in a folder of the file system that tests use.
func onDisk(b *testing.B) *Engine {
	b.Helper()
	e, err := Open(b.TempDir(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := e.Close(); err != nil {
			b.Error(err)
		}
	})
	return e
}

func manyShards(n int) []record.ShardID {
	shards := make([]record.ShardID, n)
	for i := range shards {
		shards[i] = record.MakeShardID(uint32(1+i/100), uint16(i%100), 1)
	}
	return shards
}

// BenchmarkAppend measures synced appends of one record, and how many share a sync.
//
//	go test ./storage/metalog/pebblelog -run '^$' -bench 'Append$' -benchtime 3s -count 6
func BenchmarkAppend(b *testing.B) {
	for _, writers := range []int{1, 16, 128, 512} {
		for _, shards := range []int{1, 128} {
			b.Run(fmt.Sprintf("writers=%d/shards=%d", writers, shards), func(b *testing.B) {
				e := onDisk(b)
				ids := manyShards(shards)
				states := mustOpen(b, e, ids...)
				data := make([]byte, pointerLen)
				var left atomic.Int64
				left.Store(int64(b.N))
				b.ReportAllocs()
				b.ResetTimer()
				var wg sync.WaitGroup
				for w := range writers {
					wg.Go(func() {
						a := &metalog.Append{Shards: []metalog.ShardAppend{{Shard: ids[w%shards], Epoch: states[w%shards].Epoch, Records: [][]byte{data}}}}
						for left.Add(-1) >= 0 {
							if _, err := e.Append(b.Context(), a); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
			})
		}
	}
}

// BenchmarkFlush measures what a batcher does: one transaction over many shards.
//
//	go test ./storage/metalog/pebblelog -run '^$' -bench Flush -benchtime 3s -count 6
func BenchmarkFlush(b *testing.B) {
	for _, shards := range []int{1, 100, 1000, 10000} {
		for _, runs := range []int{0, 2} {
			b.Run(fmt.Sprintf("shards=%d/sequences=%d", shards, runs), func(b *testing.B) {
				e := onDisk(b)
				ids := manyShards(shards)
				a := &metalog.Append{}
				for i, st := range mustOpen(b, e, ids...) {
					s := metalog.ShardAppend{Shard: ids[i], Epoch: st.Epoch, Records: [][]byte{make([]byte, pointerLen)}, Sequences: make([]metalog.Sequence, runs)}
					a.Shards = append(a.Shards, s)
				}
				b.ReportAllocs()
				b.ResetTimer()
				for n := range b.N {
					for i := range a.Shards {
						for k := range runs {
							a.Shards[i].Sequences[k] = metalog.Sequence{Producer: uint64(k), Epoch: 1, First: uint64(n), Last: uint64(n)}
						}
					}
					if _, err := e.Append(b.Context(), a); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.N*shards)/b.Elapsed().Seconds(), "pointers/s")
			})
		}
	}
}

// fillShard appends n records to a shard, in transactions of 1,000.
func fillShard(b *testing.B, e *Engine, shard record.ShardID, n int) {
	b.Helper()
	epoch := mustOpen(b, e, shard)[0].Epoch
	records := make([][]byte, 1000)
	for i := range records {
		records[i] = make([]byte, pointerLen)
	}
	for range n / len(records) {
		if _, err := e.Append(b.Context(), &metalog.Append{Shards: []metalog.ShardAppend{{Shard: shard, Epoch: epoch, Records: records}}}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRead reads a log of a million records from its beginning.
//
//	go test ./storage/metalog/pebblelog -run '^$' -bench Read -benchtime 3s -count 6
func BenchmarkRead(b *testing.B) {
	n := testsize.Benchmark(1_000_000, 20_000)
	e := onDisk(b)
	fillShard(b, e, shardA, n)
	for _, page := range []int{1, 100, metalog.MaxReadRecords} {
		b.Run(fmt.Sprintf("page=%d", page), func(b *testing.B) {
			b.SetBytes(int64(page * pointerLen))
			b.ReportAllocs()
			from := record.LSN(1)
			for b.Loop() {
				entries, err := e.Read(b.Context(), shardA, from, page, 0)
				if err != nil || len(entries) != page {
					b.Fatal(len(entries), err)
				}
				if from += record.LSN(page); from > record.LSN(n-page) {
					from = 1
				}
			}
		})
	}
}

// BenchmarkSeek looks for times in a log of a million records.
//
//	go test ./storage/metalog/pebblelog -run '^$' -bench Seek -benchtime 3s -count 6
func BenchmarkSeek(b *testing.B) {
	n := testsize.Benchmark(1_000_000, 20_000)
	var now atomic.Int64
	e, err := Open(b.TempDir(), Options{Clock: func() int64 { return now.Add(1000) }})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = e.Close() })
	begin := now.Load()
	fillShard(b, e, shardA, n)
	length := now.Load() - begin
	ids := []record.ShardID{shardA}
	b.ReportAllocs()
	for i := int64(0); b.Loop(); i++ {
		if _, err := e.Seek(b.Context(), ids, begin+(i*7919*1000)%length); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSubscribe appends to one shard that many follow, and waits until all have the record.
//
//	go test ./storage/metalog/pebblelog -run '^$' -bench Subscribe -benchtime 3s -count 6
func BenchmarkSubscribe(b *testing.B) {
	for _, subscribers := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("subscribers=%d", subscribers), func(b *testing.B) {
			e := onDisk(b)
			epoch := mustOpen(b, e, shardA)[0].Epoch
			ctx, cancel := context.WithCancel(b.Context())
			var wg, started, round sync.WaitGroup
			started.Add(subscribers)
			for range subscribers {
				wg.Go(func() {
					first := true
					_ = e.Subscribe(ctx, []metalog.Position{{Shard: shardA, LSN: 1}}, time.Hour, func(updates []metalog.Update) error {
						if first {
							first = false
							started.Done()
						}
						for range updates[0].Entries {
							round.Done()
						}
						return nil
					}) // ends with the context
				})
			}
			started.Wait()
			data := make([]byte, pointerLen)
			a := &metalog.Append{Shards: []metalog.ShardAppend{{Shard: shardA, Epoch: epoch, Records: [][]byte{data}}}}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				round.Add(subscribers)
				if _, err := e.Append(b.Context(), a); err != nil {
					b.Fatal(err)
				}
				round.Wait()
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N*subscribers)/b.Elapsed().Seconds(), "deliveries/s")
			cancel()
			wg.Wait()
		})
	}
}

// BenchmarkStart opens what a crash left of logs of different lengths: beyond what the memory tables hold, the length must not matter.
//
//	go test ./storage/metalog/pebblelog -run '^$' -bench Start -benchtime 20x -count 6
func BenchmarkStart(b *testing.B) {
	for _, n := range testsize.Benchmark([]int{1000, 100_000, 1_000_000, 3_000_000}, []int{1000, 100_000}) {
		b.Run(fmt.Sprintf("records=%d", n), func(b *testing.B) {
			fs := vfs.NewCrashableMem()
			e, err := Open(testDir, Options{FS: fs})
			if err != nil {
				b.Fatal(err)
			}
			fillShard(b, e, shardA, n)
			crashed := fs.CrashClone(vfs.CrashCloneCfg{})
			if err := e.Close(); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			for range b.N {
				b.StopTimer()
				again := crashed.CrashClone(vfs.CrashCloneCfg{})
				b.StartTimer()
				e, err := Open(testDir, Options{FS: again})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := e.Tail(b.Context(), []record.ShardID{shardA}); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := e.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkShardMemory loads the states of many shards and reports what each takes.
//
//	go test ./storage/metalog/pebblelog -run '^$' -bench ShardMemory -benchtime 1x
func BenchmarkShardMemory(b *testing.B) {
	const n = 200_000
	fs := vfs.NewMem()
	e, err := Open(testDir, Options{FS: fs})
	if err != nil {
		b.Fatal(err)
	}
	ids := manyShards(n)
	for from := 0; from < n; from += metalog.MaxShards {
		mustOpen(b, e, ids[from:from+metalog.MaxShards]...)
	}
	if err := e.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		e, err := Open(testDir, Options{FS: fs})
		if err != nil {
			b.Fatal(err)
		}
		before := heap()
		for from := 0; from < n; from += metalog.MaxShards {
			if _, err := e.Tail(b.Context(), ids[from:from+metalog.MaxShards]); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(heap()-before)/n, "B/shard")
		if err := e.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
