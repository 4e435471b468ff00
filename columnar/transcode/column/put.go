package column

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
	"scribe/columnar/value"
)

// Reasons why a value of a binary format does not fit its column.
const (
	whyNaN      = "the number is not finite"
	whyInstant  = "an instant does not belong here"
	whyBytes    = "bytes belong in a binary column"
	whySubday   = "the instant is not at midnight UTC"
	WhyEncoding = "the bytes are not a value of their type"
)

// PutInt appends an integer.
func PutInt(c *Buffer, v int64) (why string) {
	switch c.Type.Kind {
	case schema.Int64:
		c.AppendInt64(v)
		return ""
	case schema.Int32:
		if v != int64(int32(v)) {
			return WhyRange
		}
		c.AppendInt32(int32(v))
		return ""
	case schema.Float64:
		c.AppendFloat64(float64(v))
		return ""
	default:
		var buf [24]byte
		return PutNumber(c, strconv.AppendInt(buf[:0], v, 10))
	}
}

// PutUint appends an unsigned integer.
func PutUint(c *Buffer, v uint64) (why string) {
	if v <= math.MaxInt64 {
		return PutInt(c, int64(v))
	}
	var buf [24]byte
	return PutNumber(c, strconv.AppendUint(buf[:0], v, 10))
}

// PutFloat appends a float. bits (32 or 64) is its original size, which determines its digits.
func PutFloat(c *Buffer, v float64, bits int) (why string) {
	if c.Type.Kind == schema.Float64 {
		c.AppendFloat64(v)
		return ""
	}
	if math.IsNaN(v) || math.IsInf(v, 0) {
		if c.Type.Kind == schema.String {
			c.AppendString(value.AppendFloat(nil, v))
			return ""
		}
		return whyNaN
	}
	var buf [32]byte
	return PutNumber(c, strconv.AppendFloat(buf[:0], v, 'g', -1, bits))
}

// WhyNotListOf returns the error text for a list in the column.
func WhyNotListOf(c *Buffer) string { return "a list does not belong here: " + WhyNot(c.Type.Kind) }

// WhyNotObjectOf returns the error text for an object in the column.
func WhyNotObjectOf(c *Buffer) string {
	return "an object does not belong here: " + WhyNot(c.Type.Kind)
}

// PutBool appends a bool.
func PutBool(c *Buffer, v bool) (why string) {
	var buf [8]byte
	return PutWrittenBool(c, v, strconv.AppendBool(buf[:0], v))
}

// PutBytes appends bytes that are not a text. A column of strings accepts them if they are UTF-8.
func PutBytes(c *Buffer, v []byte) (why string) {
	switch c.Type.Kind {
	case schema.Binary:
		c.AppendString(v)
	case schema.String:
		if !utf8.Valid(v) {
			return WhyNotUTF8
		}
		c.AppendString(v)
	case schema.List:
		return whyNotList
	default:
		return whyBytes
	}
	return ""
}

// PutText appends a text. Unlike a JSON text it may be a decimal, since some of these formats have no other form for one.
func PutText(c *Buffer, v []byte) (why string) {
	if c.Type.Kind != schema.Decimal {
		return PutString(c, v)
	}
	switch jsonscan.Scalar(v) {
	case jsonscan.Integer, jsonscan.Fraction:
		return PutNumber(c, v)
	default:
		return WhyNotNumber
	}
}

// PutInstant appends an instant in Unix microseconds.
func PutInstant(c *Buffer, micros int64) (why string) {
	switch c.Type.Kind {
	case schema.Timestamp:
		c.AppendInt64(micros)
	case schema.Date:
		day, ok := DayOf(micros)
		if !ok {
			return WhyDateRange
		}
		if int64(day)*value.Day != micros {
			return whySubday
		}
		c.AppendInt32(day)
	case schema.String:
		var buf [40]byte
		c.AppendString(time.UnixMicro(micros).UTC().AppendFormat(buf[:0], time.RFC3339Nano))
	default:
		return whyInstant
	}
	return ""
}

// PutInstantIn appends an instant in units of unit microseconds; 0 means nanoseconds.
func PutInstantIn(c *Buffer, v, unit int64) (why string) {
	switch {
	case unit == 0:
		return PutInstant(c, value.FloorDiv(v, 1000))
	case v > math.MaxInt64/unit || v < math.MinInt64/unit:
		return WhyDateRange
	}
	return PutInstant(c, v*unit)
}

// PutDays appends a date: days since 1970.
func PutDays(c *Buffer, days int32) (why string) {
	switch c.Type.Kind {
	case schema.Date:
		c.AppendInt32(days)
	case schema.Timestamp:
		if int64(days) > math.MaxInt64/value.Day || int64(days) < math.MinInt64/value.Day {
			return WhyDateRange
		}
		c.AppendInt64(int64(days) * value.Day)
	case schema.String:
		var buf [16]byte
		c.AppendString(time.Unix(int64(days)*24*3600, 0).UTC().AppendFormat(buf[:0], time.DateOnly))
	default:
		return PutInt(c, int64(days))
	}
	return ""
}

// PutDecimal appends the number unscaled / 10^scale.
func PutDecimal(c *Buffer, unscaled decimal128.Num, scale int32) (why string) {
	if c.Type.Kind == schema.Decimal && c.Type.Scale == scale {
		if !value.FitsPrecision(unscaled, c.Type.Precision) {
			return WhyDecimalRange
		}
		c.AppendDecimal(unscaled)
		return ""
	}
	return PutNumber(c, appendScaled(nil, unscaled.BigInt(), scale))
}

// PutBig is PutDecimal for numbers of any length.
func PutBig(c *Buffer, unscaled *big.Int, scale int32) (why string) {
	return PutNumber(c, appendScaled(nil, unscaled, scale))
}

// appendScaled appends unscaled / 10^scale as a number in JSON's grammar.
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
