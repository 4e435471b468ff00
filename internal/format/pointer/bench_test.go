package pointer_test

import (
	"fmt"
	"testing"

	"scribe/internal/format/pointer"
)

// Benchmarks of what a metadata record costs.
//
//	go test ./internal/format/pointer -run '^$' -bench . -count 6
func withRuns(n int) pointer.Pointer {
	p := small()
	for i := range n {
		p.Sequences = append(p.Sequences, pointer.Sequence{Producer: uint64(i) << 40, Epoch: 3, First: 1 << 20, Last: 1<<20 + 999})
	}
	return p
}

func BenchmarkAppend(b *testing.B) {
	for _, runs := range []int{0, 8} {
		b.Run(fmt.Sprintf("runs=%d", runs), func(b *testing.B) {
			p := withRuns(runs)
			buf := pointer.Append(nil, &p)
			b.ReportMetric(float64(len(buf)), "bytes")
			b.ReportAllocs()
			for b.Loop() {
				buf = pointer.Append(buf[:0], &p)
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, runs := range []int{0, 8} {
		b.Run(fmt.Sprintf("runs=%d", runs), func(b *testing.B) {
			p := withRuns(runs)
			buf := pointer.Append(nil, &p)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := pointer.Decode(buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
