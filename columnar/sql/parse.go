package sql

import (
	"strconv"
	"strings"

	"scribe/columnar/near"
)

// Bounds of a query text.
const (
	// MaxText is the maximum length of a text in bytes.
	MaxText = 64 << 10
	// MaxDepth is the maximum nesting depth of expressions: parentheses, operands and chains of operators that associate to one
	// side.
	MaxDepth = 100
	// MaxList is the maximum number of elements in an IN list.
	MaxList = 10_000
	// MaxParameters is the maximum number of parameters.
	MaxParameters = 1000
)

// Parse parses a query. Errors are of type *[Error].
func Parse(text string) (*Select, error) { return parseText(text, nil, (*queryParser).parseQuery) }

// ParsePredicate parses a condition, as after WHERE. Errors are of type *[Error].
func ParsePredicate(text string) (*Predicate, error) {
	return parseText(text, nil, (*queryParser).parsePredicate)
}

// ParseStatement parses a text that may also ask for the tables or for the columns of one. Exactly one result is not nil. Errors are of
// type *[Error].
func ParseStatement(text string) (*Select, *Show, error) {
	show, err := parseText(text, nil, (*queryParser).parseShow)
	if show != nil || err != nil {
		return nil, show, err
	}
	q, err := Parse(text)
	return q, nil, err
}

// parseText parses a text by a grammar rule. The lexer and the rules panic with an *Error, which parseText recovers.
func parseText[T any](text string, parameters *boundParameters, rule func(p *queryParser) T) (tree T, err error) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case *Error:
			err = e
		default:
			panic(e)
		}
	}()
	return rule(&queryParser{queryText: queryText{text}, tokens: tokenize(text), parameters: parameters}), nil
}

type queryParser struct {
	queryText
	tokens []queryToken
	i      int
	depth  int
	// parameters are the values of parameters; nil if the text must not have any.
	parameters *boundParameters
}

func (p *queryParser) token() *queryToken { return &p.tokens[p.i] }

// tokenAhead returns the token n after the current one, or the end token.
func (p *queryParser) tokenAhead(n int) *queryToken { return &p.tokens[min(p.i+n, len(p.tokens)-1)] }

func (p *queryParser) isWord(w string) bool { t := p.token(); return t.kind == word && t.text == w }

func (p *queryParser) isSymbol(s string) bool { t := p.token(); return t.kind == symbol && t.text == s }

// acceptWord skips the next token if it is the keyword w.
func (p *queryParser) acceptWord(w string) bool { return p.skipIf(p.isWord(w)) }

// acceptSymbol skips the next token if it is the symbol s.
func (p *queryParser) acceptSymbol(s string) bool { return p.skipIf(p.isSymbol(s)) }

func (p *queryParser) skipIf(found bool) bool {
	if found {
		p.i++
	}
	return found
}

func (p *queryParser) expectWord(w string) {
	p.failIf(!p.acceptWord(w), "expected "+strings.ToUpper(w))
}

func (p *queryParser) expectSymbol(s string) {
	p.failIf(!p.acceptSymbol(s), "expected \""+s+"\"")
}

// syntaxError returns the error for an unexpected current token.
func (p *queryParser) syntaxError(hint string) *Error {
	t := p.token()
	if t.kind == word && unsupported[t.text] != "" {
		return p.errorHere(unsupported[t.text], strings.ToUpper(t.text)+" is not supported")
	}
	if t.kind == symbol && classes[t.text[0]]&classOp != 0 && operators[t.text] == 0 {
		return p.operatorError()
	}
	if hint != "" {
		hint = capitalize(hint) + "."
	}
	if t.kind == end {
		return p.errorAt(t.pos, hint, "syntax error at end of input")
	}
	return p.Errorf(t.pos, hint, `syntax error at or near "%s"`, ClipText(p.text[t.pos:t.end]))
}

// failIf fails with a syntax error at the current token.
func (p *queryParser) failIf(unexpected bool, hint string) {
	if unexpected {
		panic(p.syntaxError(hint))
	}
}

func (p *queryParser) errorHere(hint, message string) *Error {
	return p.errorAt(p.token().pos, hint, message)
}

// refuseIf refuses what is found at the current token.
func (p *queryParser) refuseIf(found bool, hint, message string) {
	p.refuseAt(found, p.token().pos, hint, message)
}

// enterLevel enters a level of nesting; leaveLevel leaves it.
func (p *queryParser) enterLevel(pos int) {
	if p.depth++; p.depth > MaxDepth {
		panic(p.errorAt(pos, "A long chain of ANDs, of ORs or of arguments is no nesting.", "expressions nest deeper than "+strconv.Itoa(MaxDepth)+" levels"))
	}
}

func (p *queryParser) leaveLevel() { p.depth-- }

// parsePredicate parses a whole text as a condition.
func (p *queryParser) parsePredicate() *Predicate {
	p.refuseIf(p.isWord("where"), "Leave out the word WHERE: a filter is the condition alone.", "a filter is a condition")
	where := p.parseExpr()
	p.parseEnd()
	return &Predicate{Where: where, queryText: p.queryText}
}

// parseQuery parses a whole text as a query.
func (p *queryParser) parseQuery() *Select {
	p.refuseIf(p.token().kind == end, "A query is SELECT ... FROM category.", "the query is empty")
	q := &Select{Limit: -1, queryText: p.queryText}
	p.parseVerb(q)
	for more := true; more; more = p.acceptSymbol(",") {
		q.Items = append(q.Items, p.parseItem())
	}
	p.parseFrom(q)
	if p.acceptWord("where") {
		q.Where = p.parseExpr()
	}
	p.parseGrouping(q)
	p.parseOrdering(q)
	p.parseEnd()
	return q
}

// parseVerb skips SELECT and rejects other statements.
func (p *queryParser) parseVerb(q *Select) {
	t := p.token()
	if !p.acceptWord("select") {
		switch {
		case p.isSymbol("("):
			panic(p.errorHere("Leave the parentheses out.", "a query in parentheses is not supported"))
		case t.kind != word:
			panic(p.syntaxError("a query begins with SELECT"))
		case t.text == "with":
			panic(p.errorHere("Only one SELECT over one category is.", "WITH is not supported"))
		case t.text == "explain":
			panic(p.errorHere("Ask for the plan where the query is started: scribe query --explain.", "EXPLAIN is not supported"))
		case t.text == "show", t.text == "describe":
			panic(p.errorHere("It is not a query of rows: it is for SQL servers and scribe query.", strings.ToUpper(t.text)+" is not supported here"))
		case statements[t.text]:
			panic(p.errorHere("Queries read. Messages are written by producers.", strings.ToUpper(t.text)+" is not supported"))
		}
		p.failIf(len(near.Names(t.text, []string{"select"})) > 0, "perhaps you meant SELECT")
		panic(p.syntaxError("a query begins with SELECT"))
	}
	if q.Distinct = p.acceptWord("distinct"); q.Distinct {
		p.refuseIf(p.isWord("on"), "Use GROUP BY with min() or max().", "DISTINCT ON is not supported")
		return
	}
	p.acceptWord("all")
}

var statements = map[string]bool{
	"insert": true, "update": true, "delete": true, "merge": true, "create": true, "drop": true, "alter": true, "truncate": true, "copy": true,
	"values": true, "table": true, "set": true, "begin": true, "commit": true, "rollback": true, "declare": true, "call": true,
}

func (p *queryParser) parseItem() Item {
	t := p.token()
	if p.acceptSymbol("*") {
		return Item{At: t.pos, Star: true}
	}
	p.failIf(p.isWord("from"), "the SELECT list is empty: write * or count(*)")
	if name := t.kind == word || t.kind == quoted; name && p.tokenAhead(1).text == "." && p.tokenAhead(2).kind == symbol && p.tokenAhead(2).text == "*" {
		panic(p.errorAt(t.pos, "Write * alone.", "* after a name is not supported"))
	}
	e := p.parseExpr()
	return Item{At: t.pos, Expr: e, Alias: p.parseAlias()}
}

// parseAlias parses an optional [AS] name.
func (p *queryParser) parseAlias() string {
	t := p.token()
	if p.acceptWord("as") {
		t = p.token()
		p.failIf(t.kind != word && t.kind != quoted, "expected a name after AS")
		p.i++
		return t.text
	}
	if t.kind == quoted || t.kind == word && keywords[t.text]&notBare == 0 {
		p.i++
		return t.text
	}
	return ""
}

// parseFrom parses FROM and the category.
func (p *queryParser) parseFrom(q *Select) {
	if !p.acceptWord("from") {
		if p.token().kind == end || p.isSymbol(";") {
			panic(p.errorHere("Name a category: FROM category.", "the query has no FROM"))
		}
		if alias := q.Items[len(q.Items)-1].Alias; len(near.Names(alias, []string{"from"})) > 0 {
			panic(p.syntaxError("perhaps \"" + alias + "\" was meant to be FROM"))
		}
		panic(p.syntaxError("expected FROM"))
	}
	t := p.token()
	switch {
	case p.isSymbol("("):
		panic(p.errorHere("A query is over one category.", "subqueries are not supported"))
	case t.kind == str:
		panic(p.syntaxError("names are in double quotes: \"" + ClipText(t.text) + "\""))
	case t.kind == word && (t.text == "only" || t.text == "lateral") && p.tokenAhead(1).kind == word:
		panic(p.errorHere("", strings.ToUpper(t.text)+" is not supported"))
	}
	q.From.Category = p.parseCategory()
	q.From.Alias = p.parseAlias()
	p.otherSources()
}

// parseCategory parses identifiers separated by dots.
func (p *queryParser) parseCategory() string {
	var parts []string
	for more := true; more; more = p.acceptSymbol(".") {
		t := p.token()
		if t.kind != quoted && (t.kind != word || keywords[t.text]&notColumn != 0) {
			panic(p.nameError("category"))
		}
		p.i++
		parts = append(parts, t.text)
	}
	if t := p.token(); t.kind == symbol && (t.text == "-" || t.text == "(") {
		p.refuseIf(t.text == "(", "", "functions in FROM are not supported")
		panic(p.syntaxError("write names with a - in double quotes: FROM \"web-access\""))
	}
	return strings.Join(parts, ".")
}

// nameError returns the error for a missing name. A reserved word needs quotes.
func (p *queryParser) nameError(what string) *Error {
	if t := p.token(); t.kind == word {
		return p.syntaxError("\"" + t.text + "\" is a reserved word; as the name of a " + what + " it has to be in double quotes")
	}
	return p.syntaxError("expected the name of a " + what)
}

// otherSources rejects a second source.
func (p *queryParser) otherSources() {
	t := p.token()
	p.refuseIf(p.isSymbol(","), "A query is over one category.", "several categories in FROM are not supported")
	if t.kind != word {
		return
	}
	switch t.text {
	case "join", "inner", "left", "right", "full", "cross", "natural":
		panic(p.errorHere("A query is over one category.", "JOIN is not supported"))
	case "tablesample":
		panic(p.errorHere("Use LIMIT, or a condition such as _offset % 100 = 0.", "TABLESAMPLE is not supported"))
	}
}

// parseGrouping parses GROUP BY and HAVING.
func (p *queryParser) parseGrouping(q *Select) {
	if p.acceptWord("group") {
		p.expectWord("by")
		if t := p.token(); t.kind == word && (t.text == "rollup" || t.text == "cube" || t.text == "grouping" || t.text == "distinct") {
			panic(p.errorHere("GROUP BY takes expressions, names of the SELECT list, and numbers of its elements.", "GROUP BY "+strings.ToUpper(t.text)+" is not supported"))
		}
		for more := true; more; more = p.acceptSymbol(",") {
			q.GroupBy = append(q.GroupBy, p.parseExpr())
		}
	}
	if p.acceptWord("having") {
		q.Having = p.parseExpr()
	}
}

// parseOrdering parses ORDER BY and LIMIT.
func (p *queryParser) parseOrdering(q *Select) {
	if p.acceptWord("order") {
		p.expectWord("by")
		for more := true; more; more = p.acceptSymbol(",") {
			q.OrderBy = append(q.OrderBy, p.parseOrder())
		}
	}
	for limited, skipped := false, false; ; { // in either order
		switch {
		case !limited && p.acceptWord("limit"):
			limited = true
			p.parseLimit(q)
		case !skipped && p.acceptWord("offset"):
			skipped = true
			p.parseOffset(q)
		default:
			return
		}
	}
}

func (p *queryParser) parseOrder() Order {
	o := Order{Expr: p.parseExpr()}
	p.refuseIf(p.isWord("using"), "Use ASC or DESC.", "ORDER BY ... USING is not supported")
	if !p.acceptWord("asc") {
		o.Desc = p.acceptWord("desc")
	}
	if p.acceptWord("nulls") {
		switch {
		case p.acceptWord("first"):
			o.Nulls = NullsFirst
		case p.acceptWord("last"):
			o.Nulls = NullsLast
		default:
			panic(p.syntaxError("expected FIRST or LAST"))
		}
	}
	return o
}

func (p *queryParser) parseLimit(q *Select) {
	if p.acceptWord("all") {
		return
	}
	if n, ok := p.parseCount("LIMIT"); ok {
		q.Limit = n
	}
	p.refuseIf(p.isSymbol(","), "Write LIMIT # OFFSET #.", "LIMIT #,# is not supported")
}

func (p *queryParser) parseOffset(q *Select) {
	q.Offset, _ = p.parseCount("OFFSET")
	if !p.acceptWord("rows") {
		p.acceptWord("row")
	}
}

// parseCount parses the number of a LIMIT or OFFSET. It returns false for NULL, which means none.
func (p *queryParser) parseCount(clause string) (int64, bool) {
	t := p.token()
	text := t.text
	if e := p.parseParameter(); e != nil {
		switch e := e.(type) {
		case *Null:
			return 0, false
		case *Number:
			text = e.Text
		case *String:
			text = e.Value
		default:
			panic(p.errorAt(t.pos, "", clause+" takes a number that is not negative"))
		}
	} else {
		if p.acceptWord("null") {
			return 0, false
		}
		p.refuseAt(p.acceptSymbol("-"), t.pos, "", clause+" must not be negative")
		p.failIf(t.kind != number, clause+" takes a number")
		p.i++
	}
	n, err := strconv.ParseInt(text, 10, 64)
	p.refuseAt(err != nil || n < 0, t.pos, "It is an integer of at most 63 bits, and not negative.", clause+" "+ClipText(text)+" is not supported")
	return n, true
}

// unsupported maps words after a query that PostgreSQL supports and this language does not to a hint.
var unsupported = map[string]string{
	"union":     "Run two queries.",
	"intersect": "Run two queries.",
	"except":    "Use conditions with NOT.",
	"fetch":     "Use LIMIT.",
	"for":       "Queries read only.",
	"window":    "Windows of time are keys: GROUP BY date_bin('5 minutes', _time, '2000-01-01').",
	"into":      "The answer goes to whoever asks.",
	"at":        "Instants are in UTC: add an interval for another zone.",
	"collate":   "Texts compare by their bytes.",
	"overlaps":  "Compare the ends.",
}

// parseEnd checks for the end of the text.
func (p *queryParser) parseEnd() {
	p.acceptSymbol(";")
	t := p.token()
	switch {
	case t.kind == end:
		return
	case p.i > 0 && p.tokens[p.i-1].text == ";" && p.tokens[p.i-1].kind == symbol:
		panic(p.errorHere("Send one query.", "several statements are not supported"))
	case t.kind == word && (t.text == "where" || t.text == "group" || t.text == "having" || t.text == "order" || t.text == "limit" || t.text == "offset"):
		panic(p.syntaxError("the order is SELECT, FROM, WHERE, GROUP BY, HAVING, ORDER BY, LIMIT, OFFSET, each once"))
	}
	panic(p.syntaxError(""))
}
