package sql

import (
	"slices"
	"strconv"
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

// nodeOver returns e as the parent node of its operands, unless the tree becomes too high.
func (p *queryParser) nodeOver(e Expr, operands ...Expr) Expr {
	n := e.node()
	for _, o := range operands {
		n.height = max(n.height, o.node().height+1)
	}
	if n.height >= MaxDepth {
		panic(p.errorAt(e.Pos(), "AND, OR, IN and concat() take any number of operands without nesting.",
			"expressions nest deeper than "+strconv.Itoa(MaxDepth)+" levels"))
	}
	return e
}

// parseExpr parses an expression, which may be within another one.
func (p *queryParser) parseExpr() Expr {
	p.enterLevel(p.token().pos)
	defer p.leaveLevel()
	return p.parseBinary(precOr)
}

// parseBinary parses an expression of operators with precedence prec or higher.
func (p *queryParser) parseBinary(prec int) Expr {
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
func (p *queryParser) parseLogic(first Expr, prec int) Expr {
	keyword, or := "and", prec == precOr
	if or {
		keyword = "or"
	}
	e := &Logic{Node: Node{At: p.token().pos}, Or: or}
	terms := []Expr{first}
	for p.acceptWord(keyword) {
		terms = append(terms, p.parseBinary(prec+1))
	}
	for _, t := range terms {
		if l, ok := t.(*Logic); ok && l.Or == or {
			e.Terms = append(e.Terms, l.Terms...)
		} else {
			e.Terms = append(e.Terms, t)
		}
	}
	return p.nodeOver(e, e.Terms...)
}

// parseOperator parses a symbolic operator and its right operand.
func (p *queryParser) parseOperator(left Expr, t *queryToken) Expr {
	op := operators[t.text]
	p.i++
	if q := p.token(); q.kind == word && (q.text == "any" || q.text == "some" || q.text == "all") && p.tokenAhead(1).text == "(" {
		return p.parseAny(left, op, t)
	}
	right := p.parseBinary(precedences[op] + 1)
	return p.nodeOver(&Binary{Node: Node{At: t.pos}, Op: op, L: left, R: right}, left, right)
}

// parseAny parses = ANY (list). The current token is ANY.
func (p *queryParser) parseAny(left Expr, op BinaryOp, t *queryToken) Expr {
	p.refuseAt(p.isWord("all") || op != Eq, t.pos, "Write x = ANY (list), NOT (x = ANY (list)), or x IN (...).",
		"only = ANY is supported")
	p.i += 2
	p.refuseIf(p.isWord("select"), "A query is over one category.", "subqueries are not supported")
	list := p.parseExpr()
	p.expectSymbol(")")
	return p.nodeOver(&Any{Node: Node{At: t.pos}, X: left, List: list}, left, list)
}

// parseIs parses IS and its operand, ISNULL and NOTNULL. distinct is true for IS [NOT] DISTINCT FROM, which is a comparison.
func (p *queryParser) parseIs(left Expr) (n Expr, distinct bool) {
	t := p.token()
	p.i++
	if t.text != "is" {
		return p.nodeOver(&Is{Node: Node{At: t.pos}, X: left, Not: t.text == "notnull"}, left), false
	}
	not := p.acceptWord("not")
	e := &Is{Node: Node{At: t.pos}, X: left, Not: not}
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
		return p.nodeOver(&Binary{Node: Node{At: t.pos}, Op: op, L: left, R: right}, left, right), true
	default:
		panic(p.syntaxError("IS is followed by [NOT] NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM"))
	}
	return p.nodeOver(e, left), false
}

// parseMembership parses [NOT] IN, BETWEEN, LIKE or ILIKE.
func (p *queryParser) parseMembership(left Expr) Expr {
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
	e := &Like{Node: Node{At: at}, X: left, Not: not, Fold: t.text == "ilike", Pattern: pattern}
	if !p.acceptWord("escape") {
		return p.nodeOver(e, left, pattern)
	}
	escape := p.parseBinary(precLike + 1)
	e.Escape = escape
	return p.nodeOver(e, left, pattern, escape)
}

func (p *queryParser) parseIn(left Expr, at int, not bool) Expr {
	p.failIf(!p.isSymbol("("), "IN takes a list in parentheses; of a list column write x = ANY (list)")
	p.i++
	p.refuseIf(p.isWord("select") || p.isWord("with"), "A query is over one category.", "subqueries are not supported")
	var list []Expr
	for more := true; more; more = p.acceptSymbol(",") {
		p.refuseIf(len(list) == MaxList, "Several IN lists with OR between them are several times as long.",
			"an IN list has at most "+strconv.Itoa(MaxList)+" elements")
		list = append(list, p.parseExpr())
	}
	p.expectSymbol(")")
	return p.nodeOver(&In{Node: Node{At: at}, X: left, Not: not, List: list}, append(list, left)...)
}

func (p *queryParser) parseBetween(left Expr, at int, not bool) Expr {
	e := &Between{Node: Node{At: at}, X: left, Not: not, Symmetric: p.acceptWord("symmetric")}
	if !e.Symmetric {
		p.acceptWord("asymmetric")
	}
	low := p.parseBinary(precLike + 1)
	p.expectWord("and")
	high := p.parseBinary(precLike + 1)
	e.Low, e.High = low, high
	return p.nodeOver(e, left, low, high)
}

// parsePrefix parses an operand with its prefix operators.
func (p *queryParser) parsePrefix(prec int) Expr {
	from := p.i
	for p.isWord("not") {
		p.failIf(prec > precNot, "write NOT after an operator in parentheses")
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
func (p *queryParser) wrapOperand(operators []queryToken, operand Expr) Expr {
	for _, t := range slices.Backward(operators) {
		op := Not
		switch t.text {
		case "-":
			op = Minus
		case "+":
			op = Plus
		}
		operand = p.nodeOver(&Unary{Node: Node{At: t.pos}, Op: op, X: operand}, operand)
	}
	return operand
}

// parsePostfix parses an operand with its suffixes: ::type, [index] and .field.
func (p *queryParser) parsePostfix() Expr {
	from := p.token()
	n := p.parsePrimary()
	_, name := n.(*Name)
	element := name || from.kind == symbol && from.text == "(" // may have subscripts and fields
	for {
		t := p.token()
		if t.kind != symbol {
			return n
		}
		switch {
		case t.text == "::":
			p.i++
			n = p.nodeOver(&Cast{Node: Node{At: t.pos}, X: n, Type: p.parseType()}, n)
			element = false
		case t.text == "[" && element:
			n = p.parseIndex(n)
		case t.text == "." && element:
			p.i++
			f := p.token()
			p.failIf(f.kind != word && f.kind != quoted, "expected the name of a field")
			p.i++
			n = p.nodeOver(&Field{Node: Node{At: f.pos}, X: n, Name: f.text}, n)
		case t.text == "[" || t.text == ".":
			panic(p.syntaxError("an expression needs parentheses before [ and .: (f(x))[1]"))
		default:
			return n
		}
	}
}

func (p *queryParser) parseIndex(n Expr) Expr {
	t := p.token()
	p.i++
	p.refuseIf(p.isSymbol(":"), "Name the element.", "slices are not supported")
	i := p.parseExpr()
	p.refuseIf(p.isSymbol(":"), "Name the element.", "slices are not supported")
	p.expectSymbol("]")
	return p.nodeOver(&Index{Node: Node{At: t.pos}, X: n, I: i}, n, i)
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
	return p.errorHere(hint, "operator \""+ClipText(t.text)+"\" is not supported")
}

// parseList parses expressions separated by commas, up to the closing parenthesis.
func (p *queryParser) parseList() (list []Expr) {
	if p.acceptSymbol(")") {
		return nil
	}
	for more := true; more; more = p.acceptSymbol(",") {
		list = append(list, p.parseExpr())
	}
	p.refuseIf(p.isWord("order"), "", "ORDER BY among arguments is not supported")
	p.expectSymbol(")")
	return list
}
