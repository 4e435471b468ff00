package export

import (
	"encoding/hex"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"scribe/columnar/value"
)

// valueAppender appends the value of a row, which must not be null.
type valueAppender func(dst []byte, row int) []byte

// textAppender returns a function that appends the values of an array as texts. quoted reports whether they are strings in JSON.
// It knows the types that columns of queries have; other values are written as Arrow writes them.
func textAppender(a arrow.Array) (text valueAppender, quoted bool) {
	switch a := a.(type) {
	case *array.Boolean:
		return func(dst []byte, i int) []byte { return strconv.AppendBool(dst, a.Value(i)) }, false
	case *array.Int32:
		return func(dst []byte, i int) []byte { return strconv.AppendInt(dst, int64(a.Value(i)), 10) }, false
	case *array.Int64:
		return func(dst []byte, i int) []byte { return strconv.AppendInt(dst, a.Value(i), 10) }, false
	case *array.Uint64:
		return func(dst []byte, i int) []byte { return strconv.AppendUint(dst, a.Value(i), 10) }, false
	case *array.Float64:
		return func(dst []byte, i int) []byte { return appendFloat(dst, a.Value(i)) }, false
	case *array.Decimal128:
		scale := a.DataType().(*arrow.Decimal128Type).Scale
		return func(dst []byte, i int) []byte { return value.AppendDecimal(dst, a.Value(i), scale) }, false
	case *array.String:
		return func(dst []byte, i int) []byte { return append(dst, a.Value(i)...) }, true
	case *array.Binary:
		return func(dst []byte, i int) []byte { return appendBytes(dst, a.Value(i)) }, true
	case *array.Date32:
		return func(dst []byte, i int) []byte { return a.Value(i).ToTime().AppendFormat(dst, time.DateOnly) }, true
	case *array.Timestamp:
		unit := a.DataType().(*arrow.TimestampType).Unit
		return func(dst []byte, i int) []byte { return appendInstant(dst, a.Value(i), unit) }, true
	case *array.MonthDayNanoInterval:
		return func(dst []byte, i int) []byte { return value.AppendInterval(dst, a.Value(i)) }, true
	case *array.Dictionary:
		values, quoted := textAppender(a.Dictionary())
		return func(dst []byte, i int) []byte { return values(dst, a.GetValueIndex(i)) }, quoted
	case *array.List, *array.Map, *array.Struct:
		return nestedAppender(a), false
	default:
		return func(dst []byte, i int) []byte { return append(dst, a.ValueStr(i)...) }, true
	}
}

// jsonValue returns a function that appends the values of an array as JSON, including null.
func jsonValue(a arrow.Array) valueAppender {
	text, quoted := textAppender(a)
	_, float := a.(*array.Float64)
	var scratch []byte
	return func(dst []byte, i int) []byte {
		switch {
		case isNull(a, i):
			return append(dst, "null"...)
		case quoted:
			scratch = text(scratch[:0], i)
			return value.AppendJSONString(dst, scratch)
		}
		begin := len(dst)
		dst = text(dst, i)
		if last := dst[len(dst)-1]; float && (last == 'N' || last == 'y') { // NaN, Infinity
			dst = append(dst[:begin], value.AppendJSONString(nil, append([]byte(nil), dst[begin:]...))...)
		}
		return dst
	}
}

// JSONValues returns a function that appends the values of an array as JSON, including null, as JSON lines have them. One goroutine at a time
// calls it.
func JSONValues(a arrow.Array) func(dst []byte, row int) []byte { return jsonValue(a) }

// isNull reports whether a value is null. It also looks into a dictionary, which may contain a null.
func isNull(a arrow.Array, i int) bool {
	if a.IsNull(i) {
		return true
	}
	switch a := a.(type) {
	case *array.Dictionary:
		return a.Dictionary().IsNull(a.GetValueIndex(i))
	case *array.Null:
		return true
	default:
		return false
	}
}

// nestedAppender returns a function that appends lists, structs and maps as JSON.
func nestedAppender(a arrow.Array) valueAppender {
	switch a := a.(type) {
	case *array.Map:
		keys, _ := textAppender(a.Keys())
		return mapValue(a, keys, jsonValue(a.Items()))
	case *array.Struct:
		type member struct {
			name  []byte
			value valueAppender
		}
		members := make([]member, a.NumField())
		for i := range members {
			members[i] = member{append(value.AppendJSONString(nil, a.DataType().(*arrow.StructType).Field(i).Name), ':'), jsonValue(a.Field(i))}
		}
		return func(dst []byte, i int) []byte {
			dst = append(dst, '{')
			for n, m := range members {
				if n > 0 {
					dst = append(dst, ',')
				}
				dst = m.value(append(dst, m.name...), i)
			}
			return append(dst, '}')
		}
	default:
		list := a.(*array.List)
		item := jsonValue(list.ListValues())
		return func(dst []byte, i int) []byte {
			dst = append(dst, '[')
			from, to := list.ValueOffsets(i)
			for n := from; n < to; n++ {
				if n > from {
					dst = append(dst, ',')
				}
				dst = item(dst, int(n))
			}
			return append(dst, ']')
		}
	}
}

// mapValue returns a function that appends the entries of a map. The last of equal keys counts.
func mapValue(a *array.Map, key, item valueAppender) valueAppender {
	return func(dst []byte, i int) []byte {
		from, to := a.ValueOffsets(i)
		last := make(map[string]int64, to-from)
		for n := from; n < to; n++ {
			last[string(key(nil, int(n)))] = n
		}
		dst = append(dst, '{')
		first := true
		for n := from; n < to; n++ {
			name := key(nil, int(n))
			if last[string(name)] != n {
				continue
			}
			if !first {
				dst = append(dst, ',')
			}
			first = false
			dst = item(append(value.AppendJSONString(dst, name), ':'), int(n))
		}
		return append(dst, '}')
	}
}

// appendBytes appends bytes as text if they are UTF-8, otherwise in hexadecimal.
func appendBytes(dst, b []byte) []byte {
	if utf8.Valid(b) {
		return append(dst, b...)
	}
	return hex.AppendEncode(append(dst, `\x`...), b)
}

// appendFloat appends a number in the form of encoding/json.
func appendFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "NaN"...)
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...)
	}
	format := byte('f')
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(dst, f, format, -1, 64)
}

func appendInstant(dst []byte, v arrow.Timestamp, unit arrow.TimeUnit) []byte {
	return v.ToTime(unit).UTC().AppendFormat(dst, "2006-01-02T15:04:05.999999999Z")
}
