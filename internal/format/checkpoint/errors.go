package checkpoint

import (
	"errors"
	"fmt"
)

var (
	// ErrCorrupt matches every [CorruptError].
	ErrCorrupt = errors.New("checkpoint: damaged or not a checkpoint")
	// ErrVersion matches every [VersionError].
	ErrVersion = errors.New("checkpoint: unsupported version")
	// ErrInvalid matches every [InvalidError].
	ErrInvalid = errors.New("checkpoint: invalid")
)

// CorruptError is a text that does not come from [Checkpoint.String]. It matches [ErrCorrupt].
type CorruptError struct {
	Reason string
}

// Error describes the damage and a remedy.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("checkpoint: damaged or not a checkpoint: %s; use the text exactly as it was printed", e.Reason)
}

// Is reports whether target is [ErrCorrupt].
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// VersionError is a checkpoint of another version. It matches [ErrVersion].
type VersionError struct {
	Version string // as it is in the text
}

// Error names the version and a remedy.
func (e *VersionError) Error() string {
	return fmt.Sprintf("checkpoint: version %s is newer than version %d, the newest that this build reads: upgrade the reader",
		e.Version, Version)
}

// Is reports whether target is [ErrVersion].
func (e *VersionError) Is(target error) bool { return target == ErrVersion }

// InvalidError is a field outside the format's rules. It matches [ErrInvalid].
type InvalidError struct {
	What   string // for example "shard"
	Reason string
}

// Error names the field and the reason.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("checkpoint: invalid %s: %s", e.What, e.Reason)
}

// Is reports whether target is [ErrInvalid].
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }
