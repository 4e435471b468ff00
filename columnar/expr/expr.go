package expr

import "scribe/columnar/schema"

// Expr is a bound expression: *[Column], *[Literal] or *[Call].
type Expr interface {
	// Type returns the type of the values.
	Type() *schema.Type
	expr()
}

// Column is a column of the schema, by name.
type Column struct {
	Name string
	T    schema.Type
}

// Literal is a constant. Value is nil for null, else by the kind of T:
//
//	Bool bool, Int32 int32, Int64 int64, Uint64 uint64, Float64 float64, Decimal decimal128.Num (scaled by T.Scale),
//	String string, Binary []byte, Date arrow.Date32, Timestamp arrow.Timestamp (microseconds), Interval arrow.MonthDayNanoInterval
//
// Lists, structs and maps have no literals; a list of constants is several literals.
type Literal struct {
	T     schema.Type
	Value any
}

// Call applies an operator or a function.
type Call struct {
	Op   Op
	Args []Expr
	T    schema.Type
	// Detail is the constant part of the operation that is not an argument, see the table of operators: a *regexp.Regexp, a
	// *Pattern, a string or an int.
	Detail any
}

// Type returns the type of the column.
func (c *Column) Type() *schema.Type { return &c.T }

// Type returns the type of the constant.
func (l *Literal) Type() *schema.Type { return &l.T }

// Type returns the type of the result.
func (c *Call) Type() *schema.Type { return &c.T }

func (*Column) expr()  {}
func (*Literal) expr() {}
func (*Call) expr()    {}

// Columns calls yield for each occurrence of a column in the expression.
func Columns(e Expr, yield func(*Column)) {
	switch e := e.(type) {
	case *Column:
		yield(e)
	case *Call:
		for _, a := range e.Args {
			Columns(a, yield)
		}
	}
}

// Conjuncts returns the terms of the top-level AND of e, or e itself if it is not an AND. It returns none for nil.
func Conjuncts(e Expr) []Expr {
	if e == nil {
		return nil
	}
	if c, ok := e.(*Call); ok && c.Op == And {
		var terms []Expr
		for _, a := range c.Args {
			terms = append(terms, Conjuncts(a)...)
		}
		return terms
	}
	return []Expr{e}
}
