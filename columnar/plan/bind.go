package plan

import (
	"strings"
	"time"

	"scribe/columnar/expr"
	"scribe/columnar/near"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
)

// binder makes expressions of syntax trees. It is used for one query.
type binder struct {
	schema     *schema.Schema
	columns    []schema.Column
	byName     map[string]int // of many columns; nil until it is needed
	now        int64          // Unix microseconds
	errorf     func(pos int, hint, format string, args ...any) *sql.Error
	qualifiers [][]string // what may stand before a column's name
	aliases    []sql.Item // the SELECT list, for hints

	nodes    int // made so far
	programs int // of regular expressions, in instructions

	// clause is where aggregates are not allowed, empty where they are.
	clause     string
	aggregates []Aggregate
	// aggregateAt has the places of aggregates, by all that makes a difference.
	aggregateAt map[string]int
	grouped     map[*expr.Column]bool // columns that stand for aggregates
	places      []place               // of columns in the text
}

// place is where the text names a column.
type place struct {
	column *expr.Column
	pos    int
}

func newBinder(s *schema.Schema, o Options, errorf func(int, string, string, ...any) *sql.Error) *binder {
	now := o.Now
	if now.IsZero() {
		now = time.Now()
	}
	return &binder{schema: s, columns: s.Columns(), now: now.UnixMicro(), errorf: errorf}
}

func (b *binder) fail(pos int, hint, format string, args ...any) error {
	return b.errorf(pos, hint, format, args...)
}

// spend counts nodes.
func (b *binder) spend(pos, n int) {
	if b.nodes += n; b.nodes > MaxNodes {
		panic(b.fail(pos, "Make it simpler, or run several queries.", "the query has more than %d nodes", MaxNodes))
	}
}

// again counts an expression that is used once more.
func (b *binder) again(o operand) {
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
	b.spend(o.pos, n)
}

// condition binds what has to be a bool.
func (b *binder) condition(e sql.Expr, clause string) expr.Expr {
	b.clause = clause
	o := b.bind(e)
	return b.boolean(o, clause)
}

// boolean converts an argument to bool, or says that it is none.
func (b *binder) boolean(o operand, of string) expr.Expr {
	if o.unknown {
		return b.as(o, &typeBool)
	}
	if o.e.Type().Kind != schema.Bool {
		panic(b.fail(o.pos, "", "argument of %s must be type boolean, not type %s", of, typeName(o.e.Type())))
	}
	return o.e
}

// bind makes an operand of any expression.
func (b *binder) bind(e sql.Expr) operand {
	b.spend(e.Pos(), 1)
	switch e := e.(type) {
	case *sql.Name:
		return b.name(e)
	case *sql.Number:
		return b.number(e.At, e.Text)
	case *sql.String:
		return operand{e: literal(&typeString, e.Value), pos: e.At, unknown: true}
	case *sql.Null:
		return operand{e: literal(&typeString, nil), pos: e.At, unknown: true}
	case *sql.Bool:
		return operand{e: literal(&typeBool, e.Value), pos: e.At}
	case *sql.Typed:
		t := namedType(e.Type)
		return b.settle(operand{e: literal(&typeString, e.Value), pos: e.At, unknown: true}, &t)
	case *sql.Cast:
		return b.explicit(e)
	case *sql.Call:
		return b.function(e)
	case *sql.Field:
		x := b.bind(e.X)
		return b.field(x, e.At, e.Name)
	case *sql.Index:
		return b.index(e)
	default:
		return b.operator(e)
	}
}

// operator makes an operand of an expression with an operator.
func (b *binder) operator(e sql.Expr) operand {
	var r expr.Expr
	switch e := e.(type) {
	case *sql.Logic:
		r = b.logic(e)
	case *sql.Unary:
		return b.unary(e)
	case *sql.Binary:
		return b.binary(e)
	case *sql.In:
		r = b.in(e)
	case *sql.Between:
		r = b.between(e)
	case *sql.Like:
		r = b.like(e)
	case *sql.Is:
		r = b.is(e)
	case *sql.Any:
		r = b.any(e)
	case *sql.Case:
		return b.caseOf(e)
	default:
		panic(b.fail(e.Pos(), "", "this expression is not supported"))
	}
	return operand{e: r, pos: e.Pos()}
}

// bindAll binds expressions in turn.
func (b *binder) bindAll(list ...sql.Expr) []operand {
	operands := make([]operand, len(list))
	for i, e := range list {
		operands[i] = b.bind(e)
	}
	return operands
}

// qualify notes what may stand before a column's name: the alias, else the category's name, or its last part.
func (b *binder) qualify(f sql.From) {
	if f.Alias != "" {
		b.qualifiers = [][]string{{f.Alias}}
		return
	}
	parts := strings.Split(f.Category, ".")
	b.qualifiers = [][]string{{f.Category}, parts, parts[len(parts)-1:]}
}

// name finds a column, and the fields behind it.
func (b *binder) name(e *sql.Name) operand {
	if o, ok := b.path(e, e.Parts); ok {
		return o
	}
	for _, q := range b.qualifiers {
		if len(e.Parts) <= len(q) || !equal(e.Parts[:len(q)], q) {
			continue
		}
		if o, ok := b.path(e, e.Parts[len(q):]); ok {
			return o
		}
	}
	panic(b.unknownColumn(e))
}

func equal(a, b []string) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// path finds a column by the first of parts, and fields by the others.
func (b *binder) path(e *sql.Name, parts []string) (operand, bool) {
	i := b.find(parts[0])
	if i < 0 {
		return operand{}, false
	}
	o := operand{e: b.column(i, e.At), pos: e.At}
	for _, name := range parts[1:] {
		o = b.field(o, e.At, name)
	}
	return o, true
}

// column is a column at a place of the text.
func (b *binder) column(i, pos int) expr.Expr {
	c := &expr.Column{Name: b.columns[i].Name, T: b.columns[i].Type}
	b.places = append(b.places, place{c, pos})
	return c
}

// few is how many columns are looked through one by one.
const few = 32

// find returns the index of a column, -1 if there is none.
func (b *binder) find(name string) int {
	if len(b.columns) > few && b.byName == nil {
		b.byName = make(map[string]int, len(b.columns))
		for i := range b.columns {
			b.byName[b.columns[i].Name] = i
		}
	}
	if b.byName != nil {
		if i, ok := b.byName[name]; ok {
			return i
		}
		return -1
	}
	for i := range b.columns {
		if b.columns[i].Name == name {
			return i
		}
	}
	return -1
}

// unknownColumn says that there is no such column, and which was meant.
func (b *binder) unknownColumn(e *sql.Name) error {
	text := sql.Text(e)
	if len(e.Parts) == 1 {
		for _, it := range b.aliases {
			if it.Alias == e.Parts[0] {
				panic(b.fail(e.At, "It is an alias of the SELECT list, which other clauses than GROUP BY and ORDER BY do not see: repeat the expression.",
					"column %s does not exist", quote(text)))
			}
		}
	}
	names, last := b.columnNames(), e.Parts[len(e.Parts)-1]
	found := likely(strings.Join(e.Parts, "."), names)
	if len(found) == 0 {
		found = likely(last, names)
	}
	hint := ""
	switch {
	case b.find(last) >= 0 && len(e.Parts) > 1:
		hint = "There is a column " + sql.Text(&sql.Name{Parts: []string{last}}) + "."
	case len(found) > 0:
		hint = "Perhaps you meant to reference the column " + sql.Text(&sql.Name{Parts: found[:1]}) + "."
	case b.schema.Version == 0:
		hint = "The category has no schema, only the column payload and those of the message; scribe schema set gives it one."
	}
	return b.fail(e.At, hint, "column %s does not exist", quote(text))
}

// likely returns the names that may have been meant. One letter for another is none of them.
func likely(name string, names []string) []string {
	found := near.Names(name, names)
	if len(found) > 0 && len(found[0]) < 3 && !strings.EqualFold(name, found[0]) {
		return nil
	}
	return found
}

func (b *binder) columnNames() []string {
	names := make([]string, 0, len(b.columns))
	for i := range b.columns {
		names = append(names, b.columns[i].Name)
	}
	return names
}

func quote(s string) string { return "\"" + strings.Trim(clip(s), "\"") + "\"" }

// field is a part of a struct.
func (b *binder) field(x operand, pos int, name string) operand {
	t := x.typ()
	if t.Kind != schema.Struct {
		hint := ""
		if t.Kind == schema.Map {
			hint = "Write ['" + clip(name) + "'] for the value of a map."
		}
		panic(b.fail(pos, hint, "column notation .%s applied to type %s, which has no fields", clip(name), typeName(t)))
	}
	for i := range t.Fields {
		if t.Fields[i].Name == name {
			return operand{e: b.call(expr.StructField, t.Fields[i].Type, i, x.e), pos: x.pos}
		}
	}
	names := make([]string, 0, len(t.Fields))
	for i := range t.Fields {
		names = append(names, t.Fields[i].Name)
	}
	hint := ""
	if found := likely(name, names); len(found) > 0 {
		hint = "Perhaps you meant the field " + sql.Text(&sql.Name{Parts: found[:1]}) + "."
	}
	panic(b.fail(pos, hint, "field %s does not exist in the struct", quote(name)))
}

// index is an element of a list or a value of a map.
func (b *binder) index(e *sql.Index) operand {
	both := b.bindAll(e.X, e.I)
	x, i := both[0], both[1]
	switch t := x.typ(); t.Kind {
	case schema.List:
		place := b.subscript(i)
		return operand{e: b.call(expr.ListElement, *t.Elem, nil, x.e, place), pos: x.pos}
	case schema.Map:
		key, ok := b.text(i)
		if !ok {
			panic(b.fail(i.pos, "", "keys of a map are text, not %s", typeName(i.typ())))
		}
		return operand{e: b.call(expr.MapValue, *t.Elem, nil, x.e, key), pos: x.pos}
	default:
		hint := ""
		if t.Kind == schema.Struct {
			hint = "Write the field's name behind a dot."
		}
		panic(b.fail(e.At, hint, "cannot subscript type %s: it is no list and no map", typeName(t)))
	}
}

// subscript is the place of an element: an integer.
func (b *binder) subscript(i operand) expr.Expr {
	if i.unknown {
		return b.as(i, &typeInt32)
	}
	if k := i.e.Type().Kind; k == schema.Int32 || k == schema.Int64 {
		return i.e
	}
	panic(b.fail(i.pos, "", "places in a list are integers, not %s", typeName(i.typ())))
}

// text converts an operand to text, if PostgreSQL does so by itself.
func (b *binder) text(o operand) (expr.Expr, bool) {
	if o.unknown {
		return b.as(o, &typeString), true
	}
	return o.e, o.e.Type().Kind == schema.String
}

// explicit is a cast of the text.
func (b *binder) explicit(e *sql.Cast) operand {
	x := b.bind(e.X)
	return b.explicitTo(x, namedType(e.Type), e.At)
}

func (b *binder) explicitTo(x operand, t schema.Type, pos int) operand {
	if x.unknown {
		// The cast says what the text is: its digits beyond the scale are rounded, as a column's are.
		o := b.settle(x, &t)
		o.pos = pos
		return o
	}
	from := x.e.Type()
	if t.Kind == schema.Decimal && t.Precision == 0 {
		if from.Kind == schema.Decimal {
			return operand{e: x.e, pos: pos}
		}
		t = decimalOf(from)
	}
	if !castable(from.Kind, t.Kind) {
		hint := ""
		switch {
		case t.Kind == schema.Timestamp && numeric(from.Kind):
			hint = "Use to_timestamp() for seconds since 1970."
		case numeric(t.Kind) && (from.Kind == schema.Timestamp || from.Kind == schema.Date):
			hint = "Use extract(epoch FROM x) for seconds since 1970."
		case from.Kind == schema.Bool && numeric(t.Kind):
			hint = "Cast to integer first."
		case nested(from.Kind):
			hint = "Name a part of it."
		}
		panic(b.fail(pos, hint, "cannot cast type %s to %s", typeName(from), typeName(&t)))
	}
	return operand{e: b.convert(x, &t, false), pos: pos}
}
