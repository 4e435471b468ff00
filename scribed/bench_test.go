package scribed

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// taking is an upstream that takes everything and looks at nothing but the headers.
type taking struct{ upstream }

func (*taking) Write(_ context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	resp := &scribev1.WriteResponse{}
	for _, err := range record.Split(req.GetFrames()) {
		if err != nil {
			return nil, err
		}
		resp.Results = append(resp.Results, &scribev1.FrameResult{})
	}
	return resp, nil
}

// BenchmarkWrite is what the agent adds to a request of 1 MiB: one checksum, and a copy or two.
//
//	go test ./scribed -run '^$' -bench Write -benchtime 1s -count 6
func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("frame=%dKiB", size>>10), func(b *testing.B) {
			s, err := New(DefaultConfig(), Deps{Upstream: &taking{}})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = s.Close(b.Context()) }()
			var frames [][]byte
			for i := range (1 << 20) / size {
				var fb record.Builder
				if err := fb.Reset(nil, record.Envelope{Category: fmt.Sprintf("c%d", i%8)}); err != nil {
					b.Fatal(err)
				}
				if err := fb.AppendPayload([]byte(strings.Repeat("x", size-100))); err != nil {
					b.Fatal(err)
				}
				f, err := fb.Finish()
				if err != nil {
					b.Fatal(err)
				}
				frames = append(frames, f)
			}
			req := &scribev1.WriteRequest{Frames: slices.Concat(frames...)}
			b.SetBytes(int64(len(req.GetFrames())))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Write(b.Context(), req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
