package sql

import (
	"strconv"
	"strings"
)

// String returns the canonical text of the query. Parse makes an equal tree from it.
func (q *Select) String() string {
	b := append(make([]byte, 0, len(q.text)+32), "SELECT "...)
	for i, it := range q.Items {
		if i > 0 {
			b = append(b, ", "...)
		}
		if it.Star {
			b = append(b, '*')
			continue
		}
		b = appendExpr(b, it.Expr, precOr)
		b = appendAlias(b, it.Alias)
	}
	b = append(b, " FROM "...)
	b = appendCategory(b, q.From.Category)
	b = appendAlias(b, q.From.Alias)
	if q.Where != nil {
		b = appendExpr(append(b, " WHERE "...), q.Where, precOr)
	}
	if len(q.GroupBy) > 0 {
		b = appendList(append(b, " GROUP BY "...), q.GroupBy)
	}
	if q.Having != nil {
		b = appendExpr(append(b, " HAVING "...), q.Having, precOr)
	}
	for i, o := range q.OrderBy {
		if i == 0 {
			b = append(b, " ORDER BY "...)
		} else {
			b = append(b, ", "...)
		}
		b = appendExpr(b, o.Expr, precOr)
		if o.Desc {
			b = append(b, " DESC"...)
		}
		switch o.Nulls {
		case NullsFirst:
			b = append(b, " NULLS FIRST"...)
		case NullsLast:
			b = append(b, " NULLS LAST"...)
		case NullsDefault:
		}
	}
	if q.Limit >= 0 {
		b = strconv.AppendInt(append(b, " LIMIT "...), q.Limit, 10)
	}
	return string(b)
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
	b = append(b, quote)
	for i := range len(s) {
		if s[i] == quote {
			b = append(b, quote)
		}
		b = append(b, s[i])
	}
	return append(b, quote)
}

func appendList(b []byte, list []Expr) []byte { return appendJoined(b, list, ", ", precOr) }

// appendJoined appends expressions with a separator between them, as operands of precedence prec or higher.
func appendJoined(b []byte, list []Expr, separator string, prec int) []byte {
	for i, e := range list {
		if i > 0 {
			b = append(b, separator...)
		}
		b = appendExpr(b, e, prec)
	}
	return b
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
		if i > 0 {
			b = append(b, '.')
		}
		b = appendName(b, part)
	}
	return b
}

func appendNot(b []byte, not bool) []byte {
	if not {
		return append(b, " NOT"...)
	}
	return b
}

func appendOperator(b []byte, e Expr) []byte {
	switch e := e.(type) {
	case *Logic:
		if e.Or {
			return appendJoined(b, e.Terms, " OR ", precOr+1)
		}
		return appendJoined(b, e.Terms, " AND ", precAnd+1)
	case *Unary:
		return appendUnary(b, e)
	case *Binary:
		return appendBinary(b, e)
	case *In:
		b = appendNot(appendExpr(b, e.X, precLike+1), e.Not)
		return append(appendList(append(b, " IN ("...), e.List), ')')
	case *Between:
		b = append(appendNot(appendExpr(b, e.X, precLike+1), e.Not), " BETWEEN "...)
		if e.Symmetric {
			b = append(b, "SYMMETRIC "...)
		}
		b = append(appendExpr(b, e.Low, precLike+1), " AND "...)
		return appendExpr(b, e.High, precLike+1)
	case *Like:
		b = appendNot(appendExpr(b, e.X, precLike+1), e.Not)
		if e.Fold {
			b = append(b, " ILIKE "...)
		} else {
			b = append(b, " LIKE "...)
		}
		b = appendExpr(b, e.Pattern, precLike+1)
		if e.Escape != nil {
			b = appendExpr(append(b, " ESCAPE "...), e.Escape, precLike+1)
		}
		return b
	case *Is:
		prec := precIs
		if _, ok := e.X.(*Binary); ok {
			prec++ // IS DISTINCT FROM is non-associative
		}
		b = append(appendExpr(b, e.X, prec), " IS"...)
		return append(append(appendNot(b, e.Not), ' '), e.What.String()...)
	case *Any:
		b = append(appendExpr(b, e.X, precCompare+1), " = ANY ("...)
		return append(appendExpr(b, e.List, precOr), ')')
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
	if e.Operand != nil {
		b = appendExpr(append(b, ' '), e.Operand, precOr)
	}
	for _, w := range e.Whens {
		b = appendExpr(append(b, " WHEN "...), w.Cond, precOr)
		b = appendExpr(append(b, " THEN "...), w.Then, precOr)
	}
	if e.Else != nil {
		b = appendExpr(append(b, " ELSE "...), e.Else, precOr)
	}
	return append(b, " END"...)
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
	b = append(b, '(')
	if e.Distinct {
		b = append(b, "DISTINCT "...)
	}
	if e.Star {
		b = append(b, '*')
	}
	b = append(appendList(b, e.Args), ')')
	if e.Filter != nil {
		b = append(appendExpr(append(b, " FILTER (WHERE "...), e.Filter, precOr), ')')
	}
	return b
}
