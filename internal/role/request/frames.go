// Package request splits the requests of writers into frames and finds their categories. The agent, the write proxy and the
// batcher share it:
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
// [Frames] distinguishes a damaged frame, which is refused individually, from damage that hides the start of the next frame.
// [Resolver] looks a category up once for adjacent frames, and uses one category for all frames of a name where their order
// matters. It also keeps stored frames a prefix: after a frame is refused for a transient reason, later frames of its shard are
// refused too. [Amount] counts frames, bytes and messages. No work is done per message, and no memory is allocated per frame.
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
	// Frame is the current frame. Its bytes are those of the request. If Err is set, only Bytes and Offset are valid.
	record.Frame
	// Index is the frame's index in the request, from 0.
	Index int
	// Err is the frame's own error, with REASON_CORRUPT, if its body is damaged.
	Err error

	data  []byte
	next  int // where the next frame begins
	check func([]byte) (record.Header, error)
	fault error
}

// Walk walks the frames of data and checks each. It skips the checksums of bodies if ctx has the mark of [rpc.WithChecked].
func Walk(ctx context.Context, data []byte) Frames {
	return Frames{Index: -1, data: data, check: rpc.CheckerOf(ctx)}
}

// WalkHeaders walks the frames of data and checks only their headers.
func WalkHeaders(data []byte) Frames {
	return Frames{Index: -1, data: data, check: record.CheckHeader}
}

// Next advances to the next frame. It returns false after the last one, and when the start of the next one is unknown: see Fault.
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

// refuseFrame sets the error of a frame that fails its check. It returns the frame's size, or 0 if the whole request is at fault.
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

// Fault returns the error of the whole request, after Next returned false; nil if every frame was walked.
func (f *Frames) Fault() error { return f.fault }

// AsUnknown returns the error of a failed frame that an earlier attempt may have stored: an unknown outcome.
func AsUnknown(info *scribev1.ErrorInfo) *scribev1.ErrorInfo {
	if info.GetReason() == scribev1.Reason_REASON_UNKNOWN_OUTCOME {
		return info
	}
	return &scribev1.ErrorInfo{
		Reason: scribev1.Reason_REASON_UNKNOWN_OUTCOME, RetryAfter: info.GetRetryAfter(), Conflicts: info.GetConflicts(),
		Message: "an earlier attempt may have stored it; the last one: " + info.GetMessage(),
	}
}
