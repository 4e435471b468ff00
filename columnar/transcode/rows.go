package transcode

import (
	"strconv"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"scribe/internal/format/record"
)

// rows collects the rows of one batch: a column for each input of the plan. Readers fill the declared columns; the message's own
// columns, defaults, _error, and the rejection of rows that do not fit are done here.
type rows struct {
	p    *plan
	cols []*column // by input
	// declared are those of fields, by the field's index; nil for a field that is not needed.
	declared []*column
	n        int // rows that are complete
	stats    Stats

	m     *record.Record
	index uint32

	// Of the row that is being made.
	rowBad bool
	faults int    // things that did not fit
	report []byte // what they were, for _error
	rest   []byte // for _rest; nothing means null

	// all says that rows that the predicate rules out are wanted, too: the filter of the whole predicate follows.
	all    bool
	failed error
}

func newRows(p *plan) *rows {
	w := &rows{p: p, cols: make([]*column, len(p.inputs)), declared: make([]*column, len(p.schema.Fields))}
	for i := range p.inputs {
		in := &p.inputs[i]
		w.cols[i] = newColumn(&in.typ, true)
		if in.field >= 0 {
			w.declared[in.field] = w.cols[i]
		}
	}
	return w
}

// setMessage says which message the rows that follow belong to. It is kept until the next.
func (w *rows) setMessage(m *record.Record, index uint32) { w.m, w.index = m, index }

// err is not nil when the batch has become too large: the payload can't be transcoded.
func (w *rows) err() error { return w.failed }

// column is that of a declared field; nil if it is not needed.
func (w *rows) column(field int) *column { return w.declared[field] }

// begin begins a row.
func (w *rows) begin() {
	w.rowBad, w.faults = false, 0
	w.report, w.rest = w.report[:0], w.rest[:0]
}

// maxReported and maxReport bound what one _error says.
const (
	maxReported = 8
	maxReport   = 1 << 10
)

// fault adds to what _error says: that at a byte of the row something does not fit. who is "row" or the name of a column, at is -1
// where no byte can be named.
func (w *rows) fault(who string, at int, why string) {
	w.faults++
	if !w.p.wantsError || w.faults > maxReported || len(w.report) > maxReport {
		return
	}
	w.report = appendFault(w.report, who, at, why)
}

// appendFault adds a fault to a text of _error.
func appendFault(dst []byte, who string, at int, why string) []byte {
	if len(dst) > 0 {
		dst = append(dst, "; "...)
	}
	dst = append(dst, who...)
	if at >= 0 {
		dst = append(dst, " at byte "...)
		dst = strconv.AppendInt(dst, int64(at), 10)
	}
	dst = append(dst, ": "...)
	return append(dst, why...)
}

// appendMore ends a text of _error that has room for maxReported of so many faults.
func appendMore(dst []byte, faults int) []byte {
	if faults <= maxReported {
		return dst
	}
	dst = append(dst, "; and "...)
	dst = strconv.AppendInt(dst, int64(faults-maxReported), 10)
	return append(dst, " more"...)
}

// badValue makes the value of a declared field null, since what stands at a byte of the row (-1: nowhere in it) does not fit. What was
// appended to the column for this row is taken back.
func (w *rows) badValue(field, at int, why string) {
	c := w.declared[field]
	c.truncate(w.n)
	c.appendNull()
	w.stats.BadValues++
	w.fault(w.p.schema.Fields[field].Name, at, why)
}

// badRow makes every declared column null.
func (w *rows) badRow(at int, why string) {
	for _, c := range w.declared {
		if c != nil {
			c.truncate(w.n)
			c.appendNull()
		}
	}
	w.rowBad = true
	w.faults, w.report, w.rest = 0, w.report[:0], w.rest[:0]
	w.stats.BadRows++
	w.fault("row", at, why)
}

// end ends the row: fields without a value take their default, and the columns that every category has are filled.
func (w *rows) end() {
	for i, c := range w.declared {
		if c != nil && c.n == w.n {
			w.missing(i, c)
		}
	}
	w.endComplete()
}

// endComplete is end for a row of which every field that is needed has a value.
func (w *rows) endComplete() {
	w.stats.Rows++
	if w.faults > 0 && w.p.rejects {
		w.stats.Rejected++
		for _, c := range w.declared {
			if c != nil {
				c.truncate(w.n)
			}
		}
		return
	}
	for _, i := range w.p.own {
		w.own(w.p.inputs[i].own, w.cols[i])
	}
	w.n++
	if w.n&1023 == 0 || w.n >= w.p.limits.Rows {
		w.check()
	}
}

// missing appends what a field has that no value was given for.
func (w *rows) missing(field int, c *column) {
	f := &w.p.fields[field]
	switch {
	case f.fallback != nil:
		f.fallback(c)
	case f.nullable:
		c.appendNull()
	default:
		w.badValue(field, -1, "no value, and the column is not nullable")
	}
}

// own appends to one of the columns that every category has.
func (w *rows) own(kind ownColumn, c *column) {
	switch kind {
	case ownTime:
		c.appendInt64(w.m.Time)
	case ownKey:
		if w.m.HasKey {
			c.appendString(w.m.Key)
		} else {
			c.appendNull()
		}
	case ownIndex:
		c.appendInt32(int32(w.index))
	case ownPayload:
		c.appendString(w.m.Payload)
	case ownAttr:
		w.attributes(c)
	case ownRest:
		if len(w.rest) == 0 {
			c.appendNull()
		} else {
			c.appendString(w.rest)
		}
	case ownError:
		if w.faults == 0 {
			c.appendNull()
			return
		}
		w.report = appendMore(w.report, w.faults)
		c.appendString(validText(w.report))
	}
}

func (w *rows) attributes(c *column) {
	for name, value := range w.m.Attributes.All() {
		c.children[0].appendString(validText(name))
		c.children[1].appendString(validText(value))
	}
	c.appendList()
}

// validText is b with whatever is no UTF-8 replaced.
func validText(b []byte) []byte {
	if utf8.Valid(b) {
		return b
	}
	return appendValid(make([]byte, 0, len(b)+8), b)
}

// appendValid appends b with each byte that is no part of a character replaced by U+FFFD.
func appendValid(dst, b []byte) []byte {
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		dst = utf8.AppendRune(dst, r)
		b = b[n:]
	}
	return dst
}

// check fails the batch when it is over a limit.
func (w *rows) check() {
	if w.n > w.p.limits.Rows {
		w.failed = tooLarge("a payload of more than %d rows", w.p.limits.Rows)
		return
	}
	var size int64
	for i, c := range w.cols {
		if c.tooFull() {
			w.failed = tooLarge("column %q of one payload takes more than 2 GiB", w.p.inputs[i].name)
			return
		}
		size += c.size()
	}
	if size > w.p.limits.Bytes {
		w.failed = tooLarge("the columns of one payload take more than %d bytes", w.p.limits.Bytes)
	}
}

// finish makes a batch of the plan's inputs of the rows, and leaves none.
func (w *rows) finish() (arrow.RecordBatch, error) {
	if w.check(); w.failed != nil {
		return nil, w.failed
	}
	arrays := make([]arrow.Array, len(w.cols))
	for i, c := range w.cols {
		arrays[i] = c.finish(w.p.input.Field(i).Type)
		c.reset()
	}
	batch := array.NewRecordBatch(w.p.input, arrays, int64(w.n))
	for _, a := range arrays {
		a.Release()
	}
	w.n = 0
	return batch, nil
}

// reset forgets the rows of a payload that failed, and the figures.
func (w *rows) reset() {
	for _, c := range w.cols {
		c.reset()
	}
	w.n, w.failed, w.stats, w.m = 0, nil, Stats{}, nil
}
