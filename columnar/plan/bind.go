package plan

import (
	"slices"
	"strings"
	"time"

	"scribe/columnar/expr"
	"scribe/columnar/near"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
)

// queryBinder turns syntax trees into expressions, for one query.
type queryBinder struct {
	schema     *schema.Schema
	columns    []schema.Column
	byName     map[string]int
	now        int64 // Unix microseconds
	timeless   bool
	errorf     func(pos int, hint, format string, args ...any) *sql.Error
	qualifiers [][]string // allowed before a column's name
	aliases    []sql.Item // the SELECT list, for hints

	nodes    int // nodes made so far
	programs int // instructions of regular expressions

	// clause is the name of a clause where aggregates are not allowed; otherwise empty.
	clause string
	// distinct: the elements of the SELECT list are the keys, as of SELECT DISTINCT without groups.
	distinct   bool
	aggregates []Aggregate
	// aggregateAt maps the key of each aggregate to its index. The key contains everything that distinguishes it.
	aggregateAt map[string]int
	keys        map[int]int           // maps the form of each group key to its index
	named       map[string]int        // maps the names of SELECT elements to their indexes, or to ambiguous
	formAt      map[expr.Expr]int     // see formOf
	forms       map[string]int        // maps the expr.Key of each form to its number
	grouped     map[*expr.Column]bool // columns that stand for aggregates
	positions   map[*expr.Column]int  // positions of columns in the text
}

func newBinder(s *schema.Schema, o Options, errorf func(int, string, string, ...any) *sql.Error) *queryBinder {
	now := o.Now
	if now.IsZero() {
		now = time.Now()
	}
	b := &queryBinder{
		schema: s, columns: s.Columns(), byName: map[string]int{}, now: now.UnixMicro(), timeless: o.Timeless, errorf: errorf,
		aggregateAt: map[string]int{}, keys: map[int]int{}, named: map[string]int{}, formAt: map[expr.Expr]int{}, forms: map[string]int{},
		grouped: map[*expr.Column]bool{}, positions: map[*expr.Column]int{},
	}
	for i := range b.columns {
		b.byName[b.columns[i].Name] = i
	}
	return b
}

func (b *queryBinder) errorAt(pos int, hint, format string, args ...any) error {
	return b.errorf(pos, hint, format, args...)
}

// failIf fails at a position of the text.
func (b *queryBinder) failIf(failed bool, pos int, hint, format string, args ...any) {
	if failed {
		panic(b.errorAt(pos, hint, format, args...))
	}
}

// hintIf returns a hint that only applies to some errors.
func hintIf(applies bool, hint string) string {
	if applies {
		return hint
	}
	return ""
}

// countNodes counts nodes and fails above MaxNodes.
func (b *queryBinder) countNodes(pos, n int) {
	if b.nodes += n; b.nodes > MaxNodes {
		panic(b.errorAt(pos, "Make it simpler, or run several queries.", "the query has more than %d nodes", MaxNodes))
	}
}

// countAgain counts the nodes of an expression that is used once more.
func (b *queryBinder) countAgain(o typedOperand) {
	n := 0
	var count func(e expr.Expr)
	count = func(e expr.Expr) {
		if n++; n > MaxNodes {
			return
		}
		if c, ok := e.(*expr.Call); ok {
			for _, a := range c.Args {
				count(a)
			}
		}
	}
	count(o.e)
	b.countNodes(o.pos, n)
}

// bindCondition binds an expression that must be a bool.
func (b *queryBinder) bindCondition(e sql.Expr, clause string) expr.Expr {
	b.clause = clause
	return b.boolOf(b.bind(e), clause)
}

// boolOf converts an argument to bool, or fails if it is not one.
func (b *queryBinder) boolOf(o typedOperand, of string) expr.Expr {
	if o.unknown {
		return b.convertTo(o, &typeBool)
	}
	b.failIf(o.e.Type().Kind != schema.Bool, o.pos, "", "argument of %s must be type boolean, not type %s", of, typeName(o.e.Type()))
	return o.e
}

// bind binds any expression.
func (b *queryBinder) bind(e sql.Expr) typedOperand {
	b.countNodes(e.Pos(), 1)
	switch e := e.(type) {
	case *sql.Name:
		return b.bindName(e)
	case *sql.Number:
		return b.bindNumber(e.At, e.Text)
	case *sql.String:
		return typedOperand{e: literal(&typeString, e.Value), pos: e.At, unknown: true}
	case *sql.Null:
		return typedOperand{e: literal(&typeString, nil), pos: e.At, unknown: true}
	case *sql.Bool:
		return typedOperand{e: literal(&typeBool, e.Value), pos: e.At}
	case *sql.Typed:
		t := namedType(e.Type)
		return b.readUnknown(typedOperand{e: literal(&typeString, e.Value), pos: e.At, unknown: true}, &t)
	case *sql.Cast:
		return b.castTo(b.bind(e.X), namedType(e.Type), e.At)
	case *sql.Call:
		return b.bindFunction(e)
	case *sql.Field:
		return b.bindField(b.bind(e.X), e.At, e.Name)
	case *sql.Index:
		return b.bindIndex(e)
	default:
		return b.bindOperator(e)
	}
}

// bindOperator binds an expression with an operator.
func (b *queryBinder) bindOperator(e sql.Expr) typedOperand {
	var r expr.Expr
	switch e := e.(type) {
	case *sql.Logic:
		r = b.bindLogic(e)
	case *sql.Unary:
		return b.bindUnary(e)
	case *sql.Binary:
		return b.bindBinary(e)
	case *sql.In:
		r = b.bindIn(e)
	case *sql.Between:
		r = b.bindBetween(e)
	case *sql.Like:
		r = b.bindLike(e)
	case *sql.Is:
		r = b.bindIs(e)
	case *sql.Any:
		r = b.bindAny(e)
	case *sql.Case:
		return b.bindCase(e)
	default:
		panic(b.errorAt(e.Pos(), "", "this expression is not supported"))
	}
	return typedOperand{e: r, pos: e.Pos()}
}

// bindAll binds expressions in order.
func (b *queryBinder) bindAll(list ...sql.Expr) []typedOperand {
	operands := make([]typedOperand, len(list))
	for i, e := range list {
		operands[i] = b.bind(e)
	}
	return operands
}

// setQualifiers sets the names allowed before a column's name: the alias, otherwise the category's name or its last part.
func (b *queryBinder) setQualifiers(f sql.From) {
	if f.Alias != "" {
		b.qualifiers = [][]string{{f.Alias}}
		return
	}
	parts := strings.Split(f.Category, ".")
	b.qualifiers = [][]string{{f.Category}, parts, parts[len(parts)-1:]}
}

// bindName resolves a column and the fields after it.
func (b *queryBinder) bindName(e *sql.Name) typedOperand {
	if o, ok := b.bindPath(e, e.Parts); ok {
		return o
	}
	for _, q := range b.qualifiers {
		if len(e.Parts) <= len(q) || !slices.Equal(e.Parts[:len(q)], q) {
			continue
		}
		if o, ok := b.bindPath(e, e.Parts[len(q):]); ok {
			return o
		}
	}
	panic(b.columnError(e))
}

// bindPath resolves a column by the first of parts, and fields by the others.
func (b *queryBinder) bindPath(e *sql.Name, parts []string) (typedOperand, bool) {
	i := b.findColumn(parts[0])
	if i < 0 {
		return typedOperand{}, false
	}
	o := typedOperand{e: b.columnAt(i, e.At), pos: e.At}
	for _, name := range parts[1:] {
		o = b.bindField(o, e.At, name)
	}
	return o, true
}

// columnAt returns the i-th column, used at a position of the text.
func (b *queryBinder) columnAt(i, pos int) expr.Expr {
	c := &expr.Column{Name: b.columns[i].Name, T: b.columns[i].Type}
	b.positions[c] = pos
	return c
}

// findColumn returns the index of a column, or -1 if there is none.
func (b *queryBinder) findColumn(name string) int {
	if i, ok := b.byName[name]; ok {
		return i
	}
	return -1
}

// columnError returns the error for an unknown column, with suggestions.
func (b *queryBinder) columnError(e *sql.Name) error {
	text := sql.Text(e)
	if len(e.Parts) == 1 {
		for _, it := range b.aliases {
			if it.Alias == e.Parts[0] {
				panic(b.errorAt(e.At, "It is an alias of the SELECT list, which other clauses than GROUP BY and ORDER BY do not see: repeat the expression.",
					"column %s does not exist", quoteName(text)))
			}
		}
	}
	last := e.Parts[len(e.Parts)-1]
	names := make([]string, 0, len(b.columns))
	for i := range b.columns {
		names = append(names, b.columns[i].Name)
	}
	found := likelyNames(strings.Join(e.Parts, "."), names)
	if len(found) == 0 {
		found = likelyNames(last, names)
	}
	hint := ""
	switch {
	case b.findColumn(last) >= 0 && len(e.Parts) > 1:
		hint = "There is a column " + sql.Text(&sql.Name{Parts: []string{last}}) + "."
	case len(found) > 0:
		hint = "Perhaps you meant to reference the column " + sql.Text(&sql.Name{Parts: found[:1]}) + "."
	case b.schema.Version == 0:
		hint = "The category has no schema, only the column payload and those of the message; scribe schema set gives it one."
	}
	return b.errorAt(e.At, hint, "column %s does not exist", quoteName(text))
}

// likelyNames returns suggestions for a name. Names below three bytes count only if they differ just in case.
func likelyNames(name string, names []string) []string {
	found := near.Names(name, names)
	if len(found) > 0 && len(found[0]) < 3 && !strings.EqualFold(name, found[0]) {
		return nil
	}
	return found
}

func quoteName(s string) string { return "\"" + strings.Trim(sql.ClipText(s), "\"") + "\"" }

// bindField binds the field of a struct.
func (b *queryBinder) bindField(x typedOperand, pos int, name string) typedOperand {
	t := x.typ()
	if t.Kind != schema.Struct {
		hint := hintIf(t.Kind == schema.Map, "Write ['"+sql.ClipText(name)+"'] for the value of a map.")
		panic(b.errorAt(pos, hint, "column notation .%s applied to type %s, which has no fields", sql.ClipText(name), typeName(t)))
	}
	for i := range t.Fields {
		if t.Fields[i].Name == name {
			return typedOperand{e: b.makeCall(expr.StructField, t.Fields[i].Type, i, x.e), pos: x.pos}
		}
	}
	names := make([]string, 0, len(t.Fields))
	for i := range t.Fields {
		names = append(names, t.Fields[i].Name)
	}
	hint := ""
	if found := likelyNames(name, names); len(found) > 0 {
		hint = "Perhaps you meant the field " + sql.Text(&sql.Name{Parts: found[:1]}) + "."
	}
	panic(b.errorAt(pos, hint, "field %s does not exist in the struct", quoteName(name)))
}

// bindIndex binds an element of a list or a value of a map.
func (b *queryBinder) bindIndex(e *sql.Index) typedOperand {
	x, i := b.bind(e.X), b.bind(e.I)
	switch t := x.typ(); t.Kind {
	case schema.List:
		return typedOperand{e: b.makeCall(expr.ListElement, *t.Elem, nil, x.e, b.subscriptOf(i)), pos: x.pos}
	case schema.Map:
		key, ok := b.bindText(i)
		b.failIf(!ok, i.pos, "", "keys of a map are text, not %s", typeName(i.typ()))
		return typedOperand{e: b.makeCall(expr.MapValue, *t.Elem, nil, x.e, key), pos: x.pos}
	default:
		panic(b.errorAt(e.At, hintIf(t.Kind == schema.Struct, "Write the field's name after a dot."), "cannot subscript type %s: it is no list and no map", typeName(t)))
	}
}

// subscriptOf returns the index of an element as an integer.
func (b *queryBinder) subscriptOf(i typedOperand) expr.Expr {
	if i.unknown {
		return b.convertTo(i, &typeInt32)
	}
	if k := i.e.Type().Kind; k == schema.Int32 || k == schema.Int64 {
		return i.e
	}
	panic(b.errorAt(i.pos, "", "places in a list are integers, not %s", typeName(i.typ())))
}

// bindText converts an operand to text, if PostgreSQL does so implicitly.
func (b *queryBinder) bindText(o typedOperand) (expr.Expr, bool) {
	if o.unknown {
		return b.convertTo(o, &typeString), true
	}
	return o.e, o.e.Type().Kind == schema.String
}

// castTo casts an operand explicitly.
func (b *queryBinder) castTo(x typedOperand, t schema.Type, pos int) typedOperand {
	if x.unknown {
		// The cast determines the type of the text: digits beyond the scale are rounded, as for a column.
		o := b.readUnknown(x, &t)
		o.pos = pos
		return o
	}
	from := x.e.Type()
	if t.Kind == schema.Decimal && t.Precision == 0 {
		if from.Kind == schema.Decimal {
			return typedOperand{e: x.e, pos: pos}
		}
		t = decimalOf(from)
	}
	if !isCastable(from.Kind, t.Kind) {
		hint := ""
		switch {
		case t.Kind == schema.Timestamp && isNumeric(from.Kind):
			hint = "Use to_timestamp() for seconds since 1970."
		case isNumeric(t.Kind) && (from.Kind == schema.Timestamp || from.Kind == schema.Date):
			hint = "Use extract(epoch FROM x) for seconds since 1970."
		case from.Kind == schema.Bool && isNumeric(t.Kind):
			hint = "Cast to integer first."
		case isNested(from.Kind):
			hint = "Name a part of it."
		}
		panic(b.errorAt(pos, hint, "cannot cast type %s to %s", typeName(from), typeName(&t)))
	}
	return typedOperand{e: b.convert(x, &t, false), pos: pos}
}
