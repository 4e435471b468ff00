package vector

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"

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
	if from.Kind == schema.Bool || to.Kind == schema.Bool {
		if n := boolCast(a, from, to); n != nil {
			return n, nil
		}
	} else if c := numberCast(from, to); c != nil {
		return &arithNode{t: to, a: a, calc: c}, nil
	}
	return nil, fmt.Errorf("vector: no cast from %s to %s", from, to)
}

// readerCast returns the cast from text.
func readerCast(a exprNode, from, to *schema.Type) exprNode {
	if from.Kind == schema.Binary {
		return nil
	}
	parse := func(c calcFunc) exprNode { return &arithNode{t: to, a: a, calc: c} }
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
		return parse(parseCalc(int32sOf, func(s []byte) (int32, error) {
			v, err := value.ParseInt(s, 32)
			return int32(v), err
		}))
	case schema.Int64:
		return parse(parseCalc(int64sOf, func(s []byte) (int64, error) { return value.ParseInt(s, 64) }))
	case schema.Uint64:
		return parse(parseCalc(uint64sOf, value.ParseUint[[]byte]))
	case schema.Float64:
		return parse(parseCalc(floatsOf, value.ParseFloat[[]byte]))
	case schema.Decimal:
		return parse(parseCalc(decimalsOf, func(s []byte) (decimal128.Num, error) { return value.ParseDecimal(s, to.Precision, to.Scale) }))
	case schema.Date:
		return parse(parseCalc(int32sOf, func(s []byte) (int32, error) {
			v, err := value.ParseDate(s)
			return int32(v), err
		}))
	case schema.Timestamp:
		return parse(parseCalc(int64sOf, func(s []byte) (int64, error) {
			v, err := value.ParseTimestamp(s)
			return int64(v), err
		}))
	case schema.Interval:
		return parse(parseCalc(intervalsOf, value.ParseInterval[[]byte]))
	default:
		return nil
	}
}

func intervalsOf(v *columnVec) *[]arrow.MonthDayNanoInterval { return &v.iv }

// parseCalc makes a cast from a parser.
func parseCalc[R fixedValue](lr sliceOf[R], parse func([]byte) (R, error)) calcFunc {
	return func(ev *programRun, out, a, _ *columnVec, live bitmap) (bad bitmap) {
		r := takeValues[R](ev.scratchMemory, ev.rows)
		if live != nil {
			clear(r)
		}
		for i := range eachRow(live, ev.rows) {
			v, err := parse(a.str(i))
			r[i] = v
			if err != nil {
				bad = ev.markRow(bad, i)
			}
		}
		*lr(out) = r
		return bad
	}
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
		return func(dst []byte, v *columnVec, i int) []byte { return value.AppendInt(dst, int64(v.i32[i])) }
	case schema.Int64:
		return func(dst []byte, v *columnVec, i int) []byte { return value.AppendInt(dst, v.i64[i]) }
	case schema.Uint64:
		return func(dst []byte, v *columnVec, i int) []byte { return value.AppendUint(dst, v.u64[i]) }
	case schema.Float64:
		return func(dst []byte, v *columnVec, i int) []byte { return value.AppendFloat(dst, v.f64[i]) }
	case schema.Decimal:
		scale := t.Scale
		return func(dst []byte, v *columnVec, i int) []byte { return value.AppendDecimal(dst, v.dec[i], scale) }
	case schema.Date:
		return func(dst []byte, v *columnVec, i int) []byte { return value.AppendDate(dst, arrow.Date32(v.i32[i])) }
	case schema.Timestamp:
		return func(dst []byte, v *columnVec, i int) []byte {
			return value.AppendTimestamp(dst, arrow.Timestamp(v.i64[i]))
		}
	case schema.Interval:
		return func(dst []byte, v *columnVec, i int) []byte { return value.AppendInterval(dst, v.iv[i]) }
	case schema.String:
		return func(dst []byte, v *columnVec, i int) []byte { return append(dst, v.str(i)...) }
	case schema.Binary:
		return func(dst []byte, v *columnVec, i int) []byte { return value.AppendBinary(dst, v.str(i)) }
	default:
		return nil
	}
}

// boolCast returns the cast between bool and an integer. PostgreSQL has it for int4; the other integers work the same way.
func boolCast(a exprNode, from, to *schema.Type) exprNode {
	if to.Kind == schema.Bool {
		switch from.Kind {
		case schema.Int32:
			return &testNode{args: []exprNode{a}, test: func(args []*columnVec, i int) (bool, bool) { return args[0].i32[i] != 0, true }}
		case schema.Int64:
			return &testNode{args: []exprNode{a}, test: func(args []*columnVec, i int) (bool, bool) { return args[0].i64[i] != 0, true }}
		case schema.Uint64:
			return &testNode{args: []exprNode{a}, test: func(args []*columnVec, i int) (bool, bool) { return args[0].u64[i] != 0, true }}
		default:
			return nil
		}
	}
	switch to.Kind {
	case schema.Int32:
		return &arithNode{t: to, a: a, calc: fromBits(int32sOf)}
	case schema.Int64:
		return &arithNode{t: to, a: a, calc: fromBits(int64sOf)}
	case schema.Uint64:
		return &arithNode{t: to, a: a, calc: fromBits(uint64sOf)}
	default:
		return nil
	}
}

func fromBits[R orderedInt](lr sliceOf[R]) calcFunc {
	return func(ev *programRun, out, a, _ *columnVec, _ bitmap) bitmap {
		r := takeValues[R](ev.scratchMemory, ev.rows)
		for i := range r {
			r[i] = R(a.bits[i/64] >> (i & 63) & 1)
		}
		*lr(out) = r
		return nil
	}
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
	switch from.Kind {
	case schema.Int32:
		switch to.Kind {
		case schema.Int64:
			return calcSingle(int32sOf, int64sOf, narrowInt[int32, int64])
		case schema.Uint64:
			return calcSingle(int32sOf, uint64sOf, narrowInt[int32, uint64])
		case schema.Float64:
			return calcSingle(int32sOf, floatsOf, func(a int32) (float64, bool) { return float64(a), true })
		case schema.Decimal:
			return calcSingle(int32sOf, decimalsOf, func(a int32) (decimal128.Num, bool) { return rescaleDecimal(decimal128.FromI64(int64(a)), 0, to) })
		default:
		}
	case schema.Int64:
		switch to.Kind {
		case schema.Int32:
			return calcSingle(int64sOf, int32sOf, narrowInt[int64, int32])
		case schema.Uint64:
			return calcSingle(int64sOf, uint64sOf, narrowInt[int64, uint64])
		case schema.Float64:
			return calcSingle(int64sOf, floatsOf, func(a int64) (float64, bool) { return float64(a), true })
		case schema.Decimal:
			return calcSingle(int64sOf, decimalsOf, func(a int64) (decimal128.Num, bool) { return rescaleDecimal(decimal128.FromI64(a), 0, to) })
		default:
		}
	case schema.Uint64:
		switch to.Kind {
		case schema.Int32:
			return calcSingle(uint64sOf, int32sOf, narrowInt[uint64, int32])
		case schema.Int64:
			return calcSingle(uint64sOf, int64sOf, narrowInt[uint64, int64])
		case schema.Float64:
			return calcSingle(uint64sOf, floatsOf, func(a uint64) (float64, bool) { return float64(a), true })
		case schema.Decimal:
			return calcSingle(uint64sOf, decimalsOf, func(a uint64) (decimal128.Num, bool) { return rescaleDecimal(decimal128.FromU64(a), 0, to) })
		default:
		}
	case schema.Float64:
		return floatCast(to)
	case schema.Decimal:
		return decimalCast(from, to)
	case schema.Date:
		if to.Kind == schema.Timestamp {
			return calcSingle(int32sOf, int64sOf, dateToTimestamp)
		}
	case schema.Timestamp:
		if to.Kind == schema.Date {
			return calcSingle(int64sOf, int32sOf, func(a int64) (int32, bool) {
				days, _ := value.Split(arrow.Timestamp(a))
				return int32(days), true
			})
		}
	default:
	}
	return nil
}

func dateToTimestamp(a int32) (int64, bool) {
	last, _ := value.Split(value.MaxTimestamp)
	if int64(a) < value.MinDays || int64(a) > last {
		return 0, false
	}
	return int64(a) * value.Day, true
}

func floatCast(to *schema.Type) calcFunc {
	switch to.Kind {
	case schema.Int32:
		return calcSingle(floatsOf, int32sOf, floatTo[int32](math.MinInt32, math.MaxInt32+1))
	case schema.Int64:
		return calcSingle(floatsOf, int64sOf, floatTo[int64](math.MinInt64, 1<<63))
	case schema.Uint64:
		return calcSingle(floatsOf, uint64sOf, floatTo[uint64](0, 1<<64))
	case schema.Decimal:
		return func(ev *programRun, out, a, b *columnVec, live bitmap) bitmap {
			var text [32]byte
			return calcSingle(floatsOf, decimalsOf, func(f float64) (decimal128.Num, bool) {
				// PostgreSQL uses 15 digits of a float.
				v, err := value.ParseDecimal(strconv.AppendFloat(text[:0], f, 'e', 14, 64), to.Precision, to.Scale)
				return v, err == nil
			})(ev, out, a, b, live)
		}
	default:
		return nil
	}
}

func decimalCast(from, to *schema.Type) calcFunc {
	scale := from.Scale
	whole := schema.Type{Kind: schema.Decimal, Precision: value.MaxPrecision}
	switch to.Kind {
	case schema.Int32:
		return calcSingle(decimalsOf, int32sOf, func(a decimal128.Num) (int32, bool) {
			v, ok := rescaleDecimal(a, scale, &whole)
			r := int32(v.LowBits())
			return r, ok && v == decimal128.FromI64(int64(r))
		})
	case schema.Int64:
		return calcSingle(decimalsOf, int64sOf, func(a decimal128.Num) (int64, bool) {
			v, ok := rescaleDecimal(a, scale, &whole)
			return int64(v.LowBits()), ok && v == decimal128.FromI64(int64(v.LowBits()))
		})
	case schema.Uint64:
		return calcSingle(decimalsOf, uint64sOf, func(a decimal128.Num) (uint64, bool) {
			v, ok := rescaleDecimal(a, scale, &whole)
			return v.LowBits(), ok && v.HighBits() == 0
		})
	case schema.Float64:
		return func(ev *programRun, out, a, b *columnVec, live bitmap) bitmap {
			var text [64]byte
			return calcSingle(decimalsOf, floatsOf, func(d decimal128.Num) (float64, bool) {
				if v, ok := smallDecimal(d); ok && scale <= 22 && v <= 1<<53 && v >= -1<<53 {
					// Both operands are exact, so the quotient is rounded once.
					return float64(v) / math.Pow10(int(scale)), true
				}
				v, err := value.ParseFloat(value.AppendDecimal(text[:0], d, scale))
				return v, err == nil
			})(ev, out, a, b, live)
		}
	case schema.Decimal:
		return calcSingle(decimalsOf, decimalsOf, func(a decimal128.Num) (decimal128.Num, bool) { return rescaleDecimal(a, scale, to) })
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
		if x, ok := smallDecimal(v); ok && int(shift) < len(pow10) {
			hi, lo := bits.Mul64(uint64(max(x, -x)), pow10[shift])
			if v = decimal128.New(int64(hi), lo); x < 0 {
				v = v.Negate()
			}
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
