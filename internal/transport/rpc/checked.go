package rpc

import (
	"context"

	"scribe/internal/format/record"
)

type checkedKey struct{}

// WithChecked marks a context: the caller has checked the frames of the request with record.Check, or has encoded them, and their
// bytes have not left the process since. A role that is called directly then does not verify the checksums of bodies again. It
// still checks the headers, which it must read anyway, and that the frames are complete. The mark does not pass a transport,
// which may damage bytes: the server of another process verifies large frames while they arrive, and sets the mark itself; the
// role there verifies the others.
//
// A role that forwards frames sets the mark if its own context has it or it has checked the frames itself. A role that stored
// them on a disk in between sets it only for frames that it checked when it read them back.
func WithChecked(ctx context.Context) context.Context {
	return context.WithValue(ctx, checkedKey{}, true)
}

// Checked reports whether the context has the mark of [WithChecked].
func Checked(ctx context.Context) bool { return ctx.Value(checkedKey{}) != nil }

// CheckerOf returns the function with which a role checks the frames of a request: record.Check, or a check without body
// checksums if the context has the mark of [WithChecked].
func CheckerOf(ctx context.Context) func([]byte) (record.Header, error) {
	if Checked(ctx) {
		return record.CheckHeader
	}
	return record.Check
}
