package batcher

import (
	"reflect"
	"testing"

	"scribe/storage/blob/layout"
)

func TestBuilds(t *testing.T) {
	b := newBuildHistory(nil)
	if h := b.beginBuild(); h.Run == 0 || h.Build != 1 || h.Window != 0 || h.Exceptions != nil {
		t.Errorf("the first build: %+v", h)
	}
	b.beginBuild()
	b.endBuild(1, buildCommitted)
	h := b.beginBuild()
	if want := (layout.History{Run: b.run, Build: 3, Window: 2, Exceptions: []layout.Exception{{Build: 2}}}); !reflect.DeepEqual(h, want) {
		t.Errorf("got %+v, want %+v", h, want)
	}
	b.endBuild(2, buildVoid)
	b.endBuild(3, buildUnknown)
	b.endBuild(0, buildCommitted) // of a part that has put nothing
	h = b.beginBuild()
	if want := []layout.Exception{{Build: 3}, {Build: 2, Void: true}}; h.Window != 3 || !reflect.DeepEqual(h.Exceptions, want) {
		t.Errorf("got %+v, want %+v", h, want)
	}
	for range 2 * layout.MaxWindow {
		b.endBuild(b.beginBuild().Build, buildCommitted)
	}
	if h = b.beginBuild(); h.Window != layout.MaxWindow-1 || len(h.Exceptions) != 0 {
		t.Errorf("after many: %+v", h)
	}
	// What became of a build that is forgotten is not taken for what became of another one.
	b.endBuild(h.Build-layout.MaxWindow, buildVoid)
	if h = b.beginBuild(); len(h.Exceptions) != 1 || h.Exceptions[0].Void {
		t.Errorf("after the end of a forgotten one: %+v", h)
	}
}

// A blob tells of the ones before it: that a put failed, that others were committed, and what the category is.
func TestBlobsTellOfOthers(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	c.commit(makeFrame(t, "alpha", 0, nil, "1"))
	c.store.puts.plan(step{err: errInjected, after: true})
	c.commit(makeFrame(t, "alpha", 0, nil, "2"))
	c.commit(makeFrame(t, "alpha", 1, nil, "3"))
	var footers []*layout.Footer
	for info, err := range c.store.List(t.Context(), "blobs/") {
		if err != nil {
			t.Fatal(err)
		}
		f, err := layout.ReadFooter(t.Context(), c.store, info.Key)
		if err != nil {
			t.Fatal(err)
		}
		footers = append(footers, f)
	}
	if len(footers) != 4 {
		t.Fatalf("%d blobs", len(footers))
	}
	last := footers[0]
	for _, f := range footers {
		if f.History.Build > last.History.Build {
			last = f
		}
	}
	if want := []layout.Exception{{Build: 2, Void: true}}; last.History.Build != 4 || last.History.Window != 3 || !reflect.DeepEqual(last.History.Exceptions, want) {
		t.Errorf("%+v", last.History)
	}
	if e := last.Entries[0]; e.Start != 1 || e.Predicted || e.Settings == nil || e.Settings.Shards != 4 || e.Settings.Delivery != 2 {
		t.Errorf("%+v, %+v", e, e.Settings)
	}
}
