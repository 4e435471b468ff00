package plan

import (
	"cmp"
	"slices"
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
	// MaxSorted is the maximum number of rows without groups that ORDER BY sorts: those of LIMIT and OFFSET, or else all.
	MaxSorted = 100_000
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
	grouped := len(q.GroupBy) > 0 || q.Having != nil || len(b.aggregates) > 0
	switch {
	case q.Distinct:
		b.checkDistinct(items)
		b.distinct, p.Distinct = !grouped, grouped
	case !grouped:
		b.bindRowOrder(p, q, items)
		return
	}
	b.bindGroup(p, q, items)
}

// bindRowOrder binds ORDER BY of rows without groups.
func (b *queryBinder) bindRowOrder(p *Plan, q *sql.Select, items []selectItem) {
	if len(q.OrderBy) == 0 {
		return
	}
	at := q.OrderBy[0].Expr.Pos()
	b.failIf(q.Limit > MaxSorted || q.Offset > MaxSorted || q.Limit+q.Offset > MaxSorted, at, "Ask for fewer, or sort the answer where it is read.",
		"ORDER BY of rows sorts at most %d of them: LIMIT and OFFSET together are larger", MaxSorted)
	b.nameItems(items)
	b.clause = "ORDER BY of rows"
	seen := map[int]bool{}
	for _, o := range q.OrderBy {
		i := b.itemOf(o.Expr, p)
		var e typedOperand
		if i >= 0 {
			e = items[i].typedOperand
		} else {
			e = b.textIfUnknown(b.bind(o.Expr))
		}
		b.failIf(isNested(e.e.Type().Kind), o.Expr.Pos(), "Name a part of it.", "could not identify an ordering operator for type %s", typeName(e.e.Type()))
		if form := b.formOf(e.e); !seen[form] { // what an element before has said
			seen[form] = true
			b.failIf(len(p.Order) == MaxKeys, o.Expr.Pos(), "", "ORDER BY has more than %d elements", MaxKeys)
			b.countAgain(e)
			p.Order = append(p.Order, orderOf(o, e.e))
		}
	}
	b.clause = ""
}

// checkDistinct checks that the rows of a SELECT list can be compared.
func (b *queryBinder) checkDistinct(items []selectItem) {
	b.failIf(len(items) > MaxKeys, items[min(MaxKeys, len(items)-1)].pos, "", "SELECT DISTINCT has more than %d columns", MaxKeys)
	for _, it := range items {
		b.failIf(isNested(it.e.Type().Kind), it.pos, "Name a part of it.", "could not identify an equality operator for type %s", typeName(it.e.Type()))
	}
}

// orderOf returns an element of ORDER BY with its defaults.
func orderOf(o sql.Order, e expr.Expr) Order {
	first := o.Desc
	if o.Nulls != sql.NullsDefault {
		first = o.Nulls == sql.NullsFirst
	}
	return Order{Expr: e, Desc: o.Desc, NullsFirst: first}
}

// nameItems notes the names of the SELECT list.
func (b *queryBinder) nameItems(items []selectItem) {
	for i, it := range items {
		if j, again := b.named[it.name]; again && (j == ambiguous || b.formOf(items[j].e) != b.formOf(it.e)) {
			i = ambiguous
		}
		b.named[it.name] = i
	}
}

// bindGroup binds GROUP BY, HAVING and ORDER BY, and replaces keys in the SELECT list.
func (b *queryBinder) bindGroup(p *Plan, q *sql.Select, items []selectItem) {
	g := &Group{}
	b.nameItems(items)
	addKey := func(e expr.Expr) {
		if _, again := b.keys[b.formOf(e)]; !again {
			b.keys[b.formOf(e)] = len(g.Keys)
			g.Keys = append(g.Keys, e)
		}
	}
	for _, e := range q.GroupBy {
		key := b.bindKey(e, p, items)
		b.failIf(isNested(key.e.Type().Kind), key.pos, "Name a part of it.", "could not identify an equality operator for type %s",
			typeName(key.e.Type()))
		b.failIf(len(g.Keys) == MaxKeys, key.pos, "", "GROUP BY has more than %d keys", MaxKeys)
		addKey(key.e)
	}
	if b.distinct {
		for _, it := range items {
			addKey(it.e)
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
		b.failIf(q.Distinct && !b.isOutput(e, p), o.Expr.Pos(), "", "for SELECT DISTINCT, ORDER BY expressions must appear in select list")
		g.Order = append(g.Order, orderOf(o, e))
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
	if i := b.itemOf(e, p); i >= 0 {
		return p.Output[i].Expr
	}
	o := b.bind(e)
	if b.distinct {
		_, isKey := b.keys[b.formOf(o.e)]
		b.failIf(!isKey, o.pos, "", "for SELECT DISTINCT, ORDER BY expressions must appear in select list")
	}
	r := b.overGroups(o.e)
	b.failIf(isNested(r.Type().Kind), o.pos, "Name a part of it.", "could not identify an ordering operator for type %s",
		typeName(r.Type()))
	return r
}

// itemOf returns the index of the SELECT element that an element of ORDER BY names, or -1 if it is an expression.
func (b *queryBinder) itemOf(e sql.Expr, p *Plan) int {
	if i := b.ordinalOf(e, "ORDER BY", len(p.Output)); i >= 0 {
		return i
	}
	return b.aliasOf(e)
}

// isOutput reports whether an expression over groups is a column of the result.
func (b *queryBinder) isOutput(e expr.Expr, p *Plan) bool {
	form := b.formOf(e)
	return slices.ContainsFunc(p.Output, func(o Output) bool { return b.formOf(o.Expr) == form })
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
