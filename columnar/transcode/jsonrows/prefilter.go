package jsonrows

import (
	"strconv"
	"strings"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/transcode/jsonscan"
)

// frameFilter is a search in the bytes of a frame. A row without a match can't make the predicate true.
//
// It applies to a term of the top-level AND that is true only if a column has certain bytes. A row with that value also contains
// these bytes, unless they are escaped. So \u is searched for as well; the other escapes stand for characters that needles do not
// contain. An integer is written with its digits unless it has an exponent, so a digit followed by e is searched for as well.
// Floats have no unique spelling (0.1 may be written 0.09999999999999999999), and neither do times. A column with a default has
// values that are not in the bytes.
type frameFilter struct {
	needles  [][]byte
	exponent bool
}

// Bounds of needles: shorter ones match everywhere, and more of them are slower than a walk.
const (
	minNeedle  = 2
	maxNeedles = 4
)

var escapeU = []byte(`\u`)

// prefilterOf returns the best search for a conjunction, or nil if there is none.
func (j *jsonPlan) prefilterOf(conjuncts []expr.Expr) *frameFilter {
	var best *frameFilter
	score := 0
	for _, e := range conjuncts {
		if p, s := j.needlesOf(e); p != nil && s > score {
			best, score = p, s
		}
	}
	if best != nil && !best.exponent {
		best.needles = append(best.needles, escapeU)
	}
	return best
}

// needlesOf returns the search for one term, and the length of its shortest needle as a measure of how rare matches are.
func (j *jsonPlan) needlesOf(e expr.Expr) (p *frameFilter, score int) {
	c, ok := e.(*expr.Call)
	if !ok {
		return nil, 0
	}
	var texts []string
	column := c.Args[0]
	switch c.Op {
	case expr.Eq, expr.StartsWith:
		l, ok := c.Args[1].(*expr.Literal)
		if !ok && c.Op == expr.Eq {
			l, ok = column.(*expr.Literal)
			column = c.Args[1]
		}
		if !ok {
			return nil, 0
		}
		texts = append(texts, needleOf(l))
	case expr.In:
		for _, a := range c.Args[1:] {
			l, ok := a.(*expr.Literal)
			if !ok {
				return nil, 0
			}
			if l.Value != nil {
				texts = append(texts, needleOf(l))
			}
		}
	case expr.Like:
		pattern, ok := c.Detail.(*expr.Pattern)
		if !ok {
			return nil, 0
		}
		texts = append(texts, longestText(pattern))
	default:
		return nil, 0
	}
	push := predicatePusher{j: j, fields: map[int]bool{}}
	o, ok := push.operandOf(column)
	if !ok || o.field < 0 || len(texts) == 0 || len(texts) > maxNeedles {
		return nil, 0
	}
	p = &frameFilter{}
	switch o.kind {
	case schema.String, schema.Binary:
	case schema.Int32, schema.Int64, schema.Uint64:
		p.exponent = true
	default:
		return nil, 0
	}
	score = len(texts[0])
	for _, text := range texts {
		if score = min(score, len(text)); score < minNeedle {
			return nil, 0
		}
		p.needles = append(p.needles, []byte(text))
	}
	return p, score
}

// needleOf returns the text that every row with the value contains. It returns an empty text if there is none.
func needleOf(l *expr.Literal) string {
	switch v := l.Value.(type) {
	case string:
		return plainText(v)
	case []byte:
		return plainText(string(v))
	case int32:
		return strconv.FormatInt(int64(v), 10)
	case int64:
		return strconv.FormatInt(v, 10)
	case uint64:
		return strconv.FormatUint(v, 10)
	default:
		return ""
	}
}

// plainText returns s if JSON writes it in only one way apart from \u, otherwise an empty text.
func plainText(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == '"' || r == '\\' || r == '/' || r == 0xFFFD }) {
		return ""
	}
	return s
}

// longestText returns the longest plain text that every match of the pattern contains.
func longestText(p *expr.Pattern) string {
	longest := ""
	if p.Fold {
		return ""
	}
	for i := range p.Parts {
		part := &p.Parts[i]
		begin, at := 0, 0
		take := func(end int) {
			if s := plainText(part.Text[begin:end]); len(s) > len(longest) {
				longest = s
			}
		}
		for place, c := range part.Text {
			if at < len(part.Any) && part.Any[at] || c < 0x20 || c == '"' || c == '\\' || c == '/' {
				take(place)
				begin = place + len(string(c))
			}
			at++
		}
		take(len(part.Text))
	}
	return longest
}

// frameSearch is the state of a frameFilter in one frame: the next match of each needle.
type frameSearch struct {
	p    *frameFilter
	next []int
	exp  int
}

func (s *frameSearch) reset(p *frameFilter) {
	s.p, s.exp = p, -1
	s.next = s.next[:0]
	for range p.needles {
		s.next = append(s.next, -1)
	}
}

// findIn reports whether there is a match that begins between at and limit. Calls must move forward in b.
func (s *frameSearch) findIn(b []byte, at, limit int) bool {
	for i, next := range s.next {
		if next < at {
			next = len(b)
			if k := jsonscan.Search(b[at:], s.p.needles[i]); k >= 0 {
				next = at + k
			}
			s.next[i] = next
		}
		if next < limit {
			return true
		}
	}
	if !s.p.exponent {
		return false
	}
	if s.exp < at {
		s.exp = len(b)
		if k := jsonscan.SearchExponent(b[at:]); k >= 0 {
			s.exp = at + k
		}
	}
	return s.exp < limit
}
