package readproxy

import (
	"context"
	"testing"

	"scribe/internal/format/pointer"
	scribev1 "scribe/proto/scribe/v1"
)

// panics runs fn, which must panic: net/http goes on after it.
func panics(t *testing.T, fn func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if recover() == nil {
			t.Error("it does not panic: the test does not test")
		}
	}()
	fn()
}

// A request that panics while it loads takes nobody with it: neither those who want a view that it was to make, nor those who want a block
// that it was the first to ask for.
func TestARequestThatPanicsFailsNobody(t *testing.T) {
	const query = "SELECT status FROM a"
	v := newViewHarness(t)
	enc, _ := v.put(pointer.CodecZstd, []payload{rows(t, `{"status":200}`)})
	others, _ := v.put(pointer.CodecZstd, []payload{rows(t, `{"status":404}`), rows(t, `{"status":500}`)}, []payload{rows(t, `{"status":301}`)})
	cat, _ := v.server.deps.Categories.Lookup("a")
	answers := func(what string, req *scribev1.FetchRequest) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		res, err := v.server.Fetch(ctx, req)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for _, p := range res.GetPayloads() {
			if p.GetError() != nil {
				t.Errorf("%s: %v", what, p.GetError())
			}
		}
	}

	req := v.request(query, enc[0])
	wanted, err := v.server.views.parseRequest(t.Context(), cat, req, nil)
	if err != nil {
		t.Fatal(err)
	}
	broken := newAnswer(v.server, arrowIPC, cat, req, wanted, nil)
	broken.jobs[0].p = nil
	panics(t, func() { _ = broken.makeViews(t.Context()) })
	answers("a view", req)

	blocks := &scribev1.FetchRequest{Pointers: others, Category: "a", Encoding: raw}
	broken = newAnswer(v.server, raw, cat, blocks, nil, nil)
	if len(broken.jobs) < 2 {
		t.Fatalf("%d blocks: the test does not test", len(broken.jobs))
	}
	broken.jobs[len(broken.jobs)-1].p = nil
	panics(t, func() { _ = v.server.loadBlocks(t.Context(), broken) })
	answers("blocks", blocks)
}
