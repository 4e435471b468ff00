package batcher

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog"
	"scribe/storage/metalog/router"
)

// twoEngines are two metadata engines behind one log. The categories begin in the first.
type twoEngines struct {
	*router.Log
	t             testing.TB
	first, second router.Engine
}

func newTwoEngines(t testing.TB) *twoEngines {
	t.Helper()
	open := func(name string) router.Engine {
		e, err := pebblelog.Open("log", pebblelog.Options{FS: vfs.NewMem()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
		return router.Engine{Name: name, Log: e}
	}
	w := &twoEngines{t: t, first: open("first"), second: open("second")}
	var err error
	if w.Log, err = router.New([]router.Engine{w.first, w.second}, router.Options{Root: "first"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// relocate moves a category to the second engine.
func (w *twoEngines) relocate(category uint32) {
	w.t.Helper()
	r := router.Relocation{Category: category, From: w.first, To: w.second, Version: 1}
	if _, err := r.Run(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// countingAppends counts the appends to logs of several engines that the router refuses.
type countingAppends struct {
	*twoEngines
	appends atomic.Int64
}

func (c *countingAppends) Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error) {
	c.appends.Add(1)
	return c.Log.Append(ctx, a)
}

// A request with frames for logs of two engines is stored by two transactions, each with a blob of its own, and the next one as well.
func TestFlushIsCutByEngine(t *testing.T) {
	engines := &countingAppends{twoEngines: newTwoEngines(t)}
	engines.relocate(2)
	c := newCellWith(t, testConfig(), nil, nil, func(d *Deps) { d.Log = engines })
	c.log.Log = engines // where the cell's checks read
	for round := range 3 {
		before := engines.appends.Load()
		results := c.commit(makeFrame(t, "alpha", 0, nil, "a"), makeFrame(t, "beta", 0, nil, "b"), makeFrame(t, "alpha", 1, nil, "c"), makeFrame(t, "beta", 1, nil, "d"))
		if n := engines.appends.Load() - before; n != 2 {
			t.Errorf("round %d took %d transactions, want one in each engine", round, n)
		}
		wantEngines(t, engines.twoEngines, results, engines.first, engines.second, engines.first, engines.second)
	}
}

// wantEngines checks which engine stored each frame.
func wantEngines(t *testing.T, w *twoEngines, results []*scribev1.FrameResult, want ...router.Engine) {
	t.Helper()
	for i, r := range results {
		for _, e := range []router.Engine{w.first, w.second} {
			entries, err := e.Log.Read(t.Context(), record.ShardID(r.GetShard()), record.LSN(r.GetLsn()), 1, 0)
			if has := err == nil && len(entries) == 1; has != (e.Name == want[i].Name) {
				t.Errorf("frame %d in the engine %q: %v, %v; want it in %q", i, e.Name, has, err, want[i].Name)
			}
		}
	}
}

// A category leaves for another engine while the batcher has its logs open: writers notice nothing, nothing is stored twice, and what came before is
// read where it was.
func TestLogsMoveBeneathBatcher(t *testing.T) {
	engines := newTwoEngines(t)
	c := newCellWith(t, testConfig(), nil, nil, func(d *Deps) { d.Log = engines })
	c.log.Log = engines
	write := func(text string) []*scribev1.FrameResult {
		return c.commit(makeFrame(t, "alpha", 0, nil, text), makeFrame(t, "beta", 0, nil, text), makeFrame(t, "once", 0, &sequence{1, 1, 0}, "only"))
	}
	wantEngines(t, engines, write("before"), engines.first, engines.first, engines.first)
	engines.relocate(2)
	engines.relocate(4)
	results := write("after")
	wantEngines(t, engines, results[:2], engines.first, engines.second)
	if !results[2].GetDuplicate() {
		t.Error("a frame of an exactly_once category was stored again after its log had moved")
	}
	for name, id := range map[string]uint32{"alpha": 1, "beta": 2} {
		frames := c.frames(record.MakeShardID(id, 0, 7))
		if len(frames) != 2 {
			t.Errorf("%s has %d frames, want 2", name, len(frames))
		}
	}
	if frames := c.frames(record.MakeShardID(4, 0, 0)); len(frames) != 1 {
		t.Errorf("the exactly_once category has %d frames, want 1", len(frames))
	}
}
