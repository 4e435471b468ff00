package zone

import (
	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// MayMatch reports whether the condition e may be true in a row of the payload that m describes. A nil e matches every row. False
// is a proof that no row matches. Columns that m lacks may have any value, and a nil m lacks all. The columns of m must be those
// of the schema that e is bound to, see [Map.Under].
func MayMatch(e expr.Expr, m *Map) bool {
	if e == nil || m == nil {
		return true
	}
	p := zonePruner{column: m.columnSpan}
	return p.truthsOf(e, 0)&expr.True != 0
}

// MayMatchNulls reports whether a condition may be true in a row in which all columns are null except those selected by known,
// which may have any value. False is a proof that it is not.
func MayMatchNulls(e expr.Expr, known func(column string) bool) bool {
	p := zonePruner{column: func(c *expr.Column) valueSpan {
		if known(c.Name) {
			return anySpan
		}
		return nullSpan
	}}
	return p.truthsOf(e, 0)&expr.True != 0
}

// maxDepth bounds the depth of examined expressions. Below it any value is possible.
const maxDepth = 1000

// zonePruner computes the possible values of expressions. Its results may include impossible values but never miss a possible
// one.
type zonePruner struct {
	column func(*expr.Column) valueSpan
}

// rules are the operators with more precise rules than their descriptions give.
var rules map[expr.Op]func(p *zonePruner, e *expr.Call, depth int) expr.Truths

func init() { //nolint:gochecknoinits // rules look into the arguments: a literal would be a cycle
	rules = map[expr.Op]func(p *zonePruner, e *expr.Call, depth int) expr.Truths{
		expr.Not:          func(p *zonePruner, e *expr.Call, depth int) expr.Truths { return p.truthsOf(e.Args[0], depth).Not() },
		expr.In:           (*zonePruner).inTruths,
		expr.Like:         (*zonePruner).likeTruths,
		expr.StartsWith:   (*zonePruner).startsWithTruths,
		expr.Case:         (*zonePruner).caseTruths,
		expr.ListContains: func(p *zonePruner, e *expr.Call, depth int) expr.Truths { return nullWith(p.isNull(e.Args[1], depth)) },
		expr.NullIf:       func(p *zonePruner, e *expr.Call, depth int) expr.Truths { return nullWith(p.isNull(e.Args[0], depth)) },
	}
}

// truthsOf returns the possible values of a condition. For an expression that is not a bool, True stands for any value that is
// not null.
func (p *zonePruner) truthsOf(e expr.Expr, depth int) expr.Truths {
	if depth > maxDepth {
		return expr.AnyTruth
	}
	switch e := e.(type) {
	case *expr.Literal:
		return e.Truth()
	case *expr.Column:
		s := p.column(e)
		return s.asTruths()
	case *expr.Call:
		if e.T.Kind != schema.Bool {
			s := p.spanOf(e, depth)
			return s.asTruths()
		}
		return p.callTruths(e, depth+1)
	}
	return expr.AnyTruth
}

// callTruths returns the possible values of a call, from the operator's description or its entry in rules.
func (p *zonePruner) callTruths(e *expr.Call, depth int) expr.Truths {
	op := e.Op.Info()
	switch {
	case rules[e.Op] != nil:
		return rules[e.Op](p, e, depth)
	case op.Decides != 0 && len(e.Args) > 0:
		o := p.truthsOf(e.Args[0], depth)
		for _, a := range e.Args[1:] {
			o = o.Join(p.truthsOf(a, depth), op.Decides)
		}
		return o
	case op.Tests != 0:
		return p.truthsOf(e.Args[0], depth).Among(op.Tests)
	case op.Orders != 0:
		a, b := p.spanOf(e.Args[0], depth), p.spanOf(e.Args[1], depth)
		if op.Distinct {
			return distinctSpans(op.Orders, &a, &b)
		}
		return compareSpans(op.Orders, &a, &b)
	}
	return p.byNulls(e, depth)
}

// byNulls returns the possible values of a call, given only which arguments are certainly null.
func (p *zonePruner) byNulls(e *expr.Call, depth int) expr.Truths {
	nulls := 0
	for _, a := range e.Args {
		if p.isNull(a, depth) {
			nulls++
		}
	}
	switch e.NullRule() {
	case expr.NullIfAny:
		return nullWith(nulls > 0)
	case expr.NullIfAll:
		return nullWith(nulls == len(e.Args))
	default:
		return expr.AnyTruth
	}
}

// nullWith returns Null if the condition for a null result is met, otherwise any value.
func nullWith(met bool) expr.Truths {
	if met {
		return expr.Null
	}
	return expr.AnyTruth
}

// isNull reports whether an expression is certainly null.
func (p *zonePruner) isNull(e expr.Expr, depth int) bool { return p.truthsOf(e, depth) == expr.Null }

// compareSpans compares values of one type.
func compareSpans(holds expr.Orders, a, b *valueSpan) expr.Truths {
	if a.kind != b.kind && a.kind != schema.Invalid && b.kind != schema.Invalid || a.scale != b.scale && a.isBounded() && b.isBounded() {
		return expr.AnyTruth
	}
	o := a.nullTruth() | b.nullTruth()
	if a.empty || b.empty {
		return o
	}
	return o | a.ordersWith(b).Among(holds)
}

// distinctSpans compares values where null counts as a value.
func distinctSpans(holds expr.Orders, a, b *valueSpan) expr.Truths {
	o := compareSpans(holds, a, b) &^ expr.Null
	if a.canNull && b.canNull {
		o |= expr.Equal.Among(holds)
	}
	if a.canNull && !b.empty || b.canNull && !a.empty {
		o |= expr.Less.Among(holds)
	}
	return o
}

// inTruths returns the possible values of IN.
func (p *zonePruner) inTruths(e *expr.Call, depth int) expr.Truths {
	a := p.spanOf(e.Args[0], depth)
	o := expr.False | a.nullTruth()
	for _, item := range e.Args[1:] {
		b := p.spanOf(item, depth)
		o = o.Join(compareSpans(expr.Equal, &a, &b), expr.True)
	}
	return o
}

// caseTruths returns the union of the possible values of a CASE.
func (p *zonePruner) caseTruths(e *expr.Call, depth int) (o expr.Truths) {
	for i := 0; i+1 < len(e.Args); i += 2 {
		c := p.truthsOf(e.Args[i], depth)
		if c&expr.True != 0 {
			o |= p.truthsOf(e.Args[i+1], depth)
		}
		if c == expr.True {
			return o
		}
	}
	return o | p.truthsOf(e.Args[len(e.Args)-1], depth)
}

// likeTruths returns the possible values of LIKE, for a pattern that begins with literal text.
func (p *zonePruner) likeTruths(e *expr.Call, depth int) expr.Truths {
	pattern, ok := e.Detail.(*expr.Pattern)
	a := p.spanOf(e.Args[0], depth)
	if !ok || pattern.Fold || len(pattern.Parts) == 0 || !isTextual(a.kind) {
		return p.byNulls(e, depth)
	}
	prefix, whole := literalPrefix(pattern)
	if !whole {
		o := a.beginsTruths(prefix)
		if !openEnd(pattern, prefix) && !a.empty {
			o |= expr.False // the rest may not match
		}
		return o
	}
	point := valueSpan{kind: a.kind, low: boundValue{s: prefix}, high: boundValue{s: prefix}, hasLow: true, hasHigh: true, one: true}
	return compareSpans(expr.Equal, &a, &point)
}

// literalPrefix returns the literal text at the start of a pattern. whole reports whether that is the whole pattern.
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

// openEnd reports whether a pattern is its literal prefix followed by anything.
func openEnd(pattern *expr.Pattern, prefix []byte) bool {
	return len(pattern.Parts) == 2 && len(prefix) == len(pattern.Parts[0].Text) && pattern.Parts[1].Text == ""
}

func (p *zonePruner) startsWithTruths(e *expr.Call, depth int) expr.Truths {
	a, b := p.spanOf(e.Args[0], depth), p.spanOf(e.Args[1], depth)
	if !isTextual(a.kind) || !b.one || b.empty {
		return p.byNulls(e, depth)
	}
	return a.beginsTruths(b.low.s) | b.nullTruth()
}
