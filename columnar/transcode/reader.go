package transcode

import (
	"scribe/columnar/schema"
	"scribe/internal/format/record"
)

// frameReader makes rows of the frames of row messages. One is made for each worker of a plan; it is used by one goroutine at a time, and for one
// payload after the other.
type frameReader interface {
	// frame appends the rows of a frame's messages to w; first is the index in the payload of the first message. An error ends the
	// payload, and is for what no row can be blamed for: a damaged frame. The frame's bytes may not be kept.
	frame(w *rows, f record.Frame, first uint32) error
}

// messageReader makes rows of one message. It is the interface for formats that look at messages one by one; perMessage makes a
// frameReader of it.
//
// For each row: w.begin(); then for each field of the schema of which w.column(i) is not nil at most one value is appended to that column, or
// w.badValue(i, ...) called, which makes it null; or w.badRow(...), for a row that can't be read at all; then w.end(). Fields without a value take
// their default. All rows of a message are between two calls of message. The message's bytes may not be kept.
type messageReader interface {
	message(w *rows, payload []byte)
}

// readers makes the readers of the formats. A maker is called once a plan: it checks the schema, and compiles what workers share. What it
// returns is called once a worker.
var readers = map[schema.Format]func(p *plan) (func() frameReader, error){}

// perMessage reads the messages of a frame one by one.
type perMessage struct {
	messageReader
	decoder record.Decoder
	message record.Record
}

func (r *perMessage) frame(w *rows, f record.Frame, first uint32) error {
	if _, err := r.decoder.Reset(f.Bytes); err != nil {
		return err
	}
	for r.decoder.Next(&r.message) {
		w.setMessage(&r.message, first+uint32(r.message.Index))
		r.messageReader.message(w, r.message.Payload)
		if err := w.err(); err != nil {
			return err
		}
	}
	return r.decoder.Err()
}
