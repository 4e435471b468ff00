package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

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

// codedError is an error with an explicit exit code.
type codedError struct {
	code int
	err  error
}

// Error implements error.
func (e *codedError) Error() string { return e.err.Error() }

// Unwrap gives access to the cause.
func (e *codedError) Unwrap() error { return e.err }

// usageError marks an error as a mistake in how the command was called.
func usageError(err error) error {
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

// origin matches the prefixes that tell a program where an error comes from: the package of a library, or the code of the protocol. Users
// have the exit code instead.
var origin = regexp.MustCompile(`(^|\n|: |\(|; )(?:(?:blob|catalog|checkpoint|consumer|discovery|layout|producer|record|canceled|unknown|invalid_argument|deadline_exceeded|not_found|` +
	`already_exists|permission_denied|resource_exhausted|failed_precondition|aborted|out_of_range|unimplemented|internal|unavailable|data_loss|unauthenticated): )+`)

// plainText returns the text of an error for users: without origins, and each line once, as two steps may fail for the same reason.
func plainText(err error) string {
	var lines []string
	for line := range strings.SplitSeq(origin.ReplaceAllString(rpc.Message(err), "$1"), "\n") {
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// callFailure returns the error of a failed call for users. A server's own error already names the operation, its object and the reason;
// for any other failure, doing and the address name them. exitCode can still find the cause.
func callFailure(server, doing string, err error) error {
	ce, ok := errors.AsType[*connect.Error](err)
	switch {
	case !ok:
		return fmt.Errorf("%s: ask %s: %w", doing, server, err)
	case ce.Code() == connect.CodeUnavailable && connect.IsWireError(ce) && len(ce.Details()) == 0: // the server answered, but can't reach the control plane
		return &callError{text: fmt.Sprintf("%s: %s can't reach its control plane: %s", doing, server, plainText(errors.New(ce.Message()))), err: err}
	case ce.Code() == connect.CodeUnavailable && rpc.Info(err).GetRetryAfter() == nil: // else the server answered, with the reason
		return &callError{text: fmt.Sprintf("%s: %s is not available: %s; set another address with --server or SCRIBE_SERVER", doing, server, ce.Message()), err: err}
	case len(ce.Details()) == 0:
		return fmt.Errorf("%s: ask %s: %w", doing, server, err)
	}
	failed := &callError{text: ce.Message(), err: err}
	if ce.Code() == connect.CodeInvalidArgument {
		return usageError(failed)
	}
	return failed
}

// callError replaces the text of an error of the protocol.
type callError struct {
	text string
	err  error
}

// Error implements error.
func (e *callError) Error() string { return e.text }

// Unwrap gives access to the cause.
func (e *callError) Unwrap() error { return e.err }

// callTimeout bounds one call of a tool that a person waits for.
const callTimeout = 15 * time.Second

// callCell makes a call for a command, of which doing says what it does. Its error is for users.
func callCell[Req, Res any](ctx context.Context, server, doing string, call func(context.Context, *Req) (*Res, error), req *Req) (*Res, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := call(ctx, req)
	if err != nil {
		return nil, callFailure(server, doing, err)
	}
	return res, nil
}

func controlClient(server string) rpc.ControlService {
	return rpc.NewControlClient(rpc.Default(), server)
}

func groupClient(server string) rpc.GroupService { return rpc.NewGroupClient(rpc.Default(), server) }

// getCategory asks for a category.
func getCategory(ctx context.Context, server, doing, name string) (*scribev1.Category, error) {
	res, err := callCell(ctx, server, doing, controlClient(server).GetCategory, &scribev1.GetCategoryRequest{Name: name})
	return res.GetCategory(), err
}

const defaultServer = "http://127.0.0.1:7420"

// serverFlag adds the flag for the address of the cell.
func serverFlag(cmd *cobra.Command) *string {
	addr := addressFlag(defaultServer)
	addClientTLS(cmd.Flags())
	cmd.Flags().Var(&addr, "server", "address of the cell: a URL, host:port or unix:/path; or several, separated by commas, of which one that answers is used (SCRIBE_SERVER)")
	return (*string)(&addr)
}

// addressFlag is the address of a cell, or several. An invalid one is a usage error, not an unavailable cell.
type addressFlag string

// String implements pflag.Value.
func (a *addressFlag) String() string { return string(*a) }

// Type implements pflag.Value.
func (a *addressFlag) Type() string { return "address" }

// Set implements pflag.Value.
func (a *addressFlag) Set(s string) error {
	list, err := rpc.ParseAddresses(s)
	if err != nil {
		return err
	}
	*a = addressFlag(list.String())
	return nil
}
