package journal

import (
	"errors"
	"fmt"

	"scribe/storage/metalog/journal/schema"
)

// Errors that callers branch on.
var (
	// ErrLost means that the head was changed by somebody else. It comes as *LostError.
	ErrLost = errors.New("journal: the head was changed by another replica")
	// ErrDeposed means that another replica has taken over, or that this one has handed over. A Leader that returned it returns
	// nothing else any more. The call changed nothing, unless the error is ErrUnknown too.
	ErrDeposed = errors.New("journal: deposed, another replica leads")
	// ErrUnknown means that the outcome of an append is not known: the entry may be in the journal, or may still come there. See
	// Leader.Resolve.
	ErrUnknown = errors.New("journal: outcome unknown")
	// ErrFull means that the journal has no room for entries. The call changed nothing.
	ErrFull = errors.New("journal: full")
	// ErrTrimmed means that entries were removed: begin from a snapshot. It comes as *TrimmedError.
	ErrTrimmed = errors.New("journal: entries were trimmed")
	// ErrCorrupt means that an entry is missing, damaged, or not the one that was appended. It comes as *CorruptError.
	ErrCorrupt = schema.ErrCorrupt
	// ErrVersion means that the head or an entry was written by a newer version of the program.
	ErrVersion = schema.ErrVersion
	// ErrWentBack means that the journal is older than, or not the same as, what was seen of it before: its store was restored from
	// a backup, or exchanged. Nothing can be done automatically. It comes as *WentBackError.
	ErrWentBack = errors.New("journal: it is not the one that was seen before")
	// ErrInvalid means that a call is outside the limits of this package, or against its rules. The call changed nothing.
	ErrInvalid = errors.New("journal: invalid call")
	// ErrDetached means that the journal has ended for good: one node took the metadata along, and goes on without a journal. It comes as
	// *DetachedError.
	ErrDetached = errors.New("journal: detached")
	// ErrClosed means that the handle is closed.
	ErrClosed = errors.New("journal: closed")
)

// LostError is an ErrLost with the head as it is now.
type LostError struct {
	Head Head
}

// Error implements error.
func (e *LostError) Error() string {
	return fmt.Sprintf("%v: it is at entry %d of term %d, led by %q", ErrLost, e.Head.Seq, e.Head.Term, e.Head.Leader)
}

// Unwrap makes errors.Is(err, ErrLost) hold.
func (e *LostError) Unwrap() error { return ErrLost }

// TrimmedError is an ErrTrimmed with the entry that was asked for.
type TrimmedError struct {
	// Seq is the entry that is not there any more.
	Seq uint64
	// Snapshot is the Snapshot of the head: a replica continues from that snapshot or a newer one.
	Snapshot uint64
}

// Error implements error.
func (e *TrimmedError) Error() string {
	return fmt.Sprintf("journal: entry %d was trimmed, the newest snapshot is at entry %d", e.Seq, e.Snapshot)
}

// Unwrap makes errors.Is(err, ErrTrimmed) hold.
func (e *TrimmedError) Unwrap() error { return ErrTrimmed }

// CorruptError is an ErrCorrupt with the entry.
type CorruptError struct {
	Seq    uint64
	Detail string
}

// Error implements error.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("journal: entry %d is damaged: %s; begin from a newer snapshot, or restore the journal", e.Seq, e.Detail)
}

// Unwrap makes errors.Is(err, ErrCorrupt) hold.
func (e *CorruptError) Unwrap() error { return ErrCorrupt }

// WentBackError is an ErrWentBack with what differs.
type WentBackError struct {
	Detail string
}

// Error implements error.
func (e *WentBackError) Error() string {
	return fmt.Sprintf("%v: %s; was its store restored from a backup, or exchanged?", ErrWentBack, e.Detail)
}

// Unwrap makes errors.Is(err, ErrWentBack) hold.
func (e *WentBackError) Unwrap() error { return ErrWentBack }

// FullError is an ErrFull with a hint for the operator.
type FullError struct {
	Detail string
}

// Error implements error.
func (e *FullError) Error() string { return ErrFull.Error() + ": " + e.Detail }

// Unwrap makes errors.Is(err, ErrFull) hold.
func (e *FullError) Unwrap() error { return ErrFull }

// DetachedError is an ErrDetached with the node that goes on.
type DetachedError struct {
	// To is the name of the node.
	To string
}

// Error implements error.
func (e *DetachedError) Error() string {
	return fmt.Sprintf("%v: node %s has taken the cell's metadata along, and goes on alone", ErrDetached, e.To)
}

// Unwrap makes errors.Is(err, ErrDetached) hold.
func (e *DetachedError) Unwrap() error { return ErrDetached }
