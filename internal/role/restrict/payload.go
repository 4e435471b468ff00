package restrict

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar"
	"scribe/columnar/export"
	"scribe/columnar/schema"
	"scribe/columnar/transcode"
	"scribe/columnar/value"
	"scribe/columnar/vector"
	"scribe/internal/format/loss"
	"scribe/internal/format/record"
)

// Bounds of what is made of one payload, in bytes: its columns, as of a view, and a message that is made anew, as any message of a category.
const (
	MaxBytes   = 64 << 20
	MaxMessage = 32 << 20
)

// Report is the frame of a loss report, and its place among the reader's messages.
type Report struct {
	Index uint32
	Frame []byte
}

// Rows are the rows of a payload that a reader gets.
type Rows struct {
	// Batch has the columns that were asked for. The caller releases it.
	Batch   arrow.RecordBatch
	Reports []Report
	// Messages counts the reader's messages, reports included: one may have several rows.
	Messages uint32
	// Held counts the rows that are not visible, for the cell alone.
	Held int64
	// Rejected and Bad are those of the transcoder; 0 where rows are held back.
	Rejected, Bad int64
}

// storedFrame is a frame of a payload, and what became of it.
type storedFrame struct {
	record.Frame
	report bool
	// begin is the number of messages in front of it, without reports and without frames that are left out.
	begin uint32
}

// splitFrames returns the frames of a payload, and those with rows alone. It leaves out batches of producers where messages are delivered as they are stored: a
// part of a batch can't be.
func (t *Table) splitFrames(payload []byte) (frames []storedFrame, rows []byte, err error) {
	index := uint32(0)
	for f, err := range record.Split(payload) {
		if err != nil {
			return nil, nil, err
		}
		s := storedFrame{Frame: f, report: loss.IsReport(&f), begin: index}
		if s.report {
			// Made anew: whoever writes can mark a message as a report, with whatever else is in it. What can't be is a message as others.
			redacted, err := loss.Redact(&f)
			if s.report = err == nil; s.report {
				s.Bytes = redacted
			}
		}
		if !s.report && f.Encoding != record.EncodingMessages && !t.rewritten {
			continue
		}
		frames = append(frames, s)
		if !s.report {
			index += uint32(f.Count) //nolint:gosec // of a frame
			rows = append(rows, f.Bytes...)
		}
	}
	return frames, rows, nil
}

// visibleRows are the visible rows of a payload.
type visibleRows struct {
	columns map[string]arrow.Array // as they may be seen
	index   []uint32               // of each row's stored message
	shown   map[string]*vector.Selection
	stats   transcode.Stats
	batch   arrow.RecordBatch
	masked  []arrow.Array // to be released
}

func (v *visibleRows) release() {
	for _, a := range v.masked {
		a.Release()
	}
	v.batch.Release()
}

// makeRows makes the visible rows, with some columns of the reader's. asked are columns of which only in which rows they are visible is needed.
func (t *Table) makeRows(rows []byte, columns, asked []string) (*visibleRows, error) {
	var needed []string
	for _, name := range columns {
		if showing, limited := t.columns[name]; (!limited || len(showing) > 0) && !slices.Contains(needed, name) {
			needed = append(needed, name)
		}
	}
	for _, name := range asked {
		if len(t.columns[name]) > 0 {
			needed = append(needed, name)
		}
	}
	m, err := t.makerOf(needed)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInapplicable, err)
	}
	v := &visibleRows{columns: map[string]arrow.Array{}, shown: map[string]*vector.Selection{}}
	if v.batch, v.stats, err = m.transcoder.Transcode(rows, nil); err != nil {
		return nil, err
	}
	selected := map[int]*vector.Selection{}
	for i, f := range m.filters {
		var st vector.Stats
		if selected[i], err = f.Select(v.batch, &st); err != nil {
			v.release()
			return nil, err
		}
	}
	at := v.batch.Column(slices.Index(m.columns, transcode.ColumnIndex))
	v.index = slices.Clone(at.(*array.Uint32).Uint32Values()) //nolint:forcetypeassert // as the transcoder makes it
	for i, name := range m.columns {
		if !slices.Contains(needed, name) {
			continue // an input of conditions
		}
		column := v.batch.Column(i)
		showing, limited := t.columns[name]
		if limited && !slices.ContainsFunc(showing, func(k int) bool { return t.limits[k] == nil }) {
			shown := t.rowsShowing(v, name, func(row int) bool {
				return slices.ContainsFunc(showing, func(k int) bool { return selected[k].Has(row) })
			})
			v.shown[name] = shown
			column = vector.MaskRows(column, shown)
			v.masked = append(v.masked, column)
		}
		v.columns[name] = column
	}
	return v, nil
}

// rowsShowing returns the rows in which a column is visible. The key and the attributes are of a message: they are visible if they are in all of its visible rows.
func (t *Table) rowsShowing(v *visibleRows, name string, shows func(row int) bool) *vector.Selection {
	if !t.severalRows || name != schema.ColumnKey && name != schema.ColumnAttr {
		return vector.SelectRows(len(v.index), shows)
	}
	visible := make([]bool, len(v.index))
	for from := 0; from < len(visible); {
		to, all := from, true
		for ; to < len(visible) && v.index[to] == v.index[from]; to++ {
			all = all && shows(to)
		}
		for ; from < to; from++ {
			visible[from] = all
		}
	}
	return vector.SelectRows(len(visible), func(row int) bool { return visible[row] })
}

// mayShow reports whether a column is visible in a row.
func (t *Table) mayShow(v *visibleRows, name string, row int) bool {
	if showing, limited := t.columns[name]; limited && len(showing) == 0 {
		return false
	}
	shown := v.shown[name]
	return shown == nil || shown.Has(row)
}

// Rows makes the reader's rows of a payload, whose frames were checked. columns are names of the reader's schema, or transcode.ColumnIndex: the row's message among the
// reader's. Errors are those of a transcoder.
func (t *Table) Rows(payload []byte, columns []string) (*Rows, error) {
	frames, rows, err := t.splitFrames(payload)
	if err != nil {
		return nil, err
	}
	v, err := t.makeRows(rows, slices.DeleteFunc(slices.Clone(columns), func(name string) bool { return name == transcode.ColumnIndex }), nil)
	if err != nil {
		return nil, err
	}
	defer v.release()
	out := &Rows{Held: v.stats.Rows - v.stats.Kept - v.stats.Rejected}
	if t.where == nil {
		out.Rejected, out.Bad = v.stats.Rejected, v.stats.BadRows
	}
	places := make([]uint32, len(v.index))
	row, next := 0, uint32(0)
	for _, f := range frames {
		if f.report {
			out.Reports = append(out.Reports, Report{next, bytes.Clone(f.Bytes)})
			next++
			continue
		}
		for ; row < len(v.index) && v.index[row] < f.begin+uint32(f.Count); row++ { //nolint:gosec // of a frame
			places[row] = next
			if row+1 == len(v.index) || v.index[row+1] != v.index[row] { // the last row of its message
				next++
			}
		}
	}
	out.Messages = next
	types := map[string]arrow.DataType{}
	for _, c := range t.reader.Columns() {
		types[c.Name] = c.Type.Arrow()
	}
	fields := make([]arrow.Field, len(columns))
	for i, name := range columns {
		switch typ := types[name]; {
		case name == transcode.ColumnIndex:
			fields[i] = arrow.Field{Name: name, Type: arrow.PrimitiveTypes.Uint32}
		case typ == nil:
			return nil, fmt.Errorf("restrict: column %q is not one of the reader's", name)
		default:
			fields[i] = arrow.Field{Name: name, Type: typ, Nullable: true}
		}
	}
	out.Batch, err = vector.MakeBatch(arrow.NewSchema(fields, nil), int64(len(places)), func(i int) (arrow.Array, error) {
		name := columns[i]
		if name == transcode.ColumnIndex {
			b := array.NewUint32Builder(memory.DefaultAllocator)
			defer b.Release()
			b.AppendValues(places, nil)
			return b.NewArray(), nil
		}
		if a := v.columns[name]; a != nil {
			a.Retain()
			return a, nil
		}
		return array.MakeArrayOfNull(memory.DefaultAllocator, fields[i].Type, len(places)), nil
	})
	return out, err
}

// Frames are the frames of a payload that a reader gets.
type Frames struct {
	Bytes []byte
	// Frames and Messages count them.
	Frames, Messages uint32
	// Held counts the rows that are not visible, for the cell alone.
	Held int64
}

// Frames makes the reader's frames of a payload, whose frames were checked. They have no sequences of producers, which count messages that are not visible. limit bounds
// their length; beyond it the error is columnar.ErrTooLarge.
func (t *Table) Frames(payload []byte, limit int) (*Frames, error) {
	frames, rows, err := t.splitFrames(payload)
	if err != nil {
		return nil, err
	}
	w := frameWriter{t: t, limit: limit, out: new(Frames)}
	if t.rewritten {
		w.names = append(w.names, schema.ColumnTime)
		for i := range t.reader.Fields {
			w.names = append(w.names, t.reader.Fields[i].Name)
		}
		w.names = append(w.names, schema.ColumnRest)
	}
	asked := []string{}
	if t.rewritten {
		asked = append(asked, schema.ColumnKey, schema.ColumnAttr)
	}
	v, err := t.makeRows(rows, w.names, asked)
	if err != nil {
		return nil, err
	}
	defer v.release()
	w.v, w.out.Held = v, v.stats.Rows-v.stats.Kept-v.stats.Rejected
	w.prepareValues()
	for i := range frames {
		if err := w.addFrame(&frames[i]); err != nil {
			return nil, err
		}
	}
	return w.out, nil
}

// frameWriter makes frames of visible rows.
type frameWriter struct {
	t     *Table
	v     *visibleRows
	limit int
	out   *Frames
	row   int // the next visible row

	names   []string // columns of new messages, the time first
	values  []memberValue
	times   *array.Timestamp
	rest    *array.String
	builder record.Builder
	begun   bool
	pending int // bytes of the messages in the open frame
	scratch []byte
}

// memberValue is a member of a new message.
type memberValue struct {
	name  []byte // with the colon
	of    arrow.Array
	value func(dst []byte, row int) []byte
}

func (w *frameWriter) prepareValues() {
	if !w.t.rewritten {
		return
	}
	w.times, _ = w.v.columns[schema.ColumnTime].(*array.Timestamp)
	w.rest, _ = w.v.columns[schema.ColumnRest].(*array.String)
	for i := range w.t.reader.Fields {
		name := w.t.reader.Fields[i].Name
		if a := w.v.columns[name]; a != nil { // otherwise it is null in all rows
			w.values = append(w.values, memberValue{append(value.AppendJSONString(nil, name), ':'), a, export.JSONValues(a)})
		}
	}
}

// addFrame appends what is visible of a frame.
func (w *frameWriter) addFrame(f *storedFrame) error {
	if f.report {
		w.out.Bytes = append(w.out.Bytes, f.Bytes...)
		w.out.Frames++
		w.out.Messages++
		return w.checkLength()
	}
	end := f.begin + uint32(f.Count) //nolint:gosec // of a frame
	if w.row >= len(w.v.index) || w.v.index[w.row] >= end {
		return nil
	}
	if f.Encoding == record.EncodingArrow {
		for ; w.row < len(w.v.index) && w.v.index[w.row] < end; w.row++ {
			m := record.Message{Time: w.timeOf()}
			var err error
			if m.Payload, err = w.document(w.row, w.row+1); err == nil {
				err = w.addMessage(f, &m)
			}
			if err != nil {
				return err
			}
		}
		return w.finishFrame()
	}
	var (
		d record.Decoder
		r record.Record
	)
	if _, err := d.Reset(f.Bytes); err != nil {
		return err
	}
	for index := f.begin; d.Next(&r); index++ {
		first := w.row
		for w.row < len(w.v.index) && w.v.index[w.row] == index {
			w.row++
		}
		if w.row == first {
			continue
		}
		m := record.Message{Payload: r.Payload, Time: time.UnixMicro(r.Time)}
		if w.t.rewritten {
			var err error
			if m.Payload, err = w.document(first, w.row); err != nil {
				return err
			}
		}
		if r.HasKey && w.t.mayShow(w.v, schema.ColumnKey, first) {
			m.Key = append(make([]byte, 0, len(r.Key)+1), r.Key...)
		}
		if len(r.Attributes) > 0 && w.t.mayShow(w.v, schema.ColumnAttr, first) {
			for name, value := range r.Attributes.All() {
				m.Attributes = append(m.Attributes, record.Attribute{Name: string(name), Value: value})
			}
		}
		if err := w.addMessage(f, &m); err != nil {
			return err
		}
	}
	if err := d.Err(); err != nil {
		return err
	}
	return w.finishFrame()
}

func (w *frameWriter) timeOf() time.Time {
	if w.times == nil {
		return time.Time{}
	}
	return time.UnixMicro(int64(w.times.Value(w.row)))
}

// document returns the new message of some rows, a line for each. It is valid until the next call.
func (w *frameWriter) document(from, to int) ([]byte, error) {
	dst := w.scratch[:0]
	for row := from; row < to; row++ {
		if row > from {
			dst = append(dst, '\n')
		}
		dst = append(dst, '{')
		begin := len(dst)
		for i := range w.values {
			v := &w.values[i]
			if v.of.IsNull(row) { // as one that is not there
				continue
			}
			if len(dst) > begin {
				dst = append(dst, ',')
			}
			if dst = v.value(append(dst, v.name...), row); len(dst) > MaxMessage {
				return nil, errMessage()
			}
		}
		if w.rest != nil && !w.rest.IsNull(row) {
			if rest := w.rest.Value(row); len(rest) > 2 { // {...}
				if len(dst) > begin {
					dst = append(dst, ',')
				}
				dst = append(dst, rest[1:len(rest)-1]...)
			}
		}
		if dst = append(dst, '}'); len(dst) > MaxMessage {
			return nil, errMessage()
		}
	}
	w.scratch = dst
	return dst, nil
}

// errMessage means that a message is larger than any category's as it is made anew.
func errMessage() error {
	return fmt.Errorf("%w: a message has more than %d bytes as it is made anew", columnar.ErrTooLarge, MaxMessage)
}

// addMessage appends a message to the open frame, which has the properties of a stored one, or to a new one.
func (w *frameWriter) addMessage(f *storedFrame, m *record.Message) error {
	for {
		if !w.begun {
			env := f.Envelope()
			env.Sequenced, env.Producer, env.Epoch, env.FirstSequence = false, 0, 0, 0
			env.BaseTime = m.Time.UnixMicro()
			if w.builder.MaxMessageSize = record.MaxFrameLen; w.t.rewritten {
				w.builder.MaxMessageSize = MaxMessage
				env.Placement = 0 // it follows from the name of a field, which may be hidden
			}
			if err := w.builder.Reset(w.out.Bytes, env); err != nil {
				return err
			}
			w.begun, w.pending = true, 0
		}
		err := w.builder.Append(m)
		if !errors.Is(err, record.ErrFrameFull) {
			if err == nil {
				w.pending += m.Size()
				return w.checkLength()
			}
			w.abandonFrame()
			return fmt.Errorf("%w: a visible message: %w", columnar.ErrTooLarge, err)
		}
		if err := w.finishFrame(); err != nil {
			return err
		}
	}
}

func (w *frameWriter) abandonFrame() {
	w.begun = false
	if b, err := w.builder.Finish(); err == nil {
		w.out.Bytes = b
	}
}

func (w *frameWriter) finishFrame() error {
	if !w.begun {
		return nil
	}
	w.begun, w.pending = false, 0
	b, err := w.builder.Finish()
	if err != nil {
		return err
	}
	w.out.Bytes = b
	w.out.Frames++
	w.out.Messages += uint32(w.builder.Count()) //nolint:gosec // of a frame
	return w.checkLength()
}

func (w *frameWriter) checkLength() error {
	if len(w.out.Bytes)+w.pending > w.limit {
		return fmt.Errorf("%w: the visible messages take more than %d bytes", columnar.ErrTooLarge, w.limit)
	}
	return nil
}
