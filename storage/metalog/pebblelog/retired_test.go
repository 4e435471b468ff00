package pebblelog

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog/schema"
)

// The runs are those of the set, as few as there can be, and what add returns keeps a map of keys to runs the same.
func TestRetiredRuns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r categorySet
		set := map[uint32]bool{}
		stored := map[uint32]uint32{}
		ids := rapid.OneOf(rapid.Uint32Range(0, 12), rapid.Uint32Range(math.MaxUint32-5, math.MaxUint32))
		for range rapid.IntRange(0, 20).Draw(t, "steps") {
			id := ids.Draw(t, "id")
			if r.holds(id) != set[id] {
				t.Fatalf("holds(%d) is %v", id, r.holds(id))
			}
			if set[id] {
				continue
			}
			set[id] = true
			now, joined := r.addCategory(id)
			stored[now.first] = now.last
			if joined != nil {
				delete(stored, joined.first)
			}
		}
		held := 0
		for i, run := range r {
			if i > 0 && run.first <= r[i-1].last+1 || run.last < run.first {
				t.Fatalf("runs %v", r)
			}
			if stored[run.first] != run.last {
				t.Fatalf("runs %v, stored %v", r, stored)
			}
			held += int(run.last-run.first) + 1
		}
		if held != len(set) || len(stored) != len(r) {
			t.Fatalf("runs %v of %d ids, stored %v", r, len(set), stored)
		}
	})
}

// A run of retired categories that is damaged stops the engine: to forget it would let writers into what was deleted.
func TestDamagedRetired(t *testing.T) {
	fs := vfs.NewMem()
	e, err := Open(testDir, Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []uint32{3, 4, 9} {
		if err := e.Retire(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	key := schema.RetiredKey(3)
	sound := schema.AppendRetired(nil, key, 4)
	for _, bad := range [][]byte{append(bytes.Clone(sound), 0), schema.AppendRetired(nil, key, 9)} {
		put(t, fs, key, bad)
		if _, err := Open(testDir, Options{FS: fs}); !errors.Is(err, metalog.ErrCorrupt) {
			t.Errorf("a damaged run of retired categories: %v", err)
		}
	}
	put(t, fs, key, sound)
	e = start(t, Options{FS: fs})
	if got := e.retired; len(got) != 2 || got[0] != (categoryRun{3, 4}) || got[1] != (categoryRun{9, 9}) {
		t.Errorf("retired categories %v", got)
	}
}

// put changes a value behind the engine's back.
func put(t *testing.T, fs vfs.FS, key, value []byte) {
	t.Helper()
	db := raw(t, fs)
	if err := errors.Join(db.Set(key, value, pebble.Sync), db.Close()); err != nil {
		t.Fatal(err)
	}
}
