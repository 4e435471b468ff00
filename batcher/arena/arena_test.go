package arena

import (
	"bytes"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"scribe/internal/base/buffers"
)

// Segments never overlap while they are in use, and all bytes that were given out become free.
func TestArena(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := New(&buffers.Pool{}, rapid.Int64Range(1<<20, 1<<30).Draw(t, "memory"))
		type held struct {
			Segment
			fill byte
		}
		var (
			live     []held
			out, got int64
		)
		release := func(i int) {
			h := live[i]
			for _, b := range h.Bytes() {
				if b != h.fill {
					t.Fatalf("a segment with %d holds %d", h.fill, b)
				}
			}
			live = slices.Delete(live, i, i+1)
			got += a.Free([]Segment{h.Segment})
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(live) > 0 && rapid.Bool().Draw(t, "release") {
				release(rapid.IntRange(0, len(live)-1).Draw(t, "which"))
				continue
			}
			n := rapid.OneOf(rapid.IntRange(1, 100), rapid.IntRange(1, 300<<10)).Draw(t, "bytes")
			h := held{Segment: a.Allocate(n), fill: byte(len(live) + 1)}
			if len(h.Bytes()) != n {
				t.Fatalf("%d bytes instead of %d", len(h.Bytes()), n)
			}
			for i := range h.Bytes() {
				h.Bytes()[i] = h.fill
			}
			out += int64(n)
			live = append(live, h)
		}
		for len(live) > 0 {
			release(len(live) - 1)
		}
		if out != got {
			t.Fatalf("%d bytes were given out, %d became free", out, got)
		}
	})
}

// Reclaim waits for whoever reads the bytes, and copies them only before that.
func TestBorrowed(t *testing.T) {
	pool := &buffers.Pool{}
	mine := []byte("bytes of the caller")

	early := newBorrowed(mine)
	early.Reclaim(pool)
	if got := early.acquire(); &got[0] == &mine[0] || !bytes.Equal(got, mine) {
		t.Errorf("after the caller has its bytes back: %q", got)
	}
	early.release(pool)

	read := newBorrowed(mine)
	if got := read.acquire(); &got[0] != &mine[0] {
		t.Error("it was copied although the caller waits")
	}
	left := make(chan struct{})
	go func() {
		read.Reclaim(pool)
		close(left)
	}()
	select {
	case <-left:
		t.Error("the caller left while its bytes were read")
	default:
	}
	read.release(pool)
	<-left
	if read.mu.own != nil {
		t.Error("bytes that nobody needs were copied")
	}
}
