package zone_test

import (
	"bytes"
	"fmt"
	"math"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"pgregory.net/rapid"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

var boolean = schema.Type{Kind: schema.Bool}

// drawCondition draws a condition over the columns of a schema.
func drawCondition(t *rapid.T, s *schema.Schema, depth int) expr.Expr {
	call := func(op expr.Op, args ...expr.Expr) expr.Expr { return &expr.Call{Op: op, Args: args, T: boolean} }
	n := 9
	if depth > 0 {
		n = 13
	}
	f := &s.Fields[rapid.IntRange(0, len(s.Fields)-2).Draw(t, "field")] // not the list
	col := expr.Expr(&expr.Column{Name: f.Name, T: f.Type})
	typ := f.Type
	if to, ok := casts[f.Type.Kind]; ok && rapid.IntRange(0, 3).Draw(t, "cast") == 0 {
		typ = to[rapid.IntRange(0, len(to)-1).Draw(t, "to")]
		col = &expr.Call{Op: expr.Cast, Args: []expr.Expr{col}, T: typ}
	}
	if typ.Kind == schema.Timestamp && rapid.IntRange(0, 3).Draw(t, "trunc") == 0 {
		col = &expr.Call{Op: expr.DateTrunc, Args: []expr.Expr{col}, T: typ, Detail: "day"}
	}
	lit := func() expr.Expr {
		if rapid.IntRange(0, 15).Draw(t, "null literal") == 0 {
			return &expr.Literal{T: typ}
		}
		return &expr.Literal{T: typ, Value: drawValue(t, &typ)}
	}
	compare := rapid.SampledFrom([]expr.Op{expr.Eq, expr.Ne, expr.Lt, expr.Le, expr.Gt, expr.Ge, expr.IsDistinct, expr.IsNotDistinct}).Draw(t, "op")
	switch rapid.IntRange(0, n).Draw(t, "shape") {
	case 0, 1:
		return call(compare, col, lit())
	case 2:
		return call(compare, lit(), col)
	case 3:
		args := []expr.Expr{col}
		for range rapid.IntRange(1, 4).Draw(t, "items") {
			args = append(args, lit())
		}
		return call(expr.In, args...)
	case 4:
		return call(rapid.SampledFrom([]expr.Op{expr.IsNull, expr.IsNotNull}).Draw(t, "null"), col)
	case 5:
		return call(expr.And, call(expr.Ge, col, lit()), call(expr.Le, col, lit()))
	case 6:
		return &expr.Column{Name: "b", T: boolean}
	case 7, 8:
		name := rapid.SampledFrom([]string{"s", "d", "bin"}).Draw(t, "text column")
		kind := schema.Type{Kind: schema.String}
		if name == "bin" {
			kind.Kind = schema.Binary
		}
		c := &expr.Column{Name: name, T: kind}
		prefix := drawText(t, 0, rapid.IntRange(0, 5).Draw(t, "far prefix") == 0)
		if rapid.Bool().Draw(t, "starts with") {
			v := any(prefix)
			if name == "bin" {
				v = []byte(prefix)
			}
			return call(expr.StartsWith, c, &expr.Literal{T: kind, Value: v})
		}
		p := &expr.Pattern{Parts: []expr.Part{{Text: prefix}}}
		if rapid.Bool().Draw(t, "open") {
			p.Parts = append(p.Parts, expr.Part{})
		}
		return &expr.Call{Op: expr.Like, Args: []expr.Expr{c}, T: boolean, Detail: p}
	case 9:
		return call(expr.Eq, col, col)
	case 10:
		return call(expr.Not, drawCondition(t, s, depth-1))
	case 11:
		return call(rapid.SampledFrom([]expr.Op{expr.IsTrue, expr.IsNotTrue, expr.IsFalse, expr.IsNotFalse, expr.IsNull, expr.IsNotNull}).Draw(t, "test"),
			drawCondition(t, s, depth-1))
	default:
		return call(rapid.SampledFrom([]expr.Op{expr.And, expr.Or}).Draw(t, "logic"), drawCondition(t, s, depth-1), drawCondition(t, s, depth-1))
	}
}

var casts = map[schema.Kind][]schema.Type{
	schema.Int32:     {{Kind: schema.Int64}, {Kind: schema.Float64}, {Kind: schema.Decimal, Precision: 38, Scale: 2}},
	schema.Int64:     {{Kind: schema.Float64}, {Kind: schema.Decimal, Precision: 38, Scale: 2}, {Kind: schema.Decimal, Precision: 10, Scale: 2}},
	schema.Uint64:    {{Kind: schema.Float64}},
	schema.Date:      {{Kind: schema.Timestamp}},
	schema.Timestamp: {{Kind: schema.Date}},
}

func show(e expr.Expr) string {
	switch e := e.(type) {
	case *expr.Column:
		return e.Name
	case *expr.Literal:
		return fmt.Sprintf("%v", e.Value)
	case *expr.Call:
		args := make([]string, len(e.Args))
		for i, a := range e.Args {
			args[i] = show(a)
		}
		return fmt.Sprintf("op%d[%v](%s)", e.Op, e.Detail, strings.Join(args, ", "))
	}
	return "?"
}

// evaluate evaluates one row, nil for null: plainly, and by other means than the package.
func evaluate(e expr.Expr, row func(string) any) any {
	switch e := e.(type) {
	case *expr.Column:
		return row(e.Name)
	case *expr.Literal:
		return e.Value
	}
	c := e.(*expr.Call)
	args := make([]any, len(c.Args))
	for i, a := range c.Args {
		args[i] = evaluate(a, row)
	}
	switch c.Op {
	case expr.And, expr.Or:
		short := c.Op == expr.Or
		var out any = !short
		for _, a := range args {
			if a == short {
				return short
			}
			if a == nil {
				out = nil
			}
		}
		return out
	case expr.Not:
		if args[0] == nil {
			return nil
		}
		return !args[0].(bool)
	case expr.IsNull:
		return args[0] == nil
	case expr.IsNotNull:
		return args[0] != nil
	case expr.IsTrue:
		return is(args[0], true)
	case expr.IsNotTrue:
		return !is(args[0], true)
	case expr.IsFalse:
		return is(args[0], false)
	case expr.IsNotFalse:
		return !is(args[0], false)
	case expr.IsDistinct, expr.IsNotDistinct:
		same := args[0] == nil && args[1] == nil
		if args[0] != nil && args[1] != nil {
			same = order(args[0], args[1]) == 0
		}
		return same == (c.Op == expr.IsNotDistinct)
	default:
		return evaluateValues(c, args)
	}
}

// evaluateValues evaluates what is null where the first value is.
func evaluateValues(c *expr.Call, args []any) any {
	if args[0] == nil || c.Op != expr.In && len(args) > 1 && args[1] == nil {
		return nil
	}
	switch c.Op {
	case expr.Cast:
		return cast(args[0], &c.T)
	case expr.DateTrunc:
		day := arrow.Timestamp(24 * 3600 * 1e6)
		return arrow.Timestamp(math.Floor(float64(args[0].(arrow.Timestamp))/float64(day))) * day
	case expr.In:
		var out any = false
		for _, item := range args[1:] {
			if item == nil {
				out = nil
			} else if order(args[0], item) == 0 {
				return true
			}
		}
		return out
	case expr.StartsWith:
		return bytes.HasPrefix(raw(args[0]), raw(args[1]))
	case expr.Like:
		p := c.Detail.(*expr.Pattern)
		if len(p.Parts) == 1 {
			return string(raw(args[0])) == p.Parts[0].Text
		}
		return bytes.HasPrefix(raw(args[0]), []byte(p.Parts[0].Text))
	default:
		n := order(args[0], args[1])
		return map[expr.Op]bool{expr.Eq: n == 0, expr.Ne: n != 0, expr.Lt: n < 0, expr.Le: n <= 0, expr.Gt: n > 0, expr.Ge: n >= 0}[c.Op]
	}
}

func raw(v any) []byte {
	if s, ok := v.(string); ok {
		return []byte(s)
	}
	return v.([]byte)
}

func cast(v any, to *schema.Type) any {
	const day = 24 * 3600 * 1_000_000
	integer, isInteger := int64(0), true
	switch v := v.(type) {
	case int32:
		integer = int64(v)
	case int64:
		integer = v
	default:
		isInteger = false
	}
	switch to.Kind {
	case schema.Int64:
		return integer
	case schema.Float64:
		if isInteger {
			return float64(integer)
		}
		return float64(v.(uint64))
	case schema.Decimal:
		d := decimal128.FromI64(integer)
		if !d.FitsInPrecision(to.Precision - to.Scale) {
			return nil
		}
		return d.IncreaseScaleBy(to.Scale)
	case schema.Timestamp:
		return arrow.Timestamp(int64(v.(arrow.Date32)) * day)
	default:
		return arrow.Date32(math.Floor(float64(v.(arrow.Timestamp)) / day))
	}
}

func order(a, b any) int {
	sign := func(less, more bool) int {
		switch {
		case less:
			return -1
		case more:
			return 1
		}
		return 0
	}
	switch a := a.(type) {
	case bool:
		return sign(!a && b.(bool), a && !b.(bool))
	case int32:
		return sign(a < b.(int32), a > b.(int32))
	case int64:
		return sign(a < b.(int64), a > b.(int64))
	case uint64:
		return sign(a < b.(uint64), a > b.(uint64))
	case float64:
		b := b.(float64)
		if math.IsNaN(a) || math.IsNaN(b) {
			return sign(!math.IsNaN(a), !math.IsNaN(b))
		}
		return sign(a < b, a > b)
	case decimal128.Num:
		return a.Cmp(b.(decimal128.Num))
	case arrow.Date32:
		return sign(a < b.(arrow.Date32), a > b.(arrow.Date32))
	case arrow.Timestamp:
		return sign(a < b.(arrow.Timestamp), a > b.(arrow.Timestamp))
	default:
		return bytes.Compare(raw(a), raw(b))
	}
}

// is reports whether a value is a bool, and that one.
func is(v any, want bool) bool {
	b, ok := v.(bool)
	return ok && b == want
}
