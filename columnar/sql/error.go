package sql

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Error is an error in a query text, with its position.
type Error struct {
	// Pos is the byte offset of the error in the text, from 0.
	Pos int
	// Line and Column count from 1. Columns count characters.
	Line, Column int
	// Message describes the error. Hint says what to do; it may be empty.
	Message string
	Hint    string

	excerpt string // the displayed part of the line
	caret   int    // characters of the excerpt before the error
}

// excerptLength is the number of characters of a line that an error shows.
const excerptLength = 120

// errorAt returns an error at a byte offset of the text.
func (t queryText) errorAt(pos int, hint, message string) *Error {
	text := t.text
	pos = min(max(pos, 0), len(text))
	e := &Error{Pos: pos, Line: 1 + strings.Count(text[:pos], "\n"), Message: message, Hint: hint}
	start := strings.LastIndexByte(text[:pos], '\n') + 1
	end := len(text)
	if i := strings.IndexByte(text[pos:], '\n'); i >= 0 {
		end = pos + i
	}
	before := []rune(text[start:pos])
	e.Column = 1 + len(before)
	// For a position far to the right, show its surroundings.
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

// Error returns the message, the line with a caret under the error, and the hint.
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

// queryText is a text in which errors have positions.
type queryText struct{ text string }

// refuseAt fails with an error at a byte offset of the text.
func (t queryText) refuseAt(found bool, pos int, hint, message string) {
	if found {
		panic(t.errorAt(pos, hint, message))
	}
}

// Errorf returns an error at a byte offset of the text.
func (t queryText) Errorf(pos int, hint, format string, args ...any) *Error {
	return t.errorAt(pos, hint, fmt.Sprintf(format, args...))
}
