package writeproxy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	scribev1 "scribe/proto/scribe/v1"
)

// BenchmarkWrite is what the proxy adds to a request of 1 MiB: one checksum, and a copy when there are several batchers.
//
//	go test ./writeproxy -run '^$' -bench Write -benchtime 1s -count 6
func BenchmarkWrite(b *testing.B) {
	for _, batchers := range []int{1, 8} {
		for _, size := range []int{1 << 10, 64 << 10} {
			b.Run(fmt.Sprintf("batchers=%d/frame=%dKiB", batchers, size>>10), func(b *testing.B) {
				var snapshot []Batcher
				for i := range batchers {
					snapshot = append(snapshot, Batcher{ID: fmt.Sprint(i), Service: taking{}})
				}
				p, err := New(DefaultConfig(), Deps{Categories: newCatalog(), Batchers: func() []Batcher { return snapshot }})
				if err != nil {
					b.Fatal(err)
				}
				var frames [][]byte
				for i := range (1 << 20) / size {
					frames = append(frames, makeFrame(b, "least", uint32(i%64), false, strings.Repeat("x", size-100)))
				}
				req := &scribev1.WriteRequest{Frames: slices.Concat(frames...)}
				b.SetBytes(int64(len(req.GetFrames())))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := p.Write(b.Context(), req); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
