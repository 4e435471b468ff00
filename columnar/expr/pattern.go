package expr

// Pattern is a LIKE pattern, cut at its wildcards.
type Pattern struct {
	// Text is the pattern as it was written, Escape its escape character, 0 for none.
	Text   string
	Escape rune
	// Fold: case is ignored (ILIKE).
	Fold bool
	// Parts are the literal texts between runs of %; within a part, '_' wildcards are in Any. The first part is at the beginning, the
	// last at the end; a pattern without % has one part.
	Parts []Part
}

// Part is a piece of a pattern without %.
type Part struct {
	// Text has one character for each of the piece; Any[i] says that its i-th character (not byte) stands for any.
	Text string
	Any  []bool // nil when none does
}
