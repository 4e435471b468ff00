package export

import (
	"bufio"
	"bytes"
	"io"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/value"
)

// lineWriter is the part of the writers of lines that does not depend on their format. Lines are made in its buffer.
type lineWriter struct{ *bufio.Writer }

// Close implements Writer.
func (w lineWriter) Close() error { return w.Flush() }

// jsonLines writes one object per row.
type jsonLines struct {
	lineWriter
	names [][]byte // encoded, with the colon
}

func newJSONLines(out lineWriter, s *arrow.Schema) *jsonLines {
	w := &jsonLines{lineWriter: out}
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
		b := append(w.AvailableBuffer(), '{')
		for i, value := range values {
			if i > 0 {
				b = append(b, ',')
			}
			b = value(append(b, w.names[i]...), row)
		}
		if _, err := w.Writer.Write(append(b, '}', '\n')); err != nil {
			return err
		}
	}
	return nil
}

// csvWriter writes lines of CSV (RFC 4180).
type csvWriter struct{ lineWriter }

// newline ends a line of CSV (RFC 4180, section 2).
const newline = "\r\n"

// newCSV buffers the names of columns, so that nothing is written yet.
func newCSV(w io.Writer, s *arrow.Schema) *csvWriter {
	var line []byte
	for i, f := range s.Fields() {
		if i > 0 {
			line = append(line, ',')
		}
		line = appendCSVField(line, []byte(f.Name))
	}
	line = append(line, newline...)
	out := lineWriter{bufio.NewWriterSize(w, max(bufferSize, len(line)))}
	out.Write(line) //nolint:errcheck,gosec // the buffer takes it
	return &csvWriter{out}
}

// Write implements Writer.
func (w *csvWriter) Write(batch arrow.RecordBatch) error {
	values := make([]valueAppender, batch.NumCols())
	for i, a := range batch.Columns() {
		values[i], _ = textAppender(a)
	}
	var scratch []byte
	for row := range int(batch.NumRows()) {
		line := w.AvailableBuffer()
		for i, value := range values {
			if i > 0 {
				line = append(line, ',')
			}
			if !isNull(batch.Column(i), row) {
				scratch = value(scratch[:0], row)
				line = appendCSVField(line, scratch)
			}
		}
		if _, err := w.Writer.Write(append(line, newline...)); err != nil {
			return err
		}
	}
	return nil
}

// appendCSVField appends a field. It quotes fields that need it, and the empty text, which would otherwise be null.
func appendCSVField(dst, field []byte) []byte {
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
