package sql

// Select is a query.
type Select struct {
	Items   []Item
	From    From
	Where   Expr // nil: all
	GroupBy []Expr
	Having  Expr // nil: all
	OrderBy []Order
	Limit   int64 // -1: none
	LimitAt int   // where the number is

	text string
}

// Predicate is a condition without a query around it.
type Predicate struct {
	Where Expr

	text string
}

// Item is an element of the SELECT list.
type Item struct {
	At    int
	Star  bool // *; Expr is nil
	Expr  Expr
	Alias string // empty: none
}

// From says what is read.
type From struct {
	At int
	// Category is the category's name; dotted identifiers are one name.
	Category string
	Alias    string // empty: none
}

// Order is an element of ORDER BY.
type Order struct {
	Expr Expr
	Desc bool
	// Nulls says where nulls are; nulls are above everything else by default.
	Nulls Nulls
}

// Nulls is where ORDER BY has nulls.
type Nulls uint8

// Places of nulls.
const (
	NullsDefault Nulls = iota
	NullsFirst
	NullsLast
)

// Expr is an expression: one of the types below, as a pointer. Pos is the byte of the text that errors point at: the beginning of an
// operand, the operator otherwise.
type Expr interface{ Pos() int }

type (
	// Name is a column, or a field of one: a, a.b, t.a.
	Name struct {
		At    int
		Parts []string
	}
	// Number is a number without a sign, as it was written, without underscores.
	Number struct {
		At   int
		Text string
	}
	// String is a text whose type its surroundings decide.
	String struct {
		At    int
		Value string
	}
	// Bool is TRUE or FALSE.
	Bool struct {
		At    int
		Value bool
	}
	// Null is NULL.
	Null struct{ At int }
	// Typed is a constant of a type: DATE '2024-02-03'.
	Typed struct {
		At    int
		Type  Type
		Value string
	}
	// Logic is AND or OR of two or more terms.
	Logic struct {
		At    int
		Or    bool
		Terms []Expr
	}
	// Unary is NOT, - or + before an operand.
	Unary struct {
		At int
		Op UnaryOp
		X  Expr
	}
	// Binary is an operator between operands.
	Binary struct {
		At   int
		Op   BinaryOp
		L, R Expr
	}
	// In is X [NOT] IN (List).
	In struct {
		At   int
		X    Expr
		Not  bool
		List []Expr
	}
	// Between is X [NOT] BETWEEN [SYMMETRIC] Low AND High.
	Between struct {
		At             int
		X              Expr
		Not, Symmetric bool
		Low, High      Expr
	}
	// Like is X [NOT] LIKE Pattern [ESCAPE Escape], ILIKE with Fold.
	Like struct {
		At        int
		X         Expr
		Not, Fold bool
		Pattern   Expr
		Escape    Expr // nil: the default
	}
	// Is is X IS [NOT] NULL, TRUE, FALSE or UNKNOWN.
	Is struct {
		At   int
		X    Expr
		Not  bool
		What IsWhat
	}
	// Any is X = ANY (List).
	Any struct {
		At      int
		X, List Expr
	}
	// Case is a CASE, with Operand if that is compared with each When.
	Case struct {
		At      int
		Operand Expr // nil: the searched form
		Whens   []When
		Else    Expr // nil: null
	}
	// Cast is CAST (X AS Type) or X::Type.
	Cast struct {
		At   int
		X    Expr
		Type Type
	}
	// Call is a function's. Functions with a syntax of their own have their arguments in the order of that: extract (field, x), position
	// (what, in), substring (x, from, for).
	Call struct {
		At       int
		Func     string
		Star     bool // count(*)
		Distinct bool
		Args     []Expr
		Filter   Expr // FILTER (WHERE ...); nil: none
	}
	// Field is (X).Name.
	Field struct {
		At   int
		X    Expr
		Name string
	}
	// Index is X[I]: an element of a list or a value of a map.
	Index struct {
		At   int
		X, I Expr
	}
)

// When is a branch of a CASE.
type When struct{ Cond, Then Expr }

// Type is a type's name in CAST.
type Type struct {
	At int
	// Name is PostgreSQL's: boolean, integer, bigint, double precision, numeric, text, bytea, date, timestamptz, interval; and uint64.
	Name string
	// Precision and Scale of numeric, -1 if there is none.
	Precision, Scale int
}

// UnaryOp is an operator before its operand.
type UnaryOp uint8

// Operators before their operand.
const (
	Not UnaryOp = iota + 1
	Minus
	Plus
)

// BinaryOp is an operator between its operands.
type BinaryOp uint8

// Operators between their operands.
const (
	Eq BinaryOp = iota + 1
	Ne
	Lt
	Le
	Gt
	Ge
	IsDistinct
	IsNotDistinct
	Concat        // ||
	Match         // ~
	MatchFold     // ~*
	NotMatch      // !~
	NotMatchFold  // !~*
	Add           // +
	Sub           // -
	Mul           // *
	Div           // /
	Mod           // %
	operatorCount // of operators, plus one
)

var operatorTexts = [operatorCount]string{
	Eq: "=", Ne: "<>", Lt: "<", Le: "<=", Gt: ">", Ge: ">=", IsDistinct: "IS DISTINCT FROM", IsNotDistinct: "IS NOT DISTINCT FROM",
	Concat: "||", Match: "~", MatchFold: "~*", NotMatch: "!~", NotMatchFold: "!~*", Add: "+", Sub: "-", Mul: "*", Div: "/", Mod: "%",
}

// String returns the operator as it is written.
func (o BinaryOp) String() string { return operatorTexts[o] }

// IsWhat is what IS asks for.
type IsWhat uint8

// What IS asks for.
const (
	IsNull IsWhat = iota
	IsTrue
	IsFalse
	IsUnknown
)

var isTexts = [...]string{IsNull: "NULL", IsTrue: "TRUE", IsFalse: "FALSE", IsUnknown: "UNKNOWN"}

// Pos returns where the expression is.
func (e *Name) Pos() int { return e.At }

// Pos returns where the expression is.
func (e *Number) Pos() int { return e.At }

// Pos returns where the expression is.
func (e *String) Pos() int { return e.At }

// Pos returns where the expression is.
func (e *Bool) Pos() int { return e.At }

// Pos returns where the expression is.
func (e *Null) Pos() int { return e.At }

// Pos returns where the expression is.
func (e *Typed) Pos() int { return e.At }

// Pos returns where the expression is.
func (e *Logic) Pos() int { return e.At }

// Pos returns where the expression is.
func (e *Unary) Pos() int { return e.At }

// Pos returns where the expression is.
func (e *Binary) Pos() int { return e.At }

// Pos returns where the expression is.
func (e *In) Pos() int { return e.At }

// Pos returns where the expression is.
func (e *Between) Pos() int { return e.At }

// Pos returns where the expression is.
func (e *Like) Pos() int { return e.At }

// Pos returns where the expression is.
func (e *Is) Pos() int { return e.At }

// Pos returns where the expression is.
func (e *Any) Pos() int { return e.At }

// Pos returns where the expression is.
func (e *Case) Pos() int { return e.At }

// Pos returns where the expression is.
func (e *Cast) Pos() int { return e.At }

// Pos returns where the expression is.
func (e *Call) Pos() int { return e.At }

// Pos returns where the expression is.
func (e *Field) Pos() int { return e.At }

// Pos returns where the expression is.
func (e *Index) Pos() int { return e.At }
