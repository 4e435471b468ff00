package consumer

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

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
	// ErrUnavailable means that no server was reachable for the time that [WithRetryTimeout] allows.
	ErrUnavailable = errors.New("consumer: unavailable")
	// ErrRefused means that a server refused for another reason, which the text states.
	ErrRefused = errors.New("consumer: refused")
	// ErrProtocol means that streams of a server repeatedly violated their protocol.
	ErrProtocol = errors.New("consumer: the stream violates its protocol")
	// ErrCheckpoint means that a checkpoint is damaged, or belongs to another category.
	ErrCheckpoint = errors.New("consumer: checkpoint cannot be used")
	// ErrGap matches every [GapError].
	ErrGap = errors.New("consumer: messages are missing")
	// ErrDamaged matches every [DamageError].
	ErrDamaged = errors.New("consumer: damaged data")
	// ErrColumnar means that the next message is a row of an Arrow batch, which has no bytes of its own: read it with
	// columns.Batches. The position stays before it.
	ErrColumnar = errors.New("consumer: the next messages are an Arrow batch")
	// ErrFiltered means that a consumer with a filter, see columns.Where and columns.Keys, was used for something other than
	// [Consumer.Records].
	ErrFiltered = errors.New("consumer: columns.Where and columns.Keys are for Records; columns.NewQuery yields rows that match")
)

// DamageError reports stored data that differs from what was written. It matches [ErrDamaged]. None of the data it names was
// delivered.
type DamageError struct {
	Category string
	Shard    ShardID
	LSN      uint64 // of the pointer
	// What is the damaged part, for example "payload checksum" or "frame 3".
	What string
	// Offset is the damaged byte's offset in the decoded payload; -1 if it does not apply.
	Offset int64
	// Missing reports that the whole object does not exist.
	Missing bool
	// Cause gives details; it may be nil.
	Cause error
}

// Error names the shard, the LSN and the damaged part.
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
	// Doing is the operation that failed.
	Doing string
	cause error // one of the sentinels
	named bool  // the server's message already names the group or the category
	// Detail is the error from the server or the transport.
	Detail error
}

// Error states the operation and why it failed.
func (e *ServerError) Error() string {
	if e.named && rpc.Attached(e.Detail) != nil {
		return fmt.Sprintf("%v: %s", e.cause, rpc.Message(e.Detail))
	}
	return fmt.Sprintf("%v: %s: %s", e.cause, e.Doing, rpc.Message(e.Detail))
}

// Is reports whether target is the error's sentinel.
func (e *ServerError) Is(target error) bool { return target == e.cause }

// Unwrap returns Detail.
func (e *ServerError) Unwrap() error { return e.Detail }

// tokenLapse tells a token that has ended a moment before the next one came from one that is wrong.
type tokenLapse struct {
	mu          sync.Mutex
	since, last time.Time // of the refusals
}

const (
	// longestLapse is how long servers may refuse the token without a retry timeout.
	longestLapse = 2 * time.Minute
	// refusedAgain is the longest time between two refusals of one lapse, if tries are not further apart.
	refusedAgain = 15 * time.Second
)

// isOver reports whether a refusal comes so late that nobody seems to renew the token.
func (l *tokenLapse) isOver(now time.Time, c *consumerOptions) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.last) > max(refusedAgain, 3*c.backoffMax) {
		l.since = now
	}
	l.last = now
	return now.Sub(l.since) >= cmp.Or(c.retryTimeout, longestLapse)
}

// permanentError returns the sentinel for an error that retries can't resolve, nil for a transient one. That a token has ended is transient for whoever
// has another one coming.
func (c *consumerOptions) permanentError(err error) error {
	switch d := retry.Classify(err); {
	case c.renews && retry.IsLapsed(err) && !c.lapse.isOver(time.Now(), c):
		return nil
	case d.Class != retry.Invalid:
		return nil
	case d.Reason == scribev1.Reason_REASON_UNKNOWN_CATEGORY:
		return ErrUnknownCategory
	default:
		return ErrRefused
	}
}
