package pointer

import (
	"errors"
	"fmt"
)

var (
	// ErrCorrupt matches every [CorruptError].
	ErrCorrupt = errors.New("pointer: damaged pointer")
	// ErrVersion matches every [VersionError].
	ErrVersion = errors.New("pointer: unsupported version")
	// ErrInvalid matches every [InvalidError].
	ErrInvalid = errors.New("pointer: invalid")
)

// CorruptError is damage, or bytes that no writer of the format produces. It matches [ErrCorrupt].
type CorruptError struct {
	// What names the damaged part, for example "checksum" or "block length".
	What string
	// Reason describes the damage.
	Reason string
	// Offset is the offset of the part in bytes from the start of the encoded pointer.
	Offset int
}

// Error names the part and the offset.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("pointer: damaged pointer: %s at byte %d: %s", e.What, e.Offset, e.Reason)
}

// Is reports whether target is [ErrCorrupt].
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// VersionError is a pointer of a newer version. It matches [ErrVersion]. It is not damage: a newer build reads it.
type VersionError struct {
	Version   uint8 // of the pointer
	Supported uint8 // the newest that this build reads
}

// Error names the version and a remedy.
func (e *VersionError) Error() string {
	return fmt.Sprintf("pointer: version %d is newer than version %d, the newest that this build reads: upgrade the reader",
		e.Version, e.Supported)
}

// Is reports whether target is [ErrVersion].
func (e *VersionError) Is(target error) bool { return target == ErrVersion }

// InvalidError is an argument that the format cannot hold or forbids. It matches [ErrInvalid].
type InvalidError struct {
	What   string // for example "blob id"
	Value  string // as given, shortened when it is long
	Reason string
}

// Error names the argument, its value, and the reason.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("pointer: invalid %s %q: %s", e.What, e.Value, e.Reason)
}

// Is reports whether target is [ErrInvalid].
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// shortened shortens a value for an error: errors travel to logs and over RPCs.
func shortened(v string) string {
	const limit = 80
	if len(v) > limit {
		return v[:limit] + "..."
	}
	return v
}
