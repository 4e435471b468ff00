package plan

import (
	"math"
	"strings"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

func bindLength(b *binder, c *call) operand {
	o := c.args[0]
	if o.typ().Kind == schema.Binary && c.Func == "length" {
		return operand{e: b.call(expr.Length, typeInt32, nil, o.e)}
	}
	e := b.arg(c, 0, &typeString)
	return operand{e: b.call(expr.Length, typeInt32, nil, e)}
}

// bindEnd is left() or right() with a constant number of characters; of a negative one all but so many.
func bindEnd(b *binder, c *call) operand {
	text := b.arg(c, 0, &typeString)
	v := b.constantArg(c, 1, &typeInt32)
	n := v.(int32)
	number := func(n int32) expr.Expr { return literal(&typeInt32, n) }
	cut := func(args ...expr.Expr) operand {
		return operand{e: b.call(expr.Substring, typeString, nil, append([]expr.Expr{text}, args...)...)}
	}
	length := b.call(expr.Length, typeInt32, nil, text)
	b.again(operand{e: text, pos: c.At})
	n = max(n, -math.MaxInt32) // no text is longer
	switch {
	case c.Func == "left" && n >= 0:
		return cut(number(1), number(n))
	case c.Func == "left":
		rest := b.call(expr.Add, typeInt32, nil, length, number(n))
		return cut(number(1), b.call(expr.Greatest, typeInt32, nil, rest, number(0)))
	case n < 0:
		return cut(number(min(-n, math.MaxInt32-1) + 1))
	default:
		return cut(b.call(expr.Sub, typeInt32, nil, length, number(n-1)))
	}
}

// bindPosition is position(what IN text).
func bindPosition(b *binder, c *call) operand {
	args := b.textArgs(c)
	return operand{e: b.call(expr.Position, typeInt32, nil, args[1], args[0])}
}

func bindTrim(b *binder, c *call) operand {
	args := b.textArgs(c)
	if len(args) == 1 {
		args = append(args, literal(&typeString, " "))
	}
	ends := map[string]string{"btrim": "both", "ltrim": "leading", "rtrim": "trailing"}[c.Func]
	return operand{e: b.call(expr.Trim, typeString, ends, args...)}
}

// bindConcat takes any types; a bool is t or f, and nulls are left out.
func bindConcat(b *binder, c *call) operand {
	args := make([]expr.Expr, len(c.args))
	for i, o := range c.args {
		switch t := o.typ(); {
		case nested(t.Kind):
			panic(b.noFunction(c))
		case t.Kind == schema.Bool:
			b.again(o)
			text := func(s string) expr.Expr { return literal(&typeString, s) }
			args[i] = b.choice(typeString, []expr.Expr{b.test(expr.IsTrue, o.e), text("t"), b.test(expr.IsFalse, o.e), text("f"), literal(&typeString, nil)})
		default:
			args[i] = b.as(o, &typeString)
		}
	}
	return operand{e: b.call(expr.Concat, typeString, "skip", args...)}
}

// bindConvertFrom reads bytes as UTF-8, which a cast does, too.
func bindConvertFrom(b *binder, c *call) operand {
	e := b.arg(c, 0, &typeBinary)
	v := b.constantArg(c, 1, &typeString)
	if n := strings.ToLower(v.(string)); n != "utf8" && n != "utf-8" {
		panic(b.fail(c.args[1].pos, "The only encoding is UTF8.", "invalid source encoding name %q", clip(n)))
	}
	return operand{e: b.cast(e, &typeString)}
}

func bindRegexpLike(b *binder, c *call) operand {
	fold := false
	if len(c.args) == 3 {
		v := b.constantArg(c, 2, &typeString)
		if v != "" && v != "i" {
			panic(b.fail(c.args[2].pos, "The only flag is i. Others are written in the expression: (?m).", "invalid regular expression option"))
		}
		fold = v == "i"
		c.args = c.args[:2]
	}
	args := b.textArgs(c)
	return operand{e: b.matching(args[0], operand{e: args[1], pos: c.args[1].pos}, fold)}
}
