// Package payload is the contract between package consumer and package columns: a payload on its way to the loop, and its
// evaluation into something other than messages. Package consumer does not import package columns, so a program that reads
// messages does not link Arrow.
package payload

import (
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"

	"scribe/internal/format/loss"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// Payload is a payload that was fetched or is being fetched. Until it is delivered the fetching goroutine owns it.
type Payload struct {
	Category string
	Shard    record.ShardID
	LSN      record.LSN
	Time     int64 // persisted time, Unix microseconds
	// Source and SourceLSN are where a payload of a sequenced category was written; in other categories they are Shard and LSN.
	Source    record.ShardID
	SourceLSN record.LSN
	// Messages is the number of messages that the pointer announces, Left the number of undelivered ones. Only the loop changes
	// Left.
	Messages uint32
	Left     atomic.Int64
	// Frames are the checked frames; nil when the evaluation no longer needs them.
	Frames []byte
	// Keep: the caller may hold references into Frames, so their memory is not reused.
	Keep bool
	// Err is why the payload can't be delivered; in the last item of an iteration, why the iteration ended.
	Err error

	// The evaluation sets the fields from here on. Result is its result for the payload, and ResultBytes the result's memory.
	Result      any
	ResultBytes int64
	// Filtered: only Matches are delivered, in increasing order.
	Filtered bool
	Matches  []uint32
}

// Evaluation turns payloads into rows, or selects messages in them. The fetching goroutines call its functions, several at a
// time; skip is the number of messages at the beginning of the payload that were delivered before.
type Evaluation struct {
	// Query is the filter sent to the stream, which leaves out pointers whose payloads can't match. It may be nil.
	Query *scribev1.Query
	// View is what read proxies evaluate instead of sending stored payloads; nil to fetch stored payloads.
	View *scribev1.View
	// FromView sets the result of a payload that arrived as a view, after its checksum was compared. After an error the payload
	// is fetched as it is stored.
	FromView func(p *Payload, answer *scribev1.Payload, skip uint32, d *zstd.Decoder) error
	// FromFrames sets the result of a payload with frames, and sets Frames to nil if nothing else needs them.
	FromFrames func(p *Payload, skip uint32) error

	// Shards returns the logical shards of a category in which there may be something for the evaluation; ok is false if that may be any.
	// It may be nil: then all are read. The consumer calls it again when the category may have changed.
	Shards func(*scribev1.Category) (shards []uint32, ok bool)

	// The consumer maintains Counts.
	Counts struct {
		Pointers, SkippedPointers, SkippedMessages, SkippedBytes, ViewsRefused atomic.Uint64
	}
}

// Limits are the parts of a consumer's configuration that an extension may change.
type Limits struct {
	UntilEnd      bool
	Until         time.Time // the zero Time means no end
	PrefetchBytes int64
}

// Deliver delivers a payload. tell yields the loss of a loss report among its messages; mayGoOn is called between two steps of
// the caller's loop; it may be nil. Deliver returns false when the caller has left the loop.
type Deliver func(p *Payload, tell func(*loss.Report) bool, mayGoOn func() bool) bool

// MayBeReport reports whether a frame may be a loss report: it has one message.
func MayBeReport(h *record.Header) bool { return h.Count == 1 && h.Encoding == record.EncodingMessages }

// ParseReport returns the loss report in a frame, nil when the frame is something else.
func ParseReport(f *record.Frame) (*loss.Report, error) {
	if !MayBeReport(&f.Header) {
		return nil, nil
	}
	var (
		d record.Decoder
		r record.Record
	)
	if _, err := d.Reset(f.Bytes); err != nil {
		return nil, err
	}
	if !d.Next(&r) {
		return nil, d.Err()
	}
	if report, ok := loss.Parse(r.Payload, r.Attributes); ok {
		return new(report), nil // a copy: most messages are not reports
	}
	return nil, nil
}
