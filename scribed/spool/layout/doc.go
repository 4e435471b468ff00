// Package layout is the format of a spool's folder: segments with their records and footers, and the state file. It encodes and
// decodes values, and its only I/O is through an io.ReaderAt. docs/format/spool.md describes the bytes.
package layout

import (
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
