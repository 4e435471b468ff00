// Package request checks the requests of the control plane's services, and classifies failures of its store.
package request

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/base/units"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// Violations collects the violations of a request, so that one answer lists all of them.
type Violations []string

// Add adds a violation of a field.
func (v *Violations) Add(field, format string, args ...any) {
	*v = append(*v, field+": "+fmt.Sprintf(format, args...))
}

// String joins the violations.
func (v Violations) String() string { return strings.Join(v, "; ") }

// Err returns the violations as one error, or nil if there are none. what describes the request.
func (v Violations) Err(what string) error {
	if len(v) == 0 {
		return nil
	}
	return rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: %s", what, v)
}

// CheckDuration checks a duration that is set.
func (v *Violations) CheckDuration(field string, d *durationpb.Duration, least, most time.Duration) {
	if err := d.CheckValid(); err != nil {
		v.Add(field, "is not a duration")
	} else if got := d.AsDuration(); got < least || got > most {
		v.Add(field, "%v is not within %v and %v", units.Duration(got), units.Duration(least), units.Duration(most))
	}
}

// Duration returns a duration after checking it, or the default if it is not set.
func (v *Violations) Duration(field string, d *durationpb.Duration, least, most, unset time.Duration) time.Duration {
	if d.GetSeconds() == 0 && d.GetNanos() == 0 {
		return unset
	}
	v.CheckDuration(field, d, least, most)
	return d.AsDuration()
}

// CheckText checks free text.
func (v *Violations) CheckText(field, s string, limit int) {
	switch {
	case len(s) > limit:
		v.Add(field, "%d bytes, the limit is %d", len(s), limit)
	case !utf8.ValidString(s):
		v.Add(field, "is not UTF-8")
	}
}

// ReadError wraps the error of a failed read of the store with its reason. what describes the read.
func ReadError(what string, err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w", what, err)
	case errors.Is(err, kv.ErrClosed):
		return rpc.RetryErrorf(scribev1.Reason_REASON_SHUTTING_DOWN, time.Second, "%s: %w", what, err)
	case errors.Is(err, kv.ErrCorrupt):
		return rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "%s: %w", what, err)
	default:
		return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, time.Second, "%s: the store does not answer: %w", what, err)
	}
}
