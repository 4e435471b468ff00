package jsonscan

import (
	"bytes"
	"encoding/binary"
	"math/bits"

	"scribe/internal/base/jsontext"
)

// Reasons why a value can't be read.
const (
	BadEscape = jsontext.BadEscape
	BadHex    = jsontext.BadHex
	BadNumber = "a number that is not written as JSON does"
	BadWord   = "neither a value of JSON nor a text in quotes"
)

// AppendUnescaped appends the text between the quotes of a string: see [jsontext.AppendUnescaped]. On a fault, At is the position of the
// escape in raw, and dst is undefined.
func AppendUnescaped(dst, raw []byte) (_ []byte, fault Fault) {
	dst, at, why := jsontext.AppendUnescaped(dst, raw)
	if why != "" {
		return dst, Fault{At: at, Why: why}
	}
	return dst, Fault{}
}

// Kind is the kind of a value without quotes and brackets.
type Kind uint8

// Kinds.
const (
	Malformed Kind = iota
	Null
	True
	False
	Integer  // digits, optionally with a sign
	Fraction // a number with a fraction or an exponent
)

// Scalar returns the kind of a value without quotes and brackets.
func Scalar(b []byte) Kind {
	if len(b) == 0 {
		return Malformed
	}
	switch b[0] {
	case 'n':
		if string(b) == "null" {
			return Null
		}
	case 't':
		if string(b) == "true" {
			return True
		}
	case 'f':
		if string(b) == "false" {
			return False
		}
	default:
		switch number, integer := jsontext.IsNumber(b); {
		case integer:
			return Integer
		case number:
			return Fraction
		}
	}
	return Malformed
}

// ScalarEnd returns the end of a value without quotes and brackets that begins at at: the position of the first byte that can't
// be part of one, or limit.
func ScalarEnd(b []byte, at, limit int) int {
	for at < limit && !ends[b[at]] {
		at++
	}
	return at
}

var ends = func() (t [256]bool) {
	for i := range t {
		t[i] = i <= ' ' || bytes.IndexByte([]byte("{}[]:,\"\\"), byte(i)) >= 0
	}
	return t
}()

// SkipSpace returns the position of the first byte at or after at that is not white space, or limit.
func SkipSpace(b []byte, at, limit int) int {
	for at < limit && classes[b[at]]&classSpace != 0 {
		at++
	}
	return at
}

// digits parses the decimal digits at at and returns their value, which is valid for up to 18 digits, and their end.
func digits(b []byte, at, limit int) (v uint64, end int) {
	for at+8 <= limit {
		const zeros, overNine, highs = 0x3030303030303030, 0x7676767676767676, 0x8080808080808080
		d := binary.LittleEndian.Uint64(b[at:]) ^ zeros
		other := (d + overNine | d) & highs // the first byte that is not a digit, and possibly some after it
		if other == 0 {
			v = 1e8*v + eightDigits(d)
			at += 8
			continue
		}
		n := bits.TrailingZeros64(other) / 8
		return v*powers[n] + eightDigits(d<<(64-8*uint(n))), at + n
	}
	for ; at < limit && b[at]-'0' <= 9; at++ {
		v = 10*v + uint64(b[at]-'0')
	}
	return v, at
}

// eightDigits returns the number of eight digits, the first in the lowest byte.
func eightDigits(d uint64) uint64 {
	d = d*10 + d>>8
	const pairs = 0x000000FF000000FF
	return (d&pairs*(100+1_000_000<<32) + d>>16&pairs*(1+10_000<<32)) >> 32
}

// powers holds the powers of ten.
var powers = [16]uint64{1, 10, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15}

// ShortInteger parses an integer of at most 18 digits that begins at at and ends where a value may end. Otherwise ok is false.
func ShortInteger(b []byte, at, limit int) (v int64, end int, ok bool) {
	first := at
	if b[at] == '-' {
		first++
	}
	u, end := digits(b, first, limit)
	n := end - first
	if n == 0 || n > 18 || n > 1 && b[first] == '0' || end < limit && !ends[b[end]] {
		return 0, at, false
	}
	if v = int64(u); first != at {
		v = -v
	}
	return v, end, true
}

// ShortDecimal parses a number of at most 15 digits, some of them after a point, that begins at at and ends where a value may
// end. v is the number without the point; places is the number of digits after it. Otherwise ok is false.
func ShortDecimal(b []byte, at, limit int) (v int64, places, end int, ok bool) {
	first := at
	if b[at] == '-' {
		first++
	}
	whole, point := digits(b, first, limit)
	n := point - first
	if n == 0 || n > 15 || n > 1 && b[first] == '0' || point >= limit || b[point] != '.' {
		return 0, 0, at, false
	}
	fraction, end := digits(b, point+1, limit)
	places = end - point - 1
	if places == 0 || n+places > 15 || end < limit && !ends[b[end]] {
		return 0, 0, at, false
	}
	v = int64(whole*powers[places] + fraction)
	if first != at {
		v = -v
	}
	return v, places, end, true
}
