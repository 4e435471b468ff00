package expr

import (
	"errors"
	"strings"
)

// Pattern is a LIKE pattern, split at its wildcards.
type Pattern struct {
	// Text is the pattern as written. Escape is its escape character, or 0 for none.
	Text   string
	Escape rune
	// Fold means that case is ignored (ILIKE).
	Fold bool
	// Parts are the literal texts between the % wildcards; _ wildcards within a part are in its Any. The first part matches at the
	// beginning, the last at the end. A pattern without % has one part; %% has three, of which the second is empty.
	Parts []Part
}

// Part is a piece of a pattern without %.
type Part struct {
	// Text has one character per character of the piece. If Any[i] is set, its i-th character (not byte) matches any character.
	Text string
	Any  []bool // nil if none is set
}

// ErrPattern means that a LIKE pattern is invalid.
var ErrPattern = errors.New("LIKE pattern must not end with escape character")

// ParsePattern splits a LIKE pattern at its wildcards. Only a pattern that ends in its escape character is invalid.
func ParsePattern(text string, escape rune, fold bool) (*Pattern, error) {
	p := &Pattern{Text: text, Escape: escape, Fold: fold, Parts: make([]Part, 0, 1+strings.Count(text, "%"))}
	var piece strings.Builder
	var wild []int // positions of _ in the piece
	count, escaped := 0, false
	finish := func() {
		part := Part{Text: piece.String()}
		if len(wild) > 0 {
			part.Any = make([]bool, count)
			for _, i := range wild {
				part.Any[i] = true
			}
		}
		p.Parts = append(p.Parts, part)
		piece.Reset()
		wild, count = wild[:0], 0
	}
	for _, r := range text {
		switch {
		case escaped:
			escaped = false
		case r == escape && escape != 0:
			escaped = true
			continue
		case r == '%':
			finish()
			continue
		case r == '_':
			wild = append(wild, count)
		}
		piece.WriteRune(r)
		count++
	}
	if escaped {
		return nil, ErrPattern
	}
	finish()
	return p, nil
}
