// Package retry classifies the errors of calls for all roles and clients that retry.
//
//	d := retry.Classify(err)
//	if !d.Class.Retryable() {
//		return err
//	}
//	pause := max(pauses.Pause(failures), d.After)
//
// A caller with an error info inside an answer uses [ClassOf] with its reason, and [Hint]; these do not need an error. Package
// base/backoff has pauses without a hint, and retry budgets.
//
// The class tells whether the same request may succeed later. Only the caller knows whether a request with an unknown outcome
// ([UnknownOutcome] or [Decision.Unknown]) may be repeated: it depends on the delivery of the category.
package retry

import (
	"context"
	"errors"
	"net"
	"time"

	"connectrpc.com/connect"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Class is the error class of a failed request.
type Class uint8

// Error classes. From Unavailable on, the same request may succeed later.
const (
	// None: there is no error.
	None Class = iota
	// Invalid: the request is invalid or not permitted, at any time and at any server.
	Invalid
	// Refused: the state of the request's object forbids it. A retry does not succeed.
	Refused
	// Unexplained: the server failed without a known reason, for example because of a bug.
	Unexplained
	// Unavailable: the server cannot be reached, or is shutting down. Another one may serve the request at once.
	Unavailable
	// Overloaded: the server has no capacity, or a quota is used up. The retry hint tells for how long.
	Overloaded
	// Passing: the state of the request's object forbids it for now.
	Passing
	// UnknownOutcome: there is no answer, and the request may have been executed.
	UnknownOutcome
)

// Retryable reports whether the same request may succeed later, here or at another server.
func (c Class) Retryable() bool { return c >= Unavailable }

// classes has the class of each reason.
var classes = map[scribev1.Reason]Class{
	scribev1.Reason_REASON_UNSPECIFIED: Unexplained,

	scribev1.Reason_REASON_INVALID:          Invalid,
	scribev1.Reason_REASON_TOO_LARGE:        Invalid,
	scribev1.Reason_REASON_UNKNOWN_CATEGORY: Invalid,
	scribev1.Reason_REASON_UNKNOWN_SHARD:    Invalid,
	scribev1.Reason_REASON_UNAUTHENTICATED:  Invalid,
	scribev1.Reason_REASON_DENIED:           Invalid,
	scribev1.Reason_REASON_TICKET_EXPIRED:   Invalid, // the stream gives new ones

	scribev1.Reason_REASON_CATEGORY_EXISTS:     Refused,
	scribev1.Reason_REASON_CONFLICT:            Refused,
	scribev1.Reason_REASON_CLOCK_SKEW:          Refused,
	scribev1.Reason_REASON_CORRUPT:             Refused,
	scribev1.Reason_REASON_DUPLICATE:           Refused,
	scribev1.Reason_REASON_GROUP_ACTIVE:        Refused,
	scribev1.Reason_REASON_INCOMPATIBLE_SCHEMA: Refused,
	scribev1.Reason_REASON_LEASE_EXPIRED:       Refused,
	scribev1.Reason_REASON_MEMBER_REFUSED:      Refused,
	scribev1.Reason_REASON_MISSING:             Refused,
	scribev1.Reason_REASON_SEALED:              Refused,
	scribev1.Reason_REASON_STALE_BLOB:          Refused,
	scribev1.Reason_REASON_STALE_GENERATION:    Refused,
	scribev1.Reason_REASON_STALE_PRODUCER:      Refused,
	scribev1.Reason_REASON_TRIMMED:             Refused,
	scribev1.Reason_REASON_UNKNOWN_GROUP:       Refused,

	scribev1.Reason_REASON_NO_BACKEND:      Unavailable,
	scribev1.Reason_REASON_SHUTTING_DOWN:   Unavailable,
	scribev1.Reason_REASON_NOT_LEADER:      Unavailable, // the leader takes the same request
	scribev1.Reason_REASON_OVERLOADED:      Overloaded,
	scribev1.Reason_REASON_ELSEWHERE:       Passing, // the log moves, and its new engine takes the next attempt
	scribev1.Reason_REASON_FENCED:          Passing, // the new owner of the log answers the next attempt
	scribev1.Reason_REASON_OUT_OF_SEQUENCE: Passing, // earlier messages have yet to arrive
	scribev1.Reason_REASON_OUT_OF_ORDER:    Passing, // those before it have yet to be stored
	scribev1.Reason_REASON_UNKNOWN_OUTCOME: UnknownOutcome,
}

// ClassOf returns the class of a reason. An unknown reason, of a newer server, is Unexplained.
func ClassOf(r scribev1.Reason) Class {
	if c, ok := classes[r]; ok {
		return c
	}
	return Unexplained
}

// Retryable reports whether the class of the error's reason is retryable.
func Retryable(err error) bool { return err != nil && ClassOf(rpc.ReasonOf(err)).Retryable() }

// IsLapsed reports whether an error says that the caller's token proves nothing, which whoever has it renewed by somebody may wait out: it may have ended a moment
// before the next one comes. For all others it is Invalid.
func IsLapsed(err error) bool {
	return rpc.ReasonOf(err) == scribev1.Reason_REASON_UNAUTHENTICATED || rpc.Attached(err) == nil && connect.CodeOf(err) == connect.CodeUnauthenticated
}

// Hint returns the server's retry hint, at most longest; 0 if there is none.
func Hint(info *scribev1.ErrorInfo, longest time.Duration) time.Duration {
	return min(max(info.GetRetryAfter().AsDuration(), 0), longest)
}

// LongestHint bounds the hint in a Decision.
const LongestHint = time.Minute

// Decision is the classification of an error of a whole request.
type Decision struct {
	Class Class
	// Unknown reports that the request may have been executed.
	Unknown bool
	// Reason is the server's reason, or the best match for an error of the transport.
	Reason scribev1.Reason
	// After is the retry hint; 0 if there is none.
	After time.Duration
	// Info is the error info of the server. It is nil if the transport or an intermediary made the error, which then tells
	// nothing about the server.
	Info *scribev1.ErrorInfo
}

// Classify classifies the error of a call; the class of nil is None.
func Classify(err error) Decision {
	if err == nil {
		return Decision{}
	}
	if info := rpc.Attached(err); info != nil {
		c := ClassOf(info.GetReason())
		return Decision{Class: c, Unknown: c == UnknownOutcome || c == Unexplained, Reason: info.GetReason(), After: Hint(info, LongestHint), Info: info}
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return Decision{Class: Unavailable, Reason: scribev1.Reason_REASON_NO_BACKEND}
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return Decision{Class: UnknownOutcome, Unknown: true, Reason: scribev1.Reason_REASON_UNKNOWN_OUTCOME}
	}
	switch connect.CodeOf(err) {
	case connect.CodeUnauthenticated, connect.CodePermissionDenied, connect.CodeUnimplemented, connect.CodeNotFound:
		return Decision{Class: Invalid} // a wrong address or missing rights: refused before any role saw it
	case connect.CodeInvalidArgument:
		return Decision{Class: Invalid, Reason: scribev1.Reason_REASON_INVALID}
	case connect.CodeResourceExhausted:
		return Decision{Class: Overloaded, Unknown: true, Reason: scribev1.Reason_REASON_OVERLOADED}
	default:
		return Decision{Class: Unavailable, Unknown: true, Reason: scribev1.Reason_REASON_NO_BACKEND}
	}
}
