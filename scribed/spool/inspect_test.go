package spool

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/scribed/spool/layout"
)

func inspect(t *testing.T, fs vfs.FS, dir string, verify bool) *Report {
	t.Helper()
	r, err := Inspect(fs, dir, verify, testWrapper)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestInspect looks into a folder in use, and after it.
func TestInspect(t *testing.T) {
	mem := vfs.NewMem()
	c := testConfig()
	s := openSpool(t, c, mem)
	for i := range 40 {
		appendOne(t, s, []string{"a", "b"}[i%2], i, 700, false)
	}
	s.Done(refsOfClaimed(claimAll(t, s, "a")[:7])...)
	s.Drop("b", 1400, time.Time{}, "test")
	settle(t, s)
	saveNow(t, s)
	for i, verify := range []bool{false, true, true} {
		if i == 2 {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		r := inspect(t, mem, c.Dir, verify)
		if len(r.Damage) > 0 || len(r.Categories) != 2 || r.State == nil || r.State.Dropped["b"].Records != 2 || !r.Ballast {
			t.Fatalf("%d: %+v", i, r)
		}
		for k, want := range []Amount{{13, 0, 13 * 700}, {18, 0, 18 * 700}} {
			got := r.Categories[k]
			want.Messages = got.Held.Messages
			if got.Held != want || got.Oldest.IsZero() || got.Newest.Before(got.Oldest) {
				t.Errorf("%d: %+v, want %+v", i, got, want)
			}
		}
		last := r.Segments[len(r.Segments)-1]
		if unsealed := !last.Sealed; unsealed != (i < 2) || !r.Segments[0].Sealed {
			t.Errorf("%d: segments %+v", i, r.Segments)
		}
	}
}

// TestInspectDamage: every place is found, by what reads it.
func TestInspectDamage(t *testing.T) {
	for _, sealed := range []bool{true, false} {
		f := makeFolderOf(t, sealed)
		f.state = make([]byte, len(f.state)) // damaged, too
		for at := 0; at < len(f.segment); at += 3 {
			b := slices.Clone(f.segment)
			b[at] ^= 0x80
			mem := vfs.NewMem()
			if err := mem.MkdirAll(f.cfg.Dir, 0o750); err != nil {
				t.Fatal(err)
			}
			put(t, mem, f.cfg.Dir+"/"+f.name, b)
			r := inspect(t, mem, f.cfg.Dir, true)
			hit := slices.ContainsFunc(f.want, func(e layout.IndexEntry) bool { return at >= int(e.Offset) && at < int(e.Offset+e.Size) })
			durable := sealed || at < int(f.want[9].Offset)
			if hit && durable && !slices.ContainsFunc(r.Damage, func(d Damage) bool { return d.File == f.name && int(d.From) <= at && at < int(d.To) }) {
				t.Fatalf("sealed %v, byte %d: %+v", sealed, at, r.Damage)
			}
			if !hit && at >= int(f.want[11].Offset)+int(layout.Padded(int64(f.want[11].Size))) && sealed && len(r.Damage) == 0 && r.Segments[0].Sealed {
				t.Fatalf("byte %d of the footer: no damage is found", at)
			}
			for _, d := range r.Damage {
				if !errors.Is(d.Err, layout.ErrDamaged) {
					t.Fatal(d.Err)
				}
			}
		}
	}
	if _, err := Inspect(vfs.NewMem(), "/none", false, nil); err == nil {
		t.Error("a folder that is not there")
	}
}
