package schema

import (
	"errors"
	"fmt"
)

// Errors of decoding.
var (
	// ErrCorrupt means that bytes are not what was written.
	ErrCorrupt = errors.New("journal: damaged")
	// ErrVersion means that bytes were written by a newer version of the program.
	ErrVersion = errors.New("journal: unknown version")
	// ErrInvalid means that a value is outside the limits of the format, and can't be encoded.
	ErrInvalid = errors.New("journal: not encodable")
)

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}
