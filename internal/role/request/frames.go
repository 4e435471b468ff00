// Package request takes the requests of writers apart: frames of any categories, one after another. The agent, the write proxy and the
// batcher each do that, and the rules are the same:
//
//	resolver := categories.NewResolver() // a Categories that lives as long as the role
//	for frames := request.Walk(ctx, data); frames.Next(); {
//		if frames.Err == nil {
//			category, frames.Err = resolver.FindCategory(ctx, &frames.Header)
//		}
//		... // frames.Err is the frame's own outcome, else it is taken
//	}
//	if err := frames.Fault(); err != nil {
//		return nil, err // the request as a whole is refused
//	}
//
// [Frames] tells a damaged frame, which is refused alone, from bytes after which nobody knows where the next frame begins. [Resolver]
// looks a category up once for neighbours, keeps one category for all frames of a name where their order counts, and keeps the rule of
// prefixes: after a frame that is refused for a reason that may pass, no other frame of its shard is taken. [Amount] counts what
// frames hold. Nothing here is done for a message, and nothing is allocated for a frame.
package request

import (
	"context"
	"errors"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Frames walks the frames of a request.
type Frames struct {
	// Frame is the current frame, which points into the request. When Err is set only its Bytes and Offset are of use.
	record.Frame
	// Index is its number in the request, from 0.
	Index int
	// Err is why the frame is refused alone, with REASON_CORRUPT: its body is damaged.
	Err error

	data  []byte
	next  int // where the next frame begins
	check func([]byte) (record.Header, error)
	fault error
}

// Walk walks the frames of data and checks each, but for the checksums of the bodies when the caller said [rpc.WithChecked].
func Walk(ctx context.Context, data []byte) Frames {
	return Frames{Index: -1, data: data, check: rpc.CheckerOf(ctx)}
}

// WalkHeaders walks the frames of data without a look at the bodies.
func WalkHeaders(data []byte) Frames {
	return Frames{Index: -1, data: data, check: record.CheckHeader}
}

// Next goes to the next frame. It is false after the last one, and where nobody knows where the next one begins: see Fault.
func (f *Frames) Next() bool {
	if f.next >= len(f.data) {
		return false
	}
	f.Index++
	f.Offset = f.next
	rest := f.data[f.next:]
	f.Header, f.Err = f.check(rest)
	size := f.Len
	if f.Err != nil {
		if size = f.refuseFrame(rest); size == 0 {
			f.next = len(f.data)
			return false
		}
	}
	f.Bytes = rest[:size:size]
	f.next += size
	return true
}

// refuseFrame gives a frame that does not pass its check the error that is told. It returns the frame's size, or 0 with a fault of the
// whole request.
func (f *Frames) refuseFrame(rest []byte) (size int) {
	if h, err := record.ParseHeader(rest); err == nil && h.Len <= len(rest) {
		f.Err = rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "frame at byte %d of the request: %w", f.Offset, f.Err)
		return h.Len
	}
	reason := scribev1.Reason_REASON_CORRUPT
	if errors.Is(f.Err, record.ErrVersion) {
		reason = scribev1.Reason_REASON_INVALID
	}
	f.fault = rpc.Errorf(reason, "frame at byte %d of the request: %w", f.Offset, f.Err)
	return 0
}

// Fault is why the whole request is refused, after Next was false; nil when every frame was walked.
func (f *Frames) Fault() error { return f.fault }

// AsUnknown returns what is told of a frame that failed in the end, when an earlier attempt may have stored it: an unknown outcome.
func AsUnknown(info *scribev1.ErrorInfo) *scribev1.ErrorInfo {
	if info.GetReason() == scribev1.Reason_REASON_UNKNOWN_OUTCOME {
		return info
	}
	return &scribev1.ErrorInfo{
		Reason: scribev1.Reason_REASON_UNKNOWN_OUTCOME, RetryAfter: info.GetRetryAfter(), Conflicts: info.GetConflicts(),
		Message: "an earlier attempt may have stored it; the last one: " + info.GetMessage(),
	}
}
