package powerdisk

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// TestContentAgainstBytes: what processes see is what a slice of bytes would hold, whatever is done.
func TestContentAgainstBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newContent()
		var model []byte
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			at := rapid.IntRange(0, 4*pageSize).Draw(t, "at")
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				data := bytes.Repeat([]byte{byte(rapid.IntRange(1, 255).Draw(t, "byte"))}, rapid.IntRange(1, 2*pageSize).Draw(t, "length"))
				c.writeAt(data, int64(at))
				if grow := at + len(data) - len(model); grow > 0 {
					model = append(model, make([]byte, grow)...)
				}
				copy(model[at:], data)
			case 1:
				c.setSize(int64(at))
				if at <= len(model) {
					model = append([]byte(nil), model[:at]...)
				} else {
					model = append(model, make([]byte, at-len(model))...)
				}
			case 2:
				c.syncPages()
			case 3:
				buf := make([]byte, pageSize+100)
				n := c.readAt(buf, int64(at))
				if want := model[min(at, len(model)):min(at+len(buf), len(model))]; !bytes.Equal(buf[:n], want) {
					t.Fatalf("read %d bytes at %d, want %d", n, at, len(want))
				}
			}
		}
	})
}

// TestLose: what was synced is there; of the rest each sector is old, new, or zeros where the file was not so long.
func TestLose(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)) //nolint:gosec // reproducible on purpose
		c := newContent()
		before := bytes.Repeat([]byte{1}, rapid.IntRange(0, 5*pageSize).Draw(t, "before"))
		c.writeAt(before, 0)
		c.syncPages()
		at := rapid.IntRange(0, 5*pageSize).Draw(t, "at")
		data := bytes.Repeat([]byte{2}, rapid.IntRange(1, 5*pageSize).Draw(t, "length"))
		c.writeAt(data, int64(at))
		kept := rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(t, "kept")
		lost := fileContent{live: c.losePower(rng, kept)}
		got := make([]byte, 20*pageSize)
		got = got[:lost.readAt(got, 0)]
		switch {
		case kept == 0 && !bytes.Equal(got, before):
			t.Fatal("something is there of what was not synced")
		case len(got) < len(before):
			t.Fatalf("%d bytes of %d that were synced are there", len(got), len(before))
		}
		for i, b := range got {
			written := i >= at && i < at+len(data)
			switch {
			case b == 2 && written, b == 1 && i < len(before), b == 0 && i >= len(before):
			default:
				t.Fatalf("byte %d is %d", i, b)
			}
		}
	})
}

// TestTorn: some power loss tears a page between its sectors.
func TestTorn(t *testing.T) {
	c := newContent()
	c.writeAt(bytes.Repeat([]byte{1}, pageSize), 0)
	c.syncPages()
	c.writeAt(bytes.Repeat([]byte{2}, pageSize), 0)
	for seed := range uint64(100) {
		page := c.losePower(rand.New(rand.NewPCG(seed, 1)), 0.5).pages[0] //nolint:gosec // reproducible on purpose
		if bytes.IndexByte(page, 1) >= 0 && bytes.IndexByte(page, 2) >= 0 {
			return
		}
	}
	t.Error("no page was torn in 100 power losses")
}

// TestFailedSync: after a sync that failed the next one does not bring back what it was for.
func TestFailedSync(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // reproducible on purpose
		c := newContent()
		c.writeAt(bytes.Repeat([]byte{1}, 8*pageSize), 0)
		c.forgetDirty(rng)
		buf := make([]byte, 8*pageSize)
		if n := c.readAt(buf, 0); n != len(buf) || bytes.IndexByte(buf, 0) >= 0 {
			t.Fatal("processes do not see what they wrote any more")
		}
		c.syncPages()
		after := fileContent{live: c.losePower(rng, 1)}
		if n := after.readAt(buf, 0); n < len(buf) || bytes.IndexByte(buf, 0) >= 0 {
			return
		}
	}
	t.Error("a sync that failed has lost nothing in 100 power losses")
}
