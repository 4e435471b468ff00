package export

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
)

// Format is the format of a result.
type Format string

// Formats.
const (
	Table     Format = "table"   // aligned columns under their names and types
	JSONLines Format = "jsonl"   // one JSON object per row, one per line
	CSV       Format = "csv"     // RFC 4180, with the names in the first line
	Arrow     Format = "arrow"   // an Arrow IPC stream
	Parquet   Format = "parquet" // a Parquet file
)

// Formats returns all formats.
func Formats() []Format { return []Format{Table, JSONLines, CSV, Arrow, Parquet} }

// ParseFormat returns the format with a name.
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

// Binary reports whether a format is binary and thus unfit for a terminal.
func (f Format) Binary() bool { return f == Arrow || f == Parquet }

var contentTypes = map[Format]string{
	JSONLines: "application/x-ndjson", CSV: "text/csv; charset=utf-8; header=present",
	Arrow: "application/vnd.apache.arrow.stream", Parquet: "application/vnd.apache.parquet",
}

// ContentType returns the media type of a format.
func (f Format) ContentType() string { return cmp.Or(contentTypes[f], "text/plain; charset=utf-8") }

// Writer writes a result. It is not safe for concurrent use. After an error it must not be used further.
type Writer interface {
	// Write writes the rows of a batch, which must have the writer's schema. It does not keep the batch.
	Write(arrow.RecordBatch) error
	// Flush passes buffered data to the underlying writer, as far as the format allows: an incomplete row group of a Parquet file
	// stays.
	Flush() error
	// Close writes the end of the format and flushes. It does not close the underlying writer. A result without rows is complete,
	// too: it has its schema.
	Close() error
}

// New returns a Writer to w for rows of a schema. It returns an error that names the first column that the format can't
// represent. It does not write yet.
func New(f Format, w io.Writer, s *arrow.Schema) (Writer, error) {
	out := lineWriter{bufio.NewWriterSize(w, bufferSize)}
	switch f {
	case Table:
		return newTableWriter(out, s), nil
	case JSONLines:
		return newJSONLines(out, s), nil
	case CSV:
		return newCSV(w, s), nil
	case Arrow:
		return newStream(out, s), nil
	case Parquet:
		return newParquet(w, s)
	default:
		_, err := ParseFormat(string(f))
		return nil, err
	}
}

// bufferSize is the number of bytes that a writer buffers.
const bufferSize = 64 << 10
