package aggregate

import (
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"scribe/columnar/schema"
	scalar "scribe/columnar/value"
)

// valueClass is the representation of values while they are grouped and aggregated. 0 is for nested values, of which only
// nullness is used.
type valueClass uint8

const (
	word valueClass = iota + 1 // 64 bits
	wide                       // 128 bits
	text                       // bytes
)

// classOf returns the class of the values of a kind. It returns false for kinds that are neither keys nor arguments.
func classOf(k schema.Kind) (valueClass, bool) {
	switch k {
	case schema.Null, schema.Bool, schema.Int32, schema.Int64, schema.Uint64, schema.Float64, schema.Date, schema.Timestamp:
		return word, true
	case schema.Decimal, schema.Interval:
		return wide, true
	case schema.String, schema.Binary:
		return text, true
	default:
		return 0, false
	}
}

// columnValues is a range of rows of a column in comparable form: two values are equal by SQL exactly if their bits or bytes are
// equal. As words, integers are sign-extended, and floats have one zero and one NaN. As wide values, a decimal is its number, and
// an interval its length.
type columnValues struct {
	class valueClass
	n     int
	valid []bool // nil if every value is valid
	lo    []uint64
	hi    []uint64
	text  [][]byte
	// spans are the intervals as written: equal ones may be written differently. It is empty for other types.
	spans []arrow.MonthDayNanoInterval

	dict    *array.String // the dictionary whose texts are in entries
	entries [][]byte
}

// loadRows loads the rows [from, to) of a column. The texts point into it.
func (v *columnValues) loadRows(kind schema.Kind, a arrow.Array, from, to int) {
	v.class, _ = classOf(kind)
	v.n = to - from
	v.loadValid(a, from, to)
	if v.class == 0 {
		return
	}
	switch v.class {
	case word:
		v.lo = resizeSlice(v.lo, v.n)
		loadWords(v.lo, a, from, to)
	case wide:
		v.lo, v.hi = resizeSlice(v.lo, v.n), resizeSlice(v.hi, v.n)
		v.loadWide(a, from, to)
	case text:
		v.text = resizeSlice(v.text, v.n)
		v.loadText(a, from, to)
	}
	// The value of a null is arbitrary in Arrow.
	for i, ok := range v.valid {
		if !ok {
			v.zeroRow(i)
		}
	}
}

func (v *columnValues) zeroRow(i int) {
	switch v.class {
	case word:
		v.lo[i] = 0
	case wide:
		v.lo[i], v.hi[i] = 0, 0
		if len(v.spans) > 0 {
			v.spans[i] = arrow.MonthDayNanoInterval{}
		}
	case text:
		v.text[i] = nil
	}
}

func (v *columnValues) loadValid(a arrow.Array, from, to int) {
	if a.NullN() == 0 {
		v.valid = nil
		return
	}
	v.valid = resizeSlice(v.valid, to-from)
	bitmap, offset := a.NullBitmapBytes(), a.Data().Offset()
	if bitmap == nil {
		clear(v.valid)
		return
	}
	for i := range v.valid {
		bit := offset + from + i
		v.valid[i] = bitmap[bit>>3]>>(bit&7)&1 != 0
	}
}

func loadWords(dst []uint64, a arrow.Array, from, to int) {
	switch a := a.(type) {
	case *array.Boolean:
		for i := range dst {
			dst[i] = 0
			if a.Value(from + i) {
				dst[i] = 1
			}
		}
	case *array.Int32:
		extendSign(dst, a.Int32Values()[from:to])
	case *array.Date32:
		extendSign(dst, a.Date32Values()[from:to])
	case *array.Int64:
		extendSign(dst, a.Int64Values()[from:to])
	case *array.Timestamp:
		extendSign(dst, a.TimestampValues()[from:to])
	case *array.Uint64:
		copy(dst, a.Uint64Values()[from:to])
	case *array.Float64:
		for i, f := range a.Float64Values()[from:to] {
			dst[i] = scalar.FloatBits(f)
		}
	}
}

func extendSign[T ~int32 | ~int64](dst []uint64, src []T) {
	for i, x := range src {
		dst[i] = uint64(int64(x))
	}
}

func (v *columnValues) loadWide(a arrow.Array, from, to int) {
	switch a := a.(type) {
	case *array.Decimal128:
		v.spans = v.spans[:0]
		for i, d := range a.Values()[from:to] {
			v.lo[i], v.hi[i] = d.LowBits(), uint64(d.HighBits())
		}
	case *array.MonthDayNanoInterval:
		v.spans = append(v.spans[:0], a.MonthDayNanoIntervalValues()[from:to]...)
		for i := range v.spans {
			length := scalar.IntervalOf(v.spans[i]).Length()
			v.lo[i], v.hi[i] = length.LowBits(), uint64(length.HighBits())
		}
	}
}

func (v *columnValues) loadText(a arrow.Array, from, to int) {
	if from == to {
		return
	}
	switch a := a.(type) {
	case *array.String:
		cutTexts(v.text, a.ValueOffsets()[from:to+1], a.ValueBytes(), a.ValueOffsets()[0])
	case *array.Binary:
		cutTexts(v.text, a.ValueOffsets()[from:to+1], a.ValueBytes(), a.ValueOffsets()[0])
	case *array.Dictionary:
		entries := v.dictionaryTexts(a)
		for i := range v.text {
			v.text[i] = nil
			if v.valid == nil || v.valid[i] {
				v.text[i] = entries[a.GetValueIndex(from+i)]
			}
		}
	}
}

// dictionaryTexts returns the texts of a's dictionary, which all rows of a batch share.
func (v *columnValues) dictionaryTexts(a *array.Dictionary) [][]byte {
	dict, ok := a.Dictionary().(*array.String)
	if !ok || dict.Len() == 0 {
		return nil
	}
	if v.dict != dict {
		v.dict, v.entries = dict, resizeSlice(v.entries, dict.Len())
		cutTexts(v.entries, dict.ValueOffsets(), dict.ValueBytes(), dict.ValueOffsets()[0])
	}
	return v.entries
}

// releaseBatch drops references to the batch.
func (v *columnValues) releaseBatch() {
	clear(v.text[:cap(v.text)])
	clear(v.entries[:cap(v.entries)])
	v.dict = nil
}

// cutTexts sets dst to the texts between offsets. The offset base corresponds to the beginning of data.
func cutTexts(dst [][]byte, offsets []int32, data []byte, base int32) {
	for i := range dst {
		dst[i] = data[offsets[i]-base : offsets[i+1]-base]
	}
}

// resizeSlice returns s with length n. The elements are arbitrary.
func resizeSlice[T any](s []T, n int) []T { return slices.Grow(s[:0], n)[:n] }

// pickRows sets dst to the rows of v in mask, which must all be valid.
func (v *columnValues) pickRows(dst *columnValues, mask []bool) {
	dst.class, dst.n, dst.valid = v.class, 0, nil
	for _, m := range mask {
		if m {
			dst.n++
		}
	}
	dst.lo, dst.hi, dst.text, dst.spans = pickMasked(dst.lo, v.lo, mask, v.class == word || v.class == wide), pickMasked(dst.hi, v.hi, mask, v.class == wide),
		pickMasked(dst.text, v.text, mask, v.class == text), pickMasked(dst.spans, v.spans, mask, len(v.spans) > 0)
}

// pickMasked appends the elements of src in mask to dst[:0], if wanted.
func pickMasked[T any](dst, src []T, mask []bool, wanted bool) []T {
	dst = dst[:0]
	if !wanted {
		return dst
	}
	for i, m := range mask {
		if m {
			dst = append(dst, src[i])
		}
	}
	return dst
}
