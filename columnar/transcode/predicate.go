package transcode

import (
	"cmp"
	"math"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// truth is a value of Kleene logic.
type truth uint8

const (
	isFalse truth = iota
	isTrue
	isUnknown
)

func truthOf(b bool) truth {
	if b {
		return isTrue
	}
	return isFalse
}

// predicate is a part of a condition that is decided on slots, with the meaning that package expr gives it.
type predicate interface {
	decide(r *jsonReader) truth
}

// operand is a column that a predicate compares.
type operand struct {
	field int // in jsonPlan.fields, -1 for a column of the message
	own   ownColumn
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
		return constantTruth(e)
	case *expr.Column:
		if o, ok := p.operand(e); ok && o.kind == schema.Bool {
			return &comparison[int64]{o, expr.Eq, 1, (*jsonReader).number}
		}
	case *expr.Call:
		return p.call(e)
	}
	return nil
}

func constantTruth(l *expr.Literal) predicate {
	switch v := l.Value.(type) {
	case nil:
		return constant(isUnknown)
	case bool:
		return constant(truthOf(v))
	default:
		return nil
	}
}

func (p *pusher) call(e *expr.Call) predicate {
	switch e.Op {
	case expr.And, expr.Or:
		terms := make([]predicate, len(e.Args))
		for i, a := range e.Args {
			if terms[i] = p.push(a); terms[i] == nil {
				return nil
			}
		}
		return &junction{e.Op == expr.Or, terms}
	case expr.Not, expr.IsTrue, expr.IsNotTrue, expr.IsFalse, expr.IsNotFalse:
		if a := p.push(e.Args[0]); a != nil {
			return &mapped{a, mappings[e.Op]}
		}
	case expr.IsNull, expr.IsNotNull:
		if c, ok := e.Args[0].(*expr.Column); ok {
			if o, ok := p.operand(c); ok {
				return &nullTest{o, e.Op == expr.IsNotNull}
			}
		}
	case expr.Eq, expr.Ne, expr.Lt, expr.Le, expr.Gt, expr.Ge, expr.IsDistinct, expr.IsNotDistinct:
		return p.comparison(e)
	case expr.In:
		return p.in(e)
	case expr.Like:
		return p.like(e)
	case expr.StartsWith:
		l, ok := e.Args[1].(*expr.Literal)
		if !ok {
			break
		}
		if text, ok := textOf(l); ok {
			if o, ok := p.operand(e.Args[0]); ok && isText(o.kind) {
				return &likeness{o: o, first: text, open: true}
			}
		}
	default:
	}
	return nil
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
		return operand{-1, ownTime, schema.Timestamp}, true
	case schema.ColumnKey:
		return operand{-1, ownKey, schema.Binary}, true
	}
	for i := range p.j.fields {
		f := &p.j.fields[i]
		if p.j.p.schema.Fields[f.field].Name != c.Name {
			continue
		}
		if p.j.p.fields[f.field].fallback != nil || f.parts != nil {
			return operand{}, false // what is not there is something all the same; structs are nobody's constants
		}
		p.fields[i] = true
		return operand{i, 0, c.T.Kind}, true
	}
	return operand{}, false
}

// mirrored is the operator for when the constant stands on the left.
var mirrored = map[expr.Op]expr.Op{expr.Lt: expr.Gt, expr.Le: expr.Ge, expr.Gt: expr.Lt, expr.Ge: expr.Le}

func (p *pusher) comparison(e *expr.Call) predicate {
	op, column := e.Op, e.Args[0]
	l, ok := e.Args[1].(*expr.Literal)
	if !ok {
		if l, ok = column.(*expr.Literal); !ok {
			return nil
		}
		column = e.Args[1]
		if m, ok := mirrored[op]; ok {
			op = m
		}
	}
	o, ok := p.operand(column)
	if !ok {
		return nil
	}
	if l.Value == nil {
		switch op {
		case expr.IsDistinct, expr.IsNotDistinct:
			return &nullTest{o, op == expr.IsDistinct}
		default:
			return constant(isUnknown)
		}
	}
	if isText(o.kind) {
		if v, ok := textOf(l); ok {
			return &comparison[string]{o, op, v, (*jsonReader).textString}
		}
		return nil
	}
	if o.kind == schema.Float64 {
		if v, ok := l.Value.(float64); ok && !math.IsNaN(v) {
			return &comparison[float64]{o, op, v, (*jsonReader).float}
		}
		return nil
	}
	if o.kind == schema.Uint64 {
		if v, ok := l.Value.(uint64); ok {
			return &comparison[uint64]{o, op, v, (*jsonReader).unsigned}
		}
		return nil
	}
	if v, ok := numberOf(o.kind, l); ok {
		return &comparison[int64]{o, op, v, (*jsonReader).number}
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
type constant truth

func (c constant) decide(*jsonReader) truth { return truth(c) }

// junction is AND, or with or set OR.
type junction struct {
	or    bool
	terms []predicate
}

func (j *junction) decide(r *jsonReader) truth {
	result := truthOf(!j.or)
	for _, t := range j.terms {
		switch v := t.decide(r); v {
		case isUnknown:
			result = isUnknown
		case truthOf(j.or):
			return v
		default:
		}
	}
	return result
}

// mapped is a function of one truth: what becomes of false, true and unknown.
type mapped struct {
	a  predicate
	to [3]truth
}

var mappings = map[expr.Op][3]truth{
	expr.Not:        {isTrue, isFalse, isUnknown},
	expr.IsTrue:     {isFalse, isTrue, isFalse},
	expr.IsNotTrue:  {isTrue, isFalse, isTrue},
	expr.IsFalse:    {isTrue, isFalse, isFalse},
	expr.IsNotFalse: {isFalse, isTrue, isTrue},
}

func (m *mapped) decide(r *jsonReader) truth { return m.to[m.a.decide(r)] }

// nullTest is IS NULL, or with not set IS NOT NULL.
type nullTest struct {
	o   operand
	not bool
}

func (n *nullTest) decide(r *jsonReader) truth { return truthOf(r.isNull(n.o) != n.not) }

// comparison compares a column with a constant.
type comparison[T cmp.Ordered] struct {
	o     operand
	op    expr.Op
	value T
	get   func(*jsonReader, operand) (T, bool) // false: null
}

func (c *comparison[T]) decide(r *jsonReader) truth {
	v, ok := c.get(r, c.o)
	if !ok {
		switch c.op {
		case expr.IsDistinct:
			return isTrue
		case expr.IsNotDistinct:
			return isFalse
		default:
			return isUnknown
		}
	}
	switch c.op {
	case expr.Eq, expr.IsNotDistinct:
		return truthOf(v == c.value)
	case expr.Ne, expr.IsDistinct:
		return truthOf(v != c.value)
	case expr.Lt:
		return truthOf(v < c.value)
	case expr.Le:
		return truthOf(v <= c.value)
	case expr.Gt:
		return truthOf(v > c.value)
	default:
		return truthOf(v >= c.value)
	}
}

// membership is IN.
type membership[T comparable] struct {
	o      operand
	values map[T]struct{}
	null   bool // there is a null among the values
	get    func(*jsonReader, operand) (T, bool)
}

func (m *membership[T]) decide(r *jsonReader) truth {
	v, ok := m.get(r, m.o)
	if !ok {
		return isUnknown
	}
	if _, ok = m.values[v]; !ok && m.null {
		return isUnknown
	}
	return truthOf(ok)
}
