package expr

import (
	"errors"
	"strings"
)

// Pattern is a LIKE pattern, cut at its wildcards.
type Pattern struct {
	// Text is the pattern as it was written, Escape its escape character, 0 for none.
	Text   string
	Escape rune
	// Fold: case is ignored (ILIKE).
	Fold bool
	// Parts are the literal texts between the %; within a part, '_' wildcards are in Any. The first part is at the beginning, the last at
	// the end; a pattern without % has one part, and %% has three, of which the second is empty.
	Parts []Part
}

// Part is a piece of a pattern without %.
type Part struct {
	// Text has one character for each of the piece; Any[i] says that its i-th character (not byte) stands for any.
	Text string
	Any  []bool // nil when none does
}

// ErrPattern says that a LIKE pattern can't be read.
var ErrPattern = errors.New("LIKE pattern must not end with escape character")

// ParsePattern cuts a LIKE pattern at its wildcards. Only a pattern that ends in its escape character can't be read.
func ParsePattern(text string, escape rune, fold bool) (*Pattern, error) {
	p := &Pattern{Text: text, Escape: escape, Fold: fold, Parts: make([]Part, 0, 1+strings.Count(text, "%"))}
	var piece strings.Builder
	var wild []int // places of _ in the piece
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
