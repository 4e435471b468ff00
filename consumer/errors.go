package consumer

import (
	"errors"
	"fmt"

	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Errors that callers branch on, with [errors.Is].
var (
	// ErrClosed means that the consumer is closed.
	ErrClosed = errors.New("consumer: closed")
	// ErrBusy means that another iteration of this consumer is running.
	ErrBusy = errors.New("consumer: another iteration is running")
	// ErrUnknownCategory means that the category does not exist.
	ErrUnknownCategory = errors.New("consumer: unknown category")
	// ErrUnavailable means that no server could be reached for as long as [WithRetryTimeout] allows.
	ErrUnavailable = errors.New("consumer: unavailable")
	// ErrRefused means that a server refused for another reason, which the text tells.
	ErrRefused = errors.New("consumer: refused")
	// ErrProtocol means that a server's streams contradict themselves, again and again.
	ErrProtocol = errors.New("consumer: the stream violates its protocol")
	// ErrCheckpoint means that a checkpoint is damaged, or not one of this category.
	ErrCheckpoint = errors.New("consumer: checkpoint cannot be used")
	// ErrGap matches every [GapError].
	ErrGap = errors.New("consumer: messages are missing")
	// ErrDamaged matches every [DamageError].
	ErrDamaged = errors.New("consumer: damaged data")
	// ErrColumnar means that the next message is a row of an Arrow batch, which has no bytes of its own: read it with
	// columns.Batches. The position stays in front of it.
	ErrColumnar = errors.New("consumer: the next messages are an Arrow batch")
	// ErrFiltered means that a consumer with a filter, see columns.Where, was asked for something else than [Consumer.Records].
	ErrFiltered = errors.New("consumer: columns.Where is for Records; columns.NewQuery yields rows that match")
)

// DamageError is data that is not what was written. It matches [ErrDamaged]. Nothing of what it names was delivered.
type DamageError struct {
	Category string
	Shard    ShardID
	LSN      uint64 // of the pointer
	// What is the part that is wrong, for example "payload checksum" or "frame 3".
	What string
	// Offset is where in the decoded payload, in bytes; -1 when that means nothing.
	Offset int64
	// Missing says that the object is not there at all.
	Missing bool
	// Cause says more; it may be nil.
	Cause error
}

// Error names the place and the part.
func (e *DamageError) Error() string {
	text := fmt.Sprintf("consumer: damaged data of %s: shard %v, LSN %d: %s", e.Category, e.Shard, e.LSN, e.What)
	if e.Offset >= 0 {
		text += fmt.Sprintf(" at byte %d", e.Offset)
	}
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Is reports whether target is [ErrDamaged].
func (e *DamageError) Is(target error) bool { return target == ErrDamaged }

// Unwrap returns the cause.
func (e *DamageError) Unwrap() error { return e.Cause }

// ServerError is a server's refusal. It matches [ErrUnknownCategory], [ErrUnavailable] or [ErrRefused].
type ServerError struct {
	// Doing is what was tried.
	Doing string
	cause error // one of the sentinels
	named bool  // what a server says of it names the group or the category by itself
	// Detail is what the server or the transport said.
	Detail error
}

// Error says what was tried and what came of it.
func (e *ServerError) Error() string {
	if e.named && rpc.Attached(e.Detail) != nil {
		return fmt.Sprintf("%v: %s", e.cause, rpc.Message(e.Detail))
	}
	return fmt.Sprintf("%v: %s: %s", e.cause, e.Doing, rpc.Message(e.Detail))
}

// Is reports whether target is the sentinel of the cause.
func (e *ServerError) Is(target error) bool { return target == e.cause }

// Unwrap returns the detail.
func (e *ServerError) Unwrap() error { return e.Detail }

// permanentError returns the sentinel that goes with an error after which trying again is useless, nil when it may pass.
func permanentError(err error) error {
	switch d := retry.Classify(err); {
	case d.Class != retry.Invalid:
		return nil
	case d.Reason == scribev1.Reason_REASON_UNKNOWN_CATEGORY:
		return ErrUnknownCategory
	default:
		return ErrRefused
	}
}
