package scribed

import (
	"testing"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// FuzzSplit takes arbitrary bytes apart: every byte of a good request is in exactly one entry or in a frame with an error.
//
//	go test ./scribed -run '^$' -fuzz FuzzSplit -fuzztime 10s
func FuzzSplit(f *testing.F) {
	var b record.Builder
	if err := b.Reset(nil, record.Envelope{Category: "a"}); err != nil {
		f.Fatal(err)
	}
	if err := b.AppendPayload([]byte("x")); err != nil {
		f.Fatal(err)
	}
	good, err := b.Finish()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(append([]byte(nil), good...), good...))
	f.Add(good[:len(good)-1])
	f.Add([]byte("SCRF\x03"))
	f.Fuzz(func(t *testing.T, data []byte) {
		results, entries, err := splitRequest(t.Context(), &scribev1.WriteRequest{Frames: data})
		if err != nil {
			return
		}
		frames, refused := 0, 0
		for _, r := range results {
			if r.GetError() != nil {
				refused++
			}
		}
		sum := int64(0)
		for _, e := range entries {
			frames += len(e.frames)
			sum += e.bytes
			if e.countBytes() != e.bytes {
				t.Errorf("an entry of %d bytes has frames of %d", e.bytes, e.countBytes())
			}
		}
		if frames+refused != len(results) || refused == 0 && sum != int64(len(data)) {
			t.Errorf("%d frames, %d refused, %d results, %d of %d bytes", frames, refused, len(results), sum, len(data))
		}
	})
}
