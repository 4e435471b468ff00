package sequenced

import (
	"errors"
	"fmt"
)

var (
	// ErrCorrupt is damage, or bytes that no writer of the format produces.
	ErrCorrupt = errors.New("sequenced: damaged record")
	// ErrVersion is a record of a newer version. It is not damage: a newer build reads it.
	ErrVersion = errors.New("sequenced: version")
)

func corruptRecord(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}
