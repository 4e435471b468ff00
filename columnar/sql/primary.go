package sql

import "strings"

// parsePrimary parses an operand.
func (p *queryParser) parsePrimary() Expr {
	t := p.token()
	switch t.kind {
	case number:
		p.i++
		return &Number{Node: Node{At: t.pos}, Text: t.text}
	case str:
		p.i++
		return &String{Node: Node{At: t.pos}, Value: t.text}
	case quoted:
		if p.tokenAhead(1).kind == symbol && p.tokenAhead(1).text == "(" {
			return p.parseCall()
		}
		return p.parseName()
	case word:
		return p.parseKeyword()
	case symbol:
		if t.text == "(" {
			return p.parseParentheses()
		}
	case parameter:
		return p.parseParameter()
	case end:
	}
	panic(p.syntaxError("expected an expression"))
}

// parseParentheses parses an expression in parentheses.
func (p *queryParser) parseParentheses() Expr {
	at := p.token().pos
	p.i++
	p.refuseIf(p.isWord("select") || p.isWord("with") || p.isWord("values") && p.tokenAhead(1).text == "(",
		"A query is over one category.", "subqueries are not supported")
	n := p.parseExpr()
	p.refuseAt(p.isSymbol(","), at, "Compare the values one by one, with AND.", "rows of several values are not supported")
	p.expectSymbol(")")
	return n
}

// parseKeyword parses an operand that begins with a word.
func (p *queryParser) parseKeyword() Expr {
	t, next := p.token(), p.tokenAhead(1)
	call := next.kind == symbol && next.text == "("
	switch t.text {
	case "null":
		p.i++
		return &Null{Node: Node{At: t.pos}}
	case "true", "false":
		p.i++
		return &Bool{Node: Node{At: t.pos}, Value: t.text == "true"}
	case "case":
		return p.parseCase()
	case "cast", "try_cast":
		if call {
			return p.parseCast()
		}
	case "current_timestamp", "localtimestamp", "current_date":
		p.i++
		p.refuseIf(call, "Use date_trunc().", strings.ToUpper(t.text)+" with a precision is not supported")
		return &Call{Node: Node{At: t.pos}, Func: t.text}
	case "array":
		panic(p.errorHere("Write x IN (...).", "ARRAY is not supported"))
	case "row":
		p.refuseIf(call, "Compare the values one by one, with AND.", "rows of several values are not supported")
	case "exists":
		p.refuseIf(call, "A query is over one category.", "subqueries are not supported")
	case "extract", "position", "substring", "trim", "overlay":
		if call {
			return p.parseSpecial()
		}
	case "left", "right":
		if call {
			return p.parseCall()
		}
	}
	if e := p.parseTyped(); e != nil {
		return e
	}
	if keywords[t.text]&notColumn != 0 {
		panic(p.nameError("column"))
	}
	if call {
		return p.parseCall()
	}
	return p.parseName()
}

// parseTyped parses a constant preceded by its type. It returns nil if there is none.
func (p *queryParser) parseTyped() Expr {
	t, from := p.token(), p.i
	if keywords[t.text]&notColumn != 0 || !p.typeBeforeText() {
		return nil
	}
	typ := p.parseType()
	v := p.token()
	if v.kind != str {
		p.i = from
		return nil
	}
	p.i++
	e := &Typed{Node: Node{At: t.pos}, Type: typ, Value: v.text}
	if u := p.token(); typ.Name == "interval" && u.kind == word && intervalUnits[u.text] {
		p.i++
		e.Value += " " + u.text
		p.refuseIf(p.isWord("to"), "Write the parts out: INTERVAL '1 day 2 hours'.", "ranges of interval units are not supported")
	}
	return e
}

// typeBeforeText reports whether the next tokens are a type followed by a text constant, rather than a column or a function.
func (p *queryParser) typeBeforeText() bool {
	text := func(n int) bool { return p.tokenAhead(n).kind == str }
	next := p.tokenAhead(1)
	if next.kind == str {
		return true
	}
	modified := next.kind == symbol && next.text == "(" // type (n) or type (n, m)
	switch p.token().text {
	case "double":
		return next.kind == word && next.text == "precision" && text(2)
	case "timestamp", "time":
		if next.kind == word && (next.text == "with" || next.text == "without") {
			return true
		}
		return p.token().text == "timestamp" && modified && text(4)
	case "interval", "timestamptz":
		return modified && text(4)
	case "numeric", "decimal":
		return modified && (text(4) || text(6))
	}
	return false
}

var intervalUnits = map[string]bool{"year": true, "month": true, "day": true, "hour": true, "minute": true, "second": true}

// parseName parses a column name and the fields after it.
func (p *queryParser) parseName() Expr {
	t := p.token()
	p.i++
	e := &Name{Node: Node{At: t.pos}, Parts: []string{t.text}}
	for p.acceptSymbol(".") {
		f := p.token()
		if f.kind != word && f.kind != quoted {
			p.refuseIf(p.isSymbol("*"), "Write * alone, or name the fields.", "* after a name is not supported")
			panic(p.syntaxError("expected the name of a field"))
		}
		p.i++
		p.refuseAt(len(e.Parts) == MaxDepth, f.pos, "", "a name has too many parts")
		e.Parts = append(e.Parts, f.text)
	}
	p.refuseAt(p.isSymbol("("), t.pos, "Functions have no schema before their names.", "functions in schemas are not supported")
	return e
}

func (p *queryParser) parseCase() Expr {
	e := &Case{Node: Node{At: p.token().pos}}
	p.i++
	var parts []Expr
	part := func() Expr {
		x := p.parseExpr()
		parts = append(parts, x)
		return x
	}
	if !p.isWord("when") {
		e.Operand = part()
	}
	for p.acceptWord("when") {
		cond := part()
		p.expectWord("then")
		e.Whens = append(e.Whens, When{cond, part()})
	}
	p.failIf(len(e.Whens) == 0, "expected WHEN")
	if p.acceptWord("else") {
		e.Else = part()
	}
	p.expectWord("end")
	return p.nodeOver(e, parts...)
}

// parseCast parses CAST (x AS type).
func (p *queryParser) parseCast() Expr {
	t := p.token()
	p.refuseIf(t.text == "try_cast", "CAST makes what does not fit null.", "TRY_CAST is not supported")
	p.i += 2
	n := p.parseExpr()
	p.expectWord("as")
	typ := p.parseType()
	p.expectSymbol(")")
	return p.nodeOver(&Cast{Node: Node{At: t.pos}, X: n, Type: typ}, n)
}
