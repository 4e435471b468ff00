package producer

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"scribe/internal/base/buffers"
	"scribe/internal/format/record"
)

// outFrame is a frame of one stream that is open, queued or in flight. Its stripe's mutex guards it. While a request carries it,
// the sender of that request owns it.
type outFrame struct {
	builder record.Builder  // used until the frame is encoded; frames of rows only
	buf     *buffers.Buffer // memory of the builder; nil once a request has packed the frame
	// capacity is that of buf, or of data without one. Together with frameOverhead it is charged to the memory bound.
	capacity int64
	data     []byte // the encoded frame; nil until encoded. In flight it may be part of its request's memory
	length   int    // of the encoded frame, in bytes, once sealed
	count    int    // messages in it, once sealed
	// messages counts the messages added to it, including those that cutStored removed. size is the sum of their Message.Size.
	messages int
	size     int64
	ack      AckLevel
	out      *Result
	base     time.Time // event time of messages without one
	taken    time.Time // when the frame was created, by the system's clock
	placing  *placing  // how its messages were placed; nil if their callers did
	next     *outFrame // in the stream's queue
	lingered bool      // it lingers long, or did, and nobody waits for it or for a later one of its stream

	// Sequences of the messages, see shardStream. A frame keeps them for all attempts, unless no attempt can have been stored or
	// be stored later.
	numbered bool
	epoch    uint32
	first    uint64

	attempts int
	gaps     int   // times it was refused as out of sequence although all earlier frames had outcomes
	maybe    bool  // an attempt may have been stored
	alone    bool  // sent in a request of its own, after a request that was refused as a whole
	last     error // error of the last failed attempt
	lastWhy  error // sentinel of that error
}

// frameOverhead is charged for a frame in addition to its buffer, for its structs, in bytes.
const frameOverhead = 512

// hasSpace reports whether n more bytes of messages fit the buffer.
func (f *outFrame) hasSpace(n int) bool { return int64(f.builder.Len()+n) <= f.capacity }

// mayBeStored reports whether any of the frame's messages may be stored: by an attempt whose outcome is unknown, or because cutStored
// removed them. They share one outcome.
func (f *outFrame) mayBeStored() bool { return f.maybe || f.count < f.messages }

// finishEncoding completes the encoding: sequences, counts and checksums. It accesses only the frame, so that a sender can call
// it without a lock, once for every numbering.
func (f *outFrame) finishEncoding(producer uint64) error {
	if f.data != nil {
		return record.SetSequence(f.data, producer, f.epoch, f.first)
	}
	f.builder.SetSequence(producer, f.epoch, f.first)
	data, err := f.builder.Finish()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	f.data = data
	return nil
}

// cutStored removes the first n messages of an encoded frame of rows, which are stored already, and keeps the sequences of the
// rest. Only here is a frame encoded twice: it happens when a producer continues an earlier one and divides the messages into
// frames differently.
func (f *outFrame) cutStored(n int) error {
	var d record.Decoder
	h, err := d.Reset(f.data)
	if err != nil {
		return err
	}
	if n <= 0 || n >= h.Count || h.Atomic() {
		return fmt.Errorf("%w: %d of %d messages of one frame were stored already", ErrOutOfSequence, n, h.Count)
	}
	var (
		b    = record.Builder{MaxMessageSize: record.MaxFrameLen}
		r    record.Record
		env  = h.Envelope()
		size int64
	)
	env.FirstSequence += uint64(n)
	if err := b.Reset(make([]byte, 0, len(f.data)), env); err != nil {
		return err
	}
	for d.Next(&r) {
		if r.Index < n {
			continue
		}
		m := record.Message{Payload: r.Payload, Key: r.Key}
		if r.HasTime {
			m.Time = time.UnixMicro(r.Time)
		}
		for name, value := range r.Attributes.All() {
			m.Attributes = append(m.Attributes, record.Attribute{Name: string(name), Value: value})
		}
		if err := b.Append(&m); err != nil {
			return err
		}
		size += int64(m.Size())
	}
	if err := d.Err(); err != nil {
		return err
	}
	if f.data, err = b.Finish(); err != nil {
		return err
	}
	f.length, f.first = len(f.data), f.first+uint64(n)
	return nil
}

// memoryBound bounds the bytes of all frames together.
type memoryBound struct {
	total int64
	used  atomic.Int64
	// free serves waiters in order: while one waits, no other caller gets memory. A blocked call has at most one waiter, so
	// callers bound their number.
	free *semaphore.Weighted
}

// tryTake charges n bytes if they are free and there are no waiters.
func (m *memoryBound) tryTake(n int64) bool {
	ok := m.free.TryAcquire(n)
	if ok {
		m.used.Add(n)
	}
	return ok
}

// takeWhenFree waits until n bytes are free and charges them. n is at most the total. It fails when ctx ends.
func (m *memoryBound) takeWhenFree(ctx context.Context, n int64) error {
	err := m.free.Acquire(ctx, n)
	if err == nil {
		m.used.Add(n)
	}
	return err
}

// giveBack releases n bytes.
func (m *memoryBound) giveBack(n int64) {
	m.used.Add(-n)
	m.free.Release(n)
}

// smallestBuffer has space for a header and one or two messages: most categories get no more in a linger. Buffers of frames have
// few sizes, each bufferGrowth times the previous one, up to the size of a full batch. Larger buffers have the size that is
// needed.
const (
	smallestBuffer = 1 << 10
	bufferGrowth   = 4
)

// bufferSize returns the size of the smallest buffer for n bytes.
func (c *sharedCore) bufferSize(n int) int64 {
	if n > c.largestBuffer {
		return (int64(n) + 4095) &^ 4095
	}
	size := smallestBuffer
	for size < n {
		size *= 2
	}
	return int64(min(size, c.largestBuffer))
}
