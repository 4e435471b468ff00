package sql

import "strings"

// parseShow parses a whole text as SHOW TABLES, SHOW COLUMNS FROM or DESCRIBE. It returns nil for other texts.
func (p *queryParser) parseShow() *Show {
	s := &Show{}
	switch {
	case p.acceptWord("describe"):
		p.acceptWord("table")
		p.parseShown(s)
	case p.isWord("desc") && p.tokenAhead(1).kind != end: // as PostgreSQL's users of other systems write
		p.i++
		p.parseShown(s)
	case p.acceptWord("show"):
		switch {
		case p.acceptWord("tables"):
		case p.acceptWord("columns"):
			if !p.acceptWord("in") {
				p.expectWord("from")
			}
			p.parseShown(s)
		default:
			panic(p.syntaxError("expected TABLES, or COLUMNS FROM a table"))
		}
	default:
		return nil
	}
	p.parseEnd()
	return s
}

// parseShown parses the name of the table whose columns are shown.
func (p *queryParser) parseShown(s *Show) {
	p.refuseIf(p.isWord("select") || p.isSymbol("("), "Name a table.", "the columns of a query are not shown: DESCRIBE takes a table")
	s.Category = p.parseCategory()
}

// String returns the statement as text.
func (s *Show) String() string {
	if s.Category == "" {
		return "SHOW TABLES"
	}
	var b strings.Builder
	b.WriteString("DESCRIBE ")
	b.Write(appendCategory(nil, s.Category))
	return b.String()
}
