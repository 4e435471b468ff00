package expr_test

import (
	"regexp"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

var (
	boolean = schema.Type{Kind: schema.Bool}
	number  = schema.Type{Kind: schema.Int32}
	text    = schema.Type{Kind: schema.String}
)

func call(op expr.Op, detail any, args ...expr.Expr) *expr.Call {
	return &expr.Call{Op: op, Args: args, T: boolean, Detail: detail}
}

func TestText(t *testing.T) {
	status := &expr.Column{Name: "status", T: number}
	path := &expr.Column{Name: "The Path", T: text}
	lit := func(v any) expr.Expr { return &expr.Literal{T: number, Value: v} }
	str := func(v string) expr.Expr { return &expr.Literal{T: text, Value: v} }
	eq := call(expr.Eq, nil, status, lit(int32(404)))
	for want, e := range map[string]expr.Expr{
		"status = 404": eq,
		"status = 404 AND (\"The Path\" LIKE '/a%' OR NOT (status IN (1, 2)))": call(expr.And, nil, eq, call(expr.Or, nil,
			call(expr.Like, &expr.Pattern{Text: "/a%", Escape: '\\'}, path), call(expr.Not, nil, call(expr.In, nil, status, lit(int32(1)), lit(int32(2)))))),
		"\"The Path\" ILIKE 'x' ESCAPE ''":                 call(expr.ILike, &expr.Pattern{Text: "x", Fold: true}, path),
		"regexp_like('^a''b', \"The Path\")":               call(expr.Match, regexp.MustCompile("^a'b"), path),
		"(status = 404) IS NOT TRUE":                       call(expr.IsNotTrue, nil, eq),
		"lower(\"The Path\") = 'it''s'":                    call(expr.Eq, nil, call(expr.Lower, nil, path), str("it's")),
		"status = null":                                    call(expr.Eq, nil, call(expr.Cast, nil, status), lit(nil)),
		"_time >= timestamp '1970-01-01 00:00:00.000001Z'": call(expr.Ge, nil, &expr.Column{Name: "_time"}, lit(arrow.Timestamp(1))),
		"date_trunc('hour', _time) = timestamp '1970-01-01 00:00:00Z'": call(expr.Eq, nil,
			call(expr.DateTrunc, "hour", &expr.Column{Name: "_time"}), lit(arrow.Timestamp(0))),
	} {
		if got := expr.Text(e); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// TestKey has pairs that people may read alike.
func TestKey(t *testing.T) {
	a, wide := &expr.Column{Name: "a", T: number}, schema.Type{Kind: schema.Int64}
	one := &expr.Literal{T: number, Value: int32(1)}
	if expr.Key(call(expr.Eq, nil, a, one)) != expr.Key(call(expr.Eq, nil, &expr.Column{Name: "a", T: number}, &expr.Literal{T: number, Value: int32(1)})) {
		t.Error("the same expression has two keys")
	}
	for _, pair := range [][2]expr.Expr{
		{call(expr.Eq, nil, a, one), call(expr.Eq, nil, a, &expr.Literal{T: wide, Value: int64(1)})},
		{call(expr.Eq, nil, a, one), call(expr.Eq, nil, &expr.Call{Op: expr.Cast, Args: []expr.Expr{a}, T: number}, one)},
		{&expr.Call{Op: expr.Cast, Args: []expr.Expr{a}, T: number}, &expr.Call{Op: expr.Cast, Args: []expr.Expr{a}, T: wide}},
		{&expr.Column{Name: "a = 1", T: boolean}, call(expr.Eq, nil, a, one)},
		{&expr.Literal{T: text, Value: "null"}, &expr.Literal{T: text}},
		{call(expr.And, nil, a, call(expr.And, nil, a, one)), call(expr.And, nil, a, a, one)},
		{call(expr.Like, &expr.Pattern{Text: "a", Escape: '\\'}, a), call(expr.ILike, &expr.Pattern{Text: "a", Escape: '\\', Fold: true}, a)},
		{call(expr.Like, &expr.Pattern{Text: "a", Escape: '\\'}, a), call(expr.Like, &expr.Pattern{Text: "a"}, a)},
		{&expr.Literal{T: boolean, Value: arrow.Date32(1 << 30)}, &expr.Literal{T: boolean, Value: arrow.Date32(1<<30 + 1)}},
	} {
		if expr.Key(pair[0]) == expr.Key(pair[1]) {
			t.Errorf("one key: %s", expr.Key(pair[0]))
		}
	}
	if expr.Key(nil) != "" {
		t.Error("nothing has a key")
	}
}

// A key that is too long is not written to its end, however many columns with long types follow.
func TestKeyWithin(t *testing.T) {
	wide := schema.Type{Kind: schema.Struct}
	for range 100 {
		wide.Fields = append(wide.Fields, schema.Field{Name: "field", Type: number})
	}
	args := make([]expr.Expr, 1000)
	for i := range args {
		args[i] = &expr.Column{Name: "a", T: wide}
	}
	e := call(expr.Or, nil, args...)
	one := len(expr.Key(args[0]))
	if key, fits := expr.KeyWithin(e, 10*one); fits || len(key) > 20*one {
		t.Errorf("fits %v, %d bytes were written for a limit of %d", fits, len(key), 10*one)
	}
	if key, fits := expr.KeyWithin(args[0], one); !fits || key != expr.Key(args[0]) {
		t.Errorf("%q of %d bytes fits in them: %v", key, one, fits)
	}
	if _, fits := expr.KeyWithin(args[0], 0); fits {
		t.Error("a key fits in nothing")
	}
}
