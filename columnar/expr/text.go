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

// Text returns an expression as SQL, for people: what was folded stands there folded, casts that the binder made are left out.
func Text(e Expr) string {
	p := printer{}
	p.expr(e, false)
	return p.String()
}

// Key returns a text that only expressions share that are the same, types and constants included.
func Key(e Expr) string {
	if e == nil {
		return ""
	}
	p := printer{exact: true}
	p.expr(e, false)
	return p.String()
}

type printer struct {
	strings.Builder
	// exact: everything that makes a difference is written.
	exact bool
}

// expr writes an expression, in parentheses when it stands in another one and is not of one piece.
func (p *printer) expr(e Expr, inner bool) {
	switch e := e.(type) {
	case *Column:
		p.WriteString(name(e.Name))
	case *Literal:
		p.literal(e)
	case *Call:
		p.call(e, inner)
	}
	if p.exact {
		p.WriteString("::" + e.Type().String())
	}
}

// name quotes a name that is not a plain one.
func name(s string) string {
	for i := range len(s) {
		c := s[i]
		if c != '_' && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
		}
	}
	return s
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func (p *printer) literal(e *Literal) {
	switch v := e.Value.(type) {
	case nil:
		p.WriteString("null")
	case string:
		p.WriteString(quote(v))
	case []byte:
		p.WriteString(`'\x` + hex.EncodeToString(v) + "'")
	case float64:
		p.WriteString(strconv.FormatFloat(v, 'g', -1, 64))
	case decimal128.Num:
		p.WriteString(v.ToString(e.T.Scale))
	case arrow.Date32:
		p.WriteString("date " + quote(time.Unix(int64(v)*86400, 0).UTC().Format(time.DateOnly)))
		p.number(int64(v))
	case arrow.Timestamp:
		p.WriteString("timestamp " + quote(time.UnixMicro(int64(v)).UTC().Format("2006-01-02 15:04:05.999999Z07:00")))
		p.number(int64(v))
	case arrow.MonthDayNanoInterval:
		fmt.Fprintf(p, "interval '%d months %d days %v'", v.Months, v.Days, time.Duration(v.Nanoseconds))
	default:
		fmt.Fprint(p, v)
	}
}

// number writes, where it counts, the number behind a time that its text may not show whole.
func (p *printer) number(v int64) {
	if p.exact {
		fmt.Fprintf(p, "#%d", v)
	}
}

func (p *printer) call(e *Call, inner bool) {
	if e.Op == Cast && len(e.Args) == 1 {
		if p.exact {
			p.WriteString("cast ")
		}
		p.expr(e.Args[0], inner)
		return
	}
	op := e.Op.Info()
	pattern, isPattern := e.Detail.(*Pattern)
	if op.Form == Function && !isPattern {
		p.function(cmp.Or(op.Name, fmt.Sprintf("op%d", uint8(e.Op))), e)
		return
	}
	if inner {
		p.WriteByte('(')
		defer p.WriteByte(')')
	}
	switch {
	case e.Op == Not:
		p.WriteString("NOT ")
		p.expr(e.Args[0], true)
	case e.Op == In:
		p.expr(e.Args[0], true)
		p.WriteString(" IN (")
		p.list(e.Args[1:])
		p.WriteByte(')')
	case op.Form == Postfix:
		p.expr(e.Args[0], true)
		p.WriteString(" " + op.Name)
	case isPattern:
		p.expr(e.Args[0], true)
		p.pattern(op.Name, pattern)
	default:
		for i, a := range e.Args {
			if i > 0 {
				p.WriteString(" " + op.Name + " ")
			}
			p.expr(a, p.exact || !logic(e) || logic(a))
		}
	}
}

// logic reports whether an expression is an AND or an OR.
func logic(e Expr) bool {
	c, ok := e.(*Call)
	return ok && c.Op.Info().Decides != 0
}

func (p *printer) pattern(operator string, pattern *Pattern) {
	p.WriteString(" " + operator + " " + quote(pattern.Text))
	if pattern.Escape != '\\' {
		escape := ""
		if pattern.Escape != 0 {
			escape = string(pattern.Escape)
		}
		p.WriteString(" ESCAPE " + quote(escape))
	}
}

func (p *printer) function(name string, e *Call) {
	p.WriteString(name + "(")
	if e.Detail != nil {
		switch d := e.Detail.(type) {
		case *regexp.Regexp:
			p.WriteString(quote(d.String()))
		case string:
			p.WriteString(quote(d))
		default:
			fmt.Fprint(p, d)
		}
		if len(e.Args) > 0 {
			p.WriteString(", ")
		}
	}
	p.list(e.Args)
	p.WriteByte(')')
}

func (p *printer) list(args []Expr) {
	for i, a := range args {
		if i > 0 {
			p.WriteString(", ")
		}
		p.expr(a, false)
	}
}
