package aggregate

import (
	"math/bits"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"scribe/columnar/schema"
	scalar "scribe/columnar/value"
)

// valueClass is how values are held while they are grouped and aggregated; 0 is that of values which are no scalars, and are there or not.
type valueClass uint8

const (
	word valueClass = iota + 1 // 64 bits
	wide                       // 128 bits
	text                       // bytes
)

// classOf returns the class of the values of a type; false for types that are neither keys nor arguments.
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

// columnValues is some rows of a column, made comparable: two values are equal by SQL exactly if their bits or bytes are. Of a word, integers are
// sign-extended, floats have one zero and one NaN. Of a wide value, a decimal is its number; an interval its length in nanoseconds.
type columnValues struct {
	class valueClass
	n     int
	valid []bool // nil: every value is
	lo    []uint64
	hi    []uint64
	text  [][]byte
	// spans are the intervals as they were written: equal ones may be written differently. Empty for other types.
	spans []arrow.MonthDayNanoInterval

	dict    *array.String // whose texts entries are
	entries [][]byte
}

// loadRows takes the rows [from, to) of a column. The texts point into it.
func (v *columnValues) loadRows(kind schema.Kind, a arrow.Array, from, to int) {
	v.class, _ = classOf(kind)
	v.n = to - from
	v.loadValid(a, from, to)
	if v.class == 0 {
		return
	}
	if kind == schema.Null || a.DataType().ID() == arrow.NULL {
		v.valid = resizeSlice(v.valid, v.n)
		clear(v.valid)
		v.lo, v.hi, v.text, v.spans = resizeSlice(v.lo, v.n), resizeSlice(v.hi, v.n), resizeSlice(v.text, v.n), resizeSlice(v.spans, v.n)
		clear(v.lo)
		clear(v.hi)
		clear(v.text)
		clear(v.spans)
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
	// After a null there may be anything in Arrow.
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
			v.lo[i], v.hi[i] = spanLength(v.spans[i])
		}
	}
}

const nanosPerDay = 24 * 3600 * 1_000_000_000

// spanLength returns the length of an interval, in which a month has 30 days, in nanoseconds as a number of 128 bits.
func spanLength(s arrow.MonthDayNanoInterval) (lo, hi uint64) {
	days := 30*int64(s.Months) + int64(s.Days) // below 2^37
	high, low := mulSigned(days, nanosPerDay)
	low, carry := bits.Add64(low, uint64(s.Nanoseconds), 0)
	high, _ = bits.Add64(high, uint64(s.Nanoseconds>>63), carry)
	return low, high
}

// mulSigned returns the 128 bits of a*b; b is positive.
func mulSigned(a int64, b uint64) (hi, lo uint64) {
	hi, lo = bits.Mul64(uint64(a), b)
	if a < 0 {
		hi -= b
	}
	return hi, lo
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

// dictionaryTexts returns the texts of a's dictionary, which all the rows of a batch share.
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

// releaseBatch forgets what of a batch is held.
func (v *columnValues) releaseBatch() {
	clear(v.text[:cap(v.text)])
	clear(v.entries[:cap(v.entries)])
	v.dict = nil
}

// cutTexts puts the texts between offsets, which count from base at the beginning of data, into dst.
func cutTexts(dst [][]byte, offsets []int32, data []byte, base int32) {
	for i := range dst {
		dst[i] = data[offsets[i]-base : offsets[i+1]-base]
	}
}

// resizeSlice returns s with length n; the elements are what they happen to be.
func resizeSlice[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// pickRows puts the rows of v that mask names into dst; the caller names valid ones.
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

// pickMasked appends to dst[:0] the elements of src that mask names, if there is something to pick.
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
