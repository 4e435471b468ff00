package plan

import (
	"fmt"
	"strings"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
	"scribe/columnar/value"
)

// aggregates are the functions that are computed per group.
var aggregates = map[string]bool{
	"count": true, "sum": true, "min": true, "max": true, "avg": true, "approx_count_distinct": true, "approx_quantile": true,
	"bool_and": true, "bool_or": true, "every": true,
}

// averageScale is the scale of an average of integers.
const averageScale = 16

// bindAggregate binds a call of an aggregate, which becomes a column of the groups.
func (b *queryBinder) bindAggregate(e *sql.Call) typedOperand {
	b.failIf(b.clause != "", e.At, hintIf(b.clause == "WHERE", "Use HAVING."), "aggregate functions are not allowed in %s", b.clause)
	b.clause = "arguments of aggregate functions"
	defer func() { b.clause = "" }()
	a := Aggregate{Func: e.Func, Distinct: e.Distinct}
	if e.Star {
		b.failIf(e.Func != "count" || e.Distinct, e.At, "", "%s(*) does not exist", e.Func)
		a.T = typeInt64
	} else {
		b.typeAggregate(&functionCall{e, b.bindAll(e.Args...)}, &a)
	}
	if e.Filter != nil {
		a.Filter = b.boolOf(b.bind(e.Filter), "FILTER")
		if isTrue(a.Filter) {
			a.Filter = nil
		}
	}
	name := b.addAggregate(a)
	b.failIf(len(b.aggregates) > MaxAggregates, e.At, "", "the query has more than %d aggregates", MaxAggregates)
	c := &expr.Column{Name: name, T: a.T}
	b.grouped[c] = true
	return typedOperand{e: c, pos: e.At}
}

// addAggregate adds an aggregate unless it exists, and returns the name of its column.
func (b *queryBinder) addAggregate(a Aggregate) string {
	key := fmt.Sprint(a.Func, a.Distinct, a.Params, b.formOf(a.Arg), b.formOf(a.Filter))
	i, ok := b.aggregateAt[key]
	if !ok {
		i = len(b.aggregates)
		b.aggregateAt[key] = i
		b.aggregates = append(b.aggregates, a)
	}
	return AggregateName(i)
}

// typeAggregate sets the argument and type of an aggregate.
func (b *queryBinder) typeAggregate(c *functionCall, a *Aggregate) {
	want := 1
	if c.Func == "approx_quantile" {
		want = 2
	}
	if len(c.args) != want {
		hint := ""
		switch {
		case c.Func == "count" && len(c.args) == 0:
			hint = "count(*) counts rows."
		case c.Func == "approx_quantile":
			hint = "Write approx_quantile(x, 0.99)."
		}
		panic(b.errorAt(c.At, hint, "function %s does not exist", c.signature()))
	}
	o := c.args[0]
	if o.unknown {
		b.refuseIf(c.Func != "count" && c.Func != "min" && c.Func != "max" && c.Func != "approx_count_distinct", c)
		o = b.readUnknown(o, &typeString)
	}
	a.Arg = o.e
	t := o.e.Type()
	switch c.Func {
	case "count", "approx_count_distinct":
		a.T = typeInt64
		b.refuseIf(isNested(t.Kind) && (c.Func != "count" || a.Distinct), c)
	case "sum", "avg":
		b.sumType(c, a, t)
	case "min", "max":
		b.refuseIf(isNested(t.Kind) || t.Kind == schema.Bool, c)
		a.T, a.Distinct = plainType(t), false // any of equal values will do
	case "approx_quantile":
		b.typeQuantile(c, a, t)
	default: // bool_and, bool_or, every: false sorts below true
		b.refuseIf(t.Kind != schema.Bool, c)
		a.Func = "min"
		if c.Func == "bool_or" {
			a.Func = "max"
		}
		a.T, a.Distinct = typeBool, false
	}
	b.failIf(a.Distinct && strings.HasPrefix(c.Func, "approx_"), c.At, "", "DISTINCT is not supported in %s()", c.Func)
}

// sumType sets the type of a sum or average as in PostgreSQL, within the digits that a decimal can hold.
func (b *queryBinder) sumType(c *functionCall, a *Aggregate, t *schema.Type) {
	switch {
	case t.Kind == schema.Float64 || t.Kind == schema.Interval:
		a.T = plainType(t)
	case t.Kind == schema.Int32 && c.Func == "sum":
		a.T = typeInt64
	case isNumeric(t.Kind):
		a.T = schema.Type{Kind: schema.Decimal, Precision: value.MaxPrecision, Scale: t.Scale}
		if c.Func == "avg" {
			a.T.Scale = max(t.Scale, averageScale)
		}
	default:
		panic(b.signatureError(c))
	}
}

func (b *queryBinder) typeQuantile(c *functionCall, a *Aggregate, t *schema.Type) {
	b.refuseIf(!isNumeric(t.Kind), c)
	q := constantArg[float64](b, c, 1, &typeFloat64)
	b.failIf(!(q >= 0 && q <= 1), c.args[1].pos, "The median is 0.5.", "the share of approx_quantile() is from 0 to 1")
	a.Params, a.T = []float64{q}, typeFloat64
}
