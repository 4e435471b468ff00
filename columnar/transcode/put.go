package transcode

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"scribe/columnar/schema"
	"scribe/columnar/transcode/jsonscan"
)

// The put functions append a value that a format has in binary, and return why it does not fit the column; then they have appended
// nothing. What they accept is what JSON's texts of the same values are accepted as, so that a query does not see the format: an integer is
// a number to every column that numbers fit, and so on.

const (
	whyNaN       = "the number is not finite"
	whyInstant   = "an instant belongs neither here nor in a column of texts"
	whyBytes     = "bytes belong in a binary column"
	whySubday    = "the instant is not at midnight UTC"
	whyEncodings = "the bytes are no value of their type"
)

func putInt(c *column, v int64) (why string) {
	switch c.typ.Kind {
	case schema.Int64:
		c.appendInt64(v)
		return ""
	case schema.Int32:
		if v != int64(int32(v)) {
			return whyIntRange
		}
		c.appendInt32(int32(v))
		return ""
	case schema.Float64:
		c.appendFloat64(float64(v))
		return ""
	default:
		var buf [24]byte
		return appendNumber(c, strconv.AppendInt(buf[:0], v, 10))
	}
}

func putUint(c *column, v uint64) (why string) {
	if v <= math.MaxInt64 {
		return putInt(c, int64(v))
	}
	var buf [24]byte
	return appendNumber(c, strconv.AppendUint(buf[:0], v, 10))
}

// putFloat appends a float; bits (32 or 64) is the size that it had, for its digits.
func putFloat(c *column, v float64, bits int) (why string) {
	if c.typ.Kind == schema.Float64 {
		c.appendFloat64(v)
		return ""
	}
	if math.IsNaN(v) || math.IsInf(v, 0) {
		if c.typ.Kind == schema.String {
			c.appendString([]byte(nonFinite(v)))
			return ""
		}
		return whyNaN
	}
	var buf [32]byte
	return appendNumber(c, strconv.AppendFloat(buf[:0], v, 'g', -1, bits))
}

// nonFinite is PostgreSQL's text of the numbers that JSON has none for.
func nonFinite(v float64) string {
	switch {
	case v > 0:
		return "Infinity"
	case v < 0:
		return "-Infinity"
	}
	return "NaN"
}

func putBool(c *column, v bool) (why string) {
	var buf [8]byte
	return appendBool(c, v, strconv.AppendBool(buf[:0], v))
}

// putBytes appends bytes that are no text: a column of strings takes those that are UTF-8.
func putBytes(c *column, v []byte) (why string) {
	switch c.typ.Kind {
	case schema.Binary:
		c.appendString(v)
	case schema.String:
		if !utf8.Valid(v) {
			return whyNotUTF8
		}
		c.appendString(v)
	case schema.List:
		return whyNotList
	default:
		return whyBytes
	}
	return ""
}

// putText appends a text. Unlike JSON's it may be a decimal, since some of these formats have no other way to write one.
func putText(c *column, v []byte) (why string) {
	if c.typ.Kind != schema.Decimal {
		return appendText(c, v)
	}
	switch jsonscan.Scalar(v) {
	case jsonscan.Integer, jsonscan.Fraction:
		return appendNumber(c, v)
	default:
		return whyNotNumber
	}
}

// putInstant appends an instant in Unix microseconds.
func putInstant(c *column, micros int64) (why string) {
	switch c.typ.Kind {
	case schema.Timestamp:
		c.appendInt64(micros)
	case schema.Date:
		day, ok := dayOf(micros)
		if !ok {
			return whyFormats
		}
		if int64(day)*microsPerDay != micros {
			return whySubday
		}
		c.appendInt32(day)
	case schema.String:
		var buf [40]byte
		c.appendString(time.UnixMicro(micros).UTC().AppendFormat(buf[:0], time.RFC3339Nano))
	default:
		return whyInstant
	}
	return ""
}

// putDays appends a date: days since 1970.
func putDays(c *column, days int32) (why string) {
	switch c.typ.Kind {
	case schema.Date:
		c.appendInt32(days)
	case schema.Timestamp:
		if int64(days) > math.MaxInt64/microsPerDay || int64(days) < math.MinInt64/microsPerDay {
			return whyFormats
		}
		c.appendInt64(int64(days) * microsPerDay)
	case schema.String:
		var buf [16]byte
		c.appendString(time.Unix(int64(days)*24*3600, 0).UTC().AppendFormat(buf[:0], time.DateOnly))
	default:
		return putInt(c, int64(days))
	}
	return ""
}

// putDecimal appends the number unscaled / 10^scale.
func putDecimal(c *column, unscaled decimal128.Num, scale int32) (why string) {
	if c.typ.Kind == schema.Decimal && c.typ.Scale == scale {
		if !fits(unscaled, c.typ.Precision) {
			return whyDecimalRange
		}
		c.appendDecimal(unscaled)
		return ""
	}
	return appendNumber(c, appendScaled(nil, unscaled.BigInt(), scale))
}

// putBig is putDecimal for numbers of any length.
func putBig(c *column, unscaled *big.Int, scale int32) (why string) {
	return appendNumber(c, appendScaled(nil, unscaled, scale))
}

// appendScaled appends unscaled / 10^scale as a number of JSON's grammar.
func appendScaled(dst []byte, unscaled *big.Int, scale int32) []byte {
	const mostPlaces = 100
	if scale <= 0 || scale > mostPlaces {
		dst = unscaled.Append(dst, 10)
		if scale != 0 {
			dst = append(dst, 'e')
			dst = strconv.AppendInt(dst, -int64(scale), 10)
		}
		return dst
	}
	if unscaled.Sign() < 0 {
		dst = append(dst, '-')
	}
	digits := new(big.Int).Abs(unscaled).String()
	if missing := int(scale) + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	point := len(digits) - int(scale)
	dst = append(dst, digits[:point]...)
	dst = append(dst, '.')
	return append(dst, digits[point:]...)
}
