package sql

// call reads a function with arguments in parentheses, and what may follow those.
func (p *parser) call() (node, error) {
	t := p.tok()
	e := &Call{At: t.pos, Func: t.text}
	if t.kind == quoted && (t.text == "extract" || t.text == "position") {
		return node{}, p.syntax("write " + t.text + "() without quotes")
	}
	p.i += 2
	var highest node
	switch {
	case p.isSymbol("*") && p.ahead(1).text == ")":
		p.i += 2
		e.Star = true
	default:
		if p.word("distinct") {
			e.Distinct = true
		} else {
			p.word("all")
		}
		var err error
		if e.Args, highest, err = p.list(); err != nil {
			return node{}, err
		}
	}
	return p.aggregate(e, highest)
}

// aggregate reads what may stand behind the arguments of one.
func (p *parser) aggregate(e *Call, highest node) (node, error) {
	if p.isWord("within") && p.ahead(1).text == "group" {
		return node{}, p.failHint("Use approx_quantile(x, 0.5).", "WITHIN GROUP is not supported")
	}
	if p.isWord("filter") && p.ahead(1).text == "(" {
		p.i += 2
		if err := p.expectWord("where"); err != nil {
			return node{}, err
		}
		n, err := p.nested()
		if err != nil {
			return node{}, err
		}
		if err := p.expectSymbol(")"); err != nil {
			return node{}, err
		}
		e.Filter = n.e
		if n.height > highest.height {
			highest = n
		}
	}
	if p.isWord("over") {
		return node{}, p.failHint("Aggregates are per group: GROUP BY.", "window functions (OVER) are not supported")
	}
	return p.over(e, highest)
}

// special reads the functions that have words between their arguments.
func (p *parser) special() (node, error) {
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
		return node{}, p.failAt(t.pos, "Use substring() and ||.", "overlay() is not supported")
	}
}

func (p *parser) extract(t *token) (node, error) {
	f := p.tok()
	if f.kind != word && f.kind != quoted && f.kind != str {
		return node{}, p.syntax("expected a field, as in extract(hour FROM x)")
	}
	p.i++
	if err := p.expectWord("from"); err != nil {
		return node{}, err
	}
	return p.closed(&Call{At: t.pos, Func: "extract", Args: []Expr{&String{At: f.pos, Value: f.text}}}, leaf(nil))
}

// closed reads the last argument of a call, and the closing parenthesis.
func (p *parser) closed(e *Call, others ...node) (node, error) {
	n, err := p.nested()
	if err != nil {
		return node{}, err
	}
	e.Args = append(e.Args, n.e)
	if err := p.expectSymbol(")"); err != nil {
		return node{}, err
	}
	return p.over(e, append(others, n)...)
}

func (p *parser) position(t *token) (node, error) {
	if err := p.enter(t.pos); err != nil {
		return node{}, err
	}
	defer p.leave()
	what, err := p.binary(precLike + 1)
	if err != nil {
		return node{}, err
	}
	if !p.word("in") {
		return node{}, p.syntax("write position(what IN text), or strpos(text, what)")
	}
	in, err := p.binary(precLike + 1)
	if err != nil {
		return node{}, err
	}
	if err := p.expectSymbol(")"); err != nil {
		return node{}, err
	}
	return p.over(&Call{At: t.pos, Func: "position", Args: []Expr{what.e, in.e}}, what, in)
}

// substring reads its arguments with commas, or with FROM and FOR in any order.
func (p *parser) substring(t *token) (node, error) {
	x, err := p.nested()
	if err != nil {
		return node{}, err
	}
	if p.symbol(",") {
		list, highest, err := p.list()
		if err != nil {
			return node{}, err
		}
		return p.over(&Call{At: t.pos, Func: "substring", Args: append([]Expr{x.e}, list...)}, x, highest)
	}
	var from, length node
	for {
		part := &from
		switch {
		case p.isWord("from") && from.e == nil:
		case p.isWord("for") && length.e == nil:
			part = &length
		case p.isWord("similar"):
			return node{}, p.failHint("", "substring(... SIMILAR ...) is not supported")
		default:
			if from.e == nil && length.e == nil {
				return node{}, p.syntax("write substring(text FROM start FOR length), or substring(text, start, length)")
			}
			if err := p.expectSymbol(")"); err != nil {
				return node{}, err
			}
			return p.substringOf(t, x, from, length)
		}
		p.i++
		if *part, err = p.nested(); err != nil {
			return node{}, err
		}
	}
}

func (p *parser) substringOf(t *token, x, from, length node) (node, error) {
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
func (p *parser) trim(t *token) (node, error) {
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
	first, err := p.nested()
	if err != nil {
		return node{}, err
	}
	if p.word("from") {
		x, err := p.nested()
		if err != nil {
			return node{}, err
		}
		e.Args = []Expr{x.e, first.e}
		if err := p.expectSymbol(")"); err != nil {
			return node{}, err
		}
		return p.over(e, x, first)
	}
	e.Args = []Expr{first.e}
	if p.symbol(",") {
		return p.closed(e, first)
	}
	if err := p.expectSymbol(")"); err != nil {
		return node{}, err
	}
	return p.over(e, first)
}
