package vector

import (
	"bytes"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar/schema"
)

// columnVec is the values of an expression over a batch. Only the slices for its kind are set. They must not be written to once
// the vector is complete, because columns use a batch's memory and vectors share slices. Values of null or unselected rows are
// arbitrary.
type columnVec struct {
	kind schema.Kind
	rows int
	// one means that the slices hold a single value for all rows. It is never set for bools.
	one bool
	// valid is the set of rows that are not null; nil if no row is null. For a constant it has one bit.
	valid bitmap

	bits  bitmap // Bool
	fixed []byte // the memory of the values of a kind with a fixed width, see valuesOf
	// String, Binary: row i is data[begin[i]:end[i]].
	begin, end []int32
	data       []byte
	// dense means that end[i] equals begin[i+1]: the rows lie in data in order and without gaps.
	dense bool
	// List, Struct, Map: the values, with the same null rows as valid. Nil if all rows are null.
	arr arrow.Array

	// scale is the scale of a Decimal.
	scale int32
}

// indexMask returns the mask that is applied to row numbers to index the slices.
func (v *columnVec) indexMask() int {
	if v.one {
		return 0
	}
	return -1
}

// isNull reports whether a row is null.
func (v *columnVec) isNull(i int) bool { return v.valid != nil && !v.valid.get(i&v.indexMask()) }

// isNullConstant reports whether the vector is the constant null.
func (v *columnVec) isNullConstant() bool { return v.one && v.valid != nil && v.valid[0]&1 == 0 }

// str returns the bytes of a row.
func (v *columnVec) str(i int) []byte { return v.data[v.begin[i]:v.end[i]] }

// fixedValue are the types of the values of kinds with a fixed width. None contains pointers.
type fixedValue interface {
	int32 | int64 | uint64 | float64 | decimal128.Num | arrow.Date32 | arrow.Timestamp | arrow.MonthDayNanoInterval
}

// fixedWidth returns the bytes of a value of a kind, or 0 if the kind has no fixed width.
func fixedWidth(k schema.Kind) int {
	switch k {
	case schema.Int32, schema.Date:
		return 4
	case schema.Int64, schema.Timestamp, schema.Uint64, schema.Float64:
		return 8
	case schema.Decimal, schema.Interval:
		return 16
	default:
		return 0
	}
}

// valuesOf returns the values of a kind with a fixed width as the type of the kind's values.
func valuesOf[T fixedValue](v *columnVec) []T { return castMemory[T](v.fixed) }

// setValues sets the values of a kind with a fixed width.
func setValues[T fixedValue](v *columnVec, values []T) { v.fixed = castMemory[byte](values) }

// castMemory returns the memory of a slice as values of another type, which needs at most the alignment of the slice's memory.
func castMemory[To, From any](from []From) []To {
	var f From
	var t To
	return unsafe.Slice((*To)(unsafe.Pointer(unsafe.SliceData(from))), len(from)*int(unsafe.Sizeof(f))/int(unsafe.Sizeof(t)))
}

// loadArray returns an Arrow array's values without copying them; only bitmaps are copied.
func loadArray(s *scratchMemory, t *schema.Type, a arrow.Array) *columnVec {
	n := a.Len()
	v := &columnVec{kind: t.Kind, rows: n, scale: t.Scale}
	d := a.Data()
	v.valid = loadValid(s, a)
	if n == 0 && t.Kind != schema.List && t.Kind != schema.Map && t.Kind != schema.Struct {
		// The buffers of an empty array may be missing.
		v.begin, v.end, v.dense = []int32{}, []int32{}, true
		return v
	}
	switch t.Kind {
	case schema.Bool:
		v.bits = s.bitmap(n)
		v.bits.load(d.Buffers()[1].Bytes(), d.Offset(), n)
	case schema.String, schema.Binary:
		if dict, ok := a.(*array.Dictionary); ok {
			return loadDictionary(s, t, dict)
		}
		offsets := arrow.GetOffsets[int32](d, 1)
		v.begin, v.end, v.dense = offsets[:n], offsets[1:n+1], true
		if b := d.Buffers()[2]; b != nil {
			v.data = b.Bytes()
		}
	default:
		if width := fixedWidth(t.Kind); width > 0 {
			v.fixed = loadFixed(s, d, width)
		} else {
			v.arr = a
		}
	}
	return v
}

// loadFixed returns the values of an array of a fixed width. An array in which all values are null may lack the buffer.
func loadFixed(s *scratchMemory, d arrow.ArrayData, width int) []byte {
	if b := d.Buffers()[1]; b != nil && b.Len() > 0 {
		return b.Bytes()[d.Offset()*width : (d.Offset()+d.Len())*width]
	}
	return zeroValues(s.takeBytes(d.Len() * width))
}

// loadCodes returns the codes of a dictionary array.
func loadCodes(s *scratchMemory, a arrow.Array) []int32 {
	return castMemory[int32](loadFixed(s, a.Data(), 4))
}

func loadValid(s *scratchMemory, a arrow.Array) bitmap {
	if a.NullN() == 0 && a.DataType().ID() != arrow.NULL {
		return nil
	}
	n := a.Len()
	b := a.Data().Buffers()[0]
	if b == nil || b.Len() == 0 {
		if a.DataType().ID() == arrow.NULL {
			return s.zeros(n)
		}
		return nil
	}
	valid := s.bitmap(n)
	valid.load(b.Bytes(), a.Data().Offset(), n)
	return valid
}

// loadDictionary returns the values of a dictionary's codes. Their bytes stay in the dictionary.
func loadDictionary(s *scratchMemory, t *schema.Type, a *array.Dictionary) *columnVec {
	values := loadArray(s, t, a.Dictionary())
	return gatherRows(s, values, loadCodes(s, a), loadValid(s, a))
}

// gatherRows returns the rows of v at the given codes. Rows that are not valid are null, whatever their codes.
func gatherRows(s *scratchMemory, v *columnVec, codes []int32, valid bitmap) *columnVec {
	n := len(codes)
	out := &columnVec{kind: v.kind, rows: n, scale: v.scale, valid: valid, data: v.data}
	if v.arr != nil {
		out.arr = takeArray(v.arr, replaceNulls(s, codes, valid, -1), nil)
		out.valid = loadValid(s, out.arr)
		return out
	}
	if v.rows == 0 {
		// The dictionary is empty, so every row is null.
		return spreadConstant(s, constantNull(v.kind, v.scale), n)
	}
	codes = replaceNulls(s, codes, valid, 0) // codes of null rows are arbitrary
	switch {
	case v.kind == schema.Bool:
		out.bits = gatherBits(s, v.bits, codes)
	case v.kind == schema.String || v.kind == schema.Binary:
		out.begin, out.end = gatherValues(s, v.begin, codes), gatherValues(s, v.end, codes)
	case fixedWidth(v.kind) == 4:
		setValues(out, gatherValues(s, valuesOf[int32](v), codes))
	case fixedWidth(v.kind) == 8:
		setValues(out, gatherValues(s, valuesOf[int64](v), codes))
	case fixedWidth(v.kind) == 16:
		setValues(out, gatherValues(s, valuesOf[decimal128.Num](v), codes))
	}
	if v.valid != nil {
		inner := gatherBits(s, v.valid, codes)
		if valid != nil {
			inner.and(valid)
		}
		out.valid = inner
	}
	return out
}

// replaceNulls returns the codes with another for the rows that are not valid.
func replaceNulls(s *scratchMemory, codes []int32, valid bitmap, by int32) []int32 {
	if valid == nil {
		return codes
	}
	out := takeValues[int32](s, len(codes))
	for i, c := range codes {
		if !valid.get(i) {
			c = by
		}
		out[i] = c
	}
	return out
}

func gatherValues[T fixedValue](s *scratchMemory, values []T, codes []int32) []T {
	out := takeValues[T](s, len(codes))
	for i, c := range codes {
		out[i] = values[c]
	}
	return out
}

func gatherBits(s *scratchMemory, values bitmap, codes []int32) bitmap {
	out := s.bitmap(len(codes))
	if len(values) == 1 {
		table := values[0]
		for w := range out {
			part := codes[w*64 : min(w*64+64, len(codes))]
			var word uint64
			for i, c := range part {
				word |= (table >> (uint32(c) & 63) & 1) << (i & 63)
			}
			out[w] = word
		}
		return out
	}
	for w := range out {
		part := codes[w*64 : min(w*64+64, len(codes))]
		var word uint64
		for i, c := range part {
			word |= (values[uint32(c)>>6] >> (uint32(c) & 63) & 1) << (i & 63)
		}
		out[w] = word
	}
	return out
}

// constantNull returns the constant null.
func constantNull(kind schema.Kind, scale int32) *columnVec {
	return &columnVec{
		kind: kind, rows: 1, one: true, scale: scale, valid: bitmap{0}, bits: bitmap{0}, begin: []int32{0}, end: []int32{0},
		fixed: castMemory[byte]([]decimal128.Num{{}}), // enough for a value of any width
	}
}

// spreadConstant returns v, expanded to n rows if it is a constant.
func spreadConstant(s *scratchMemory, v *columnVec, n int) *columnVec {
	if !v.one {
		return v
	}
	return gatherRows(s, v, zeroValues(takeValues[int32](s, n)), nil)
}

// exportVec returns the values as an Arrow array that owns its memory.
func exportVec(v *columnVec, t *schema.Type) arrow.Array {
	dt, n := t.Arrow(), v.rows
	if t.Kind == schema.String {
		dt = arrow.BinaryTypes.String // computed texts are plain, whatever the type of their source column
	}
	if t.Kind == schema.Null || n == 0 {
		return array.MakeArrayOfNull(memory.DefaultAllocator, dt, n)
	}
	if v.arr != nil {
		v.arr.Retain()
		return v.arr
	}
	if isNested(t) {
		return array.MakeArrayOfNull(memory.DefaultAllocator, dt, n)
	}
	var valid *memory.Buffer
	nulls := 0
	if v.valid != nil {
		if nulls = n - v.valid.count(); nulls > 0 {
			valid = memory.NewBufferBytes(v.valid.bytes())
		}
	}
	buffers := []*memory.Buffer{valid}
	switch v.kind {
	case schema.Bool:
		buffers = append(buffers, memory.NewBufferBytes(v.bits.bytes()))
	case schema.String, schema.Binary:
		offsets, data := exportStrings(v)
		buffers = append(buffers, bufferOf(offsets), memory.NewBufferBytes(data))
	default:
		buffers = append(buffers, memory.NewBufferBytes(bytes.Clone(v.fixed)))
	}
	d := array.NewData(dt, n, buffers, nil, nulls, 0)
	defer d.Release()
	return array.MakeFromData(d)
}

// bufferOf returns a buffer that takes over the memory of the values.
func bufferOf[T any](values []T) *memory.Buffer {
	return memory.NewBufferBytes(castMemory[byte](values))
}

// exportStrings returns the rows concatenated. Their total length was checked when the vector was made (see fitsBytes).
func exportStrings(v *columnVec) ([]int32, []byte) {
	offsets := make([]int32, v.rows+1)
	total := 0
	for i := range v.rows {
		if !v.isNull(i) {
			total += int(v.end[i] - v.begin[i])
		}
		offsets[i+1] = int32(total)
	}
	data := make([]byte, 0, total)
	if v.dense && v.valid == nil {
		return offsets, append(data, v.data[v.begin[0]:v.end[v.rows-1]]...)
	}
	for i := range v.rows {
		if !v.isNull(i) {
			data = append(data, v.str(i)...)
		}
	}
	return offsets, data
}

// exportedBytes returns the total length of the texts. Rows may share memory, so it can exceed the memory that exists.
func (v *columnVec) exportedBytes() (total int) {
	for i := range v.begin {
		if !v.isNull(i) {
			total += int(v.end[i] - v.begin[i])
		}
	}
	return total
}
