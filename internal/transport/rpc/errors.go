package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	scribev1 "scribe/proto/scribe/v1"
)

// Code returns the RPC code of a reason. Each reason has one code.
func Code(r scribev1.Reason) connect.Code {
	switch r {
	case scribev1.Reason_REASON_UNKNOWN_CATEGORY, scribev1.Reason_REASON_UNKNOWN_SHARD, scribev1.Reason_REASON_MISSING,
		scribev1.Reason_REASON_UNKNOWN_GROUP:
		return connect.CodeNotFound
	case scribev1.Reason_REASON_CATEGORY_EXISTS, scribev1.Reason_REASON_DUPLICATE:
		return connect.CodeAlreadyExists
	case scribev1.Reason_REASON_TOO_LARGE, scribev1.Reason_REASON_INVALID:
		return connect.CodeInvalidArgument
	case scribev1.Reason_REASON_CORRUPT:
		return connect.CodeDataLoss
	case scribev1.Reason_REASON_OVERLOADED:
		return connect.CodeResourceExhausted
	case scribev1.Reason_REASON_FENCED, scribev1.Reason_REASON_SEALED, scribev1.Reason_REASON_STALE_PRODUCER,
		scribev1.Reason_REASON_STALE_BLOB, scribev1.Reason_REASON_OUT_OF_SEQUENCE, scribev1.Reason_REASON_OUT_OF_ORDER, scribev1.Reason_REASON_LEASE_EXPIRED,
		scribev1.Reason_REASON_GROUP_ACTIVE, scribev1.Reason_REASON_STALE_GENERATION, scribev1.Reason_REASON_INCOMPATIBLE_SCHEMA,
		scribev1.Reason_REASON_TICKET_EXPIRED, scribev1.Reason_REASON_MEMBER_REFUSED, scribev1.Reason_REASON_ELSEWHERE, scribev1.Reason_REASON_CLOCK_SKEW:
		return connect.CodeFailedPrecondition
	case scribev1.Reason_REASON_CONFLICT, scribev1.Reason_REASON_UNKNOWN_OUTCOME:
		return connect.CodeAborted
	case scribev1.Reason_REASON_TRIMMED:
		return connect.CodeOutOfRange
	case scribev1.Reason_REASON_SHUTTING_DOWN, scribev1.Reason_REASON_NO_BACKEND, scribev1.Reason_REASON_NOT_LEADER:
		return connect.CodeUnavailable
	case scribev1.Reason_REASON_UNAUTHENTICATED:
		return connect.CodeUnauthenticated
	case scribev1.Reason_REASON_DENIED:
		return connect.CodePermissionDenied
	case scribev1.Reason_REASON_UNSPECIFIED:
	}
	return connect.CodeInternal
}

// Errorf returns an error with a reason, which Connect transmits with it. %w wraps.
func Errorf(r scribev1.Reason, format string, args ...any) error {
	return InfoError(&scribev1.ErrorInfo{Reason: r}, fmt.Errorf(format, args...))
}

// RetryErrorf is Errorf with a retry hint.
func RetryErrorf(r scribev1.Reason, after time.Duration, format string, args ...any) error {
	return InfoError(&scribev1.ErrorInfo{Reason: r, RetryAfter: durationpb.New(after)}, fmt.Errorf(format, args...))
}

// InfoError attaches info to err and takes ownership of info. It sets an empty message of the info from err.
func InfoError(info *scribev1.ErrorInfo, err error) error {
	if info == nil {
		info = &scribev1.ErrorInfo{}
	}
	if err == nil {
		err = errors.New(info.GetMessage())
	}
	if info.GetMessage() == "" {
		info.Message = err.Error()
	}
	return withInfo(Code(info.GetReason()), info, err)
}

// withInfo is InfoError with a code of its own.
func withInfo(code connect.Code, info *scribev1.ErrorInfo, err error) *connect.Error {
	e := connect.NewError(code, err)
	if d, derr := connect.NewErrorDetail(info); derr == nil {
		e.AddDetail(d)
	}
	return e
}

// Info returns the attached info of an error, or one made from its code and text. It is nil for nil. The errors of ended contexts
// have REASON_UNKNOWN_OUTCOME, since the request may have been carried out.
func Info(err error) *scribev1.ErrorInfo {
	if err == nil {
		return nil
	}
	if info := Attached(err); info != nil {
		return info
	}
	if ce := new(connect.Error); errors.As(err, &ce) {
		return &scribev1.ErrorInfo{Reason: reasonOf(ce.Code()), Message: err.Error()}
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_UNKNOWN_OUTCOME, Message: err.Error()}
	}
	return &scribev1.ErrorInfo{Message: err.Error()}
}

// Attached returns a copy of the info that a server, or this package's client, attached to an error; nil if there is none.
func Attached(err error) *scribev1.ErrorInfo {
	ce := new(connect.Error)
	if !errors.As(err, &ce) {
		return nil
	}
	for _, d := range ce.Details() {
		if v, derr := d.Value(); derr == nil {
			if info, ok := v.(*scribev1.ErrorInfo); ok {
				return info
			}
		}
	}
	return nil
}

// Message returns the text of an error without the protocol's codes, which precede the text of every call on its way. It is for
// people, and for errors that say more than the code.
func Message(err error) string {
	text := err.Error()
	for ce := new(connect.Error); errors.As(err, &ce); err = ce.Unwrap() {
		text = strings.Replace(text, ce.Error(), ce.Message(), 1)
	}
	return text
}

// ReasonOf returns the reason of an error, REASON_UNSPECIFIED if it has none.
func ReasonOf(err error) scribev1.Reason { return Info(err).GetReason() }

// ReasonLabel returns the metric label of a reason, for example "no_backend". Reasons that this build does not know have one label:
// they come from other processes, and every value of a label is kept.
func ReasonLabel(r scribev1.Reason) string {
	if name, ok := reasonLabels[r]; ok {
		return name
	}
	return "unknown"
}

var reasonLabels = func() map[scribev1.Reason]string {
	labels := make(map[scribev1.Reason]string, len(scribev1.Reason_name))
	for n := range scribev1.Reason_name {
		labels[scribev1.Reason(n)] = scribev1.EnumName(scribev1.Reason(n))
	}
	return labels
}()

// reasonOf guesses the reason of an error without one: from a proxy in between, or from another implementation. Unavailable may
// come from a proxy that forwarded the request and got no answer.
func reasonOf(c connect.Code) scribev1.Reason {
	switch c {
	case connect.CodeResourceExhausted:
		return scribev1.Reason_REASON_OVERLOADED
	case connect.CodeInvalidArgument:
		return scribev1.Reason_REASON_INVALID
	case connect.CodeDataLoss:
		return scribev1.Reason_REASON_CORRUPT
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeCanceled, connect.CodeAborted:
		return scribev1.Reason_REASON_UNKNOWN_OUTCOME
	default:
		return scribev1.Reason_REASON_UNSPECIFIED
	}
}

// FromInfo converts the info of a part of an answer back into an error. It is nil for nil.
func FromInfo(info *scribev1.ErrorInfo) error {
	if info == nil {
		return nil
	}
	return InfoError(info, errors.New(info.GetMessage()))
}
