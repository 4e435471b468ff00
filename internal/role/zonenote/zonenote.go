// Package zonenote encodes the annotation of a pointer in the metadata log: the zone map of its payload, and a hash of the
// pointer.
//
// A read proxy learns a zone map from a payload whose position its client names. A client that names a wrong position by mistake
// must not make readers skip payloads that match. So the note has the hash of the pointer, and readers compare it with the
// pointer at that position. Format: docs/format/metalog.md.
package zonenote

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"scribe/columnar/zone"
	"scribe/storage/metalog"
)

// hashLen is the length of the pointer's hash.
const hashLen = 8

// A note must fit an annotation.
var _ [metalog.MaxAnnotation - hashLen - zone.MaxLen]struct{}

// ErrForeign means that a note belongs to another pointer.
var ErrForeign = errors.New("zonenote: the zone map is another pointer's")

// Encode returns the note of a pointer, as encoded in the log or the sequenced log.
func Encode(pointer []byte, m *zone.Map) []byte {
	out := binary.LittleEndian.AppendUint64(make([]byte, 0, 512), hashOf(pointer))
	return m.Append(out)
}

// Decode returns the zone map of a note. Errors are ErrForeign, and those of [zone.Decode].
func Decode(note, pointer []byte) (*zone.Map, error) {
	if len(note) < hashLen {
		return nil, fmt.Errorf("%w: a note of %d bytes", zone.ErrInvalid, len(note))
	}
	if binary.LittleEndian.Uint64(note) != hashOf(pointer) {
		return nil, ErrForeign
	}
	return zone.Decode(note[hashLen:])
}

func hashOf(pointer []byte) uint64 { return xxhash.Sum64(pointer) }
