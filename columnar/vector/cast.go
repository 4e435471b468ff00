package vector

import (
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/value"
)

// newCast returns the node that casts a's values from type from to type to.
func newCast(a exprNode, from, to *schema.Type) (exprNode, error) {
	if from.Kind == schema.Null {
		return constantNode{constantNull(to.Kind, to.Scale)}, nil
	}
	if from.Equal(to) {
		return a, nil
	}
	if to.Kind == schema.String && isNested(from) && isPrintable(from) {
		return &nestedTextNode{a, from}, nil
	}
	if to.Kind == schema.String {
		if f := textWriter(from); f != nil {
			return &textNode{t: to, args: []exprNode{a}, strict: true, add: f}, nil
		}
	}
	if from.Kind == schema.String || from.Kind == schema.Binary {
		if n := readerCast(a, from, to); n != nil {
			return n, nil
		}
	}
	if to.Kind == schema.Bool && (from.Kind == schema.Int32 || from.Kind == schema.Int64 || from.Kind == schema.Uint64) {
		zero := constantNull(from.Kind, 0)
		zero.valid = nil
		return &compareNode{orders: expr.Less | expr.Greater, a: a, b: constantNode{zero}}, nil
	}
	if c := numberCast(from, to); c != nil {
		return &arithNode{t: to, a: a, calc: c}, nil
	}
	return nil, fmt.Errorf("vector: no cast from %s to %s", from, to)
}

// readerCast returns the cast from text.
func readerCast(a exprNode, from, to *schema.Type) exprNode {
	if from.Kind == schema.Binary {
		return nil
	}
	switch to.Kind {
	case schema.Bool:
		return &testNode{args: []exprNode{a}, test: func(args []*columnVec, i int) (bool, bool) {
			v, err := value.ParseBool(args[0].str(i))
			return v, err == nil
		}}
	case schema.Binary:
		return &textNode{t: to, args: []exprNode{a}, strict: true, add: func(b *textBuilder, args []*columnVec, i int) bool {
			v, err := value.ParseBinary(args[0].str(i))
			b.data = append(b.data, v...)
			return err == nil
		}}
	case schema.Int32:
		return newParser(a, to, func(s []byte) (int32, error) {
			v, err := value.ParseInt(s, 32)
			return int32(v), err
		})
	case schema.Int64:
		return newParser(a, to, func(s []byte) (int64, error) { return value.ParseInt(s, 64) })
	case schema.Uint64:
		return newParser(a, to, value.ParseUint[[]byte])
	case schema.Float64:
		return newParser(a, to, value.ParseFloat[[]byte])
	case schema.Decimal:
		return newParser(a, to, func(s []byte) (decimal128.Num, error) { return value.ParseDecimal(s, to.Precision, to.Scale) })
	case schema.Date:
		return newParser(a, to, value.ParseDate[[]byte])
	case schema.Timestamp:
		return newParser(a, to, value.ParseTimestamp[[]byte])
	case schema.Interval:
		return newParser(a, to, value.ParseInterval[[]byte])
	default:
		return nil
	}
}

// newParser makes a cast from a parser.
func newParser[R fixedValue](a exprNode, to *schema.Type, parse func([]byte) (R, error)) exprNode {
	return &rowNode[R]{to, []exprNode{a}, func(args []*columnVec, i int) (R, bool) {
		v, err := parse(args[0].str(i))
		return v, err == nil
	}}
}

// textWriter returns a function that appends a value's text, or nil if the type has none.
func textWriter(t *schema.Type) func(b *textBuilder, args []*columnVec, i int) bool {
	if t.Kind == schema.Binary {
		return func(b *textBuilder, args []*columnVec, i int) bool {
			s := args[0].str(i)
			if !b.fitsBytes(len(s)) || !utf8.Valid(s) {
				return false
			}
			b.data = append(b.data, s...)
			return true
		}
	}
	f := textPrinter(t)
	if f == nil {
		return nil
	}
	return func(b *textBuilder, args []*columnVec, i int) bool {
		b.data = f(b.data, args[0], i)
		return true
	}
}

// textPrinter returns a function that appends the text of a row that is not null.
func textPrinter(t *schema.Type) func(dst []byte, v *columnVec, i int) []byte {
	switch t.Kind {
	case schema.Bool:
		return func(dst []byte, v *columnVec, i int) []byte { return value.AppendBool(dst, v.bits.get(i)) }
	case schema.Int32:
		return printValue(func(dst []byte, n int32) []byte { return value.AppendInt(dst, int64(n)) })
	case schema.Int64:
		return printValue(value.AppendInt)
	case schema.Uint64:
		return printValue(value.AppendUint)
	case schema.Float64:
		return printValue(value.AppendFloat)
	case schema.Decimal:
		scale := t.Scale
		return printValue(func(dst []byte, d decimal128.Num) []byte { return value.AppendDecimal(dst, d, scale) })
	case schema.Date:
		return printValue(value.AppendDate)
	case schema.Timestamp:
		return printValue(value.AppendTimestamp)
	case schema.Interval:
		return printValue(value.AppendInterval)
	case schema.String:
		return func(dst []byte, v *columnVec, i int) []byte { return append(dst, v.str(i)...) }
	case schema.Binary:
		return func(dst []byte, v *columnVec, i int) []byte { return value.AppendBinary(dst, v.str(i)) }
	default:
		return nil
	}
}

// printValue makes a function that appends the text of a row from one for a value.
func printValue[T fixedValue](appendText func([]byte, T) []byte) func(dst []byte, v *columnVec, i int) []byte {
	return func(dst []byte, v *columnVec, i int) []byte { return appendText(dst, valuesOf[T](v)[i]) }
}

// castForms are the casts between numbers and times, except those of decimals. PostgreSQL casts between bool and int4; the other
// integers work the same way.
func castForms() map[operatorForm]calcFunc {
	cast := func(from, to schema.Kind) operatorForm { return operatorForm{expr.Cast, from, schema.Null, to} }
	return map[operatorForm]calcFunc{
		cast(schema.Bool, schema.Int32):     calcBits[int32],
		cast(schema.Bool, schema.Int64):     calcBits[int64],
		cast(schema.Bool, schema.Uint64):    calcBits[uint64],
		cast(schema.Int32, schema.Int64):    calcSingle(narrowInt[int32, int64]),
		cast(schema.Int32, schema.Uint64):   calcSingle(narrowInt[int32, uint64]),
		cast(schema.Int32, schema.Float64):  calcSingle(alwaysOK(func(a int32) float64 { return float64(a) })),
		cast(schema.Int64, schema.Int32):    calcSingle(narrowInt[int64, int32]),
		cast(schema.Int64, schema.Uint64):   calcSingle(narrowInt[int64, uint64]),
		cast(schema.Int64, schema.Float64):  calcSingle(alwaysOK(func(a int64) float64 { return float64(a) })),
		cast(schema.Uint64, schema.Int32):   calcSingle(narrowInt[uint64, int32]),
		cast(schema.Uint64, schema.Int64):   calcSingle(narrowInt[uint64, int64]),
		cast(schema.Uint64, schema.Float64): calcSingle(alwaysOK(func(a uint64) float64 { return float64(a) })),
		cast(schema.Float64, schema.Int32):  calcSingle(floatTo[int32](math.MinInt32, math.MaxInt32+1)),
		cast(schema.Float64, schema.Int64):  calcSingle(floatTo[int64](math.MinInt64, 1<<63)),
		cast(schema.Float64, schema.Uint64): calcSingle(floatTo[uint64](0, 1<<64)),
		cast(schema.Date, schema.Timestamp): calcSingle(dateToTimestamp),
		cast(schema.Timestamp, schema.Date): calcSingle(alwaysOK(func(a arrow.Timestamp) int32 {
			days, _ := value.Split(a)
			return int32(days)
		})),
	}
}

// calcBits makes integers of bools.
func calcBits[R orderedInt](ev *programRun, out, a, _ *columnVec, _ bitmap) bitmap {
	r := takeValues[R](ev.scratchMemory, ev.rows)
	for i := range r {
		r[i] = R(a.bits[i/64] >> (i & 63) & 1)
	}
	setValues(out, r)
	return nil
}

func narrowInt[A, R orderedInt](a A) (R, bool) {
	r := R(a)
	return r, A(r) == a && (r < 0) == (a < 0)
}

// floatTo rounds to a whole number, half to even. low and high are the nearest floats outside the type's range, or low is inside
// if the type's minimum is a float.
func floatTo[R orderedInt](low, high float64) func(float64) (R, bool) {
	return func(f float64) (R, bool) {
		f = math.RoundToEven(f)
		if !(f >= low && f < high) {
			return 0, false
		}
		return R(f), true
	}
}

// numberCast returns the cast between numbers or times, or nil if there is none.
func numberCast(from, to *schema.Type) calcFunc {
	switch {
	case from.Kind == schema.Decimal:
		return castDecimal(from.Scale, to)
	case to.Kind == schema.Decimal:
		return castToDecimal(from.Kind, to)
	}
	return forms[operatorForm{expr.Cast, from.Kind, schema.Null, to.Kind}]
}

func dateToTimestamp(a int32) (int64, bool) {
	last, _ := value.Split(value.MaxTimestamp)
	if int64(a) < value.MinDays || int64(a) > last {
		return 0, false
	}
	return int64(a) * value.Day, true
}

// castToDecimal returns the cast of numbers to a decimal.
func castToDecimal(from schema.Kind, to *schema.Type) calcFunc {
	switch from {
	case schema.Int32:
		return calcSingle(func(a int32) (decimal128.Num, bool) { return rescaleDecimal(decimalOfInt(a), 0, to) })
	case schema.Int64:
		return calcSingle(func(a int64) (decimal128.Num, bool) { return rescaleDecimal(decimalOfInt(a), 0, to) })
	case schema.Uint64:
		return calcSingle(func(a uint64) (decimal128.Num, bool) { return rescaleDecimal(decimalOfInt(a), 0, to) })
	case schema.Float64:
		return func(ev *programRun, out, a, b *columnVec, live bitmap) bitmap {
			var text [32]byte
			return calcSingle(func(f float64) (decimal128.Num, bool) {
				// PostgreSQL uses 15 digits of a float.
				v, err := value.ParseDecimal(strconv.AppendFloat(text[:0], f, 'e', 14, 64), to.Precision, to.Scale)
				return v, err == nil
			})(ev, out, a, b, live)
		}
	default:
		return nil
	}
}

func decimalOfInt[T orderedInt](v T) decimal128.Num {
	if v < 0 {
		return decimal128.FromI64(int64(v))
	}
	return decimal128.FromU64(uint64(v))
}

// roundDecimal casts decimals of a scale to integers.
func roundDecimal[R orderedInt](scale int32) calcFunc {
	whole := schema.Type{Kind: schema.Decimal, Precision: value.MaxPrecision}
	return calcSingle(func(a decimal128.Num) (R, bool) {
		v, ok := rescaleDecimal(a, scale, &whole)
		r := R(v.LowBits())
		return r, ok && v == decimalOfInt(r)
	})
}

// castDecimal returns the cast of decimals of a scale.
func castDecimal(scale int32, to *schema.Type) calcFunc {
	switch to.Kind {
	case schema.Int32:
		return roundDecimal[int32](scale)
	case schema.Int64:
		return roundDecimal[int64](scale)
	case schema.Uint64:
		return roundDecimal[uint64](scale)
	case schema.Float64:
		return func(ev *programRun, out, a, b *columnVec, live bitmap) bitmap {
			var text [64]byte
			return calcSingle(func(d decimal128.Num) (float64, bool) {
				if v, ok := smallDecimal(d); ok && scale <= 22 && v <= 1<<53 && v >= -1<<53 {
					// Both operands are exact, so the quotient is rounded once.
					return float64(v) / math.Pow10(int(scale)), true
				}
				v, err := value.ParseFloat(value.AppendDecimal(text[:0], d, scale))
				return v, err == nil
			})(ev, out, a, b, live)
		}
	case schema.Decimal:
		return calcSingle(func(a decimal128.Num) (decimal128.Num, bool) { return rescaleDecimal(a, scale, to) })
	default:
		return nil
	}
}

// rescaleDecimal converts a decimal to a type's scale, rounded half away from zero.
func rescaleDecimal(v decimal128.Num, from int32, to *schema.Type) (decimal128.Num, bool) {
	switch {
	case from == to.Scale:
	case from < to.Scale:
		shift := to.Scale - from
		if _, ok := smallDecimal(v); ok && shift < 20 {
			v = v.Mul(decimal128.GetScaleMultiplier(int(shift)))
			break
		}
		if !value.FitsPrecision(v, value.MaxPrecision-shift) {
			return decimal128.Num{}, false
		}
		v = v.IncreaseScaleBy(shift)
	default:
		v = v.ReduceScaleBy(from-to.Scale, true)
	}
	return v, value.FitsPrecision(v, to.Precision)
}
