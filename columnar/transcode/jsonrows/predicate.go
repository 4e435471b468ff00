package jsonrows

import (
	"cmp"
	"math"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/transcode/rows"
)

// slotPredicate is a part of a condition that is decided on slots, with the semantics of package expr.
type slotPredicate func(r *jsonReader) expr.Truths

// columnOperand is a column that a predicate compares.
type columnOperand struct {
	field int // in jsonPlan.fields, -1 for a built-in column
	own   rows.CommonColumn
	kind  schema.Kind
}

// predicatePusher turns expressions into predicates, as far as slots can decide them.
type predicatePusher struct {
	j      *jsonPlan
	fields map[int]bool // fields that the expression names
}

// pushExpr returns nil for an expression that must be evaluated on the batch.
func (p *predicatePusher) pushExpr(e expr.Expr) slotPredicate {
	switch e := e.(type) {
	case *expr.Literal:
		if e.T.Kind == schema.Bool || e.Value == nil {
			return constantPredicate(e.Truth())
		}
	case *expr.Column:
		if o, ok := p.operandOf(e); ok && o.kind == schema.Bool {
			return compareWith(o, expr.Eq.Info(), 1, (*jsonReader).operandNumber)
		}
	case *expr.Call:
		return p.pushCall(e)
	}
	return nil
}

// pushes are the operators that slots can decide, besides junctions, tests and comparisons.
var pushes = map[expr.Op]func(p *predicatePusher, e *expr.Call) slotPredicate{
	expr.In: (*predicatePusher).pushIn, expr.Like: (*predicatePusher).pushLike, expr.StartsWith: (*predicatePusher).pushStartsWith,
}

func (p *predicatePusher) pushCall(e *expr.Call) slotPredicate {
	op := e.Op.Info()
	push := pushes[e.Op]
	switch {
	case push != nil:
		return push(p, e)
	case op.Decides != 0:
		terms := make([]slotPredicate, len(e.Args))
		for i, a := range e.Args {
			if terms[i] = p.pushExpr(a); terms[i] == nil {
				return nil
			}
		}
		return junctionOf(op.Decides, terms)
	case e.Op == expr.Not:
		if a := p.pushExpr(e.Args[0]); a != nil {
			return func(r *jsonReader) expr.Truths { return a(r).Not() }
		}
	case op.Orders != 0:
		return p.pushComparison(e)
	case op.Tests != 0:
		if o, ok := p.operandOf(e.Args[0]); ok && o.kind != schema.Bool {
			return nullTest(o, op.Tests != expr.Null)
		}
		if a := p.pushExpr(e.Args[0]); a != nil {
			return func(r *jsonReader) expr.Truths { return a(r).Among(op.Tests) }
		}
	}
	return nil
}

func (p *predicatePusher) pushStartsWith(e *expr.Call) slotPredicate {
	l, ok := e.Args[1].(*expr.Literal)
	if !ok {
		return nil
	}
	text, ok := literalText(l)
	o, column := p.operandOf(e.Args[0])
	if !ok || !column || !isText(o.kind) {
		return nil
	}
	return (&likePredicate{o: o, first: text, open: true}).decideRow
}

// operandOf returns the column of an expression that is a column, possibly cast to a wider type.
func (p *predicatePusher) operandOf(e expr.Expr) (columnOperand, bool) {
	if c, ok := e.(*expr.Call); ok && c.Op == expr.Cast && c.T.Kind == schema.Int64 {
		if a, ok := c.Args[0].(*expr.Column); ok && a.T.Kind == schema.Int32 {
			e = a
		}
	}
	c, ok := e.(*expr.Column)
	if !ok {
		return columnOperand{}, false
	}
	switch c.Name {
	case schema.ColumnTime:
		return columnOperand{-1, rows.CommonTime, schema.Timestamp}, true
	case schema.ColumnKey:
		return columnOperand{-1, rows.CommonKey, schema.Binary}, true
	}
	for i := range p.j.fields {
		f := &p.j.fields[i]
		if p.j.p.Schema.Fields[f.field].Name != c.Name {
			continue
		}
		if DefaultOf(&p.j.p.Schema.Fields[f.field]) != nil || f.parts != nil {
			return columnOperand{}, false // with a default an absent value is not null; structs are not compared with constants
		}
		p.fields[i] = true
		return columnOperand{i, 0, c.T.Kind}, true
	}
	return columnOperand{}, false
}

func (p *predicatePusher) pushComparison(e *expr.Call) slotPredicate {
	op, column := e.Op.Info(), e.Args[0]
	l, ok := e.Args[1].(*expr.Literal)
	if !ok {
		if l, ok = column.(*expr.Literal); !ok {
			return nil
		}
		column = e.Args[1]
		op = op.Mirror.Info()
	}
	o, ok := p.operandOf(column)
	if !ok {
		return nil
	}
	if l.Value == nil {
		if op.Distinct {
			return nullTest(o, op.Orders != expr.Equal)
		}
		return constantPredicate(expr.Null)
	}
	if isText(o.kind) {
		if v, ok := literalText(l); ok {
			return compareWith(o, op, v, (*jsonReader).operandString)
		}
		return nil
	}
	if o.kind == schema.Float64 {
		if v, ok := l.Value.(float64); ok && !math.IsNaN(v) {
			return compareWith(o, op, v, (*jsonReader).operandFloat)
		}
		return nil
	}
	if o.kind == schema.Uint64 {
		if v, ok := l.Value.(uint64); ok {
			return compareWith(o, op, v, (*jsonReader).operandUnsigned)
		}
		return nil
	}
	if v, ok := numberOf(o.kind, l); ok {
		return compareWith(o, op, v, (*jsonReader).operandNumber)
	}
	return nil
}

func isText(k schema.Kind) bool { return k == schema.String || k == schema.Binary }

func literalText(l *expr.Literal) (string, bool) {
	switch v := l.Value.(type) {
	case string:
		return v, true
	case []byte:
		return string(v), true
	default:
		return "", false
	}
}

// numberOf returns the constant in the form that jsonReader.operandNumber returns for a column of the kind.
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

func (p *predicatePusher) pushIn(e *expr.Call) slotPredicate {
	o, ok := p.operandOf(e.Args[0])
	if !ok || !isText(o.kind) && !hasWord(o.kind) {
		return nil // other kinds can't be read as numbers, even if all constants are null
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
			v, ok := literalText(l)
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
		return memberOf(o, texts, null, (*jsonReader).operandString)
	}
	return memberOf(o, numbers, null, (*jsonReader).operandNumber)
}

// pushLike handles case-sensitive patterns without _.
func (p *predicatePusher) pushLike(e *expr.Call) slotPredicate {
	pattern, ok := e.Detail.(*expr.Pattern)
	if !ok || pattern.Fold || len(pattern.Parts) == 0 {
		return nil
	}
	for i := range pattern.Parts {
		if pattern.Parts[i].Any != nil {
			return nil
		}
	}
	o, ok := p.operandOf(e.Args[0])
	if !ok || !isText(o.kind) {
		return nil
	}
	n := len(pattern.Parts)
	m := &likePredicate{o: o, first: pattern.Parts[0].Text, open: n > 1}
	if n > 1 {
		m.last = pattern.Parts[n-1].Text
		for _, part := range pattern.Parts[1 : n-1] {
			if part.Text != "" {
				m.between = append(m.between, []byte(part.Text))
			}
		}
	}
	return m.decideRow
}

// constantPredicate has the same result for every row.
func constantPredicate(t expr.Truths) slotPredicate {
	return func(*jsonReader) expr.Truths { return t }
}

// junctionOf returns AND or OR. It stops at the first term that decides it.
func junctionOf(decides expr.Truths, terms []slotPredicate) slotPredicate {
	return func(r *jsonReader) expr.Truths {
		result := decides.Not()
		for _, t := range terms {
			switch v := t(r); v {
			case decides:
				return v
			case expr.Null:
				result = v
			default:
			}
		}
		return result
	}
}

// nullTest returns IS NULL, or IS NOT NULL if not is set.
func nullTest(o columnOperand, not bool) slotPredicate {
	return func(r *jsonReader) expr.Truths { return expr.TruthOf(r.isNull(o) != not) }
}

// operandGetter returns the value of a column, or false for null.
type operandGetter[T any] func(r *jsonReader, o columnOperand) (T, bool)

// compareWith returns the comparison of a column with a constant.
func compareWith[T cmp.Ordered](o columnOperand, op *expr.Operator, constant T, get operandGetter[T]) slotPredicate {
	less, equal, greater, null := expr.Less.Among(op.Orders), expr.Equal.Among(op.Orders), expr.Greater.Among(op.Orders), expr.Null
	if op.Distinct {
		null = less // the constant is not null
	}
	return func(r *jsonReader) expr.Truths {
		v, ok := get(r, o)
		switch {
		case !ok:
			return null
		case v == constant:
			return equal
		case less == greater || v < constant:
			return less
		default:
			return greater
		}
	}
}

// memberOf returns the test whether a column is one of values, which may include null.
func memberOf[T comparable](o columnOperand, values map[T]struct{}, null bool, get operandGetter[T]) slotPredicate {
	return func(r *jsonReader) expr.Truths {
		v, ok := get(r, o)
		if !ok {
			return expr.Null
		}
		if _, ok = values[v]; !ok && null {
			return expr.Null
		}
		return expr.TruthOf(ok)
	}
}
