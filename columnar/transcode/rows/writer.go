package rows

import (
	"bytes"
	"strconv"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/transcode/column"
	"scribe/columnar/vector"
	"scribe/internal/format/record"
)

// Writer collects the rows of one batch, with one column per input of the plan. Readers fill the declared columns. Writer handles
// the message's own columns, defaults, _error, and the rejection of rows that do not fit.
type Writer struct {
	Plan *Plan
	cols []*column.Buffer // by input
	// Declared holds the columns by field index; nil for a field that is not needed.
	Declared []*column.Buffer
	Len      int // number of complete rows
	Stats    Stats

	message *record.Record
	Index   uint32
	rate    int64 // of the frame

	// State of the current row.
	rowBad     bool
	faultCount int    // values that did not fit
	report     []byte // their description, for _error
	Rest       []byte // for _rest; empty means null

	// KeepAll keeps rows that the predicate excludes, because the filter of the whole predicate runs later.
	KeepAll bool
	failure error
}

// NewWriter returns a writer without rows.
func NewWriter(p *Plan) *Writer {
	w := &Writer{Plan: p, cols: make([]*column.Buffer, len(p.Inputs)), Declared: make([]*column.Buffer, len(p.Schema.Fields))}
	for i := range p.Inputs {
		in := &p.Inputs[i]
		w.cols[i] = p.NewColumn(in)
		if in.Field >= 0 {
			w.Declared[in.Field] = w.cols[i]
		}
	}
	return w
}

// SetMessage sets the message that the following rows belong to. The writer keeps m until the next call.
func (w *Writer) SetMessage(m *record.Record, index uint32) { w.message, w.Index = m, index }

// SetRate sets the sample rate of the frame that the following messages belong to.
func (w *Writer) SetRate(rate uint32) { w.rate = int64(max(rate, 1)) }

// Err returns an error if the batch has become too large: the payload can't be transcoded.
func (w *Writer) Err() error { return w.failure }

// BeginRow begins a row.
func (w *Writer) BeginRow() {
	w.rowBad, w.faultCount = false, 0
	w.report, w.Rest = w.report[:0], w.Rest[:0]
}

// MaxReported is the maximum number of faults in one _error text, maxReport its length in bytes after which none are added.
const (
	MaxReported = 8
	maxReport   = 1 << 10
)

// reportFault adds a fault at a byte of the row to _error. who is "row" or the name of a column. at is -1 if there is no
// position.
func (w *Writer) reportFault(who string, at int, why string) {
	w.faultCount++
	if !w.Plan.WantsError || w.faultCount > MaxReported || len(w.report) > maxReport {
		return
	}
	w.report = AppendFault(w.report, who, at, why)
}

// AppendFault adds a fault to an _error text.
func AppendFault(dst []byte, who string, at int, why string) []byte {
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

// AppendMore completes an _error text that lists only MaxReported of all faults.
func AppendMore(dst []byte, faults int) []byte {
	if faults <= MaxReported {
		return dst
	}
	dst = append(dst, "; and "...)
	dst = strconv.AppendInt(dst, int64(faults-MaxReported), 10)
	return append(dst, " more"...)
}

// FailValue makes the value of a declared field null because the value at byte at of the row (-1: no position) does not fit. It
// removes what was appended to the column for this row.
func (w *Writer) FailValue(field, at int, why string) {
	c := w.Declared[field]
	c.Truncate(w.Len)
	c.AppendNull()
	w.Stats.BadValues++
	w.reportFault(w.Plan.Schema.Fields[field].Name, at, why)
}

// FailRow makes every declared column null.
func (w *Writer) FailRow(at int, why string) {
	for _, c := range w.Declared {
		if c != nil {
			c.Truncate(w.Len)
			c.AppendNull()
		}
	}
	w.rowBad = true
	w.faultCount, w.report, w.Rest = 0, w.report[:0], w.Rest[:0]
	w.Stats.BadRows++
	w.reportFault("row", at, why)
}

// EndRow ends the row. Fields without a value get their default, and the built-in columns are filled.
func (w *Writer) EndRow() {
	for i, c := range w.Declared {
		if c != nil && c.Len == w.Len {
			w.AppendMissing(i, c)
		}
	}
	w.EndFullRow()
}

// EndFullRow is EndRow for a row in which every required field has a value.
func (w *Writer) EndFullRow() {
	w.Stats.Rows++
	if w.faultCount > 0 && w.Plan.Rejects {
		w.Stats.Rejected++
		for _, c := range w.Declared {
			if c != nil {
				c.Truncate(w.Len)
			}
		}
		return
	}
	for _, i := range w.Plan.common {
		w.appendCommon(w.Plan.Inputs[i].Common, w.cols[i])
	}
	w.Len++
	if w.Len&1023 == 0 || w.Len >= w.Plan.Limits.Rows {
		w.checkLimits()
	}
}

// AppendMissing appends the default or null for a field without a value.
func (w *Writer) AppendMissing(field int, c *column.Buffer) {
	if c.AppendAbsent() != "" {
		w.FailValue(field, -1, "no value, and the column is not nullable")
	}
}

// appendCommon appends a value to a built-in column.
func (w *Writer) appendCommon(kind CommonColumn, c *column.Buffer) {
	switch kind {
	case CommonTime:
		c.AppendInt64(w.message.Time)
	case CommonKey:
		if w.message.HasKey {
			c.AppendString(w.message.Key)
		} else {
			c.AppendNull()
		}
	case CommonIndex:
		c.AppendInt32(int32(w.Index))
	case CommonRate:
		c.AppendInt64(w.rate)
	case CommonPayload:
		c.AppendString(w.message.Payload)
	case CommonAttr:
		w.appendAttributes(c)
	case CommonRest:
		if len(w.Rest) == 0 {
			c.AppendNull()
		} else {
			c.AppendString(w.Rest)
		}
	case CommonError:
		if w.faultCount == 0 {
			c.AppendNull()
			return
		}
		w.report = AppendMore(w.report, w.faultCount)
		c.AppendString(validText(w.report))
	}
}

func (w *Writer) appendAttributes(c *column.Buffer) {
	for name, value := range w.message.Attributes.All() {
		c.Children[0].AppendString(validText(name))
		c.Children[1].AppendString(validText(value))
	}
	c.AppendList()
}

// validText returns b with each invalid UTF-8 byte replaced by U+FFFD.
func validText(b []byte) []byte {
	if utf8.Valid(b) {
		return b
	}
	return []byte(string(bytes.Runes(b)))
}

// checkLimits fails the batch if it exceeds a limit.
func (w *Writer) checkLimits() {
	if w.Len > w.Plan.Limits.Rows {
		w.failure = TooLarge("a payload of more than %d rows", w.Plan.Limits.Rows)
		return
	}
	var size int64
	for i, c := range w.cols {
		if c.IsFull() {
			w.failure = TooLarge("column %q of one payload takes more than 2 GiB", w.Plan.Inputs[i].Name)
			return
		}
		size += c.Bytes()
	}
	if size > w.Plan.Limits.Bytes {
		w.failure = TooLarge("the columns of one payload take more than %d bytes", w.Plan.Limits.Bytes)
	}
}

// TakeBatch returns the rows as a batch of the plan's inputs and empties the writer.
func (w *Writer) TakeBatch() (arrow.RecordBatch, error) {
	if w.checkLimits(); w.failure != nil {
		return nil, w.failure
	}
	defer func() { w.Len = 0 }()
	return vector.MakeBatch(w.Plan.InputSchema, int64(w.Len), func(i int) (arrow.Array, error) {
		defer w.cols[i].Reset()
		return w.cols[i].MakeArray(w.Plan.InputSchema.Field(i).Type), nil
	})
}

// Reset discards the rows of a failed payload, and the counts.
func (w *Writer) Reset() {
	for _, c := range w.cols {
		c.Reset()
	}
	w.Len, w.failure, w.Stats, w.message = 0, nil, Stats{}, nil
}
