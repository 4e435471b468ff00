package rpc

import (
	"context"

	"scribe/internal/format/record"
)

type checkedKey struct{}

// WithChecked says that whoever calls has checked the frames of the request with record.Check, or has encoded them, and that their
// bytes have not left the process since. A role that is called directly then need not sum the bodies again: the headers, which it
// has to read anyway, and that the frames are whole, it checks as ever. Nothing of it goes over a transport, which may damage bytes:
// the server of another process sums large frames while they arrive, and says so; the role there sums the others.
//
// A role that passes frames on says so when it was told so or has checked them itself. One that kept them on a disk in between says
// it only for what it checked when it read them back.
func WithChecked(ctx context.Context) context.Context {
	return context.WithValue(ctx, checkedKey{}, true)
}

// Checked reports whether the caller said [WithChecked].
func Checked(ctx context.Context) bool { return ctx.Value(checkedKey{}) != nil }

// CheckerOf returns what a role checks the frames of a request with: record.Check, unless the caller said [WithChecked].
func CheckerOf(ctx context.Context) func([]byte) (record.Header, error) {
	if Checked(ctx) {
		return record.CheckHeader
	}
	return record.Check
}
