// Package layout is the format of a spool's folder: segments with their records and footers, and the state file. It encodes and
// decodes values, and its only I/O is through an io.ReaderAt. docs/format/spool.md describes the bytes.
package layout

import (
	"encoding/binary"
	"errors"
	"fmt"
)

var (
	// ErrDamaged says that bytes are not what was written.
	ErrDamaged = errors.New("damaged")
	// ErrNoFooter says that a segment has no footer at its end: it was not sealed, or the end of its file is damaged.
	ErrNoFooter = fmt.Errorf("%w: no footer ends here", ErrDamaged)
	// ErrVersion says that bytes were written by a newer version than this program knows.
	ErrVersion = errors.New("written by a newer version of the program")
)

const (
	// Version is the version of every structure that this package writes, but for those of segments with encrypted records.
	Version = 1
	// VersionEncrypted is that of headers and footers of segments that may have encrypted records, so that a program that does not know them
	// refuses the folder instead of taking them for damaged.
	VersionEncrypted = 2
)

// appendVersion appends the beginning of a structure: its magic and the version.
func appendVersion(dst []byte, magic string, version uint32) []byte {
	return binary.LittleEndian.AppendUint32(append(dst, magic...), version)
}

// segmentVersion returns the version of a segment's header and footer.
func segmentVersion(encrypted bool) uint32 {
	if encrypted {
		return VersionEncrypted
	}
	return Version
}

// appendFixed appends a value of fixed size: an integer, or a struct of such values. Its blank fields are zeros.
func appendFixed(dst []byte, v any) []byte {
	out, _ := binary.Append(dst, binary.LittleEndian, v) // fails only for values of variable size
	return out
}

// parseFixed reads what appendFixed wrote. b has the size of the value that v points to.
func parseFixed(b []byte, v any) {
	_, _ = binary.Decode(b, binary.LittleEndian, v) // fails only for values of another size
}
