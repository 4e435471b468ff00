package sql

// call reads a function with arguments in parentheses, and what may follow those.
func (p *parser) call() node {
	t := p.tok()
	e := &Call{At: t.pos, Func: t.text}
	if t.kind == quoted && (t.text == "extract" || t.text == "position") {
		panic(p.syntax("write " + t.text + "() without quotes"))
	}
	p.i += 2
	var args []node
	if e.Star = p.isSymbol("*") && p.ahead(1).text == ")"; e.Star {
		p.i += 2
	} else {
		if e.Distinct = p.word("distinct"); !e.Distinct {
			p.word("all")
		}
		args = p.list()
		e.Args = expressions(args)
	}
	return p.aggregate(e, args)
}

// aggregate reads what may stand behind the arguments of one.
func (p *parser) aggregate(e *Call, operands []node) node {
	if p.isWord("within") && p.ahead(1).text == "group" {
		panic(p.failHint("Use approx_quantile(x, 0.5).", "WITHIN GROUP is not supported"))
	}
	if p.isWord("filter") && p.ahead(1).text == "(" {
		p.i += 2
		p.expectWord("where")
		n := p.nested()
		p.expectSymbol(")")
		e.Filter, operands = n.e, append(operands, n)
	}
	if p.isWord("over") {
		panic(p.failHint("Aggregates are per group: GROUP BY.", "window functions (OVER) are not supported"))
	}
	return p.over(e, operands...)
}

// special reads the functions that have words between their arguments.
func (p *parser) special() node {
	t := p.tok()
	p.i += 2
	switch t.text {
	case "extract":
		return p.extract(t)
	case "position":
		return p.position(t)
	case "substring":
		return p.substring(t)
	case "trim":
		return p.trim(t)
	default:
		panic(p.failAt(t.pos, "Use substring() and ||.", "overlay() is not supported"))
	}
}

func (p *parser) extract(t *token) node {
	f := p.tok()
	if f.kind != word && f.kind != quoted && f.kind != str {
		panic(p.syntax("expected a field, as in extract(hour FROM x)"))
	}
	p.i++
	p.expectWord("from")
	return p.closed(&Call{At: t.pos, Func: "extract", Args: []Expr{&String{At: f.pos, Value: f.text}}}, leaf(nil))
}

// closed reads the last argument of a call, and the closing parenthesis.
func (p *parser) closed(e *Call, others ...node) node {
	n := p.nested()
	e.Args = append(e.Args, n.e)
	p.expectSymbol(")")
	return p.over(e, append(others, n)...)
}

func (p *parser) position(t *token) node {
	p.enter(t.pos)
	defer p.leave()
	what := p.binary(precLike + 1)
	if !p.word("in") {
		panic(p.syntax("write position(what IN text), or strpos(text, what)"))
	}
	in := p.binary(precLike + 1)
	p.expectSymbol(")")
	return p.over(&Call{At: t.pos, Func: "position", Args: []Expr{what.e, in.e}}, what, in)
}

// substring reads its arguments with commas, or with FROM and FOR in any order.
func (p *parser) substring(t *token) node {
	x := p.nested()
	if p.symbol(",") {
		args := append([]node{x}, p.list()...)
		return p.over(&Call{At: t.pos, Func: "substring", Args: expressions(args)}, args...)
	}
	var from, length node
	for {
		part := &from
		switch {
		case p.isWord("from") && from.e == nil:
		case p.isWord("for") && length.e == nil:
			part = &length
		case p.isWord("similar"):
			panic(p.failHint("", "substring(... SIMILAR ...) is not supported"))
		default:
			if from.e == nil && length.e == nil {
				panic(p.syntax("write substring(text FROM start FOR length), or substring(text, start, length)"))
			}
			p.expectSymbol(")")
			return p.substringOf(t, x, from, length)
		}
		p.i++
		*part = p.nested()
	}
}

func (p *parser) substringOf(t *token, x, from, length node) node {
	if from.e == nil {
		from = leaf(&Number{At: t.pos, Text: "1"})
	}
	e := &Call{At: t.pos, Func: "substring", Args: []Expr{x.e, from.e}}
	if length.e != nil {
		e.Args = append(e.Args, length.e)
	}
	return p.over(e, x, from, length)
}

// trim reads [LEADING | TRAILING | BOTH] [characters] FROM x, or x [, characters]. It is btrim, ltrim or rtrim.
func (p *parser) trim(t *token) node {
	name := "btrim"
	switch {
	case p.word("leading"):
		name = "ltrim"
	case p.word("trailing"):
		name = "rtrim"
	default:
		p.word("both")
	}
	e := &Call{At: t.pos, Func: name}
	if p.word("from") {
		return p.closed(e)
	}
	first := p.nested()
	if p.word("from") {
		x := p.nested()
		e.Args = []Expr{x.e, first.e}
		p.expectSymbol(")")
		return p.over(e, x, first)
	}
	e.Args = []Expr{first.e}
	if p.symbol(",") {
		return p.closed(e, first)
	}
	p.expectSymbol(")")
	return p.over(e, first)
}
