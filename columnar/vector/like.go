package vector

import (
	"bytes"
	"unicode/utf8"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// likeNode matches texts with a constant pattern. For case-insensitive matching, both have been case-folded.
type likeNode struct {
	a       exprNode
	parts   []patternPart
	binary  bool
	between []byte // the text of a pattern %text%, nil for other patterns
	before  []byte // the text of a pattern text%
}

// patternPart is a piece of a pattern without %.
type patternPart struct {
	text []byte // set if there are no wildcards
	// chars holds the characters if some are wildcards; a wildcard is nil.
	chars [][]byte
	short int // minimum length of a match in bytes
}

func newLikeNode(a exprNode, p *expr.Pattern, binary bool, fold func([]byte) []byte) *likeNode {
	n := &likeNode{a: a, binary: binary}
	for _, piece := range p.Parts {
		n.parts = append(n.parts, newPart(piece, fold))
	}
	if len(n.parts) == 3 && n.parts[0].short+n.parts[2].short == 0 && n.parts[1].chars == nil && n.parts[1].short > 0 {
		n.between = n.parts[1].text
	}
	if len(n.parts) == 2 && n.parts[1].short == 0 && n.parts[0].chars == nil && n.parts[0].short > 0 {
		n.before = n.parts[0].text
	}
	return n
}

func newPart(piece expr.Part, fold func([]byte) []byte) patternPart {
	text := fold([]byte(piece.Text))
	var p patternPart
	wild := false
	for rest, i := []byte(piece.Text), 0; len(rest) > 0; i++ {
		_, size := utf8.DecodeRune(rest)
		if i < len(piece.Any) && piece.Any[i] {
			wild = true
			p.chars = append(p.chars, nil)
			p.short++
		} else {
			c := fold(rest[:size])
			p.chars = append(p.chars, c)
			p.short += len(c)
		}
		rest = rest[size:]
	}
	if !wild {
		return patternPart{text: text, short: len(text)}
	}
	return p
}

func (n *likeNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	a := ev.evalArgs(sel, n.a)[0]
	out := &columnVec{kind: schema.Bool, rows: ev.rows, valid: a.valid, bits: ev.zeros(ev.rows)}
	live := ev.liveRows(sel, a)
	switch {
	case len(n.parts) == 1 && n.parts[0].chars == nil:
		compareStrings(out.bits, expr.Equal, a, &columnVec{rows: 1, one: true, begin: []int32{0}, end: []int32{int32(len(n.parts[0].text))}, data: n.parts[0].text}, live)
	case n.before != nil:
		beginsWith(out.bits, a, n.before, live)
	case n.between != nil:
		findContaining(out.bits, a, n.between, live)
	default:
		for i := range eachRow(live, ev.rows) {
			if n.matchText(a.str(i)) {
				out.bits.set(i)
			}
		}
	}
	return out
}

// matchText reports whether the pattern matches the whole of s. Matching a middle part as early as possible is optimal.
func (n *likeNode) matchText(s []byte) bool {
	first := &n.parts[0]
	used, ok := first.matchBegin(s, n.binary)
	if !ok {
		return false
	}
	s = s[used:]
	if len(n.parts) == 1 {
		return len(s) == 0
	}
	for i := range n.parts[1 : len(n.parts)-1] {
		if s, ok = n.parts[1+i].findIn(s, n.binary); !ok {
			return false
		}
	}
	return n.parts[len(n.parts)-1].matchEnd(s, n.binary)
}

// matchBegin reports whether s begins with the part, and the length of the match.
func (p *patternPart) matchBegin(s []byte, binary bool) (int, bool) {
	if p.chars == nil {
		return len(p.text), bytes.HasPrefix(s, p.text)
	}
	at := 0
	for _, c := range p.chars {
		switch {
		case at >= len(s):
			return 0, false
		case c != nil:
			if !bytes.HasPrefix(s[at:], c) {
				return 0, false
			}
			at += len(c)
		case binary:
			at++
		default:
			_, size := utf8.DecodeRune(s[at:])
			at += size
		}
	}
	return at, true
}

// findIn returns the rest of s after the first match of the part.
func (p *patternPart) findIn(s []byte, binary bool) ([]byte, bool) {
	if p.chars == nil {
		at := bytes.Index(s, p.text)
		if at < 0 {
			return nil, false
		}
		return s[at+len(p.text):], true
	}
	for {
		if used, ok := p.matchBegin(s, binary); ok {
			return s[used:], true
		}
		if len(s) < p.short {
			return nil, false
		}
		size := 1
		if !binary {
			_, size = utf8.DecodeRune(s)
		}
		s = s[size:]
	}
}

// matchEnd reports whether s ends with the part.
func (p *patternPart) matchEnd(s []byte, binary bool) bool {
	if p.chars == nil {
		return bytes.HasSuffix(s, p.text)
	}
	// The part has a fixed number of characters: step back that many.
	at := len(s)
	for range p.chars {
		if at == 0 {
			return false
		}
		if binary {
			at--
			continue
		}
		_, size := utf8.DecodeLastRune(s[:at])
		at -= size
	}
	used, ok := p.matchBegin(s[at:], binary)
	return ok && at+used == len(s)
}

// matchesLike is LIKE with a pattern that is not a constant, and the escape character \. It backtracks only to the last %, which
// is sufficient, so the time is bounded by the product of the lengths. ok is false if the pattern ends with the escape character.
func matchesLike(s, p []byte, binary bool) (is, ok bool) {
	if trailing := len(p) - len(bytes.TrimRight(p, `\`)); trailing%2 == 1 {
		return false, false
	}
	i, j := 0, 0
	back, again := -1, 0 // position after the last %, and where in s it was tried
	for i < len(s) {
		if j < len(p) && p[j] == '%' {
			j++
			back, again = j, i
			continue
		}
		if j < len(p) {
			if step, width, ok := likeChar(s[i:], p[j:], binary); ok {
				i += step
				j += width
				continue
			}
		}
		if back < 0 {
			return false, true
		}
		size := 1
		if !binary {
			_, size = utf8.DecodeRune(s[again:])
		}
		again += size
		i, j = again, back
	}
	for j < len(p) && p[j] == '%' {
		j++
	}
	return j == len(p), true
}

// likeChar matches the first character of a pattern, which is not %. It returns the lengths of the match in both.
func likeChar(s, p []byte, binary bool) (step, width int, ok bool) {
	if p[0] == '_' {
		if binary {
			return 1, 1, true
		}
		_, size := utf8.DecodeRune(s)
		return size, 1, true
	}
	if p[0] == '\\' {
		if len(p) == 1 {
			return 0, 0, false
		}
		return 1, 2, s[0] == p[1]
	}
	return 1, 1, s[0] == p[0]
}
