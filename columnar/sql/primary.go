package sql

// primary reads an operand.
func (p *parser) primary() node {
	t := p.tok()
	switch t.kind {
	case number:
		p.i++
		return leaf(&Number{At: t.pos, Text: t.text})
	case str:
		p.i++
		return leaf(&String{At: t.pos, Value: t.text})
	case quoted:
		if p.ahead(1).kind == symbol && p.ahead(1).text == "(" {
			return p.call()
		}
		return p.name()
	case word:
		return p.keyword()
	case symbol:
		if t.text == "(" {
			return p.parentheses()
		}
	case end:
	}
	panic(p.syntax("expected an expression"))
}

// parentheses reads an expression in them.
func (p *parser) parentheses() node {
	at := p.tok().pos
	p.i++
	if p.isWord("select") || p.isWord("with") || p.isWord("values") && p.ahead(1).text == "(" {
		panic(p.failHint("A query is over one category.", "subqueries are not supported"))
	}
	n := p.nested()
	if p.isSymbol(",") {
		panic(p.failAt(at, "Compare the values one by one, with AND.", "rows of several values are not supported"))
	}
	p.expectSymbol(")")
	return n
}

// keyword reads an operand that begins with a word.
func (p *parser) keyword() node {
	t, next := p.tok(), p.ahead(1)
	call := next.kind == symbol && next.text == "("
	switch t.text {
	case "null":
		p.i++
		return leaf(&Null{At: t.pos})
	case "true", "false":
		p.i++
		return leaf(&Bool{At: t.pos, Value: t.text == "true"})
	case "case":
		return p.caseOf()
	case "cast", "try_cast":
		if call {
			return p.cast()
		}
	case "current_timestamp", "localtimestamp", "current_date":
		p.i++
		if call {
			panic(p.failHint("Use date_trunc().", upper(t.text)+" with a precision is not supported"))
		}
		return leaf(&Call{At: t.pos, Func: t.text})
	case "array":
		panic(p.failHint("Write x IN (...).", "ARRAY is not supported"))
	case "row":
		if call {
			panic(p.failHint("Compare the values one by one, with AND.", "rows of several values are not supported"))
		}
	case "exists":
		if call {
			panic(p.failHint("A query is over one category.", "subqueries are not supported"))
		}
	case "extract", "position", "substring", "trim", "overlay":
		if call {
			return p.special()
		}
	case "left", "right":
		if call {
			return p.call()
		}
	}
	if n, ok := p.typed(); ok {
		return n
	}
	if keywords[t.text].noColumn() {
		panic(p.unquoted("column"))
	}
	if call {
		return p.call()
	}
	return p.name()
}

// typed reads a constant with its type before it, if there is one.
func (p *parser) typed() (node, bool) {
	t, from := p.tok(), p.i
	if keywords[t.text].noColumn() || !p.typeBeforeText() {
		return node{}, false
	}
	typ := p.typeName()
	v := p.tok()
	if v.kind != str {
		p.i = from
		return node{}, false
	}
	p.i++
	e := &Typed{At: t.pos, Type: typ, Value: v.text}
	if u := p.tok(); typ.Name == "interval" && u.kind == word && intervalUnits[u.text] {
		p.i++
		e.Value += " " + u.text
		if p.isWord("to") {
			panic(p.failHint("Write the parts out: INTERVAL '1 day 2 hours'.", "ranges of interval units are not supported"))
		}
	}
	return leaf(e), true
}

// typeBeforeText reports whether the words from here on look like a type with a text constant behind it, rather than a column or a function.
func (p *parser) typeBeforeText() bool {
	text := func(n int) bool { return p.ahead(n).kind == str }
	next := p.ahead(1)
	if next.kind == str {
		return true
	}
	modified := next.kind == symbol && next.text == "(" // type (n) or type (n, m)
	switch p.tok().text {
	case "double":
		return next.kind == word && next.text == "precision" && text(2)
	case "timestamp", "time":
		if next.kind == word && (next.text == "with" || next.text == "without") {
			return true
		}
		return p.tok().text == "timestamp" && modified && text(4)
	case "interval", "timestamptz":
		return modified && text(4)
	case "numeric", "decimal":
		return modified && (text(4) || text(6))
	}
	return false
}

var intervalUnits = map[string]bool{"year": true, "month": true, "day": true, "hour": true, "minute": true, "second": true}

// name reads a column, with the fields behind it.
func (p *parser) name() node {
	t := p.tok()
	p.i++
	e := &Name{At: t.pos, Parts: []string{t.text}}
	for p.symbol(".") {
		f := p.tok()
		if f.kind != word && f.kind != quoted {
			if p.isSymbol("*") {
				panic(p.failHint("Write * alone, or name the fields.", "* behind a name is not supported"))
			}
			panic(p.syntax("expected the name of a field"))
		}
		p.i++
		if len(e.Parts) == MaxDepth {
			panic(p.failAt(f.pos, "", "a name has too many parts"))
		}
		e.Parts = append(e.Parts, f.text)
	}
	if p.isSymbol("(") {
		panic(p.failAt(t.pos, "Functions have no schema before their names.", "functions in schemas are not supported"))
	}
	return leaf(e)
}

func (p *parser) caseOf() node {
	e := &Case{At: p.tok().pos}
	p.i++
	var parts []node
	part := func() Expr {
		parts = append(parts, p.nested())
		return parts[len(parts)-1].e
	}
	if !p.isWord("when") {
		e.Operand = part()
	}
	for p.word("when") {
		cond := part()
		p.expectWord("then")
		e.Whens = append(e.Whens, When{cond, part()})
	}
	if len(e.Whens) == 0 {
		panic(p.syntax("expected WHEN"))
	}
	if p.word("else") {
		e.Else = part()
	}
	p.expectWord("end")
	return p.over(e, parts...)
}

// cast reads CAST (x AS type).
func (p *parser) cast() node {
	t := p.tok()
	if t.text == "try_cast" {
		panic(p.failHint("CAST makes what does not fit null.", "TRY_CAST is not supported"))
	}
	p.i += 2
	n := p.nested()
	p.expectWord("as")
	typ := p.typeName()
	p.expectSymbol(")")
	return p.over(&Cast{At: t.pos, X: n.e, Type: typ}, n)
}
