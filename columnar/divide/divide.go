// Package divide divides the rows of Arrow record batches by the logical shards in which a layout places them
// (docs/format/placement.md).
package divide

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar"
	"scribe/columnar/schema"
	"scribe/internal/format/placement"
)

// ErrType means that rows can't be placed by the type of a column.
var ErrType = errors.New("columnar: rows can't be placed by this column")

// Part is the rows of one shard, in their order.
type Part struct {
	Shard uint32
	Rows  arrow.RecordBatch
}

// Rows divides the rows of a batch by a layout of the kind ByField. Rows without a value go to the shard other. The caller releases
// the rows of the parts; it keeps the batch. The error matches [ErrType].
func Rows(batch arrow.RecordBatch, layout *placement.Layout, other uint32) ([]Part, error) {
	values, err := findColumn(batch, layout.Path())
	if err != nil {
		return nil, err
	}
	var (
		parts   []Part
		runs    [][]rowRun // of each part
		index   = map[uint32]int{}
		scratch []byte
		n       = int(batch.NumRows())
	)
	for i := range n {
		shard := other
		value, ok := values.appendText(scratch[:0], i)
		if scratch = value; ok {
			shard = layout.ShardOf(value)
		}
		at, known := index[shard]
		if !known {
			at = len(parts)
			index[shard] = at
			parts, runs = append(parts, Part{Shard: shard}), append(runs, nil)
		}
		if last := len(runs[at]) - 1; last >= 0 && runs[at][last].to == i {
			runs[at][last].to++
		} else {
			runs[at] = append(runs[at], rowRun{i, i + 1})
		}
	}
	for at := range parts {
		if parts[at].Rows, err = joinRuns(batch, runs[at]); err != nil {
			for _, p := range parts[:at] {
				p.Rows.Release()
			}
			return nil, err
		}
	}
	return parts, nil
}

// rowRun is the rows from, ..., to-1.
type rowRun struct{ from, to int }

// joinRuns returns the rows of a batch that are in the runs.
func joinRuns(batch arrow.RecordBatch, runs []rowRun) (arrow.RecordBatch, error) {
	if len(runs) == 1 {
		return batch.NewSlice(int64(runs[0].from), int64(runs[0].to)), nil
	}
	var (
		columns = make([]arrow.Array, batch.NumCols())
		rows    int64
	)
	defer func() {
		for _, c := range columns {
			if c != nil {
				c.Release()
			}
		}
	}()
	for _, r := range runs {
		rows += int64(r.to - r.from)
	}
	for i, column := range batch.Columns() {
		pieces := make([]arrow.Array, len(runs))
		for j, r := range runs {
			pieces[j] = array.NewSlice(column, int64(r.from), int64(r.to))
		}
		var err error
		columns[i], err = array.Concatenate(pieces, memory.DefaultAllocator)
		for _, s := range pieces {
			s.Release()
		}
		if err != nil {
			return nil, fmt.Errorf("columnar: dividing column %q: %w", batch.ColumnName(i), err)
		}
	}
	return array.NewRecordBatch(batch.Schema(), columns, rows), nil
}

// Frame is an Arrow stream with the rows of one shard.
type Frame struct {
	Shard uint32
	Rows  int
	Body  []byte
}

// Stream divides the rows of an Arrow stream, as [Rows] does.
func Stream(body []byte, layout *placement.Layout, other uint32) ([]Frame, error) {
	batch, err := columnar.DecodeIPC(body)
	if err != nil {
		return nil, err
	}
	defer batch.Release()
	parts, err := Rows(batch, layout, other)
	if err != nil {
		return nil, err
	}
	frames := make([]Frame, 0, len(parts))
	for _, p := range parts {
		if err == nil {
			var part []byte
			part, err = columnar.EncodeIPC(nil, p.Rows)
			frames = append(frames, Frame{Shard: p.Shard, Rows: int(p.Rows.NumRows()), Body: part})
		}
		p.Rows.Release()
	}
	if err != nil {
		return nil, err
	}
	return frames, nil
}

// Find returns the rows of an Arrow stream whose canonical text in the field at a path is wanted, ascending. wanted does not keep the
// text. The error matches [ErrType] if rows can't be placed by the field.
func Find(body []byte, path placement.Path, wanted func(text []byte) bool) (rows []int, err error) {
	batch, err := columnar.DecodeIPC(body)
	if err != nil {
		return nil, err
	}
	defer batch.Release()
	values, err := findColumn(batch, path)
	if err != nil {
		return nil, err
	}
	var scratch []byte
	for i := range int(batch.NumRows()) {
		text, ok := values.appendText(scratch[:0], i)
		if scratch = text; ok && wanted(text) {
			rows = append(rows, i)
		}
	}
	return rows, nil
}

// rowValues are the values by which rows are placed. The column is nil if no row has any.
type rowValues struct {
	above  []arrow.Array // the structs on the way to the column: a null one has no value
	column arrow.Array
}

// findColumn finds the column at a path: a column, or a field of structs. Of equal names the first counts.
func findColumn(batch arrow.RecordBatch, path placement.Path) (v rowValues, err error) {
	at := batch.Schema().FieldIndices(path[0])
	if len(at) == 0 {
		return v, nil
	}
	column := batch.Column(at[0])
	for _, step := range path[1:] {
		s, ok := column.(*array.Struct)
		if !ok {
			return rowValues{}, nil
		}
		i, ok := s.DataType().(*arrow.StructType).FieldIdx(step)
		if !ok {
			return rowValues{}, nil
		}
		v.above = append(v.above, s)
		column = s.Field(i)
	}
	v.column = column
	values := column
	if d, ok := column.(*array.Dictionary); ok {
		values = d.Dictionary()
	}
	if !slices.Contains(placing, values.DataType().ID()) {
		return v, fmt.Errorf("%w: %s is %s; strings, bytes, integers, floats and booleans can place rows", ErrType, schema.PathText(path), column.DataType())
	}
	return v, nil
}

// placing are the types by whose values rows are placed.
var placing = []arrow.Type{
	arrow.NULL, arrow.BOOL, arrow.STRING, arrow.LARGE_STRING, arrow.STRING_VIEW, arrow.BINARY, arrow.LARGE_BINARY,
	arrow.INT8, arrow.INT16, arrow.INT32, arrow.INT64, arrow.UINT8, arrow.UINT16, arrow.UINT32, arrow.UINT64, arrow.FLOAT32, arrow.FLOAT64,
}

// appendText appends the canonical text of a row's value. ok is false if there is none: it is null, or a number that is not an
// integer.
func (v *rowValues) appendText(dst []byte, row int) (_ []byte, ok bool) {
	for _, s := range v.above {
		if s.IsNull(row) {
			return dst, false
		}
	}
	a := v.column
	if a == nil || a.IsNull(row) {
		return dst, false
	}
	if d, isDictionary := a.(*array.Dictionary); isDictionary {
		a, row = d.Dictionary(), d.GetValueIndex(row)
		if a.IsNull(row) {
			return dst, false
		}
	}
	switch a := a.(type) {
	case array.StringLike:
		return append(dst, a.Value(row)...), true
	case *array.Binary:
		return append(dst, a.Value(row)...), true
	case *array.LargeBinary:
		return append(dst, a.Value(row)...), true
	case *array.Boolean:
		return strconv.AppendBool(dst, a.Value(row)), true
	case *array.Int8:
		return strconv.AppendInt(dst, int64(a.Value(row)), 10), true
	case *array.Int16:
		return strconv.AppendInt(dst, int64(a.Value(row)), 10), true
	case *array.Int32:
		return strconv.AppendInt(dst, int64(a.Value(row)), 10), true
	case *array.Int64:
		return strconv.AppendInt(dst, a.Value(row), 10), true
	case *array.Uint8:
		return strconv.AppendUint(dst, uint64(a.Value(row)), 10), true
	case *array.Uint16:
		return strconv.AppendUint(dst, uint64(a.Value(row)), 10), true
	case *array.Uint32:
		return strconv.AppendUint(dst, uint64(a.Value(row)), 10), true
	case *array.Uint64:
		return strconv.AppendUint(dst, a.Value(row), 10), true
	case *array.Float32:
		return appendFloat(dst, float64(a.Value(row)))
	case *array.Float64:
		return appendFloat(dst, a.Value(row))
	}
	return dst, false
}

// appendFloat appends a float that is an integer of 64 bits. Integers beyond are in no column of integers.
func appendFloat(dst []byte, f float64) (_ []byte, ok bool) {
	if f != math.Trunc(f) || f < math.MinInt64 || f >= math.MaxUint64 { // NaN is not equal to itself
		return dst, false
	}
	if f == 0 {
		return append(dst, '0'), true // also -0
	}
	return strconv.AppendFloat(dst, f, 'f', -1, 64), true
}
