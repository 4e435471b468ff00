package view

import (
	"slices"
	"strings"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// Need describes what a query needs of payloads. It is immutable.
type Need struct {
	// Columns are sorted and distinct.
	Columns []string
	// Terms are those of the predicate, by key. All must be true; no terms means all rows.
	Terms []Term
	// EarlyStop: see transcode.Spec.
	EarlyStop bool
	key       string
	// cut: the predicate was too long, so all rows are needed instead.
	cut bool
}

// maxPredicate bounds the keys of a predicate's terms, of a need and of a shape, in bytes. A longer predicate is not worth the
// space in shared views, nor the time to compare it with all others: the reader filters all rows.
const maxPredicate = 32 << 10

// Term is a condition with its text, which identifies it.
type Term struct {
	Key  string
	Expr expr.Expr
}

// NewNeed returns the need of columns, which may have duplicates, and of the rows for which where is true; nil means all rows.
func NewNeed(columns []string, where expr.Expr, earlyStop bool) *Need {
	n := &Need{Columns: slices.Clone(columns), EarlyStop: earlyStop}
	slices.Sort(n.Columns)
	n.Columns = slices.Compact(n.Columns)
	left := maxPredicate
	for _, e := range expr.Conjuncts(where) {
		key, fits := expr.KeyWithin(e, left)
		if !fits {
			n.Terms, n.cut = nil, true
			break
		}
		n.Terms, left = append(n.Terms, Term{key, e}), left-len(key)
	}
	slices.SortFunc(n.Terms, func(a, b Term) int { return strings.Compare(a.Key, b.Key) })
	n.Terms = slices.CompactFunc(n.Terms, func(a, b Term) bool { return a.Key == b.Key })
	if len(n.Terms) == 0 {
		n.EarlyStop = false
	}
	n.key = strings.Join(n.Columns, "\x00") + "\x01" + n.asTermSet().key
	return n
}

// Key returns the same string for equal needs.
func (n *Need) Key() string { return n.key }

// termSet is a set of terms that must all be true.
type termSet struct {
	terms []Term
	key   string
}

func (n *Need) asTermSet() termSet {
	keys := make([]string, len(n.Terms))
	for i := range n.Terms {
		keys[i] = n.Terms[i].Key
	}
	return termSet{n.Terms, strings.Join(keys, "\x00")}
}

// includes reports whether the terms of a are true for every row for which those of o are: a has no term that o does not have.
func (a *termSet) includes(o *termSet) bool {
	i := 0
	for k := 0; i < len(a.terms) && len(a.terms)-i <= len(o.terms)-k; k++ {
		switch strings.Compare(a.terms[i].Key, o.terms[k].Key) {
		case -1:
			return false // terms are sorted
		case 0:
			i++
		}
	}
	return i == len(a.terms)
}

func (a *termSet) toExpr() expr.Expr {
	return combine(expr.And, a.terms, func(t Term) expr.Expr { return t.Expr })
}

// combine combines conditions with op; it returns nil for none.
func combine[T any](op expr.Op, list []T, get func(T) expr.Expr) expr.Expr {
	switch len(list) {
	case 0:
		return nil
	case 1:
		return get(list[0])
	}
	args := make([]expr.Expr, len(list))
	for i, v := range list {
		args[i] = get(v)
	}
	return &expr.Call{Op: op, Args: args, T: schema.Type{Kind: schema.Bool}}
}

// Shape describes a view: columns, and the rows for which one of the alternatives is true. It is immutable.
type Shape struct {
	Columns   []string
	EarlyStop bool
	// any are the alternatives, by key; none of them includes another. An alternative without terms means all rows.
	any []termSet
	key string
	// inputs is the number of columns that the alternatives name.
	inputs int
}

// Key returns the same string for shapes of equal columns and rows.
func (s *Shape) Key() string { return s.key }

// ShapeOf returns the shape that covers exactly a need.
func ShapeOf(n *Need) *Shape { return newShape(n.Columns, []termSet{n.asTermSet()}, n.EarlyStop) }

func newShape(columns []string, list []termSet, earlyStop bool) *Shape {
	s := &Shape{Columns: columns, any: list, EarlyStop: earlyStop && len(list[0].terms) > 0}
	keys := make([]string, len(list))
	named := map[string]struct{}{}
	for i := range list {
		keys[i] = list[i].key
		for _, t := range list[i].terms {
			expr.Columns(t.Expr, func(c *expr.Column) { named[c.Name] = struct{}{} })
		}
	}
	s.inputs = len(named)
	s.key = strings.Join(columns, "\x00") + "\x01" + strings.Join(keys, "\x02")
	return s
}

// mergeShapes returns the smallest shape that covers both a and b. If its predicate would be too long, the shape has all rows.
func mergeShapes(a, b *Shape) *Shape {
	columns := slices.Concat(a.Columns, b.Columns)
	slices.Sort(columns)
	columns = slices.Compact(columns)
	all := slices.Concat(a.any, b.any)
	var kept []termSet
	for i := range all {
		// Of two equal alternatives the first is kept.
		held := slices.ContainsFunc(kept, func(o termSet) bool { return o.includes(&all[i]) }) ||
			slices.ContainsFunc(all[i+1:], func(o termSet) bool { return o.key != all[i].key && o.includes(&all[i]) })
		if !held {
			kept = append(kept, all[i])
		}
	}
	length := 0
	for i := range kept {
		length += len(kept[i].key)
	}
	if length > maxPredicate {
		kept = []termSet{{}}
	}
	slices.SortFunc(kept, func(x, y termSet) int { return strings.Compare(x.key, y.key) })
	return newShape(columns, kept, a.EarlyStop && b.EarlyStop)
}

// Covers reports whether the shape has everything that n needs.
func (s *Shape) Covers(n *Need) bool {
	i := 0
	for _, c := range s.Columns {
		if i < len(n.Columns) && n.Columns[i] == c {
			i++
		}
	}
	if i < len(n.Columns) {
		return false
	}
	need := n.asTermSet()
	return slices.ContainsFunc(s.any, func(a termSet) bool { return a.includes(&need) })
}

// Exact reports whether the shape has exactly the rows that n needs.
func (s *Shape) Exact(n *Need) bool {
	need := n.asTermSet()
	return !n.cut && len(s.any) == 1 && s.any[0].key == need.key
}

// Where returns the shape's predicate; nil means all rows.
func (s *Shape) Where() expr.Expr {
	if len(s.any) == 1 {
		return s.any[0].toExpr()
	}
	return combine(expr.Or, s.any, func(a termSet) expr.Expr { return a.toExpr() })
}

// Inputs returns the columns that the predicate names.
func (s *Shape) Inputs() []string {
	var names []string
	for i := range s.any {
		for _, t := range s.any[i].terms {
			expr.Columns(t.Expr, func(c *expr.Column) { names = append(names, c.Name) })
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
