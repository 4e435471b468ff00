package readstream

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// Reads a history of pointers through a whole stream, called directly.
//
// go test ./readstream -run - -bench Stream -count 6
func BenchmarkStream(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		for _, window := range []time.Duration{-1, 0} {
			b.Run(fmt.Sprintf("shards=%d/strict=%v", n, window == 0), func(b *testing.B) {
				const records = 20_000
				h := newHarness(b)
				all := shards(n)
				h.create(all...)
				var a metalog.Append
				for i, shard := range all {
					s := metalog.ShardAppend{Shard: shard, Epoch: h.opened[shard].Epoch}
					for range records/n + min(1, max(0, records%n-i)) {
						s.Records = append(s.Records, encoded(100))
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
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/records, "ns/pointer")
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
