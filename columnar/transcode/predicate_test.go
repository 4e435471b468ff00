package transcode

import (
	"strings"
	"testing"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

func TestRowsOverTheLimitMustPassThePredicate(t *testing.T) {
	s := &schema.Schema{Version: 1, Format: schema.JSON, Fields: []schema.Field{
		{Name: "a", Type: schema.Type{Kind: schema.Int64}, Nullable: true},
	}}
	a := &expr.Column{Name: "a", T: s.Fields[0].Type}
	payload := frameOf(t, `{"a":100}`, `{"a":100,"z":"`+strings.Repeat("x", 100)+`"}`, `{"a":100}`)
	for _, stop := range []bool{false, true} {
		for name, c := range map[string]struct {
			where expr.Expr
			want  int64
		}{
			"equals":  {callOf(expr.Eq, a, literal(a.T, int64(100))), 2},
			"greater": {callOf(expr.Gt, a, literal(a.T, int64(5))), 2},
			"is null": {callOf(expr.IsNull, a), 1},
		} {
			batch, _ := transcode(t, Spec{Schema: s, Columns: []string{"a"}, Where: c.where, EarlyStop: stop && name != "is null", Limits: Limits{RowBytes: 50}}, payload)
			if batch.NumRows() != c.want {
				t.Errorf("%s, early stop %v: %d rows, want %d:\n%s", name, stop, batch.NumRows(), c.want, lines(batch))
			}
		}
	}
}

func TestInNullLeavesValuesAlone(t *testing.T) {
	s := &schema.Schema{Version: 1, Format: schema.JSON, Fields: []schema.Field{
		{Name: "d", Type: schema.Type{Kind: schema.Decimal, Precision: 10, Scale: 2}, Nullable: true},
		{Name: "l", Type: schema.Type{Kind: schema.List, Elem: &schema.Type{Kind: schema.Int64}}, Nullable: true},
		{Name: "a", Type: schema.Type{Kind: schema.Int64}, Nullable: true},
	}}
	d, a := &expr.Column{Name: "d", T: s.Fields[0].Type}, &expr.Column{Name: "a", T: s.Fields[2].Type}
	payload := frameOf(t, `{"d":1.50,"a":1}`)
	in := callOf(expr.In, d, literal(d.T, nil))
	for name, where := range map[string]expr.Expr{
		"is not true": callOf(expr.IsNotTrue, in),
		"or":          callOf(expr.Or, in, callOf(expr.Eq, a, literal(a.T, int64(1)))),
	} {
		batch, stats := transcode(t, Spec{Schema: s, Columns: []string{"d", "_error"}, Where: where}, payload)
		if got := lines(batch); got != "1.5|(null)\n" {
			t.Errorf("%s: %q, %+v", name, got, stats)
		}
	}
}
