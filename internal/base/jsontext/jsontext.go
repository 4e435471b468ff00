// Package jsontext reads the texts of JSON scalars: strings and numbers as they are written.
package jsontext

import (
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// Reasons why a string can't be read.
const (
	BadEscape = "an escape that JSON does not have"
	BadHex    = "\\u without four hexadecimal digits"
)

// AppendUnescaped appends the text between the quotes of a string, with its escapes resolved. An unpaired surrogate becomes
// U+FFFD, as in encoding/json. If why is not empty, it says what is wrong with the escape at a position in raw, and dst is undefined.
func AppendUnescaped(dst, raw []byte) (_ []byte, at int, why string) {
	// No escape is shorter than its character.
	n := len(dst)
	dst = slices.Grow(dst, len(raw))
	out := dst[n : n+len(raw)]
	to := 0
	for at < len(raw) {
		c := raw[at]
		if c != '\\' {
			out[to] = c
			at++
			to++
			continue
		}
		if at+1 >= len(raw) {
			return dst, at, BadEscape
		}
		if c = raw[at+1]; c != 'u' {
			if c = escapes[c]; c == 0 {
				return dst, at, BadEscape
			}
			out[to] = c
			at += 2
			to++
			continue
		}
		r := hex4(raw[at:])
		if r < 0 {
			return dst, at, BadHex
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
	return dst[:n+to], at, ""
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

// IsNumber reports whether a text is a number of JSON, and whether it is written as an integer: without fraction and exponent.
func IsNumber(b []byte) (number, integer bool) {
	i := 0
	if len(b) > 0 && b[0] == '-' {
		i++
	}
	digits := CountDigits(b[i:])
	if digits == 0 || digits > 1 && b[i] == '0' {
		return false, false
	}
	if i += digits; i == len(b) {
		return true, true
	}
	if b[i] == '.' {
		i++
		digits = CountDigits(b[i:])
		if digits == 0 {
			return false, false
		}
		i += digits
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		digits = CountDigits(b[i:])
		if digits == 0 {
			return false, false
		}
		i += digits
	}
	if i != len(b) {
		return false, false
	}
	return true, false
}

// CountDigits returns the number of decimal digits at the beginning of a text.
func CountDigits(b []byte) int {
	for i, c := range b {
		if c-'0' > 9 {
			return i
		}
	}
	return len(b)
}
