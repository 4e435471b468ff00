package sql

import (
	"strconv"
	"strings"

	"scribe/columnar/near"
)

// Bounds of a text.
const (
	// MaxText is how long a text is at most, in bytes.
	MaxText = 64 << 10
	// MaxDepth is how deep expressions nest at most: parentheses, operands and chains of operators that associate to one side.
	MaxDepth = 100
	// MaxList is how many elements an IN list has at most.
	MaxList = 10_000
)

// Parse reads a query. Errors are *[Error].
func Parse(text string) (*Select, error) { return parse(text, (*parser).query) }

// ParsePredicate reads a condition, what stands behind WHERE. Errors are *[Error].
func ParsePredicate(text string) (*Predicate, error) { return parse(text, (*parser).predicate) }

// parse reads a text by a rule. The lexer and the rules panic with an *Error, which ends here.
func parse[T any](text string, rule func(p *parser) T) (tree T, err error) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case *Error:
			err = e
		default:
			panic(e)
		}
	}()
	return rule(&parser{text: text, tokens: tokenize(text)}), nil
}

type parser struct {
	text   string
	tokens []token
	i      int
	depth  int
}

func (p *parser) tok() *token { return &p.tokens[p.i] }

// ahead returns the token n behind the current one, the end behind the last.
func (p *parser) ahead(n int) *token { return &p.tokens[min(p.i+n, len(p.tokens)-1)] }

func (p *parser) isWord(w string) bool   { t := p.tok(); return t.kind == word && t.text == w }
func (p *parser) isSymbol(s string) bool { t := p.tok(); return t.kind == symbol && t.text == s }

// word passes a keyword if it is next.
func (p *parser) word(w string) bool {
	if p.isWord(w) {
		p.i++
		return true
	}
	return false
}

// symbol passes a symbol if it is next.
func (p *parser) symbol(s string) bool {
	if p.isSymbol(s) {
		p.i++
		return true
	}
	return false
}

func (p *parser) expectWord(w string) {
	if !p.word(w) {
		panic(p.syntax("expected " + strings.ToUpper(w)))
	}
}

func (p *parser) expectSymbol(s string) {
	if !p.symbol(s) {
		panic(p.syntax("expected \"" + s + "\""))
	}
}

// syntax is the error that the current token fits nowhere.
func (p *parser) syntax(hint string) *Error {
	t := p.tok()
	if t.kind == word && unsupported[t.text] != "" {
		return p.failHint(unsupported[t.text], strings.ToUpper(t.text)+" is not supported")
	}
	if t.kind == symbol && classes[t.text[0]]&classOp != 0 && operatorOf(t.text) == 0 {
		return p.unknownOperator()
	}
	if hint != "" {
		hint = sentence(hint) + "."
	}
	if t.kind == end {
		return newError(p.text, t.pos, "syntax error at end of input", hint)
	}
	return newError(p.text, t.pos, "syntax error at or near \""+shorten(p.text[t.pos:t.end])+"\"", hint)
}

func (p *parser) failHint(hint, message string) *Error { return p.failAt(p.tok().pos, hint, message) }

func (p *parser) failAt(pos int, hint, message string) *Error {
	return newError(p.text, pos, message, hint)
}

// enter counts a level of nesting; leave takes it back.
func (p *parser) enter(pos int) {
	if p.depth++; p.depth > MaxDepth {
		panic(p.failAt(pos, "A long chain of ANDs, of ORs or of arguments is no nesting.", "expressions nest deeper than "+strconv.Itoa(MaxDepth)+" levels"))
	}
}

func (p *parser) leave() { p.depth-- }

// predicate reads a whole text that is a condition.
func (p *parser) predicate() *Predicate {
	if p.isWord("where") {
		panic(p.failHint("Leave out the word WHERE: a filter is the condition alone.", "a filter is a condition"))
	}
	where := p.expr()
	p.finish()
	return &Predicate{Where: where, text: p.text}
}

// query reads a whole text.
func (p *parser) query() *Select {
	if p.tok().kind == end {
		panic(p.failHint("A query is SELECT ... FROM category.", "the query is empty"))
	}
	p.verb()
	q := &Select{Limit: -1, text: p.text}
	for more := true; more; more = p.symbol(",") {
		q.Items = append(q.Items, p.item())
	}
	p.from(q)
	if p.word("where") {
		q.Where = p.expr()
	}
	p.grouping(q)
	p.ordering(q)
	p.finish()
	return q
}

// verb passes SELECT, and says of other statements that there are none.
func (p *parser) verb() {
	t := p.tok()
	if !p.word("select") {
		switch {
		case p.isSymbol("("):
			panic(p.failHint("Leave the parentheses out.", "a query in parentheses is not supported"))
		case t.kind != word:
			panic(p.syntax("a query begins with SELECT"))
		case t.text == "with":
			panic(p.failHint("Only one SELECT over one category is.", "WITH is not supported"))
		case t.text == "explain":
			panic(p.failHint("Ask for the plan where the query is started: scribe query --explain.", "EXPLAIN is not supported"))
		case statements[t.text]:
			panic(p.failHint("Queries read. Messages are written by producers.", strings.ToUpper(t.text)+" is not supported"))
		}
		if len(near.Names(t.text, []string{"select"})) > 0 {
			panic(p.syntax("perhaps you meant SELECT"))
		}
		panic(p.syntax("a query begins with SELECT"))
	}
	if p.isWord("distinct") {
		panic(p.failHint("Use GROUP BY with the same expressions.", "SELECT DISTINCT is not supported"))
	}
	p.word("all")
}

var statements = map[string]bool{
	"insert": true, "update": true, "delete": true, "merge": true, "create": true, "drop": true, "alter": true, "truncate": true, "copy": true,
	"values": true, "table": true, "set": true, "show": true, "begin": true, "commit": true, "rollback": true, "declare": true, "call": true,
}

func (p *parser) item() Item {
	t := p.tok()
	if p.symbol("*") {
		return Item{At: t.pos, Star: true}
	}
	if p.isWord("from") {
		panic(p.syntax("the SELECT list is empty: write * or count(*)"))
	}
	if name := t.kind == word || t.kind == quoted; name && p.ahead(1).text == "." && p.ahead(2).kind == symbol && p.ahead(2).text == "*" {
		panic(p.failAt(t.pos, "Write * alone.", "* behind a name is not supported"))
	}
	e := p.expr()
	return Item{At: t.pos, Expr: e, Alias: p.alias()}
}

// alias reads [AS] name, if there is one.
func (p *parser) alias() string {
	t := p.tok()
	if p.word("as") {
		t = p.tok()
		if t.kind != word && t.kind != quoted {
			panic(p.syntax("expected a name behind AS"))
		}
		p.i++
		return t.text
	}
	if t.kind == quoted || t.kind == word && !keywords[t.text].noBareAlias() {
		p.i++
		return t.text
	}
	return ""
}

// from reads FROM and the category.
func (p *parser) from(q *Select) {
	if !p.word("from") {
		if p.tok().kind == end || p.isSymbol(";") {
			panic(p.failHint("Name a category: FROM category.", "the query has no FROM"))
		}
		panic(p.syntax(p.missingFrom(q)))
	}
	t := p.tok()
	q.From.At = t.pos
	switch {
	case p.isSymbol("("):
		panic(p.failHint("A query is over one category.", "subqueries are not supported"))
	case t.kind == str:
		panic(p.syntax("names are in double quotes: \"" + shorten(t.text) + "\""))
	case t.kind == word && (t.text == "only" || t.text == "lateral") && p.ahead(1).kind == word:
		panic(p.failHint("", strings.ToUpper(t.text)+" is not supported"))
	}
	q.From.Category = p.categoryName()
	q.From.Alias = p.alias()
	p.otherSources()
}

// missingFrom is the hint for a query in which something else is where FROM should be.
func (p *parser) missingFrom(q *Select) string {
	if alias := q.Items[len(q.Items)-1].Alias; alias != "" {
		if len(near.Names(alias, []string{"from"})) > 0 {
			return "perhaps \"" + alias + "\" was meant to be FROM"
		}
	}
	return "expected FROM"
}

// categoryName reads identifiers with dots between them.
func (p *parser) categoryName() string {
	var parts []string
	for more := true; more; more = p.symbol(".") {
		t := p.tok()
		if t.kind != quoted && (t.kind != word || keywords[t.text].noColumn()) {
			panic(p.unquoted("category"))
		}
		p.i++
		parts = append(parts, t.text)
	}
	if t := p.tok(); t.kind == symbol && (t.text == "-" || t.text == "(") {
		if t.text == "(" {
			panic(p.failHint("", "functions in FROM are not supported"))
		}
		panic(p.syntax("write names with a - in double quotes: FROM \"web-access\""))
	}
	return strings.Join(parts, ".")
}

// unquoted is the error that a name was expected; a reserved word needs quotes.
func (p *parser) unquoted(what string) *Error {
	if t := p.tok(); t.kind == word {
		return p.syntax("\"" + t.text + "\" is a reserved word; as the name of a " + what + " it has to be in double quotes")
	}
	return p.syntax("expected the name of a " + what)
}

// otherSources says of a second source that there is none.
func (p *parser) otherSources() {
	t := p.tok()
	if p.isSymbol(",") {
		panic(p.failHint("A query is over one category.", "several categories in FROM are not supported"))
	}
	if t.kind != word {
		return
	}
	switch t.text {
	case "join", "inner", "left", "right", "full", "cross", "natural":
		panic(p.failHint("A query is over one category.", "JOIN is not supported"))
	case "tablesample":
		panic(p.failHint("Use LIMIT, or a condition such as _offset % 100 = 0.", "TABLESAMPLE is not supported"))
	}
}

// grouping reads GROUP BY and HAVING.
func (p *parser) grouping(q *Select) {
	if p.word("group") {
		p.expectWord("by")
		if t := p.tok(); t.kind == word && (t.text == "rollup" || t.text == "cube" || t.text == "grouping" || t.text == "distinct") {
			panic(p.failHint("GROUP BY takes expressions, names of the SELECT list, and numbers of its elements.", "GROUP BY "+strings.ToUpper(t.text)+" is not supported"))
		}
		for more := true; more; more = p.symbol(",") {
			q.GroupBy = append(q.GroupBy, p.expr())
		}
	}
	if p.word("having") {
		q.Having = p.expr()
	}
}

// ordering reads ORDER BY and LIMIT.
func (p *parser) ordering(q *Select) {
	if p.isWord("window") {
		panic(p.failHint("Windows of time are keys: GROUP BY date_bin('5 minutes', _time, '2000-01-01').", "WINDOW is not supported"))
	}
	if p.word("order") {
		p.expectWord("by")
		for more := true; more; more = p.symbol(",") {
			q.OrderBy = append(q.OrderBy, p.order())
		}
	}
	if p.word("limit") {
		p.limit(q)
	}
}

func (p *parser) order() Order {
	o := Order{Expr: p.expr()}
	if p.isWord("using") {
		panic(p.failHint("Use ASC or DESC.", "ORDER BY ... USING is not supported"))
	}
	if !p.word("asc") {
		o.Desc = p.word("desc")
	}
	if p.word("nulls") {
		switch {
		case p.word("first"):
			o.Nulls = NullsFirst
		case p.word("last"):
			o.Nulls = NullsLast
		default:
			panic(p.syntax("expected FIRST or LAST"))
		}
	}
	return o
}

func (p *parser) limit(q *Select) {
	t := p.tok()
	if p.word("all") || p.word("null") {
		return
	}
	if p.symbol("-") {
		panic(p.failAt(t.pos, "", "LIMIT must not be negative"))
	}
	if t.kind != number {
		panic(p.syntax("LIMIT takes a number"))
	}
	n, err := strconv.ParseInt(t.text, 10, 64)
	if err != nil {
		panic(p.failHint("It is an integer of at most 63 bits.", "LIMIT "+shorten(t.text)+" is not supported"))
	}
	p.i++
	q.Limit, q.LimitAt = n, t.pos
	if p.isSymbol(",") {
		panic(p.failHint("There is no OFFSET either; a reader begins where it is told to.", "LIMIT #,# is not supported"))
	}
}

// unsupported are the words behind a query that PostgreSQL has and this language has not, with what to do instead.
var unsupported = map[string]string{
	"union":     "Run two queries.",
	"intersect": "Run two queries.",
	"except":    "Use conditions with NOT.",
	"offset":    "A reader begins where it is told to: scribe query --from.",
	"fetch":     "Use LIMIT.",
	"for":       "Queries read only.",
	"window":    "Windows of time are keys: GROUP BY date_bin('5 minutes', _time, '2000-01-01').",
	"into":      "The answer goes to whoever asks.",
	"at":        "Instants are in UTC: add an interval for another zone.",
	"collate":   "Texts compare by their bytes.",
	"overlaps":  "Compare the ends.",
}

// finish passes the end of the text.
func (p *parser) finish() {
	p.symbol(";")
	t := p.tok()
	switch {
	case t.kind == end:
		return
	case p.i > 0 && p.tokens[p.i-1].text == ";" && p.tokens[p.i-1].kind == symbol:
		panic(p.failHint("Send one query.", "several statements are not supported"))
	case t.kind == word && (t.text == "where" || t.text == "group" || t.text == "having" || t.text == "order" || t.text == "limit"):
		panic(p.syntax("the order is SELECT, FROM, WHERE, GROUP BY, HAVING, ORDER BY, LIMIT, each once"))
	}
	panic(p.syntax(""))
}
