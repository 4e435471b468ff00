// Package publish encodes the messages of a PublishRequest into one frame. The host's agent and the write proxy use it for
// callers without a client library. The frame is not sequenced, so repeating a request stores its messages again.
package publish

import (
	"errors"
	"maps"
	"slices"
	"time"

	"scribe/internal/format/placement"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Limits of a request.
const (
	MaxMessages = 10_000
	MaxBytes    = 32 << 20 // of the frame
)

// Frame encodes the frame. Messages over maxMessage bytes are refused; 0 means record.DefaultMaxMessageSize. Messages without a
// time get now. Errors have REASON_INVALID, REASON_UNKNOWN_SHARD or REASON_TOO_LARGE, and name the message by its index from 0.
func Frame(req *scribev1.PublishRequest, maxMessage int, now time.Time) ([]byte, error) {
	messages := req.GetMessages()
	if n := len(messages); n < 1 || n > MaxMessages {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "the request has %d messages, want 1 to %d", n, MaxMessages)
	}
	if err := record.ValidateCategory(req.GetCategory()); err != nil {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "category: %w", err)
	}
	if req.GetShard() > record.MaxLogicalShard {
		return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_SHARD, "no category has a logical shard %d, the highest is %d", req.GetShard(), record.MaxLogicalShard)
	}
	b := record.Builder{MaxMessageSize: maxMessage}
	env := record.Envelope{Category: req.GetCategory(), Shard: req.GetShard(), Atomic: req.GetAtomic(), BaseTime: now.UnixMicro()}
	if env.Shard == 0 { // the write proxy knows how the category places messages
		env.Placement = placement.Unplaced
	}
	if err := b.Reset(nil, env); err != nil {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "%w", err)
	}
	for i, m := range messages {
		err := b.Append(appendMessage(m))
		if err == nil && b.Len() > MaxBytes {
			err = record.ErrFrameFull
		}
		switch {
		case err == nil:
		case errors.Is(err, record.ErrFrameFull):
			return nil, rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "the request has over %d bytes with message %d: send less at once", MaxBytes, i)
		case errors.Is(err, record.ErrTooLarge):
			return nil, rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "message %d: %w", i, err)
		default:
			return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "message %d: %w", i, err)
		}
	}
	return b.Finish()
}

func appendMessage(m *scribev1.PublishMessage) *record.Message {
	out := &record.Message{Payload: m.GetPayload()}
	if t, ok := m.GetContent().(*scribev1.PublishMessage_Text); ok {
		out.Payload = []byte(t.Text)
	}
	if m.Key != nil {
		out.Key = m.GetKey()
	}
	if m.Time != nil {
		out.Time = time.UnixMicro(m.GetTime())
	}
	for _, name := range slices.Sorted(maps.Keys(m.GetAttributes())) {
		out.Attributes = append(out.Attributes, record.Attribute{Name: name, Value: m.GetAttributes()[name]})
	}
	return out
}

// Response returns the response to a request whose frame has the result r.
func Response(req *scribev1.PublishRequest, r *scribev1.FrameResult) (*scribev1.PublishResponse, error) {
	switch {
	case r.GetError() != nil:
		return nil, rpc.FromInfo(r.GetError())
	case r.GetSampledOut():
		return &scribev1.PublishResponse{SampledOut: true}, nil // no message was taken
	default:
		return &scribev1.PublishResponse{Count: uint32(len(req.GetMessages())), Shard: r.GetShard(), Lsn: r.GetLsn()}, nil
	}
}
