package schema

import (
	"encoding/binary"
	"fmt"

	"scribe/internal/format/pointer/field"
)

// MaxPart is the largest part of an entry in bytes. An engine whose values are bounded stores a larger entry as parts, and a list of
// them in its place.
const MaxPart = 1 << 20

// maxParts bounds the parts of an entry.
const maxParts = (MaxEntry + MaxPart - 1) / MaxPart

// The first byte of what is stored in the place of an entry. The numbers are persisted.
const (
	storedEntry = 1
	storedParts = 2
)

// Parts says how an entry is stored as parts. All of them but the last have MaxPart bytes.
type Parts struct {
	// Try is drawn for each attempt to store the entry: the keys of its parts contain it.
	Try ID
	// Size is the length of the entry in bytes.
	Size int
}

// Count returns the number of parts.
func (p Parts) Count() int { return (p.Size + MaxPart - 1) / MaxPart }

// AppendStoredEntry appends what is stored in the place of an entry that is not divided.
func AppendStoredEntry(b, entry []byte) []byte { return append(append(b, storedEntry), entry...) }

// AppendStoredParts appends what is stored in the place of an entry that is stored as parts. The error is ErrInvalid.
func AppendStoredParts(b []byte, p Parts) ([]byte, error) {
	if p.Size <= 0 || p.Size > MaxEntry {
		return b, fmt.Errorf("%w: parts of an entry of %d bytes, the limit is %d", ErrInvalid, p.Size, MaxEntry)
	}
	b = append(b, storedParts)
	start := len(b)
	b = append(b, Version)
	b = append(b, p.Try[:]...)
	b = binary.AppendUvarint(b, uint64(p.Size))
	return sealRecord(b, start), nil
}

// ParseStored decodes what is stored in the place of an entry: the entry itself, which aliases b, or with a nil entry its parts. It
// does not check the entry. The errors are ErrCorrupt and ErrVersion.
func ParseStored(b []byte) (entry []byte, p Parts, err error) {
	if len(b) < 2 {
		return nil, Parts{}, corrupt("entry: cut after %d bytes", len(b))
	}
	switch b[0] {
	case storedEntry:
		return b[1:], Parts{}, nil
	case storedParts:
		p, err := parseParts(b[1:])
		return nil, p, err
	default:
		return nil, Parts{}, fmt.Errorf("%w: entry of kind %d, this build reads %d and %d: upgrade it", ErrVersion, b[0], storedEntry, storedParts)
	}
}

func parseParts(b []byte) (Parts, error) {
	body, err := openRecord(b, 64, Version, "list of parts")
	if err != nil {
		return Parts{}, err
	}
	var p Parts
	r := field.NewReader(body, 1)
	copy(p.Try[:], r.Take("try", uint64(len(p.Try))))
	p.Size = int(r.Uvarint("size", MaxEntry))
	r.End()
	if e := r.Err(); e != nil {
		return Parts{}, corrupt("list of parts: %v", e)
	}
	if p.Count() < 1 || p.Count() > maxParts {
		return Parts{}, corrupt("list of parts: %d bytes", p.Size)
	}
	return p, nil
}
