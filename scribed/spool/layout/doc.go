// Package layout is the format of a spool's folder: segments with their records and footers, and the state file. It turns values into
// bytes and back, and does no other I/O than through an io.ReaderAt. docs/format/spool.md describes the bytes.
//
// # Identity of a record
//
// A [Position] names a record for as long as it is held: the segment and the offset at which it was first written. It stands in the
// record's header. A segment that is rewritten keeps the positions of its records, and one that takes over the records of several
// segments keeps them too, so what the state says by position stays true whatever file the record is in.
package layout

import (
	"errors"
	"fmt"
	"hash/crc32"
)

var (
	// ErrDamaged says that bytes are not what was written.
	ErrDamaged = errors.New("damaged")
	// ErrNoFooter says that a segment ends without a footer: it was not sealed, or the end of its file is damaged.
	ErrNoFooter = fmt.Errorf("%w: no footer ends here", ErrDamaged)
	// ErrVersion says that bytes are of a newer version than this program knows.
	ErrVersion = errors.New("written by a newer version of the program")
)

// Version is the version of every structure of this package that is written.
const Version = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum is the CRC32C of b.
func Checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }
