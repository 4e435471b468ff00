package sequenced

import (
	"errors"
	"fmt"
)

var (
	// ErrCorrupt matches damage, and bytes that no writer of the format produces.
	ErrCorrupt = errors.New("sequenced: damaged record")
	// ErrVersion matches every [VersionError].
	ErrVersion = errors.New("sequenced: unsupported version")
)

func corruptRecord(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

// VersionError is a record of a newer version. It matches [ErrVersion]. It is not damage: a newer build reads it.
type VersionError struct {
	Version   uint8 // of the record
	Supported uint8 // the newest that this build reads
}

// Error names the version and a remedy.
func (e *VersionError) Error() string {
	return fmt.Sprintf("sequenced: version %d is newer than version %d, the newest that this build reads: upgrade it", e.Version, e.Supported)
}

// Is reports whether target is [ErrVersion].
func (e *VersionError) Is(target error) bool { return target == ErrVersion }
