package producer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Errors that callers branch on, with [errors.Is].
var (
	// ErrClosed means that the producer is closed, or was closed before the message was sent.
	ErrClosed = errors.New("producer: closed")
	// ErrTooLarge means that a message or an atomic batch exceeds a limit. The error is a *[MessageTooLargeError] if the limit is
	// the producer's own.
	ErrTooLarge = errors.New("producer: too large")
	// ErrBufferFull means that the memory bound was used up for as long as the call could wait. Nothing was sent.
	ErrBufferFull = errors.New("producer: buffer is full")
	// ErrInvalid means that the category's name, the shard, the key, the time or an attribute is invalid.
	ErrInvalid = errors.New("producer: invalid message")
	// ErrUnknownCategory means that the category does not exist and the server does not create it.
	ErrUnknownCategory = errors.New("producer: unknown category")
	// ErrUnknownShard means that the category has no such logical shard.
	ErrUnknownShard = errors.New("producer: unknown shard")
	// ErrUnavailable means that no reachable server can accept writes.
	ErrUnavailable = errors.New("producer: unavailable")
	// ErrOverloaded means that servers refused the messages for lack of memory or quota.
	ErrOverloaded = errors.New("producer: overloaded")
	// ErrUnknownOutcome means that the messages may or may not be stored: a request was sent, and its answer was lost. An error
	// may match it in addition to another sentinel.
	ErrUnknownOutcome = errors.New("producer: outcome is unknown")
	// ErrStaleProducer means that a producer with the same identity and a newer epoch has fenced this one, which must stop.
	ErrStaleProducer = errors.New("producer: a newer producer has taken over")
	// ErrOutOfSequence means that the server lacks messages with earlier sequences of this producer: its [Identity] is ahead of
	// the stored messages.
	ErrOutOfSequence = errors.New("producer: sequences do not continue what is stored")
	// ErrDamaged means that a frame arrived damaged at a server.
	ErrDamaged = errors.New("producer: frame arrived damaged")
	// ErrRefused means that a server refused for another reason, which the error's text states.
	ErrRefused = errors.New("producer: refused")
	// ErrTooManyStreams means that the producer has written to [MaxStreams] different (category, shard) pairs already.
	ErrTooManyStreams = errors.New("producer: too many categories and shards")
)

// MessageTooLargeError reports a message or an atomic batch that is too large to send. It matches [ErrTooLarge].
type MessageTooLargeError struct {
	Size  int // bytes, as [Message.Size] counts them
	Limit int // bytes allowed
}

// Error returns the size and the limit.
func (e *MessageTooLargeError) Error() string {
	return fmt.Sprintf("producer: %d bytes are over the limit of %d bytes", e.Size, e.Limit)
}

// Is reports whether target is [ErrTooLarge].
func (e *MessageTooLargeError) Is(target error) bool { return target == ErrTooLarge }

// WriteError reports why messages of one (category, shard) were not acknowledged. It matches the sentinel of its cause, and also
// [ErrUnknownOutcome] if they may be stored.
type WriteError struct {
	Shard Shard
	// Attempts is the number of times the messages were sent.
	Attempts int
	// RetryAfter is the server's retry hint; 0 if it gave none.
	RetryAfter time.Duration

	cause   error // one of the sentinels above
	detail  error // error of the last attempt; may be nil
	unknown bool  // an attempt may have stored them
}

// Error returns the category, the shard, the cause and the server's message.
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

// Is reports whether target is the sentinel of the cause, or is [ErrUnknownOutcome] and the outcome is unknown.
func (e *WriteError) Is(target error) bool {
	return target == e.cause || e.unknown && target == ErrUnknownOutcome
}

// Unwrap returns the error of the last attempt: an RPC error, a context's error, or nil.
func (e *WriteError) Unwrap() error { return e.detail }

// MessageError is the error of one message of a batch.
type MessageError struct {
	// Index is the message's index in the batch.
	Index int
	Err   error
}

// BatchError lists the messages of a batch that were not acknowledged; the others were. It matches every sentinel that one of its
// errors matches.
type BatchError struct {
	// Messages are the failed messages, in order of their index.
	Messages []MessageError
	// Total is the number of messages in the batch.
	Total int
}

// Error returns the number of failed messages and the error of the first.
func (e *BatchError) Error() string {
	if len(e.Messages) == 0 {
		return "producer: no message failed"
	}
	first := e.Messages[0]
	return fmt.Sprintf("producer: %d of %d messages failed; the first, at index %d: %v", len(e.Messages), e.Total, first.Index, first.Err)
}

// Unwrap returns the distinct errors of the messages.
func (e *BatchError) Unwrap() []error {
	var errs []error
	for _, m := range e.Messages {
		// Messages of one frame share its error and are adjacent.
		if len(errs) == 0 || errs[len(errs)-1] != m.Err { //nolint:errorlint // identity is meant
			errs = append(errs, m.Err)
		}
	}
	return errs
}

// UnsentError reports the messages that Close could not deliver. It matches [ErrClosed].
type UnsentError struct {
	// Messages and Bytes count the messages that were not acknowledged.
	Messages, Bytes uint64
	// Unknown is the number of these Messages with an unknown outcome: they may have been stored.
	Unknown uint64
	// Cause is the reason why Close stopped waiting.
	Cause error
}

// Error returns the counts and the cause.
func (e *UnsentError) Error() string {
	return fmt.Sprintf("producer: closed with %d messages (%d bytes) not acknowledged, %d of them with an unknown outcome: %v",
		e.Messages, e.Bytes, e.Unknown, e.Cause)
}

// Is reports whether target is [ErrClosed].
func (e *UnsentError) Is(target error) bool { return target == ErrClosed }

// Unwrap returns the cause.
func (e *UnsentError) Unwrap() error { return e.Cause }

// DropReason is the reason for a loss. The values are stable and suit a metric's label.
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

// dropReasons lists all reasons, with the errors that they stand for: the first that matches counts, the last is that of other
// errors. The index of a reason is that of its counter.
var dropReasons = [...]struct {
	reason DropReason
	causes []error
}{
	{DropBufferFull, []error{ErrBufferFull}},
	{DropTooLarge, []error{ErrTooLarge}},
	{DropInvalid, []error{ErrInvalid, ErrUnknownShard}},
	{DropClosed, []error{ErrClosed}},
	{DropUnknownCategory, []error{ErrUnknownCategory}},
	{DropStaleProducer, []error{ErrStaleProducer}},
	{DropUnknownOutcome, []error{ErrUnknownOutcome}},
	{DropUnavailable, []error{ErrUnavailable}},
	{DropOverloaded, []error{ErrOverloaded}},
	{DropRefused, nil},
}

// reasonOf returns the reason for an error of this package.
func reasonOf(err error) DropReason {
	for _, r := range dropReasons {
		if slices.ContainsFunc(r.causes, func(cause error) bool { return errors.Is(err, cause) }) {
			return r.reason
		}
	}
	return DropRefused
}

// sentinels are the sentinels for a server's reasons.
var sentinels = map[scribev1.Reason]error{
	scribev1.Reason_REASON_UNKNOWN_CATEGORY: ErrUnknownCategory,
	scribev1.Reason_REASON_UNKNOWN_SHARD:    ErrUnknownShard,
	scribev1.Reason_REASON_TOO_LARGE:        ErrTooLarge,
	scribev1.Reason_REASON_CORRUPT:          ErrDamaged,
	scribev1.Reason_REASON_OVERLOADED:       ErrOverloaded,
	scribev1.Reason_REASON_STALE_PRODUCER:   ErrStaleProducer,
	scribev1.Reason_REASON_OUT_OF_SEQUENCE:  ErrOutOfSequence,
	scribev1.Reason_REASON_DUPLICATE:        ErrOutOfSequence,
	scribev1.Reason_REASON_INVALID:          ErrInvalid,
	scribev1.Reason_REASON_UNKNOWN_OUTCOME:  ErrUnknownOutcome,
	scribev1.Reason_REASON_NO_BACKEND:       ErrUnavailable,
	scribev1.Reason_REASON_SHUTTING_DOWN:    ErrUnavailable,
	scribev1.Reason_REASON_FENCED:           ErrUnavailable,
	scribev1.Reason_REASON_OUT_OF_ORDER:     ErrUnavailable,
}

// sentinelOf returns the sentinel for a server's reason.
func sentinelOf(r scribev1.Reason) error { return cmp.Or(sentinels[r], ErrRefused) }

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
