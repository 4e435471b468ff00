package sql

// primary reads an operand.
func (p *parser) primary() (node, error) {
	t := p.tok()
	switch t.kind {
	case number:
		p.i++
		return leaf(&Number{At: t.pos, Text: t.text}), nil
	case str:
		p.i++
		return leaf(&String{At: t.pos, Value: t.text}), nil
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
	return node{}, p.syntax("expected an expression")
}

// parentheses reads an expression in them.
func (p *parser) parentheses() (node, error) {
	at := p.tok().pos
	p.i++
	if p.isWord("select") || p.isWord("with") || p.isWord("values") && p.ahead(1).text == "(" {
		return node{}, p.failHint("A query is over one category.", "subqueries are not supported")
	}
	n, err := p.nested()
	if err != nil {
		return node{}, err
	}
	if p.isSymbol(",") {
		return node{}, p.failAt(at, "Compare the values one by one, with AND.", "rows of several values are not supported")
	}
	return n, p.expectSymbol(")")
}

// keyword reads an operand that begins with a word.
func (p *parser) keyword() (node, error) {
	t, next := p.tok(), p.ahead(1)
	call := next.kind == symbol && next.text == "("
	switch t.text {
	case "null":
		p.i++
		return leaf(&Null{At: t.pos}), nil
	case "true", "false":
		p.i++
		return leaf(&Bool{At: t.pos, Value: t.text == "true"}), nil
	case "case":
		return p.caseOf()
	case "cast", "try_cast":
		if call {
			return p.cast()
		}
	case "current_timestamp", "localtimestamp", "current_date":
		p.i++
		if call {
			return node{}, p.failHint("Use date_trunc().", upper(t.text)+" with a precision is not supported")
		}
		return leaf(&Call{At: t.pos, Func: t.text}), nil
	case "array":
		return node{}, p.failHint("Write x IN (...).", "ARRAY is not supported")
	case "row":
		if call {
			return node{}, p.failHint("Compare the values one by one, with AND.", "rows of several values are not supported")
		}
	case "exists":
		if call {
			return node{}, p.failHint("A query is over one category.", "subqueries are not supported")
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
	if n, ok, err := p.typed(); ok || err != nil {
		return n, err
	}
	if keywords[t.text].noColumn() {
		return node{}, p.unquoted("column")
	}
	if call {
		return p.call()
	}
	return p.name()
}

// typed reads a constant with its type before it, if there is one.
func (p *parser) typed() (node, bool, error) {
	t, from := p.tok(), p.i
	switch next := p.ahead(1); {
	case next.kind == str:
	case t.text == "double" && next.kind == word && next.text == "precision" && p.ahead(2).kind == str:
	case (t.text == "timestamp" || t.text == "time") && next.kind == word && (next.text == "with" || next.text == "without"):
	case t.text == "interval" && next.kind == symbol && next.text == "(" && p.ahead(4).kind == str:
	case (t.text == "timestamp" || t.text == "timestamptz") && next.kind == symbol && next.text == "(" && p.ahead(4).kind == str:
	case (t.text == "numeric" || t.text == "decimal") && next.kind == symbol && next.text == "(" && (p.ahead(4).kind == str || p.ahead(6).kind == str):
	default:
		return node{}, false, nil
	}
	if keywords[t.text].noColumn() {
		return node{}, false, nil
	}
	typ, err := p.typeName()
	if err != nil {
		return node{}, false, err
	}
	v := p.tok()
	if v.kind != str {
		p.i = from
		return node{}, false, nil
	}
	p.i++
	e := &Typed{At: t.pos, Type: typ, Value: v.text}
	if u := p.tok(); typ.Name == "interval" && u.kind == word && intervalUnits[u.text] {
		p.i++
		e.Value += " " + u.text
		if p.isWord("to") {
			return node{}, false, p.failHint("Write the parts out: INTERVAL '1 day 2 hours'.", "ranges of interval units are not supported")
		}
	}
	return leaf(e), true, nil
}

var intervalUnits = map[string]bool{"year": true, "month": true, "day": true, "hour": true, "minute": true, "second": true}

// name reads a column, with the fields behind it.
func (p *parser) name() (node, error) {
	t := p.tok()
	p.i++
	e := &Name{At: t.pos, Parts: []string{t.text}}
	for p.symbol(".") {
		f := p.tok()
		if f.kind != word && f.kind != quoted {
			if p.isSymbol("*") {
				return node{}, p.failHint("Write * alone, or name the fields.", "* behind a name is not supported")
			}
			return node{}, p.syntax("expected the name of a field")
		}
		p.i++
		if len(e.Parts) == MaxDepth {
			return node{}, p.failAt(f.pos, "", "a name has too many parts")
		}
		e.Parts = append(e.Parts, f.text)
	}
	if p.isSymbol("(") {
		return node{}, p.failAt(t.pos, "Functions have no schema before their names.", "functions in schemas are not supported")
	}
	return leaf(e), nil
}

func (p *parser) caseOf() (node, error) {
	e := &Case{At: p.tok().pos}
	p.i++
	var highest node
	part := func() (Expr, error) {
		n, err := p.nested()
		if n.height > highest.height {
			highest = n
		}
		return n.e, err
	}
	var err error
	if !p.isWord("when") {
		if e.Operand, err = part(); err != nil {
			return node{}, err
		}
	}
	for p.word("when") {
		var w When
		if w.Cond, err = part(); err != nil {
			return node{}, err
		}
		if err := p.expectWord("then"); err != nil {
			return node{}, err
		}
		if w.Then, err = part(); err != nil {
			return node{}, err
		}
		e.Whens = append(e.Whens, w)
	}
	if len(e.Whens) == 0 {
		return node{}, p.syntax("expected WHEN")
	}
	if p.word("else") {
		if e.Else, err = part(); err != nil {
			return node{}, err
		}
	}
	if err := p.expectWord("end"); err != nil {
		return node{}, err
	}
	return p.over(e, highest)
}

// cast reads CAST (x AS type).
func (p *parser) cast() (node, error) {
	t := p.tok()
	if t.text == "try_cast" {
		return node{}, p.failHint("CAST makes what does not fit null.", "TRY_CAST is not supported")
	}
	p.i += 2
	n, err := p.nested()
	if err != nil {
		return node{}, err
	}
	if err := p.expectWord("as"); err != nil {
		return node{}, err
	}
	typ, err := p.typeName()
	if err != nil {
		return node{}, err
	}
	if err := p.expectSymbol(")"); err != nil {
		return node{}, err
	}
	return p.over(&Cast{At: t.pos, X: n.e, Type: typ}, n)
}
