package jsonscan

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// Reasons why a value can't be read.
const (
	BadEscape = "an escape that JSON does not have"
	BadHex    = "\\u without four hexadecimal digits"
	BadNumber = "a number that is not written as JSON does"
	BadWord   = "neither a value of JSON nor a text in quotes"
)

// AppendUnescaped appends the text between the quotes of a string, with its escapes resolved. An unpaired surrogate becomes
// U+FFFD, as in encoding/json. On a fault, At is the position of the escape in raw, and dst is undefined.
func AppendUnescaped(dst, raw []byte) (_ []byte, fault Fault) {
	// No escape is shorter than its character.
	n := len(dst)
	dst = slices.Grow(dst, len(raw))
	out := dst[n : n+len(raw)]
	to := 0
	for at := 0; at < len(raw); {
		c := raw[at]
		if c != '\\' {
			out[to] = c
			at++
			to++
			continue
		}
		if at+1 >= len(raw) {
			return dst, Fault{At: at, Why: BadEscape}
		}
		if c = raw[at+1]; c != 'u' {
			if c = escapes[c]; c == 0 {
				return dst, Fault{At: at, Why: BadEscape}
			}
			out[to] = c
			at += 2
			to++
			continue
		}
		r := hex4(raw[at:])
		if r < 0 {
			return dst, Fault{At: at, Why: BadHex}
		}
		at += 6
		if utf16.IsSurrogate(r) {
			if pair := utf16.DecodeRune(r, hex4(raw[at:])); pair != utf8.RuneError {
				r = pair
				at += 6
			} else {
				r = utf8.RuneError
			}
		}
		to += utf8.EncodeRune(out[to:], r)
	}
	return dst[:n+to], Fault{}
}

// escapes maps the character after a backslash to the character that it stands for; 0 is invalid.
var escapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// hex4 returns the code of an escape \uXXXX at the start of b, or -1 if there is none.
func hex4(b []byte) rune {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	var r rune
	for _, c := range b[2:6] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
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
		return number(b)
	}
	return Malformed
}

// number checks the grammar of a number.
func number(b []byte) Kind {
	i := 0
	if b[0] == '-' {
		i++
	}
	digits := countDigits(b[i:])
	if digits == 0 || digits > 1 && b[i] == '0' {
		return Malformed
	}
	if i += digits; i == len(b) {
		return Integer
	}
	if b[i] == '.' {
		i++
		digits = countDigits(b[i:])
		if digits == 0 {
			return Malformed
		}
		i += digits
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		digits = countDigits(b[i:])
		if digits == 0 {
			return Malformed
		}
		i += digits
	}
	if i != len(b) {
		return Malformed
	}
	return Fraction
}

func countDigits(b []byte) int {
	for i, c := range b {
		if c-'0' > 9 {
			return i
		}
	}
	return len(b)
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
