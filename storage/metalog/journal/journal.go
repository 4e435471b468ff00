package journal

import (
	"context"

	"scribe/storage/metalog/journal/schema"
)

// What a journal consists of is defined by its format, package schema.
type (
	// Head is the head of a journal.
	Head = schema.Head
	// Entry is a decoded entry.
	Entry = schema.Entry
	// Position is how far a replica has applied a journal.
	Position = schema.Position
	// ID is a random number that identifies an append or a leader.
	ID = schema.ID
)

// Journal is an ordered list of entries with one head that is changed by compare-and-swap. All methods are safe for concurrent
// use. Replicas use [Lead] and [Reader.ReadEntries] rather than Swap and Read: an engine does not look inside entries.
//
// Every method may fail with ErrClosed, with the context's error, or with an error of the engine's own (a network, a server).
// Head, Wait and Swap fail with ErrWentBack if the head's revision is below one that this handle saw before.
type Journal interface {
	// Head returns the head. It is linearizable. A journal that was never written has the zero Head.
	Head(ctx context.Context) (Head, error)

	// Swap replaces the head by next if it is still at known.Revision, and, when entry is not nil, stores entry under next.Seq in
	// the same transaction. next.Revision is ignored. Swap returns next with its Revision when it is durable. The engine does not
	// keep entry's memory after it returns.
	//
	// ErrLost, as *LostError with the present head: the head was not at known.Revision. This call stored nothing; if the present
	// head is next, an earlier call with the same arguments did. ErrFull and ErrInvalid are definite too: this call stored nothing.
	// Any other error means that the outcome is unknown: the change may have been made, or may still be made.
	Swap(ctx context.Context, known, next Head, entry []byte) (Head, error)

	// Read calls fn with the entries from to to, both included, in order. The entry belongs to fn. Read returns ErrTrimmed when
	// from, or an entry that it comes to, was trimmed, ErrCorrupt when an entry is missing, and fn's error as it is. It does not
	// wait for entries: to must not be above the Seq of a head that was returned.
	Read(ctx context.Context, from, to uint64, fn func(seq uint64, entry []byte) error) error

	// Wait returns the head when its Revision is not that of after any more. It may return earlier, with the same head. It returns
	// at once if the head has changed already. It waits until ctx ends.
	Wait(ctx context.Context, after Head) (Head, error)

	// Trim removes the entries below a number, and may leave some of them if it fails. It works also when the journal is full. It
	// returns ErrInvalid when that would remove entries above the Snapshot of the present head. Trimming what was trimmed already
	// does nothing.
	Trim(ctx context.Context, below uint64) error

	// Close ends running calls and releases the handle's resources. It does not change the journal.
	Close() error
}

// MaxPayload is the largest payload of an entry in bytes.
const MaxPayload = schema.MaxPayload
