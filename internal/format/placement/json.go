package placement

import (
	"bytes"
	"unicode/utf8"

	"scribe/internal/base/jsontext"
)

// Scratch is memory that [Path.Find] reuses. The zero Scratch is ready.
type Scratch struct{ buf []byte }

// maxDepth bounds the nesting of the values that are skipped, as in the transcoder: deeper rows can't be read.
const maxDepth = 128

// Find returns the canonical text of the value at the path in a JSON object. ok is false if it is missing or null, or the payload
// is not an object up to there. The value points into the payload or into the scratch, and holds until the scratch is used again.
//
// The canonical text of a string is the string, of a number that is an integer its decimal digits (1.0 and 1e0 are 1), and of
// anything else its JSON. Of equal keys the first counts, as in queries. Find checks no more of the payload than it has to read,
// and nothing behind the value. It allocates only for values with escapes, until the scratch is large enough.
func (p Path) Find(payload []byte, scratch *Scratch) (value []byte, ok bool) {
	at := skipSpace(payload, 0)
	for _, step := range p {
		if at = findMember(payload, at, step, scratch); at < 0 {
			return nil, false
		}
	}
	if at >= len(payload) {
		return nil, false
	}
	end := skipValue(payload, at)
	if end < 0 {
		return nil, false
	}
	raw := payload[at:end]
	switch c := raw[0]; {
	case c == '"':
		return scratch.unescapeText(raw[1 : len(raw)-1])
	case c == '-' || c >= '0' && c <= '9':
		if digits, ok := scratch.integerOf(raw); ok {
			return digits, true
		}
	case string(raw) == "null":
		return nil, false
	}
	return raw, true
}

// findMember returns where the value of a member of the object at a position begins; -1 if there is none.
func findMember(b []byte, at int, name string, scratch *Scratch) int {
	if at >= len(b) || b[at] != '{' {
		return -1
	}
	for at = skipSpace(b, at+1); at < len(b) && b[at] == '"'; at = skipSpace(b, at+1) {
		end := skipString(b, at)
		if end < 0 {
			return -1
		}
		key := b[at+1 : end-1]
		if at = skipSpace(b, end); at >= len(b) || b[at] != ':' {
			return -1
		}
		at = skipSpace(b, at+1)
		if scratch.isNamed(key, name) {
			return at
		}
		if at = skipValue(b, at); at < 0 {
			return -1
		}
		if at = skipSpace(b, at); at >= len(b) || b[at] != ',' {
			return -1
		}
	}
	return -1
}

// isNamed reports whether a key, as it is written, has the name.
func (s *Scratch) isNamed(key []byte, name string) bool {
	if len(key) < len(name) { // no escape is shorter than its character
		return false
	}
	if string(key) == name {
		return true
	}
	if bytes.IndexByte(key, '\\') < 0 {
		return false
	}
	text, ok := s.unescapeText(key)
	return ok && string(text) == name
}

func skipSpace(b []byte, at int) int {
	for at < len(b) && (b[at] == ' ' || b[at] == '\t' || b[at] == '\n' || b[at] == '\r') {
		at++
	}
	return at
}

// skipString returns the position after the string that begins at a position; -1 if it does not end.
func skipString(b []byte, at int) int {
	for at++; ; {
		n := bytes.IndexByte(b[at:], '"')
		if n < 0 {
			return -1
		}
		escapes := 0
		for i := at + n - 1; i >= at && b[i] == '\\'; i-- {
			escapes++
		}
		if at += n + 1; escapes%2 == 0 {
			return at
		}
	}
}

// skipValue returns the position after the value that begins at a position; -1 if there is none. It does not check what is inside
// of objects and lists, beyond their brackets.
func skipValue(b []byte, at int) int {
	if at >= len(b) {
		return -1
	}
	switch b[at] {
	case '"':
		return skipString(b, at)
	case '{', '[':
		return skipNested(b, at)
	}
	end := at
	for end < len(b) && !endsScalar(b[end]) {
		end++
	}
	if end == at {
		return -1
	}
	return end
}

func endsScalar(c byte) bool {
	switch c {
	case ',', '}', ']', ':', '"', '{', '[', ' ', '\t', '\n', '\r':
		return true
	}
	return false
}

func skipNested(b []byte, at int) int {
	depth := 0
	for at < len(b) {
		switch b[at] {
		case '"':
			if at = skipString(b, at); at < 0 {
				return -1
			}
			continue
		case '{', '[':
			if depth++; depth > maxDepth {
				return -1
			}
		case '}', ']':
			if depth--; depth == 0 {
				return at + 1
			}
		}
		at++
	}
	return -1
}

// unescapeText returns the text of a string between its quotes. ok is false for an escape that JSON does not have.
func (s *Scratch) unescapeText(raw []byte) (text []byte, ok bool) {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw, true
	}
	text, _, why := jsontext.AppendUnescaped(s.buf[:0], raw)
	s.buf = text[:0]
	return text, why == ""
}

// maxDigits bounds the digits of integers in canonical form: those of 64 bits, signed and not.
const maxDigits = 20

// integerOf returns the decimal digits of a JSON number that is an integer of at most maxDigits digits, however it is written. The
// digits point into raw if they are there.
func (s *Scratch) integerOf(raw []byte) (digits []byte, ok bool) {
	n := raw
	negative := n[0] == '-'
	if negative {
		n = n[1:]
	}
	whole := jsontext.CountDigits(n)
	if whole == 0 || whole > 1 && n[0] == '0' { // not a number of JSON
		return nil, false
	}
	if whole == len(n) && n[0] != '0' && whole <= maxDigits {
		return raw, true
	}
	rest := n[whole:]
	var fraction []byte
	if len(rest) > 0 && rest[0] == '.' {
		f := jsontext.CountDigits(rest[1:])
		if f == 0 {
			return nil, false
		}
		fraction, rest = bytes.TrimRight(rest[1:1+f], "0"), rest[1+f:]
	}
	exponent, ok := parseExponent(rest)
	if !ok {
		return nil, false
	}
	return s.placeDigits(negative, n[:whole], fraction, exponent)
}

// maxExponent bounds the value of exponents: no digits that a message could have make up for more.
const maxExponent = 1 << 27

// parseExponent parses the exponent of a number, or nothing.
func parseExponent(b []byte) (e int, ok bool) {
	if len(b) == 0 {
		return 0, true
	}
	if b[0] != 'e' && b[0] != 'E' {
		return 0, false
	}
	b = b[1:]
	negative := len(b) > 0 && b[0] == '-'
	if len(b) > 0 && (b[0] == '-' || b[0] == '+') {
		b = b[1:]
	}
	if len(b) == 0 || jsontext.CountDigits(b) != len(b) {
		return 0, false
	}
	for _, c := range b {
		e = min(e*10+int(c-'0'), maxExponent)
	}
	if negative {
		e = -e
	}
	return e, true
}

// placeDigits returns the digits of whole.fraction * 10^exponent; ok is false if that is not an integer of at most maxDigits
// digits.
func (s *Scratch) placeDigits(negative bool, whole, fraction []byte, exponent int) (digits []byte, ok bool) {
	out := s.buf[:0]
	defer func() { s.buf = out[:0] }()
	if negative {
		out = append(out, '-')
	}
	sign := len(out)
	all := len(whole) + len(fraction)
	point := len(whole) + exponent // digits before the point
	digit := func(i int) byte {
		switch {
		case i < len(whole):
			return whole[i]
		case i < all:
			return fraction[i-len(whole)]
		}
		return '0'
	}
	first := 0
	for first < all && digit(first) == '0' {
		first++
	}
	if first == all {
		return append(out[:0], '0'), true // also -0
	}
	if point <= first || point-first > maxDigits {
		return nil, false
	}
	for i := point; i < all; i++ {
		if digit(i) != '0' {
			return nil, false
		}
	}
	for i := first; i < point; i++ {
		out = append(out, digit(i))
	}
	return out[:sign+point-first], true
}

// IsCanonical reports whether a text is the canonical text of every value that becomes this text as a string: of the string, and of
// numbers that are written like it. Readers that look for any other text can't tell where its values are.
func IsCanonical(text string) bool {
	switch {
	case text == "NaN", text == "Infinity", text == "-Infinity": // floats of columns
		return false
	case text != "" && (text[0] == '{' || text[0] == '['): // objects and lists have several spellings
		return false
	case bytes.ContainsRune([]byte(text), utf8.RuneError): // stands for characters that can't be
		return false
	}
	if number, _ := jsontext.IsNumber([]byte(text)); !number {
		return true
	}
	digits, ok := new(Scratch).integerOf([]byte(text))
	return ok && string(digits) == text
}
