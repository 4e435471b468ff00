package readproxy

import (
	"fmt"
	"testing"

	"scribe/internal/format/pointer"
	scribev1 "scribe/proto/scribe/v1"
)

// go test ./readproxy -run - -bench Fetch -count 6
func BenchmarkFetch(b *testing.B) {
	const messages = 24_000 // about 2 MB
	for _, cached := range []bool{true, false} {
		for _, encoding := range []scribev1.PayloadEncoding{raw, json, arrowIPC} {
			b.Run(fmt.Sprintf("encoding=%v/hit=%v", encoding, cached), func(b *testing.B) {
				h := newHarness(b, func(c *Config) {
					c.RequestsPerSecond = 0
					if !cached {
						c.CacheBytes = 0
					}
				})
				enc, ptrs := h.put(pointer.CodecZstd, []payload{newPayload(b, "a", messages)})
				req := &scribev1.FetchRequest{Pointers: enc, Encoding: encoding, Category: "a"}
				b.SetBytes(int64(ptrs[0].BlockRawLen))
				b.ReportAllocs()
				for b.Loop() {
					res, err := h.server.Fetch(b.Context(), req)
					if err != nil || res.GetPayloads()[0].GetError() != nil {
						b.Fatal(err, res)
					}
				}
			})
		}
	}
	// 100 payloads of about 1 KB in one block.
	b.Run("shared/hit=true", func(b *testing.B) {
		h := newHarness(b, func(c *Config) { c.RequestsPerSecond = 0 })
		var block []payload
		for range 100 {
			block = append(block, newPayload(b, "a", 12))
		}
		enc, ptrs := h.put(pointer.CodecZstd, block)
		req := &scribev1.FetchRequest{Pointers: enc, Category: "a"}
		b.SetBytes(int64(ptrs[0].BlockRawLen))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := h.server.Fetch(b.Context(), req); err != nil {
				b.Fatal(err)
			}
		}
	})
}
