package readstream

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/record"
	"scribe/internal/testkit/testsize"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog"
)

// Reads a history of pointers through a whole stream, called directly.
//
// go test ./readstream -run - -bench Stream -count 6
func BenchmarkStream(b *testing.B) {
	for _, n := range []int{1, 100, 1000, 10_000} {
		for _, window := range []time.Duration{-1, 0} {
			b.Run(fmt.Sprintf("shards=%d/strict=%v", n, window == 0), func(b *testing.B) {
				records := testsize.Benchmark(200_000, 10_000)
				h := newHarness(b)
				all, pointer := shards(n), encoded(100)
				h.create(all...)
				var a metalog.Append
				for i, shard := range all {
					s := metalog.ShardAppend{Shard: shard, Epoch: h.opened[shard].Epoch}
					for range records/n + min(1, max(0, records%n-i)) {
						s.Records = append(s.Records, pointer)
					}
					a.Shards = append(a.Shards, s)
				}
				if _, err := h.engine.Append(b.Context(), &a); err != nil {
					b.Fatal(err)
				}
				start := &scribev1.StreamStart{
					Category: testCategory, StartAt: scribev1.StartAt_START_AT_EARLIEST,
					Credits: &scribev1.StreamCredits{Pointers: maxCredits, Bytes: maxByteCredits},
				}
				if window >= 0 {
					start.Window = durationpb.New(window)
				}
				b.ReportAllocs()
				for b.Loop() {
					readHistory(b, h.server, start, records)
				}
				b.ReportMetric(float64(b.N*records)/b.Elapsed().Seconds(), "pointers/s")
			})
		}
	}
}

// readHistory opens a stream and ends it when n entries have come.
func readHistory(b *testing.B, s *Server, start *scribev1.StreamStart, n int) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	begun := false
	got := map[record.ShardID]int{}
	err := s.Stream(ctx, func(ctx context.Context) (*scribev1.StreamRequest, error) {
		if !begun {
			begun = true
			return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Start{Start: start}}, nil
		}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}, func(r *scribev1.StreamResponse) error {
		for _, e := range r.GetEntries().GetEntries() {
			got[record.ShardID(e.GetShard())]++
		}
		if n -= len(r.GetEntries().GetEntries()); n == 0 {
			cancel()
		}
		return nil
	})
	if n != 0 {
		b.Fatalf("%d entries did not come: %v", n, err)
	}
}

// Opens a stream at a time point of a log on disk, and waits for its first pointer. The limit is a read at a place that is known. Building
// the largest log takes 1.5 GB and half a minute.
//
// go test ./readstream -run - -bench StartAtTime -count 6
func BenchmarkStartAtTime(b *testing.B) {
	for _, n := range testsize.Benchmark([]int{100_000, 10_000_000}, []int{100_000}) {
		engine, err := pebblelog.Open(b.TempDir(), pebblelog.Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = engine.Close() })
		shard := shardID(0, 1)
		states, err := engine.Open(b.Context(), "bench", []record.ShardID{shard})
		if err != nil {
			b.Fatal(err)
		}
		batch := make([][]byte, 10_000)
		for i := range batch {
			batch[i] = encoded(100)
		}
		var times []int64
		for range n / len(batch) {
			done, err := engine.Append(b.Context(), &metalog.Append{Shards: []metalog.ShardAppend{{Shard: shard, Epoch: states[0].Epoch, Records: batch}}})
			if err != nil {
				b.Fatal(err)
			}
			times = append(times, done[0].Time)
		}
		s, err := New(DefaultConfig(), Deps{Log: engine, Categories: newCategories()})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = s.Close(context.Background()) })
		begin := func(start *scribev1.StreamStart) {
			start.Category, start.Credits = testCategory, &scribev1.StreamCredits{Pointers: 1, Bytes: 1}
			readHistory(b, s, start, 1)
		}
		b.Run(fmt.Sprintf("pointers=%d/time", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				at := times[(i*7919)%len(times)]
				begin(&scribev1.StreamStart{StartAt: scribev1.StartAt_START_AT_TIME, StartTime: at})
			}
		})
		b.Run(fmt.Sprintf("pointers=%d/position", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				lsn := uint64((i*7919)%len(times)*len(batch) + 1)
				begin(&scribev1.StreamStart{Resume: []*scribev1.ShardPosition{{Shard: uint64(shard), Lsn: lsn}}})
			}
		})
	}
}

// Appends records and waits until all streams of the category have them. All share one subscription.
//
// go test ./readstream -run - -bench FanOut -count 6
func BenchmarkFanOut(b *testing.B) {
	for _, streams := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("streams=%d", streams), func(b *testing.B) {
			const records = 100
			h := newHarness(b)
			shard := shardID(0, 1)
			h.create(shard)
			var group, ready sync.WaitGroup
			var sent atomic.Int64
			news := make(chan struct{}, 1)
			ctx, cancel := context.WithCancel(b.Context())
			for range streams {
				ready.Add(1)
				group.Go(func() {
					begun := false
					_ = h.server.Stream(ctx, func(ctx context.Context) (*scribev1.StreamRequest, error) {
						if begun {
							<-ctx.Done()
							return nil, context.Cause(ctx)
						}
						begun = true
						return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Start{Start: &scribev1.StreamStart{
							Category: testCategory, Credits: &scribev1.StreamCredits{Pointers: maxCredits, Bytes: maxByteCredits}, StartAt: scribev1.StartAt_START_AT_LATEST,
						}}}, nil
					}, func(r *scribev1.StreamResponse) error {
						if r.GetOpened() != nil {
							ready.Done()
						}
						if n := len(r.GetEntries().GetEntries()); n > 0 && sent.Add(int64(n))%int64(streams*records) == 0 {
							news <- struct{}{}
						}
						return nil
					})
				})
			}
			ready.Wait()
			a := metalog.Append{Shards: []metalog.ShardAppend{{Shard: shard, Epoch: h.opened[shard].Epoch}}}
			for range records {
				a.Shards[0].Records = append(a.Shards[0].Records, encoded(1))
			}
			most := maxCredits / records // what the credits are enough for
			rounds := 0
			b.ResetTimer()
			for b.Loop() {
				if rounds++; rounds > most {
					b.Fatal("out of credits: a shorter -benchtime")
				}
				if _, err := h.engine.Append(ctx, &a); err != nil {
					b.Fatal(err)
				}
				<-news
			}
			b.ReportMetric(float64(b.N)*records*float64(streams)/b.Elapsed().Seconds(), "pointers/s")
			b.ReportMetric(h.metric("subscriptions"), "subscriptions")
			cancel()
			group.Wait()
		})
	}
}
