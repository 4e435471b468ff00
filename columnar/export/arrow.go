package export

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// streamWriter writes an Arrow IPC stream.
type streamWriter struct {
	out  lineWriter
	ipc  *ipc.Writer
	body *streamBody
}

func newStream(out lineWriter, s *arrow.Schema) *streamWriter {
	body := &streamBody{out: out, schema: s}
	return &streamWriter{out: out, body: body, ipc: ipc.NewWriterWithPayloadWriter(body, ipc.WithSchema(s))}
}

// Write implements Writer.
func (w *streamWriter) Write(batch arrow.RecordBatch) (err error) {
	defer recoverError(&err)
	return w.ipc.Write(batch)
}

// Flush implements Writer. The first call writes the schema, so that a reader can begin before there are rows.
func (w *streamWriter) Flush() (err error) {
	defer recoverError(&err)
	if err := w.body.writeSchema(); err != nil {
		return err
	}
	return w.out.Flush()
}

// Close implements Writer.
func (w *streamWriter) Close() (err error) {
	defer recoverError(&err)
	if err := w.ipc.Close(); err != nil {
		return err
	}
	return w.out.Flush()
}

// streamBody writes the messages of a stream. writeSchema may write the schema earlier than the IPC writer sends it.
type streamBody struct {
	out    lineWriter
	schema *arrow.Schema
	begun  bool // the schema was written
	came   bool // and the IPC writer has sent it, too
}

func (b *streamBody) writeSchema() error {
	if b.begun {
		return nil
	}
	b.begun = true
	schema := ipc.GetSchemaPayload(b.schema, memory.DefaultAllocator)
	defer schema.Release()
	_, err := schema.WritePayload(b.out)
	return err
}

// Start implements ipc.PayloadWriter.
func (b *streamBody) Start() error { return nil }

// WritePayload implements ipc.PayloadWriter. The first payload is the schema.
func (b *streamBody) WritePayload(p ipc.Payload) error {
	if !b.came {
		b.came = true
		return b.writeSchema()
	}
	_, err := p.WritePayload(b.out)
	return err
}

// Close implements ipc.PayloadWriter.
func (b *streamBody) Close() error {
	_, err := b.out.Write(endOfStream[:])
	return err
}

// endOfStream is the continuation marker and a length of 0.
var endOfStream = [8]byte{0xFF, 0xFF, 0xFF, 0xFF}

// recoverError converts a panic of Arrow's writers into an error. It must be deferred.
func recoverError(err *error) {
	if v := recover(); v != nil { //nolint:revive // it is called by defer alone
		*err = fmt.Errorf("encode a batch: %v", v)
	}
}
