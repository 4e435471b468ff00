package sql

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// simpleEscapes maps letters after a backslash in E'...' to control characters.
var simpleEscapes = map[byte]byte{'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// scanEscaped reads E'...'. The current byte is the quote.
func (l *queryLexer) scanEscaped(from int) {
	l.pos++
	var b strings.Builder
	for {
		i := strings.IndexAny(l.text[l.pos:], `'\`)
		l.refuseAt(i < 0, from, "", "unterminated quoted string")
		b.WriteString(l.text[l.pos : l.pos+i])
		l.pos += i
		switch {
		case l.byteAt(0) == '\\':
			l.scanEscape(&b)
		case l.byteAt(1) == '\'':
			b.WriteByte('\'')
			l.pos += 2
		default:
			l.pos++
			l.refuseAt(!utf8.ValidString(b.String()) || strings.IndexByte(b.String(), 0) >= 0, from, "",
				"invalid escapes: the text is not UTF-8, or has a zero byte")
			l.addToken(str, from, b.String())
			return
		}
	}
}

// scanEscape reads an escape sequence that begins with a backslash.
func (l *queryLexer) scanEscape(b *strings.Builder) {
	from, c := l.pos, l.byteAt(1)
	l.pos += 2
	switch {
	case c >= '0' && c <= '7':
		n := 1
		for n < 3 && l.byteAt(n-1) >= '0' && l.byteAt(n-1) <= '7' {
			n++
		}
		v, _ := strconv.ParseUint(l.text[from+1:from+1+n], 8, 16) // only digits, as checked
		l.pos = from + 1 + n
		b.WriteByte(byte(v))
	case c == 'x' && isHex(l.byteAt(0)):
		n := 1
		if isHex(l.byteAt(1)) {
			n = 2
		}
		v, _ := strconv.ParseUint(l.text[l.pos:l.pos+n], 16, 8) // only digits, as checked
		l.pos += n
		b.WriteByte(byte(v))
	case c == 'u', c == 'U':
		n := 4
		if c == 'U' {
			n = 8
		}
		digits := l.text[l.pos:min(l.pos+n, len(l.text))]
		v, err := strconv.ParseUint(digits, 16, 32)
		if len(digits) < n || err != nil || !utf8.ValidRune(rune(v)) { // more than 31 bits become negative, which is not a valid rune either
			panic(l.errorAt(from, "Unicode escapes are \\uXXXX or \\UXXXXXXXX.", "invalid Unicode escape"))
		}
		l.pos += n
		b.WriteRune(rune(v))
	case simpleEscapes[c] != 0:
		b.WriteByte(simpleEscapes[c])
	case l.pos > len(l.text):
		l.pos = len(l.text)
	default:
		b.WriteByte(c)
	}
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f'
}
