package entropy

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

// draw returns what a source gives through each of its methods.
func draw(s *Source) string {
	b, list := make([]byte, 13), []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	s.Read(b)
	s.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return fmt.Sprint(s.Uint64(), s.Float64(), s.IntN(1000), s.Duration(time.Hour), s.Text(), hex.EncodeToString(b), list)
}

// What a source gives follows from its seed and its name, and not from who else draws.
func TestSeeded(t *testing.T) {
	want := draw(NewSeeded(1, "node").Named("blobs"))
	other := NewSeeded(1, "node")
	draw(other)
	if got := draw(other.Named("blobs")); got != want {
		t.Errorf("drawn %s, want %s", got, want)
	}
	for name, s := range map[string]*Source{
		"another seed": NewSeeded(2, "node").Named("blobs"), "another process": NewSeeded(1, "node2").Named("blobs"),
		"another name": NewSeeded(1, "node").Named("jitter"), "no name": NewSeeded(1, "node"), "the machine": nil, "the zero source": {},
	} {
		if draw(s) == want {
			t.Errorf("%s gives the same", name)
		}
	}
}

// The machine's sources never repeat, and names do not make them repeat.
func TestMachine(t *testing.T) {
	for name, s := range map[string]*Source{"nil": nil, "zero": {}} {
		if a, b := draw(s.Named("a")), draw(s.Named("a")); a == b {
			t.Errorf("the %s source gives %s twice", name, a)
		}
	}
}

func TestRanges(t *testing.T) {
	for name, s := range map[string]*Source{"machine": nil, "seeded": NewSeeded(1, "")} {
		for range 1000 {
			if f, n, d := s.Float64(), s.IntN(3), s.Duration(3); f < 0 || f >= 1 || n < 0 || n >= 3 || d < 0 || d >= 3 {
				t.Fatalf("%s: drawn %v, %d, %v", name, f, n, d)
			}
		}
		b := make([]byte, 100)
		if s.Read(b); bytes.Count(b, []byte{0}) > 20 {
			t.Errorf("%s: bytes are not filled: %v", name, b)
		}
		if text := s.Text(); len(text) != 26 || text == s.Text() {
			t.Errorf("%s: text %q", name, text)
		}
	}
}

func TestFromSource(t *testing.T) {
	if s := FromSource(nil); s != nil {
		t.Errorf("no source became %v", s)
	}
	own := NewSeeded(1, "")
	if FromSource(own) != own {
		t.Error("a Source became another one")
	}
	of := func() *Source { return FromSource(rand.NewPCG(1, 2)) }
	if a, b := draw(of()), draw(of()); a != b {
		t.Errorf("drawn %s and %s of equal sources", a, b)
	}
	s := of()
	if s.Named("a") != s {
		t.Error("a source without a seed has a named one")
	}
}

// Goroutines that draw at once get different numbers (with -race: without a race).
func TestConcurrent(t *testing.T) {
	s := NewSeeded(1, "")
	var (
		mu      sync.Mutex
		all     []uint64
		drawing sync.WaitGroup
	)
	for range 4 {
		drawing.Go(func() {
			for range 1000 {
				n := s.Uint64()
				mu.Lock()
				all = append(all, n)
				mu.Unlock()
			}
		})
	}
	drawing.Wait()
	slices.Sort(all)
	if n := len(slices.Compact(all)); n != 4000 {
		t.Errorf("%d numbers of 4000 are different", n)
	}
}
