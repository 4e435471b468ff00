package retry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"connectrpc.com/connect"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func TestEveryReasonHasAClass(t *testing.T) {
	for number, name := range scribev1.Reason_name {
		if _, ok := classes[scribev1.Reason(number)]; !ok {
			t.Errorf("%s has no class", name)
		}
	}
	if got := ClassOf(9999); got != Unexplained {
		t.Errorf("an unknown reason has class %d", got)
	}
}

func TestClassify(t *testing.T) {
	reason := func(r scribev1.Reason) error {
		return fmt.Errorf("write: %w", rpc.RetryErrorf(r, time.Hour, "no"))
	}
	plain := func(c connect.Code) error { return connect.NewError(c, errors.New("no")) }
	for _, c := range []struct {
		name string
		err  error
		want Decision // without Info
	}{
		{"no error", nil, Decision{}},
		{"unavailable server", reason(scribev1.Reason_REASON_NO_BACKEND), Decision{Class: Unavailable, Reason: scribev1.Reason_REASON_NO_BACKEND, After: LongestHint}},
		{"overloaded server", reason(scribev1.Reason_REASON_OVERLOADED), Decision{Class: Overloaded, Reason: scribev1.Reason_REASON_OVERLOADED, After: LongestHint}},
		{"fenced", reason(scribev1.Reason_REASON_FENCED), Decision{Class: Passing, Reason: scribev1.Reason_REASON_FENCED, After: LongestHint}},
		{"lost answer", reason(scribev1.Reason_REASON_UNKNOWN_OUTCOME), Decision{Class: UnknownOutcome, Unknown: true, Reason: scribev1.Reason_REASON_UNKNOWN_OUTCOME, After: LongestHint}},
		{"server's bug", reason(scribev1.Reason_REASON_UNSPECIFIED), Decision{Class: Unexplained, Unknown: true, After: LongestHint}},
		{"invalid request", reason(scribev1.Reason_REASON_INVALID), Decision{Class: Invalid, Reason: scribev1.Reason_REASON_INVALID, After: LongestHint}},
		{"sealed log", reason(scribev1.Reason_REASON_SEALED), Decision{Class: Refused, Reason: scribev1.Reason_REASON_SEALED, After: LongestHint}},
		{"no connection", fmt.Errorf("write: %w", &net.OpError{Op: "dial", Err: errors.New("refused")}), Decision{Class: Unavailable, Reason: scribev1.Reason_REASON_NO_BACKEND}},
		{"broken connection", &net.OpError{Op: "read", Err: errors.New("reset")}, Decision{Class: Unavailable, Unknown: true, Reason: scribev1.Reason_REASON_NO_BACKEND}},
		{"deadline", context.DeadlineExceeded, Decision{Class: UnknownOutcome, Unknown: true, Reason: scribev1.Reason_REASON_UNKNOWN_OUTCOME}},
		{"wrong address", plain(connect.CodeUnimplemented), Decision{Class: Invalid}},
		{"missing rights", plain(connect.CodePermissionDenied), Decision{Class: Invalid}},
		{"bad request", plain(connect.CodeInvalidArgument), Decision{Class: Invalid, Reason: scribev1.Reason_REASON_INVALID}},
		{"limit on the way", plain(connect.CodeResourceExhausted), Decision{Class: Overloaded, Unknown: true, Reason: scribev1.Reason_REASON_OVERLOADED}},
		{"proxy without an answer", plain(connect.CodeUnavailable), Decision{Class: Unavailable, Unknown: true, Reason: scribev1.Reason_REASON_NO_BACKEND}},
	} {
		got := Classify(c.err)
		got.Info = nil
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestRetryable(t *testing.T) {
	for class, want := range map[Class]bool{
		None: false, Invalid: false, Refused: false, Unexplained: false,
		Unavailable: true, Overloaded: true, Passing: true, UnknownOutcome: true,
	} {
		if class.Retryable() != want {
			t.Errorf("class %d is retryable: %t", class, !want)
		}
	}
	if Retryable(nil) || Retryable(errors.New("no")) || !Retryable(context.DeadlineExceeded) {
		t.Error("Retryable must follow the reason of the error")
	}
	info := &scribev1.ErrorInfo{}
	if Hint(nil, time.Second) != 0 || Hint(info, time.Second) != 0 {
		t.Error("a hint without one")
	}
}
