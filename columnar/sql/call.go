package sql

// parseCall parses a function call with its arguments and the clauses after them.
func (p *queryParser) parseCall() Expr {
	t := p.token()
	e := &Call{Node: Node{At: t.pos}, Func: t.text}
	p.failIf(t.kind == quoted && (t.text == "extract" || t.text == "position"), "write "+t.text+"() without quotes")
	p.i += 2
	if e.Star = p.isSymbol("*") && p.tokenAhead(1).text == ")"; e.Star {
		p.i += 2
	} else {
		if e.Distinct = p.acceptWord("distinct"); !e.Distinct {
			p.acceptWord("all")
		}
		e.Args = p.parseList()
	}
	return p.parseAggregate(e)
}

// parseAggregate parses the clauses that may follow the arguments of an aggregate.
func (p *queryParser) parseAggregate(e *Call) Expr {
	operands := e.Args
	p.refuseIf(p.isWord("within") && p.tokenAhead(1).text == "group", "Use approx_quantile(x, 0.5).", "WITHIN GROUP is not supported")
	if p.isWord("filter") && p.tokenAhead(1).text == "(" {
		p.i += 2
		p.expectWord("where")
		e.Filter = p.parseExpr()
		p.expectSymbol(")")
		operands = append(operands, e.Filter)
	}
	p.refuseIf(p.isWord("over"), "Aggregates are per group: GROUP BY.", "window functions (OVER) are not supported")
	return p.nodeOver(e, operands...)
}

// parseSpecial parses functions with keywords between their arguments.
func (p *queryParser) parseSpecial() Expr {
	t := p.token()
	p.i += 2
	switch t.text {
	case "extract":
		return p.parseExtract(t)
	case "position":
		return p.parsePosition(t)
	case "substring":
		return p.parseSubstring(t)
	case "trim":
		return p.parseTrim(t)
	default:
		panic(p.errorAt(t.pos, "Use substring() and ||.", "overlay() is not supported"))
	}
}

// callOf returns a call of a function whose closing parenthesis is the current token.
func (p *queryParser) callOf(t *queryToken, name string, args ...Expr) Expr {
	p.expectSymbol(")")
	return p.nodeOver(&Call{Node: Node{At: t.pos}, Func: name, Args: args}, args...)
}

func (p *queryParser) parseExtract(t *queryToken) Expr {
	f := p.token()
	p.failIf(f.kind != word && f.kind != quoted && f.kind != str, "expected a field, as in extract(hour FROM x)")
	p.i++
	p.expectWord("from")
	return p.callOf(t, "extract", &String{Node: Node{At: f.pos}, Value: f.text}, p.parseExpr())
}

func (p *queryParser) parsePosition(t *queryToken) Expr {
	p.enterLevel(t.pos)
	defer p.leaveLevel()
	what := p.parseBinary(precLike + 1)
	p.failIf(!p.acceptWord("in"), "write position(what IN text), or strpos(text, what)")
	return p.callOf(t, "position", what, p.parseBinary(precLike+1))
}

// parseSubstring parses arguments with commas, or with FROM and FOR in any order.
func (p *queryParser) parseSubstring(t *queryToken) Expr {
	x := p.parseExpr()
	if p.acceptSymbol(",") {
		args := append([]Expr{x}, p.parseList()...)
		return p.nodeOver(&Call{Node: Node{At: t.pos}, Func: "substring", Args: args}, args...)
	}
	var from, length Expr
	for more := true; more; {
		switch {
		case from == nil && p.acceptWord("from"):
			from = p.parseExpr()
		case length == nil && p.acceptWord("for"):
			length = p.parseExpr()
		case p.isWord("similar"):
			panic(p.errorHere("", "substring(... SIMILAR ...) is not supported"))
		default:
			more = false
		}
	}
	switch {
	case from == nil && length == nil:
		panic(p.syntaxError("write substring(text FROM start FOR length), or substring(text, start, length)"))
	case length == nil:
		return p.callOf(t, "substring", x, from)
	case from == nil:
		from = &Number{Node: Node{At: t.pos}, Text: "1"}
	}
	return p.callOf(t, "substring", x, from, length)
}

// parseTrim parses [LEADING | TRAILING | BOTH] [characters] FROM x, or x [, characters]. The result is btrim, ltrim or rtrim.
func (p *queryParser) parseTrim(t *queryToken) Expr {
	name := "btrim"
	switch {
	case p.acceptWord("leading"):
		name = "ltrim"
	case p.acceptWord("trailing"):
		name = "rtrim"
	default:
		p.acceptWord("both")
	}
	if p.acceptWord("from") {
		return p.callOf(t, name, p.parseExpr())
	}
	first := p.parseExpr()
	switch {
	case p.acceptWord("from"):
		return p.callOf(t, name, p.parseExpr(), first)
	case p.acceptSymbol(","):
		return p.callOf(t, name, first, p.parseExpr())
	default:
		return p.callOf(t, name, first)
	}
}
