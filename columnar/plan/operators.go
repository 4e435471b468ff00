package plan

import (
	"slices"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
)

const noOperator = "No operator matches the given types. You might need to add an explicit cast."

func (b *queryBinder) bindLogic(e *sql.Logic) expr.Expr {
	op, name := expr.And, "AND"
	if e.Or {
		op, name = expr.Or, "OR"
	}
	terms := make([]expr.Expr, 0, len(e.Terms))
	for _, t := range e.Terms {
		terms = append(terms, b.boolOf(b.bind(t), name))
	}
	return junction(op, terms)
}

func (b *queryBinder) bindUnary(e *sql.Unary) typedOperand {
	// A sign before a number is part of it: -2147483648 is an integer.
	if n, ok := e.X.(*sql.Number); ok && e.Op != sql.Not {
		if e.Op == sql.Plus {
			return b.bindNumber(e.At, n.Text)
		}
		return b.bindNumber(e.At, "-"+n.Text)
	}
	x := b.bind(e.X)
	if e.Op == sql.Not {
		return typedOperand{e: negation(b.boolOf(x, "NOT")), pos: e.At}
	}
	sign := "-"
	if e.Op == sql.Plus {
		sign = "+"
	}
	b.failIf(x.unknown, e.At, "Write a number, or add a cast.", "operator is not unique: %s unknown", sign)
	t := plainType(x.e.Type())
	if t.Kind == schema.Uint64 {
		t = decimalOf(&t)
		x.e = b.castExpr(x.e, &t)
	}
	b.failIf(!isNumeric(t.Kind) && t.Kind != schema.Interval, e.At, noOperator, "operator does not exist: %s %s", sign, typeName(&t))
	if e.Op == sql.Plus {
		return typedOperand{e: x.e, pos: e.At}
	}
	return typedOperand{e: b.makeCall(expr.Neg, t, nil, x.e), pos: e.At}
}

func (b *queryBinder) bindBinary(e *sql.Binary) typedOperand {
	l, r := b.bind(e.L), b.bind(e.R)
	var result expr.Expr
	switch e.Op {
	case sql.Eq, sql.Ne, sql.Lt, sql.Le, sql.Gt, sql.Ge, sql.IsDistinct, sql.IsNotDistinct:
		result = b.bindComparison(e.At, operations[e.Op], e.Op.String(), l, r)
	case sql.Concat:
		result = b.bindConcatenation(e, l, r)
	case sql.Match, sql.MatchFold, sql.NotMatch, sql.NotMatchFold:
		result = b.bindMatch(e, l, r)
	default:
		result = b.calculate(e.At, operations[e.Op], e.Op.String(), l, r)
	}
	return typedOperand{e: result, pos: e.At}
}

// operations maps operators to operations.
var operations = map[sql.BinaryOp]expr.Op{
	sql.Eq: expr.Eq, sql.Ne: expr.Ne, sql.Lt: expr.Lt, sql.Le: expr.Le, sql.Gt: expr.Gt, sql.Ge: expr.Ge,
	sql.IsDistinct: expr.IsDistinct, sql.IsNotDistinct: expr.IsNotDistinct,
	sql.Add: expr.Add, sql.Sub: expr.Sub, sql.Mul: expr.Mul, sql.Div: expr.Div, sql.Mod: expr.Mod,
}

func (b *queryBinder) mismatchError(pos int, operator string, l, r typedOperand) error {
	hint := noOperator
	switch lt, rt := l.typ(), r.typ(); {
	case lt.Kind == schema.String && r.number != "":
		hint = "Write '" + sql.ClipText(r.number) + "' to compare texts, or cast the text to a number."
	case lt.Kind == schema.String && isNumeric(rt.Kind), rt.Kind == schema.String && isNumeric(lt.Kind):
		hint = "Cast the text to a number, or the number to text."
	case lt.Kind == schema.Binary && rt.Kind == schema.String, rt.Kind == schema.Binary && lt.Kind == schema.String:
		hint = "Cast the bytea to text."
	}
	return b.errorAt(pos, hint, "operator does not exist: %s %s %s", typeName(l.typ()), operator, typeName(r.typ()))
}

// bindComparison binds a comparison. It converts both sides to their common type.
func (b *queryBinder) bindComparison(pos int, op expr.Op, operator string, l, r typedOperand) expr.Expr {
	t, _, ok := b.commonOf(true, l, r)
	if !ok || isNested(t.Kind) {
		panic(b.mismatchError(pos, operator, l, r))
	}
	le, re := b.convert(l, &t, true), b.convert(r, &t, true)
	if _, constant := re.(*expr.Literal); !constant {
		if _, constant := le.(*expr.Literal); constant {
			le, re, op = re, le, op.Info().Mirror
		}
	}
	switch {
	case op == expr.IsDistinct && isNull(re):
		return b.makeTest(expr.IsNotNull, le)
	case op == expr.IsNotDistinct && isNull(re):
		return b.makeTest(expr.IsNull, le)
	}
	return b.makeCall(op, typeBool, nil, le, re)
}

// bindConcatenation binds || of texts. One side may be of any type that can be written as text.
func (b *queryBinder) bindConcatenation(e *sql.Binary, l, r typedOperand) expr.Expr {
	lt, rt := l.typ(), r.typ()
	texts := l.unknown || r.unknown || lt.Kind == schema.String || rt.Kind == schema.String
	if !texts || isNested(lt.Kind) || isNested(rt.Kind) {
		panic(b.mismatchError(e.At, "||", l, r))
	}
	b.failIf(lt.Kind == schema.Binary || rt.Kind == schema.Binary, e.At, "Cast to text.", "operator does not exist: %s || %s",
		typeName(lt), typeName(rt))
	args := make([]expr.Expr, 0, 2)
	for _, a := range []expr.Expr{b.convertTo(l, &typeString), b.convertTo(r, &typeString)} {
		if c, ok := a.(*expr.Call); ok && c.Op == expr.Concat && c.Detail == nil {
			args = append(args, c.Args...)
		} else {
			args = append(args, a)
		}
	}
	return b.makeCall(expr.Concat, typeString, nil, args...)
}

func (b *queryBinder) bindIn(e *sql.In) expr.Expr {
	x := b.bind(e.X)
	items := b.bindAll(e.List...)
	t, at, ok := b.commonOf(true, append([]typedOperand{x}, items...)...)
	if !ok || isNested(t.Kind) {
		panic(b.mismatchError(e.At, "=", x, items[max(at-1, 0)]))
	}
	xe := b.convert(x, &t, true)
	constants := make([]expr.Expr, 1, 1+len(items))
	constants[0] = xe
	var terms []expr.Expr
	for _, it := range items {
		ie := b.convert(it, &t, true)
		if _, ok := ie.(*expr.Literal); ok {
			constants = append(constants, ie)
			continue
		}
		b.countAgain(x)
		terms = append(terms, b.makeCall(expr.Eq, typeBool, nil, xe, ie))
	}
	switch len(constants) {
	case 1:
	case 2:
		terms = append(terms, b.makeCall(expr.Eq, typeBool, nil, constants...))
	default:
		terms = append(terms, b.makeCall(expr.In, typeBool, nil, constants...))
	}
	return negationIf(e.Not, disjunction(terms...))
}

func (b *queryBinder) bindBetween(e *sql.Between) expr.Expr {
	all := b.bindAll(e.X, e.Low, e.High)
	x, low, high := all[0], all[1], all[2]
	within := func(low, high typedOperand) expr.Expr {
		b.countAgain(x)
		return conjunction(b.bindComparison(e.At, expr.Ge, ">=", x, low), b.bindComparison(e.At, expr.Le, "<=", x, high))
	}
	r := within(low, high)
	if e.Symmetric {
		for _, o := range all {
			b.countAgain(o)
		}
		r = disjunction(r, within(high, low))
	}
	return negationIf(e.Not, r)
}

// isTests maps the operands of IS to operations.
var isTests = [...]expr.Op{sql.IsNull: expr.IsNull, sql.IsTrue: expr.IsTrue, sql.IsFalse: expr.IsFalse, sql.IsUnknown: expr.IsNull}

func (b *queryBinder) bindIs(e *sql.Is) expr.Expr {
	x := b.bind(e.X)
	if e.What != sql.IsNull {
		name := "IS "
		if e.Not {
			name = "IS NOT "
		}
		x.e = b.boolOf(x, name+e.What.String())
	}
	return negationIf(e.Not, b.makeTest(isTests[e.What], x.e))
}

// makeTest returns an IS test, or a constant if its operand is one.
func (b *queryBinder) makeTest(op expr.Op, x expr.Expr) expr.Expr {
	if l, ok := x.(*expr.Literal); ok {
		return truthLiteral(l.Truth().Among(op.Info().Tests))
	}
	return &expr.Call{Op: op, Args: []expr.Expr{x}, T: typeBool}
}

func (b *queryBinder) bindAny(e *sql.Any) expr.Expr {
	x, list := b.bind(e.X), b.bind(e.List)
	lt := list.typ()
	b.failIf(lt.Kind != schema.List, list.pos, hintIf(list.unknown, "Write x IN (...) for a list of constants."),
		"op ANY (array) requires a list on the right side, not %s", typeName(lt))
	elem := typedOperand{e: &expr.Column{T: *lt.Elem}, pos: list.pos}
	t, _, ok := b.commonOf(true, x, elem)
	if !ok || isNested(t.Kind) || !t.Equal(lt.Elem) {
		hint := noOperator
		if ok && !isNested(t.Kind) {
			hint = "Cast the left side to " + typeName(lt.Elem) + "."
		}
		panic(b.errorAt(e.At, hint, "operator does not exist: %s = ANY (%s)", typeName(x.typ()), typeName(lt)))
	}
	return b.makeCall(expr.ListContains, typeBool, nil, b.convert(x, &t, true), list.e)
}

func (b *queryBinder) bindCase(e *sql.Case) typedOperand {
	var subject typedOperand
	if e.Operand != nil {
		subject = b.bind(e.Operand)
	}
	conds := make([]expr.Expr, 0, len(e.Whens))
	values := make([]typedOperand, 0, len(e.Whens)+1)
	for _, w := range e.Whens {
		o := b.bind(w.Cond)
		var cond expr.Expr
		if e.Operand != nil {
			b.countAgain(subject)
			cond = b.bindComparison(o.pos, expr.Eq, "=", subject, o)
		} else {
			cond = b.boolOf(o, "CASE/WHEN")
		}
		conds, values = append(conds, cond), append(values, b.bind(w.Then))
	}
	other := typedOperand{e: literal(&typeString, nil), pos: e.At, unknown: true}
	if e.Else != nil {
		other = b.bind(e.Else)
	}
	t, results := b.convertAlike("CASE", append(values, other))
	args := make([]expr.Expr, 0, 2*len(conds)+1)
	for i, c := range conds {
		args = append(args, c, results[i])
	}
	return typedOperand{e: b.makeCase(t, append(args, results[len(conds)])), pos: e.At}
}

// convertAlike converts operands to their common type.
func (b *queryBinder) convertAlike(of string, operands []typedOperand) (schema.Type, []expr.Expr) {
	t, at, ok := b.commonOf(false, operands...)
	if !ok {
		known := slices.IndexFunc(operands, func(o typedOperand) bool { return !o.unknown })
		first := operands[max(known, 0)]
		panic(b.errorAt(operands[at].pos, "Cast one of them.", "%s types %s and %s cannot be matched", of, typeName(first.typ()), typeName(operands[at].typ())))
	}
	results := make([]expr.Expr, len(operands))
	for i, o := range operands {
		results[i] = b.convertTo(o, &t)
	}
	return t, results
}
