package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"scribe/consumer"
	"scribe/internal/transport/rpc"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob"
)

// Exit codes of every command. They are a contract: scripts branch on them.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitDenied      = 4
	exitUnavailable = 5
	exitPartly      = 6
)

// codedError carries the exit code of an error that does not show it by itself.
type codedError struct {
	code int
	err  error
}

// Error implements error.
func (e *codedError) Error() string { return e.err.Error() }

// Unwrap gives access to the cause.
func (e *codedError) Unwrap() error { return e.err }

// usage marks an error as a mistake in how the command was called.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return &codedError{code: exitUsage, err: err}
}

// exitCode maps an error to the process's exit code.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if coded := new(codedError); errors.As(err, &coded) {
		return coded.code
	}
	switch rpc.ReasonOf(err) { //nolint:exhaustive // the others have no code of their own
	case scribev1.Reason_REASON_UNKNOWN_CATEGORY, scribev1.Reason_REASON_UNKNOWN_SHARD, scribev1.Reason_REASON_MISSING,
		scribev1.Reason_REASON_UNKNOWN_GROUP:
		return exitNotFound
	case scribev1.Reason_REASON_OVERLOADED, scribev1.Reason_REASON_SHUTTING_DOWN, scribev1.Reason_REASON_NO_BACKEND:
		return exitUnavailable
	}
	if ce, ok := errors.AsType[*connect.Error](err); ok {
		switch ce.Code() { //nolint:exhaustive // the others have no code of their own
		case connect.CodeNotFound:
			return exitNotFound
		case connect.CodePermissionDenied, connect.CodeUnauthenticated:
			return exitDenied
		case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeResourceExhausted:
			return exitUnavailable
		}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, consumer.ErrUnavailable), errors.Is(err, producer.ErrUnavailable),
		errors.Is(err, producer.ErrUnknownOutcome):
		return exitUnavailable
	case errors.Is(err, blob.ErrNotFound), errors.Is(err, consumer.ErrUnknownCategory):
		return exitNotFound
	}
	return exitError
}

// origin is what an error carries of where it comes from: the package of a library, or the code of the protocol. Programs need it; a person
// has the exit code.
var origin = regexp.MustCompile(`(^|\n|: |\(|; )(?:(?:blob|catalog|checkpoint|consumer|discovery|layout|producer|record|canceled|unknown|invalid_argument|deadline_exceeded|not_found|` +
	`already_exists|permission_denied|resource_exhausted|failed_precondition|aborted|out_of_range|unimplemented|internal|unavailable|data_loss|unauthenticated): )+`)

// plain is an error as a person reads it: what two steps failed with for the same reason stands there once.
func plain(err error) string {
	var lines []string
	for line := range strings.SplitSeq(origin.ReplaceAllString(rpc.Message(err), "$1"), "\n") {
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// called is what a person reads of a failed call. What a server says of a request names what was tried, on what and why; of any
// other failure, doing and the address say it. The cause stays within reach of exitCode.
func called(server, doing string, err error) error {
	ce, ok := errors.AsType[*connect.Error](err)
	switch {
	case !ok:
		return fmt.Errorf("%s: ask %s: %w", doing, server, err)
	case ce.Code() == connect.CodeUnavailable && connect.IsWireError(ce) && len(ce.Details()) == 0: // the server answered, and has nobody to ask
		return &callError{text: fmt.Sprintf("%s: %s can't reach its control plane: %s", doing, server, plain(errors.New(ce.Message()))), err: err}
	case ce.Code() == connect.CodeUnavailable && rpc.Info(err).GetRetryAfter() == nil: // else the server answered, and says what it lacks
		return &callError{text: fmt.Sprintf("%s: %s is not available: %s; --server or SCRIBE_SERVER gives another address", doing, server, ce.Message()), err: err}
	case len(ce.Details()) == 0:
		return fmt.Errorf("%s: ask %s: %w", doing, server, err)
	}
	failed := &callError{text: ce.Message(), err: err}
	if ce.Code() == connect.CodeInvalidArgument {
		return usage(failed)
	}
	return failed
}

// callError shows an error without the words of the protocol.
type callError struct {
	text string
	err  error
}

// Error implements error.
func (e *callError) Error() string { return e.text }

// Unwrap gives access to the cause.
func (e *callError) Unwrap() error { return e.err }
