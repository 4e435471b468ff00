package zone

import (
	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// outcomes are the values that a condition may have in the rows of a payload.
type outcomes uint8

const (
	canTrue  outcomes = 1
	canFalse outcomes = 2
	canNull  outcomes = 4
	anything          = canTrue | canFalse | canNull
)

// MayMatch reports whether the condition e, nil for none, may be true in a row of the payload that m describes. False is a proof that it
// is not. What m does not know may be anything; a nil m knows nothing. The columns of m must be those of the schema that e is bound to,
// see [Map.Under].
func MayMatch(e expr.Expr, m *Map) bool {
	if e == nil || m == nil {
		return true
	}
	p := pruner{m: m}
	return p.outcomes(e, 0)&canTrue != 0
}

// maxDepth bounds how deep an expression is looked into: beyond it anything is possible.
const maxDepth = 1000

type pruner struct{ m *Map }

// outcomes returns the values that a condition may have; more than those it has, never fewer.
func (p *pruner) outcomes(e expr.Expr, depth int) outcomes {
	if depth > maxDepth {
		return anything
	}
	switch e := e.(type) {
	case *expr.Literal:
		return literal(e)
	case *expr.Column:
		return p.flag(e)
	case *expr.Call:
		return p.call(e, depth+1)
	}
	return anything
}

func literal(e *expr.Literal) outcomes {
	switch v := e.Value.(type) {
	case nil:
		return canNull
	case bool:
		return of(v)
	}
	return anything
}

func of(v bool) outcomes {
	if v {
		return canTrue
	}
	return canFalse
}

// flag is a column of bools.
func (p *pruner) flag(e *expr.Column) outcomes {
	r := p.rangeOf(e, 0)
	if !r.known || r.kind != schema.Bool {
		return anything
	}
	var o outcomes
	if r.canNull {
		o |= canNull
	}
	if !r.empty {
		for v := range int64(2) {
			if (!r.hasLow || r.low.i <= v) && (!r.hasHigh || v <= r.high.i) {
				o |= of(v == 1)
			}
		}
	}
	return o
}

func (p *pruner) call(e *expr.Call, depth int) outcomes {
	switch e.Op {
	case expr.And, expr.Or:
		if len(e.Args) == 0 {
			return anything
		}
		o := p.outcomes(e.Args[0], depth)
		for _, a := range e.Args[1:] {
			o = combine(e.Op == expr.And, o, p.outcomes(a, depth))
		}
		return o
	case expr.Not:
		return not(p.outcomes(e.Args[0], depth))
	case expr.Eq, expr.Ne, expr.Lt, expr.Le, expr.Gt, expr.Ge:
		return p.comparison(e.Op, e.Args[0], e.Args[1], depth)
	case expr.IsDistinct:
		return p.distinct(e, depth)
	case expr.IsNotDistinct:
		return not(p.distinct(e, depth))
	case expr.IsNull:
		return p.isNull(e.Args[0], depth)
	case expr.IsNotNull:
		return not(p.isNull(e.Args[0], depth))
	case expr.IsTrue, expr.IsNotTrue, expr.IsFalse, expr.IsNotFalse:
		return test(e.Op, p.outcomes(e.Args[0], depth))
	case expr.In:
		return p.in(e, depth)
	case expr.Like:
		return p.like(e, depth)
	case expr.StartsWith:
		return p.startsWith(e, depth)
	default:
		return anything
	}
}

// combine is AND, else OR, of two conditions of which nothing is known but their outcomes.
func combine(and bool, a, b outcomes) outcomes {
	if !and { // by De Morgan
		return not(combine(true, not(a), not(b)))
	}
	o := (a | b) & canFalse
	if a&canTrue != 0 && b&canTrue != 0 {
		o |= canTrue
	}
	if a&canNull != 0 && b&(canNull|canTrue) != 0 || b&canNull != 0 && a&canTrue != 0 {
		o |= canNull
	}
	return o
}

func not(a outcomes) outcomes {
	o := a & canNull
	if a&canTrue != 0 {
		o |= canFalse
	}
	if a&canFalse != 0 {
		o |= canTrue
	}
	return o
}

// test is IS [NOT] TRUE, IS [NOT] FALSE.
func test(op expr.Op, a outcomes) outcomes {
	var o outcomes
	want := canTrue
	if op == expr.IsFalse || op == expr.IsNotFalse {
		want = canFalse
	}
	if a&want != 0 {
		o |= canTrue
	}
	if a&^want != 0 {
		o |= canFalse
	}
	if op == expr.IsNotTrue || op == expr.IsNotFalse {
		o = not(o)
	}
	return o
}

// isNull is IS NULL of any value.
func (p *pruner) isNull(e expr.Expr, depth int) outcomes {
	if e.Type().Kind == schema.Bool {
		var o outcomes
		a := p.outcomes(e, depth)
		if a&canNull != 0 {
			o |= canTrue
		}
		if a&(canTrue|canFalse) != 0 {
			o |= canFalse
		}
		return o
	}
	r := p.rangeOf(e, depth)
	if !r.known {
		return canTrue | canFalse
	}
	var o outcomes
	if r.canNull {
		o |= canTrue
	}
	if !r.empty {
		o |= canFalse
	}
	return o
}

// comparison compares two values of one type.
func (p *pruner) comparison(op expr.Op, a, b expr.Expr, depth int) outcomes {
	ra, rb := p.rangeOf(a, depth), p.rangeOf(b, depth)
	return compareRanges(op, &ra, &rb)
}

func compareRanges(op expr.Op, a, b *span) outcomes {
	var o outcomes
	if !a.known || !b.known || a.kind != b.kind || a.scale != b.scale {
		return anything
	}
	if a.canNull || b.canNull {
		o |= canNull
	}
	if a.empty || b.empty {
		return o
	}
	// below: some value of a may be below some of b, and so on.
	below := !a.hasLow || !b.hasHigh || compare(a.kind, &a.low, &b.high) < 0
	above := !a.hasHigh || !b.hasLow || compare(a.kind, &a.high, &b.low) > 0
	equal := a.meets(b)
	switch op {
	case expr.Eq:
		return o | either(equal, below || above)
	case expr.Ne:
		return o | either(below || above, equal)
	case expr.Lt:
		return o | either(below, above || equal)
	case expr.Ge:
		return o | either(above || equal, below)
	case expr.Gt:
		return o | either(above, below || equal)
	default: // Le
		return o | either(below || equal, above)
	}
}

func either(yes, no bool) (o outcomes) {
	if yes {
		o |= canTrue
	}
	if no {
		o |= canFalse
	}
	return o
}

// distinct is IS DISTINCT FROM.
func (p *pruner) distinct(e *expr.Call, depth int) outcomes {
	a, b := p.rangeOf(e.Args[0], depth), p.rangeOf(e.Args[1], depth)
	if !a.known || !b.known {
		return canTrue | canFalse
	}
	o := compareRanges(expr.Ne, &a, &b) &^ canNull
	if a.canNull && b.canNull {
		o |= canFalse
	}
	if a.canNull && !b.empty || b.canNull && !a.empty {
		o |= canTrue
	}
	return o
}

// in is equality with one of several.
func (p *pruner) in(e *expr.Call, depth int) outcomes {
	if len(e.Args) < 2 {
		return anything
	}
	a := p.rangeOf(e.Args[0], depth)
	o := canFalse
	for i, item := range e.Args[1:] {
		b := p.rangeOf(item, depth)
		one := compareRanges(expr.Eq, &a, &b)
		if i == 0 {
			o = one
			continue
		}
		o = combine(false, o, one)
	}
	return o
}

// like is LIKE with a pattern that begins with literal text.
func (p *pruner) like(e *expr.Call, depth int) outcomes {
	pattern, ok := e.Detail.(*expr.Pattern)
	a := p.rangeOf(e.Args[0], depth)
	if !ok || pattern.Fold || len(pattern.Parts) == 0 || !a.known || !a.textual() {
		return anything
	}
	prefix, whole := literalPrefix(pattern)
	if !whole {
		o := a.begins(prefix)
		if !openEnd(pattern, prefix) && !a.empty {
			o |= canFalse // what begins so may go on otherwise
		}
		return o
	}
	point := span{known: true, kind: a.kind, low: bound{s: prefix}, high: bound{s: prefix}, hasLow: true, hasHigh: true, one: true}
	return compareRanges(expr.Eq, &a, &point)
}

// literalPrefix is the text that a pattern begins with; whole says that there is nothing behind it.
func literalPrefix(pattern *expr.Pattern) (prefix []byte, whole bool) {
	first := pattern.Parts[0]
	n := 0
	for i := range first.Text {
		if n < len(first.Any) && first.Any[n] {
			return []byte(first.Text[:i]), false
		}
		n++
	}
	return []byte(first.Text), len(pattern.Parts) == 1
}

// openEnd reports whether a pattern is its literal prefix with anything behind it.
func openEnd(pattern *expr.Pattern, prefix []byte) bool {
	return len(pattern.Parts) == 2 && len(prefix) == len(pattern.Parts[0].Text) && pattern.Parts[1].Text == ""
}

func (p *pruner) startsWith(e *expr.Call, depth int) outcomes {
	a, b := p.rangeOf(e.Args[0], depth), p.rangeOf(e.Args[1], depth)
	if !a.known || !b.known || !a.textual() || !b.one || b.empty {
		return anything
	}
	o := a.begins(b.low.s)
	if b.canNull {
		o |= canNull
	}
	return o
}
