package plan

import (
	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// calculate returns + - * / or % of numbers, instants and intervals.
func (b *queryBinder) calculate(pos int, op expr.Op, operator string, l, r typedOperand) expr.Expr {
	l, r = b.settleSides(pos, op, operator, l, r)
	lt, rt := l.e.Type(), r.e.Type()
	switch {
	case op == expr.Mod && (lt.Kind == schema.Float64 || rt.Kind == schema.Float64):
		panic(b.errorAt(pos, "Cast to numeric.", "operator does not exist: %s %% %s", typeName(lt), typeName(rt)))
	case isNumeric(lt.Kind) && isNumeric(rt.Kind):
		return b.calculateNumbers(op, l, r)
	case lt.Kind == schema.Interval || rt.Kind == schema.Interval:
		if result, ok := b.calculateIntervals(op, l, r); ok {
			return result
		}
	case lt.Kind == schema.Date || lt.Kind == schema.Timestamp || rt.Kind == schema.Date:
		if result, ok := b.calculateDates(op, l, r); ok {
			return result
		}
	}
	hint := noOperator
	if lt.Kind == schema.Date && rt.Kind == schema.Int64 {
		hint = "Cast the number of days to integer."
	}
	panic(b.errorAt(pos, hint, "operator does not exist: %s %s %s", typeName(lt), operator, typeName(rt)))
}

// settleSides gives text constants the type that the other side requires.
func (b *queryBinder) settleSides(pos int, op expr.Op, operator string, l, r typedOperand) (typedOperand, typedOperand) {
	switch {
	case l.unknown && r.unknown:
		panic(b.errorAt(pos, "Add a cast to one of them.", "operator is not unique: unknown %s unknown", operator))
	case l.unknown:
		t, ok := sideType(op, r.e.Type(), true)
		b.failIf(!ok, pos, "Write INTERVAL or DATE before the text.", "operator is not unique: unknown %s %s", operator,
			typeName(r.typ()))
		l = b.readUnknown(l, &t)
	case r.unknown:
		t, ok := sideType(op, l.e.Type(), false)
		b.failIf(!ok, pos, "Write INTERVAL before the text, or a number of days.", "operator is not unique: %s %s unknown",
			typeName(l.typ()), operator)
		r = b.readUnknown(r, &t)
	}
	return l, r
}

// sideType returns the type of a text constant next to a side of another type. It is the same type if such an operator exists.
func sideType(op expr.Op, other *schema.Type, left bool) (schema.Type, bool) {
	switch {
	case other.Kind == schema.Timestamp && op == expr.Add:
		return typeInterval, true
	case other.Kind == schema.Date && op == expr.Add:
		return typeNull, false
	case other.Kind == schema.Interval && (op == expr.Mul || op == expr.Div):
		return typeFloat64, !left || op == expr.Mul
	case other.Kind == schema.Decimal:
		return schema.Type{Kind: schema.Decimal}, true
	}
	return plainType(other), true
}

// calculateNumbers returns arithmetic on numbers. Integers of 32 and 64 bits stay integers. With decimals, everything but float64
// becomes a decimal. uint64 has no counterpart in PostgreSQL: its sums and products are decimals, which are exact; its quotients
// and remainders are integers.
func (b *queryBinder) calculateNumbers(op expr.Op, l, r typedOperand) expr.Expr {
	lt, rt := l.e.Type(), r.e.Type()
	if lt.Kind == schema.Float64 || rt.Kind == schema.Float64 {
		return b.calculateAs(op, &typeFloat64, l, r)
	}
	if lt.Kind <= schema.Int64 && rt.Kind <= schema.Int64 {
		t := typeInt32
		if lt.Kind == schema.Int64 || rt.Kind == schema.Int64 {
			t = typeInt64
		}
		return b.calculateAs(op, &t, l, r)
	}
	if isInteger(lt.Kind) && isInteger(rt.Kind) && (op == expr.Div || op == expr.Mod) {
		t := typeInt64
		if fitsUint(l) && fitsUint(r) {
			t = typeUint64
		}
		return b.calculateAs(op, &t, l, r)
	}
	return b.calculateDecimals(op, l, r)
}

// fitsUint reports whether an operand has the type uint64 or is a constant that may have it.
func fitsUint(o typedOperand) bool {
	if o.number != "" {
		_, ok := numberAs(o.number, &typeUint64, false)
		return ok
	}
	return o.e.Type().Kind == schema.Uint64
}

// calculateAs converts both sides to a type, which is also the result's.
func (b *queryBinder) calculateAs(op expr.Op, t *schema.Type, l, r typedOperand) expr.Expr {
	le := b.convertTo(l, t)
	re := b.convertTo(r, t)
	return b.makeCall(op, *t, nil, le, re)
}

// quotientScale is the minimum scale of a quotient of decimals.
const quotientScale = 16

// calculateDecimals returns arithmetic on decimals. Sums and products keep all digits if they fit in 38.
func (b *queryBinder) calculateDecimals(op expr.Op, l, r typedOperand) expr.Expr {
	lt, rt := b.decimalType(l), b.decimalType(r)
	lw, rw := lt.Precision-lt.Scale, rt.Precision-rt.Scale
	scale := max(lt.Scale, rt.Scale)
	switch op {
	case expr.Mul:
		t := decimal(lw+rw, lt.Scale+rt.Scale, max(scale, 6))
		return b.makeCall(op, t, nil, b.castExpr(l.e, &lt), b.castExpr(r.e, &rt))
	case expr.Div:
		t := decimal(lw+rt.Scale, max(scale, quotientScale), max(scale, 6))
		return b.makeCall(op, t, nil, b.castExpr(l.e, &lt), b.castExpr(r.e, &rt))
	case expr.Mod:
		t := decimal(max(lw, rw), scale, scale)
		return b.calculateAs(op, &t, l, r)
	default:
		t := decimal(max(lw, rw)+1, scale, scale)
		return b.calculateAs(op, &t, l, r)
	}
}

// decimalType returns the decimal type of an operand. For a constant it has only the constant's digits.
func (b *queryBinder) decimalType(o typedOperand) schema.Type {
	if o.number != "" {
		if whole, scale, ok := countDigits(o.number); ok {
			return schema.Type{Kind: schema.Decimal, Precision: max(1, whole+scale), Scale: scale}
		}
	}
	return decimalOf(o.e.Type())
}

// calculateIntervals returns arithmetic with an interval on at least one side.
func (b *queryBinder) calculateIntervals(op expr.Op, l, r typedOperand) (expr.Expr, bool) {
	lt, rt := l.e.Type(), r.e.Type()
	if op == expr.Mul && rt.Kind == schema.Interval {
		l, r, lt, rt = r, l, rt, lt
	}
	switch {
	case (op == expr.Mul || op == expr.Div) && isNumeric(rt.Kind):
		return b.makeCall(op, typeInterval, nil, l.e, b.convertTo(r, &typeFloat64)), true
	case op != expr.Add && op != expr.Sub:
		return nil, false
	case lt.Kind == schema.Interval && rt.Kind == schema.Interval:
		return b.makeCall(op, typeInterval, nil, l.e, r.e), true
	case rt.Kind == schema.Interval && (lt.Kind == schema.Timestamp || lt.Kind == schema.Date):
		return b.makeCall(op, typeTimestamp, nil, b.castExpr(l.e, &typeTimestamp), r.e), true
	case op == expr.Add && (rt.Kind == schema.Timestamp || rt.Kind == schema.Date):
		return b.makeCall(op, typeTimestamp, nil, b.castExpr(r.e, &typeTimestamp), l.e), true
	}
	return nil, false
}

// calculateDates returns arithmetic with a date or an instant on at least one side, and no interval.
func (b *queryBinder) calculateDates(op expr.Op, l, r typedOperand) (expr.Expr, bool) {
	lt, rt := l.e.Type(), r.e.Type()
	switch {
	case op == expr.Add && lt.Kind == schema.Int32 && rt.Kind == schema.Date:
		return b.makeCall(op, typeDate, nil, r.e, l.e), true
	case op != expr.Add && op != expr.Sub || lt.Kind != schema.Date && lt.Kind != schema.Timestamp:
		return nil, false
	case lt.Kind == schema.Date && rt.Kind == schema.Int32:
		return b.makeCall(op, typeDate, nil, l.e, r.e), true
	case op != expr.Sub:
		return nil, false
	case lt.Kind == schema.Date && rt.Kind == schema.Date:
		return b.makeCall(op, typeInt32, nil, l.e, r.e), true
	case rt.Kind == schema.Date || rt.Kind == schema.Timestamp:
		return b.makeCall(op, typeInterval, nil, b.castExpr(l.e, &typeTimestamp), b.castExpr(r.e, &typeTimestamp)), true
	}
	return nil, false
}
