package export

import (
	"bufio"
	"bytes"
	"io"
	"slices"
	"unicode"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"golang.org/x/text/width"

	"scribe/columnar/value"
)

const (
	// tableRows is the number of buffered rows that determine the column widths. Later rows keep or widen them.
	tableRows = 1000
	// tableBytes is the maximum number of bytes of these rows.
	tableBytes = 4 << 20
	// widest is the maximum width to which a column is padded. A longer text shifts only the rest of its own row.
	widest = 80
)

// tableWriter writes aligned columns: numbers to the right, all others to the left.
type tableWriter struct {
	out    lineWriter
	schema *arrow.Schema
	headed bool        // the header was printed
	cells  []tableCell // of buffered rows, one row after the other
	text   []byte      // the text of cells
	widths []int
	right  []bool
	rows   int // number of buffered rows
	// limit is the maximum width of a line; 0 = none. line is the line that is being cut, cut the number of lines that were.
	limit int
	line  []byte
	cut   int64
	// most is the maximum number of rows; 0 = none. taken are the rows so far, without the hidden ones after them.
	most, taken, hidden int64
}

// tableCell is a buffered value: the end of its text, and its width in terminal columns.
type tableCell struct{ end, width int }

// TableWriter writes a table for a terminal.
type TableWriter interface {
	Writer
	// CutLines returns how many lines were cut because they are wider than the terminal, HiddenColumns how many columns nothing is seen of.
	CutLines() int64
	HiddenColumns() int
	// HiddenRows returns how many rows were left out after the first ones.
	HiddenRows() int64
}

// TableLimits bounds a table.
type TableLimits struct {
	// Width is the maximum width of a line in terminal columns: the rest of a wider one is replaced by an ellipsis. 0 is no limit.
	Width int
	// Rows is the number of rows after which others are counted, but not written. 0 is no limit.
	Rows int64
}

// NewTable returns a Writer of the format [Table] with limits.
func NewTable(w io.Writer, s *arrow.Schema, limits TableLimits) TableWriter {
	t := newTableWriter(lineWriter{bufio.NewWriterSize(w, bufferSize)}, s)
	t.limit, t.most = max(limits.Width, 0), max(limits.Rows, 0)
	return t
}

// HiddenRows implements TableWriter.
func (t *tableWriter) HiddenRows() int64 { return t.hidden }

// HiddenColumns implements TableWriter.
func (t *tableWriter) HiddenColumns() (n int) {
	begin := 0
	for _, w := range t.widths {
		if t.limit > 0 && begin >= t.limit-1 && t.cut > 0 { // the last place of a line that is cut has the ellipsis
			n++
		}
		begin += w + 2
	}
	return n
}

// CutLines implements TableWriter.
func (t *tableWriter) CutLines() int64 { return t.cut }

func newTableWriter(out lineWriter, s *arrow.Schema) *tableWriter {
	t := &tableWriter{out: out, schema: s, widths: make([]int, s.NumFields()), right: make([]bool, s.NumFields())}
	for i, f := range s.Fields() {
		t.right[i] = slices.Contains(numbers, f.Type.ID())
		t.widths[i] = min(max(displayWidth(escapeText(f.Name)), displayWidth([]byte(value.TypeName(f.Type)))), widest)
	}
	return t
}

// numbers are the types that are aligned to the right.
var numbers = []arrow.Type{arrow.INT32, arrow.INT64, arrow.UINT64, arrow.FLOAT64, arrow.DECIMAL128}

// Write implements Writer.
func (t *tableWriter) Write(batch arrow.RecordBatch) error {
	values := make([]valueAppender, batch.NumCols())
	for i, a := range batch.Columns() {
		values[i], _ = textAppender(a)
	}
	var scratch []byte
	rows := batch.NumRows()
	if t.most > 0 {
		rows = min(rows, t.most-t.taken)
	}
	t.taken, t.hidden = t.taken+rows, t.hidden+batch.NumRows()-rows
	for row := range int(rows) {
		for i, value := range values {
			if scratch = append(scratch[:0], "NULL"...); !isNull(batch.Column(i), row) {
				scratch = value(scratch[:0], row)
			}
			begin := len(t.text)
			t.text = appendVisible(t.text, scratch)
			n := displayWidth(t.text[begin:])
			t.cells = append(t.cells, tableCell{len(t.text), n})
			t.widths[i] = max(t.widths[i], min(n, widest))
		}
		if t.rows++; t.rows >= tableRows || len(t.text) >= tableBytes {
			if err := t.printRows(); err != nil {
				return err
			}
		}
	}
	return nil
}

// printRows writes the buffered rows.
func (t *tableWriter) printRows() error {
	for _, line := range bytes.SplitAfter(t.appendHead(nil), []byte("\n")) {
		if _, err := t.out.Write(t.cutLine(line)); err != nil {
			return err
		}
	}
	begin := 0
	for n, c := range t.cells {
		cell := t.appendCell(t.out.AvailableBuffer(), n%len(t.widths), t.text[begin:c.end], c.width)
		begin = c.end
		if t.limit > 0 {
			if t.line = append(t.line, cell...); n%len(t.widths) < len(t.widths)-1 {
				continue
			}
			cell = t.cutLine(t.line)
			t.line = t.line[:0]
		}
		if _, err := t.out.Write(cell); err != nil {
			return err
		}
	}
	if t.cells, t.text, t.rows = t.cells[:0], t.text[:0], 0; cap(t.text) > 2*tableBytes {
		t.text = nil
	}
	return nil
}

// cutLine cuts a line, which ends with a newline unless it is empty, at the limit. It cuts in place.
func (t *tableWriter) cutLine(line []byte) []byte {
	if t.limit == 0 || len(line) <= t.limit || displayWidth(line[:len(line)-1]) <= t.limit {
		return line
	}
	t.cut++
	n, width := 0, 0
	for {
		_, size := utf8.DecodeRune(line[n:])
		if width += displayWidth(line[n : n+size]); width > t.limit-1 {
			return append(bytes.TrimRight(line[:n:n], " "), "…\n"...)
		}
		n += size
	}
}

// appendHead appends the names, the types and a line, once.
func (t *tableWriter) appendHead(dst []byte) []byte {
	if t.headed {
		return dst
	}
	t.headed = true
	for i, f := range t.schema.Fields() {
		name := escapeText(f.Name)
		dst = t.appendCell(dst, i, name, displayWidth(name))
	}
	for i, f := range t.schema.Fields() {
		name := []byte(value.TypeName(f.Type))
		dst = t.appendCell(dst, i, name, displayWidth(name))
	}
	for i, n := range t.widths {
		dst = t.appendCell(dst, i, bytes.Repeat([]byte("-"), n), n)
	}
	return dst
}

// blanks has at least as many blanks as stand between two values.
var blanks = bytes.Repeat([]byte(" "), widest+2)

// appendCell appends a cell of a column. It appends no spaces at the end of a line.
func (t *tableWriter) appendCell(dst []byte, column int, text []byte, n int) []byte {
	spaces := max(t.widths[column]-n, 0)
	if t.right[column] {
		dst = append(dst, blanks[:spaces]...)
		spaces = 0
	}
	dst = append(dst, text...)
	if column == len(t.widths)-1 {
		return append(dst, '\n')
	}
	return append(dst, blanks[:spaces+2]...)
}

// Flush implements Writer.
func (t *tableWriter) Flush() error {
	if err := t.printRows(); err != nil {
		return err
	}
	return t.out.Flush()
}

// Close implements Writer.
func (t *tableWriter) Close() error { return t.Flush() }

func escapeText(text string) []byte { return appendVisible(nil, []byte(text)) }

// appendVisible appends text with control characters, and characters that change the text direction, as escapes.
func appendVisible(dst, text []byte) []byte {
	const digits = "0123456789abcdef"
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r == '\n':
			dst = append(dst, `\n`...)
		case r == '\r':
			dst = append(dst, `\r`...)
		case r == '\t':
			dst = append(dst, `\t`...)
		case r < 0x100 && unicode.IsControl(r):
			dst = append(dst, '\\', 'x', digits[r>>4&15], digits[r&15])
		case unicode.Is(unicode.Cf, r) && r <= 0xffff:
			dst = append(dst, '\\', 'u', digits[r>>12&15], digits[r>>8&15], digits[r>>4&15], digits[r&15])
		default:
			dst = append(dst, text[:n]...)
		}
		text = text[n:]
	}
	return dst
}

// displayWidth returns the width of a text in terminal columns.
func displayWidth(text []byte) int {
	n := 0
	for len(text) > 0 {
		if text[0] < utf8.RuneSelf {
			n++
			text = text[1:]
			continue
		}
		r, size := utf8.DecodeRune(text)
		text = text[size:]
		if unicode.In(r, unicode.Mn, unicode.Me) {
			continue
		}
		n++
		if k := width.LookupRune(r).Kind(); k == width.EastAsianWide || k == width.EastAsianFullwidth {
			n++
		}
	}
	return n
}
