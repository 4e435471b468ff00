package schema

import (
	"fmt"
	"strings"
)

// Problem is one thing that is wrong with a schema.
type Problem struct {
	// Line and Column are where in the text, from 1; 0 when that is not known.
	Line, Column int
	// Where is the part of the schema: "format", or `field "request.method"`. Empty for all of it.
	Where string
	// Message says what is wrong; Hint, which may be empty, what may have been meant or what to do.
	Message, Hint string
}

// String is the problem on one line.
func (p Problem) String() string {
	var b strings.Builder
	if p.Line > 0 {
		fmt.Fprintf(&b, "line %d", p.Line)
		if p.Column > 0 {
			fmt.Fprintf(&b, ", column %d", p.Column)
		}
		b.WriteString(": ")
	}
	if p.Where != "" {
		b.WriteString(p.Where + ": ")
	}
	b.WriteString(p.Message)
	if p.Hint != "" {
		b.WriteString("; " + p.Hint)
	}
	return b.String()
}

// maxProblems is how many problems an error lists.
const maxProblems = 50

// Error is everything that is wrong with a schema, or as much of it as is listed.
type Error struct {
	Problems []Problem
	// More is how many problems are not listed.
	More int
}

// Error implements error.
func (e *Error) Error() string {
	lines := make([]string, 0, len(e.Problems)+1)
	for _, p := range e.Problems {
		lines = append(lines, p.String())
	}
	if e.More > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", e.More))
	}
	return strings.Join(lines, "\n")
}

func (e *Error) addProblem(p Problem) {
	if len(e.Problems) == maxProblems {
		e.More++
		return
	}
	e.Problems = append(e.Problems, p)
}

// orNil returns the error, nil if nothing is wrong.
func (e *Error) orNil() error {
	if len(e.Problems) == 0 {
		return nil
	}
	return e
}

// problemf is an error about a whole text.
func problemf(format string, args ...any) error {
	return &Error{Problems: []Problem{{Message: fmt.Sprintf(format, args...)}}}
}

// problemf is an error about a node.
func (n *docNode) problemf(format string, args ...any) error {
	return &Error{Problems: []Problem{{Line: n.line, Column: n.column, Message: fmt.Sprintf(format, args...)}}}
}
