package schema

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"testing"
)

// someChanges is a list with each kind of change.
func someChanges() []byte {
	list := BeginChanges(nil)
	list = AppendChange(list, Change{Kind: ChangeSet, Key: AppendStateKey(nil, 7), Value: []byte("value")})
	list = AppendChange(list, Change{Kind: ChangeDelete, Key: RetiredKey(5)})
	low, high := CategoryBounds(KindRecord, 9)
	return AppendChange(list, Change{Kind: ChangeDeleteRange, Key: low, Value: high})
}

// FuzzDecodeChanges checks that what is decoded is encoded as before, and that errors are those that callers branch on.
func FuzzDecodeChanges(f *testing.F) {
	f.Add(someChanges())
	f.Fuzz(func(t *testing.T, list []byte) {
		n, again := 0, BeginChanges(nil)
		err := DecodeChanges(list, func(c Change) error {
			n++
			again = AppendChange(again, c)
			return nil
		})
		switch {
		case err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewer):
			t.Fatal(err)
		case err == nil && len(again) > len(list):
			t.Fatalf("%x is encoded as %x", list, again)
		case n > len(list):
			t.Fatalf("%d changes in %d bytes", n, len(list))
		}
	})
}

// FuzzDecodeSnapshot is the same for the list of a snapshot, whose checksum is made valid.
func FuzzDecodeSnapshot(f *testing.F) {
	f.Add(AppendSnapshot(nil, Snapshot{Applied: Applied{Seq: 3}, Files: []SnapshotFile{{Name: "a", Data: []byte("x"), Size: 1}, {Name: "b.sst", ID: [16]byte{1}, Size: 9}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n := len(b) - 4; n >= 0 {
			b = bytes.Clone(b)
			binary.LittleEndian.PutUint32(b[n:], crc32.Checksum(b[:n], castagnoli))
		}
		s, err := DecodeSnapshot(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewer) {
				t.Fatal(err)
			}
			return
		}
		if again := AppendSnapshot(nil, s); len(again) > len(b) {
			t.Fatalf("%x is encoded as %x", b, again)
		}
	})
}

// Keys that belong to each folder itself are in no list, nor are kinds that this build does not know.
func TestChangesOfForeignKeys(t *testing.T) {
	for what, c := range map[string]Change{
		"format":       {Kind: ChangeSet, Key: MetaKey(MetaFormat)},
		"clock":        {Kind: ChangeSet, Key: MetaKey(MetaClock)},
		"applied":      {Kind: ChangeSet, Key: MetaKey(MetaApplied)},
		"all meta":     {Kind: ChangeDeleteRange, Key: []byte{byte(KindMeta)}, Value: []byte{byte(KindState)}},
		"unknown kind": {Kind: ChangeSet, Key: []byte{0x08, 1}},
		"no key":       {Kind: ChangeDelete},
	} {
		err := DecodeChanges(AppendChange(BeginChanges(nil), c), func(Change) error { return nil })
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// A list with stubs is refused by builds of before, as a newer one. Without, it is of the version that these read.
	stub := AppendChange(BeginChanges(nil), Change{Kind: ChangeSet, Key: AppendStubKey(nil, 7), Value: []byte{1}})
	if err := DecodeChanges(stub, func(Change) error { return nil }); err != nil || stub[0] != 2 || someChanges()[0] != 1 {
		t.Errorf("a list with a stub has version %d, one without %d: %v", stub[0], someChanges()[0], err)
	}
	stub[0] = 1
	if err := DecodeChanges(stub, func(Change) error { return nil }); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a stub in a list of before: %v", err)
	}
	newer := someChanges()
	newer[0] = ChangesVersion + 1
	if err := DecodeChanges(newer, func(Change) error { return nil }); !errors.Is(err, ErrNewer) {
		t.Errorf("a newer list: %v", err)
	}
}
