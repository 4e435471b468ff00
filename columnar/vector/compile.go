package vector

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// compiler makes nodes of expressions over the columns of a batch.
type compiler struct {
	in      *arrow.Schema
	columns []column
	byName  map[string]int // in columns
}

// compiled is a node and what the compiler knows of it.
type compiled struct {
	node
	cost int // of a row, roughly; 1 is a comparison of numbers
	// source is the only column that the expression reads, -1 if there are more, -2 if there is none.
	source int
}

const (
	manySources = -1
	noSource    = -2
)

func (c *compiler) compile(e expr.Expr) (compiled, error) {
	switch e := e.(type) {
	case *expr.Column:
		i, err := c.column(e)
		return compiled{columnNode{i}, 0, i}, err
	case *expr.Literal:
		v, err := constant(e)
		return compiled{constantNode{v}, 0, noSource}, err
	case *expr.Call:
		return c.call(e)
	}
	return compiled{}, fmt.Errorf("vector: an expression of an unknown kind: %T", e)
}

// column finds a column of the batch, which must have the type that the expression was bound to.
func (c *compiler) column(e *expr.Column) (int, error) {
	if i, ok := c.byName[e.Name]; ok {
		if !c.columns[i].t.Equal(&e.T) {
			return 0, fmt.Errorf("vector: column %q is %s and %s in one expression", e.Name, &c.columns[i].t, &e.T)
		}
		return i, nil
	}
	at := c.in.FieldIndices(e.Name)
	if len(at) != 1 {
		return 0, fmt.Errorf("vector: the batch has %d columns named %q, the expression reads one", len(at), e.Name)
	}
	if dt := c.in.Field(at[0]).Type; !holds(dt, &e.T) {
		return 0, fmt.Errorf("vector: column %q is %s in the batch, the expression reads %s", e.Name, dt, &e.T)
	}
	c.columns = append(c.columns, column{e.Name, at[0], e.T})
	c.byName[e.Name] = len(c.columns) - 1
	return len(c.columns) - 1, nil
}

// holds reports whether an Arrow type is how values of t are kept: names of elements and what may be null do not matter.
func holds(dt arrow.DataType, t *schema.Type) bool {
	switch t.Kind {
	case schema.String:
		if d, ok := dt.(*arrow.DictionaryType); ok {
			return d.IndexType.ID() == arrow.INT32 && d.ValueType.ID() == arrow.STRING
		}
		return dt.ID() == arrow.STRING
	case schema.List:
		l, ok := dt.(*arrow.ListType)
		return ok && holds(l.Elem(), t.Elem)
	case schema.Map:
		m, ok := dt.(*arrow.MapType)
		return ok && m.KeyType().ID() == arrow.STRING && holds(m.ItemType(), t.Elem)
	case schema.Struct:
		s, ok := dt.(*arrow.StructType)
		if !ok || s.NumFields() != len(t.Fields) {
			return false
		}
		for i := range t.Fields {
			if f := s.Field(i); f.Name != t.Fields[i].Name || !holds(f.Type, &t.Fields[i].Type) {
				return false
			}
		}
		return true
	default:
		return arrow.TypeEqual(dt, t.Arrow())
	}
}

// constant returns a literal's value.
func constant(l *expr.Literal) (*vec, error) {
	v := constantNull(l.T.Kind, l.T.Scale)
	if l.Value == nil {
		if l.T.Kind == schema.Bool {
			v.bits = bitmap{0}
		}
		return v, nil
	}
	v.valid = nil
	var ok bool
	switch x := l.Value.(type) {
	case bool:
		v.bits, ok = bitmap{bit(x)}, l.T.Kind == schema.Bool
	case int32:
		v.i32[0], ok = x, l.T.Kind == schema.Int32
	case int64:
		v.i64[0], ok = x, l.T.Kind == schema.Int64
	case uint64:
		v.u64[0], ok = x, l.T.Kind == schema.Uint64
	case float64:
		v.f64[0], ok = x, l.T.Kind == schema.Float64
	case decimal128.Num:
		v.dec[0], ok = x, l.T.Kind == schema.Decimal
	case string:
		v.data, ok = []byte(x), l.T.Kind == schema.String
		v.end[0] = int32(len(x))
	case []byte:
		v.data, ok = x, l.T.Kind == schema.Binary
		v.end[0] = int32(len(x))
	case arrow.Date32:
		v.i32[0], ok = int32(x), l.T.Kind == schema.Date
	case arrow.Timestamp:
		v.i64[0], ok = int64(x), l.T.Kind == schema.Timestamp
	case arrow.MonthDayNanoInterval:
		v.iv[0], ok = x, l.T.Kind == schema.Interval
	default:
		ok = false
	}
	if !ok {
		return nil, fmt.Errorf("vector: a constant of the type %s is a %T", &l.T, l.Value)
	}
	return v, nil
}

// call compiles an operator. What reads nothing but one column with a dictionary is evaluated for the dictionary's values.
func (c *compiler) call(e *expr.Call) (compiled, error) {
	args := make([]compiled, len(e.Args))
	out := compiled{source: noSource}
	for i, a := range e.Args {
		var err error
		if args[i], err = c.compile(a); err != nil {
			return compiled{}, err
		}
		out.cost += args[i].cost
		switch s := args[i].source; {
		case s == noSource || s == out.source:
		case out.source == noSource:
			out.source = s
		default:
			out.source = manySources
		}
	}
	for i := range args {
		if out.source == manySources {
			args[i].node = c.encoded(args[i])
		}
	}
	o := operator{compiler: c, e: e, args: args}
	n, err := o.node()
	if err != nil {
		return compiled{}, err
	}
	if n == nil {
		return compiled{}, fmt.Errorf("vector: operator %d has no form for %s", e.Op, signature(e))
	}
	out.node = n
	out.cost += costOf(e)
	return out, nil
}

// encoded returns the node, evaluated by code if that can be less work.
func (c *compiler) encoded(n compiled) node {
	if n.source < 0 || c.columns[n.source].t.Kind != schema.String {
		return n.node
	}
	if _, ok := n.node.(columnNode); ok {
		return n.node
	}
	if c.in.Field(c.columns[n.source].index).Type.ID() != arrow.DICTIONARY {
		return n.node
	}
	return &byCode{n.source, n.node}
}

func signature(e *expr.Call) string {
	types := make([]string, len(e.Args))
	for i, a := range e.Args {
		types[i] = a.Type().String()
	}
	return "(" + strings.Join(types, ", ") + ") " + e.T.String()
}

// costOf says what an operator costs a row, beside its arguments.
func costOf(e *expr.Call) int {
	switch e.Op {
	case expr.And, expr.Or, expr.Not, expr.IsNull, expr.IsNotNull, expr.IsTrue, expr.IsNotTrue, expr.IsFalse, expr.IsNotFalse:
		return 0
	case expr.Eq, expr.Ne, expr.Lt, expr.Le, expr.Gt, expr.Ge, expr.IsDistinct, expr.IsNotDistinct, expr.In, expr.NullIf:
		if k := e.Args[0].Type().Kind; k == schema.String || k == schema.Binary || k == schema.Decimal || k == schema.Interval {
			return 4
		}
		return 1
	case expr.Add, expr.Sub, expr.Mul, expr.Div, expr.Mod, expr.Neg, expr.Abs, expr.Floor, expr.Ceil, expr.Round, expr.Case, expr.Coalesce,
		expr.StructField, expr.ListLength, expr.StartsWith:
		return 2
	case expr.Match:
		return 100
	default:
		return 10
	}
}

// operator is a call that is being compiled.
type operator struct {
	*compiler
	e    *expr.Call
	args []compiled
}

func (o *operator) arg(i int) node { return o.args[i].node }

func (o *operator) nodes() []node {
	out := make([]node, len(o.args))
	for i := range o.args {
		out[i] = o.args[i].node
	}
	return out
}

// typeOf returns an argument's type; that of null if there is no such argument.
func (o *operator) typeOf(i int) *schema.Type {
	if i < len(o.e.Args) {
		return o.e.Args[i].Type()
	}
	return &schema.Type{Kind: schema.Null}
}

// arity is how many arguments an operator has: from, and at most to.
var arity = map[expr.Op][2]int{
	expr.And: {1, 1 << 20}, expr.Or: {1, 1 << 20}, expr.Not: {1, 1},
	expr.Eq: {2, 2}, expr.Ne: {2, 2}, expr.Lt: {2, 2}, expr.Le: {2, 2}, expr.Gt: {2, 2}, expr.Ge: {2, 2},
	expr.IsDistinct: {2, 2}, expr.IsNotDistinct: {2, 2},
	expr.IsNull: {1, 1}, expr.IsNotNull: {1, 1}, expr.IsTrue: {1, 1}, expr.IsNotTrue: {1, 1}, expr.IsFalse: {1, 1}, expr.IsNotFalse: {1, 1},
	expr.In: {1, 1 << 20}, expr.Like: {1, 2}, expr.ILike: {1, 2}, expr.Match: {1, 2},
	expr.Case: {1, 1 << 20}, expr.Coalesce: {1, 1 << 20}, expr.NullIf: {2, 2},
	expr.Add: {2, 2}, expr.Sub: {2, 2}, expr.Mul: {2, 2}, expr.Div: {2, 2}, expr.Mod: {2, 2},
	expr.Concat: {1, 1 << 20}, expr.Lower: {1, 1}, expr.Upper: {1, 1}, expr.Length: {1, 1}, expr.Substring: {2, 3}, expr.Position: {2, 2},
	expr.StartsWith: {2, 2}, expr.Trim: {2, 2}, expr.Replace: {3, 3}, expr.SplitPart: {3, 3},
	expr.Extract: {1, 1}, expr.DateTrunc: {1, 1}, expr.DateBin: {3, 3},
	expr.StructField: {1, 1}, expr.ListElement: {2, 2}, expr.MapValue: {2, 2}, expr.ListLength: {1, 1}, expr.ListContains: {2, 2},
	expr.Greatest: {1, 1 << 20}, expr.Least: {1, 1 << 20}, expr.ToTimestamp: {1, 1},
	expr.Neg: {1, 1}, expr.Abs: {1, 1}, expr.Floor: {1, 1}, expr.Ceil: {1, 1}, expr.Round: {1, 1}, expr.Cast: {1, 1},
}

func (o *operator) node() (node, error) {
	if n := arity[o.e.Op]; len(o.args) < n[0] || len(o.args) > n[1] {
		return nil, fmt.Errorf("vector: operator %d with %d arguments", o.e.Op, len(o.args))
	}
	for _, i := range o.bools() {
		if k := o.typeOf(i).Kind; k != schema.Bool {
			return nil, fmt.Errorf("vector: operator %d of the type %s", o.e.Op, o.typeOf(i))
		}
	}
	switch op := o.e.Op; op {
	case expr.And, expr.Or:
		return o.junction(), nil
	case expr.Not:
		return notNode{o.arg(0)}, nil
	case expr.Eq, expr.Ne, expr.Lt, expr.Le, expr.Gt, expr.Ge, expr.IsDistinct, expr.IsNotDistinct, expr.NullIf:
		return o.comparison()
	case expr.IsNull, expr.IsNotNull, expr.IsTrue, expr.IsNotTrue, expr.IsFalse, expr.IsNotFalse:
		return isNode{op, o.arg(0)}, nil
	case expr.In:
		return o.in()
	case expr.Like, expr.ILike:
		return o.like()
	case expr.Match:
		return o.regexp()
	case expr.Case:
		return o.cases()
	case expr.Coalesce:
		return &coalesceNode{&o.e.T, o.nodes()}, o.sameTypes(0, &o.e.T)
	case expr.Greatest, expr.Least:
		return o.extreme()
	case expr.Cast:
		return newCast(o.arg(0), o.typeOf(0), &o.e.T)
	case expr.Concat, expr.Lower, expr.Upper, expr.Length, expr.Substring, expr.Position, expr.StartsWith, expr.Trim, expr.Replace, expr.SplitPart:
		return o.text(), nil
	case expr.Extract, expr.DateTrunc, expr.DateBin:
		return o.calendar(), nil
	case expr.StructField, expr.ListElement, expr.MapValue, expr.ListLength, expr.ListContains:
		return o.nesting(), nil
	default:
		if n := o.arithmetic(); n != nil {
			return n, nil
		}
		return o.times(), nil
	}
}

// bools are the arguments that must be bools.
func (o *operator) bools() (at []int) {
	switch o.e.Op {
	case expr.And, expr.Or, expr.Not, expr.IsTrue, expr.IsNotTrue, expr.IsFalse, expr.IsNotFalse:
		for i := range o.args {
			at = append(at, i)
		}
	case expr.Case:
		for i := 0; i+1 < len(o.args); i += 2 {
			at = append(at, i)
		}
	default:
	}
	return at
}

// sameTypes checks the arguments' types.
func (o *operator) sameTypes(from int, t *schema.Type) error {
	for i := from; i < len(o.args); i++ {
		if a := o.typeOf(i); !a.Equal(t) {
			return fmt.Errorf("vector: operator %d of the types %s and %s", o.e.Op, t, a)
		}
	}
	return nil
}

// junction orders the terms: which comes first does not change the answer.
func (o *operator) junction() node {
	terms := slices.Clone(o.args)
	slices.SortStableFunc(terms, func(a, b compiled) int { return a.cost - b.cost })
	nodes := make([]node, len(terms))
	for i := range terms {
		nodes[i] = terms[i].node
	}
	if o.e.Op == expr.And {
		return &andNode{nodes}
	}
	return &orNode{nodes}
}

func (o *operator) comparison() (node, error) {
	if err := o.sameTypes(1, o.typeOf(0)); err != nil {
		return nil, err
	}
	switch o.typeOf(0).Kind {
	case schema.List, schema.Struct, schema.Map, schema.Invalid:
		return nil, nil
	default:
	}
	if o.e.Op == expr.NullIf {
		return &nullIfNode{o.arg(0), o.arg(1)}, nil
	}
	return &compareNode{o.e.Op, o.arg(0), o.arg(1)}, nil
}

func (o *operator) extreme() (node, error) {
	if nested(&o.e.T) {
		return nil, nil
	}
	n := &extremeNode{&o.e.T, o.nodes(), less}
	if o.e.Op == expr.Least {
		n.order = greater
	}
	return n, o.sameTypes(0, &o.e.T)
}

func (o *operator) in() (node, error) {
	if err := o.sameTypes(1, o.typeOf(0)); err != nil {
		return nil, err
	}
	constants := make([]*vec, len(o.args)-1)
	for i := range constants {
		c, ok := o.arg(i + 1).(constantNode)
		if !ok {
			return nil, fmt.Errorf("vector: IN with an element that is no constant")
		}
		constants[i] = c.v
	}
	return newInNode(o.arg(0), constants), nil
}

func (o *operator) cases() (node, error) {
	if len(o.args)%2 == 0 {
		return nil, fmt.Errorf("vector: CASE with %d arguments", len(o.args))
	}
	n := &caseNode{t: &o.e.T}
	for i := range o.args {
		if i%2 == 1 || i == len(o.args)-1 {
			n.values = append(n.values, o.arg(i))
			if t := o.typeOf(i); !t.Equal(&o.e.T) {
				return nil, fmt.Errorf("vector: CASE of %s with a value of the type %s", &o.e.T, t)
			}
			continue
		}
		n.conditions = append(n.conditions, o.arg(i))
	}
	return n, nil
}

func (o *operator) like() (node, error) {
	kind := o.typeOf(0).Kind
	if kind != schema.String && kind != schema.Binary {
		return nil, nil
	}
	a, fold := o.arg(0), func(b []byte) []byte { return b }
	if o.e.Op == expr.ILike && kind == schema.String {
		a, fold = newCaseNode(a, false), func(b []byte) []byte { return appendLower(nil, b) }
	}
	binary := kind == schema.Binary
	if len(o.args) == 1 {
		p, ok := o.e.Detail.(*expr.Pattern)
		if !ok || len(p.Parts) == 0 {
			return nil, fmt.Errorf("vector: LIKE without a pattern")
		}
		return newLikeNode(a, p, binary, fold), nil
	}
	if o.typeOf(1).Kind != kind {
		return nil, nil
	}
	pattern := o.arg(1)
	if o.e.Op == expr.ILike && !binary {
		pattern = newCaseNode(pattern, false)
	}
	return &testNode{args: []node{a, pattern}, test: func(args []*vec, i int) (bool, bool) {
		return matchesLike(args[0].str(i&args[0].at()), args[1].str(i&args[1].at()), binary)
	}}, nil
}

func (o *operator) regexp() (node, error) {
	if o.typeOf(0).Kind != schema.String {
		return nil, nil
	}
	if len(o.args) == 1 {
		re, ok := o.e.Detail.(*regexp.Regexp)
		if !ok {
			return nil, fmt.Errorf("vector: a match without a regular expression")
		}
		return newMatchNode(o.arg(0), re), nil
	}
	if o.typeOf(1).Kind != schema.String {
		return nil, nil
	}
	return &dynamicMatchNode{o.arg(0), o.arg(1)}, nil
}

// arithmetic compiles operators on numbers.
func (o *operator) arithmetic() node {
	if !number(&o.e.T) {
		return nil
	}
	a, b, t := o.typeOf(0), o.typeOf(1), &o.e.T
	n := &arithNode{op: o.e.Op, t: t, a: o.arg(0)}
	if len(o.args) == 2 {
		n.b = o.arg(1)
	}
	if a.Kind != t.Kind || n.b != nil && b.Kind != t.Kind {
		return nil
	}
	switch t.Kind {
	case schema.Int32:
		n.calc = integerCalc(o.e.Op, lane32, mul32)
	case schema.Int64:
		n.calc = integerCalc(o.e.Op, lane64, mul64)
	case schema.Uint64:
		n.calc = unsignedCalc(o.e.Op)
	case schema.Float64:
		n.calc = floatCalc(o.e.Op)
	case schema.Decimal:
		if n.b == nil {
			b = a
		}
		n.calc = decimalCalc(o.e.Op, a, b, t)
	default:
	}
	if n.calc == nil {
		return nil
	}
	return n
}

func number(t *schema.Type) bool {
	switch t.Kind {
	case schema.Int32, schema.Int64, schema.Uint64, schema.Float64, schema.Decimal:
		return true
	default:
		return false
	}
}
