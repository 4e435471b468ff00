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

// Reasons why a value does not fit its column. They appear in _error.
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

// asString returns b as a string without copying. The caller must not keep it.
func asString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// PutString appends a text, without quotes and escapes, to a column whose type accepts texts: strings, binaries (which take its
// bytes), dates and timestamps. If the text does not fit, PutString appends nothing and returns why.
func PutString(c *Buffer, text []byte) (why string) {
	if c.Type.Kind == schema.String && !utf8.Valid(text) {
		return WhyNotUTF8
	}
	return PutUTF8(c, text)
}

// PutUTF8 is PutString for a text that is known to be UTF-8.
func PutUTF8(c *Buffer, text []byte) (why string) {
	switch c.Type.Kind {
	case schema.String, schema.Binary:
		c.AppendString(text)
		return ""
	case schema.Timestamp, schema.Date:
		v, why := TimeWord(c, text)
		if why == "" {
			c.AppendWord(v)
		}
		return why
	default:
		return WhyNot(c.Type.Kind)
	}
}

// TimeWord parses a text as a value of a column of dates or timestamps, as AppendWord takes it.
func TimeWord(c *Buffer, text []byte) (val int64, why string) {
	micros, ok := ParseInstant(c.Times, text, false)
	if !ok {
		return 0, WhyNotTime
	}
	return InstantWord(c, micros)
}

// InstantWord returns an instant as a value of a column of dates or timestamps.
func InstantWord(c *Buffer, micros int64) (val int64, why string) {
	if c.Type.Kind == schema.Timestamp {
		return micros, ""
	}
	day, ok := DayOf(micros)
	if !ok {
		return 0, WhyDateRange
	}
	return int64(day), ""
}

// WhyNot returns the error text for a value of the wrong kind in a column of kind k.
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

// PutNumber appends a number in JSON's grammar to a column whose type accepts numbers: all number types, dates and timestamps
// with a unix format, and strings, which take it as written.
func PutNumber(c *Buffer, text []byte) (why string) {
	switch c.Type.Kind {
	case schema.String:
		c.AppendString(text)
	case schema.Decimal:
		v, why := exactDecimal(c.Type, text)
		if why != "" {
			return why
		}
		c.AppendDecimal(v)
	default:
		v, why := NumberWord(c, text)
		if why != "" {
			return why
		}
		c.AppendWord(v)
	}
	return ""
}

// NumberWord parses a number in JSON's grammar as a value of a column of numbers except decimals, dates or timestamps, as AppendWord
// takes it.
func NumberWord(c *Buffer, text []byte) (val int64, why string) {
	switch c.Type.Kind {
	case schema.Int32, schema.Int64:
		return parseSigned(c.Type.Kind, text)
	case schema.Uint64:
		return parseUnsigned(text)
	case schema.Float64:
		v, err := strconv.ParseFloat(asString(text), 64)
		if err != nil {
			return 0, WhyRange
		}
		return int64(math.Float64bits(v)), ""
	case schema.Timestamp, schema.Date:
		micros, ok := ParseInstant(c.Times, text, true)
		if !ok {
			return 0, WhyNotTimeNumber
		}
		return InstantWord(c, micros)
	default:
		return 0, WhyNot(c.Type.Kind)
	}
}

// parseSigned parses a number that must be an integer of the kind. Forms such as 1e3 and 1.0 are integers.
func parseSigned(k schema.Kind, text []byte) (v int64, why string) {
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

// parseUnsigned parses a number that must be a non-negative integer.
func parseUnsigned(text []byte) (v int64, why string) {
	negative, mag, why := parseInteger(text)
	if why == "" && negative && mag != 0 {
		why = WhyRange
	}
	return int64(mag), why
}

// parseInteger parses a number in JSON's grammar as a 64-bit magnitude and a sign.
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

// digitSpan is the range of significant digits of a number in JSON's grammar.
type digitSpan struct {
	negative   bool
	first, end int // offsets in the text, possibly with a point between; equal for zero
	point      int // offset of the point, or where it would be
	exponent   int64
	count      int // number of digits from first to end
}

// maxExponent is beyond the range of every type. Larger exponents are clamped to it.
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

// lowestPower returns the power of ten of the last significant digit.
func (d *digitSpan) lowestPower() int64 {
	if d.end <= d.point {
		return int64(d.point-d.end) + d.exponent
	}
	return int64(d.point-d.end+1) + d.exponent
}

// fitsScale reports whether the number has at most scale digits after the point.
func (d *digitSpan) fitsScale(scale int32) bool {
	return d.first == d.end || d.lowestPower() >= -int64(scale)
}

// scaleTo returns the absolute value of the number times 10^scale, which must be an integer (see fitsScale). It returns false if
// the result has more than most digits.
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

// timesTen returns ten times a 128-bit number plus a digit. Callers build at most 38 digits this way, which fit in 128 bits.
func timesTen(hi, lo, digit uint64) (uint64, uint64) {
	over, low := bits.Mul64(lo, 10)
	low, carry := bits.Add64(low, digit, 0)
	return hi*10 + over + carry, low
}

// exactDecimal returns the number in a decimal type, if all its digits fit.
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

// PutWrittenBool appends a bool. text is its written form.
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
