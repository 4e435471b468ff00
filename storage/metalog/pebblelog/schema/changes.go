package schema

import (
	"encoding/binary"
)

// ChangesVersion is the newest version of the lists of changes that this package writes and reads. A list has the oldest version that
// has everything in it, so that replicas of the former build go on until a shard is removed. Version 2 added stubs.
const ChangesVersion = 2

// ChangeKind is what a change does to a folder. The numbers are persisted.
type ChangeKind byte

// Kinds of changes.
const (
	// ChangeSet sets Key to Value.
	ChangeSet ChangeKind = 1
	// ChangeDelete deletes Key.
	ChangeDelete ChangeKind = 2
	// ChangeDeleteRange deletes the keys from Key to before Value.
	ChangeDeleteRange ChangeKind = 3
)

// Change is one change of a folder's keys.
type Change struct {
	Kind ChangeKind
	// Key is the key, or the first key of a range.
	Key []byte
	// Value is the value, or the key after a range; empty for a deletion.
	Value []byte
}

// maxChangeKey bounds a key in bytes: the longest of this format, and room for later ones.
const maxChangeKey = 64

// BeginChanges begins a list of changes in an empty buffer.
func BeginChanges(dst []byte) []byte { return append(dst[:0], 1) }

// AppendChange appends a change to a list.
func AppendChange(dst []byte, c Change) []byte {
	if len(c.Key) > 0 && Kind(c.Key[0]) == KindStub {
		dst[0] = 2
	}
	dst = append(dst, byte(c.Kind))
	dst = append(binary.AppendUvarint(dst, uint64(len(c.Key))), c.Key...)
	if c.Kind == ChangeDelete {
		return dst
	}
	return append(binary.AppendUvarint(dst, uint64(len(c.Value))), c.Value...)
}

// DecodeChanges calls fn with each change of a list, in order. Keys and values alias list. It returns fn's error as it is, an
// ErrNewer for a list of a newer version, and an ErrCorrupt for what is not a list.
func DecodeChanges(list []byte, fn func(Change) error) error {
	if len(list) == 0 {
		return corruptError("a list of changes without a version")
	}
	version := list[0]
	if version < 1 || version > ChangesVersion {
		return newerError(version)
	}
	for list = list[1:]; len(list) > 0; {
		c, rest, err := decodeChange(list, version)
		if err == nil {
			err = fn(c)
		}
		if err != nil {
			return err
		}
		list = rest
	}
	return nil
}

// decodeChange decodes the first change of a list.
func decodeChange(list []byte, version byte) (c Change, rest []byte, err error) {
	c.Kind = ChangeKind(list[0])
	if c.Kind < ChangeSet || c.Kind > ChangeDeleteRange {
		return c, nil, corruptError("a change of kind %d", c.Kind)
	}
	if c.Key, rest, err = cutBytes(list[1:]); err != nil {
		return c, nil, err
	}
	if c.Kind != ChangeDelete {
		if c.Value, rest, err = cutBytes(rest); err != nil {
			return c, nil, err
		}
	}
	return c, rest, c.check(version)
}

// check returns an error for a change of keys that no list may change: those that belong to each folder itself.
func (c Change) check(version byte) error {
	if len(c.Key) < 1 || len(c.Key) > maxChangeKey {
		return corruptError("a change of a key of %d bytes", len(c.Key))
	}
	kind := Kind(c.Key[0])
	shared := kind == KindMeta && c.Kind == ChangeSet && len(c.Key) == MetaKeyLen && Meta(c.Key[1]) == MetaBoundary
	last := KindAnnotation
	if version >= 2 {
		last = KindStub
	}
	if kind < KindMeta || kind > last || kind == KindMeta && !shared {
		return corruptError("a change of key % x", c.Key)
	}
	return nil
}

// cutBytes cuts bytes behind their length off a list.
func cutBytes(list []byte) (b, rest []byte, err error) {
	n, used := binary.Uvarint(list)
	if used <= 0 || n > uint64(len(list)-used) {
		return nil, nil, corruptError("a change that ends early")
	}
	end := used + int(n) //nolint:gosec // at most the length of list
	return list[used:end:end], list[end:], nil
}

// Applied is how far a replica has applied its journal.
type Applied struct {
	// Seq is the number of the last applied entry, Time its time in Unix µs.
	Seq  uint64
	Time int64
	// Chain is the journal's chain after it.
	Chain [16]byte
}

// appliedLen is the length in bytes of the value of MetaApplied.
const appliedLen = 4 + 8 + 8 + 16

// AppendApplied appends the value of MetaApplied.
func AppendApplied(dst, key []byte, a Applied) []byte {
	n := len(dst)
	dst = binary.LittleEndian.AppendUint64(append(dst, 0, 0, 0, 0), a.Seq)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(a.Time))
	dst = append(dst, a.Chain[:]...)
	appendChecksum(dst[n:], key)
	return dst
}

// DecodeApplied decodes the value of MetaApplied.
func DecodeApplied(key, value []byte) (Applied, error) {
	if err := verifyValue(key, value, appliedLen, "an applied position"); err != nil {
		return Applied{}, err
	}
	a := Applied{Seq: binary.LittleEndian.Uint64(value[4:]), Time: int64(binary.LittleEndian.Uint64(value[12:]))}
	copy(a.Chain[:], value[20:])
	return a, nil
}
