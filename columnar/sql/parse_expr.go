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
func (p *parser) over(e Expr, operands ...node) (node, error) {
	height := 0
	for _, o := range operands {
		height = max(height, o.height)
	}
	if height >= MaxDepth {
		return node{}, p.failAt(e.Pos(), "AND, OR, IN and concat() take any number of operands without nesting.",
			"expressions nest deeper than "+strconv.Itoa(MaxDepth)+" levels")
	}
	return node{e, height + 1}, nil
}

// expr reads an expression.
func (p *parser) expr() (Expr, error) {
	n, err := p.nested()
	return n.e, err
}

// nested reads an expression within another one.
func (p *parser) nested() (node, error) {
	if err := p.enter(p.tok().pos); err != nil {
		return node{}, err
	}
	n, err := p.binary(precOr)
	p.leave()
	return n, err
}

// binary reads an expression of operators that bind at least as much as prec.
func (p *parser) binary(prec int) (node, error) {
	left, err := p.prefix(prec)
	last := 0 // of an operator that does not associate
	for err == nil {
		t := p.tok()
		found := p.infix(t)
		if found < prec || found == 0 {
			break
		}
		if found == last {
			hint := "operators such as LIKE, IN and BETWEEN need parentheses to be chained"
			if found == precCompare {
				hint = "comparisons can't be chained: write a < b AND b < c"
			}
			return node{}, p.syntax(hint)
		}
		last = 0
		switch found {
		case precOr, precAnd:
			left, err = p.logic(left, found)
		case precIs:
			var distinct bool
			if left, distinct, err = p.is(left); distinct {
				last = found
			}
		case precLike:
			left, err = p.membership(left)
			last = found
		default:
			if found == precCompare {
				last = found
			}
			left, err = p.operator(left, t)
		}
	}
	return left, err
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
func (p *parser) logic(first node, prec int) (node, error) {
	keyword, or := "and", prec == precOr
	if or {
		keyword = "or"
	}
	e := &Logic{At: p.tok().pos, Or: or}
	highest := node{}
	add := func(n node) {
		if l, ok := n.e.(*Logic); ok && l.Or == or {
			e.Terms = append(e.Terms, l.Terms...)
			n.height--
		} else {
			e.Terms = append(e.Terms, n.e)
		}
		if n.height > highest.height {
			highest = n
		}
	}
	add(first)
	for p.word(keyword) {
		n, err := p.binary(prec + 1)
		if err != nil {
			return node{}, err
		}
		add(n)
	}
	return p.over(e, highest)
}

// operator reads an operator of symbols and its right operand.
func (p *parser) operator(left node, t *token) (node, error) {
	op := operatorOf(t.text)
	p.i++
	if q := p.tok(); q.kind == word && (q.text == "any" || q.text == "some" || q.text == "all") && p.ahead(1).text == "(" {
		return p.any(left, op, t)
	}
	right, err := p.binary(precedences[op] + 1)
	if err != nil {
		return node{}, err
	}
	return p.over(&Binary{At: t.pos, Op: op, L: left.e, R: right.e}, left, right)
}

// any reads = ANY (list); the current token is ANY.
func (p *parser) any(left node, op BinaryOp, t *token) (node, error) {
	if p.isWord("all") || op != Eq {
		return node{}, p.failAt(t.pos, "Write x = ANY (list), NOT (x = ANY (list)), or x IN (...).", "only = ANY is supported")
	}
	p.i += 2
	if p.isWord("select") {
		return node{}, p.failHint("A query is over one category.", "subqueries are not supported")
	}
	list, err := p.nested()
	if err != nil {
		return node{}, err
	}
	if err := p.expectSymbol(")"); err != nil {
		return node{}, err
	}
	return p.over(&Any{At: t.pos, X: left.e, List: list.e}, left, list)
}

// is reads IS and what follows, ISNULL and NOTNULL. distinct says that it was a comparison.
func (p *parser) is(left node) (n node, distinct bool, err error) {
	t := p.tok()
	p.i++
	if t.text != "is" {
		n, err = p.over(&Is{At: t.pos, X: left.e, Not: t.text == "notnull"}, left)
		return n, false, err
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
		if err := p.expectWord("from"); err != nil {
			return node{}, false, err
		}
		right, err := p.binary(precIs + 1)
		if err != nil {
			return node{}, false, err
		}
		op := IsDistinct
		if not {
			op = IsNotDistinct
		}
		n, err = p.over(&Binary{At: t.pos, Op: op, L: left.e, R: right.e}, left, right)
		return n, true, err
	default:
		return node{}, false, p.syntax("IS is followed by [NOT] NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM")
	}
	n, err = p.over(e, left)
	return n, false, err
}

// membership reads [NOT] IN, BETWEEN, LIKE or ILIKE.
func (p *parser) membership(left node) (node, error) {
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
		return node{}, p.failAt(at, "Use LIKE, or a regular expression with ~.", "SIMILAR TO is not supported")
	}
	pattern, err := p.binary(precLike + 1)
	if err != nil {
		return node{}, err
	}
	e := &Like{At: at, X: left.e, Not: not, Fold: t.text == "ilike", Pattern: pattern.e}
	if !p.word("escape") {
		return p.over(e, left, pattern)
	}
	escape, err := p.binary(precLike + 1)
	if err != nil {
		return node{}, err
	}
	e.Escape = escape.e
	return p.over(e, left, pattern, escape)
}

func (p *parser) in(left node, at int, not bool) (node, error) {
	if !p.isSymbol("(") {
		return node{}, p.syntax("IN takes a list in parentheses; of a list column write x = ANY (list)")
	}
	p.i++
	if p.isWord("select") || p.isWord("with") {
		return node{}, p.failHint("A query is over one category.", "subqueries are not supported")
	}
	e, highest := &In{At: at, X: left.e, Not: not}, left
	for {
		if len(e.List) == MaxList {
			return node{}, p.failHint("Several IN lists with OR between them are several times as long.", "an IN list has at most "+strconv.Itoa(MaxList)+" elements")
		}
		n, err := p.nested()
		if err != nil {
			return node{}, err
		}
		if n.height > highest.height {
			highest = n
		}
		e.List = append(e.List, n.e)
		if !p.symbol(",") {
			break
		}
	}
	if err := p.expectSymbol(")"); err != nil {
		return node{}, err
	}
	return p.over(e, highest)
}

func (p *parser) between(left node, at int, not bool) (node, error) {
	e := &Between{At: at, X: left.e, Not: not, Symmetric: p.word("symmetric")}
	if !e.Symmetric {
		p.word("asymmetric")
	}
	low, err := p.binary(precLike + 1)
	if err != nil {
		return node{}, err
	}
	if err := p.expectWord("and"); err != nil {
		return node{}, err
	}
	high, err := p.binary(precLike + 1)
	if err != nil {
		return node{}, err
	}
	e.Low, e.High = low.e, high.e
	return p.over(e, left, low, high)
}

// prefix reads an operand with the operators before it.
func (p *parser) prefix(prec int) (node, error) {
	from := p.i
	for p.isWord("not") {
		if prec > precNot {
			return node{}, p.syntax("write NOT behind an operator in parentheses")
		}
		p.i++
	}
	if operators := p.tokens[from:p.i]; len(operators) > 0 {
		operand, err := p.binary(precNot + 1)
		return p.wrap(operators, operand, err)
	}
	for p.isSymbol("-") || p.isSymbol("+") {
		p.i++
	}
	operators := p.tokens[from:p.i]
	operand, err := p.postfix()
	return p.wrap(operators, operand, err)
}

// wrap puts operators over an operand, the last one first.
func (p *parser) wrap(operators []token, operand node, err error) (node, error) {
	for i := len(operators) - 1; i >= 0 && err == nil; i-- {
		op := Not
		switch operators[i].text {
		case "-":
			op = Minus
		case "+":
			op = Plus
		}
		operand, err = p.over(&Unary{At: operators[i].pos, Op: op, X: operand.e}, operand)
	}
	return operand, err
}

// postfix reads an operand with what follows it: ::type, [index] and .field.
func (p *parser) postfix() (node, error) {
	from := p.tok()
	n, err := p.primary()
	_, name := n.e.(*Name)
	element := name || from.kind == symbol && from.text == "(" // may have elements and fields
	for err == nil {
		t := p.tok()
		if t.kind != symbol {
			break
		}
		switch {
		case t.text == "::":
			p.i++
			var typ Type
			if typ, err = p.typeName(); err == nil {
				n, err = p.over(&Cast{At: t.pos, X: n.e, Type: typ}, n)
			}
			element = false
		case t.text == "[" && element:
			n, err = p.index(n)
		case t.text == "." && element:
			p.i++
			f := p.tok()
			if f.kind != word && f.kind != quoted {
				return node{}, p.syntax("expected the name of a field")
			}
			p.i++
			n, err = p.over(&Field{At: f.pos, X: n.e, Name: f.text}, n)
		case t.text == "[" || t.text == ".":
			return node{}, p.syntax("an expression needs parentheses before [ and .: (f(x))[1]")
		default:
			return n, nil
		}
	}
	return n, err
}

func (p *parser) index(n node) (node, error) {
	t := p.tok()
	p.i++
	if p.isSymbol(":") {
		return node{}, p.failHint("Name the element.", "slices are not supported")
	}
	i, err := p.nested()
	if err != nil {
		return node{}, err
	}
	if p.isSymbol(":") {
		return node{}, p.failHint("Name the element.", "slices are not supported")
	}
	if err := p.expectSymbol("]"); err != nil {
		return node{}, err
	}
	return p.over(&Index{At: t.pos, X: n.e, I: i.e}, n, i)
}

// unknownOperator is the error for a symbol that is an operator elsewhere.
func (p *parser) unknownOperator() error {
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
func (p *parser) list() ([]Expr, node, error) {
	var list []Expr
	var highest node
	if p.symbol(")") {
		return nil, highest, nil
	}
	for {
		n, err := p.nested()
		if err != nil {
			return nil, highest, err
		}
		list = append(list, n.e)
		if n.height > highest.height {
			highest = n
		}
		if !p.symbol(",") {
			break
		}
	}
	if p.isWord("order") {
		return nil, highest, p.failHint("", "ORDER BY among arguments is not supported")
	}
	return list, highest, p.expectSymbol(")")
}

// upper is a keyword as messages have it.
func upper(w string) string { return strings.ToUpper(w) }
