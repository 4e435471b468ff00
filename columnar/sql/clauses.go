package sql

import (
	"slices"
	"strings"
)

// Clause is a part of a text that begins with a word.
type Clause struct {
	Word string
	// Text is what follows the word, without blanks around it. At is its offset in the whole text.
	Text string
	At   int
}

// SplitClauses splits a text that consists of clauses, each of which begins with one of some words, in lower case. Such a word begins a clause
// wherever it stands outside of quotes and parentheses: a column of that name needs quotes. A comment, which could hide such a word, is an error. Errors are of type
// *[Error].
func SplitClauses(text string, words ...string) ([]Clause, error) {
	return parseText(text, nil, func(p *queryParser) []Clause { return p.splitClauses(words) })
}

func (p *queryParser) splitClauses(words []string) []Clause {
	var clauses []Clause
	depth, last := 0, 0
	for ; ; p.i++ {
		t := p.token()
		p.refuseIf(strings.TrimSpace(p.text[last:t.pos]) != "", "Leave it out.", "there is a comment before this")
		if last = t.end; t.kind == end {
			break
		}
		switch {
		case t.kind == symbol && (t.text == "(" || t.text == "["):
			depth++
		case t.kind == symbol && (t.text == ")" || t.text == "]"):
			depth--
		}
		begins := false
		for _, w := range words {
			begins = begins || depth == 0 && t.kind == word && t.text == w
		}
		if begins {
			clauses = append(clauses, Clause{Word: t.text, At: t.end})
			continue
		}
		p.refuseIf(len(clauses) == 0, "", "expected one of the words that begin a part")
		c := &clauses[len(clauses)-1]
		if c.Text == "" {
			c.At = t.pos
		}
		c.Text = p.text[c.At:t.end]
	}
	return clauses
}

// ParseNames parses a list of column names, separated by commas. Names without quotes are in lower case. Errors are of type *[Error].
func ParseNames(text string) ([]string, error) {
	return parseText(text, nil, (*queryParser).parseNames)
}

func (p *queryParser) parseNames() []string {
	var names []string
	for {
		t := p.token()
		p.refuseIf(t.kind != word && t.kind != quoted || t.text == "", "Write names with other characters in double quotes.", "expected the name of a column")
		names = append(names, t.text)
		p.i++
		if p.token().kind == end {
			return names
		}
		p.refuseIf(!p.isSymbol(","), "Separate names by commas.", "expected a comma between names of columns")
		p.i++
	}
}

// QuoteName returns a name as a query has it: in quotes if it needs them, or if it is one of some words.
func QuoteName(name string, words ...string) string {
	if slices.Contains(words, name) {
		return string(appendQuoted(nil, name, '"'))
	}
	return string(appendName(nil, name))
}
