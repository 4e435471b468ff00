package plan

import (
	"math"
	"strings"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// bindTexts is a function of texts only.
func bindTexts(op expr.Op, t schema.Type) func(b *binder, c *call) (operand, error) {
	return func(b *binder, c *call) (operand, error) {
		args, err := b.textArgs(c)
		if err != nil {
			return operand{}, err
		}
		return operand{e: b.call(op, t, nil, args...)}, nil
	}
}

func bindLength(b *binder, c *call) (operand, error) {
	o := c.args[0]
	if o.typ().Kind == schema.Binary && c.Func == "length" {
		return operand{e: b.call(expr.Length, typeInt32, nil, o.e)}, nil
	}
	return bindTexts(expr.Length, typeInt32)(b, c)
}

func bindSubstring(b *binder, c *call) (operand, error) {
	if o := c.args[1]; o.unknown || o.e.Type().Kind == schema.String {
		return operand{}, b.fail(o.pos, "Places are integers.", "substring() with a regular expression is not supported")
	}
	args := make([]expr.Expr, len(c.args))
	for i := range args {
		t := &typeInt32
		if i == 0 {
			t = &typeString
		}
		var err error
		if args[i], err = b.arg(c, i, t); err != nil {
			return operand{}, err
		}
	}
	return operand{e: b.call(expr.Substring, typeString, nil, args...)}, nil
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

func bindPosition(b *binder, c *call) (operand, error) {
	args, err := b.textArgs(c)
	if err != nil {
		return operand{}, err
	}
	if c.Func == "position" { // what IN text
		args[0], args[1] = args[1], args[0]
	}
	return operand{e: b.call(expr.Position, typeInt32, nil, args...)}, nil
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

func bindSplit(b *binder, c *call) (operand, error) {
	args := make([]expr.Expr, 3)
	for i, t := range []*schema.Type{&typeString, &typeString, &typeInt32} {
		var err error
		if args[i], err = b.arg(c, i, t); err != nil {
			return operand{}, err
		}
	}
	if l, ok := args[2].(*expr.Literal); ok && l.Value == int32(0) {
		return operand{}, b.fail(c.args[2].pos, "", "field position must not be zero")
	}
	return operand{e: b.call(expr.SplitPart, typeString, nil, args...)}, nil
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
