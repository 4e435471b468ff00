package columnar

import (
	"encoding/binary"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// checkSchema rejects types that this package does not support, and schemas over its limits.
func checkSchema(s *arrow.Schema) error {
	fields := 0
	var walk func(dt arrow.DataType, depth int) error
	walk = func(dt arrow.DataType, depth int) error {
		if fields++; fields > MaxFields {
			return tooLargeError("more than %d fields", MaxFields)
		}
		if depth > MaxDepth {
			return tooLargeError("fields nested more than %d deep", MaxDepth)
		}
		switch t := dt.(type) {
		case arrow.DecimalType:
			return checkDecimal(t)
		case arrow.ExtensionType:
			return walk(t.StorageType(), depth)
		case *arrow.DictionaryType:
			return walk(t.ValueType, depth+1)
		case *arrow.StructType:
			for _, f := range t.Fields() {
				if err := walk(f.Type, depth+1); err != nil {
					return err
				}
			}
			return nil
		case *arrow.ListType, *arrow.LargeListType, *arrow.FixedSizeListType, *arrow.MapType:
			return walk(dt.(arrow.ListLikeType).Elem(), depth+1)
		}
		if _, ok := layoutOf(dt); !ok {
			return unsupportedError("type %s", dt)
		}
		return nil
	}
	for _, f := range s.Fields() {
		if err := walk(f.Type, 1); err != nil {
			return err
		}
	}
	return nil
}

// bufferLayout describes how a type without children stores its values in buffers.
type bufferLayout struct {
	bits    int  // width of a fixed-width value in bits; 0 for variable-width types
	offsets int  // width of an offset in bytes; 0 for fixed-width types
	text    bool // the values must be UTF-8
}

// layoutOf returns the layout of a type without children. It returns false if the type is not supported.
func layoutOf(dt arrow.DataType) (bufferLayout, bool) {
	switch dt.ID() {
	case arrow.NULL:
		return bufferLayout{}, true
	case arrow.STRING:
		return bufferLayout{offsets: 4, text: true}, true
	case arrow.BINARY:
		return bufferLayout{offsets: 4}, true
	case arrow.LARGE_STRING:
		return bufferLayout{offsets: 8, text: true}, true
	case arrow.LARGE_BINARY:
		return bufferLayout{offsets: 8}, true
	case arrow.BOOL, arrow.UINT8, arrow.INT8, arrow.UINT16, arrow.INT16, arrow.UINT32, arrow.INT32, arrow.UINT64, arrow.INT64,
		arrow.FLOAT16, arrow.FLOAT32, arrow.FLOAT64, arrow.FIXED_SIZE_BINARY, arrow.DATE32, arrow.DATE64, arrow.TIMESTAMP,
		arrow.TIME32, arrow.TIME64, arrow.DURATION, arrow.INTERVAL_MONTHS, arrow.INTERVAL_DAY_TIME, arrow.INTERVAL_MONTH_DAY_NANO,
		arrow.DECIMAL32, arrow.DECIMAL64, arrow.DECIMAL128, arrow.DECIMAL256:
		fw, ok := dt.(arrow.FixedWidthDataType)
		if !ok || fw.BitWidth() < 0 {
			return bufferLayout{}, false
		}
		return bufferLayout{bits: fw.BitWidth()}, true
	default:
		return bufferLayout{}, false
	}
}

// checkDecimal rejects scales outside Arrow's tables of powers.
func checkDecimal(t arrow.DecimalType) error {
	limit := map[arrow.Type]int32{arrow.DECIMAL32: 9, arrow.DECIMAL64: 18, arrow.DECIMAL128: 38, arrow.DECIMAL256: 76}[t.ID()]
	if p, s := t.GetPrecision(), t.GetScale(); p < 1 || p > limit || s < -limit || s > limit {
		return invalidError("%s: the precision is 1 to %d, the scale at most that far from 0", t, limit)
	}
	return nil
}

// checkBatch checks that a decoded batch refers only to data that it contains.
func checkBatch(rec arrow.RecordBatch) error {
	if rec.NumRows() > MaxRows {
		return tooLargeError("%d rows, the limit is %d", rec.NumRows(), MaxRows)
	}
	for i, col := range rec.Columns() {
		if int64(col.Len()) != rec.NumRows() {
			return invalidError("column %d has %d rows, the batch %d", i, col.Len(), rec.NumRows())
		}
		if err := checkData(col.Data(), col.DataType()); err != nil {
			return err
		}
	}
	return nil
}

// checkData checks an array and its children. The array is as the reader made it, at offset 0. dt is its type, or the storage
// type of an extension type.
func checkData(d arrow.ArrayData, dt arrow.DataType) error {
	n := d.Len()
	if err := checkValidity(d, dt); err != nil {
		return err
	}
	switch t := dt.(type) {
	case arrow.ExtensionType:
		return checkData(d, t.StorageType())
	case *arrow.DictionaryType:
		return checkDictionary(d, t)
	case *arrow.StructType:
		if len(d.Children()) != t.NumFields() {
			return invalidError("a struct of %d fields with %d children", t.NumFields(), len(d.Children()))
		}
		for i, child := range d.Children() {
			if child.Len() < n {
				return invalidError("a struct of %d rows with a field of %d", n, child.Len())
			}
			if err := checkData(child, t.Field(i).Type); err != nil {
				return err
			}
		}
		return nil
	case *arrow.ListType, *arrow.MapType, *arrow.LargeListType, *arrow.FixedSizeListType:
		return checkList(d, dt)
	}
	l, ok := layoutOf(dt)
	switch {
	case !ok:
		return unsupportedError("type %s", dt)
	case dt.ID() == arrow.NULL || n == 0:
		return nil
	case l.offsets > 0:
		return checkBytes(d, l)
	}
	if have, need := bufferOf(d, 1).Len(), (int64(n)*int64(l.bits)+7)/8; int64(have) < need {
		return invalidError("%d values of type %s in %d bytes", n, dt, have)
	}
	return nil
}

// checkValidity checks an array's validity bitmap against its declared null count.
func checkValidity(d arrow.ArrayData, dt arrow.DataType) error {
	if dt.ID() == arrow.NULL || d.NullN() == 0 {
		return nil
	}
	bits := bufferOf(d, 0)
	if int64(bits.Len()) < (int64(d.Len())+7)/8 {
		return invalidError("%d values with nulls and a bitmap of %d bytes", d.Len(), bits.Len())
	}
	if nulls := d.Len() - bitutil.CountSetBits(bits.Bytes(), 0, d.Len()); nulls != d.NullN() {
		return invalidError("%d nulls announced, %d in the bitmap", d.NullN(), nulls)
	}
	return nil
}

var noBuffer = memory.NewBufferBytes(nil)

// bufferOf returns the i-th buffer of an array, or an empty buffer if it is absent.
func bufferOf(d arrow.ArrayData, i int) *memory.Buffer {
	if b := d.Buffers(); i < len(b) && b[i] != nil {
		return b[i]
	}
	return noBuffer
}

// offsetAt returns the i-th offset of a buffer. The caller has checked the buffer's length.
func offsetAt(b []byte, i, width int) int64 {
	if width == 4 {
		return int64(int32(binary.LittleEndian.Uint32(b[4*i:])))
	}
	return int64(binary.LittleEndian.Uint64(b[8*i:]))
}

// checkOffsets checks that n+1 offsets start at 0 or above, never decrease, and end at limit or below. It returns the first and
// the last offset.
func checkOffsets(b []byte, n, width int, limit int64) (first, last int64, err error) {
	if int64(len(b)) < (int64(n)+1)*int64(width) {
		return 0, 0, invalidError("%d offsets in %d bytes", n+1, len(b))
	}
	first = offsetAt(b, 0, width)
	last = first
	ok := first >= 0
	for i := 1; i <= n; i++ {
		next := offsetAt(b, i, width)
		ok = ok && next >= last
		last = next
	}
	if !ok || last > limit {
		return 0, 0, invalidError("offsets go back, or beyond %d", limit)
	}
	return first, last, nil
}

func checkBytes(d arrow.ArrayData, l bufferLayout) error {
	offsets, values := bufferOf(d, 1).Bytes(), bufferOf(d, 2).Bytes()
	first, last, err := checkOffsets(offsets, d.Len(), l.offsets, int64(len(values)))
	if err != nil || !l.text {
		return err
	}
	// Validating all values at once is many times faster than one by one. Each value must then start at a character boundary.
	if !utf8.Valid(values[first:last]) {
		return invalidError("text that is not UTF-8")
	}
	for i := range d.Len() {
		if at := offsetAt(offsets, i, l.offsets); at < last && !utf8.RuneStart(values[at]) {
			return invalidError("text that begins within a character")
		}
	}
	return nil
}

func checkList(d arrow.ArrayData, dt arrow.DataType) error {
	if len(d.Children()) != 1 {
		return invalidError("a list with %d children", len(d.Children()))
	}
	child, n := d.Children()[0], d.Len()
	var err error
	switch t := dt.(type) {
	case *arrow.FixedSizeListType:
		if t.Len() < 0 || int64(n)*int64(t.Len()) > int64(child.Len()) {
			err = invalidError("%d lists of %d in %d values", n, t.Len(), child.Len())
		}
	default:
		width := 4
		if dt.ID() == arrow.LARGE_LIST {
			width = 8
		}
		if n > 0 {
			_, _, err = checkOffsets(bufferOf(d, 1).Bytes(), n, width, int64(child.Len()))
		}
	}
	if err != nil {
		return err
	}
	return checkData(child, dt.(arrow.ListLikeType).Elem())
}

func checkDictionary(d arrow.ArrayData, t *arrow.DictionaryType) error {
	dict := d.Dictionary()
	if dict == nil {
		return invalidError("a dictionary column without its dictionary")
	}
	if err := checkData(dict, t.ValueType); err != nil {
		return err
	}
	fw, ok := t.IndexType.(arrow.FixedWidthDataType)
	if !ok || !arrow.IsInteger(t.IndexType.ID()) {
		return unsupportedError("dictionary indices of type %s", t.IndexType)
	}
	indices, width := bufferOf(d, 1).Bytes(), fw.BitWidth()/8
	if int64(len(indices)) < int64(d.Len())*int64(width) {
		return invalidError("%d indices in %d bytes", d.Len(), len(indices))
	}
	valid := bufferOf(d, 0).Bytes()
	limit, unused := uint64(dict.Len()), 64-8*width // bits of v above the index
	for i := range d.Len() {
		// A negative index becomes a number larger than the size of any dictionary.
		var v uint64
		switch width {
		case 1:
			v = uint64(indices[i])
		case 2:
			v = uint64(binary.LittleEndian.Uint16(indices[2*i:]))
		case 4:
			v = uint64(binary.LittleEndian.Uint32(indices[4*i:]))
		default:
			v = binary.LittleEndian.Uint64(indices[8*i:])
		}
		if arrow.IsSignedInteger(t.IndexType.ID()) {
			v = uint64(int64(v<<unused) >> unused)
		}
		if v >= limit && (d.NullN() == 0 || bitutil.BitIsSet(valid, i)) {
			return invalidError("index %d into a dictionary of %d values", v, limit)
		}
	}
	return nil
}
