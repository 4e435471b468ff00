package writeproxy

import (
	"context"
	"slices"
	"testing"
	"time"

	"scribe/internal/base/config"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// taking is a batcher that takes everything.
type taking struct{}

func (taking) Submit(_ context.Context, req *scribev1.SubmitRequest) (*scribev1.SubmitResponse, error) {
	resp := &scribev1.SubmitResponse{}
	for _, err := range record.Split(req.GetFrames()) {
		if err != nil {
			return nil, err
		}
		resp.Results = append(resp.Results, &scribev1.FrameResult{})
	}
	return resp, nil
}

// FuzzWrite gives a write proxy arbitrary bytes: it answers for each frame or refuses the request, and forgets nothing.
//
//	go test ./writeproxy -run '^$' -fuzz FuzzWrite -fuzztime 10s
func FuzzWrite(f *testing.F) {
	c := newCatalog()
	for i, mode := range []scribev1.QuotaMode{
		scribev1.QuotaMode_QUOTA_MODE_BLOCK, scribev1.QuotaMode_QUOTA_MODE_THROTTLE, scribev1.QuotaMode_QUOTA_MODE_SAMPLE,
	} {
		c.limit([]string{"blocks", "waits", "samples"}[i], 500, mode)
	}
	good := makeFrame(f, "least", 0, false, "one", "two")
	f.Add(slices.Concat(good, makeFrame(f, "once", 1, true, "three"), good, makeFrame(f, "nobody", 0, false, "x")))
	f.Add(good[:len(good)-1])
	f.Add(slices.Concat(makeFrame(f, "blocks", 0, false, "x"), makeFrame(f, "waits", 0, false, "x"), makeFrame(f, "samples", 0, false, "x"), good))
	f.Add([]byte("SCRF\x03"))
	cfg := config.Defaults[Config]()
	cfg.Timeout = 10 * time.Millisecond
	p, err := New(cfg, Deps{Categories: c, Batchers: func() []Batcher { return []Batcher{{ID: "a", Service: taking{}}, {ID: "b", Service: taking{}}} }})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		resp, err := p.Write(t.Context(), &scribev1.WriteRequest{Frames: data})
		if err == nil && (len(resp.GetResults()) == 0) != (len(data) == 0) {
			t.Errorf("%d results for %d bytes", len(resp.GetResults()), len(data))
		}
		for _, r := range resp.GetResults() {
			if r == nil {
				t.Error("a frame without a result")
			}
		}
		if used := p.writes.Used(); used != 0 {
			t.Errorf("%d bytes are still charged", used)
		}
	})
}
