package layout

import (
	"errors"
	"fmt"
)

var (
	// ErrDamaged matches every [DamageError].
	ErrDamaged = errors.New("layout: damaged blob")
	// ErrVersion matches every [VersionError].
	ErrVersion = errors.New("layout: unsupported version")
	// ErrNoKey means that the key of an encrypted block does not exist: it was deleted, so nobody can read the block any more.
	ErrNoKey = errors.New("layout: the block's key does not exist")
	// ErrInvalid is wrapped by the errors of a [Builder] whose input violates the format.
	ErrInvalid = errors.New("layout: invalid blob")
)

// DamageError is a part of a blob that differs from what a [Builder] writes. It matches [ErrDamaged].
type DamageError struct {
	Key string
	// What names the part, for example "trailer checksum", "block 3" or "payload 17".
	What string
	// Offset is the offset of the part in bytes from the start of the blob; -1 if it is unknown, because the blob is shorter than
	// any blob can be.
	Offset int64
	// Reason describes the damage.
	Reason string
	// Err is the cause, if any.
	Err error
}

// Error names the blob, the part and the offset.
func (e *DamageError) Error() string {
	text := fmt.Sprintf("layout: blob %s: damaged: %s at byte %d: %s", e.Key, e.What, e.Offset, e.Reason)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Is reports whether target is [ErrDamaged].
func (e *DamageError) Is(target error) bool { return target == ErrDamaged }

// Unwrap returns the cause.
func (e *DamageError) Unwrap() error { return e.Err }

// VersionError is a blob of a newer version. It matches [ErrVersion]. It is not damage: a newer build reads it.
type VersionError struct {
	Key       string
	Version   uint8 // of the blob
	Supported uint8 // the newest that this build reads
}

// Error names the version and a remedy.
func (e *VersionError) Error() string {
	return fmt.Sprintf("layout: blob %s: version %d is newer than version %d, the newest that this build reads: upgrade the reader",
		e.Key, e.Version, e.Supported)
}

// Is reports whether target is [ErrVersion].
func (e *VersionError) Is(target error) bool { return target == ErrVersion }
