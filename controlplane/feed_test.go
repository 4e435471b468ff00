package controlplane

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"scribe/storage/kv"
)

// mirror is what a watch would know of a feed.
type mirror struct {
	at     feedCursor
	known  map[string]uint64 // revision by name
	resets int
}

// step reads once, and reports whether the mirror is complete.
func (m *mirror) step(t rapid.TB, f *categoryFeed, items, bytes int) bool {
	began := m.at.started
	s := f.readStep(&m.at, items, bytes)
	if s.reset {
		m.known = map[string]uint64{}
		if began {
			m.resets++
		}
	}
	if n := len(s.updated) + len(s.deleted); n > items {
		t.Fatalf("a step of %d changes, the limit is %d", n, items)
	}
	for _, e := range s.updated {
		m.known[e.Key] = e.Revision
	}
	for _, name := range s.deleted {
		delete(m.known, name)
	}
	return s.grown != nil && m.at.synced
}

// TestFeedModel changes a feed at random while watches read it in steps of their own size: when a watch comes to the end it
// knows exactly what there is, however slow it was.
func TestFeedModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFeed(rapid.IntRange(1, 6).Draw(t, "deletions"))
		want := map[string]kv.Entry{}
		revision := uint64(0)
		mirrors := make([]*mirror, rapid.IntRange(1, 4).Draw(t, "watches"))
		for i := range mirrors {
			mirrors[i] = &mirror{}
		}
		f.replaceAll(nil, 0)
		name := rapid.Map(rapid.IntRange(0, 12), func(i int) string { return fmt.Sprintf("c%d", i) })
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				revision++
				n := name.Draw(t, "name")
				want[n] = kv.Entry{Key: n, Value: []byte{1}, Revision: revision}
				f.applyEvents([]kv.KeyEvent{{Key: n, Value: []byte{1}, Revision: revision}}, revision)
			},
			"delete": func(t *rapid.T) {
				revision++
				n := name.Draw(t, "name")
				delete(want, n)
				f.applyEvents([]kv.KeyEvent{{Key: n, Revision: revision, Deleted: true}}, revision)
			},
			"repeat": func(t *rapid.T) { // an event that the feed knows already
				for n, e := range want {
					f.applyEvents([]kv.KeyEvent{{Key: n, Value: []byte{9}, Revision: e.Revision}}, revision)
					return
				}
			},
			"resync": func(t *rapid.T) { // changes that were missed
				for range rapid.IntRange(0, 5).Draw(t, "missed") {
					revision++
					n := name.Draw(t, "name")
					if rapid.Bool().Draw(t, "gone") {
						delete(want, n)
					} else {
						want[n] = kv.Entry{Key: n, Value: []byte{2}, Revision: revision}
					}
				}
				f.replaceAll(want, revision)
			},
			"restore": func(t *rapid.T) { // the store was put back
				if revision < 2 {
					return
				}
				revision = rapid.Uint64Range(1, revision-1).Draw(t, "revision")
				want = map[string]kv.Entry{}
				for range rapid.IntRange(0, 5).Draw(t, "left") {
					n := name.Draw(t, "name")
					want[n] = kv.Entry{Key: n, Value: []byte{3}, Revision: rapid.Uint64Range(1, revision).Draw(t, "revision")}
				}
				f.replaceAll(want, revision)
			},
			"read": func(t *rapid.T) {
				m := mirrors[rapid.IntRange(0, len(mirrors)-1).Draw(t, "watch")]
				m.step(t, f, rapid.IntRange(1, 4).Draw(t, "items"), 10)
			},
			"": func(t *rapid.T) {
				if f.countLive() != len(want) {
					t.Fatalf("the feed has %d categories, want %d", f.countLive(), len(want))
				}
			},
		})
		for _, m := range mirrors {
			for !m.step(t, f, 3, 10) {
			}
			if m.at.revision != revision {
				t.Errorf("the watch is at revision %d, want %d", m.at.revision, revision)
			}
			got := map[string]uint64{}
			for n, e := range want {
				got[n] = e.Revision
			}
			if !maps.Equal(m.known, got) {
				t.Fatalf("a watch knows %v, there is %v", m.known, got)
			}
		}
	})
}

// TestFeedSyncIsWhole: a category that changes during the first reading is not missing when it ends.
func TestFeedSyncIsWhole(t *testing.T) {
	f := newFeed(10)
	entries := map[string]kv.Entry{}
	for i := range 10 {
		n := fmt.Sprintf("c%d", i)
		entries[n] = kv.Entry{Key: n, Value: []byte{1}, Revision: uint64(i + 1)}
	}
	f.replaceAll(entries, 10)
	revision := uint64(10)
	for changes := range 8 {
		m := &mirror{}
		for steps := 0; !m.step(t, f, 3, 1000); steps++ {
			revision++
			if n := fmt.Sprintf("c%d", revision%10); steps < changes { // then nothing happens, so that the watch can catch up
				f.applyEvents([]kv.KeyEvent{{Key: n, Value: []byte{1}, Revision: revision}}, revision)
			}
		}
		if len(m.known) != 10 {
			t.Fatalf("%d categories when synced, want 10", len(m.known))
		}
	}
}

// TestFeedBounds: changes of few categories take no more room than the categories, and an old watch costs the feed nothing.
func TestFeedBounds(t *testing.T) {
	f := newFeed(100)
	f.replaceAll(nil, 0)
	old := &mirror{}
	old.step(t, f, 1, 1)
	for i := range uint64(50_000) {
		e := kv.KeyEvent{Key: fmt.Sprintf("c%d", i%1000), Value: []byte{1}, Revision: i + 1}
		if i%5 == 0 {
			e.Value, e.Deleted = nil, true
		}
		f.applyEvents([]kv.KeyEvent{e}, e.Revision)
	}
	if n := len(f.mu.order); n > 2*len(f.mu.items)+1025 {
		t.Errorf("the order has %d places for %d categories", n, len(f.mu.items))
	}
	if n := len(f.mu.deletions); n > 100 {
		t.Errorf("%d deletions are remembered", n)
	}
	s := f.readStep(&old.at, 10, 1000)
	if !s.reset {
		t.Error("a watch that missed forgotten deletions goes on")
	}
	var names []string
	f.eachName(func(n string) { names = append(names, n) })
	slices.Sort(names)
	if len(slices.Compact(names)) != f.countLive() {
		t.Errorf("names has %d, count %d", len(names), f.countLive())
	}
}
