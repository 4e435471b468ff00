package sql

// parseCall parses a function call with its arguments and the clauses after them.
func (p *queryParser) parseCall() exprNode {
	t := p.token()
	e := &Call{At: t.pos, Func: t.text}
	if t.kind == quoted && (t.text == "extract" || t.text == "position") {
		panic(p.syntaxError("write " + t.text + "() without quotes"))
	}
	p.i += 2
	var args []exprNode
	if e.Star = p.isSymbol("*") && p.tokenAhead(1).text == ")"; e.Star {
		p.i += 2
	} else {
		if e.Distinct = p.acceptWord("distinct"); !e.Distinct {
			p.acceptWord("all")
		}
		args = p.parseList()
		e.Args = exprsOf(args)
	}
	return p.parseAggregate(e, args)
}

// parseAggregate parses the clauses that may follow the arguments of an aggregate.
func (p *queryParser) parseAggregate(e *Call, operands []exprNode) exprNode {
	if p.isWord("within") && p.tokenAhead(1).text == "group" {
		panic(p.errorHere("Use approx_quantile(x, 0.5).", "WITHIN GROUP is not supported"))
	}
	if p.isWord("filter") && p.tokenAhead(1).text == "(" {
		p.i += 2
		p.expectWord("where")
		n := p.parseNested()
		p.expectSymbol(")")
		e.Filter, operands = n.e, append(operands, n)
	}
	if p.isWord("over") {
		panic(p.errorHere("Aggregates are per group: GROUP BY.", "window functions (OVER) are not supported"))
	}
	return p.nodeOver(e, operands...)
}

// parseSpecial parses functions with keywords between their arguments.
func (p *queryParser) parseSpecial() exprNode {
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

func (p *queryParser) parseExtract(t *queryToken) exprNode {
	f := p.token()
	if f.kind != word && f.kind != quoted && f.kind != str {
		panic(p.syntaxError("expected a field, as in extract(hour FROM x)"))
	}
	p.i++
	p.expectWord("from")
	return p.parseLastArg(&Call{At: t.pos, Func: "extract", Args: []Expr{&String{At: f.pos, Value: f.text}}}, leafNode(nil))
}

// parseLastArg parses the last argument of a call and the closing parenthesis.
func (p *queryParser) parseLastArg(e *Call, others ...exprNode) exprNode {
	n := p.parseNested()
	e.Args = append(e.Args, n.e)
	p.expectSymbol(")")
	return p.nodeOver(e, append(others, n)...)
}

func (p *queryParser) parsePosition(t *queryToken) exprNode {
	p.enterLevel(t.pos)
	defer p.leaveLevel()
	what := p.parseBinary(precLike + 1)
	if !p.acceptWord("in") {
		panic(p.syntaxError("write position(what IN text), or strpos(text, what)"))
	}
	in := p.parseBinary(precLike + 1)
	p.expectSymbol(")")
	return p.nodeOver(&Call{At: t.pos, Func: "position", Args: []Expr{what.e, in.e}}, what, in)
}

// parseSubstring parses arguments with commas, or with FROM and FOR in any order.
func (p *queryParser) parseSubstring(t *queryToken) exprNode {
	x := p.parseNested()
	if p.acceptSymbol(",") {
		args := append([]exprNode{x}, p.parseList()...)
		return p.nodeOver(&Call{At: t.pos, Func: "substring", Args: exprsOf(args)}, args...)
	}
	var from, length exprNode
	for {
		part := &from
		switch {
		case p.isWord("from") && from.e == nil:
		case p.isWord("for") && length.e == nil:
			part = &length
		case p.isWord("similar"):
			panic(p.errorHere("", "substring(... SIMILAR ...) is not supported"))
		default:
			if from.e == nil && length.e == nil {
				panic(p.syntaxError("write substring(text FROM start FOR length), or substring(text, start, length)"))
			}
			p.expectSymbol(")")
			return p.substringOf(t, x, from, length)
		}
		p.i++
		*part = p.parseNested()
	}
}

func (p *queryParser) substringOf(t *queryToken, x, from, length exprNode) exprNode {
	if from.e == nil {
		from = leafNode(&Number{At: t.pos, Text: "1"})
	}
	e := &Call{At: t.pos, Func: "substring", Args: []Expr{x.e, from.e}}
	if length.e != nil {
		e.Args = append(e.Args, length.e)
	}
	return p.nodeOver(e, x, from, length)
}

// parseTrim parses [LEADING | TRAILING | BOTH] [characters] FROM x, or x [, characters]. The result is btrim, ltrim or rtrim.
func (p *queryParser) parseTrim(t *queryToken) exprNode {
	name := "btrim"
	switch {
	case p.acceptWord("leading"):
		name = "ltrim"
	case p.acceptWord("trailing"):
		name = "rtrim"
	default:
		p.acceptWord("both")
	}
	e := &Call{At: t.pos, Func: name}
	if p.acceptWord("from") {
		return p.parseLastArg(e)
	}
	first := p.parseNested()
	if p.acceptWord("from") {
		x := p.parseNested()
		e.Args = []Expr{x.e, first.e}
		p.expectSymbol(")")
		return p.nodeOver(e, x, first)
	}
	e.Args = []Expr{first.e}
	if p.acceptSymbol(",") {
		return p.parseLastArg(e, first)
	}
	p.expectSymbol(")")
	return p.nodeOver(e, first)
}
