package expr

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
)

// Text returns an expression as readable SQL. Folded constants appear folded; casts that the binder added are omitted.
func Text(e Expr) string {
	p := exprPrinter{}
	p.printExpr(e, false)
	return p.String()
}

// Key returns a text that is equal only for equal expressions, including types and constants.
func Key(e Expr) string {
	if e == nil {
		return ""
	}
	p := exprPrinter{exact: true}
	p.printExpr(e, false)
	return p.String()
}

// KeyWithin returns the key of an expression if it has at most limit bytes. A long one is not written to its end: the types of its columns
// may be very long.
func KeyWithin(e Expr, limit int) (key string, fits bool) {
	p := exprPrinter{exact: true, limit: max(limit, 1)}
	p.printExpr(e, false)
	return p.String(), p.Len() <= limit
}

type exprPrinter struct {
	strings.Builder
	// exact writes everything that distinguishes expressions.
	exact bool
	// limit, if above 0, is the length beyond which nothing more is written.
	limit int
}

// printExpr writes an expression. If inner is set and it is not atomic, it is in parentheses.
func (p *exprPrinter) printExpr(e Expr, inner bool) {
	if p.limit > 0 && p.Len() > p.limit {
		return
	}
	switch e := e.(type) {
	case *Column:
		p.WriteString(quoteName(e.Name))
	case *Literal:
		p.printLiteral(e)
	case *Call:
		p.printCall(e, inner)
	}
	if p.exact {
		p.WriteString("::" + e.Type().String())
	}
}

// quoteName quotes a name unless it is plain.
func quoteName(s string) string {
	for i := range len(s) {
		c := s[i]
		if c != '_' && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
		}
	}
	return s
}

func quoteText(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func (p *exprPrinter) printLiteral(e *Literal) {
	switch v := e.Value.(type) {
	case nil:
		p.WriteString("null")
	case string:
		p.WriteString(quoteText(v))
	case []byte:
		p.WriteString(`'\x` + hex.EncodeToString(v) + "'")
	case float64:
		p.WriteString(strconv.FormatFloat(v, 'g', -1, 64))
	case decimal128.Num:
		p.WriteString(v.ToString(e.T.Scale))
	case arrow.Date32:
		p.WriteString("date " + quoteText(time.Unix(int64(v)*86400, 0).UTC().Format(time.DateOnly)))
		p.printExact(int64(v))
	case arrow.Timestamp:
		p.WriteString("timestamp " + quoteText(time.UnixMicro(int64(v)).UTC().Format("2006-01-02 15:04:05.999999Z07:00")))
		p.printExact(int64(v))
	case arrow.MonthDayNanoInterval:
		fmt.Fprintf(p, "interval '%d months %d days %v'", v.Months, v.Days, time.Duration(v.Nanoseconds))
	default:
		fmt.Fprint(p, v)
	}
}

// printExact writes, in exact mode, the number after a time whose text may be incomplete.
func (p *exprPrinter) printExact(v int64) {
	if p.exact {
		fmt.Fprintf(p, "#%d", v)
	}
}

func (p *exprPrinter) printCall(e *Call, inner bool) {
	if e.Op == Cast && len(e.Args) == 1 {
		if p.exact {
			p.WriteString("cast ")
		}
		p.printExpr(e.Args[0], inner)
		return
	}
	op := e.Op.Info()
	pattern, isPattern := e.Detail.(*Pattern)
	if op.Form == Function && !isPattern {
		p.printFunction(cmp.Or(op.Name, fmt.Sprintf("op%d", uint8(e.Op))), e)
		return
	}
	if inner {
		p.WriteByte('(')
		defer p.WriteByte(')')
	}
	switch {
	case e.Op == Not:
		p.WriteString("NOT ")
		p.printExpr(e.Args[0], true)
	case e.Op == In:
		p.printExpr(e.Args[0], true)
		p.WriteString(" IN (")
		p.printList(e.Args[1:])
		p.WriteByte(')')
	case op.Form == Postfix:
		p.printExpr(e.Args[0], true)
		p.WriteString(" " + op.Name)
	case isPattern:
		p.printExpr(e.Args[0], true)
		p.printPattern(op.Name, pattern)
	default:
		for i, a := range e.Args {
			if i > 0 {
				p.WriteString(" " + op.Name + " ")
			}
			p.printExpr(a, p.exact || !isJunction(e) || isJunction(a))
		}
	}
}

// isJunction reports whether an expression is an AND or an OR.
func isJunction(e Expr) bool {
	c, ok := e.(*Call)
	return ok && c.Op.Info().Decides != 0
}

func (p *exprPrinter) printPattern(operator string, pattern *Pattern) {
	p.WriteString(" " + operator + " " + quoteText(pattern.Text))
	if pattern.Escape != '\\' {
		escape := ""
		if pattern.Escape != 0 {
			escape = string(pattern.Escape)
		}
		p.WriteString(" ESCAPE " + quoteText(escape))
	}
}

func (p *exprPrinter) printFunction(name string, e *Call) {
	p.WriteString(name + "(")
	if e.Detail != nil {
		switch d := e.Detail.(type) {
		case *regexp.Regexp:
			p.WriteString(quoteText(d.String()))
		case string:
			p.WriteString(quoteText(d))
		default:
			fmt.Fprint(p, d)
		}
		if len(e.Args) > 0 {
			p.WriteString(", ")
		}
	}
	p.printList(e.Args)
	p.WriteByte(')')
}

func (p *exprPrinter) printList(args []Expr) {
	for i, a := range args {
		if i > 0 {
			p.WriteString(", ")
		}
		p.printExpr(a, false)
	}
}
