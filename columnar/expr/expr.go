package expr

import "scribe/columnar/schema"

// Expr is a bound expression: *[Column], *[Literal] or *[Call].
type Expr interface {
	// Type is the type of the values.
	Type() *schema.Type
	expr()
}

// Column is the value of a column of the schema, by its name.
type Column struct {
	Name string
	T    schema.Type
}

// Literal is a constant. Value is nil for null, else by the kind of T:
//
//	Bool bool, Int32 int32, Int64 int64, Uint64 uint64, Float64 float64, Decimal decimal128.Num (scaled by T.Scale),
//	String string, Binary []byte, Date arrow.Date32, Timestamp arrow.Timestamp (microseconds), Interval arrow.MonthDayNanoInterval
//
// Literals of lists, structs and maps are not there; a list of constants is several literals.
type Literal struct {
	T     schema.Type
	Value any
}

// Call applies an operator or a function.
type Call struct {
	Op   Op
	Args []Expr
	T    schema.Type
	// Detail is what is constant in the operation and no value; see the operators. A *regexp.Regexp, a *Pattern, a string or an int.
	Detail any
}

// Type is the type of the column.
func (c *Column) Type() *schema.Type { return &c.T }

// Type is the type of the constant.
func (l *Literal) Type() *schema.Type { return &l.T }

// Type is the type of the result.
func (c *Call) Type() *schema.Type { return &c.T }

func (*Column) expr()  {}
func (*Literal) expr() {}
func (*Call) expr()    {}

// Op is an operator or a function. a, b, c are the arguments in their order. Unless said otherwise a null argument makes the result null.
type Op uint8

// Operators.
const (
	// And, Or: two or more bools, Kleene logic. Not: one bool.
	And Op = iota + 1
	Or
	Not
	// Comparisons of a and b, which have the same type, since package plan casts both to the one that they have in common: bool, numbers, strings and binaries bytewise,
	// dates, timestamps, intervals. NaN equals itself and is above all other numbers, -0 equals 0, as in PostgreSQL.
	Eq
	Ne
	Lt
	Le
	Gt
	Ge
	// IsDistinct, IsNotDistinct: comparisons that take null as a value; never null.
	IsDistinct
	IsNotDistinct
	// IsNull, IsNotNull of any type; IsTrue, IsNotTrue, IsFalse, IsNotFalse of a bool; never null.
	IsNull
	IsNotNull
	IsTrue
	IsNotTrue
	IsFalse
	IsNotFalse
	// In: a is one of the literals that follow, all of a's type. Null if a is null, or if none is equal and one is null. There are up to
	// 10,000 of them, in the order of the text.
	In
	// Like, ILike: string (or for Like binary) a matches Detail, a *Pattern. Match: string a contains a match of Detail, a *regexp.Regexp.
	// With a pattern that is no constant, Like, ILike and Match have it as b and no Detail; the escape character is then the backslash, and
	// a pattern that can't be read makes the result null, counted. Of a binary, _ stands for one byte.
	Like
	ILike
	Match
	// Case: condition, value, condition, value, ..., and the value without a condition last. The value behind the first condition that is
	// true; all values have the result's type. Coalesce: the first that is not null. NullIf: a, or null where a equals b.
	Case
	Coalesce
	NullIf
	// Add, Sub, Mul, Div, Mod, Neg: numbers of one type, which the result has; integers wrap never: out of range is null, and so is a zero
	// divisor. Div of integers truncates towards zero, Mod has the sign of a. Decimals: Add, Sub, Mod as other numbers; the arguments of
	// Mul and Div have decimal types of their own, and the exact result is rounded (half away from zero) to the result's scale. A decimal
	// of more digits than its precision is out of range.
	// Add, Sub also: timestamp and interval (a timestamp), date and int32 (a date), intervals (each part by itself); Sub: timestamp -
	// timestamp (interval of days and time), date - date (int32 of days). Mul, Div: interval a and float64 b. Neg: intervals.
	Add
	Sub
	Mul
	Div
	Mod
	Neg
	Abs   // number
	Floor // float64, decimal
	Ceil  // float64, decimal
	Round // float64 (half to even); decimal (half away from zero), to the result's scale
	// Cast to T. What does not fit is null. From string: PostgreSQL's input syntax of the type; to string: its output syntax.
	Cast
	// Concat: strings; with Detail "skip" null arguments are left out and the result is never null (concat()), else || .
	Concat
	Lower      // string; ASCII and Unicode simple case mapping
	Upper      // string
	Length     // characters of a string, bytes of a binary: int32
	Substring  // string a from character b (int32, from 1, may be below), optionally c characters (int32, negative is null)
	Position   // int32: the character at which string b begins in string a, from 1; 0 if it does not
	StartsWith // string a begins with string b: bool
	Trim       // string a without characters of b (string) at the ends that Detail says: "both", "leading", "trailing"
	Replace    // string a with every b replaced by c
	SplitPart  // string a cut at b, part c (int32, from 1, negative from the end); empty if there is none
	// Extract: Detail (year, month, day, hour, minute, second, millisecond, microsecond, dow, isodow, doy, week, isoyear, quarter, epoch,
	// century, decade, millennium) of a date, timestamp or interval: float64.
	Extract
	// DateTrunc: timestamp a cut to Detail (microseconds, milliseconds, second, minute, hour, day, week, month, quarter, year, decade,
	// century, millennium): timestamp. DateBin: timestamp b in bins of interval a counted from timestamp c.
	DateTrunc
	DateBin
	// StructField: Detail (int) is the index of the field of struct a. ListElement: element b (int32 or int64, from 1) of list a, null if
	// there is none. MapValue: the value of string b in map a, null if there is none; the last of equal keys.
	StructField
	ListElement
	MapValue
	// ListLength: elements of list a: int32, 0 of an empty list. ListContains: list b has an element equal to a, with SQL's = ANY(b): else
	// null if a is null or b has null elements; false for an empty b whatever a is.
	ListLength
	ListContains
	// Greatest, Least: one or more values of the result's type, ordered as Lt does; nulls are left out, null if all are.
	Greatest
	Least
	// ToTimestamp: float64 seconds since 1970, rounded to microseconds (half to even): timestamp.
	ToTimestamp
)

// Columns calls yield with each column that the expression names, as often as it does.
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

// Conjuncts returns the terms of an AND at the top of e, e itself if there is none; none for nil.
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
