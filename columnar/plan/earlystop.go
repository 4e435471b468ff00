package plan

import (
	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// stops reports whether a row can be given up as soon as the predicate is false on what is known of it.
//
// What is not known yet may turn out to be damaged, and then every declared column of the row is null, but the message's own columns are
// as they were. So it is to be shown that a predicate which is false on a part of the row is not true with nulls for all declared
// columns. That holds if each term of ANDs and ORs names the message's columns only, or can't be true with those nulls: were the
// predicate true then, it would be so through terms of the message's columns alone, whatever the row has, and could not have been false.
func stops(e expr.Expr) bool {
	if c, ok := e.(*expr.Call); ok && (c.Op == expr.And || c.Op == expr.Or) {
		for _, a := range c.Args {
			if !stops(a) {
				return false
			}
		}
		return true
	}
	reserved, declared := false, false
	expr.Columns(e, func(c *expr.Column) {
		reserved = reserved || c.Name == schema.ColumnError || c.Name == schema.ColumnRest
		declared = declared || !ofMessage(c.Name)
	})
	return !reserved && (!declared || onNulls(e)&canBeTrue == 0)
}

// ofMessage reports whether a column is known whatever is in the message's body.
func ofMessage(name string) bool {
	switch name {
	case schema.ColumnTime, schema.ColumnPersisted, schema.ColumnKey, schema.ColumnShard, schema.ColumnOffset, schema.ColumnAttr:
		return true
	}
	return false
}

// outcome is what an expression can be when all declared columns are null, as far as is known without evaluating it.
type outcome uint8

const (
	canBeNull  outcome = 1 << 0
	canBeTrue  outcome = 1 << 1 // of a bool: true; else: not null
	canBeFalse outcome = 1 << 2 // of a bool
	canBeAny           = canBeNull | canBeTrue | canBeFalse
)

func onNulls(e expr.Expr) outcome {
	switch e := e.(type) {
	case *expr.Literal:
		switch e.Value {
		case nil:
			return canBeNull
		case false:
			return canBeFalse
		}
		return canBeTrue
	case *expr.Column:
		if ofMessage(e.Name) {
			return canBeAny
		}
		return canBeNull
	case *expr.Call:
		return callOnNulls(e)
	}
	return canBeAny
}

func callOnNulls(e *expr.Call) outcome {
	switch e.Op {
	case expr.And, expr.Or, expr.Not:
		return logicOnNulls(e)
	case expr.IsNull, expr.IsNotNull, expr.IsTrue, expr.IsNotTrue, expr.IsFalse, expr.IsNotFalse:
		return testOnNulls(e.Op, onNulls(e.Args[0]))
	case expr.IsDistinct, expr.IsNotDistinct:
		return distinctOnNulls(e)
	case expr.Case:
		return caseOnNulls(e)
	case expr.Coalesce, expr.Greatest, expr.Least:
		for _, a := range e.Args {
			if onNulls(a) != canBeNull {
				return canBeAny
			}
		}
		return canBeNull
	case expr.NullIf:
		return onNulls(e.Args[0]) | canBeNull
	case expr.In:
		return onlyNull(e.Args[0])
	case expr.ListContains:
		return onlyNull(e.Args[1])
	case expr.Concat:
		if e.Detail != nil {
			return canBeAny
		}
		return onlyNull(e.Args...)
	default: // null if one of its arguments is
		return onlyNull(e.Args...)
	}
}

// onlyNull is the outcome of what is null if one of these is.
func onlyNull(args ...expr.Expr) outcome {
	for _, a := range args {
		if onNulls(a) == canBeNull {
			return canBeNull
		}
	}
	return canBeAny
}

func distinctOnNulls(e *expr.Call) outcome {
	op := expr.IsNotNull // of the other side, when one is null
	if e.Op == expr.IsNotDistinct {
		op = expr.IsNull
	}
	l, r := onNulls(e.Args[0]), onNulls(e.Args[1])
	if l == canBeNull {
		return testOnNulls(op, r)
	}
	if r == canBeNull {
		return testOnNulls(op, l)
	}
	return canBeTrue | canBeFalse
}

func caseOnNulls(e *expr.Call) outcome {
	var r outcome
	for i := 0; i+1 < len(e.Args); i += 2 {
		switch c := onNulls(e.Args[i]); {
		case c == canBeTrue:
			return r | onNulls(e.Args[i+1])
		case c&canBeTrue != 0:
			r |= onNulls(e.Args[i+1])
		}
	}
	return r | onNulls(e.Args[len(e.Args)-1])
}

func logicOnNulls(e *expr.Call) outcome {
	if e.Op == expr.Not {
		a := onNulls(e.Args[0])
		r := a & canBeNull
		if a&canBeTrue != 0 {
			r |= canBeFalse
		}
		if a&canBeFalse != 0 {
			r |= canBeTrue
		}
		return r
	}
	// An AND is true if all are, false if one is, else null; an OR the other way round.
	all, one := canBeTrue, canBeFalse
	if e.Op == expr.Or {
		all, one = one, all
	}
	r, null, certain := all, false, false
	for _, a := range e.Args {
		o := onNulls(a)
		if o&all == 0 {
			r &^= all
		}
		if o&one != 0 {
			r |= one
		}
		null = null || o&canBeNull != 0
		certain = certain || o == one
	}
	if certain {
		return one
	}
	if null {
		r |= canBeNull
	}
	return r
}

func testOnNulls(op expr.Op, a outcome) outcome {
	var holds outcome
	not := false
	switch op {
	case expr.IsNotNull:
		holds, not = canBeNull, true
	case expr.IsTrue, expr.IsNotTrue:
		holds, not = canBeTrue, op == expr.IsNotTrue
	case expr.IsFalse, expr.IsNotFalse:
		holds, not = canBeFalse, op == expr.IsNotFalse
	default:
		holds = canBeNull
	}
	yes, no := canBeTrue, canBeFalse
	if not {
		yes, no = no, yes
	}
	var r outcome
	if a&holds != 0 {
		r |= yes
	}
	if a&^holds != 0 {
		r |= no
	}
	return r
}
