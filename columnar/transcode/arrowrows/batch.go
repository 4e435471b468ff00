package arrowrows

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar/transcode/rows"
	"scribe/columnar/value"
	"scribe/columnar/vector"
	"scribe/internal/format/record"
)

// arrowBatch is the state of reading one batch.
type arrowBatch struct {
	p      *rows.Plan
	rec    arrow.RecordBatch
	rows   int
	base   int64  // event time
	rate   int64  // sample rate
	first  uint32 // index of the first row
	st     *rows.Stats
	memory rows.MemoryGuard
	// faults maps rows with values that do not fit to their _error text.
	faults map[int]*rowFault
}

// rowFault describes the values of a row that do not fit.
type rowFault struct {
	count int
	text  []byte
}

// ReadBatch makes the plan's inputs from a frame that is a batch, matching columns by name. A value that does not fit is handled
// as in rows: it becomes null and an entry in _error, or its row is omitted and counted if the category rejects such rows. Row i
// has _index first+i. The caller releases the result.
func ReadBatch(p *rows.Plan, rec arrow.RecordBatch, h *record.Header, first uint32, st *rows.Stats) (arrow.RecordBatch, error) {
	b := &arrowBatch{
		p: p, rec: rec, rows: int(rec.NumRows()), base: h.BaseTime, rate: int64(max(h.SampleRate, 1)), first: first, st: st,
		memory: rows.MemoryGuard{Limit: p.Limits.Bytes}, faults: map[int]*rowFault{},
	}
	if b.rows > p.Limits.Rows {
		return nil, rows.TooLarge("an Arrow frame of %d rows, a payload may have %d", b.rows, p.Limits.Rows)
	}
	st.Rows += int64(b.rows)
	arrays := make([]arrow.Array, len(p.Inputs))
	defer func() {
		for _, a := range arrays {
			if a != nil {
				a.Release()
			}
		}
	}()
	// Declared columns come first: they determine _error.
	for i := range p.Inputs {
		if f := p.Inputs[i].Field; f >= 0 {
			a, err := b.makeDeclared(f, &p.Inputs[i], p.InputSchema.Field(i).Type)
			if err != nil {
				return nil, err
			}
			arrays[i] = a
		}
	}
	for i := range p.Inputs {
		if in := &p.Inputs[i]; in.Field < 0 {
			arrays[i] = b.makeCommon(in, p.InputSchema.Field(i).Type)
		}
	}
	batch := array.NewRecordBatch(p.InputSchema, arrays, int64(b.rows))
	if p.Rejects && len(b.faults) > 0 {
		defer batch.Release()
		st.Rejected += int64(len(b.faults))
		return vector.SelectRows(b.rows, func(i int) bool { return b.faults[i] == nil }).Take(batch), nil
	}
	return batch, nil
}

// makeDeclared makes the column of a declared field.
func (b *arrowBatch) makeDeclared(field int, in *rows.Input, dt arrow.DataType) (arrow.Array, error) {
	sources := b.findSources(field)
	if len(sources) > 0 && len(sources[0].around) == 0 {
		if a, err := b.copyWhole(field, sources[0].values, dt); a != nil || err != nil {
			return a, err
		}
	}
	c := b.p.NewColumn(in)
	for i := range b.rows {
		why := ""
		switch a := findValue(sources, i, c.Nullable); {
		case a == nil:
			why = c.AppendAbsent()
		case isNull(a, i):
			c.AppendNull()
		default:
			why = b.appendValue(c, a, i)
		}
		if why != "" {
			c.Truncate(i)
			c.AppendNull()
			b.noteFault(field, i, why)
		}
		if i&1023 == 0 && c.Bytes() > b.p.Limits.Bytes {
			return nil, rows.TooLarge("column %q of one payload takes more than %d bytes", in.Name, b.p.Limits.Bytes)
		}
	}
	if c.IsFull() {
		return nil, rows.TooLarge("column %q of one payload takes more than 2 GiB", in.Name)
	}
	return c.MakeArray(dt), nil
}

// copyWhole returns a copy of a column that already has the required type, otherwise nil.
func (b *arrowBatch) copyWhole(field int, a arrow.Array, dt arrow.DataType) (arrow.Array, error) {
	switch dt.ID() {
	// UTF-8 was checked when the batch was decoded.
	case arrow.BOOL, arrow.INT32, arrow.INT64, arrow.UINT64, arrow.FLOAT64, arrow.DATE32, arrow.BINARY, arrow.STRING, arrow.DECIMAL128, arrow.TIMESTAMP:
	default:
		return nil, nil
	}
	if a.NullN() > 0 && !b.p.Schema.Fields[field].Nullable {
		return nil, nil
	}
	if !arrow.TypeEqual(a.DataType(), dt) || dt.ID() == arrow.DECIMAL128 && !fitDecimals(a.(*array.Decimal128)) {
		return nil, nil
	}
	// Concatenate also copies a single array.
	out, err := array.Concatenate([]arrow.Array{a}, memory.DefaultAllocator)
	if err != nil {
		return nil, rows.TooLarge("column %q of an Arrow frame: %v", b.p.Schema.Fields[field].Name, err)
	}
	return out, nil
}

func fitDecimals(a *array.Decimal128) bool {
	t := a.DataType().(*arrow.Decimal128Type)
	for i, v := range a.Values() {
		if a.IsValid(i) && !value.FitsPrecision(v, t.Precision) {
			return false
		}
	}
	return true
}

// arrowSource is a column that may contain the values of a field.
type arrowSource struct {
	values arrow.Array
	around []arrow.Array // the enclosing structs, outermost first
}

// findSources returns the columns at a field's paths.
func (b *arrowBatch) findSources(field int) []arrowSource {
	var out []arrowSource
	for _, path := range b.p.Schema.Fields[field].Sources() {
		at := b.rec.Schema().FieldIndices(path[0])
		if len(at) == 0 {
			continue
		}
		if s, ok := followPath(b.rec.Column(at[0]), path[1:]); ok {
			out = append(out, s)
		}
	}
	return out
}

// followPath follows a path through structs.
func followPath(a arrow.Array, path []string) (arrowSource, bool) {
	s := arrowSource{values: a}
	for _, name := range path {
		in, ok := s.values.(*array.Struct)
		if !ok {
			return s, false
		}
		at, ok := in.DataType().(*arrow.StructType).FieldIdx(name)
		if !ok {
			return s, false
		}
		s.around, s.values = append(s.around, in), in.Field(at)
	}
	return s, true
}

func isNull(a arrow.Array, i int) bool { return a.IsNull(i) || a.DataType().ID() == arrow.NULL }

// findValue returns the first column with a value at row i, or nil if there is none. For a field that is not nullable, null does
// not count as a value.
func findValue(sources []arrowSource, i int, nullable bool) arrow.Array {
next:
	for _, s := range sources {
		for _, a := range s.around {
			if a.IsNull(i) {
				continue next
			}
		}
		if nullable || !isNull(s.values, i) {
			return s.values
		}
	}
	return nil
}

// noteFault records that the value of a field does not fit in row i.
func (b *arrowBatch) noteFault(field, i int, why string) {
	b.st.BadValues++
	f := b.faults[i]
	if f == nil {
		f = &rowFault{}
		b.faults[i] = f
	}
	f.count++
	if b.p.WantsError && f.count <= rows.MaxReported {
		f.text = rows.AppendFault(f.text, b.p.Schema.Fields[field].Name, -1, why)
	}
}

// makeCommon makes a built-in column.
func (b *arrowBatch) makeCommon(in *rows.Input, dt arrow.DataType) arrow.Array {
	c := b.p.NewColumn(in)
	for i := range b.rows {
		switch in.Common {
		case rows.CommonTime:
			c.AppendInt64(b.base)
		case rows.CommonIndex:
			c.AppendInt32(int32(b.first) + int32(i))
		case rows.CommonRate:
			c.AppendInt64(b.rate)
		case rows.CommonAttr:
			c.AppendList()
		case rows.CommonError:
			if f := b.faults[i]; f != nil {
				c.AppendString(rows.AppendMore(f.text, f.count))
				continue
			}
			c.AppendNull()
		default: // _key, _rest, payload
			c.AppendNull()
		}
	}
	return c.MakeArray(dt)
}
