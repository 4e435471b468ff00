package sql

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// tokenKind is the kind of a token.
type tokenKind uint8

const (
	end       tokenKind = iota
	word                // an identifier or keyword without quotes; text is in lower case
	quoted              // an identifier in quotes; text is its value
	str                 // a text constant; text is its value
	number              // text is the number as written, without underscores
	symbol              // an operator or punctuation
	parameter           // ? or $1
)

type queryToken struct {
	kind tokenKind
	pos  int // offset of the first byte
	end  int // offset after the last byte
	text string
}

const (
	classSpace  = 1 << 0
	classStart  = 1 << 1 // may start an identifier
	classIdent  = 1 << 2 // may continue an identifier
	classDigit  = 1 << 3
	classOp     = 1 << 4 // part of an operator
	classOpSign = 1 << 5 // allows an operator to end in + or -
	classSelf   = 1 << 6 // a token by itself
	classUpper  = 1 << 7
)

var classes = func() (t [256]uint8) {
	for _, c := range " \t\r\n\f\v" {
		t[c] = classSpace
	}
	for c := range 256 {
		switch {
		case c >= '0' && c <= '9':
			t[c] = classDigit | classIdent
		case c >= 'A' && c <= 'Z':
			t[c] = classStart | classIdent | classUpper
		case c >= 'a' && c <= 'z', c == '_', c >= 0x80:
			t[c] = classStart | classIdent
		case c == '$':
			t[c] = classIdent
		case strings.IndexByte("+-*/<>=", byte(c)) >= 0:
			t[c] = classOp
		case strings.IndexByte("~!@#%^&|`", byte(c)) >= 0:
			t[c] = classOp | classOpSign
		case strings.IndexByte("(),;[]", byte(c)) >= 0:
			t[c] = classSelf
		}
	}
	return t
}()

type queryLexer struct {
	queryText
	pos    int
	tokens []queryToken
}

// tokenize splits a text into tokens. The last token marks the end.
func tokenize(text string) []queryToken {
	if len(text) > MaxText {
		panic(queryText{}.Errorf(0, "", "query text is %d bytes long, the limit is %d", len(text), MaxText))
	}
	l := queryLexer{queryText: queryText{text}, tokens: make([]queryToken, 0, 8+len(text)/4)}
	for i, r := range text {
		l.refuseAt(r == utf8.RuneError && !strings.HasPrefix(text[i:], "\ufffd"), i, "", "query text is not UTF-8")
	}
	if i := strings.IndexByte(text, 0); i >= 0 {
		panic(l.errorAt(i, "", "query text has a zero byte"))
	}
	for {
		l.skipBlanks()
		if l.pos == len(text) {
			l.addToken(end, l.pos, "")
			return l.tokens
		}
		l.scanToken()
	}
}

func (l *queryLexer) addToken(k tokenKind, from int, text string) {
	l.tokens = append(l.tokens, queryToken{kind: k, pos: from, end: l.pos, text: text})
}

// byteAt returns the byte at offset i from the current one, or 0 after the end.
func (l *queryLexer) byteAt(i int) byte {
	if l.pos+i < len(l.text) {
		return l.text[l.pos+i]
	}
	return 0
}

// skipBlanks skips blanks and comments.
func (l *queryLexer) skipBlanks() {
	for l.pos < len(l.text) {
		switch c := l.text[l.pos]; {
		case classes[c]&classSpace != 0:
			l.pos++
		case c == '-' && l.byteAt(1) == '-':
			if i := strings.IndexByte(l.text[l.pos:], '\n'); i >= 0 {
				l.pos += i
			} else {
				l.pos = len(l.text)
			}
		case c == '/' && l.byteAt(1) == '*':
			l.skipBlock()
		default:
			return
		}
	}
}

// skipBlock skips a /* */ comment. Comments nest.
func (l *queryLexer) skipBlock() {
	from, depth := l.pos, 0
	for l.pos < len(l.text) {
		switch {
		case l.byteAt(0) == '/' && l.byteAt(1) == '*':
			depth++
			l.pos += 2
		case l.byteAt(0) == '*' && l.byteAt(1) == '/':
			depth--
			l.pos += 2
			if depth == 0 {
				return
			}
		default:
			l.pos++
		}
	}
	panic(l.errorAt(from, "", "unterminated /* comment"))
}

// scanToken reads the token at the current byte.
func (l *queryLexer) scanToken() {
	from, c := l.pos, l.text[l.pos]
	switch {
	case (c == 'e' || c == 'E') && l.byteAt(1) == '\'':
		l.pos++
		l.scanEscaped(from)
	case l.isPrefixed(c):
		panic(l.errorAt(from, "Write '...' for a text, '\\x...' with a cast to bytea for bytes.", "constants with the prefix "+string(c)+" are not supported"))
	case classes[c]&classStart != 0:
		l.scanIdentifier()
	case classes[c]&classDigit != 0, c == '.' && classes[l.byteAt(1)]&classDigit != 0:
		l.scanNumber()
	case c == '\'':
		text, ok := l.scanUntil('\'')
		l.refuseAt(!ok, from, "", "unterminated quoted string")
		l.addToken(str, from, text)
	case c == '"':
		l.scanQuoted()
	case classes[c]&classSelf != 0, c == '.':
		l.pos++
		l.addToken(symbol, from, l.text[from:l.pos])
	case c == ':':
		l.pos++
		if l.byteAt(0) == ':' {
			l.pos++
		}
		l.addToken(symbol, from, l.text[from:l.pos])
	case classes[c]&classOp != 0:
		l.scanOperator()
	case c == '$' && classes[l.byteAt(1)]&classDigit != 0:
		for l.pos++; classes[l.byteAt(0)]&classDigit != 0; {
			l.pos++
		}
		l.addToken(parameter, from, l.text[from:l.pos])
	case c == '?':
		l.pos++
		l.addToken(parameter, from, "?")
	case c == '$':
		l.scanDollar()
	default:
		panic(l.errorAt(from, "", "syntax error at or near \""+string(c)+"\""))
	}
}

// isPrefixed reports whether a bit string, a national string or a string with Unicode escapes starts here.
func (l *queryLexer) isPrefixed(c byte) bool {
	switch c {
	case 'b', 'B', 'x', 'X', 'n', 'N':
		return l.byteAt(1) == '\''
	case 'u', 'U':
		return l.byteAt(1) == '&' && (l.byteAt(2) == '\'' || l.byteAt(2) == '"')
	}
	return false
}

// scanIdentifier reads an identifier without quotes. ASCII letters become lower case.
func (l *queryLexer) scanIdentifier() {
	from, upper := l.pos, uint8(0)
	for l.pos < len(l.text) && classes[l.text[l.pos]]&classIdent != 0 {
		upper |= classes[l.text[l.pos]]
		l.pos++
	}
	text := l.text[from:l.pos]
	if upper&classUpper != 0 {
		text = strings.Map(func(c rune) rune {
			if c >= 'A' && c <= 'Z' {
				return c + 'a' - 'A'
			}
			return c
		}, text)
	}
	l.addToken(word, from, text)
}

// scanQuoted reads an identifier in quotes.
func (l *queryLexer) scanQuoted() {
	from := l.pos
	text, ok := l.scanUntil('"')
	switch {
	case !ok:
		panic(l.errorAt(from, "", "unterminated quoted identifier"))
	case text == "":
		panic(l.errorAt(from, "", "zero-length quoted identifier"))
	}
	l.addToken(quoted, from, text)
}

// scanUntil reads the text between the quotes that start here. A doubled quote stands for one.
func (l *queryLexer) scanUntil(quote byte) (string, bool) {
	l.pos++
	from, double := l.pos, false
	for {
		i := strings.IndexByte(l.text[l.pos:], quote)
		if i < 0 {
			return "", false
		}
		l.pos += i + 1
		if l.byteAt(0) != quote {
			break
		}
		double = true
		l.pos++
	}
	text := l.text[from : l.pos-1]
	if double {
		text = strings.ReplaceAll(text, string([]byte{quote, quote}), string(quote))
	}
	return text, true
}

// scanDollar reads a text constant between $tag$ and $tag$.
func (l *queryLexer) scanDollar() {
	from, i := l.pos, 1
	for l.byteAt(i) != '$' && classes[l.byteAt(i)]&classIdent != 0 {
		i++
	}
	l.refuseAt(l.byteAt(i) != '$', from, "", "syntax error at or near \"$\"")
	tag := l.text[from : from+i+1]
	body := l.text[from+len(tag):]
	n := strings.Index(body, tag)
	l.refuseAt(n < 0, from, "", "unterminated dollar-quoted string")
	l.pos = from + len(tag) + n + len(tag)
	l.addToken(str, from, body[:n])
}

// scanOperator reads the longest operator. An operator of several characters ends in + or - only if it contains a character that
// arithmetic and comparison operators lack, so a=-1 needs no blank.
func (l *queryLexer) scanOperator() {
	from, sign := l.pos, uint8(0)
	for l.pos < len(l.text) {
		c := l.text[l.pos]
		if classes[c]&classOp == 0 || c == '-' && l.byteAt(1) == '-' || c == '/' && l.byteAt(1) == '*' {
			break
		}
		sign |= classes[c]
		l.pos++
	}
	if sign&classOpSign == 0 {
		for l.pos > from+1 && (l.text[l.pos-1] == '+' || l.text[l.pos-1] == '-') {
			l.pos--
		}
	}
	text := l.text[from:l.pos]
	if text == "!=" {
		text = "<>"
	}
	l.addToken(symbol, from, text)
}

// bases maps the letters after 0 to the bases of integers.
var bases = map[byte]int{'x': 16, 'o': 8, 'b': 2}

// scanNumber reads a number: a decimal with point and exponent, or an integer with 0x, 0o or 0b.
func (l *queryLexer) scanNumber() {
	from := l.pos
	if base := bases[l.byteAt(1)|0x20]; base != 0 && l.byteAt(0) == '0' {
		l.scanBased(from, base)
		return
	}
	ok := l.scanDigits()
	if l.byteAt(0) == '.' && l.byteAt(1) != '.' {
		l.pos++
		if classes[l.byteAt(0)]&classDigit != 0 {
			ok = l.scanDigits() && ok
		}
	}
	if c := l.byteAt(0); c == 'e' || c == 'E' {
		i := 1
		if s := l.byteAt(1); s == '+' || s == '-' {
			i = 2
		}
		if classes[l.byteAt(i)]&classDigit != 0 {
			l.pos += i
			ok = l.scanDigits() && ok
		}
	}
	if !ok || classes[l.byteAt(0)]&(classStart|classIdent) != 0 {
		for classes[l.byteAt(0)]&classIdent != 0 {
			l.pos++
		}
		panic(l.errorAt(from, "", "trailing junk after numeric literal at or near \""+l.text[from:l.pos]+"\""))
	}
	l.addToken(number, from, strings.ReplaceAll(l.text[from:l.pos], "_", ""))
}

// scanDigits skips digits with single underscores between them. It reports whether the underscores are valid.
func (l *queryLexer) scanDigits() bool {
	for {
		for classes[l.byteAt(0)]&classDigit != 0 {
			l.pos++
		}
		if l.byteAt(0) != '_' {
			return true
		}
		if classes[l.byteAt(1)]&classDigit == 0 {
			return false
		}
		l.pos++
	}
}

// scanBased reads an integer of another base and converts it to decimal.
func (l *queryLexer) scanBased(from, base int) {
	l.pos += 2
	for classes[l.byteAt(0)]&classIdent != 0 {
		l.pos++
	}
	v, err := strconv.ParseUint(l.text[from:l.pos], 0, 64)
	l.refuseAt(err != nil, from, "It has at most 64 bits.",
		"invalid integer of base "+strconv.Itoa(base)+" \""+ClipText(l.text[from:l.pos])+"\"")
	l.addToken(number, from, strconv.FormatUint(v, 10))
}

// ClipText shortens a text for quoting in a message.
func ClipText(s string) string {
	if len(s) <= 64 {
		return s
	}
	return strings.ToValidUTF8(s[:60], "") + "..."
}
