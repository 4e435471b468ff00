package layout_test

import (
	"bytes"
	"fmt"
	"testing"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/storage/blob/layout"
)

// BenchmarkBuild lays out a blob: five large blocks, or many small payloads in one. What it must do at least is one checksum of the
// stored bytes.
//
//	go test ./storage/blob/layout -run '^$' -bench . -count 6
func BenchmarkBuild(b *testing.B) {
	for _, shape := range []struct{ blocks, payloads, size int }{{5, 1, 2 << 20}, {1, 5_000, 300}} {
		stored := bytes.Repeat([]byte{7}, shape.payloads*shape.size)
		b.Run(fmt.Sprintf("blocks=%d/payloads=%d", shape.blocks, shape.blocks*shape.payloads), func(b *testing.B) {
			b.SetBytes(int64(shape.blocks * len(stored)))
			b.ReportAllocs()
			for b.Loop() {
				build(b, shape.blocks, shape.payloads, stored)
			}
		})
		b.Run(fmt.Sprintf("blocks=%d/checksum-alone", shape.blocks), func(b *testing.B) {
			b.SetBytes(int64(shape.blocks * len(stored)))
			for b.Loop() {
				for range shape.blocks {
					record.CRC(stored)
				}
			}
		})
	}
}

func build(tb testing.TB, blocks, payloads int, stored []byte) ([][]byte, string) {
	tb.Helper()
	lb := layout.NewBuilder(blobID(0), 72, "", created)
	size := len(stored) / payloads
	for i := range blocks {
		n := lb.AddBlock(pointer.CodecNone, stored, len(stored))
		for j := range payloads {
			category := uint32(j % 1_000)
			lb.AddPayload(n, uint32(j*size), uint32(size), layout.Entry{
				Shard: record.MakeShardID(category, 0, 1), Epoch: 1, LSN: record.LSN(i*payloads + j + 1), Category: names[category],
				Pointer: pointer.Pointer{Frames: 1, Messages: 3, MinTime: created, MaxTime: created},
			})
		}
	}
	parts, err := lb.Finish()
	if err != nil {
		tb.Fatal(err)
	}
	return parts, pointer.Key(72, blobID(0))
}

var names = func() (out [1_000]string) {
	for i := range out {
		out[i] = fmt.Sprintf("trickle.category-%d", i)
	}
	return out
}()

// BenchmarkReadFooter is what retention and inspection pay for a blob in memory.
func BenchmarkReadFooter(b *testing.B) {
	for _, payloads := range []int{5, 5_000} {
		b.Run(fmt.Sprintf("payloads=%d", payloads), func(b *testing.B) {
			parts, key := build(b, 1, payloads, make([]byte, payloads*300))
			s := store(b, key, bytes.Join(parts, nil))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := layout.ReadFooter(b.Context(), s, key); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
