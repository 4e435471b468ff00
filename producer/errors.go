package producer

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Errors that callers branch on, with [errors.Is].
var (
	// ErrClosed means that the producer is closed, or was before the message was sent.
	ErrClosed = errors.New("producer: closed")
	// ErrTooLarge means that a message, or an atomic batch, is over a limit. It comes as *[MessageTooLargeError] when this
	// producer's own limits refused it.
	ErrTooLarge = errors.New("producer: too large")
	// ErrBufferFull means that the memory buffer was full for as long as the call could wait. Nothing was sent.
	ErrBufferFull = errors.New("producer: buffer is full")
	// ErrInvalid means that the category's name, the shard, the key, the time or an attribute is not valid.
	ErrInvalid = errors.New("producer: invalid message")
	// ErrUnknownCategory means that the category does not exist and the server does not create it.
	ErrUnknownCategory = errors.New("producer: unknown category")
	// ErrUnknownShard means that the logical shard is not one of the category's.
	ErrUnknownShard = errors.New("producer: unknown shard")
	// ErrUnavailable means that no server could be reached, or none that can take writes.
	ErrUnavailable = errors.New("producer: unavailable")
	// ErrOverloaded means that servers refused for lack of memory or quota.
	ErrOverloaded = errors.New("producer: overloaded")
	// ErrUnknownOutcome means that the messages may or may not have been stored: a request was sent, and its answer never came.
	// An error may match it beside another one.
	ErrUnknownOutcome = errors.New("producer: outcome is unknown")
	// ErrStaleProducer means that a producer with the same identity and a newer epoch has written: this one must stop.
	ErrStaleProducer = errors.New("producer: a newer producer has taken over")
	// ErrOutOfSequence means that the server misses messages that this producer numbered before: the identity that it was given
	// is ahead of what was stored.
	ErrOutOfSequence = errors.New("producer: sequences do not continue what is stored")
	// ErrDamaged means that a server found a frame damaged on its way.
	ErrDamaged = errors.New("producer: frame arrived damaged")
	// ErrRefused means that a server refused for another reason, which the text tells.
	ErrRefused = errors.New("producer: refused")
	// ErrTooManyStreams means that more than [MaxStreams] different (category, shard) were written to.
	ErrTooManyStreams = errors.New("producer: too many categories and shards")
)

// MessageTooLargeError is a message, or an atomic batch, that can't be sent because of its size. It matches [ErrTooLarge].
type MessageTooLargeError struct {
	Size  int // bytes, as [Message.Size] counts them
	Limit int // bytes allowed
}

// Error says how large it is and how large it may be.
func (e *MessageTooLargeError) Error() string {
	return fmt.Sprintf("producer: %d bytes are over the limit of %d bytes", e.Size, e.Limit)
}

// Is reports whether target is [ErrTooLarge].
func (e *MessageTooLargeError) Is(target error) bool { return target == ErrTooLarge }

// WriteError says why messages of one (category, shard) were not acknowledged. It matches the sentinel of its cause, and
// [ErrUnknownOutcome] when they may have been stored all the same.
type WriteError struct {
	Shard Shard
	// Attempts is how often the messages were sent.
	Attempts int
	// RetryAfter is the server's hint when it may take them; 0 when it gave none.
	RetryAfter time.Duration

	cause   error // one of the sentinels above
	detail  error // what the last attempt said; may be nil
	unknown bool  // an attempt may have stored them
}

// Error names the category, the shard, the cause and what the server said.
func (e *WriteError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %v", e.cause, e.Shard)
	if e.Attempts > 0 {
		fmt.Fprintf(&b, ", attempt %d", e.Attempts)
	}
	if e.detail != nil {
		b.WriteString(": " + rpc.Message(e.detail))
	}
	if e.unknown && e.cause != ErrUnknownOutcome { //nolint:errorlint // cause is a sentinel itself
		b.WriteString(" (an earlier attempt may have been stored)")
	}
	return b.String()
}

// Is reports whether target is the sentinel of the cause, or [ErrUnknownOutcome] when the outcome is unknown.
func (e *WriteError) Is(target error) bool {
	return target == e.cause || e.unknown && target == ErrUnknownOutcome
}

// Unwrap returns what the last attempt said: an RPC error, the end of a context, or nil.
func (e *WriteError) Unwrap() error { return e.detail }

// MessageError is the outcome of one message of a batch.
type MessageError struct {
	// Index is the message's number in the batch.
	Index int
	Err   error
}

// BatchError says which messages of a batch were not acknowledged; the others were. It matches what any of its errors matches.
type BatchError struct {
	// Messages are the failed ones, by index.
	Messages []MessageError
	// Total is how many the batch had.
	Total int
}

// Error says how many failed, and why the first did.
func (e *BatchError) Error() string {
	if len(e.Messages) == 0 {
		return "producer: no message failed"
	}
	first := e.Messages[0]
	return fmt.Sprintf("producer: %d of %d messages failed; the first, at index %d: %v", len(e.Messages), e.Total, first.Index, first.Err)
}

// Unwrap returns the different errors of the messages.
func (e *BatchError) Unwrap() []error {
	var errs []error
	for _, m := range e.Messages {
		// Messages of one frame share its error, and stand together.
		if len(errs) == 0 || errs[len(errs)-1] != m.Err { //nolint:errorlint // identity is meant
			errs = append(errs, m.Err)
		}
	}
	return errs
}

// UnsentError says what Close could not deliver. It matches [ErrClosed].
type UnsentError struct {
	// Messages and Bytes were not acknowledged.
	Messages, Bytes uint64
	// Unknown of the Messages were in a request without an answer: they may have been stored.
	Unknown uint64
	// Cause is why Close stopped waiting.
	Cause error
}

// Error says how many.
func (e *UnsentError) Error() string {
	return fmt.Sprintf("producer: closed with %d messages (%d bytes) not acknowledged, %d of them with an unknown outcome: %v",
		e.Messages, e.Bytes, e.Unknown, e.Cause)
}

// Is reports whether target is [ErrClosed].
func (e *UnsentError) Is(target error) bool { return target == ErrClosed }

// Unwrap returns the cause.
func (e *UnsentError) Unwrap() error { return e.Cause }

// DropReason is why messages were lost; the values are stable and fit a metric's label.
type DropReason string

// Reasons of losses.
const (
	DropBufferFull      DropReason = "buffer_full"
	DropTooLarge        DropReason = "too_large"
	DropInvalid         DropReason = "invalid"
	DropClosed          DropReason = "closed"
	DropUnknownCategory DropReason = "unknown_category"
	DropUnavailable     DropReason = "unavailable"
	DropOverloaded      DropReason = "overloaded"
	DropUnknownOutcome  DropReason = "unknown_outcome"
	DropStaleProducer   DropReason = "stale_producer"
	DropRefused         DropReason = "refused"
)

// dropReasons are all of them; a reason's index is that of its counter.
var dropReasons = [...]DropReason{
	DropBufferFull, DropTooLarge, DropInvalid, DropClosed, DropUnknownCategory, DropUnavailable, DropOverloaded,
	DropUnknownOutcome, DropStaleProducer, DropRefused,
}

// reasonOf sorts an error of this package into the reasons.
func reasonOf(err error) DropReason {
	switch {
	case errors.Is(err, ErrBufferFull):
		return DropBufferFull
	case errors.Is(err, ErrTooLarge):
		return DropTooLarge
	case errors.Is(err, ErrInvalid), errors.Is(err, ErrUnknownShard):
		return DropInvalid
	case errors.Is(err, ErrClosed):
		return DropClosed
	case errors.Is(err, ErrUnknownCategory):
		return DropUnknownCategory
	case errors.Is(err, ErrStaleProducer):
		return DropStaleProducer
	case errors.Is(err, ErrUnknownOutcome):
		return DropUnknownOutcome
	case errors.Is(err, ErrUnavailable):
		return DropUnavailable
	case errors.Is(err, ErrOverloaded):
		return DropOverloaded
	default:
		return DropRefused
	}
}

// sentinelOf is the cause that goes with a server's reason.
func sentinelOf(r scribev1.Reason) error {
	switch r {
	case scribev1.Reason_REASON_UNKNOWN_CATEGORY:
		return ErrUnknownCategory
	case scribev1.Reason_REASON_UNKNOWN_SHARD:
		return ErrUnknownShard
	case scribev1.Reason_REASON_TOO_LARGE:
		return ErrTooLarge
	case scribev1.Reason_REASON_CORRUPT:
		return ErrDamaged
	case scribev1.Reason_REASON_OVERLOADED:
		return ErrOverloaded
	case scribev1.Reason_REASON_STALE_PRODUCER:
		return ErrStaleProducer
	case scribev1.Reason_REASON_OUT_OF_SEQUENCE, scribev1.Reason_REASON_DUPLICATE:
		return ErrOutOfSequence
	case scribev1.Reason_REASON_INVALID:
		return ErrInvalid
	case scribev1.Reason_REASON_UNKNOWN_OUTCOME:
		return ErrUnknownOutcome
	case scribev1.Reason_REASON_NO_BACKEND, scribev1.Reason_REASON_SHUTTING_DOWN, scribev1.Reason_REASON_FENCED:
		return ErrUnavailable
	default:
		return ErrRefused
	}
}

// fromRecord translates an error of a frame's builder into this package's.
func fromRecord(err error) error {
	var tooLarge *record.MessageTooLargeError
	switch {
	case errors.As(err, &tooLarge):
		return &MessageTooLargeError{Size: tooLarge.Size, Limit: tooLarge.Limit}
	case errors.Is(err, record.ErrTooLarge):
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case errors.Is(err, record.ErrInvalid), errors.Is(err, record.ErrEmptyFrame):
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	default:
		return err
	}
}
