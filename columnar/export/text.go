package export

import (
	"bytes"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/value"
)

// jsonLines writes one object per row.
type jsonLines struct {
	out   *bufferedWriter
	names [][]byte // encoded, with the colon
}

func newJSONLines(out *bufferedWriter, s *arrow.Schema) *jsonLines {
	w := &jsonLines{out: out}
	for _, f := range s.Fields() {
		w.names = append(w.names, append(value.AppendJSONString(nil, f.Name), ':'))
	}
	return w
}

// Write implements Writer.
func (w *jsonLines) Write(batch arrow.RecordBatch) error {
	values := make([]valueAppender, batch.NumCols())
	for i, a := range batch.Columns() {
		values[i] = jsonValue(a)
	}
	for row := range int(batch.NumRows()) {
		b := append(w.out.buf, '{')
		for i, value := range values {
			if i > 0 {
				b = append(b, ',')
			}
			b = value(append(b, w.names[i]...), row)
		}
		w.out.buf = append(b, '}', '\n')
		if err := w.out.flushIfFull(); err != nil {
			return err
		}
	}
	return nil
}

// Flush implements Writer.
func (w *jsonLines) Flush() error { return w.out.flushBuffer() }

// Close implements Writer.
func (w *jsonLines) Close() error { return w.out.flushBuffer() }

// csvWriter writes lines of CSV (RFC 4180).
type csvWriter struct{ out *bufferedWriter }

// newline ends a line of CSV (RFC 4180, section 2).
const newline = "\r\n"

func newCSV(out *bufferedWriter, s *arrow.Schema) *csvWriter {
	for i, f := range s.Fields() {
		if i > 0 {
			out.buf = append(out.buf, ',')
		}
		out.buf = appendField(out.buf, []byte(f.Name))
	}
	out.buf = append(out.buf, newline...)
	return &csvWriter{out: out}
}

// Write implements Writer.
func (w *csvWriter) Write(batch arrow.RecordBatch) error {
	values := make([]valueAppender, batch.NumCols())
	for i, a := range batch.Columns() {
		values[i], _ = textAppender(a)
	}
	var scratch []byte
	for row := range int(batch.NumRows()) {
		for i, value := range values {
			if i > 0 {
				w.out.buf = append(w.out.buf, ',')
			}
			if isNull(batch.Column(i), row) {
				continue
			}
			scratch = value(scratch[:0], row)
			w.out.buf = appendField(w.out.buf, scratch)
		}
		w.out.buf = append(w.out.buf, newline...)
		if err := w.out.flushIfFull(); err != nil {
			return err
		}
		if cap(scratch) > 16*bufferSize {
			scratch = nil
		}
	}
	return nil
}

// appendField appends a field. It quotes fields that need it, and the empty text, which would otherwise be null.
func appendField(dst, field []byte) []byte {
	if len(field) > 0 && !bytes.ContainsAny(field, "\",\r\n") {
		return append(dst, field...)
	}
	dst = append(dst, '"')
	for {
		i := bytes.IndexByte(field, '"')
		if i < 0 {
			return append(append(dst, field...), '"')
		}
		dst = append(append(dst, field[:i]...), '"', '"')
		field = field[i+1:]
	}
}

// Flush implements Writer.
func (w *csvWriter) Flush() error { return w.out.flushBuffer() }

// Close implements Writer.
func (w *csvWriter) Close() error { return w.out.flushBuffer() }
