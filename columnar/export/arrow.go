package export

import (
	"context"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/arrow/util"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"scribe/columnar/value"
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

// parquetFile writes a Parquet file, which is readable only after Close.
type parquetFile struct {
	schema *arrow.Schema // without dictionaries
	file   *pqarrow.FileWriter
	group  int64 // bytes of batches in the current row group
}

// groupBytes is the approximate size of a row group, and of the memory that it takes.
const groupBytes = 64 << 20

func newParquet(w io.Writer, s *arrow.Schema) (*parquetFile, error) {
	fields := make([]arrow.Field, s.NumFields())
	for i, f := range s.Fields() {
		if d, ok := f.Type.(*arrow.DictionaryType); ok {
			f.Type = d.ValueType // Parquet makes dictionaries by itself
		}
		if reason := unfitType(f.Type); reason != "" {
			return nil, fmt.Errorf("column %q: Parquet cannot hold %s: cast it to text, or choose another format", f.Name, reason)
		}
		fields[i] = f
	}
	p := &parquetFile{schema: arrow.NewSchema(fields, nil)}
	props := parquet.NewWriterProperties(parquet.WithCompression(compress.Codecs.Zstd), parquet.WithVersion(parquet.V2_LATEST),
		parquet.WithCreatedBy("scribe"))
	var err error
	if p.file, err = pqarrow.NewFileWriter(p.schema, notClosed{w}, props, pqarrow.NewArrowWriterProperties(pqarrow.WithStoreSchema())); err != nil {
		return nil, fmt.Errorf("start a Parquet file: %w", err)
	}
	return p, nil
}

// notClosed hides a writer's Close method, because the caller owns the writer.
type notClosed struct{ io.Writer }

// unfitType returns the name of a type inside t that Parquet can't represent.
func unfitType(t arrow.DataType) string {
	switch t := t.(type) {
	case *arrow.MonthDayNanoIntervalType:
		return value.TypeName(t)
	case arrow.NestedType:
		if s, ok := t.(*arrow.StructType); ok && s.NumFields() == 0 {
			return "an empty struct"
		}
		for _, f := range t.Fields() {
			if reason := unfitType(f.Type); reason != "" {
				return reason
			}
		}
	}
	return ""
}

// Write implements Writer.
func (w *parquetFile) Write(batch arrow.RecordBatch) (err error) {
	defer recoverError(&err)
	columns := make([]arrow.Array, batch.NumCols())
	for i, a := range batch.Columns() {
		if d, ok := a.(*array.Dictionary); ok {
			if a, err = compute.TakeArray(context.Background(), d.Dictionary(), d.Indices()); err != nil {
				return err
			}
		} else {
			a.Retain()
		}
		columns[i] = a
	}
	plain := array.NewRecordBatch(w.schema, columns, batch.NumRows())
	defer plain.Release()
	for _, a := range columns {
		a.Release()
	}
	size := util.TotalRecordSize(plain)
	if w.group > 0 && w.group+size > groupBytes {
		if err := w.file.NewBufferedRowGroupChecked(); err != nil {
			return err
		}
		w.group = 0
	}
	w.group += size
	return w.file.WriteBuffered(plain)
}

// Flush implements Writer. It does nothing: a row group is written only when it is complete.
func (w *parquetFile) Flush() error { return nil }

// Close implements Writer.
func (w *parquetFile) Close() (err error) {
	defer recoverError(&err)
	return w.file.Close()
}
