package rows

import (
	"fmt"

	"scribe/internal/format/record"
)

// FrameReader makes rows of the frames of row messages. One is made for each worker of a plan; it is used by one goroutine at a time, and for one
// payload after the other.
type FrameReader interface {
	// ReadFrame appends the rows of a frame's messages to w; first is the index in the payload of the first message. An error ends the
	// payload, and is for what no row can be blamed for: a damaged frame. The frame's bytes may not be kept.
	ReadFrame(w *Writer, f record.Frame, first uint32) error
}

// MessageReader makes rows of one message. It is the interface for formats that look at messages one by one; perMessage makes a
// frameReader of it.
//
// For each row: w.begin(); then for each field of the schema of which w.column(i) is not nil at most one value is appended to that column, or
// w.badValue(i, ...) called, which makes it null; or w.badRow(...), for a row that can't be read at all; then w.end(). Fields without a value take
// their default. All rows of a message are between two calls of message. The message's bytes may not be kept.
type MessageReader interface {
	ReadMessage(w *Writer, payload []byte)
}

// PerMessage reads the messages of a frame one by one.
type PerMessage struct {
	MessageReader
	decoder record.Decoder
	current record.Record
}

// ReadFrame implements FrameReader.
func (r *PerMessage) ReadFrame(w *Writer, f record.Frame, first uint32) error {
	if _, err := r.decoder.Reset(f.Bytes); err != nil {
		return err
	}
	for r.decoder.Next(&r.current) {
		w.SetMessage(&r.current, first+uint32(r.current.Index))
		r.ReadMessage(w, r.current.Payload)
		if err := w.Err(); err != nil {
			return err
		}
	}
	return r.decoder.Err()
}

// RowTooLong says why a message of n bytes is not read.
func RowTooLong(n, limit int) string {
	return fmt.Sprintf("the message has %d bytes, a row may have %d", n, limit)
}
