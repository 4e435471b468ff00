package plan

import (
	"errors"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
)

const (
	// MaxPattern is the maximum length of a regular expression in bytes.
	MaxPattern = 4096
	// MaxProgram is the maximum number of instructions of all regular expressions of a query.
	MaxProgram = 20_000
)

// bindLike binds [NOT] LIKE and ILIKE.
func (b *queryBinder) bindLike(e *sql.Like) expr.Expr {
	x, pattern := b.bind(e.X), b.bind(e.Pattern)
	x = b.textIfUnknown(x)
	name, op := "LIKE", expr.Like
	if e.Fold {
		name, op = "ILIKE", expr.ILike
	}
	if k := x.e.Type().Kind; k != schema.String && (k != schema.Binary || e.Fold || !pattern.unknown) {
		panic(b.errorAt(e.At, "Cast the left side to text.", "operator does not exist: %s %s %s", typeName(x.typ()), name, typeName(pattern.typ())))
	}
	escape, dynamic := b.escapeOf(e.Escape)
	pe, ok := b.bindText(pattern)
	b.failIf(!ok, e.At, noOperator, "operator does not exist: %s %s %s", typeName(x.typ()), name, typeName(pattern.typ()))
	var r expr.Expr
	l, constant := pe.(*expr.Literal)
	switch {
	case dynamic || constant && l.Value == nil:
		r = literal(&typeBool, nil)
	case constant:
		p, err := expr.ParsePattern(l.Value.(string), escape, e.Fold)
		b.failIf(err != nil, pattern.pos, "Double it, or write ESCAPE ''.", "%s", err)
		r = b.makeCall(op, typeBool, p, x.e)
	case e.Escape != nil:
		panic(b.errorAt(e.Escape.Pos(), "Use the backslash, which is the default.", "ESCAPE is only supported with a constant pattern"))
	default:
		r = b.makeCall(op, typeBool, nil, x.e, pe)
	}
	return negationIf(e.Not, r)
}

// escapeOf returns the ESCAPE character, or 0 for none. null reports that it is the constant null.
func (b *queryBinder) escapeOf(e sql.Expr) (r rune, null bool) {
	if e == nil {
		return '\\', false
	}
	o := b.bind(e)
	l, ok := o.e.(*expr.Literal)
	b.failIf(!ok || l.T.Kind != schema.String, e.Pos(), "", "the escape character must be a constant text")
	if l.Value == nil {
		return 0, true
	}
	text := l.Value.(string)
	b.failIf(utf8.RuneCountInString(text) > 1, e.Pos(), "Escape string must be empty or one character.", "invalid escape string")
	r, _ = utf8.DecodeRuneInString(text)
	if text == "" {
		r = 0
	}
	return r, false
}

// bindMatch binds ~, ~*, !~ and !~*.
func (b *queryBinder) bindMatch(e *sql.Binary, l, r typedOperand) expr.Expr {
	x, textual := b.bindText(l)
	pattern, ok := b.bindText(r)
	if !textual || !ok {
		hint := noOperator
		if !textual {
			hint = "Cast the left side to text."
		}
		panic(b.errorAt(e.At, hint, "operator does not exist: %s %s %s", typeName(l.typ()), e.Op, typeName(r.typ())))
	}
	result := b.makeMatch(x, typedOperand{e: pattern, pos: r.pos}, e.Op == sql.MatchFold || e.Op == sql.NotMatchFold)
	return negationIf(e.Op == sql.NotMatch || e.Op == sql.NotMatchFold, result)
}

// makeMatch returns the test whether a text contains a match of a pattern. As in PostgreSQL, a dot matches any character, and ^
// and $ are the ends of the text.
func (b *queryBinder) makeMatch(x expr.Expr, pattern typedOperand, fold bool) expr.Expr {
	flags := "(?s)"
	if fold {
		flags = "(?is)"
	}
	l, ok := pattern.e.(*expr.Literal)
	if !ok {
		return b.makeCall(expr.Match, typeBool, nil, x, b.makeCall(expr.Concat, typeString, nil, literal(&typeString, flags), pattern.e))
	}
	if l.Value == nil {
		return literal(&typeBool, nil)
	}
	return b.makeCall(expr.Match, typeBool, b.compileRegexp(pattern.pos, flags, l.Value.(string)), x)
}

// compileRegexp compiles a regular expression after checking that its program size is bounded.
func (b *queryBinder) compileRegexp(pos int, flags, text string) *regexp.Regexp {
	b.failIf(len(text) > MaxPattern, pos, "", "the regular expression is %d bytes long, the limit is %d", len(text), MaxPattern)
	if _, director := strings.CutPrefix(text, "***"); director {
		panic(b.errorAt(pos, "Use ~ with an RE2 expression.", "invalid regular expression: directors (***) are not supported"))
	}
	tree, err := syntax.Parse(flags+text, syntax.Perl)
	if err != nil {
		panic(b.invalidExpression(pos, flags, text, err))
	}
	if b.programs += countInstructions(tree); b.programs > MaxProgram {
		panic(b.errorAt(pos, "Counted repetitions {n} take n times the space of what they repeat; classes of characters take some, too.",
			"regular expressions of the query are too large"))
	}
	re, err := regexp.Compile(flags + text)
	if err != nil {
		panic(b.invalidExpression(pos, flags, text, err))
	}
	return re
}

func (b *queryBinder) invalidExpression(pos int, flags, text string, err error) error {
	reason := err.Error()
	if e, ok := errors.AsType[*syntax.Error](err); ok {
		reason = e.Code.String() + ": " + strings.TrimPrefix(e.Expr, flags)
	}
	return b.errorAt(pos, expressionHint(text), "invalid regular expression: %s", sql.ClipText(reason))
}

// expressionHint returns the alternative for a PostgreSQL feature that RE2 lacks.
func expressionHint(text string) string {
	for _, h := range []struct{ has, hint string }{
		{`(?=`, "There is no look-ahead: use two expressions with AND."},
		{`(?!`, "There is no look-ahead: use !~."},
		{`(?<`, "There is no look-behind."},
		{`\1`, "There are no back-references."},
		{`\y`, `A boundary of words is \b.`},
		{`\m`, `A boundary of words is \b.`},
		{`\M`, `A boundary of words is \b.`},
		{`\Z`, `The end of the text is \z.`},
	} {
		if strings.Contains(text, h.has) {
			return h.hint
		}
	}
	return "The syntax is RE2's."
}

// countInstructions returns an upper bound of the program size for a tree. It stops counting above MaxProgram.
func countInstructions(re *syntax.Regexp) int {
	n := 2 + len(re.Rune)/8
	if re.Op == syntax.OpLiteral {
		n = 1 + len(re.Rune)
	}
	for _, sub := range re.Sub {
		if n += countInstructions(sub); n > MaxProgram {
			return MaxProgram + 1
		}
	}
	if re.Op == syntax.OpRepeat {
		times := max(re.Max, re.Min+1)
		if n *= max(times, 1); n > MaxProgram {
			return MaxProgram + 1
		}
	}
	return n
}
