package plan

import (
	"strconv"
	"time"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
)

// MaxNodes is how many nodes the expressions of a plan have at most, counted as trees.
const MaxNodes = 50_000

// Options are what a plan depends on beside the text and the schema.
type Options struct {
	// Now is what now() is; the time of the call if it is zero. Microseconds count.
	Now time.Time
}

// Plan is a query over one version of a schema. It is immutable, and shared by whoever runs the query.
type Plan struct {
	Schema   *schema.Schema
	Category string
	// Columns are the columns that the query needs, each once, in the order of Schema.Columns(). Of nested columns all is needed.
	Columns []schema.Column
	// Where is what rows have to be, nil for all rows. A constant that is not true is the literal false.
	Where expr.Expr
	// Output are the columns of the answer; names are unique. With Group they are over its columns. A predicate has none.
	Output []Output
	// Limit is how many rows the answer has at most, -1 for all.
	Limit int64
	// Group says how rows become groups; nil without aggregation.
	Group *Group
	// EarlyStop says that a row may be given up as soon as Where is false on what is known of it: what is wrong with the rest of the row
	// can't make Where true. See docs/columnar/sql.md.
	EarlyStop bool
	// Text is the canonical text.
	Text string
}

// Output is a column of the answer.
type Output struct {
	Name string
	Expr expr.Expr
}

// Group is an aggregation. Its rows have the keys as columns $k0, $k1, ... and the aggregates as $a0, $a1, ...
type Group struct {
	// Keys are over the columns of the schema. Without keys there is one group, even of no rows.
	Keys []expr.Expr
	// Aggregates are computed of each group.
	Aggregates []Aggregate
	// Having is over the columns of the group: what groups have to be, nil for all.
	Having expr.Expr
	// Order is the order of the answer, over the columns of the group; none is any order. Plan.Limit cuts after it.
	Order []Order
}

// Aggregate is a value computed of a group's rows.
type Aggregate struct {
	// Func is count, sum, min, max, avg, approx_count_distinct or approx_quantile.
	Func string
	// Arg is what is aggregated, over the columns of the schema; rows in which it is null do not count. nil is count(*).
	Arg expr.Expr
	// Filter is what rows have to be to count, nil for all.
	Filter expr.Expr
	// Distinct: equal values count once.
	Distinct bool
	// Params: of approx_quantile the share, from 0 to 1.
	Params []float64
	// T is the type of the result.
	T schema.Type
}

// Order is an element of the order of groups.
type Order struct {
	Expr       expr.Expr
	Desc       bool
	NullsFirst bool
}

// KeyName is the name of the column of the i-th key.
func KeyName(i int) string { return "$k" + strconv.Itoa(i) }

// AggregateName is the name of the column of the i-th aggregate.
func AggregateName(i int) string { return "$a" + strconv.Itoa(i) }

// Columns returns the columns of the groups: keys, then aggregates.
func (g *Group) Columns() []schema.Column {
	columns := make([]schema.Column, 0, len(g.Keys)+len(g.Aggregates))
	for i, k := range g.Keys {
		columns = append(columns, schema.Column{Name: KeyName(i), Type: plainType(k.Type()), Field: -1})
	}
	for i := range g.Aggregates {
		columns = append(columns, schema.Column{Name: AggregateName(i), Type: g.Aggregates[i].T, Field: -1})
	}
	return columns
}

// Bind gives a query its meaning over a schema. Errors are *[sql.Error].
func Bind(q *sql.Select, s *schema.Schema, o Options) (_ *Plan, err error) {
	defer func() { err = errorOf(recover()) }()
	b := newBinder(s, o, q.Errorf)
	b.setQualifiers(q.From)
	b.aliases = q.Items
	p := &Plan{Schema: s, Category: q.From.Category, Limit: q.Limit}
	if q.Where != nil {
		p.Where = b.bindCondition(q.Where, "WHERE")
	}
	b.bindOutputs(p, q)
	p.deriveRest(b)
	p.Text = q.String()
	return p, nil
}

// BindPredicate gives a condition its meaning over a schema. The plan has a Where and no Output; its Text is the condition's. Errors are
// *[sql.Error].
func BindPredicate(q *sql.Predicate, s *schema.Schema, o Options) (_ *Plan, err error) {
	defer func() { err = errorOf(recover()) }()
	b := newBinder(s, o, q.Errorf)
	p := &Plan{Schema: s, Limit: -1, Text: q.String()}
	p.Where = b.bindCondition(q.Where, "a filter")
	p.deriveRest(b)
	return p, nil
}

// errorOf is what ended a panic as an error: the binder's functions throw an *sql.Error, as package sql's parser does.
func errorOf(thrown any) error {
	switch e := thrown.(type) {
	case nil:
		return nil
	case *sql.Error:
		return e
	default:
		panic(e)
	}
}

// deriveRest works out what follows from the expressions.
func (p *Plan) deriveRest(b *queryBinder) {
	if isTrue(p.Where) {
		p.Where = nil
	}
	for _, t := range expr.Conjuncts(p.Where) {
		if _, never := t.(*expr.Literal); never { // false or null
			p.Where = literal(&typeBool, false)
		}
	}
	p.Columns = p.neededColumns(b.columns)
	p.EarlyStop = p.Where != nil && (p.Schema.OnError == schema.OnErrorReject || stopsEarly(p.Where))
}

// neededColumns returns the columns that the plan's expressions name.
func (p *Plan) neededColumns(all []schema.Column) []schema.Column {
	named := map[string]bool{}
	add := func(e expr.Expr) {
		if e != nil {
			expr.Columns(e, func(c *expr.Column) { named[c.Name] = true })
		}
	}
	add(p.Where)
	if g := p.Group; g != nil {
		for _, k := range g.Keys {
			add(k)
		}
		for i := range g.Aggregates {
			add(g.Aggregates[i].Arg)
			add(g.Aggregates[i].Filter)
		}
	} else {
		for i := range p.Output {
			add(p.Output[i].Expr)
		}
	}
	columns := make([]schema.Column, 0, len(named))
	for i := range all {
		if named[all[i].Name] {
			columns = append(columns, all[i])
		}
	}
	return columns
}

// AtConsumer reports whether only a reader has the values of a column: they come from where a payload is, not from what is in it.
func AtConsumer(column string) bool {
	return column == schema.ColumnPersisted || column == schema.ColumnShard || column == schema.ColumnOffset
}

// Pushdown returns the part of Where that can be evaluated where only payloads are known: the terms that name no column of [AtConsumer].
// Every row of the answer satisfies it. nil if there is no such term.
func (p *Plan) Pushdown() expr.Expr {
	var terms []expr.Expr
	all := expr.Conjuncts(p.Where)
	for _, t := range all {
		local := true
		expr.Columns(t, func(c *expr.Column) { local = local && !AtConsumer(c.Name) })
		if local {
			terms = append(terms, t)
		}
	}
	switch len(terms) {
	case 0:
		return nil
	case len(all):
		return p.Where
	}
	return conjunction(terms...)
}
