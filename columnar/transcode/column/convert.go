package column

import (
	"math"
	"math/bits"
	"strconv"
	"unicode/utf8"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"scribe/columnar/schema"
)

// Why a value does not fit its column. The texts stand in _error.
const (
	whyNotInteger    = "the number is not an integer"
	WhyRange         = "the number is out of the type's range"
	WhyNotNumber     = "a number belongs here"
	WhyNotBool       = "true or false belongs here"
	WhyNotTime       = "the text is in none of the column's formats"
	WhyNotTimeNumber = "a number, and the column has no unix format that fits"
	whyNotText       = "a text belongs here"
	WhyDecimalRange  = "the number has more digits than the type"
	whyNotList       = "a list belongs here"
	whyNotObject     = "an object belongs here"
	WhyNotUTF8       = "the text is not UTF-8"
	WhyNull          = "null, and it is not nullable"
	whyAbsent        = "no value, and it is not nullable"
	WhyDateRange     = "the instant is outside the range of dates"
)

// asString looks at bytes as a string that is not kept.
func asString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// PutString appends a text, without quotes and escapes, to a column whose type texts are read as: strings, binaries (which take its bytes), dates and timestamps. It
// returns why it does not fit, and has then appended nothing.
func PutString(c *Buffer, text []byte) (why string) {
	if c.Type.Kind == schema.String && !utf8.Valid(text) {
		return WhyNotUTF8
	}
	return PutUTF8(c, text)
}

// PutUTF8 is appendText for a text that is UTF-8.
func PutUTF8(c *Buffer, text []byte) (why string) {
	switch c.Type.Kind {
	case schema.String, schema.Binary:
		c.AppendString(text)
	case schema.Timestamp:
		v, ok := ParseInstant(c.Times, text, false)
		if !ok {
			return WhyNotTime
		}
		c.AppendInt64(v)
	case schema.Date:
		v, ok := ParseInstant(c.Times, text, false)
		if !ok {
			return WhyNotTime
		}
		days, ok := DayOf(v)
		if !ok {
			return WhyDateRange
		}
		c.AppendInt32(days)
	default:
		return WhyNot(c.Type.Kind)
	}
	return ""
}

// WhyNot says what belongs where something else stands.
func WhyNot(k schema.Kind) string {
	switch k {
	case schema.Bool:
		return WhyNotBool
	case schema.Int32, schema.Int64, schema.Uint64, schema.Float64, schema.Decimal:
		return WhyNotNumber
	case schema.List:
		return whyNotList
	case schema.Struct, schema.Map:
		return whyNotObject
	default:
		return whyNotText
	}
}

// PutNumber appends a number, in JSON's grammar, to a column whose type numbers are read as: all numbers, dates and timestamps with a unix format, and
// strings, which take it as it is written.
func PutNumber(c *Buffer, text []byte) (why string) {
	switch c.Type.Kind {
	case schema.Int32, schema.Int64:
		v, why := ParseSigned(c.Type.Kind, text)
		if why != "" {
			return why
		}
		if c.Type.Kind == schema.Int32 {
			c.AppendInt32(int32(v))
		} else {
			c.AppendInt64(v)
		}
	case schema.Uint64:
		v, why := ParseUnsigned(text)
		if why != "" {
			return why
		}
		c.AppendInt64(int64(v))
	case schema.Float64:
		v, err := strconv.ParseFloat(asString(text), 64)
		if err != nil {
			return WhyRange
		}
		c.AppendFloat64(v)
	case schema.Decimal:
		v, why := exactDecimal(c.Type, text)
		if why != "" {
			return why
		}
		c.AppendDecimal(v)
	case schema.Timestamp, schema.Date:
		v, ok := ParseInstant(c.Times, text, true)
		if !ok {
			return WhyNotTimeNumber
		}
		if c.Type.Kind == schema.Timestamp {
			c.AppendInt64(v)
			return ""
		}
		days, ok := DayOf(v)
		if !ok {
			return WhyDateRange
		}
		c.AppendInt32(days)
	case schema.String:
		c.AppendString(text)
	default:
		return WhyNot(c.Type.Kind)
	}
	return ""
}

// ParseSigned is the number of a text, if it is an integer of the kind: 1e3 and 1.0 are.
func ParseSigned(k schema.Kind, text []byte) (v int64, why string) {
	negative, mag, why := parseInteger(text)
	if why != "" {
		return 0, why
	}
	low, high := uint64(1)<<63, uint64(math.MaxInt64)
	if k == schema.Int32 {
		low, high = 1<<31, math.MaxInt32
	}
	if negative {
		if mag > low {
			return 0, WhyRange
		}
		return int64(-mag), ""
	}
	if mag > high {
		return 0, WhyRange
	}
	return int64(mag), ""
}

// ParseUnsigned is the number of a text, if it is an integer that is not negative.
func ParseUnsigned(text []byte) (v uint64, why string) {
	negative, mag, why := parseInteger(text)
	if why == "" && negative && mag != 0 {
		why = WhyRange
	}
	return mag, why
}

// parseInteger reads a number in JSON's grammar as an integer of 64 bits and a sign.
func parseInteger(text []byte) (negative bool, mag uint64, why string) {
	d := digitsOf(text)
	if !d.fitsScale(0) {
		return false, 0, whyNotInteger
	}
	hi, lo, ok := d.scaleTo(text, 0, 20)
	if !ok || hi != 0 {
		return false, 0, WhyRange
	}
	return d.negative, lo, ""
}

// digitSpan is where a number in JSON's grammar has its significant digits.
type digitSpan struct {
	negative   bool
	first, end int // in the text, with perhaps a point between; equal for zero
	point      int // where the point is, or would be
	exponent   int64
	count      int // of digits from first to end
}

// maxExponent is beyond what any type holds; larger exponents are taken as it.
const maxExponent = 1 << 30

func digitsOf(text []byte) digitSpan {
	d := digitSpan{negative: text[0] == '-', point: -1}
	i, last := 0, -1
	if d.negative {
		i++
	}
	d.first = -1
	for ; i < len(text); i++ {
		c := text[i]
		if c == '.' {
			d.point = i
			continue
		}
		if c|0x20 == 'e' {
			break
		}
		if c != '0' {
			if d.first < 0 {
				d.first = i
			}
			last = i
		}
	}
	if d.point < 0 {
		d.point = i
	}
	if i < len(text) {
		d.exponent = exponentOf(text[i+1:])
	}
	if d.first < 0 {
		d.first, d.end = 0, 0
		return d
	}
	d.end = last + 1
	d.count = d.end - d.first
	if d.first < d.point && d.point < d.end {
		d.count--
	}
	return d
}

func exponentOf(text []byte) int64 {
	negative := false
	if text[0] == '+' || text[0] == '-' {
		negative = text[0] == '-'
		text = text[1:]
	}
	var e int64
	for _, c := range text {
		if e = 10*e + int64(c-'0'); e > maxExponent {
			e = maxExponent
		}
	}
	if negative {
		return -e
	}
	return e
}

// lowestPower is the power of ten of the last significant digit.
func (d *digitSpan) lowestPower() int64 {
	if d.end <= d.point {
		return int64(d.point-d.end) + d.exponent
	}
	return int64(d.point-d.end+1) + d.exponent
}

// fitsScale reports whether the number has no digits beyond so many places after the point.
func (d *digitSpan) fitsScale(scale int32) bool {
	return d.first == d.end || d.lowestPower() >= -int64(scale)
}

// scaleTo is the number without its sign times 10^scale, of which exact must hold; false when it has more than so many digits.
func (d *digitSpan) scaleTo(text []byte, scale int32, most int64) (hi, lo uint64, ok bool) {
	if d.first == d.end {
		return 0, 0, true
	}
	zeros := d.lowestPower() + int64(scale)
	if int64(d.count)+zeros > most {
		return 0, 0, false
	}
	for _, c := range text[d.first:d.end] {
		if c != '.' {
			hi, lo = timesTen(hi, lo, uint64(c-'0'))
		}
	}
	for range zeros {
		hi, lo = timesTen(hi, lo, 0)
	}
	return hi, lo, hi>>63 == 0
}

// timesTen is ten times a number, and a digit. At most 38 digits, which is within 128 bits, are put together this way.
func timesTen(hi, lo, digit uint64) (uint64, uint64) {
	over, low := bits.Mul64(lo, 10)
	low, carry := bits.Add64(low, digit, 0)
	return hi*10 + over + carry, low
}

// exactDecimal is the number in a decimal type, if the type has room for all of its digits.
func exactDecimal(t *schema.Type, text []byte) (v decimal128.Num, why string) {
	d := digitsOf(text)
	if !d.fitsScale(t.Scale) {
		return v, WhyDecimalRange
	}
	hi, lo, ok := d.scaleTo(text, t.Scale, int64(t.Precision))
	if !ok {
		return v, WhyDecimalRange
	}
	v = decimal128.New(int64(hi), lo)
	if d.negative {
		v = v.Negate()
	}
	return v, ""
}

// PutWrittenBool appends a bool, where text is how it was written.
func PutWrittenBool(c *Buffer, v bool, text []byte) (why string) {
	switch c.Type.Kind {
	case schema.Bool:
		c.AppendBool(v)
	case schema.String:
		c.AppendString(text)
	default:
		return WhyNot(c.Type.Kind)
	}
	return ""
}
