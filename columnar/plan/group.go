package plan

import (
	"cmp"
	"strconv"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
)

const (
	// MaxOutput is the maximum number of columns in a result.
	MaxOutput = 10_000
	// MaxKeys is the maximum number of group keys.
	MaxKeys = 100
	// MaxAggregates is the maximum number of aggregates in a query.
	MaxAggregates = 1000
)

// selectItem is an element of the SELECT list.
type selectItem struct {
	typedOperand
	name string // empty if the text can't refer to it
}

// bindOutputs binds the SELECT list, and groups if there are any.
func (b *queryBinder) bindOutputs(p *Plan, q *sql.Select) {
	b.clause = ""
	unique := uniqueNames{}
	var items []selectItem
	add := func(it selectItem, name string) {
		b.failIf(len(items) == MaxOutput, it.pos, "", "the SELECT list has more than %d columns", MaxOutput)
		items = append(items, it)
		p.Output = append(p.Output, Output{Name: unique.takeName(name), Expr: it.e})
	}
	for i, it := range q.Items {
		if it.Star {
			for i := range b.columns {
				if c := &b.columns[i]; c.Field >= 0 || c.Name == schema.ColumnPayload {
					add(selectItem{typedOperand{e: b.columnAt(i, it.At), pos: it.At}, c.Name}, c.Name)
				}
			}
			continue
		}
		o := b.textIfUnknown(b.bind(it.Expr))
		name := itemName(it)
		add(selectItem{o, name}, cmp.Or(name, "column"+strconv.Itoa(i+1)))
	}
	if len(q.GroupBy) == 0 && q.Having == nil && len(b.aggregates) == 0 {
		if len(q.OrderBy) > 0 {
			panic(b.errorAt(q.OrderBy[0].Expr.Pos(), "Rows come as they are read, and a query that follows has no end to sort at. Sort the answer where it is read.",
				"ORDER BY is only supported with GROUP BY or aggregates"))
		}
		return
	}
	b.bindGroup(p, q, items)
}

// bindGroup binds GROUP BY, HAVING and ORDER BY, and replaces keys in the SELECT list.
func (b *queryBinder) bindGroup(p *Plan, q *sql.Select, items []selectItem) {
	g := &Group{}
	for i, it := range items {
		if j, again := b.named[it.name]; again && (j == ambiguous || b.formOf(items[j].e) != b.formOf(it.e)) {
			i = ambiguous
		}
		b.named[it.name] = i
	}
	for _, e := range q.GroupBy {
		key := b.bindKey(e, p, items)
		b.failIf(isNested(key.e.Type().Kind), key.pos, "Name a part of it.", "could not identify an equality operator for type %s",
			typeName(key.e.Type()))
		b.failIf(len(g.Keys) == MaxKeys, key.pos, "", "GROUP BY has more than %d keys", MaxKeys)
		if _, again := b.keys[b.formOf(key.e)]; !again {
			b.keys[b.formOf(key.e)] = len(g.Keys)
			g.Keys = append(g.Keys, key.e)
		}
	}
	for i := range p.Output {
		p.Output[i].Expr = b.overGroups(p.Output[i].Expr)
	}
	if q.Having != nil {
		if having := b.overGroups(b.boolOf(b.bind(q.Having), "HAVING")); !isTrue(having) {
			g.Having = having
		}
	}
	for _, o := range q.OrderBy {
		e := b.orderKey(o.Expr, p)
		first := o.Desc
		if o.Nulls != sql.NullsDefault {
			first = o.Nulls == sql.NullsFirst
		}
		g.Order = append(g.Order, Order{Expr: e, Desc: o.Desc, NullsFirst: first})
	}
	g.Aggregates = b.aggregates
	p.Group = g
}

// ordinalOf returns the index of the SELECT element that an integer names, or -1 if e is not an integer.
func (b *queryBinder) ordinalOf(e sql.Expr, clause string, n int) int {
	switch e := e.(type) {
	case *sql.Number:
		i, err := strconv.Atoi(e.Text)
		b.failIf(err != nil || i < 1 || i > n, e.At, "", "%s position %s is not in select list", clause, sql.ClipText(e.Text))
		return i - 1
	case *sql.String, *sql.Null, *sql.Typed:
		panic(b.errorAt(e.Pos(), "", "non-integer constant in %s", clause))
	}
	return -1
}

// ambiguous stands for the index of SELECT elements that have one name and different expressions.
const ambiguous = -1

// aliasOf returns the index of the SELECT element with the name e, or -1 if there is none.
func (b *queryBinder) aliasOf(e sql.Expr) int {
	n, ok := e.(*sql.Name)
	if !ok || len(n.Parts) != 1 {
		return -1
	}
	i, found := b.named[n.Parts[0]]
	if !found {
		return -1
	}
	b.failIf(i == ambiguous, n.At, "", "%s is ambiguous", quoteName(n.Parts[0]))
	return i
}

// bindKey binds an element of GROUP BY: an ordinal of the SELECT list, a column, a name in the SELECT list, or an expression.
func (b *queryBinder) bindKey(e sql.Expr, p *Plan, items []selectItem) typedOperand {
	i := b.ordinalOf(e, "GROUP BY", len(p.Output))
	if n, ok := e.(*sql.Name); ok && i < 0 && len(n.Parts) == 1 && b.findColumn(n.Parts[0]) < 0 {
		i = b.aliasOf(e)
	}
	b.clause = "GROUP BY"
	defer func() { b.clause = "" }()
	if i < 0 {
		return b.textIfUnknown(b.bind(e))
	}
	aggregate := false
	expr.Columns(items[i].e, func(c *expr.Column) { aggregate = aggregate || b.grouped[c] })
	b.failIf(aggregate, items[i].pos, "", "aggregate functions are not allowed in GROUP BY")
	return typedOperand{e: items[i].e, pos: e.Pos()}
}

// orderKey binds an element of ORDER BY: an ordinal or name of the SELECT list, or an expression over the columns.
func (b *queryBinder) orderKey(e sql.Expr, p *Plan) expr.Expr {
	i := b.ordinalOf(e, "ORDER BY", len(p.Output))
	if i < 0 {
		i = b.aliasOf(e)
	}
	if i >= 0 {
		return p.Output[i].Expr
	}
	o := b.bind(e)
	r := b.overGroups(o.e)
	b.failIf(isNested(r.Type().Kind), o.pos, "Name a part of it.", "could not identify an ordering operator for type %s",
		typeName(r.Type()))
	return r
}

// overGroups replaces keys by their columns. The remaining expression may only use aggregates.
func (b *queryBinder) overGroups(e expr.Expr) expr.Expr {
	if i, ok := b.keys[b.formOf(e)]; ok {
		return &expr.Column{Name: KeyName(i), T: plainType(e.Type())}
	}
	switch e := e.(type) {
	case *expr.Column:
		if b.grouped[e] {
			return e
		}
		panic(b.errorAt(b.positions[e], "", "column %s must appear in the GROUP BY clause or be used in an aggregate function", quoteName(e.Name)))
	case *expr.Call:
		args := make([]expr.Expr, len(e.Args))
		changed := false
		for i, a := range e.Args {
			args[i] = b.overGroups(a)
			changed = changed || args[i] != a
		}
		if changed {
			return &expr.Call{Op: e.Op, Args: args, T: e.T, Detail: e.Detail}
		}
	}
	return e
}

// formOf returns a number that equal expressions share. It prints each expression once, with numbers for its arguments and without nested
// types: texts of whole subexpressions would grow with their depth times the number of fields in a struct.
func (b *queryBinder) formOf(e expr.Expr) int {
	if form, ok := b.formAt[e]; ok {
		return form
	}
	node := e
	switch e := e.(type) {
	case *expr.Column:
		if !b.grouped[e] { // an aggregate has a type, as a column of the schema may have its name
			node = &expr.Column{Name: e.Name}
		}
	case *expr.Call:
		c := &expr.Call{Op: e.Op, Args: make([]expr.Expr, len(e.Args)), T: e.T, Detail: e.Detail}
		for i, a := range e.Args {
			c.Args[i] = &expr.Column{Name: strconv.Itoa(b.formOf(a))}
		}
		if isNested(c.T.Kind) {
			c.T = schema.Type{} // it follows from the arguments, as that of a column from its name
		}
		node = c
	}
	key := expr.Key(node)
	form, ok := b.forms[key]
	if !ok {
		form = len(b.forms)
		b.forms[key] = form
	}
	b.formAt[e] = form
	return form
}
