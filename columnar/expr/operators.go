package expr

import (
	"fmt"
	"math/bits"

	"scribe/columnar/schema"
)

// Op is an operator or a function. Its [Operator] describes it; package vector has its evaluator.
//
// A new one needs a name here, an entry in the table below, and an evaluator in the table of package vector. Packages zone and
// transcode have tables of their own for the few operators about which they know more.
type Op uint8

// Operators and functions.
const (
	And Op = iota + 1
	Or
	Not
	Eq
	Ne
	Lt
	Le
	Gt
	Ge
	IsDistinct
	IsNotDistinct
	IsNull
	IsNotNull
	IsTrue
	IsNotTrue
	IsFalse
	IsNotFalse
	In
	Like
	ILike
	Match
	Case
	Coalesce
	NullIf
	Greatest
	Least
	Add
	Sub
	Mul
	Div
	Mod
	Neg
	Abs
	Floor
	Ceil
	Round
	Cast
	Concat
	Lower
	Upper
	Length
	Substring
	Position
	StartsWith
	Trim
	Replace
	SplitPart
	Extract
	DateTrunc
	DateBin
	ToTimestamp
	StructField
	ListElement
	MapValue
	ListLength
	ListContains
)

// Operator describes an operator or a function. Below, a, b and c are its arguments.
type Operator struct {
	// Name is the written name; Form is its syntax.
	Name string
	Form Form
	// SQL is the query function that is exactly this operation, with its arguments converted to Args. If it is empty, package plan
	// makes the operation from other syntax.
	SQL string
	// Args are the kinds of the arguments. The last Optional of them may be omitted. With Many, the last may be repeated or omitted.
	Args     []Kinds
	Optional int
	Many     bool
	// Same means that all arguments have the same type.
	Same bool
	// Result is the kind of the result; 0 if it depends on the arguments.
	Result schema.Kind
	// Cost is the approximate cost per row without the arguments' cost; 1 is a comparison of numbers. DearCost is the cost for
	// texts, decimals and intervals.
	Cost, DearCost int
	// Nulls is the effect of null arguments on the result.
	Nulls NullRule
	// Decides is the term value that decides a junction: False for AND, True for OR. It is 0 for other operators.
	Decides Truths
	// Tests are the values of a for which a test (IS ...) is true. It is 0 for other operators.
	Tests Truths
	// Orders are the orders of a and b for which a comparison is true. It is 0 for other operators.
	Orders Orders
	// Distinct means that a comparison treats null as a value, below all others, and is never null.
	Distinct bool
	// Opposite is the operator that is true where this comparison or test is false, and null where it is null.
	Opposite Op
	// Mirror is the comparison with swapped arguments.
	Mirror Op
}

// Form is the syntax of an operator.
type Form uint8

// Forms of operators.
const (
	Function Form = iota // name(a, b)
	Infix                // a name b
	Postfix              // a name
	Special              // has special syntax
)

// NullRule is the effect of null arguments on the result.
type NullRule uint8

// Rules for null arguments.
const (
	NullIfAny NullRule = iota // the result is null if an argument is
	NullIfAll                 // the result is null if all arguments are
	NullOwn                   // the operator decides
)

// Kinds is a set of kinds of types: bit k is the [schema.Kind] k.
type Kinds uint32

// Sets of kinds.
const (
	Bools      = 1 << Kinds(schema.Bool)
	Ints       = 1 << Kinds(schema.Int32)
	Floats     = 1 << Kinds(schema.Float64)
	Texts      = 1 << Kinds(schema.String)
	Bytes      = Texts | 1<<Kinds(schema.Binary)
	Times      = 1 << Kinds(schema.Timestamp)
	Intervals  = 1 << Kinds(schema.Interval)
	Indexes    = Ints | 1<<Kinds(schema.Int64)
	Lists      = 1 << Kinds(schema.List)
	Structs    = 1 << Kinds(schema.Struct)
	Maps       = 1 << Kinds(schema.Map)
	AnyKind    = 1<<Kinds(schema.Map+1) - 2
	Comparable = AnyKind &^ (Lists | Structs | Maps)
)

// Has reports whether a kind is in the set.
func (k Kinds) Has(kind schema.Kind) bool { return k>>kind&1 != 0 }

// Only returns the single kind in the set. nested reports whether it is a list, struct or map, to which nothing is converted.
func (k Kinds) Only() (kind schema.Kind, nested bool) {
	return schema.Kind(bits.TrailingZeros32(uint32(k))), k&^Comparable != 0
}

// By default a null argument makes the result null.
var operators = [...]Operator{
	// Kleene logic of two or more bools.
	And: {Name: "AND", Form: Infix, Args: []Kinds{Bools}, Many: true, Result: schema.Bool, Nulls: NullOwn, Decides: False},
	Or:  {Name: "OR", Form: Infix, Args: []Kinds{Bools}, Many: true, Result: schema.Bool, Nulls: NullOwn, Decides: True},
	Not: {Name: "NOT", Form: Special, Args: []Kinds{Bools}, Result: schema.Bool},

	// Comparisons. Strings and binaries compare bytewise. NaN equals itself and is above all other numbers; -0 equals 0, as in
	// PostgreSQL.
	Eq: comparisonOf("=", Equal, Ne, Eq),
	Ne: comparisonOf("<>", Less|Greater, Eq, Ne),
	Lt: comparisonOf("<", Less, Ge, Gt),
	Le: comparisonOf("<=", Less|Equal, Gt, Ge),
	Gt: comparisonOf(">", Greater, Le, Lt),
	Ge: comparisonOf(">=", Greater|Equal, Lt, Le),

	IsDistinct:    distinctOf("IS DISTINCT FROM", Less|Greater, IsNotDistinct, IsDistinct),
	IsNotDistinct: distinctOf("IS NOT DISTINCT FROM", Equal, IsDistinct, IsNotDistinct),

	IsNull:     testOf("IS NULL", AnyKind, Null, IsNotNull),
	IsNotNull:  testOf("IS NOT NULL", AnyKind, True|False, IsNull),
	IsTrue:     testOf("IS TRUE", Bools, True, IsNotTrue),
	IsNotTrue:  testOf("IS NOT TRUE", Bools, False|Null, IsTrue),
	IsFalse:    testOf("IS FALSE", Bools, False, IsNotFalse),
	IsNotFalse: testOf("IS NOT FALSE", Bools, True|Null, IsFalse),

	// a is one of the literals that follow. The result is null if a is null, or if none is equal and one is null. There are up to
	// 10,000 literals, in the order of the text.
	In: {Name: "IN", Form: Special, Args: []Kinds{Comparable, Comparable}, Many: true, Same: true, Result: schema.Bool, Cost: 1, DearCost: 4, Nulls: NullOwn},
	// Like: a matches Detail, a *Pattern. Match: a contains a match of Detail, a *regexp.Regexp. A pattern that is not a constant is
	// b, without Detail. Then the escape character is the backslash, and an invalid pattern makes the result null, counted. In a
	// binary, _ matches one byte.
	Like:  {Name: "LIKE", Form: Infix, Args: []Kinds{Bytes, Bytes}, Optional: 1, Same: true, Result: schema.Bool, Cost: 10},
	ILike: {Name: "ILIKE", Form: Infix, Args: []Kinds{Bytes, Bytes}, Optional: 1, Same: true, Result: schema.Bool, Cost: 10},
	Match: {Name: "regexp_like", Args: []Kinds{Texts, Texts}, Optional: 1, Result: schema.Bool, Cost: 100},

	// Arguments: condition, value, condition, value, ..., and a last value without a condition. The result is the value after the
	// first true condition.
	Case: {Name: "case", Args: []Kinds{AnyKind}, Many: true, Cost: 2, Nulls: NullOwn},
	// Coalesce: the first argument that is not null. NullIf: a, or null if a equals b. Greatest, Least: by the order of Lt, ignoring
	// nulls.
	Coalesce: {Name: "coalesce", Args: []Kinds{AnyKind}, Many: true, Same: true, Cost: 2, Nulls: NullIfAll},
	NullIf:   {Name: "nullif", Args: []Kinds{Comparable, Comparable}, Same: true, Cost: 1, DearCost: 4, Nulls: NullOwn},
	Greatest: {Name: "greatest", Args: []Kinds{Comparable}, Many: true, Same: true, Cost: 10, Nulls: NullIfAll},
	Least:    {Name: "least", Args: []Kinds{Comparable}, Many: true, Same: true, Cost: 10, Nulls: NullIfAll},

	// Arithmetic on numbers of one type, which is also the result's. Integers never wrap: out of range is null, and so is a zero
	// divisor. Div of integers truncates towards zero; Mod has the sign of a. Decimals: Add, Sub, Mod as other numbers; the
	// arguments of Mul and Div have decimal types of their own, and the exact result is rounded (half away from zero) to the
	// result's scale. A decimal with more digits than its precision is out of range.
	// Add, Sub also: timestamp and interval (a timestamp), date and int32 (a date), intervals (each part by itself); Sub: timestamp
	// - timestamp (interval of days and time), date - date (int32 of days). Mul, Div: interval a and float64 b. Neg: intervals.
	// Floor, Ceil: float64, decimal. Round: float64 (half to even); decimal (half away from zero), to the result's scale.
	Add:   arithmeticOf("+"),
	Sub:   arithmeticOf("-"),
	Mul:   arithmeticOf("*"),
	Div:   arithmeticOf("/"),
	Mod:   arithmeticOf("%"),
	Neg:   {Name: "-", Args: []Kinds{Comparable}, Cost: 2},
	Abs:   {Name: "abs", Args: []Kinds{Comparable}, Cost: 2},
	Floor: {Name: "floor", Args: []Kinds{Comparable}, Cost: 2},
	Ceil:  {Name: "ceil", Args: []Kinds{Comparable}, Cost: 2},
	Round: {Name: "round", Args: []Kinds{Comparable}, Cost: 2},

	// Converts to the call's type. A value that does not fit becomes null. From string: PostgreSQL's input syntax of the type. To
	// string: its output syntax.
	Cast: {Name: "cast", Form: Special, Args: []Kinds{AnyKind}, Cost: 10},

	// With Detail "skip" null arguments are skipped and the result is never null (concat()), otherwise ||.
	Concat: {Name: "concat", Args: []Kinds{Texts}, Many: true, Result: schema.String, Cost: 10},
	// ASCII and Unicode simple case mapping.
	Lower: {Name: "lower", SQL: "lower", Args: []Kinds{Texts}, Result: schema.String, Cost: 10},
	Upper: {Name: "upper", SQL: "upper", Args: []Kinds{Texts}, Result: schema.String, Cost: 10},
	// Number of characters of a string, or of bytes of a binary.
	Length: {Name: "length", Args: []Kinds{Bytes}, Result: schema.Int32, Cost: 10},
	// Part of a from character b on (from 1, may be below), optionally at most c characters (negative is null).
	Substring: {Name: "substring", SQL: "substring", Args: []Kinds{Texts, Ints, Ints}, Optional: 1, Result: schema.String, Cost: 10},
	// Position of the first occurrence of b in a in characters, from 1; 0 if there is none.
	Position:   {Name: "position", SQL: "strpos", Args: []Kinds{Texts, Texts}, Result: schema.Int32, Cost: 10},
	StartsWith: {Name: "starts_with", SQL: "starts_with", Args: []Kinds{Texts, Texts}, Result: schema.Bool, Cost: 2},
	// a without leading or trailing characters of b; Detail is "both", "leading" or "trailing".
	Trim: {Name: "trim", Args: []Kinds{Texts, Texts}, Result: schema.String, Cost: 10},
	// a with every b replaced by c.
	Replace: {Name: "replace", SQL: "replace", Args: []Kinds{Texts, Texts, Texts}, Result: schema.String, Cost: 10},
	// Part c of a split at b (from 1, negative from the end); empty if there is none.
	SplitPart: {Name: "split_part", SQL: "split_part", Args: []Kinds{Texts, Texts, Ints}, Result: schema.String, Cost: 10},

	// The field Detail of a date, timestamp or interval: year, month, day, hour, minute, second, millisecond, microsecond, dow,
	// isodow, doy, week, isoyear, quarter, epoch, century, decade, millennium.
	Extract: {Name: "extract", Args: []Kinds{Comparable}, Result: schema.Float64, Cost: 10},
	// a truncated to Detail (microseconds, milliseconds, second, minute, hour, day, week, month, quarter, year, decade, century,
	// millennium).
	DateTrunc: {Name: "date_trunc", Args: []Kinds{Times}, Result: schema.Timestamp, Cost: 10},
	// The start of b's bin, for bins of interval a counted from c.
	DateBin: {Name: "date_bin", SQL: "date_bin", Args: []Kinds{Intervals, Times, Times}, Result: schema.Timestamp, Cost: 10},
	// Seconds since 1970, rounded to microseconds (half to even).
	ToTimestamp: {Name: "to_timestamp", SQL: "to_timestamp", Args: []Kinds{Floats}, Result: schema.Timestamp, Cost: 10},

	// The field of a with the index Detail, an int.
	StructField: {Name: "field", Args: []Kinds{Structs}, Cost: 2},
	// ListElement: element b (from 1) of a, null if there is none. MapValue: the value of key b, null if there is none; the last of
	// equal keys.
	ListElement: {Name: "element", Args: []Kinds{Lists, Indexes}, Cost: 10},
	MapValue:    {Name: "value", Args: []Kinds{Maps, Texts}, Cost: 10},
	// Number of elements of a; 0 for an empty list.
	ListLength: {Name: "cardinality", SQL: "cardinality", Args: []Kinds{Lists}, Result: schema.Int32, Cost: 2},
	// b contains an element equal to a, as in SQL's = ANY(b). Otherwise null if a is null or b has null elements. False for an empty
	// b whatever a is.
	ListContains: {Name: "contains", Args: []Kinds{Comparable, Lists}, Result: schema.Bool, Cost: 10, Nulls: NullOwn},
}

func comparisonOf(name string, orders Orders, opposite, mirror Op) Operator {
	return Operator{
		Name: name, Form: Infix, Args: []Kinds{Comparable, Comparable}, Same: true, Result: schema.Bool, Cost: 1, DearCost: 4,
		Orders: orders, Opposite: opposite, Mirror: mirror,
	}
}

func distinctOf(name string, orders Orders, opposite, mirror Op) Operator {
	o := comparisonOf(name, orders, opposite, mirror)
	o.Distinct, o.Nulls = true, NullOwn
	return o
}

func testOf(name string, of Kinds, truths Truths, opposite Op) Operator {
	return Operator{Name: name, Form: Postfix, Args: []Kinds{of}, Result: schema.Bool, Nulls: NullOwn, Tests: truths, Opposite: opposite}
}

func arithmeticOf(name string) Operator {
	return Operator{Name: name, Form: Infix, Args: []Kinds{Comparable, Comparable}, Cost: 2}
}

// Operators is the number of operators, including those without an entry.
const Operators = len(operators)

// Info returns the description of an operator. It is empty for an invalid operator.
func (o Op) Info() *Operator {
	if int(o) < len(operators) {
		return &operators[o]
	}
	return &operators[0]
}

// String returns the operator's name.
func (o Op) String() string { return o.Info().Name }

// Arity returns the minimum and maximum number of arguments; most is -1 for any number.
func (o *Operator) Arity() (least, most int) {
	if o.Many {
		return max(len(o.Args)-1, 1), -1
	}
	return len(o.Args) - o.Optional, len(o.Args)
}

// Check returns an error if the call's arguments do not match its operator.
func (c *Call) Check() error {
	o := c.Op.Info()
	if least, most := o.Arity(); len(c.Args) < least || most >= 0 && len(c.Args) > most || o.Name == "" {
		return fmt.Errorf("operator %d (%s) with %d arguments", uint8(c.Op), o.Name, len(c.Args))
	}
	for i, a := range c.Args {
		if t := a.Type(); !o.Args[min(i, len(o.Args)-1)].Has(t.Kind) || o.Same && !t.Equal(c.Args[0].Type()) {
			return fmt.Errorf("operator %s of %s as argument %d", o.Name, t, i+1)
		}
	}
	if o.Result != schema.Invalid && c.T.Kind != o.Result {
		return fmt.Errorf("operator %s as %s", o.Name, &c.T)
	}
	return nil
}

// Cost returns the cost of a call per row without its arguments' cost, see [Operator].
func (c *Call) Cost() int {
	o := c.Op.Info()
	switch c.Args[0].Type().Kind {
	case schema.String, schema.Binary, schema.Decimal, schema.Interval:
		return max(o.Cost, o.DearCost)
	default:
		return o.Cost
	}
}

// NullRule returns the effect of null arguments on the call's result.
func (c *Call) NullRule() NullRule {
	if c.Op == Concat && c.Detail != nil {
		return NullOwn
	}
	return c.Op.Info().Nulls
}
