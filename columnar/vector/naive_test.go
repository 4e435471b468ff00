package vector_test

import (
	"bytes"
	"cmp"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// naive evaluates expressions one row at a time, in the plainest way: what package vector is compared with. Values are as those of
// literals, nil is null; lists are []any, structs []any, maps []entry.
type naive struct {
	row  map[string]any
	errs bool
}

type entry struct {
	key   string
	value any
}

func (n *naive) fail() any {
	n.errs = true
	return nil
}

func (n *naive) eval(e expr.Expr) any {
	switch e := e.(type) {
	case *expr.Column:
		return n.row[e.Name]
	case *expr.Literal:
		return e.Value
	}
	c := e.(*expr.Call)
	args := make([]any, len(c.Args))
	null := false
	for i, a := range c.Args {
		args[i] = n.eval(a)
		null = null || args[i] == nil
	}
	if v, ok := n.lenient(c, args); ok {
		return v
	}
	if null {
		return nil
	}
	return n.strict(c, args)
}

// lenient computes operators for which null is no reason to be null.
func (n *naive) lenient(c *expr.Call, args []any) (any, bool) {
	switch c.Op {
	case expr.And, expr.Or:
		decides := c.Op == expr.Or
		var out any = !decides
		for _, a := range args {
			if a == decides {
				return decides, true
			}
			if a == nil {
				out = nil
			}
		}
		return out, true
	case expr.IsNull:
		return args[0] == nil, true
	case expr.IsNotNull:
		return args[0] != nil, true
	case expr.IsTrue:
		return isBool(args[0], true), true
	case expr.IsNotTrue:
		return !isBool(args[0], true), true
	case expr.IsFalse:
		return isBool(args[0], false), true
	case expr.IsNotFalse:
		return !isBool(args[0], false), true
	case expr.IsDistinct, expr.IsNotDistinct:
		same := args[0] == nil && args[1] == nil || args[0] != nil && args[1] != nil && compare(args[0], args[1]) == 0
		return same == (c.Op == expr.IsNotDistinct), true
	case expr.In:
		var out any = false
		for _, a := range args[1:] {
			if a == nil || args[0] == nil {
				out = nil
			} else if compare(args[0], a) == 0 {
				return true, true
			}
		}
		if args[0] == nil {
			out = nil
		}
		return out, true
	case expr.ListContains:
		if args[1] == nil {
			return nil, true
		}
		var out any = false
		for _, a := range args[1].([]any) {
			if a == nil || args[0] == nil {
				out = nil
			} else if compare(args[0], a) == 0 {
				return true, true
			}
		}
		return out, true
	case expr.Case:
		for i := 0; i+1 < len(args); i += 2 {
			if isBool(args[i], true) {
				return args[i+1], true
			}
		}
		return args[len(args)-1], true
	case expr.Coalesce:
		for _, a := range args {
			if a != nil {
				return a, true
			}
		}
		return nil, true
	case expr.Greatest, expr.Least:
		var out any
		for _, a := range args {
			if a == nil {
				continue
			}
			if out == nil || c.Op == expr.Greatest && compare(a, out) > 0 || c.Op == expr.Least && compare(a, out) < 0 {
				out = a
			}
		}
		return out, true
	case expr.NullIf:
		if args[0] == nil || args[1] != nil && compare(args[0], args[1]) == 0 {
			return nil, true
		}
		return args[0], true
	case expr.Concat:
		if c.Detail != "skip" {
			return nil, false
		}
		out := ""
		for _, a := range args {
			if a != nil {
				out += a.(string)
			}
		}
		return out, true
	default:
		return nil, false
	}
}

func isBool(v any, want bool) bool { return v == any(want) }

func compare(a, b any) int {
	switch a := a.(type) {
	case bool:
		return boolInt(a) - boolInt(b.(bool))
	case int32:
		return cmp.Compare(a, b.(int32))
	case int64:
		return cmp.Compare(a, b.(int64))
	case uint64:
		return cmp.Compare(a, b.(uint64))
	case float64:
		b := b.(float64)
		switch {
		case a != a && b != b:
			return 0
		case a != a:
			return 1
		case b != b:
			return -1
		}
		return cmp.Compare(a, b)
	case decimal128.Num:
		return a.Cmp(b.(decimal128.Num))
	case string:
		return strings.Compare(a, b.(string))
	case []byte:
		return bytes.Compare(a, b.([]byte))
	case arrow.Date32:
		return cmp.Compare(a, b.(arrow.Date32))
	case arrow.Timestamp:
		return cmp.Compare(a, b.(arrow.Timestamp))
	case arrow.MonthDayNanoInterval:
		return length(a).Cmp(length(b.(arrow.MonthDayNanoInterval)))
	}
	panic("compared what can't be")
}

func length(v arrow.MonthDayNanoInterval) *big.Int {
	days := big.NewInt(int64(v.Months)*30 + int64(v.Days))
	return days.Add(days.Mul(days, big.NewInt(86400e6)), big.NewInt(v.Nanoseconds/1000))
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (n *naive) strict(c *expr.Call, a []any) any {
	switch c.Op {
	case expr.Not:
		return !a[0].(bool)
	case expr.Eq:
		return compare(a[0], a[1]) == 0
	case expr.Ne:
		return compare(a[0], a[1]) != 0
	case expr.Lt:
		return compare(a[0], a[1]) < 0
	case expr.Le:
		return compare(a[0], a[1]) <= 0
	case expr.Gt:
		return compare(a[0], a[1]) > 0
	case expr.Ge:
		return compare(a[0], a[1]) >= 0
	case expr.Like, expr.ILike:
		return n.like(c, a)
	case expr.Match:
		if re, ok := c.Detail.(*regexp.Regexp); ok {
			return re.MatchString(a[0].(string))
		}
		re, err := regexp.Compile(a[1].(string))
		if err != nil {
			return n.fail()
		}
		return re.MatchString(a[0].(string))
	case expr.Add, expr.Sub, expr.Mul, expr.Div, expr.Mod, expr.Neg, expr.Abs, expr.Floor, expr.Ceil, expr.Round:
		return n.arithmetic(c, a)
	case expr.Cast:
		return n.cast(a[0], c.Args[0].Type(), &c.T)
	case expr.Extract, expr.DateTrunc, expr.DateBin:
		return n.calendar(c, a)
	case expr.ToTimestamp:
		f := math.RoundToEven((a[0].(float64) - 946684800) * 1e6)
		if !(math.Abs(f) < 1<<62) {
			return n.fail()
		}
		return n.stamp(time.UnixMicro(int64(f) + 946684800e6).UTC())
	case expr.StructField:
		return a[0].([]any)[c.Detail.(int)]
	case expr.ListElement:
		i, ok := a[1].(int64)
		if !ok {
			i = int64(a[1].(int32))
		}
		if l := a[0].([]any); i >= 1 && i <= int64(len(l)) {
			return l[i-1]
		}
		return nil
	case expr.MapValue:
		for _, e := range slices.Backward(a[0].([]entry)) {
			if e.key == a[1].(string) {
				return e.value
			}
		}
		return nil
	case expr.ListLength:
		return int32(len(a[0].([]any)))
	default:
		return n.text(c, a)
	}
}

func (n *naive) like(c *expr.Call, a []any) any {
	s, isText := a[0].(string)
	pattern := ""
	if p, ok := c.Detail.(*expr.Pattern); ok {
		pattern = p.Text
	} else if isText {
		pattern = a[1].(string)
	} else {
		pattern = string(a[1].([]byte))
	}
	flags := "(?s)"
	if c.Op == expr.ILike {
		s, pattern = strings.Map(unicode.ToLower, s), strings.Map(unicode.ToLower, pattern)
	}
	if !isText {
		// A byte is a character.
		latin := func(b []byte) string {
			r := make([]rune, len(b))
			for i, c := range b {
				r[i] = rune(c)
			}
			return string(r)
		}
		s, pattern = latin(a[0].([]byte)), latin([]byte(pattern))
	}
	re := flags + "^"
	escaped := false
	for _, r := range pattern {
		switch {
		case escaped:
			re += regexp.QuoteMeta(string(r))
			escaped = false
		case r == '\\':
			escaped = true
		case r == '%':
			re += ".*"
		case r == '_':
			re += "."
		default:
			re += regexp.QuoteMeta(string(r))
		}
	}
	if escaped {
		return n.fail()
	}
	return regexp.MustCompile(re + "$").MatchString(s)
}

func rat(v any, scale int32) *big.Rat {
	switch v := v.(type) {
	case int32:
		return new(big.Rat).SetInt64(int64(v))
	case int64:
		return new(big.Rat).SetInt64(v)
	case uint64:
		return new(big.Rat).SetInt(new(big.Int).SetUint64(v))
	case decimal128.Num:
		return new(big.Rat).SetFrac(v.BigInt(), pow(scale))
	}
	panic("no exact number")
}

func pow(n int32) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }

// whole rounds half away from zero.
func whole(r *big.Rat) *big.Int {
	num, den := new(big.Int).Abs(r.Num()), r.Denom()
	num.Add(num.Lsh(num, 1), den)
	num.Quo(num, new(big.Int).Lsh(den, 1))
	if r.Sign() < 0 {
		num.Neg(num)
	}
	return num
}

// exact returns a number as a value of the type.
func (n *naive) exact(r *big.Rat, t *schema.Type) any {
	if t.Kind == schema.Decimal {
		v := whole(new(big.Rat).Mul(r, new(big.Rat).SetInt(pow(t.Scale))))
		if new(big.Int).Abs(v).Cmp(pow(t.Precision)) >= 0 {
			return n.fail()
		}
		return decimal128.FromBigInt(v)
	}
	v := whole(r)
	switch {
	case t.Kind == schema.Int32 && v.IsInt64() && v.Int64() == int64(int32(v.Int64())):
		return int32(v.Int64())
	case t.Kind == schema.Int64 && v.IsInt64():
		return v.Int64()
	case t.Kind == schema.Uint64 && v.IsUint64():
		return v.Uint64()
	}
	return n.fail()
}

func (n *naive) arithmetic(c *expr.Call, a []any) any {
	switch a[0].(type) {
	case float64:
		if _, ok := a[len(a)-1].(float64); ok {
			return n.floats(c.Op, a)
		}
		return n.times(c, []any{a[1], a[0]})
	case arrow.Date32, arrow.Timestamp, arrow.MonthDayNanoInterval:
		return n.times(c, a)
	}
	x := rat(a[0], c.Args[0].Type().Scale)
	y := new(big.Rat)
	if len(a) > 1 {
		y = rat(a[1], c.Args[1].Type().Scale)
	}
	floor := func(r *big.Rat) *big.Rat {
		q, m := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int))
		_ = m
		return new(big.Rat).SetInt(q)
	}
	trunc := func(r *big.Rat) *big.Rat { return new(big.Rat).SetInt(new(big.Int).Quo(r.Num(), r.Denom())) }
	switch c.Op {
	case expr.Add:
		x.Add(x, y)
	case expr.Sub:
		x.Sub(x, y)
	case expr.Mul:
		x.Mul(x, y)
	case expr.Div, expr.Mod:
		if y.Sign() == 0 {
			return n.fail()
		}
		q := new(big.Rat).Quo(x, y)
		switch {
		case c.Op == expr.Mod:
			x.Sub(x, y.Mul(y, trunc(q)))
		case c.T.Kind == schema.Decimal:
			x = q
		default:
			x = trunc(q)
		}
	case expr.Neg:
		x.Neg(x)
	case expr.Abs:
		x.Abs(x)
	case expr.Floor:
		x = floor(x)
	case expr.Ceil:
		x = x.Neg(floor(x.Neg(x)))
	default: // Round is done by exact
	}
	return n.exact(x, &c.T)
}

func (n *naive) floats(op expr.Op, a []any) any {
	x, y := a[0].(float64), a[len(a)-1].(float64)
	var r float64
	switch op {
	case expr.Add:
		r = x + y
	case expr.Sub:
		r = x - y
	case expr.Mul:
		if r = x * y; r == 0 && x != 0 && y != 0 {
			return n.fail()
		}
	case expr.Div:
		if y == 0 && x == x {
			return n.fail()
		}
		if r = x / y; r == 0 && x != 0 && !math.IsInf(y, 0) {
			return n.fail()
		}
		if math.IsInf(r, 0) && !math.IsInf(x, 0) {
			return n.fail()
		}
	case expr.Mod:
		if y == 0 {
			return n.fail()
		}
		return math.Mod(x, y)
	case expr.Neg:
		return -x
	case expr.Abs:
		return math.Abs(x)
	case expr.Floor:
		return math.Floor(x)
	case expr.Ceil:
		return math.Ceil(x)
	case expr.Round:
		return math.RoundToEven(x)
	default:
		panic("no operator on floats")
	}
	if math.IsInf(r, 0) && !math.IsInf(x, 0) && !math.IsInf(y, 0) {
		return n.fail()
	}
	return r
}

func (n *naive) text(c *expr.Call, a []any) any {
	str := func(i int) string { return a[i].(string) }
	switch c.Op {
	case expr.Concat:
		out := ""
		for i := range a {
			out += str(i)
		}
		return out
	case expr.Lower:
		return strings.Map(unicode.ToLower, str(0))
	case expr.Upper:
		return strings.Map(unicode.ToUpper, str(0))
	case expr.Length:
		if b, ok := a[0].([]byte); ok {
			return int32(len(b))
		}
		return int32(utf8.RuneCountInString(str(0)))
	case expr.Substring:
		r, from := []rune(str(0)), int64(a[1].(int32))
		out := ""
		to := int64(math.MaxInt64)
		if len(a) == 3 {
			if a[2].(int32) < 0 {
				return n.fail()
			}
			to = from + int64(a[2].(int32))
		}
		for i, c := range r {
			if p := int64(i) + 1; p >= from && p < to {
				out += string(c)
			}
		}
		return out
	case expr.Position:
		before, _, ok := strings.Cut(str(0), str(1))
		if !ok {
			return int32(0)
		}
		return int32(utf8.RuneCountInString(before) + 1)
	case expr.StartsWith:
		return strings.HasPrefix(str(0), str(1))
	case expr.Trim:
		s := str(0)
		if c.Detail != "trailing" {
			s = strings.TrimLeft(s, str(1))
		}
		if c.Detail != "leading" {
			s = strings.TrimRight(s, str(1))
		}
		return s
	case expr.Replace:
		if str(1) == "" {
			return str(0)
		}
		return strings.ReplaceAll(str(0), str(1), str(2))
	case expr.SplitPart:
		i := int(a[2].(int32))
		parts := []string{str(0)}
		if str(1) != "" {
			parts = strings.Split(str(0), str(1))
		}
		switch {
		case i == 0:
			return n.fail()
		case i < 0:
			i += len(parts) + 1
		}
		if i < 1 || i > len(parts) {
			return ""
		}
		return parts[i-1]
	default:
		panic("no such operator")
	}
}
