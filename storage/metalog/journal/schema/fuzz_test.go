package schema

import (
	"bytes"
	"errors"
	"testing"
)

// isKnown reports whether an error of a decoder is one that callers can branch on.
func isKnown(err error) bool { return errors.Is(err, ErrCorrupt) || errors.Is(err, ErrVersion) }

// sealIf makes the checksum of fuzzed bytes valid, so that the fuzzer gets behind it.
func sealIf(seal bool, b []byte) []byte {
	if seal {
		return sealRecord(bytes.Clone(b), 0)
	}
	return b
}

func FuzzParseHead(f *testing.F) {
	b, _ := AppendHead(nil, Head{Term: 3, Seq: 9, Snapshot: 4, Leader: "http://a", Owner: someID})
	f.Add(true, b[:len(b)-crcLen])
	f.Add(false, b)
	b, _ = AppendHead(nil, Head{Term: 3, Seq: 9, Detached: "n1"})
	f.Add(true, b[:len(b)-crcLen])
	f.Fuzz(func(t *testing.T, seal bool, b []byte) {
		b = sealIf(seal, b)
		h, err := ParseHead(b)
		if err != nil {
			if !isKnown(err) {
				t.Fatal(err)
			}
			return
		}
		if again, err := AppendHead(nil, h); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%x is encoded as %x, %v", b, again, err)
		}
	})
}

func FuzzDecodeEntry(f *testing.F) {
	for _, payload := range []string{"a", string(make([]byte, 1000))} {
		b := encode(f, Entry{Seq: 5, Term: 2, ID: someID, Before: someChain, Time: 7, Payload: []byte(payload)})
		f.Add(true, b[:len(b)-crcLen])
		f.Add(false, b)
	}
	d, err := NewDecoder()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, seal bool, b []byte) {
		b = sealIf(seal, b)
		e, err := d.Decode(b)
		if err != nil {
			if !isKnown(err) {
				t.Fatal(err)
			}
			return
		}
		peeked, err := PeekEntry(b)
		if err != nil || peeked.Seq != e.Seq || peeked.ID != e.ID || len(e.Payload) > MaxPayload {
			t.Fatalf("%+v, peeked %+v, %v", e, peeked, err)
		}
		// The same payload may be compressed in many ways, so only its meaning comes back.
		again, err := d.Decode(encode(t, e))
		if err != nil || !bytes.Equal(again.Payload, e.Payload) || again.Before != e.Before {
			t.Fatalf("%+v came back as %+v, %v", e, again, err)
		}
	})
}

func FuzzParseStored(f *testing.F) {
	b, _ := AppendStoredParts(nil, Parts{Try: someID, Size: 5_000_000})
	f.Add(true, b[1:len(b)-crcLen])
	f.Add(false, AppendStoredEntry(nil, []byte("entry")))
	f.Fuzz(func(t *testing.T, seal bool, b []byte) {
		if seal {
			b = append([]byte{storedParts}, sealIf(true, b)...)
		}
		entry, p, err := ParseStored(b)
		if err != nil {
			if !isKnown(err) {
				t.Fatal(err)
			}
			return
		}
		if entry == nil && (p.Count() < 1 || p.Count() > maxParts) {
			t.Fatalf("%+v", p)
		}
	})
}
