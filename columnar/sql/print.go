package sql

import (
	"strconv"
	"strings"
)

// String returns the canonical text of the query. Parse makes an equal tree from it.
func (q *Select) String() string {
	b := appendIf(append(make([]byte, 0, len(q.text)+32), "SELECT "...), q.Distinct, "DISTINCT ")
	b = appendEach(b, q.Items, appendItem)
	b = appendCategory(append(b, " FROM "...), q.From.Category)
	b = appendAlias(b, q.From.Alias)
	b = appendClause(b, " WHERE ", q.Where, precOr)
	if len(q.GroupBy) > 0 {
		b = appendExprs(append(b, " GROUP BY "...), q.GroupBy)
	}
	b = appendClause(b, " HAVING ", q.Having, precOr)
	if len(q.OrderBy) > 0 {
		b = appendEach(append(b, " ORDER BY "...), q.OrderBy, appendOrder)
	}
	if q.Limit >= 0 {
		b = strconv.AppendInt(append(b, " LIMIT "...), q.Limit, 10)
	}
	if q.Offset > 0 {
		b = strconv.AppendInt(append(b, " OFFSET "...), q.Offset, 10)
	}
	return string(b)
}

func appendItem(b []byte, it Item) []byte {
	if it.Star {
		return append(b, '*')
	}
	return appendAlias(appendExpr(b, it.Expr, precOr), it.Alias)
}

func appendOrder(b []byte, o Order) []byte {
	b = appendIf(appendExpr(b, o.Expr, precOr), o.Desc, " DESC")
	b = appendIf(b, o.Nulls == NullsFirst, " NULLS FIRST")
	return appendIf(b, o.Nulls == NullsLast, " NULLS LAST")
}

// appendEach appends elements with commas between them.
func appendEach[T any](b []byte, list []T, appendOne func(b []byte, one T) []byte) []byte {
	for i, one := range list {
		b = appendOne(appendIf(b, i > 0, ", "), one)
	}
	return b
}

// appendIf appends a text if it belongs there.
func appendIf(b []byte, belongs bool, text string) []byte {
	if belongs {
		return append(b, text...)
	}
	return b
}

// appendClause appends a word and an expression, unless there is none.
func appendClause(b []byte, word string, e Expr, prec int) []byte {
	if e == nil {
		return b
	}
	return appendExpr(append(b, word...), e, prec)
}

// String returns the canonical text of the predicate.
func (p *Predicate) String() string { return string(appendExpr(nil, p.Where, precOr)) }

// Text returns the canonical text of an expression.
func Text(e Expr) string { return string(appendExpr(nil, e, precOr)) }

func appendAlias(b []byte, alias string) []byte {
	if alias == "" {
		return b
	}
	return appendName(append(b, " AS "...), alias)
}

func appendCategory(b []byte, name string) []byte {
	for part := range strings.SplitSeq(name, ".") {
		if !isPlain(part) {
			return appendQuoted(b, name, '"')
		}
	}
	return append(b, name...)
}

// isPlain reports whether a name needs no quotes.
func isPlain(name string) bool {
	if name == "" || classes[name[0]]&classStart == 0 || keywords[name]&special != 0 {
		return false
	}
	for i := range len(name) {
		if c := classes[name[i]]; c&classIdent == 0 || c&classUpper != 0 {
			return false
		}
	}
	return true
}

func appendName(b []byte, name string) []byte {
	if isPlain(name) {
		return append(b, name...)
	}
	return appendQuoted(b, name, '"')
}

// appendQuoted appends a text in quotes and doubles the quotes within it.
func appendQuoted(b []byte, s string, quote byte) []byte {
	single := string(quote)
	return append(append(append(b, quote), strings.ReplaceAll(s, single, single+single)...), quote)
}

func appendExprs(b []byte, list []Expr) []byte {
	return appendEach(b, list, func(b []byte, e Expr) []byte { return appendExpr(b, e, precOr) })
}

// precedenceOf returns the precedence of an expression's outermost operator.
func precedenceOf(e Expr) int {
	switch e := e.(type) {
	case *Logic:
		if e.Or {
			return precOr
		}
		return precAnd
	case *Unary:
		if e.Op == Not {
			return precNot
		}
		return precSign
	case *Binary:
		return precedences[e.Op]
	case *Any:
		return precCompare
	case *In, *Between, *Like:
		return precLike
	case *Is:
		return precIs
	case *Cast:
		return precCast
	default:
		return precPrimary
	}
}

// appendExpr appends an expression, in parentheses if its operator has lower precedence than prec.
func appendExpr(b []byte, e Expr, prec int) []byte {
	if precedenceOf(e) < prec {
		return append(appendBare(append(b, '('), e), ')')
	}
	return appendBare(b, e)
}

func appendBare(b []byte, e Expr) []byte {
	switch e := e.(type) {
	case *Name:
		return appendPath(b, e.Parts)
	case *Number:
		return append(b, e.Text...)
	case *String:
		return appendQuoted(b, e.Value, '\'')
	case *Bool:
		return append(b, strings.ToUpper(strconv.FormatBool(e.Value))...)
	case *Null:
		return append(b, "NULL"...)
	case *Typed:
		return appendQuoted(append(b, e.Type.String()+" "...), e.Value, '\'')
	case *Cast:
		return append(append(appendExpr(b, e.X, precCast), "::"...), e.Type.String()...)
	case *Call:
		return appendCall(b, e)
	case *Case:
		return appendCase(b, e)
	case *Field:
		return appendName(append(appendElement(b, e.X, true), '.'), e.Name)
	case *Index:
		return append(appendExpr(append(appendElement(b, e.X, false), '['), e.I, precOr), ']')
	default:
		return appendOperator(b, e)
	}
}

// appendElement appends the operand of [ or . For a name, a following . would be part of the name.
func appendElement(b []byte, e Expr, field bool) []byte {
	_, name := e.(*Name)
	switch e.(type) {
	case *Field, *Index, *Name:
		if !name || !field {
			return appendBare(b, e)
		}
	}
	return append(appendBare(append(b, '('), e), ')')
}

func appendPath(b []byte, parts []string) []byte {
	for i, part := range parts {
		b = appendName(appendIf(b, i > 0, "."), part)
	}
	return b
}

func appendOperator(b []byte, e Expr) []byte {
	switch e := e.(type) {
	case *Logic:
		return appendLogic(b, e)
	case *Unary:
		return appendUnary(b, e)
	case *Binary:
		return appendBinary(b, e)
	case *In:
		b = appendIf(appendExpr(b, e.X, precLike+1), e.Not, " NOT")
		return append(appendExprs(append(b, " IN ("...), e.List), ')')
	case *Between:
		b = append(appendIf(appendExpr(b, e.X, precLike+1), e.Not, " NOT"), " BETWEEN "...)
		b = appendExpr(appendIf(b, e.Symmetric, "SYMMETRIC "), e.Low, precLike+1)
		return appendClause(b, " AND ", e.High, precLike+1)
	case *Like:
		b = appendIf(appendExpr(b, e.X, precLike+1), e.Not, " NOT")
		word := " LIKE "
		if e.Fold {
			word = " ILIKE "
		}
		b = appendClause(b, word, e.Pattern, precLike+1)
		return appendClause(b, " ESCAPE ", e.Escape, precLike+1)
	case *Is:
		prec := precIs
		if _, ok := e.X.(*Binary); ok {
			prec++ // IS DISTINCT FROM is non-associative
		}
		b = append(appendExpr(b, e.X, prec), " IS"...)
		return append(appendIf(b, e.Not, " NOT"), " "+e.What.String()...)
	case *Any:
		b = append(appendExpr(b, e.X, precCompare+1), " = ANY ("...)
		return append(appendExpr(b, e.List, precOr), ')')
	}
	return b
}

func appendLogic(b []byte, e *Logic) []byte {
	word, prec := " AND ", precAnd
	if e.Or {
		word, prec = " OR ", precOr
	}
	for i, t := range e.Terms {
		b = appendExpr(appendIf(b, i > 0, word), t, prec+1)
	}
	return b
}

func appendUnary(b []byte, e *Unary) []byte {
	if e.Op == Not {
		return appendExpr(append(b, "NOT "...), e.X, precNot)
	}
	sign := byte('-')
	if e.Op == Plus {
		sign = '+'
	}
	b = append(b, sign)
	if _, ok := e.X.(*Unary); ok && precedenceOf(e.X) == precSign {
		b = append(b, ' ') // -- would start a comment
	}
	return appendExpr(b, e.X, precSign)
}

func appendBinary(b []byte, e *Binary) []byte {
	prec := precedences[e.Op]
	left := prec
	if prec == precCompare {
		left++ // non-associative
	}
	if l, ok := e.L.(*Binary); ok && prec == precIs && precedences[l.Op] == precIs {
		left++
	}
	b = appendExpr(b, e.L, left)
	b = append(append(append(b, ' '), e.Op.String()...), ' ')
	return appendExpr(b, e.R, prec+1)
}

func appendCase(b []byte, e *Case) []byte {
	b = append(b, "CASE"...)
	b = appendClause(b, " ", e.Operand, precOr)
	for _, w := range e.Whens {
		b = appendClause(b, " WHEN ", w.Cond, precOr)
		b = appendClause(b, " THEN ", w.Then, precOr)
	}
	return append(appendClause(b, " ELSE ", e.Else, precOr), " END"...)
}

// functionNames are keywords that are printed without quotes as function names.
var functionNames = map[string]bool{
	"left": true, "right": true, "coalesce": true, "greatest": true, "least": true, "nullif": true, "substring": true, "date": true,
}

func appendCall(b []byte, e *Call) []byte {
	switch {
	case e.Func == "extract" && len(e.Args) == 2:
		if field, ok := e.Args[0].(*String); ok {
			if b = append(b, "extract("...); isPlain(field.Value) {
				b = append(b, field.Value...)
			} else {
				b = appendQuoted(b, field.Value, '\'')
			}
			b = append(b, " FROM "...)
			return append(appendExpr(b, e.Args[1], precOr), ')')
		}
	case e.Func == "position" && len(e.Args) == 2:
		b = append(appendExpr(append(b, "position("...), e.Args[0], precLike+1), " IN "...)
		return append(appendExpr(b, e.Args[1], precLike+1), ')')
	case e.Args == nil && !e.Star && (e.Func == "current_timestamp" || e.Func == "localtimestamp" || e.Func == "current_date"):
		return append(b, strings.ToUpper(e.Func)...)
	}
	if functionNames[e.Func] {
		b = append(b, e.Func...)
	} else {
		b = appendName(b, e.Func)
	}
	b = appendIf(append(b, '('), e.Distinct, "DISTINCT ")
	b = append(appendExprs(appendIf(b, e.Star, "*"), e.Args), ')')
	return appendIf(appendClause(b, " FILTER (WHERE ", e.Filter, precOr), e.Filter != nil, ")")
}
