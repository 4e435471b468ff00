package jsonrows

import (
	"cmp"
	"math"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/transcode/rows"
)

// predicate is a part of a condition that is decided on slots, with the meaning that package expr gives it.
type predicate interface {
	decide(r *jsonReader) expr.Truths
}

// operand is a column that a predicate compares.
type operand struct {
	field int // in jsonPlan.fields, -1 for a column of the message
	own   rows.CommonColumn
	kind  schema.Kind
}

// pusher turns expressions into predicates, as far as slots can decide them.
type pusher struct {
	j      *jsonPlan
	fields map[int]bool // that the expression names
}

// push returns nil for what must be left to the batch.
func (p *pusher) push(e expr.Expr) predicate {
	switch e := e.(type) {
	case *expr.Literal:
		if e.T.Kind == schema.Bool || e.Value == nil {
			return constant(e.Truth())
		}
	case *expr.Column:
		if o, ok := p.operand(e); ok && o.kind == schema.Bool {
			return &comparison[int64]{o, truthsOf(expr.Eq.Info()), 1, (*jsonReader).number}
		}
	case *expr.Call:
		return p.call(e)
	}
	return nil
}

// pushes are the operators that slots can decide, beside junctions, tests and comparisons.
var pushes = map[expr.Op]func(p *pusher, e *expr.Call) predicate{
	expr.In: (*pusher).in, expr.Like: (*pusher).like, expr.StartsWith: (*pusher).startsWith,
}

func (p *pusher) call(e *expr.Call) predicate {
	op := e.Op.Info()
	push := pushes[e.Op]
	switch {
	case push != nil:
		return push(p, e)
	case op.Decides != 0:
		terms := make([]predicate, len(e.Args))
		for i, a := range e.Args {
			if terms[i] = p.push(a); terms[i] == nil {
				return nil
			}
		}
		return &junction{op.Decides, terms}
	case e.Op == expr.Not:
		if a := p.push(e.Args[0]); a != nil {
			return &negation{a}
		}
	case op.Orders != 0:
		return p.comparison(e)
	case op.Tests != 0:
		if o, ok := p.operand(e.Args[0]); ok && o.kind != schema.Bool {
			return &nullTest{o, op.Tests != expr.Null}
		}
		if a := p.push(e.Args[0]); a != nil {
			return &test{a, op.Tests}
		}
	}
	return nil
}

func (p *pusher) startsWith(e *expr.Call) predicate {
	l, ok := e.Args[1].(*expr.Literal)
	if !ok {
		return nil
	}
	text, ok := textOf(l)
	o, column := p.operand(e.Args[0])
	if !ok || !column || !isText(o.kind) {
		return nil
	}
	return &likeness{o: o, first: text, open: true}
}

// operand returns the column that an expression is, perhaps in a wider type.
func (p *pusher) operand(e expr.Expr) (operand, bool) {
	if c, ok := e.(*expr.Call); ok && c.Op == expr.Cast && c.T.Kind == schema.Int64 {
		if a, ok := c.Args[0].(*expr.Column); ok && a.T.Kind == schema.Int32 {
			e = a
		}
	}
	c, ok := e.(*expr.Column)
	if !ok {
		return operand{}, false
	}
	switch c.Name {
	case schema.ColumnTime:
		return operand{-1, rows.CommonTime, schema.Timestamp}, true
	case schema.ColumnKey:
		return operand{-1, rows.CommonKey, schema.Binary}, true
	}
	for i := range p.j.fields {
		f := &p.j.fields[i]
		if p.j.p.Schema.Fields[f.field].Name != c.Name {
			continue
		}
		if p.j.p.Fields[f.field].AppendDefault != nil || f.parts != nil {
			return operand{}, false // what is not there is something all the same; structs are nobody's constants
		}
		p.fields[i] = true
		return operand{i, 0, c.T.Kind}, true
	}
	return operand{}, false
}

func (p *pusher) comparison(e *expr.Call) predicate {
	op, column := e.Op.Info(), e.Args[0]
	l, ok := e.Args[1].(*expr.Literal)
	if !ok {
		if l, ok = column.(*expr.Literal); !ok {
			return nil
		}
		column = e.Args[1]
		op = op.Mirror.Info()
	}
	o, ok := p.operand(column)
	if !ok {
		return nil
	}
	if l.Value == nil {
		if op.Distinct {
			return &nullTest{o, op.Orders != expr.Equal}
		}
		return constant(expr.Null)
	}
	if isText(o.kind) {
		if v, ok := textOf(l); ok {
			return &comparison[string]{o, truthsOf(op), v, (*jsonReader).textString}
		}
		return nil
	}
	if o.kind == schema.Float64 {
		if v, ok := l.Value.(float64); ok && !math.IsNaN(v) {
			return &comparison[float64]{o, truthsOf(op), v, (*jsonReader).float}
		}
		return nil
	}
	if o.kind == schema.Uint64 {
		if v, ok := l.Value.(uint64); ok {
			return &comparison[uint64]{o, truthsOf(op), v, (*jsonReader).unsigned}
		}
		return nil
	}
	if v, ok := numberOf(o.kind, l); ok {
		return &comparison[int64]{o, truthsOf(op), v, (*jsonReader).number}
	}
	return nil
}

func isText(k schema.Kind) bool { return k == schema.String || k == schema.Binary }

func textOf(l *expr.Literal) (string, bool) {
	switch v := l.Value.(type) {
	case string:
		return v, true
	case []byte:
		return string(v), true
	default:
		return "", false
	}
}

// numberOf is the constant as what jsonReader.number makes of a column of the kind.
func numberOf(k schema.Kind, l *expr.Literal) (int64, bool) {
	switch v := l.Value.(type) {
	case bool:
		if v {
			return 1, k == schema.Bool
		}
		return 0, k == schema.Bool
	case int32:
		return int64(v), k == schema.Int32 || k == schema.Int64
	case int64:
		return v, k == schema.Int32 || k == schema.Int64
	case arrow.Date32:
		return int64(v), k == schema.Date
	case arrow.Timestamp:
		return int64(v), k == schema.Timestamp
	default:
		return 0, false
	}
}

func (p *pusher) in(e *expr.Call) predicate {
	o, ok := p.operand(e.Args[0])
	if !ok || !isText(o.kind) && !hasWord(o.kind) {
		return nil // what is neither can't be looked at as a number, not even when there are only nulls to compare with
	}
	null := false
	texts, numbers := map[string]struct{}{}, map[int64]struct{}{}
	for _, a := range e.Args[1:] {
		l, ok := a.(*expr.Literal)
		if !ok {
			return nil
		}
		if l.Value == nil {
			null = true
			continue
		}
		if isText(o.kind) {
			v, ok := textOf(l)
			if !ok {
				return nil
			}
			texts[v] = struct{}{}
			continue
		}
		v, ok := numberOf(o.kind, l)
		if !ok {
			return nil
		}
		numbers[v] = struct{}{}
	}
	if isText(o.kind) {
		return &membership[string]{o, texts, null, (*jsonReader).textString}
	}
	return &membership[int64]{o, numbers, null, (*jsonReader).number}
}

// like is for patterns without _ and with case.
func (p *pusher) like(e *expr.Call) predicate {
	pattern, ok := e.Detail.(*expr.Pattern)
	if !ok || pattern.Fold || len(pattern.Parts) == 0 {
		return nil
	}
	for i := range pattern.Parts {
		if pattern.Parts[i].Any != nil {
			return nil
		}
	}
	o, ok := p.operand(e.Args[0])
	if !ok || !isText(o.kind) {
		return nil
	}
	n := len(pattern.Parts)
	m := &likeness{o: o, first: pattern.Parts[0].Text, open: n > 1}
	if n > 1 {
		m.last = pattern.Parts[n-1].Text
		for _, part := range pattern.Parts[1 : n-1] {
			if part.Text != "" {
				m.between = append(m.between, []byte(part.Text))
			}
		}
	}
	return m
}

// constant is a predicate that no row changes.
type constant expr.Truths

func (c constant) decide(*jsonReader) expr.Truths { return expr.Truths(c) }

// junction is AND or OR; a term that decides it ends it.
type junction struct {
	decides expr.Truths
	terms   []predicate
}

func (j *junction) decide(r *jsonReader) expr.Truths {
	result := j.decides.Not()
	for _, t := range j.terms {
		switch v := t.decide(r); v {
		case j.decides:
			return v
		case expr.Null:
			result = v
		}
	}
	return result
}

// negation is NOT.
type negation struct{ a predicate }

func (n *negation) decide(r *jsonReader) expr.Truths { return n.a.decide(r).Not() }

// test is IS of a condition.
type test struct {
	a      predicate
	truths expr.Truths
}

func (t *test) decide(r *jsonReader) expr.Truths { return t.a.decide(r).Among(t.truths) }

// nullTest is IS NULL, or with not set IS NOT NULL.
type nullTest struct {
	o   operand
	not bool
}

func (n *nullTest) decide(r *jsonReader) expr.Truths { return expr.TruthOf(r.isNull(n.o) != n.not) }

// orderTruths are the values of a comparison for each order of its sides, and where the column is null.
type orderTruths struct{ less, equal, greater, null expr.Truths }

func truthsOf(op *expr.Operator) orderTruths {
	t := orderTruths{expr.Less.Among(op.Orders), expr.Equal.Among(op.Orders), expr.Greater.Among(op.Orders), expr.Null}
	if op.Distinct {
		t.null = t.less // the constant is not null
	}
	return t
}

// comparison compares a column with a constant.
type comparison[T cmp.Ordered] struct {
	o      operand
	truths orderTruths
	value  T
	get    func(*jsonReader, operand) (T, bool) // false: null
}

func (c *comparison[T]) decide(r *jsonReader) expr.Truths {
	v, ok := c.get(r, c.o)
	switch {
	case !ok:
		return c.truths.null
	case v == c.value:
		return c.truths.equal
	case c.truths.less == c.truths.greater || v < c.value:
		return c.truths.less
	default:
		return c.truths.greater
	}
}

// membership is IN.
type membership[T comparable] struct {
	o      operand
	values map[T]struct{}
	null   bool // there is a null among the values
	get    func(*jsonReader, operand) (T, bool)
}

func (m *membership[T]) decide(r *jsonReader) expr.Truths {
	v, ok := m.get(r, m.o)
	if !ok {
		return expr.Null
	}
	if _, ok = m.values[v]; !ok && m.null {
		return expr.Null
	}
	return expr.TruthOf(ok)
}
