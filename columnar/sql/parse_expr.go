package sql

import (
	"slices"
	"strconv"
	"strings"
)

// Operator precedence as in PostgreSQL, lowest first.
const (
	precOr      = 1
	precAnd     = 2
	precNot     = 3
	precIs      = 4
	precCompare = 5 // non-associative
	precLike    = 6 // IN, BETWEEN, LIKE, ILIKE; non-associative
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

// operators maps symbols to operators.
var operators = func() map[string]BinaryOp {
	m := make(map[string]BinaryOp, operatorCount)
	for op := Eq; op < operatorCount; op++ {
		m[op.String()] = op
	}
	return m
}()

// exprNode is a parsed expression with the height of its tree, which is one for a leaf.
type exprNode struct {
	e      Expr
	height int
}

func leafNode(e Expr) exprNode { return exprNode{e, 1} }

// nodeOver returns e as the parent node of its operands.
func (p *queryParser) nodeOver(e Expr, operands ...exprNode) exprNode {
	height := 0
	for _, o := range operands {
		height = max(height, o.height)
	}
	if height >= MaxDepth {
		panic(p.errorAt(e.Pos(), "AND, OR, IN and concat() take any number of operands without nesting.",
			"expressions nest deeper than "+strconv.Itoa(MaxDepth)+" levels"))
	}
	return exprNode{e, height + 1}
}

// parseExpr parses an expression.
func (p *queryParser) parseExpr() Expr {
	return p.parseNested().e
}

// parseNested parses an expression within another one.
func (p *queryParser) parseNested() exprNode {
	p.enterLevel(p.token().pos)
	defer p.leaveLevel()
	return p.parseBinary(precOr)
}

// parseBinary parses an expression of operators with precedence prec or higher.
func (p *queryParser) parseBinary(prec int) exprNode {
	left := p.parsePrefix(prec)
	last := 0 // precedence of the last non-associative operator
	for {
		t := p.token()
		found := p.infixPrecedence(t)
		if found < prec || found == 0 {
			return left
		}
		if found == last {
			hint := "operators such as LIKE, IN and BETWEEN need parentheses to be chained"
			if found == precCompare {
				hint = "comparisons can't be chained: write a < b AND b < c"
			}
			panic(p.syntaxError(hint))
		}
		last = 0
		switch found {
		case precOr, precAnd:
			left = p.parseLogic(left, found)
		case precIs:
			var distinct bool
			if left, distinct = p.parseIs(left); distinct {
				last = found
			}
		case precLike:
			left = p.parseMembership(left)
			last = found
		default:
			if found == precCompare {
				last = found
			}
			left = p.parseOperator(left, t)
		}
	}
}

// infixPrecedence returns the precedence of the operator that starts with a token, or 0 if there is none.
func (p *queryParser) infixPrecedence(t *queryToken) int {
	if t.kind == symbol {
		return precedences[operators[t.text]]
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
		switch next := p.tokenAhead(1); next.text {
		case "in", "between", "like", "ilike", "similar":
			if next.kind == word {
				return precLike
			}
		}
	}
	return 0
}

// parseLogic parses the terms of an AND or OR. Parenthesized terms with the same operator are merged into this one.
func (p *queryParser) parseLogic(first exprNode, prec int) exprNode {
	keyword, or := "and", prec == precOr
	if or {
		keyword = "or"
	}
	e := &Logic{At: p.token().pos, Or: or}
	terms := []exprNode{first}
	for p.acceptWord(keyword) {
		terms = append(terms, p.parseBinary(prec+1))
	}
	for i, n := range terms {
		if l, ok := n.e.(*Logic); ok && l.Or == or {
			e.Terms = append(e.Terms, l.Terms...)
			terms[i].height--
		} else {
			e.Terms = append(e.Terms, n.e)
		}
	}
	return p.nodeOver(e, terms...)
}

// parseOperator parses a symbolic operator and its right operand.
func (p *queryParser) parseOperator(left exprNode, t *queryToken) exprNode {
	op := operators[t.text]
	p.i++
	if q := p.token(); q.kind == word && (q.text == "any" || q.text == "some" || q.text == "all") && p.tokenAhead(1).text == "(" {
		return p.parseAny(left, op, t)
	}
	right := p.parseBinary(precedences[op] + 1)
	return p.nodeOver(&Binary{At: t.pos, Op: op, L: left.e, R: right.e}, left, right)
}

// parseAny parses = ANY (list). The current token is ANY.
func (p *queryParser) parseAny(left exprNode, op BinaryOp, t *queryToken) exprNode {
	if p.isWord("all") || op != Eq {
		panic(p.errorAt(t.pos, "Write x = ANY (list), NOT (x = ANY (list)), or x IN (...).", "only = ANY is supported"))
	}
	p.i += 2
	if p.isWord("select") {
		panic(p.errorHere("A query is over one category.", "subqueries are not supported"))
	}
	list := p.parseNested()
	p.expectSymbol(")")
	return p.nodeOver(&Any{At: t.pos, X: left.e, List: list.e}, left, list)
}

// parseIs parses IS and its operand, ISNULL and NOTNULL. distinct is true for IS [NOT] DISTINCT FROM, which is a comparison.
func (p *queryParser) parseIs(left exprNode) (n exprNode, distinct bool) {
	t := p.token()
	p.i++
	if t.text != "is" {
		return p.nodeOver(&Is{At: t.pos, X: left.e, Not: t.text == "notnull"}, left), false
	}
	not := p.acceptWord("not")
	e := &Is{At: t.pos, X: left.e, Not: not}
	switch {
	case p.acceptWord("null"):
		e.What = IsNull
	case p.acceptWord("true"):
		e.What = IsTrue
	case p.acceptWord("false"):
		e.What = IsFalse
	case p.acceptWord("unknown"):
		e.What = IsUnknown
	case p.acceptWord("distinct"):
		p.expectWord("from")
		right := p.parseBinary(precIs + 1)
		op := IsDistinct
		if not {
			op = IsNotDistinct
		}
		return p.nodeOver(&Binary{At: t.pos, Op: op, L: left.e, R: right.e}, left, right), true
	default:
		panic(p.syntaxError("IS is followed by [NOT] NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM"))
	}
	return p.nodeOver(e, left), false
}

// parseMembership parses [NOT] IN, BETWEEN, LIKE or ILIKE.
func (p *queryParser) parseMembership(left exprNode) exprNode {
	at := p.token().pos
	not := p.acceptWord("not")
	t := p.token()
	p.i++
	switch t.text {
	case "in":
		return p.parseIn(left, at, not)
	case "between":
		return p.parseBetween(left, at, not)
	case "similar":
		panic(p.errorAt(at, "Use LIKE, or a regular expression with ~.", "SIMILAR TO is not supported"))
	}
	pattern := p.parseBinary(precLike + 1)
	e := &Like{At: at, X: left.e, Not: not, Fold: t.text == "ilike", Pattern: pattern.e}
	if !p.acceptWord("escape") {
		return p.nodeOver(e, left, pattern)
	}
	escape := p.parseBinary(precLike + 1)
	e.Escape = escape.e
	return p.nodeOver(e, left, pattern, escape)
}

func (p *queryParser) parseIn(left exprNode, at int, not bool) exprNode {
	if !p.isSymbol("(") {
		panic(p.syntaxError("IN takes a list in parentheses; of a list column write x = ANY (list)"))
	}
	p.i++
	if p.isWord("select") || p.isWord("with") {
		panic(p.errorHere("A query is over one category.", "subqueries are not supported"))
	}
	var list []exprNode
	for more := true; more; more = p.acceptSymbol(",") {
		if len(list) == MaxList {
			panic(p.errorHere("Several IN lists with OR between them are several times as long.", "an IN list has at most "+strconv.Itoa(MaxList)+" elements"))
		}
		list = append(list, p.parseNested())
	}
	p.expectSymbol(")")
	return p.nodeOver(&In{At: at, X: left.e, Not: not, List: exprsOf(list)}, append(list, left)...)
}

func (p *queryParser) parseBetween(left exprNode, at int, not bool) exprNode {
	e := &Between{At: at, X: left.e, Not: not, Symmetric: p.acceptWord("symmetric")}
	if !e.Symmetric {
		p.acceptWord("asymmetric")
	}
	low := p.parseBinary(precLike + 1)
	p.expectWord("and")
	high := p.parseBinary(precLike + 1)
	e.Low, e.High = low.e, high.e
	return p.nodeOver(e, left, low, high)
}

// parsePrefix parses an operand with its prefix operators.
func (p *queryParser) parsePrefix(prec int) exprNode {
	from := p.i
	for p.isWord("not") {
		if prec > precNot {
			panic(p.syntaxError("write NOT after an operator in parentheses"))
		}
		p.i++
	}
	if operators := p.tokens[from:p.i]; len(operators) > 0 {
		return p.wrapOperand(operators, p.parseBinary(precNot+1))
	}
	for p.isSymbol("-") || p.isSymbol("+") {
		p.i++
	}
	operators := p.tokens[from:p.i]
	return p.wrapOperand(operators, p.parsePostfix())
}

// wrapOperand applies prefix operators to an operand, the last one first.
func (p *queryParser) wrapOperand(operators []queryToken, operand exprNode) exprNode {
	for _, t := range slices.Backward(operators) {
		op := Not
		switch t.text {
		case "-":
			op = Minus
		case "+":
			op = Plus
		}
		operand = p.nodeOver(&Unary{At: t.pos, Op: op, X: operand.e}, operand)
	}
	return operand
}

// parsePostfix parses an operand with its suffixes: ::type, [index] and .field.
func (p *queryParser) parsePostfix() exprNode {
	from := p.token()
	n := p.parsePrimary()
	_, name := n.e.(*Name)
	element := name || from.kind == symbol && from.text == "(" // may have subscripts and fields
	for {
		t := p.token()
		if t.kind != symbol {
			return n
		}
		switch {
		case t.text == "::":
			p.i++
			n = p.nodeOver(&Cast{At: t.pos, X: n.e, Type: p.parseType()}, n)
			element = false
		case t.text == "[" && element:
			n = p.parseIndex(n)
		case t.text == "." && element:
			p.i++
			f := p.token()
			if f.kind != word && f.kind != quoted {
				panic(p.syntaxError("expected the name of a field"))
			}
			p.i++
			n = p.nodeOver(&Field{At: f.pos, X: n.e, Name: f.text}, n)
		case t.text == "[" || t.text == ".":
			panic(p.syntaxError("an expression needs parentheses before [ and .: (f(x))[1]"))
		default:
			return n
		}
	}
}

func (p *queryParser) parseIndex(n exprNode) exprNode {
	t := p.token()
	p.i++
	if p.isSymbol(":") {
		panic(p.errorHere("Name the element.", "slices are not supported"))
	}
	i := p.parseNested()
	if p.isSymbol(":") {
		panic(p.errorHere("Name the element.", "slices are not supported"))
	}
	p.expectSymbol("]")
	return p.nodeOver(&Index{At: t.pos, X: n.e, I: i.e}, n, i)
}

// operatorError returns the error for a symbol that is an operator elsewhere.
func (p *queryParser) operatorError() *Error {
	t := p.token()
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
	return p.errorHere(hint, "operator \""+shortenText(t.text)+"\" is not supported")
}

// parseList parses expressions separated by commas, up to the closing parenthesis.
func (p *queryParser) parseList() (list []exprNode) {
	if p.acceptSymbol(")") {
		return nil
	}
	for more := true; more; more = p.acceptSymbol(",") {
		list = append(list, p.parseNested())
	}
	if p.isWord("order") {
		panic(p.errorHere("", "ORDER BY among arguments is not supported"))
	}
	p.expectSymbol(")")
	return list
}

// exprsOf returns the expressions of nodes, or nil if there are none.
func exprsOf(nodes []exprNode) (list []Expr) {
	for _, n := range nodes {
		list = append(list, n.e)
	}
	return list
}

// upperASCII returns a keyword in upper case, as messages show it.
func upperASCII(w string) string { return strings.ToUpper(w) }
