package batcher

import (
	"slices"
	"testing"

	"scribe/internal/role/request"
	scribev1 "scribe/proto/scribe/v1"
)

// FuzzSubmit gives a batcher arbitrary bytes: it answers for each frame or refuses the request, and forgets nothing.
//
//	go test ./batcher -run '^$' -fuzz FuzzSubmit -fuzztime 10s
func FuzzSubmit(f *testing.F) {
	good := makeFrame(f, "alpha", 0, nil, "one", "two")
	once := makeFrame(f, "once", 1, &sequence{producer: 1, first: 2}, "three")
	f.Add(slices.Concat(good, once, good))
	f.Add(good[:len(good)-1])
	f.Add([]byte("SCRF\x03"))
	c := newCell(f, testConfig(), nil, nil)
	f.Fuzz(func(t *testing.T, data []byte) {
		resp, err := c.Submit(t.Context(), &scribev1.SubmitRequest{Frames: data})
		if err == nil && (len(resp.GetResults()) == 0) != (len(data) == 0) {
			t.Errorf("%d results for %d bytes", len(resp.GetResults()), len(data))
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.mu.acc.memory.Used() != 0 || c.mu.counts.buffered() != (request.Amount{}) {
			t.Errorf("%d bytes are still charged, %+v buffered", c.mu.acc.memory.Used(), c.mu.counts.buffered())
		}
	})
}
