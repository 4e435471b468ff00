package schema

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"scribe/internal/format/record"
)

var (
	someID    = ID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	otherID   = ID{0xff, 1}
	someChain = Chain{0xaa, 0xbb, 15: 0xcc}
)

func encode(t testing.TB, e Entry) []byte {
	t.Helper()
	c, err := NewEncoder()
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func decode(t testing.TB, b []byte) (Entry, error) {
	t.Helper()
	d, err := NewDecoder()
	if err != nil {
		t.Fatal(err)
	}
	return d.Decode(b)
}

// TestGolden pins the bytes of version 1. A change of the file is a change of the format.
func TestGolden(t *testing.T) {
	datadriven.RunTest(t, "testdata/v1.txt", func(t *testing.T, d *datadriven.TestData) string {
		var h Head
		e := Entry{Payload: []byte(d.Input)}
		var size int
		for _, a := range d.CmdArgs {
			if dst := map[string]any{
				"term": &h.Term, "seq": &h.Seq, "beat": &h.Beat, "time": &h.Time, "bound": &h.Bound, "snapshot": &h.Snapshot, "leader": &h.Leader, "detached": &h.Detached, "size": &size,
			}[a.Key]; dst != nil {
				d.ScanArgs(t, a.Key, dst)
			}
		}
		if d.HasArg("ids") {
			h.Owner, h.Entry, h.Chain = someID, otherID, someChain
		}
		e.Seq, e.Term, e.Time, e.ID, e.Before = h.Seq, h.Term, h.Time, h.Entry, h.Chain
		switch d.Cmd {
		case "head":
			return goldenHead(t, h)
		case "entry":
			return goldenEntry(t, e)
		case "compressed":
			return readGolden(t, d.Input)
		case "stored":
			b := AppendStoredEntry(nil, e.Payload)
			if entry, _, err := ParseStored(b); err != nil || !bytes.Equal(entry, e.Payload) {
				t.Fatalf("%q, %v", entry, err)
			}
			return fmt.Sprintf("%x\n", b)
		default:
			b, err := AppendStoredParts(nil, Parts{Try: someID, Size: size})
			if err != nil {
				t.Fatal(err)
			}
			entry, p, err := ParseStored(b)
			if entry != nil || err != nil || p != (Parts{Try: someID, Size: size}) {
				t.Fatalf("%+v, %v", p, err)
			}
			return fmt.Sprintf("%x\n%d parts\n", b, p.Count())
		}
	})
}

func goldenHead(t *testing.T, h Head) string {
	b, err := AppendHead(nil, h)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseHead(b)
	if err != nil || got != h {
		t.Fatalf("parsed as %+v, %v", got, err)
	}
	return fmt.Sprintf("%x\n", b)
}

func goldenEntry(t *testing.T, e Entry) string {
	b := encode(t, e)
	got, err := decode(t, b)
	if err != nil || !reflect.DeepEqual(got, e) {
		t.Fatalf("decoded as %+v, %v", got, err)
	}
	return fmt.Sprintf("%x\nchain %v\n", b, ChainAfter(b))
}

func readGolden(t *testing.T, text string) string {
	b, err := hex.DecodeString(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	e, err := decode(t, b)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("seq %d term %d id %v before %v time %d\n%s\nchain %v\n", e.Seq, e.Term, e.ID, e.Before, e.Time, e.Payload, ChainAfter(b))
}

func TestRoundTrips(t *testing.T) {
	encoder, err := NewEncoder()
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		h := Head{
			Term: rapid.Uint64().Draw(t, "term"), Seq: rapid.Uint64().Draw(t, "seq"), Beat: rapid.Uint64().Draw(t, "beat"),
			Leader: rapid.StringN(0, MaxURL/4, MaxURL).Draw(t, "leader"), Owner: someID, Entry: otherID, Chain: someChain,
			Time: rapid.Int64Min(0).Draw(t, "time"), Bound: rapid.Int64Min(0).Draw(t, "bound"),
		}
		h.Snapshot = rapid.Uint64Max(h.Seq).Draw(t, "snapshot")
		h.Detached = rapid.StringN(0, MaxDetached/4, MaxDetached).Draw(t, "detached")
		b, err := AppendHead(nil, h)
		if err != nil || len(b) > MaxHead {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
		if got, err := ParseHead(b); err != nil || got != h {
			t.Fatalf("%+v, %v", got, err)
		}
		e := Entry{Seq: max(h.Seq, 1), Term: max(h.Term, 1), ID: someID, Before: someChain, Time: h.Time}
		e.Payload = bytes.Repeat(rapid.SliceOfN(rapid.Byte(), 1, 200).Draw(t, "payload"), rapid.IntRange(1, 50).Draw(t, "times"))
		b, err = encoder.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		d, _ := NewDecoder()
		if got, err := d.Decode(b); err != nil || !reflect.DeepEqual(got, e) {
			t.Fatalf("%+v, %v", got, err)
		}
		e.Payload = nil
		if got, err := PeekEntry(b); err != nil || !reflect.DeepEqual(got, e) {
			t.Fatalf("peeked %+v, %v", got, err)
		}
	})
}

// TestEveryChange: bytes that were changed, cut or added to are damage.
func TestEveryChange(t *testing.T) {
	head, err := AppendHead(nil, Head{Term: 1, Seq: 2, Owner: someID, Leader: "http://a"})
	if err != nil {
		t.Fatal(err)
	}
	ended, err := AppendHead(nil, Head{Term: 1, Seq: 2, Detached: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	parts, err := AppendStoredParts(nil, Parts{Try: someID, Size: 5_000_000})
	if err != nil {
		t.Fatal(err)
	}
	entry := encode(t, Entry{Seq: 2, Term: 1, ID: someID, Payload: []byte(strings.Repeat("abc", 50))})
	for what, c := range map[string]struct {
		good  []byte
		parse func(b []byte) error
	}{
		"head":  {head, func(b []byte) error { _, err := ParseHead(b); return err }},
		"ended": {ended, func(b []byte) error { _, err := ParseHead(b); return err }},
		"entry": {entry, func(b []byte) error { _, err := decode(t, b); return err }},
		"parts": {parts[1:], func(b []byte) error { _, err := parseParts(b); return err }},
	} {
		if err := c.parse(c.good); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for i := range c.good {
			for bit := range 8 {
				b := bytes.Clone(c.good)
				b[i] ^= 1 << bit
				if err := c.parse(b); !errors.Is(err, ErrCorrupt) {
					t.Fatalf("%s: bit %d of byte %d: %v", what, bit, i, err)
				}
			}
			if err := c.parse(c.good[:i]); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%s: cut after %d bytes: %v", what, i, err)
			}
		}
		if err := c.parse(append(bytes.Clone(c.good), 0)); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%s: one byte more: %v", what, err)
		}
	}
}

// resealed returns a record with a changed body and a valid checksum, as a faulty or newer writer would have made it.
func resealed(good []byte, change func(body []byte) []byte) []byte {
	return sealRecord(change(bytes.Clone(good[:len(good)-crcLen])), 0)
}

func TestVersions(t *testing.T) {
	head, _ := AppendHead(nil, Head{Term: 1})
	entry := encode(t, Entry{Seq: 2, Term: 1, Payload: []byte("a")})
	for version, want := range map[byte]error{0: ErrCorrupt, Version: nil, DetachedVersion: ErrCorrupt, DetachedVersion + 1: ErrVersion, 255: ErrVersion} {
		set := func(b []byte) []byte { b[0] = version; return b }
		if _, err := ParseHead(resealed(head, set)); !errors.Is(err, want) {
			t.Errorf("head of version %d: %v", version, err)
		}
	}
	for version, want := range map[byte]error{0: ErrCorrupt, Version: nil, Version + 1: ErrVersion, 255: ErrVersion} {
		set := func(b []byte) []byte { b[0] = version; return b }
		if _, err := decode(t, resealed(entry, set)); !errors.Is(err, want) {
			t.Errorf("entry of version %d: %v", version, err)
		}
	}
	if _, _, err := ParseStored([]byte{3, 1, 2, 3}); !errors.Is(err, ErrVersion) {
		t.Errorf("stored entry of an unknown kind: %v", err)
	}
}

// TestBounds: what no writer would write is refused before memory is spent, with a valid checksum too.
func TestBounds(t *testing.T) {
	long := func(length uint64, how Compression, stored []byte) []byte {
		b := []byte{Version, byte(how), 2, 1}
		b = append(append(b, someID[:]...), someChain[:]...)
		b = binary.AppendUvarint(append(b, 0), length)
		return sealRecord(append(b, stored...), 0)
	}
	bomb := encode(t, Entry{Seq: 2, Term: 1, Payload: make([]byte, 1<<20)})
	frame := bomb[len(bomb)-crcLen-bytesOfFrame(t, bomb) : len(bomb)-crcLen]
	for what, b := range map[string][]byte{
		"length above the limit":    long(MaxPayload+1, CompressionZstd, frame),
		"longer than it says":       long(1<<10, CompressionZstd, frame),
		"shorter than it says":      long(2<<20, CompressionZstd, frame),
		"not compressed, shorter":   long(5, CompressionNone, []byte("abcd")),
		"not a frame":               long(5, CompressionZstd, []byte("abcd")),
		"unknown compression":       long(4, 7, []byte("abcd")),
		"no payload":                long(0, CompressionNone, nil),
		"larger than an entry":      make([]byte, MaxEntry+1),
		"number 0":                  resealed(long(4, CompressionNone, []byte("abcd")), func(b []byte) []byte { b[2] = 0; return b }),
		"a number in a longer form": resealed(long(4, CompressionNone, []byte("abcd")), func(b []byte) []byte { return append(append(b[:2:2], 0x82, 0), b[3:]...) }),
	} {
		if e, err := decode(t, b); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %+v, %v", what, e, err)
		}
	}
	if got, err := decode(t, long(1<<20, CompressionZstd, frame)); err != nil || len(got.Payload) != 1<<20 {
		t.Errorf("the control: %v", err)
	}
}

// bytesOfFrame returns the length of the compressed payload of an entry.
func bytesOfFrame(t *testing.T, entry []byte) int {
	t.Helper()
	_, _, stored, _, err := parseEntry(entry)
	if err != nil {
		t.Fatal(err)
	}
	return len(stored)
}

func TestInvalid(t *testing.T) {
	c, err := NewEncoder()
	if err != nil {
		t.Fatal(err)
	}
	for what, e := range map[string]Entry{
		"no payload":   {Seq: 1, Term: 1},
		"long payload": {Seq: 1, Term: 1, Payload: make([]byte, MaxPayload+1)},
		"no number":    {Term: 1, Payload: []byte("a")},
		"no term":      {Seq: 1, Payload: []byte("a")},
		"time":         {Seq: 1, Term: 1, Payload: []byte("a"), Time: -1},
	} {
		if _, err := c.Encode(e); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, h := range map[string]Head{"leader": {Leader: strings.Repeat("a", MaxURL+1)}, "time": {Time: -1}, "bound": {Bound: -1}, "node": {Detached: strings.Repeat("a", MaxDetached+1)}} {
		if _, err := AppendHead(nil, h); !errors.Is(err, ErrInvalid) {
			t.Errorf("head with a wrong %s: %v", what, err)
		}
	}
	for _, size := range []int{0, -1, MaxEntry + 1} {
		if _, err := AppendStoredParts(nil, Parts{Size: size}); !errors.Is(err, ErrInvalid) {
			t.Errorf("parts of %d bytes: %v", size, err)
		}
	}
}

// TestLargest: a payload of the limit that does not compress is within all limits, and is divided into as many parts as allowed.
func TestLargest(t *testing.T) {
	payload := make([]byte, MaxPayload)
	state := uint64(1)
	for i := 0; i < len(payload); i += 8 {
		state = state*6364136223846793005 + 1442695040888963407
		binary.LittleEndian.PutUint64(payload[i:], state^state>>29)
	}
	b := encode(t, Entry{Seq: 1<<64 - 1, Term: 1<<64 - 1, ID: someID, Before: someChain, Time: 1<<63 - 1, Payload: payload})
	got, err := decode(t, b)
	if err != nil || !bytes.Equal(got.Payload, payload) {
		t.Fatalf("%d bytes: %v", len(b), err)
	}
	if n := (Parts{Size: len(b)}).Count(); n > maxParts || n < MaxPayload/MaxPart {
		t.Fatalf("%d parts", n)
	}
	if record.CRC([]byte("123456789")) != 0xe3069283 {
		t.Fatal("the checksum is not CRC32C")
	}
}
