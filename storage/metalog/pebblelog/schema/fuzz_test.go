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

// Lists have the oldest version that knows what they change, so that older builds go on until a shard moves.
func TestVersionsOfChanges(t *testing.T) {
	key := AppendStateKey(nil, 7)
	for what, c := range map[string]Change{
		"a shard that moved":  {Kind: ChangeSet, Key: key, Value: AppendState(nil, key, movedState())},
		"a category's mark":   {Kind: ChangeSet, Key: ForwardKey(7), Value: AppendForward(nil, ForwardKey(7), Forward{Version: 1, Time: 1})},
		"a mark that is gone": {Kind: ChangeDelete, Key: ForwardKey(7)},
	} {
		list := AppendChange(someChanges(), c)
		if list[0] != 2 {
			t.Errorf("%s is in a list of version %d", what, list[0])
		}
		ignore := func(Change) error { return nil }
		if err := DecodeChanges(list, ignore); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		list[0] = 1
		if err := DecodeChanges(list, ignore); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s in a list of version 1: %v", what, err)
		}
	}
	if list := someChanges(); list[0] != 1 {
		t.Errorf("a list without shards that moved has version %d", list[0])
	}
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
		"format":                  {Kind: ChangeSet, Key: MetaKey(MetaFormat)},
		"clock":                   {Kind: ChangeSet, Key: MetaKey(MetaClock)},
		"applied":                 {Kind: ChangeSet, Key: MetaKey(MetaApplied)},
		"all meta":                {Kind: ChangeDeleteRange, Key: []byte{byte(KindMeta)}, Value: []byte{byte(KindState)}},
		"unknown kind":            {Kind: ChangeSet, Key: []byte{0x09, 1}},
		"a kind that was skipped": {Kind: ChangeSet, Key: []byte{0x07, 1}},
		"no key":                  {Kind: ChangeDelete},
	} {
		err := DecodeChanges(AppendChange(BeginChanges(nil), c), func(Change) error { return nil })
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
	newer := someChanges()
	newer[0] = ChangesVersion + 1
	if err := DecodeChanges(newer, func(Change) error { return nil }); !errors.Is(err, ErrNewer) {
		t.Errorf("a newer list: %v", err)
	}
}
