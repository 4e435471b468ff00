// Package retry says what to do about an error of a call: one classification for everyone who tries again.
//
//	d := retry.Classify(err)
//	if !d.Class.Retryable() {
//		return err
//	}
//	pause := max(pauses.Pause(failures), d.After)
//
// A caller that has the error of a part of an answer uses [ClassOf] with its reason and [Hint], which make no error of it. How long to
// pause without a hint, and how often to try, is of package base/backoff.
//
// The class says whether the same request may succeed later. Whether it may be repeated although an earlier attempt may have been
// carried out, which is [UnknownOutcome] or [Decision.Unknown], only the caller knows: it depends on what the category promises.
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

// Class is what an error says of the request that it ended.
type Class uint8

// The classes. From Unavailable on, the same request may succeed later.
const (
	// None is no error.
	None Class = iota
	// Invalid: the request itself is wrong, or may not be made, now and later, here and elsewhere.
	Invalid
	// Refused: the state of what the request is about forbids it. The same request does not succeed by being repeated.
	Refused
	// Unexplained: the server failed in a way that it has no reason for, such as a bug.
	Unexplained
	// Unavailable: the server is not there, or about to go. Another one may serve the request at once.
	Unavailable
	// Overloaded: the server has no capacity, or a quota is used up, for as long as the hint says.
	Overloaded
	// Passing: the state of what the request is about forbids it for the moment.
	Passing
	// UnknownOutcome: there is no answer, and the request may have been carried out.
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

	scribev1.Reason_REASON_CATEGORY_EXISTS:     Refused,
	scribev1.Reason_REASON_CONFLICT:            Refused,
	scribev1.Reason_REASON_CORRUPT:             Refused,
	scribev1.Reason_REASON_DUPLICATE:           Refused,
	scribev1.Reason_REASON_GROUP_ACTIVE:        Refused,
	scribev1.Reason_REASON_INCOMPATIBLE_SCHEMA: Refused,
	scribev1.Reason_REASON_LEASE_EXPIRED:       Refused,
	scribev1.Reason_REASON_MISSING:             Refused,
	scribev1.Reason_REASON_SEALED:              Refused,
	scribev1.Reason_REASON_STALE_BLOB:          Refused,
	scribev1.Reason_REASON_STALE_GENERATION:    Refused,
	scribev1.Reason_REASON_STALE_PRODUCER:      Refused,
	scribev1.Reason_REASON_TRIMMED:             Refused,
	scribev1.Reason_REASON_UNKNOWN_GROUP:       Refused,

	scribev1.Reason_REASON_NO_BACKEND:      Unavailable,
	scribev1.Reason_REASON_SHUTTING_DOWN:   Unavailable,
	scribev1.Reason_REASON_OVERLOADED:      Overloaded,
	scribev1.Reason_REASON_FENCED:          Passing, // the new owner of the log answers the next attempt
	scribev1.Reason_REASON_OUT_OF_SEQUENCE: Passing, // what comes before it is on its way
	scribev1.Reason_REASON_UNKNOWN_OUTCOME: UnknownOutcome,
}

// ClassOf returns the class of a reason. One that a newer server has, and this program does not know, is Unexplained.
func ClassOf(r scribev1.Reason) Class {
	if c, ok := classes[r]; ok {
		return c
	}
	return Unexplained
}

// Retryable reports whether the class of the error's reason is retryable.
func Retryable(err error) bool { return err != nil && ClassOf(rpc.ReasonOf(err)).Retryable() }

// Hint returns the server's word on when to try again, at most longest; 0 when there is none.
func Hint(info *scribev1.ErrorInfo, longest time.Duration) time.Duration {
	return min(max(info.GetRetryAfter().AsDuration(), 0), longest)
}

// LongestHint bounds the hint in a Decision.
const LongestHint = time.Minute

// Decision is what to do about an error of a whole request.
type Decision struct {
	Class Class
	// Unknown says that the request may have been carried out all the same.
	Unknown bool
	// Reason is the server's, or the one that goes best with what a transport said.
	Reason scribev1.Reason
	// After is the retry hint, 0 when there is none.
	After time.Duration
	// Info is what a server attached; nil when the error was made on the way, by a transport or something in between, and says
	// nothing of what the server did.
	Info *scribev1.ErrorInfo
}

// Classify says what to do about an error of a call; nil is None.
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
