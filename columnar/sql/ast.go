package sql

// Select is a query.
type Select struct {
	Distinct bool
	Items    []Item
	From     From
	Where    Expr // nil means all rows
	GroupBy  []Expr
	Having   Expr // nil means all groups
	OrderBy  []Order
	Limit    int64 // -1 means no limit
	Offset   int64 // rows left out before the first

	queryText
}

// Show asks for what can be queried: the tables, or the columns of one.
type Show struct {
	// Category is the table whose columns are shown; empty means that the tables are shown.
	Category string
}

// Predicate is a condition without an enclosing query.
type Predicate struct {
	Where Expr

	queryText
}

// Item is an element of the SELECT list.
type Item struct {
	At    int
	Star  bool // *; then Expr is nil
	Expr  Expr
	Alias string // empty if there is none
}

// From names the source of a query.
type From struct {
	// Category is the category's name. Dotted identifiers are one name.
	Category string
	Alias    string // empty if there is none
}

// Order is an element of ORDER BY.
type Order struct {
	Expr Expr
	Desc bool
	// Nulls says where nulls sort. By default they sort above all other values.
	Nulls Nulls
}

// Nulls is the position of nulls in ORDER BY.
type Nulls uint8

// Positions of nulls.
const (
	NullsDefault Nulls = iota
	NullsFirst
	NullsLast
)

// Expr is an expression: a pointer to one of the types below.
type Expr interface {
	// Pos returns the byte offset for errors: the start of an operand, otherwise the operator.
	Pos() int
	node() *Node
}

// Node is the part that all expressions have in common.
type Node struct {
	At     int
	height int // the number of levels below
}

// Pos returns the position of the expression.
func (n *Node) Pos() int { return n.At }

func (n *Node) node() *Node { return n }

type (
	// Name is a column, or a field of one: a, a.b, t.a.
	Name struct {
		Node
		Parts []string
	}
	// Number is a number without a sign, as written, without underscores.
	Number struct {
		Node
		Text string
	}
	// String is a text constant whose type depends on its context.
	String struct {
		Node
		Value string
	}
	// Bool is TRUE or FALSE.
	Bool struct {
		Node
		Value bool
	}
	// Null is NULL.
	Null struct{ Node }
	// Typed is a constant with a type: DATE '2024-02-03'.
	Typed struct {
		Node
		Type  Type
		Value string
	}
	// Logic is AND or OR of two or more terms.
	Logic struct {
		Node
		Or    bool
		Terms []Expr
	}
	// Unary is NOT, - or + before an operand.
	Unary struct {
		Node
		Op UnaryOp
		X  Expr
	}
	// Binary is an operator between operands.
	Binary struct {
		Node
		Op   BinaryOp
		L, R Expr
	}
	// In is X [NOT] IN (List).
	In struct {
		Node
		X    Expr
		Not  bool
		List []Expr
	}
	// Between is X [NOT] BETWEEN [SYMMETRIC] Low AND High.
	Between struct {
		Node
		X              Expr
		Not, Symmetric bool
		Low, High      Expr
	}
	// Like is X [NOT] LIKE Pattern [ESCAPE Escape], ILIKE with Fold.
	Like struct {
		Node
		X         Expr
		Not, Fold bool
		Pattern   Expr
		Escape    Expr // nil means the default
	}
	// Is is X IS [NOT] NULL, TRUE, FALSE or UNKNOWN.
	Is struct {
		Node
		X    Expr
		Not  bool
		What IsWhat
	}
	// Any is X = ANY (List).
	Any struct {
		Node
		X, List Expr
	}
	// Case is a CASE. If Operand is set, it is compared with each When.
	Case struct {
		Node
		Operand Expr // nil for the searched form
		Whens   []When
		Else    Expr // nil means null
	}
	// Cast is CAST (X AS Type) or X::Type.
	Cast struct {
		Node
		X    Expr
		Type Type
	}
	// Call is a function call. Functions with special syntax have their arguments in the order of that syntax: extract (field, x),
	// position (what, in), substring (x, from, for).
	Call struct {
		Node
		Func     string
		Star     bool // count(*)
		Distinct bool
		Args     []Expr
		Filter   Expr // FILTER (WHERE ...); nil if there is none
	}
	// Field is (X).Name.
	Field struct {
		Node
		X    Expr
		Name string
	}
	// Index is X[I]: an element of a list or a value of a map.
	Index struct {
		Node
		X, I Expr
	}
)

// When is a branch of a CASE.
type When struct{ Cond, Then Expr }

// Type is the name of a type in CAST.
type Type struct {
	// Name is the name in PostgreSQL: boolean, integer, bigint, double precision, numeric, text, bytea, date, timestamptz, interval;
	// and uint64.
	Name string
	// Precision and Scale are those of numeric, or -1 if not given.
	Precision, Scale int
}

// UnaryOp is a prefix operator.
type UnaryOp uint8

// Prefix operators.
const (
	Not UnaryOp = iota + 1
	Minus
	Plus
)

// BinaryOp is an infix operator.
type BinaryOp uint8

// Infix operators.
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
	operatorCount // number of operators plus one
)

var operatorTexts = [operatorCount]string{
	Eq: "=", Ne: "<>", Lt: "<", Le: "<=", Gt: ">", Ge: ">=", IsDistinct: "IS DISTINCT FROM", IsNotDistinct: "IS NOT DISTINCT FROM",
	Concat: "||", Match: "~", MatchFold: "~*", NotMatch: "!~", NotMatchFold: "!~*", Add: "+", Sub: "-", Mul: "*", Div: "/", Mod: "%",
}

// String returns the operator as written in SQL.
func (o BinaryOp) String() string { return operatorTexts[o] }

// IsWhat is the operand of IS.
type IsWhat uint8

// Operands of IS.
const (
	IsNull IsWhat = iota
	IsTrue
	IsFalse
	IsUnknown
)

// String returns the operand as written in SQL.
func (w IsWhat) String() string {
	return [...]string{IsNull: "NULL", IsTrue: "TRUE", IsFalse: "FALSE", IsUnknown: "UNKNOWN"}[w]
}
