package transcode

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNothingIsReadBeyondTheFrame reads a frame that ends where a read beyond it ends the process: keys are compared, and texts copied, in
// pieces that may be longer than they are.
func TestNothingIsReadBeyondTheFrame(t *testing.T) {
	page := os.Getpagesize()
	memory, err := unix.Mmap(-1, 0, 3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Munmap(memory); err != nil {
			t.Error(err)
		}
	}()
	for _, guard := range [][]byte{memory[:page], memory[2*page:]} {
		if err := unix.Mprotect(guard, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	s := edgeSchema()
	s.Fields = append(s.Fields, nullable("a_key_that_is_long", tString))
	tr, err := New(Spec{Schema: s, Columns: append(names(s), "_error", "_rest")})
	if err != nil {
		t.Fatal(err)
	}
	row := `{"a_key_that_is_long":"text","i":12,"s":"a","z":[1,{"q":"\n"}],"f":1.5,"l":[1,2,3]}`
	withBoth(func(scanner string) {
		for n := range len(row) + 1 {
			// The first row teaches the order of the keys, the second ends the frame.
			frame := frameOf(t, row, row[:n])
			for _, at := range []int{page, 2*page - len(frame)} {
				copy(memory[at:], frame)
				batch, _, err := tr.Transcode(memory[at:at+len(frame)], nil)
				if err != nil {
					t.Fatal(err)
				}
				if batch.Column(0).ValueStr(1) == "12" != (n == len(row)) {
					t.Errorf("%s scanner: %d bytes of the row are\n%s", scanner, n, lines(batch))
				}
				batch.Release()
			}
		}
	})
}
