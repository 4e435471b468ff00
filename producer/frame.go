package producer

import (
	"fmt"
	"time"

	"scribe/internal/base/buffers"
	"scribe/internal/format/record"
)

// outFrame is a batch of messages of one stream on its way. Its stripe's mutex guards it, but for the time of a request that carries
// it: then it belongs to the sender of that request.
type outFrame struct {
	builder record.Builder  // while open and until finished; rows only
	buf     *buffers.Buffer // what the builder writes into
	// capacity is that of buf: with frameOverhead it is taken from the memory bound.
	capacity int64
	data     []byte // the encoded frame; nil until finished
	length   int    // of the encoded frame, in bytes, once sealed
	count    int    // messages in it, once sealed
	// messages is how many were put into it, also those that cut removed; size is what they count, see Message.Size.
	messages int
	size     int64
	ack      AckLevel
	out      *Result
	base     time.Time // event time of messages without one
	taken    time.Time // when the first message was taken, by the real clock
	next     *outFrame // in the stream's queue

	// Numbers of the messages, see stream.number. A frame keeps them for all attempts unless it is certain that no attempt was
	// and will be stored.
	numbered bool
	epoch    uint32
	first    uint64

	attempts int
	gaps     int   // how often it was refused as out of sequence though all before it was settled
	maybe    bool  // an attempt may have been stored
	alone    bool  // shares no request: one that it was in was refused as a whole
	last     error // what the last failed attempt said
	lastWhy  error // the sentinel that goes with it
}

// frameOverhead is charged for a frame beside its buffer: the structs that go with it.
const frameOverhead = 512

// hasSpace reports whether n more bytes of messages fit the buffer.
func (f *outFrame) hasSpace(n int) bool { return int64(f.builder.Len()+n) <= f.capacity }

// setSequences gives the frame its sequences.
func (f *outFrame) setSequences(epoch uint32, first uint64) {
	f.numbered, f.epoch, f.first = true, epoch, first
}

// finishEncoding encodes what is left to encode: sequences, counts and checksums. It touches nothing but the frame, so a sender does it
// without a lock, once for every numbering.
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

// cutStored drops the first n messages of a finished frame of rows, which were stored already, and numbers the rest as before. It is
// the one place where a frame is encoded twice: a producer that continues an earlier one rarely cuts its batches where that did.
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
