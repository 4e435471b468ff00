package view

import (
	"slices"
	"strings"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// Need is what a query needs of payloads. It is immutable.
type Need struct {
	// Columns are sorted and distinct.
	Columns []string
	// Terms are the predicate's, all of which must be true; none means all rows. By their keys.
	Terms []Term
	// EarlyStop: see transcode.Spec.
	EarlyStop bool
	key       string
	// cut: the predicate was too long, and all rows are needed instead.
	cut bool
}

// maxPredicate is how long the keys of a predicate's terms are at most, in bytes: of a need, and of a shape. A longer one is not worth the room
// in views that serve many, nor the time to compare it with all others: who asks filters all rows.
const maxPredicate = 32 << 10

// Term is a condition, and the text that stands for it.
type Term struct {
	Key  string
	Expr expr.Expr
}

// NewNeed returns the need of columns, of which there may be several of a name, and of the rows for which where is true; nil is all.
func NewNeed(columns []string, where expr.Expr, earlyStop bool) *Need {
	n := &Need{Columns: slices.Clone(columns), EarlyStop: earlyStop}
	slices.Sort(n.Columns)
	n.Columns = slices.Compact(n.Columns)
	for _, e := range expr.Conjuncts(where) {
		n.Terms = append(n.Terms, Term{expr.Key(e), e})
	}
	length := 0
	for i := range n.Terms {
		length += len(n.Terms[i].Key)
	}
	if length > maxPredicate {
		n.Terms, n.cut = nil, true
	}
	slices.SortFunc(n.Terms, func(a, b Term) int { return strings.Compare(a.Key, b.Key) })
	n.Terms = slices.CompactFunc(n.Terms, func(a, b Term) bool { return a.Key == b.Key })
	if len(n.Terms) == 0 {
		n.EarlyStop = false
	}
	n.key = strings.Join(n.Columns, "\x00") + "\x01" + n.asTermSet().key
	return n
}

// Key is the same for needs that are the same.
func (n *Need) Key() string { return n.key }

// termSet is terms that must all be true.
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

// includes reports whether every row for which the terms of o are true is one for which those of a are: a has no term that o has not.
func (a *termSet) includes(o *termSet) bool {
	i := 0
	for k := 0; i < len(a.terms) && len(a.terms)-i <= len(o.terms)-k; k++ {
		switch strings.Compare(a.terms[i].Key, o.terms[k].Key) {
		case -1:
			return false // they are sorted
		case 0:
			i++
		}
	}
	return i == len(a.terms)
}

func (a *termSet) toExpr() expr.Expr {
	return combine(expr.And, a.terms, func(t Term) expr.Expr { return t.Expr })
}

// combine combines conditions; of none it is nil.
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

// Shape is what can be made of a payload: columns, and the rows for which one of the alternatives is true. It is immutable.
type Shape struct {
	Columns   []string
	EarlyStop bool
	// any are the alternatives, none of which holds another, by their keys. One without terms is all rows.
	any []termSet
	key string
	// inputs are the columns that the alternatives name.
	inputs int
}

// ShapeOf is the shape that has a need and nothing more.
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

// mergeShapes returns the least shape that covers what a and b do; of a predicate that would be too long it is one of all rows.
func mergeShapes(a, b *Shape) *Shape {
	columns := slices.Concat(a.Columns, b.Columns)
	slices.Sort(columns)
	columns = slices.Compact(columns)
	all := slices.Concat(a.any, b.any)
	var kept []termSet
	for i := range all {
		// Of two that are the same the first stays.
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

// Covers reports whether everything that n needs is in the shape.
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

// Exact reports whether the shape has the rows that n needs and no other.
func (s *Shape) Exact(n *Need) bool {
	need := n.asTermSet()
	return !n.cut && len(s.any) == 1 && s.any[0].key == need.key
}

// Where is the shape's predicate; nil is all rows.
func (s *Shape) Where() expr.Expr {
	if len(s.any) == 1 {
		return s.any[0].toExpr()
	}
	return combine(expr.Or, s.any, func(a termSet) expr.Expr { return a.toExpr() })
}

// Inputs are the columns that the predicate names.
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
