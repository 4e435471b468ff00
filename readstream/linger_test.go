package readstream

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/bucket"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// A pointer that was taken is sent soon, whatever is read meanwhile that brings nothing of use: here a long history of which a stream is to have
// one pointer in a thousand.
func TestReadsDoNotHoldUpWhatWasTaken(t *testing.T) {
	const perRead = time.Second
	slow := func(c *Config) {
		c.StreamBytes, c.ReadGrace, c.ReadTimeout = metalog.MaxRecord, time.Minute, time.Minute
	}
	inBubble(t, 1, slow, func(t *testing.T, e *engine, s *Server) {
		shard := e.create()
		const records = 10 << 10
		for range records {
			e.append(shard)
		}
		e.set(func() { e.mu.slow = perRead })
		scheme := bucket.Scheme{Sharing: bucket.Pointers, Buckets: bucket.Max}
		set := bucket.NewSet(scheme.Buckets)
		set.Add(scheme.Of(shard, 1))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var came []time.Duration
		begun, opened := false, time.Now()
		_ = s.Stream(ctx, func(ctx context.Context) (*scribev1.StreamRequest, error) {
			if begun {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			begun = true
			return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Start{Start: &scribev1.StreamStart{
				Category: testCategory, StartAt: scribev1.StartAt_START_AT_EARLIEST, Credits: &scribev1.StreamCredits{Pointers: 1000, Bytes: 1 << 30},
				Heartbeat: durationpb.New(maxHeartbeat),
				Buckets:   &scribev1.StreamBuckets{Sharing: uint32(scheme.Sharing), Buckets: scheme.Buckets, Set: set},
			}}}, nil
		}, func(r *scribev1.StreamResponse) error {
			for range r.GetEntries().GetEntries() {
				came = append(came, time.Since(opened))
			}
			if len(came) == records/bucket.Max {
				cancel()
			}
			return nil
		})
		if len(came) != records/bucket.Max || came[len(came)-1] < 10*perRead {
			t.Fatalf("the pointers came after %v: the test does not test", came)
		}
		if came[0] > perRead+perRead/2 { // the second read has begun, and is not waited for
			t.Errorf("the first pointer came after %v", came[0])
		}
	})
}
