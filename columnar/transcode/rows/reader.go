package rows

import (
	"fmt"

	"scribe/internal/format/record"
)

// FrameReader makes rows from frames of row messages. Each worker of a plan has its own, used by one goroutine at a time, for one
// payload after another.
type FrameReader interface {
	// ReadFrame appends the rows of a frame's messages to w. first is the payload index of the first message. An error ends the
	// payload; it is only for failures that no single row causes, such as a damaged frame. ReadFrame must not keep the frame's
	// bytes.
	ReadFrame(w *Writer, f record.Frame, first uint32) error
}

// MessageReader makes rows of one message. It is for formats that read messages one by one; PerMessage makes a FrameReader of it.
//
// For each row, ReadMessage calls w.BeginRow(). For each field for which w.Declared[i] is not nil it then appends at most one value
// to that column, or calls w.FailValue(i, ...), which makes it null. For a row that can't be read at all it calls w.FailRow(...).
// Then it calls w.EndRow(). Fields without a value get their default. All rows are those of the message that the preceding
// SetMessage call named. ReadMessage must not keep the message's bytes.
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

// RowTooLong returns the reason why a message of n bytes is not read.
func RowTooLong(n, limit int) string {
	return fmt.Sprintf("the message has %d bytes, a row may have %d", n, limit)
}
