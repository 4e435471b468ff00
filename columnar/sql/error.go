package sql

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Error says what is wrong with a text, and where.
type Error struct {
	// Pos is the byte of the text at which it is wrong, from 0.
	Pos int
	// Line and Column count from 1; columns are characters.
	Line, Column int
	// Message is what is wrong, Hint what to do about it, empty if there is nothing to say.
	Message string
	Hint    string

	excerpt string // what is shown of the line
	caret   int    // characters of the excerpt before the place
}

// excerptLength is how many characters of a line an error shows.
const excerptLength = 120

// newError returns an error at a byte of the text.
func newError(text string, pos int, message, hint string) *Error {
	pos = min(max(pos, 0), len(text))
	e := &Error{Pos: pos, Line: 1 + strings.Count(text[:pos], "\n"), Message: message, Hint: hint}
	start := strings.LastIndexByte(text[:pos], '\n') + 1
	end := len(text)
	if i := strings.IndexByte(text[pos:], '\n'); i >= 0 {
		end = pos + i
	}
	before := []rune(text[start:pos])
	e.Column = 1 + len(before)
	// A place far to the right is shown with what is around it.
	cut := ""
	if len(before) > excerptLength/2 {
		before = before[len(before)-excerptLength/2:]
		cut = "..."
	}
	after := []rune(text[pos:min(end, pos+4*excerptLength)])
	tail := ""
	if rest := excerptLength - len(before); len(after) > rest {
		after, tail = after[:rest], "..."
	}
	line := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return ' '
		}
		return r
	}, string(before)+string(after))
	e.excerpt = cut + line + tail
	e.caret = len(cut) + len(before)
	return e
}

// Error returns the message, the line with a caret below the place, and the hint.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Message)
	if e.excerpt != "" {
		label := "LINE " + strconv.Itoa(e.Line) + ": "
		b.WriteString("\n" + label + e.excerpt + "\n" + strings.Repeat(" ", len(label)+e.caret) + "^")
	}
	if e.Hint != "" {
		b.WriteString("\nHINT: " + e.Hint)
	}
	return b.String()
}

// Errorf returns an error at a byte of the text that the query was parsed from.
func (q *Select) Errorf(pos int, hint, format string, args ...any) *Error {
	return newError(q.text, pos, fmt.Sprintf(format, args...), hint)
}

// Errorf returns an error at a byte of the text that the predicate was parsed from.
func (p *Predicate) Errorf(pos int, hint, format string, args ...any) *Error {
	return newError(p.text, pos, fmt.Sprintf(format, args...), hint)
}
