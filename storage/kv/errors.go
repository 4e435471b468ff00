package kv

import (
	"errors"
	"fmt"
)

// Errors that callers branch on. They are definite: the call changed nothing.
var (
	// ErrNotFound means that the key does not exist.
	ErrNotFound = errors.New("kv: key not found")
	// ErrConflict means that a condition of a transaction does not hold. It comes as *ConflictError.
	ErrConflict = errors.New("kv: a key does not have the expected revision")
	// ErrCompacted means that the requested changes are no longer kept: read everything again. It comes as *CompactedError.
	ErrCompacted = errors.New("kv: changes are no longer kept")
	// ErrInvalid means that the request is outside the limits of this package.
	ErrInvalid = errors.New("kv: invalid request")
	// ErrCorrupt means that a stored value does not match its checksum or its format.
	ErrCorrupt = errors.New("kv: damaged value")
	// ErrClosed means that the store is closed.
	ErrClosed = errors.New("kv: closed")
)

// ConflictError is an ErrConflict that lists every condition that does not hold.
type ConflictError struct {
	Conflicts []KeyConflict
}

// KeyConflict is a condition that does not hold. A revision is 0 for a key that does not exist.
type KeyConflict struct {
	Key      string
	Expected uint64
	Actual   uint64
}

// Error implements error.
func (e *ConflictError) Error() string {
	if len(e.Conflicts) == 0 {
		return ErrConflict.Error()
	}
	c := e.Conflicts[0]
	return fmt.Sprintf("kv: key %q has revision %d, expected %d (0 = does not exist; %d conflicts in all)",
		c.Key, c.Actual, c.Expected, len(e.Conflicts))
}

// Unwrap makes errors.Is(err, ErrConflict) hold.
func (e *ConflictError) Unwrap() error { return ErrConflict }

// On reports whether the condition on key is one of those that do not hold.
func (e *ConflictError) On(key string) bool {
	for _, c := range e.Conflicts {
		if c.Key == key {
			return true
		}
	}
	return false
}

// CompactedError is an ErrCompacted with the requested and the available revisions.
type CompactedError struct {
	// After is the revision that the watch had reached.
	After uint64
	// Oldest is the revision after which changes are kept, Newest the store's revision.
	Oldest, Newest uint64
}

// Error implements error.
func (e *CompactedError) Error() string {
	return fmt.Sprintf("kv: changes after revision %d are not kept, only those after %d up to %d", e.After, e.Oldest, e.Newest)
}

// Unwrap makes errors.Is(err, ErrCompacted) hold.
func (e *CompactedError) Unwrap() error { return ErrCompacted }
