package plan

import (
	"strings"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
)

const noOperator = "No operator matches the given types. You might need to add an explicit cast."

func (b *binder) logic(e *sql.Logic) (expr.Expr, error) {
	name := "AND"
	if e.Or {
		name = "OR"
	}
	terms := make([]expr.Expr, 0, len(e.Terms))
	for _, t := range e.Terms {
		o, err := b.bind(t)
		if err != nil {
			return nil, err
		}
		term, err := b.boolean(o, name)
		if err != nil {
			return nil, err
		}
		terms = append(terms, term)
	}
	if e.Or {
		return disjunction(terms...), nil
	}
	return conjunction(terms...), nil
}

func (b *binder) unary(e *sql.Unary) (operand, error) {
	// A sign before a number is a part of it: -2147483648 is an integer.
	if n, ok := e.X.(*sql.Number); ok && e.Op != sql.Not {
		if e.Op == sql.Plus {
			return b.number(e.At, n.Text)
		}
		return b.number(e.At, "-"+n.Text)
	}
	x, err := b.bind(e.X)
	if err != nil {
		return operand{}, err
	}
	if e.Op == sql.Not {
		c, err := b.boolean(x, "NOT")
		if err != nil {
			return operand{}, err
		}
		return operand{e: negation(c), pos: e.At}, nil
	}
	sign := "-"
	if e.Op == sql.Plus {
		sign = "+"
	}
	if x.unknown {
		return operand{}, b.fail(e.At, "Write a number, or add a cast.", "operator is not unique: %s unknown", sign)
	}
	t := plain(x.e.Type())
	if t.Kind == schema.Uint64 {
		t = decimalOf(&t)
		x.e = b.cast(x.e, &t)
	}
	if !numeric(t.Kind) && t.Kind != schema.Interval {
		return operand{}, b.fail(e.At, noOperator, "operator does not exist: %s %s", sign, typeName(&t))
	}
	if e.Op == sql.Plus {
		return operand{e: x.e, pos: e.At}, nil
	}
	return operand{e: b.call(expr.Neg, t, nil, x.e), pos: e.At}, nil
}

func (b *binder) binary(e *sql.Binary) (operand, error) {
	l, err := b.bind(e.L)
	if err != nil {
		return operand{}, err
	}
	r, err := b.bind(e.R)
	if err != nil {
		return operand{}, err
	}
	var result expr.Expr
	switch e.Op {
	case sql.Eq, sql.Ne, sql.Lt, sql.Le, sql.Gt, sql.Ge, sql.IsDistinct, sql.IsNotDistinct:
		result, err = b.compare(e.At, comparisons[e.Op], e.Op.String(), l, r)
	case sql.Concat:
		result, err = b.concatenate(e, l, r)
	case sql.Match, sql.MatchFold, sql.NotMatch, sql.NotMatchFold:
		result, err = b.match(e, l, r)
	default:
		result, err = b.arithmetic(e, l, r)
	}
	return operand{e: result, pos: e.At}, err
}

// comparisons are the operations of the operators.
var comparisons = map[sql.BinaryOp]expr.Op{
	sql.Eq: expr.Eq, sql.Ne: expr.Ne, sql.Lt: expr.Lt, sql.Le: expr.Le, sql.Gt: expr.Gt, sql.Ge: expr.Ge,
	sql.IsDistinct: expr.IsDistinct, sql.IsNotDistinct: expr.IsNotDistinct,
}

func (b *binder) mismatch(pos int, operator string, l, r operand) error {
	hint := noOperator
	switch lt, rt := l.typ(), r.typ(); {
	case lt.Kind == schema.String && r.number != "":
		hint = "Write '" + clip(r.number) + "' to compare texts, or cast the text to a number."
	case lt.Kind == schema.String && numeric(rt.Kind), rt.Kind == schema.String && numeric(lt.Kind):
		hint = "Cast the text to a number, or the number to text."
	case lt.Kind == schema.Binary && rt.Kind == schema.String, rt.Kind == schema.Binary && lt.Kind == schema.String:
		hint = "Cast the bytea to text."
	}
	return b.fail(pos, hint, "operator does not exist: %s %s %s", typeName(l.typ()), operator, typeName(r.typ()))
}

// compare is a comparison; both sides are converted to the type that they have in common.
func (b *binder) compare(pos int, op expr.Op, operator string, l, r operand) (expr.Expr, error) {
	t, _, ok := b.common(true, l, r)
	if !ok || nested(t.Kind) {
		return nil, b.mismatch(pos, operator, l, r)
	}
	le, err := b.convert(l, &t, true)
	if err != nil {
		return nil, err
	}
	re, err := b.convert(r, &t, true)
	if err != nil {
		return nil, err
	}
	if _, constant := re.(*expr.Literal); !constant {
		if _, constant := le.(*expr.Literal); constant {
			le, re, op = re, le, op.Info().Mirror
		}
	}
	switch {
	case op == expr.IsDistinct && isNull(re):
		return b.test(expr.IsNotNull, le), nil
	case op == expr.IsNotDistinct && isNull(re):
		return b.test(expr.IsNull, le), nil
	}
	return b.call(op, typeBool, nil, le, re), nil
}

// concatenate is || of texts; one side may be of any type that has a text.
func (b *binder) concatenate(e *sql.Binary, l, r operand) (expr.Expr, error) {
	lt, rt := l.typ(), r.typ()
	texts := l.unknown || r.unknown || lt.Kind == schema.String || rt.Kind == schema.String
	if !texts || nested(lt.Kind) || nested(rt.Kind) {
		return nil, b.mismatch(e.At, "||", l, r)
	}
	if lt.Kind == schema.Binary || rt.Kind == schema.Binary {
		return nil, b.fail(e.At, "Cast to text.", "operator does not exist: %s || %s", typeName(lt), typeName(rt))
	}
	le, err := b.as(l, &typeString)
	if err != nil {
		return nil, err
	}
	re, err := b.as(r, &typeString)
	if err != nil {
		return nil, err
	}
	args := make([]expr.Expr, 0, 2)
	for _, a := range []expr.Expr{le, re} {
		if c, ok := a.(*expr.Call); ok && c.Op == expr.Concat && c.Detail == nil {
			args = append(args, c.Args...)
		} else {
			args = append(args, a)
		}
	}
	return b.call(expr.Concat, typeString, nil, args...), nil
}

func (b *binder) in(e *sql.In) (expr.Expr, error) {
	x, err := b.bind(e.X)
	if err != nil {
		return nil, err
	}
	items, err := b.bindAll(e.List...)
	if err != nil {
		return nil, err
	}
	t, at, ok := b.common(true, append([]operand{x}, items...)...)
	if !ok || nested(t.Kind) {
		return nil, b.mismatch(e.At, "=", x, items[max(at-1, 0)])
	}
	xe, err := b.convert(x, &t, true)
	if err != nil {
		return nil, err
	}
	constants := make([]expr.Expr, 1, 1+len(items))
	constants[0] = xe
	var terms []expr.Expr
	for _, it := range items {
		ie, err := b.convert(it, &t, true)
		if err != nil {
			return nil, err
		}
		if _, ok := ie.(*expr.Literal); ok {
			constants = append(constants, ie)
			continue
		}
		if err := b.again(x); err != nil {
			return nil, err
		}
		terms = append(terms, b.call(expr.Eq, typeBool, nil, xe, ie))
	}
	switch len(constants) {
	case 1:
	case 2:
		terms = append(terms, b.call(expr.Eq, typeBool, nil, constants...))
	default:
		terms = append(terms, b.call(expr.In, typeBool, nil, constants...))
	}
	r := disjunction(terms...)
	if e.Not {
		r = negation(r)
	}
	return r, nil
}

func (b *binder) between(e *sql.Between) (expr.Expr, error) {
	all, err := b.bindAll(e.X, e.Low, e.High)
	if err != nil {
		return nil, err
	}
	x, low, high := all[0], all[1], all[2]
	within := func(low, high operand) (expr.Expr, error) {
		if err := b.again(x); err != nil {
			return nil, err
		}
		ge, err := b.compare(e.At, expr.Ge, ">=", x, low)
		if err != nil {
			return nil, err
		}
		le, err := b.compare(e.At, expr.Le, "<=", x, high)
		if err != nil {
			return nil, err
		}
		return conjunction(ge, le), nil
	}
	r, err := within(low, high)
	if err != nil {
		return nil, err
	}
	if e.Symmetric {
		for _, o := range all {
			if err := b.again(o); err != nil {
				return nil, err
			}
		}
		other, err := within(high, low)
		if err != nil {
			return nil, err
		}
		r = disjunction(r, other)
	}
	if e.Not {
		r = negation(r)
	}
	return r, nil
}

func (b *binder) is(e *sql.Is) (expr.Expr, error) {
	x, err := b.bind(e.X)
	if err != nil {
		return nil, err
	}
	if e.What == sql.IsNull {
		if e.Not {
			return b.test(expr.IsNotNull, x.e), nil
		}
		return b.test(expr.IsNull, x.e), nil
	}
	op, name := expr.IsNull, "IS UNKNOWN"
	switch e.What {
	case sql.IsTrue:
		op, name = expr.IsTrue, "IS TRUE"
	case sql.IsFalse:
		op, name = expr.IsFalse, "IS FALSE"
	default:
	}
	if e.Not {
		name = strings.Replace(name, "IS", "IS NOT", 1)
	}
	c, err := b.boolean(x, name)
	if err != nil {
		return nil, err
	}
	r := b.test(op, c)
	if e.Not {
		r = negation(r)
	}
	return r, nil
}

// test is one of IS ...; of a constant it is one.
func (b *binder) test(op expr.Op, x expr.Expr) expr.Expr {
	if l, ok := x.(*expr.Literal); ok {
		return truthLiteral(l.Truth().Among(op.Info().Tests))
	}
	return &expr.Call{Op: op, Args: []expr.Expr{x}, T: typeBool}
}

func (b *binder) any(e *sql.Any) (expr.Expr, error) {
	both, err := b.bindAll(e.X, e.List)
	if err != nil {
		return nil, err
	}
	x, list := both[0], both[1]
	lt := list.typ()
	if lt.Kind != schema.List {
		hint := ""
		if list.unknown {
			hint = "Write x IN (...) for a list of constants."
		}
		return nil, b.fail(list.pos, hint, "op ANY (array) requires a list on the right side, not %s", typeName(lt))
	}
	elem := operand{e: &expr.Column{T: *lt.Elem}, pos: list.pos}
	t, _, ok := b.common(true, x, elem)
	if !ok || nested(t.Kind) || !t.Equal(lt.Elem) {
		hint := noOperator
		if ok && !nested(t.Kind) {
			hint = "Cast the left side to " + typeName(lt.Elem) + "."
		}
		return nil, b.fail(e.At, hint, "operator does not exist: %s = ANY (%s)", typeName(x.typ()), typeName(lt))
	}
	xe, err := b.convert(x, &t, true)
	if err != nil {
		return nil, err
	}
	return b.call(expr.ListContains, typeBool, nil, xe, list.e), nil
}

func (b *binder) caseOf(e *sql.Case) (operand, error) {
	var subject operand
	if e.Operand != nil {
		var err error
		if subject, err = b.bind(e.Operand); err != nil {
			return operand{}, err
		}
	}
	conds := make([]expr.Expr, 0, len(e.Whens))
	values := make([]operand, 0, len(e.Whens)+1)
	for _, w := range e.Whens {
		o, err := b.bind(w.Cond)
		if err != nil {
			return operand{}, err
		}
		var cond expr.Expr
		if e.Operand != nil {
			if err = b.again(subject); err == nil {
				cond, err = b.compare(o.pos, expr.Eq, "=", subject, o)
			}
		} else {
			cond, err = b.boolean(o, "CASE/WHEN")
		}
		if err != nil {
			return operand{}, err
		}
		v, err := b.bind(w.Then)
		if err != nil {
			return operand{}, err
		}
		conds, values = append(conds, cond), append(values, v)
	}
	other := operand{e: literal(&typeString, nil), pos: e.At, unknown: true}
	if e.Else != nil {
		var err error
		if other, err = b.bind(e.Else); err != nil {
			return operand{}, err
		}
	}
	t, results, err := b.alike("CASE", append(values, other))
	if err != nil {
		return operand{}, err
	}
	args := make([]expr.Expr, 0, 2*len(conds)+1)
	for i, c := range conds {
		args = append(args, c, results[i])
	}
	return operand{e: b.choice(t, append(args, results[len(conds)])), pos: e.At}, nil
}

// alike converts operands to the type that they have in common.
func (b *binder) alike(of string, operands []operand) (schema.Type, []expr.Expr, error) {
	t, at, ok := b.common(false, operands...)
	if !ok {
		first := &operands[0]
		for i := range operands {
			if !operands[i].unknown {
				first = &operands[i]
				break
			}
		}
		return t, nil, b.fail(operands[at].pos, "Cast one of them.", "%s types %s and %s cannot be matched", of, typeName(first.typ()), typeName(operands[at].typ()))
	}
	results := make([]expr.Expr, len(operands))
	for i, o := range operands {
		var err error
		if results[i], err = b.as(o, &t); err != nil {
			return t, nil, err
		}
	}
	return t, results, nil
}
