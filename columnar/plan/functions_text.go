package plan

import (
	"math"
	"strings"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
)

func bindLength(b *queryBinder, c *functionCall) typedOperand {
	o := c.args[0]
	if o.typ().Kind == schema.Binary && c.Func == "length" {
		return typedOperand{e: b.makeCall(expr.Length, typeInt32, nil, o.e)}
	}
	return typedOperand{e: b.makeCall(expr.Length, typeInt32, nil, b.argAs(c, 0, &typeString))}
}

// bindEnd binds left() or right() with a constant number of characters. A negative number means all but that many.
func bindEnd(b *queryBinder, c *functionCall) typedOperand {
	text := b.argAs(c, 0, &typeString)
	n := constantArg[int32](b, c, 1, &typeInt32)
	number := func(n int32) expr.Expr { return literal(&typeInt32, n) }
	cut := func(args ...expr.Expr) typedOperand {
		return typedOperand{e: b.makeCall(expr.Substring, typeString, nil, append([]expr.Expr{text}, args...)...)}
	}
	length := b.makeCall(expr.Length, typeInt32, nil, text)
	b.countAgain(typedOperand{e: text, pos: c.At})
	n = max(n, -math.MaxInt32) // no text is longer
	switch {
	case c.Func == "left" && n >= 0:
		return cut(number(1), number(n))
	case c.Func == "left":
		rest := b.makeCall(expr.Add, typeInt32, nil, length, number(n))
		return cut(number(1), b.makeCall(expr.Greatest, typeInt32, nil, rest, number(0)))
	case n < 0:
		return cut(number(min(-n, math.MaxInt32-1) + 1))
	default:
		return cut(b.makeCall(expr.Sub, typeInt32, nil, length, number(n-1)))
	}
}

// bindPosition binds position(what IN text).
func bindPosition(b *queryBinder, c *functionCall) typedOperand {
	args := b.textArgs(c)
	return typedOperand{e: b.makeCall(expr.Position, typeInt32, nil, args[1], args[0])}
}

func bindTrim(b *queryBinder, c *functionCall) typedOperand {
	args := b.textArgs(c)
	if len(args) == 1 {
		args = append(args, literal(&typeString, " "))
	}
	ends := map[string]string{"btrim": "both", "ltrim": "leading", "rtrim": "trailing"}[c.Func]
	return typedOperand{e: b.makeCall(expr.Trim, typeString, ends, args...)}
}

// bindConcat binds concat(). It accepts any types, writes a bool as t or f, and skips nulls.
func bindConcat(b *queryBinder, c *functionCall) typedOperand {
	args := make([]expr.Expr, len(c.args))
	for i, o := range c.args {
		switch t := o.typ(); {
		case isNested(t.Kind):
			panic(b.signatureError(c))
		case t.Kind == schema.Bool:
			b.countAgain(o)
			text := func(s string) expr.Expr { return literal(&typeString, s) }
			args[i] = b.makeCase(typeString, []expr.Expr{b.makeTest(expr.IsTrue, o.e), text("t"), b.makeTest(expr.IsFalse, o.e), text("f"), literal(&typeString, nil)})
		default:
			args[i] = b.convertTo(o, &typeString)
		}
	}
	return typedOperand{e: b.makeCall(expr.Concat, typeString, "skip", args...)}
}

// bindConvertFrom binds convert_from, which reads bytes as UTF-8, like a cast.
func bindConvertFrom(b *queryBinder, c *functionCall) typedOperand {
	e := b.argAs(c, 0, &typeBinary)
	if n := strings.ToLower(constantArg[string](b, c, 1, &typeString)); n != "utf8" && n != "utf-8" {
		panic(b.errorAt(c.args[1].pos, "The only encoding is UTF8.", "invalid source encoding name %q", sql.ClipText(n)))
	}
	return typedOperand{e: b.castExpr(e, &typeString)}
}

func bindRegexpLike(b *queryBinder, c *functionCall) typedOperand {
	fold := false
	if len(c.args) == 3 {
		v := constantArg[string](b, c, 2, &typeString)
		b.failIf(v != "" && v != "i", c.args[2].pos, "The only flag is i. Others are written in the expression: (?m).",
			"invalid regular expression option")
		fold = v == "i"
		c.args = c.args[:2]
	}
	args := b.textArgs(c)
	return typedOperand{e: b.makeMatch(args[0], typedOperand{e: args[1], pos: c.args[1].pos}, fold)}
}
