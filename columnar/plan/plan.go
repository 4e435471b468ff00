package plan

import (
	"strconv"
	"time"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
	"scribe/columnar/vector"
)

// MaxNodes is the maximum number of expression nodes in a plan, counted as trees.
const MaxNodes = 50_000

// Options are the inputs of a plan other than the text and the schema.
type Options struct {
	// Now is the value of now(), in microseconds. Zero means the time of the call.
	Now time.Time
	// Timeless makes now(), and whatever else depends on the time of the query, an error, also where it would be folded into a constant.
	Timeless bool
}

// Plan is a query over one version of a schema. It is immutable and may be shared.
type Plan struct {
	Schema   *schema.Schema
	Category string
	// Columns are the columns that the query needs, each once, in the order of Schema.Columns(). A nested column is needed as a
	// whole.
	Columns []schema.Column
	// Where is the row filter; nil means all rows. A constant that is not true becomes the literal false.
	Where expr.Expr
	// Output are the columns of the result, with unique names. With Group they refer to its columns. A predicate has none.
	Output []Output
	// Order is the order of rows without groups, over the columns of the schema; empty means as they are read. Ordered rows are at most
	// MaxSorted, those that Offset leaves out included.
	Order []Order
	// Distinct leaves out rows of the result that are equal to one before. Without groups of the query's own, its rows are the keys of Group
	// instead.
	Distinct bool
	// Limit is the maximum number of rows in the result, or -1 for all. Offset is the number of rows left out before the first.
	Limit, Offset int64
	// Group is the aggregation; nil if there is none.
	Group *Group
	// EarlyStop means that a row may be dropped as soon as Where is false on the part read so far: damage in the rest of the row
	// can't make Where true. See docs/columnar/sql.md.
	EarlyStop bool
	// Text is the canonical text.
	Text string
}

// Output is a column of the result.
type Output = vector.Output

// Group is an aggregation. Its rows have the keys as columns $k0, $k1, ... and the aggregates as $a0, $a1, ...
type Group struct {
	// Keys are expressions over the columns of the schema. Without keys there is exactly one group, even for no rows.
	Keys []expr.Expr
	// Aggregates are computed per group.
	Aggregates []Aggregate
	// Having filters groups, over the columns of the group; nil means all groups.
	Having expr.Expr
	// Order is the order of the result, over the columns of the group; empty means any order. Plan.Offset and Plan.Limit apply after it.
	Order []Order
}

// Aggregate is a value computed from a group's rows.
type Aggregate struct {
	// Func is count, sum, min, max, avg, approx_count_distinct or approx_quantile.
	Func string
	// Arg is the argument, over the columns of the schema. Rows with a null argument do not count. nil means count(*).
	Arg expr.Expr
	// Filter selects the rows that count; nil means all.
	Filter expr.Expr
	// Distinct means that equal values count once.
	Distinct bool
	// Params holds parameters: for approx_quantile the quantile, from 0 to 1.
	Params []float64
	// T is the type of the result.
	T schema.Type
}

// Order is an element of the order of groups or rows.
type Order struct {
	Expr       expr.Expr
	Desc       bool
	NullsFirst bool
}

// KeyName returns the name of the column of the i-th key.
func KeyName(i int) string { return "$k" + strconv.Itoa(i) }

// AggregateName returns the name of the column of the i-th aggregate.
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

// Bind binds a query to a schema. Errors are of type *[sql.Error].
func Bind(q *sql.Select, s *schema.Schema, o Options) (_ *Plan, err error) {
	defer func() { err = errorOf(recover()) }()
	b := newBinder(s, o, q.Errorf)
	b.setQualifiers(q.From)
	b.aliases = q.Items
	p := &Plan{Schema: s, Category: q.From.Category, Limit: q.Limit, Offset: q.Offset}
	if q.Where != nil {
		p.Where = b.bindCondition(q.Where, "WHERE")
	}
	b.bindOutputs(p, q)
	p.deriveRest(b)
	p.Text = q.String()
	return p, nil
}

// BindPredicate binds a condition to a schema. The plan has a Where and no Output; its Text is the condition's. Errors are of
// type *[sql.Error].
func BindPredicate(q *sql.Predicate, s *schema.Schema, o Options) (_ *Plan, err error) {
	defer func() { err = errorOf(recover()) }()
	b := newBinder(s, o, q.Errorf)
	p := &Plan{Schema: s, Limit: -1, Text: q.String()}
	p.Where = b.bindCondition(q.Where, "a filter")
	p.deriveRest(b)
	return p, nil
}

// errorOf returns the error of a recovered panic. Like package sql's parser, the binder's functions panic with an *sql.Error.
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

// deriveRest sets the fields of the plan that follow from its expressions.
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
	needed := []expr.Expr{p.Where}
	if g := p.Group; g != nil {
		needed = append(needed, g.Keys...)
		for i := range g.Aggregates {
			needed = append(needed, g.Aggregates[i].Arg, g.Aggregates[i].Filter)
		}
	} else {
		for i := range p.Output {
			needed = append(needed, p.Output[i].Expr)
		}
		for i := range p.Order {
			needed = append(needed, p.Order[i].Expr)
		}
	}
	named := map[string]bool{}
	for _, e := range needed {
		expr.Columns(e, func(c *expr.Column) { named[c.Name] = true })
	}
	columns := make([]schema.Column, 0, len(named))
	for i := range all {
		if named[all[i].Name] {
			columns = append(columns, all[i])
		}
	}
	return columns
}

// AtConsumer reports whether only a reader with the pointer knows a column: its value depends on the payload's position, not its
// content.
func AtConsumer(column string) bool {
	return column == schema.ColumnPersisted || column == schema.ColumnShard || column == schema.ColumnOffset
}

// Pushdown returns the part of Where that can be evaluated on payloads alone: the terms that name no column of [AtConsumer].
// Every row of the result satisfies it. It is nil if there is no such term.
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
