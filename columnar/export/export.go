package export

import (
	"fmt"
	"io"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
)

// Format is how an answer is written.
type Format string

// Formats.
const (
	Table     Format = "table"   // aligned columns under their names and types
	JSONLines Format = "jsonl"   // a JSON object a row, one a line
	CSV       Format = "csv"     // RFC 4180, with the names in the first line
	Arrow     Format = "arrow"   // an Arrow IPC stream
	Parquet   Format = "parquet" // a Parquet file
)

// Formats returns all of them.
func Formats() []Format { return []Format{Table, JSONLines, CSV, Arrow, Parquet} }

// ParseFormat returns the format of a name.
func ParseFormat(name string) (Format, error) {
	names := make([]string, 0, len(Formats()))
	for _, f := range Formats() {
		if string(f) == name {
			return f, nil
		}
		names = append(names, string(f))
	}
	return "", fmt.Errorf("invalid format %q: want one of %s", name, strings.Join(names, ", "))
}

// Binary says that a format is no text: not for a terminal.
func (f Format) Binary() bool { return f == Arrow || f == Parquet }

// ContentType is the media type of a format.
func (f Format) ContentType() string {
	switch f {
	case JSONLines:
		return "application/x-ndjson"
	case CSV:
		return "text/csv; charset=utf-8; header=present"
	case Arrow:
		return "application/vnd.apache.arrow.stream"
	case Parquet:
		return "application/vnd.apache.parquet"
	default:
		return "text/plain; charset=utf-8"
	}
}

// Writer writes an answer. Its methods are called by one goroutine. After an error nothing more may be written.
type Writer interface {
	// Write adds the rows of a batch, which it does not keep. The batch has the schema of the writer.
	Write(arrow.RecordBatch) error
	// Flush hands everything that was written to the writer below, as far as the format allows: a row group of a Parquet file stays.
	Flush() error
	// Close writes what belongs at the end, and flushes. It does not close the writer below. An answer without a single row is whole, too:
	// it has its schema.
	Close() error
}

// New returns a writer to w of rows of a schema. The error says which column a format has no form for.
func New(f Format, w io.Writer, s *arrow.Schema) (Writer, error) {
	out := &bufferedWriter{w: w}
	switch f {
	case Table:
		return newTable(out, s), nil
	case JSONLines:
		return newJSONLines(out, s), nil
	case CSV:
		return newCSV(out, s), nil
	case Arrow:
		return newStream(out, s), nil
	case Parquet:
		return newParquet(w, s)
	default:
		_, err := ParseFormat(string(f))
		return nil, err
	}
}

// bufferSize is how much is collected before it is handed on.
const bufferSize = 64 << 10

// bufferedWriter collects small writes. buf may be appended to directly; full says when it is time to flush.
type bufferedWriter struct {
	w   io.Writer
	buf []byte
}

// Write implements io.Writer. What is large by itself is not copied.
func (b *bufferedWriter) Write(p []byte) (int, error) {
	if len(p) >= bufferSize {
		if err := b.flushBuffer(); err != nil {
			return 0, err
		}
		return b.w.Write(p)
	}
	b.buf = append(b.buf, p...)
	return len(p), b.flushIfFull()
}

// flushIfFull flushes when enough was collected.
func (b *bufferedWriter) flushIfFull() error {
	if len(b.buf) < bufferSize {
		return nil
	}
	return b.flushBuffer()
}

func (b *bufferedWriter) flushBuffer() error {
	if len(b.buf) == 0 {
		return nil
	}
	_, err := b.w.Write(b.buf)
	if b.buf = b.buf[:0]; cap(b.buf) > 16*bufferSize {
		b.buf = nil // a large value should not stay
	}
	return err
}
