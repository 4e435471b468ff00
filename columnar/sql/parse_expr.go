package sql

import (
	"strconv"
	"strings"
)

// Precedence of operators, from the one that binds least; PostgreSQL's.
const (
	precOr      = 1
	precAnd     = 2
	precNot     = 3
	precIs      = 4
	precCompare = 5 // does not associate
	precLike    = 6 // IN, BETWEEN, LIKE, ILIKE; does not associate
	precOther   = 7 // || and regular expressions
	precAdd     = 8
	precMul     = 9
	precSign    = 10
	precCast    = 11
	precPrimary = 12
)

var precedences = [operatorCount]int{
	Eq: precCompare, Ne: precCompare, Lt: precCompare, Le: precCompare, Gt: precCompare, Ge: precCompare,
	IsDistinct: precIs, IsNotDistinct: precIs,
	Concat: precOther, Match: precOther, MatchFold: precOther, NotMatch: precOther, NotMatchFold: precOther,
	Add: precAdd, Sub: precAdd, Mul: precMul, Div: precMul, Mod: precMul,
}

// operatorOf returns the operator that a symbol is, 0 for none.
func operatorOf(symbol string) BinaryOp {
	switch symbol {
	case "=":
		return Eq
	case "<>":
		return Ne
	case "<":
		return Lt
	case "<=":
		return Le
	case ">":
		return Gt
	case ">=":
		return Ge
	case "||":
		return Concat
	case "~":
		return Match
	case "~*":
		return MatchFold
	case "!~":
		return NotMatch
	case "!~*":
		return NotMatchFold
	case "+":
		return Add
	case "-":
		return Sub
	case "*":
		return Mul
	case "/":
		return Div
	case "%":
		return Mod
	}
	return 0
}

// node is an expression while it is parsed, with the height of its tree: one for a leaf.
type node struct {
	e      Expr
	height int
}

func leaf(e Expr) node { return node{e, 1} }

// over returns e as a node above others, which e has as its operands.
func (p *parser) over(e Expr, operands ...node) node {
	height := 0
	for _, o := range operands {
		height = max(height, o.height)
	}
	if height >= MaxDepth {
		panic(p.failAt(e.Pos(), "AND, OR, IN and concat() take any number of operands without nesting.",
			"expressions nest deeper than "+strconv.Itoa(MaxDepth)+" levels"))
	}
	return node{e, height + 1}
}

// expr reads an expression.
func (p *parser) expr() Expr {
	return p.nested().e
}

// nested reads an expression within another one.
func (p *parser) nested() node {
	p.enter(p.tok().pos)
	defer p.leave()
	return p.binary(precOr)
}

// binary reads an expression of operators that bind at least as much as prec.
func (p *parser) binary(prec int) node {
	left := p.prefix(prec)
	last := 0 // of an operator that does not associate
	for {
		t := p.tok()
		found := p.infix(t)
		if found < prec || found == 0 {
			return left
		}
		if found == last {
			hint := "operators such as LIKE, IN and BETWEEN need parentheses to be chained"
			if found == precCompare {
				hint = "comparisons can't be chained: write a < b AND b < c"
			}
			panic(p.syntax(hint))
		}
		last = 0
		switch found {
		case precOr, precAnd:
			left = p.logic(left, found)
		case precIs:
			var distinct bool
			if left, distinct = p.is(left); distinct {
				last = found
			}
		case precLike:
			left = p.membership(left)
			last = found
		default:
			if found == precCompare {
				last = found
			}
			left = p.operator(left, t)
		}
	}
}

// infix returns the precedence of the operator that a token begins, 0 for none.
func (p *parser) infix(t *token) int {
	if t.kind == symbol {
		return precedences[operatorOf(t.text)]
	}
	if t.kind != word {
		return 0
	}
	switch t.text {
	case "and":
		return precAnd
	case "or":
		return precOr
	case "is", "isnull", "notnull":
		return precIs
	case "in", "between", "like", "ilike", "similar":
		return precLike
	case "not":
		switch next := p.ahead(1); next.text {
		case "in", "between", "like", "ilike", "similar":
			if next.kind == word {
				return precLike
			}
		}
	}
	return 0
}

// logic reads the terms of an AND or OR. Terms that are one themselves, in parentheses, become terms of this one.
func (p *parser) logic(first node, prec int) node {
	keyword, or := "and", prec == precOr
	if or {
		keyword = "or"
	}
	e := &Logic{At: p.tok().pos, Or: or}
	terms := []node{first}
	for p.word(keyword) {
		terms = append(terms, p.binary(prec+1))
	}
	for i, n := range terms {
		if l, ok := n.e.(*Logic); ok && l.Or == or {
			e.Terms = append(e.Terms, l.Terms...)
			terms[i].height--
		} else {
			e.Terms = append(e.Terms, n.e)
		}
	}
	return p.over(e, terms...)
}

// operator reads an operator of symbols and its right operand.
func (p *parser) operator(left node, t *token) node {
	op := operatorOf(t.text)
	p.i++
	if q := p.tok(); q.kind == word && (q.text == "any" || q.text == "some" || q.text == "all") && p.ahead(1).text == "(" {
		return p.any(left, op, t)
	}
	right := p.binary(precedences[op] + 1)
	return p.over(&Binary{At: t.pos, Op: op, L: left.e, R: right.e}, left, right)
}

// any reads = ANY (list); the current token is ANY.
func (p *parser) any(left node, op BinaryOp, t *token) node {
	if p.isWord("all") || op != Eq {
		panic(p.failAt(t.pos, "Write x = ANY (list), NOT (x = ANY (list)), or x IN (...).", "only = ANY is supported"))
	}
	p.i += 2
	if p.isWord("select") {
		panic(p.failHint("A query is over one category.", "subqueries are not supported"))
	}
	list := p.nested()
	p.expectSymbol(")")
	return p.over(&Any{At: t.pos, X: left.e, List: list.e}, left, list)
}

// is reads IS and what follows, ISNULL and NOTNULL. distinct says that it was a comparison.
func (p *parser) is(left node) (n node, distinct bool) {
	t := p.tok()
	p.i++
	if t.text != "is" {
		return p.over(&Is{At: t.pos, X: left.e, Not: t.text == "notnull"}, left), false
	}
	not := p.word("not")
	e := &Is{At: t.pos, X: left.e, Not: not}
	switch {
	case p.word("null"):
		e.What = IsNull
	case p.word("true"):
		e.What = IsTrue
	case p.word("false"):
		e.What = IsFalse
	case p.word("unknown"):
		e.What = IsUnknown
	case p.word("distinct"):
		p.expectWord("from")
		right := p.binary(precIs + 1)
		op := IsDistinct
		if not {
			op = IsNotDistinct
		}
		return p.over(&Binary{At: t.pos, Op: op, L: left.e, R: right.e}, left, right), true
	default:
		panic(p.syntax("IS is followed by [NOT] NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM"))
	}
	return p.over(e, left), false
}

// membership reads [NOT] IN, BETWEEN, LIKE or ILIKE.
func (p *parser) membership(left node) node {
	at := p.tok().pos
	not := p.word("not")
	t := p.tok()
	p.i++
	switch t.text {
	case "in":
		return p.in(left, at, not)
	case "between":
		return p.between(left, at, not)
	case "similar":
		panic(p.failAt(at, "Use LIKE, or a regular expression with ~.", "SIMILAR TO is not supported"))
	}
	pattern := p.binary(precLike + 1)
	e := &Like{At: at, X: left.e, Not: not, Fold: t.text == "ilike", Pattern: pattern.e}
	if !p.word("escape") {
		return p.over(e, left, pattern)
	}
	escape := p.binary(precLike + 1)
	e.Escape = escape.e
	return p.over(e, left, pattern, escape)
}

func (p *parser) in(left node, at int, not bool) node {
	if !p.isSymbol("(") {
		panic(p.syntax("IN takes a list in parentheses; of a list column write x = ANY (list)"))
	}
	p.i++
	if p.isWord("select") || p.isWord("with") {
		panic(p.failHint("A query is over one category.", "subqueries are not supported"))
	}
	var list []node
	for more := true; more; more = p.symbol(",") {
		if len(list) == MaxList {
			panic(p.failHint("Several IN lists with OR between them are several times as long.", "an IN list has at most "+strconv.Itoa(MaxList)+" elements"))
		}
		list = append(list, p.nested())
	}
	p.expectSymbol(")")
	return p.over(&In{At: at, X: left.e, Not: not, List: expressions(list)}, append(list, left)...)
}

func (p *parser) between(left node, at int, not bool) node {
	e := &Between{At: at, X: left.e, Not: not, Symmetric: p.word("symmetric")}
	if !e.Symmetric {
		p.word("asymmetric")
	}
	low := p.binary(precLike + 1)
	p.expectWord("and")
	high := p.binary(precLike + 1)
	e.Low, e.High = low.e, high.e
	return p.over(e, left, low, high)
}

// prefix reads an operand with the operators before it.
func (p *parser) prefix(prec int) node {
	from := p.i
	for p.isWord("not") {
		if prec > precNot {
			panic(p.syntax("write NOT behind an operator in parentheses"))
		}
		p.i++
	}
	if operators := p.tokens[from:p.i]; len(operators) > 0 {
		return p.wrap(operators, p.binary(precNot+1))
	}
	for p.isSymbol("-") || p.isSymbol("+") {
		p.i++
	}
	operators := p.tokens[from:p.i]
	return p.wrap(operators, p.postfix())
}

// wrap puts operators over an operand, the last one first.
func (p *parser) wrap(operators []token, operand node) node {
	for i := len(operators) - 1; i >= 0; i-- {
		op := Not
		switch operators[i].text {
		case "-":
			op = Minus
		case "+":
			op = Plus
		}
		operand = p.over(&Unary{At: operators[i].pos, Op: op, X: operand.e}, operand)
	}
	return operand
}

// postfix reads an operand with what follows it: ::type, [index] and .field.
func (p *parser) postfix() node {
	from := p.tok()
	n := p.primary()
	_, name := n.e.(*Name)
	element := name || from.kind == symbol && from.text == "(" // may have elements and fields
	for {
		t := p.tok()
		if t.kind != symbol {
			return n
		}
		switch {
		case t.text == "::":
			p.i++
			n = p.over(&Cast{At: t.pos, X: n.e, Type: p.typeName()}, n)
			element = false
		case t.text == "[" && element:
			n = p.index(n)
		case t.text == "." && element:
			p.i++
			f := p.tok()
			if f.kind != word && f.kind != quoted {
				panic(p.syntax("expected the name of a field"))
			}
			p.i++
			n = p.over(&Field{At: f.pos, X: n.e, Name: f.text}, n)
		case t.text == "[" || t.text == ".":
			panic(p.syntax("an expression needs parentheses before [ and .: (f(x))[1]"))
		default:
			return n
		}
	}
}

func (p *parser) index(n node) node {
	t := p.tok()
	p.i++
	if p.isSymbol(":") {
		panic(p.failHint("Name the element.", "slices are not supported"))
	}
	i := p.nested()
	if p.isSymbol(":") {
		panic(p.failHint("Name the element.", "slices are not supported"))
	}
	p.expectSymbol("]")
	return p.over(&Index{At: t.pos, X: n.e, I: i.e}, n, i)
}

// unknownOperator is the error for a symbol that is an operator elsewhere.
func (p *parser) unknownOperator() *Error {
	t := p.tok()
	hint := ""
	switch t.text {
	case "->", "->>", "#>", "#>>":
		hint = "Fields are named with a dot: a.b; elements with brackets: a[1], m['key']."
	case "@>", "<@", "&&", "?", "?|", "?&":
		hint = "Write x = ANY (list), or m['key'] IS NOT NULL."
	case "==":
		hint = "Equality is =."
	case "&", "|", "#", "<<", ">>":
		hint = "There are no operations on bits."
	case "^":
		hint = "Multiply."
	case "~~", "!~~", "~~*", "!~~*":
		hint = "Use LIKE or ILIKE."
	case "^@":
		hint = "Use starts_with()."
	case "=>", ":=":
		hint = "Functions take arguments by place."
	}
	return p.failHint(hint, "operator \""+shorten(t.text)+"\" is not supported")
}

// list reads expressions with commas between them up to the closing parenthesis.
func (p *parser) list() (list []node) {
	if p.symbol(")") {
		return nil
	}
	for more := true; more; more = p.symbol(",") {
		list = append(list, p.nested())
	}
	if p.isWord("order") {
		panic(p.failHint("", "ORDER BY among arguments is not supported"))
	}
	p.expectSymbol(")")
	return list
}

// expressions returns the expressions of nodes; nil of none.
func expressions(nodes []node) (list []Expr) {
	for _, n := range nodes {
		list = append(list, n.e)
	}
	return list
}

// upper is a keyword as messages have it.
func upper(w string) string { return strings.ToUpper(w) }
