package pointer

import (
	"errors"
	"fmt"
)

var (
	// ErrCorrupt is damage, or bytes that no writer of the format produces.
	ErrCorrupt = errors.New("pointer: damaged pointer")
	// ErrVersion is a pointer of a newer version. It is not damage: a newer build reads it.
	ErrVersion = errors.New("pointer: version")
	// ErrInvalid is an argument that the format cannot hold or forbids.
	ErrInvalid = errors.New("pointer: invalid")
)

// corruptPointer returns an [ErrCorrupt] of a part, for example "checksum" or "block length", at an offset in the encoded pointer.
func corruptPointer(what string, offset int, format string, args ...any) error {
	return fmt.Errorf("%w: %s at byte %d: %s", ErrCorrupt, what, offset, fmt.Sprintf(format, args...))
}

// invalidArgument returns an [ErrInvalid] of an argument, for example a "blob id".
func invalidArgument(what, value, reason string) error {
	const limit = 80 // errors travel to logs and over RPCs
	if len(value) > limit {
		value = value[:limit] + "..."
	}
	return fmt.Errorf("%w %s %q: %s", ErrInvalid, what, value, reason)
}
