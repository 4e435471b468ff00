// Package payload is what a consumer and package columns know of each other: a payload on its way to the loop, and what else than messages is
// made of it. Package consumer does not import package columns, so that a program which reads messages does not link Arrow.
package payload

import (
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"

	"scribe/internal/format/loss"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// Payload is a payload that was fetched or is being fetched. Until it is delivered it belongs to the goroutine that fetches it.
type Payload struct {
	Category string
	Shard    record.ShardID
	LSN      record.LSN
	Time     int64 // persisted, Unix microseconds
	// Source and SourceLSN are where a payload of a sequenced category was written, else Shard and LSN.
	Source    record.ShardID
	SourceLSN record.LSN
	// Messages is how many messages the pointer announces; Left is how many of them are not delivered. The loop alone changes Left.
	Messages uint32
	Left     atomic.Int64
	// Frames are the checked frames; nil when the evaluation has no more use for them.
	Frames []byte
	// Keep says that something that was handed out may point into Frames: their memory is not used again.
	Keep bool
	// Err is what is wrong with the payload; of the last item of an iteration, why it ended.
	Err error

	// Result and what follows are an evaluation's. Result is what it made of the payload, which takes ResultBytes of memory.
	Result      any
	ResultBytes int64
	// Filtered says that Matches are the messages to be delivered, in increasing order.
	Filtered bool
	Matches  []uint32
}

// Evaluation makes rows of payloads, or chooses messages among them. Its functions are called by the goroutines that fetch, several at a time;
// skip is how many messages at the beginning of the payload were delivered before.
type Evaluation struct {
	// Query is what the stream is asked for: it leaves out pointers whose payloads can't match. It may be nil.
	Query *scribev1.Query
	// View is what read proxies are asked for instead of payloads as they are stored; nil when these are wanted.
	View *scribev1.View
	// FromView sets the result of a payload that came as a view, whose checksum was compared. After an error the payload is fetched as it is stored.
	FromView func(p *Payload, answer *scribev1.Payload, skip uint32, d *zstd.Decoder) error
	// FromFrames sets the result of a payload whose frames are there, and sets Frames to nil if nothing else needs them.
	FromFrames func(p *Payload, skip uint32) error

	// Counts are kept by the consumer.
	Counts struct {
		Pointers, SkippedPointers, SkippedMessages, SkippedBytes, ViewsRefused atomic.Uint64
	}
}

// Limits are what an extension may change of a consumer's configuration.
type Limits struct {
	UntilEnd      bool
	Until         time.Time // the zero Time: no end
	PrefetchBytes int64
}

// Deliver delivers a payload: tell yields the loss that a message among it reports, and mayGoOn is asked between two steps of the caller's
// loop. It returns false when the caller has left the loop.
type Deliver func(p *Payload, tell func(*loss.Report) bool, mayGoOn func() bool) bool

// MayBeReport reports whether a frame may be the report of a loss: it has one message.
func MayBeReport(h *record.Header) bool { return h.Count == 1 && h.Encoding == record.EncodingMessages }

// ParseReport returns the report of a loss that a frame is, nil when it is something else.
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
		return new(report), nil // a copy: most messages are no report
	}
	return nil, nil
}
