package jsonscan

import (
	"bytes"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// What is wrong with values.
const (
	BadEscape = "an escape that JSON does not have"
	BadHex    = "\\u without four hexadecimal digits"
	BadNumber = "a number that is not written as JSON does"
	BadWord   = "neither a value of JSON nor a text in quotes"
)

// AppendUnescaped appends the text that stands between the quotes of a string, with its escapes resolved. Half a surrogate pair alone becomes
// U+FFFD, as in encoding/json. at of a fault is the place of the escape in raw, and dst is then undefined.
func AppendUnescaped(dst, raw []byte) (_ []byte, fault Fault) {
	// No escape is shorter than what it stands for.
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

// escapes are what stands for the character behind a backslash, 0 for what may not stand there.
var escapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// hex4 is the number of an escape \uXXXX at the start of b, -1 if there is none.
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

// Kind is what a value without quotes and brackets is.
type Kind uint8

// Kinds.
const (
	Malformed Kind = iota
	Null
	True
	False
	Integer  // digits, perhaps with a sign
	Fraction // a number with a fraction or an exponent
)

// Scalar says what a value without quotes and brackets is.
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

// ScalarEnd returns where a value without quotes and brackets ends that begins at at: the place of the first byte that can't be in one, or limit.
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

// SkipSpace returns the place of the first byte at or behind at that is no white space, or limit.
func SkipSpace(b []byte, at, limit int) int {
	for at < limit && classes[b[at]]&classSpace != 0 {
		at++
	}
	return at
}

// ShortInteger reads an integer of at most 18 digits that begins at at and ends, at end, where a value can; ok is false for whatever else is there.
func ShortInteger(b []byte, at, limit int) (v int64, end int, ok bool) {
	i := at
	if b[at] == '-' {
		i++
	}
	first := i
	for i < limit {
		d := b[i] - '0'
		if d > 9 {
			break
		}
		v = 10*v + int64(d)
		i++
	}
	n := i - first
	if n == 0 || n > 18 || n > 1 && b[first] == '0' || i < limit && !ends[b[i]] {
		return 0, at, false
	}
	if first != at {
		v = -v
	}
	return v, i, true
}

// ShortDecimal reads a number of at most 15 digits, of which some stand behind a point, that begins at at and ends, at end, where a value can: v is the
// number without the point, places how many digits are behind it. ok is false for whatever else is there.
func ShortDecimal(b []byte, at, limit int) (v int64, places, end int, ok bool) {
	i := at
	if b[at] == '-' {
		i++
	}
	first := i
	for i < limit && b[i]-'0' <= 9 {
		v = 10*v + int64(b[i]-'0')
		i++
	}
	whole := i - first
	if whole == 0 || whole > 15 || whole > 1 && b[first] == '0' || i >= limit || b[i] != '.' {
		return 0, 0, at, false
	}
	point := i
	for i++; i < limit && b[i]-'0' <= 9; i++ {
		v = 10*v + int64(b[i]-'0')
	}
	places = i - point - 1
	if places == 0 || whole+places > 15 || i < limit && !ends[b[i]] {
		return 0, 0, at, false
	}
	if first != at {
		v = -v
	}
	return v, places, i, true
}
