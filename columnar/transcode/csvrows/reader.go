package csvrows

import (
	"bytes"
	"fmt"
	"math"
	"slices"

	"scribe/columnar/schema"
	"scribe/columnar/transcode/column"
	"scribe/columnar/transcode/jsonrows"
	"scribe/columnar/transcode/jsonscan"
	"scribe/columnar/transcode/rows"
	"scribe/columnar/value"
)

// csvPlan is the state shared by the readers of a plan.
type csvPlan struct {
	delimiter []byte
	header    bool
	null      string
	fields    []int // the fields that are read
	sources   [][]string
	columns   csvColumns // for lines without a header
}

// csvColumns says which cells of a line are read.
type csvColumns struct {
	cells [][]int // for each of csvPlan.fields, the indices of the cells at its path and aliases
	width int     // number of columns in the header; 0 if lines may have any number of cells
	most  int     // cells from this index on are not read
	why   string
}

// NewReader compiles a plan for messages that are lines of CSV.
func NewReader(p *rows.Plan) (func() rows.FrameReader, error) {
	c := &csvPlan{delimiter: []byte(","), null: ""}
	if o := p.Schema.CSV; o != nil {
		c.header, c.null = o.Header, o.Null
		if o.Delimiter != "" {
			c.delimiter = []byte(o.Delimiter)
		}
	}
	if bytes.ContainsAny(c.delimiter, "\"\r\n") {
		return nil, fmt.Errorf("transcode: the delimiter %q can't stand between values", c.delimiter)
	}
	fields, indices := p.WantedFields()
	c.fields, c.sources = indices, make([][]string, len(fields))
	for i := range fields {
		for _, path := range fields[i].Sources() {
			if len(path) == 1 {
				c.sources[i] = append(c.sources[i], path[0])
			}
		}
	}
	if !c.header {
		c.columns.bindCells(c, p.Schema.LineColumns())
	}
	return func() rows.FrameReader { return &rows.PerMessage{MessageReader: &csvReader{c: c}} }, nil
}

// bindCells finds the cells of the fields among the columns of lines. The first of equal names counts.
func (l *csvColumns) bindCells(c *csvPlan, columns []string) {
	names := make(map[string]int, len(columns))
	for i, name := range slices.Backward(columns) {
		names[name] = i
	}
	l.cells, l.most = make([][]int, len(c.sources)), 0
	for i, sources := range c.sources {
		for _, name := range sources {
			if cell, ok := names[name]; ok {
				l.cells[i] = append(l.cells[i], cell)
				l.most = max(l.most, cell+1)
			}
		}
	}
}

// csvCell is a cell of a line: the range of its text, without quotes.
type csvCell struct {
	from, to int
	quoted   bool
	doubled  bool // quotes inside are doubled
}

// csvReader reads messages that are lines.
type csvReader struct {
	c       *csvPlan
	cells   []csvCell
	header  []byte // the header that own was made from
	own     csvColumns
	most    int // own.most, except while a header is read
	scratch []byte
}

var bom = []byte("\uFEFF")

func (r *csvReader) ReadMessage(w *rows.Writer, payload []byte) {
	rest := bytes.TrimPrefix(payload, bom)
	columns, empty := &r.c.columns, true
	for first := r.c.header; len(rest) > 0; {
		if rest[0] == '\n' || len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n' {
			rest = rest[bytes.IndexByte(rest, '\n')+1:]
			continue
		}
		empty = false
		if first {
			columns, rest = r.readHeader(rest)
			first = false
			continue
		}
		rest = r.readLine(w, columns, rest)
		if w.Err() != nil {
			return
		}
	}
	if empty {
		w.BeginRow()
		w.FailRow(0, "empty; lines belong here")
		w.EndRow()
	}
}

// maxHeader is the maximum length of a header in bytes, and its maximum number of columns.
const maxHeader = 1 << 20

// readHeader reads the column names, which are the same in most messages.
func (r *csvReader) readHeader(b []byte) (*csvColumns, []byte) {
	r.own.most = math.MaxInt
	n, end, _, why := r.cutLine(b, r.own.most)
	line, rest := b[:end], b[end:]
	switch {
	case why != "":
		why = "the header can't be read: " + why
	case len(line) > maxHeader:
		why = "the header is too long"
	}
	if r.own.why = why; why != "" {
		r.header = nil
		return &r.own, rest
	}
	if r.header != nil && bytes.Equal(line, r.header) {
		r.own.most = r.most
		return &r.own, rest
	}
	names := make([]string, n)
	for i, c := range r.cells {
		names[i] = string(r.cellText(b, c))
	}
	r.own.bindCells(r.c, names)
	r.own.width, r.most = n, r.own.most
	r.header = append(r.header[:0], line...)
	return &r.own, rest
}

// readLine makes a row of the line at the beginning of b and returns the rest.
func (r *csvReader) readLine(w *rows.Writer, columns *csvColumns, b []byte) (rest []byte) {
	w.BeginRow()
	defer w.EndRow()
	n, end, bad, why := r.cutLine(b, columns.most)
	rest = b[end:]
	switch {
	case columns.why != "":
		w.FailRow(0, columns.why)
		return rest
	case end > w.Plan.Limits.RowBytes:
		w.FailRow(0, rows.RowTooLong(end, w.Plan.Limits.RowBytes))
		return rest
	case why != "":
		w.FailRow(bad, why)
		return rest
	case columns.width > 0 && n != columns.width:
		w.FailRow(0, fmt.Sprintf("the line has %d cells, the header has %d", n, columns.width))
		return rest
	}
	for i, cells := range columns.cells {
		r.appendField(w, r.c.fields[i], b, cells, n)
	}
	return rest
}

// appendField appends the first of a field's cells that has a value. For a field that is not nullable, null does not count as a
// value.
func (r *csvReader) appendField(w *rows.Writer, field int, b []byte, cells []int, n int) {
	for _, i := range cells {
		if i >= n {
			continue
		}
		cell := r.cells[i]
		text := r.cellText(b, cell)
		if cell.quoted || string(text) != r.c.null {
			if why := putCell(w.Declared[field], text); why != "" {
				w.FailValue(field, cell.from, why)
			}
			return
		}
		if w.Declared[field].Nullable {
			w.Declared[field].AppendNull()
			return
		}
	}
}

// putCell appends a text: as a JSON string or number if possible, otherwise in PostgreSQL's syntax of the type.
func putCell(c *column.Buffer, text []byte) (why string) {
	kind := c.Type.Kind
	switch kind {
	case schema.String, schema.Binary:
		return column.PutString(c, text)
	case schema.Int32, schema.Int64:
		if len(text) > 0 {
			if v, end, ok := jsonscan.ShortInteger(text, 0, len(text)); ok && end == len(text) {
				return column.PutInt(c, v)
			}
		}
	default:
	}
	trimmed := bytes.TrimSpace(text)
	number := jsonscan.Scalar(trimmed) >= jsonscan.Integer
	switch kind {
	case schema.Date, schema.Timestamp:
		if why = column.PutString(c, trimmed); why != "" && number {
			why = column.PutNumber(c, trimmed)
		}
		return why
	case schema.List, schema.Map, schema.Struct:
		return jsonrows.AppendValue(c, trimmed)
	case schema.Bool:
		v, err := value.ParseBool(trimmed)
		if err != nil {
			return column.WhyNotBool
		}
		c.AppendBool(v)
		return ""
	default:
	}
	if number {
		return column.PutNumber(c, trimmed)
	}
	return putLoose(c, trimmed)
}

// putLoose appends a number outside JSON's grammar: +1, 007, .5, NaN.
func putLoose(c *column.Buffer, text []byte) (why string) {
	var v int64
	var err error
	switch c.Type.Kind {
	case schema.Int32:
		v, err = value.ParseInt(text, 32)
	case schema.Int64:
		v, err = value.ParseInt(text, 64)
	case schema.Uint64:
		var u uint64
		u, err = value.ParseUint(text)
		v = int64(u)
	case schema.Float64:
		var f float64
		f, err = value.ParseFloat(text)
		v = int64(math.Float64bits(f))
	case schema.Decimal:
		d, err := value.ParseDecimal(text, c.Type.Precision, c.Type.Scale)
		if err != nil {
			return column.WhyNotNumber
		}
		c.AppendDecimal(d)
		return ""
	default:
		return column.WhyNot(c.Type.Kind)
	}
	if err != nil {
		return column.WhyNotNumber
	}
	c.AppendWord(v)
	return ""
}

// cellText returns the text of a cell. It is valid until the next call.
func (r *csvReader) cellText(b []byte, c csvCell) []byte {
	text := b[c.from:c.to]
	if !c.doubled {
		return text
	}
	r.scratch = r.scratch[:0]
	for {
		i := bytes.IndexByte(text, '"')
		if i < 0 {
			return append(r.scratch, text...)
		}
		r.scratch = append(r.scratch, text[:i+1]...)
		text = text[i+2:]
	}
}

// cutLine cuts the line at the beginning of b into cells and stores the first most of them in r.cells. It returns the number of
// cells and the start of the next line. If the line can't be read, it also returns where and why.
func (r *csvReader) cutLine(b []byte, most int) (n, end, bad int, why string) {
	r.cells = r.cells[:0]
	end = lineEnd(b, 0)
	line := trimEnd(b[:end])
	if bytes.IndexByte(line, '"') >= 0 {
		return r.cutQuoted(b, most)
	}
	at := 0
	for {
		i := bytes.Index(line[at:], r.c.delimiter)
		to := at + i
		if i < 0 {
			to = len(line)
		}
		if n < most {
			r.cells = append(r.cells, csvCell{from: at, to: to})
		}
		n++
		if i < 0 {
			return n, end, 0, ""
		}
		at = to + len(r.c.delimiter)
	}
}

// trimEnd removes the line ending.
func trimEnd(line []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
}

// cutQuoted is cutLine for lines with quotes. Such a line may extend past its first line feed.
func (r *csvReader) cutQuoted(b []byte, most int) (n, end, bad int, why string) {
	at, feed := 0, -1 // position of the next line feed
	for {
		c := csvCell{from: at, to: at}
		if at < len(b) && b[at] == '"' {
			c.quoted, c.from = true, at+1
			if c.to, c.doubled = closingQuote(b, at+1); c.to < 0 {
				// The end of the line is unknown, and the content of a cell must not become rows.
				return n, len(b), at, fmt.Sprintf("a quote is not closed in the %d bytes to the end of the message", len(b)-at)
			}
			at = c.to + 1
		} else {
			if feed < at { // unknown, or inside quotes
				if feed = bytes.IndexByte(b[at:], '\n') + at; feed < at {
					feed = len(b)
				}
			}
			stop := feed
			if i := bytes.Index(b[at:feed], r.c.delimiter); i >= 0 {
				stop = at + i
				c.to = stop
			} else {
				c.to = at + len(trimEnd(b[at:feed]))
			}
			if i := bytes.IndexByte(b[at:stop], '"'); i >= 0 {
				return n, lineEnd(b, at), at + i, "a quote inside a cell that does not begin with one"
			}
			at = stop
		}
		if n < most {
			r.cells = append(r.cells, c)
		}
		n++
		switch rest := b[at:]; {
		case len(rest) == 0:
			return n, at, 0, ""
		case bytes.HasPrefix(rest, r.c.delimiter):
			at += len(r.c.delimiter)
		case rest[0] == '\n':
			return n, at + 1, 0, ""
		case rest[0] == '\r' && len(rest) == 1:
			return n, at + 1, 0, ""
		case rest[0] == '\r' && rest[1] == '\n':
			return n, at + 2, 0, ""
		default:
			return n, lineEnd(b, at), at, "something follows the quote that ends a cell"
		}
	}
}

// lineEnd returns the start of the line after the one that contains at.
func lineEnd(b []byte, at int) int {
	if i := bytes.IndexByte(b[at:], '\n'); i >= 0 {
		return at + i + 1
	}
	return len(b)
}

// closingQuote returns the position of the quote that closes a cell whose text begins at from, or -1 if there is none.
func closingQuote(b []byte, from int) (at int, doubled bool) {
	for {
		i := bytes.IndexByte(b[from:], '"')
		if i < 0 {
			return -1, doubled
		}
		from += i
		if from+1 >= len(b) || b[from+1] != '"' {
			return from, doubled
		}
		doubled = true
		from += 2
	}
}
