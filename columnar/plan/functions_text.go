package plan

import (
	"math"
	"strings"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

func bindLength(b *binder, c *call) (operand, error) {
	o := c.args[0]
	if o.typ().Kind == schema.Binary && c.Func == "length" {
		return operand{e: b.call(expr.Length, typeInt32, nil, o.e)}, nil
	}
	e, err := b.arg(c, 0, &typeString)
	if err != nil {
		return operand{}, err
	}
	return operand{e: b.call(expr.Length, typeInt32, nil, e)}, nil
}

// bindEnd is left() or right() with a constant number of characters; of a negative one all but so many.
func bindEnd(b *binder, c *call) (operand, error) {
	text, err := b.arg(c, 0, &typeString)
	if err != nil {
		return operand{}, err
	}
	v, err := b.constantArg(c, 1, &typeInt32)
	if err != nil {
		return operand{}, err
	}
	n := v.(int32)
	number := func(n int32) expr.Expr { return literal(&typeInt32, n) }
	cut := func(args ...expr.Expr) (operand, error) {
		return operand{e: b.call(expr.Substring, typeString, nil, append([]expr.Expr{text}, args...)...)}, nil
	}
	length := b.call(expr.Length, typeInt32, nil, text)
	if err := b.again(operand{e: text, pos: c.At}); err != nil {
		return operand{}, err
	}
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
func bindPosition(b *binder, c *call) (operand, error) {
	args, err := b.textArgs(c)
	if err != nil {
		return operand{}, err
	}
	return operand{e: b.call(expr.Position, typeInt32, nil, args[1], args[0])}, nil
}

func bindTrim(b *binder, c *call) (operand, error) {
	args, err := b.textArgs(c)
	if err != nil {
		return operand{}, err
	}
	if len(args) == 1 {
		args = append(args, literal(&typeString, " "))
	}
	ends := map[string]string{"btrim": "both", "ltrim": "leading", "rtrim": "trailing"}[c.Func]
	return operand{e: b.call(expr.Trim, typeString, ends, args...)}, nil
}

// bindConcat takes any types; a bool is t or f, and nulls are left out.
func bindConcat(b *binder, c *call) (operand, error) {
	args := make([]expr.Expr, len(c.args))
	for i, o := range c.args {
		switch t := o.typ(); {
		case nested(t.Kind):
			return operand{}, b.noFunction(c)
		case t.Kind == schema.Bool:
			if err := b.again(o); err != nil {
				return operand{}, err
			}
			text := func(s string) expr.Expr { return literal(&typeString, s) }
			args[i] = b.choice(typeString, []expr.Expr{b.test(expr.IsTrue, o.e), text("t"), b.test(expr.IsFalse, o.e), text("f"), literal(&typeString, nil)})
		default:
			var err error
			if args[i], err = b.as(o, &typeString); err != nil {
				return operand{}, err
			}
		}
	}
	return operand{e: b.call(expr.Concat, typeString, "skip", args...)}, nil
}

// bindConvertFrom reads bytes as UTF-8, which a cast does, too.
func bindConvertFrom(b *binder, c *call) (operand, error) {
	e, err := b.arg(c, 0, &typeBinary)
	if err != nil {
		return operand{}, err
	}
	v, err := b.constantArg(c, 1, &typeString)
	if err != nil {
		return operand{}, err
	}
	if n := strings.ToLower(v.(string)); n != "utf8" && n != "utf-8" {
		return operand{}, b.fail(c.args[1].pos, "The only encoding is UTF8.", "invalid source encoding name %q", clip(n))
	}
	return operand{e: b.cast(e, &typeString)}, nil
}

func bindRegexpLike(b *binder, c *call) (operand, error) {
	fold := false
	if len(c.args) == 3 {
		v, err := b.constantArg(c, 2, &typeString)
		if err != nil {
			return operand{}, err
		}
		if v != "" && v != "i" {
			return operand{}, b.fail(c.args[2].pos, "The only flag is i. Others are written in the expression: (?m).", "invalid regular expression option")
		}
		fold = v == "i"
		c.args = c.args[:2]
	}
	args, err := b.textArgs(c)
	if err != nil {
		return operand{}, err
	}
	e, err := b.matching(args[0], operand{e: args[1], pos: c.args[1].pos}, fold)
	return operand{e: e}, err
}
