package schema

import (
	"fmt"
	"strings"
)

// Problem is one problem of a schema.
type Problem struct {
	// Line and Column are the position in the text, from 1. They are 0 if the position is not known.
	Line, Column int
	// Where is the affected part of the schema: "format", or `field "request.method"`. It is empty for the whole schema.
	Where string
	// Message describes the problem. Hint suggests a correction; it may be empty.
	Message, Hint string
}

// String returns the problem on one line.
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

// maxProblems is the maximum number of problems that an error lists.
const maxProblems = 50

// Error lists the problems of a schema, up to maxProblems.
type Error struct {
	Problems []Problem
	// More is the number of problems that are not listed.
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

// orNil returns the error, or nil if there are no problems.
func (e *Error) orNil() error {
	if len(e.Problems) == 0 {
		return nil
	}
	return e
}

// problemf returns an error about the whole text.
func problemf(format string, args ...any) error {
	return &Error{Problems: []Problem{{Message: fmt.Sprintf(format, args...)}}}
}

// problemf returns an error about a node.
func (n *docNode) problemf(format string, args ...any) error {
	return &Error{Problems: []Problem{{Line: n.line, Column: n.column, Message: fmt.Sprintf(format, args...)}}}
}
