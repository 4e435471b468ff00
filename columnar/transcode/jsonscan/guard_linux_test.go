package jsonscan

import (
	"bytes"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// guarded returns memory of some pages with a page before and a page after it that nobody may touch.
func guarded(t *testing.T, pages int) []byte {
	t.Helper()
	size := os.Getpagesize()
	all, err := unix.Mmap(-1, 0, (pages+2)*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(all); err != nil {
			t.Error(err)
		}
	})
	for _, page := range [][]byte{all[:size], all[(pages+1)*size:]} {
		if err := unix.Mprotect(page, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	return all[size : (pages+1)*size]
}

// TestNothingIsReadBeyondTheBytes runs everything over bytes that end, or begin, where a read beyond them ends the process.
func TestNothingIsReadBeyondTheBytes(t *testing.T) {
	memory := guarded(t, 1)
	withBoth(t, func(*testing.T) {
		var x Index
		for n := range 300 {
			for _, b := range [][]byte{memory[:n:n], memory[len(memory)-n:]} {
				for _, fill := range []string{"x", `"`, `\`, "[", `{"a":1,`, "1e", "1", "123.5"} {
					copy(b, bytes.Repeat([]byte(fill), n))
					x.Reset(b)
					x.StringEnd(0, n)
					x.ASCII(0, n)
					if n > 0 {
						x.Skip(0, n, 0)
						ShortInteger(b, 0, n)
						ShortDecimal(b, 0, n)
						Scalar(b)
					}
					for _, needle := range []string{"x", "\\\\\\", "1,{\"", "e1e"} {
						Search(b, []byte(needle))
						if last := len(needle) - 1; last > 0 {
							SearchPair(b, []byte(needle), last-1, last)
							SearchPair(b, []byte(needle), 0, 1)
						}
					}
					SearchExponent(b)
					_, _ = AppendUnescaped(nil, b)
				}
			}
		}
	})
}

// TestIndexWritesWhatItOwns gives the assembly no more blocks than it may write.
func TestIndexWritesWhatItOwns(t *testing.T) {
	text := bytes.Repeat([]byte(`{"a":1,`), 100)
	for n := range len(text) {
		x := Index{blocks: make([]Block, (n+blockLen-1)/blockLen, (n+blockLen-1)/blockLen+1)}
		beyond := &x.blocks[:cap(x.blocks)][cap(x.blocks)-1]
		*beyond = Block{Special: 0xA5A5}
		x.Reset(text[:n])
		if *beyond != (Block{Special: 0xA5A5}) {
			t.Fatalf("an index of %d bytes writes behind its blocks", n)
		}
	}
}
