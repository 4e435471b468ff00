package follow

import (
	"bytes"
	"strings"
	"testing"

	"scribe/internal/base/units"
)

func FuzzDecodePositions(f *testing.F) {
	good, err := encodePositions([]savedPosition{{File: fileID{1, 2}, Path: "/var/log/a.log", Position: 100, Prints: fingerprints{Head: fingerprint{0, 16, 7}, Tail: fingerprint{84, 16, 8}}, Seen: 5}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(positionsHeader + "00000000\n[]"))
	f.Add([]byte("scribe follow positions 2 00000000\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := decodePositions(b)
		if err != nil {
			return
		}
		again, err := encodePositions(list)
		if err != nil {
			t.Fatal(err)
		}
		if twice, err := decodePositions(again); err != nil || len(twice) != len(list) {
			t.Fatalf("%v after a round trip", err)
		}
	})
}

func TestPositionsOfANewerVersion(t *testing.T) {
	if _, err := decodePositions([]byte("scribe follow positions 2 00000000\n[]")); err == nil || !strings.Contains(err.Error(), "version") {
		t.Fatal(err)
	}
}

func TestValidateReportsEveryFault(t *testing.T) {
	c := DefaultConfig()
	c.Paths, c.Category, c.Pattern, c.Multiline, c.Start, c.LongLines, c.MaxOpen, c.Batch = []string{"[", "ok"}, "{nope}", "(", "(", "middle", "keep", 0, units.Bytes(1<<40)
	err := c.Validate()
	if err == nil {
		t.Fatal("taken")
	}
	for _, want := range []string{"Name:", `"["`, "{nope}", "Pattern:", "Multiline:", "Start:", "LongLines:", "MaxOpen:", "Batch:"} {
		if !bytes.Contains([]byte(err.Error()), []byte(want)) {
			t.Errorf("nothing of %s in %v", want, err)
		}
	}
}
