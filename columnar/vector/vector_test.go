package vector_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/vector"
)

var (
	boolT  = schema.Type{Kind: schema.Bool}
	int32T = schema.Type{Kind: schema.Int32}
	int64T = schema.Type{Kind: schema.Int64}
	textT  = schema.Type{Kind: schema.String}
	dictT  = schema.Type{Kind: schema.String, Dictionary: true}
	dateT  = schema.Type{Kind: schema.Date}
)

func col(name string, t schema.Type) *expr.Column { return &expr.Column{Name: name, T: t} }

func lit(v any, t schema.Type) *expr.Literal { return &expr.Literal{T: t, Value: v} }

func call(op expr.Op, t schema.Type, args ...expr.Expr) *expr.Call {
	return &expr.Call{Op: op, T: t, Args: args}
}

func fromJSON(t testing.TB, s *arrow.Schema, json string) arrow.RecordBatch {
	t.Helper()
	columns := make([]arrow.Array, s.NumFields())
	st, _, err := array.FromJSON(memory.DefaultAllocator, arrow.StructOf(s.Fields()...), strings.NewReader(json))
	if err != nil {
		t.Fatal(err)
	}
	for i := range columns {
		columns[i] = st.(*array.Struct).Field(i)
	}
	return array.NewRecordBatch(s, columns, int64(st.Len()))
}

func TestSelectAndTake(t *testing.T) {
	in := arrow.NewSchema([]arrow.Field{
		{Name: "a", Type: int64T.Arrow(), Nullable: true},
		{Name: "s", Type: textT.Arrow(), Nullable: true},
		{Name: "d", Type: dictT.Arrow(), Nullable: true},
		{Name: "l", Type: arrow.ListOf(arrow.BinaryTypes.String), Nullable: true},
	}, nil)
	batch := fromJSON(t, in, `[
		{"a": 1, "s": "one", "d": "x", "l": ["p", null]}, {"a": null, "s": "two", "d": "y", "l": null},
		{"a": 3, "s": null, "d": null, "l": []}, {"a": 4, "s": "Zwei", "d": "x", "l": ["q"]}]`)
	where := call(expr.Or, boolT,
		call(expr.Gt, boolT, col("a", int64T), lit(int64(3), int64T)),
		call(expr.And, boolT,
			call(expr.Eq, boolT, call(expr.Cast, textT, col("a", int64T)), lit("1", textT)),
			&expr.Call{Op: expr.Like, T: boolT, Args: []expr.Expr{col("s", textT)}, Detail: &expr.Pattern{Parts: []expr.Part{{}, {Text: "n"}, {}}}}))
	for _, rows := range []struct {
		from, to int64
		want     string
	}{
		{0, 4, `[{"a":1,"d":"x","l":["p",null],"s":"one"},{"a":4,"d":"x","l":["q"],"s":"Zwei"}]`},
		{1, 4, `[{"a":4,"d":"x","l":["q"],"s":"Zwei"}]`},
		{1, 2, `[]`},
	} {
		f, err := vector.CompileFilter(where, in)
		if err != nil {
			t.Fatal(err)
		}
		part := batch.NewSlice(rows.from, rows.to)
		s, err := f.Select(part, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := s.Take(part)
		text, err := array.RecordToStructArray(got).MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if strings.ReplaceAll(string(text), "\n", "") != rows.want || s.Count() != int(got.NumRows()) {
			t.Errorf("rows %d to %d: %s, want %s", rows.from, rows.to, text, rows.want)
		}
	}
}

func TestProjectCountsErrors(t *testing.T) {
	in := arrow.NewSchema([]arrow.Field{{Name: "s", Type: dictT.Arrow(), Nullable: true}, {Name: "n", Type: int32T.Arrow(), Nullable: true}}, nil)
	batch := fromJSON(t, in, `[{"s": "1", "n": 5}, {"s": "x", "n": 1}, {"s": null, "n": 1}, {"s": "x", "n": null}, {"s": "1", "n": 2147483647}, {"s": "1"}, {"s": "0", "n": 1}]`)
	number := call(expr.Cast, int32T, col("s", dictT))
	p, err := vector.Project([]vector.Output{
		{Name: "n", Expr: number},
		{Name: "sum", Expr: call(expr.Add, int32T, col("n", int32T), lit(int32(1), int32T))},
		{Name: "q", Expr: call(expr.Div, int32T, col("n", int32T), number)},
		{Name: "s", Expr: col("s", dictT)},
	}, in)
	if err != nil {
		t.Fatal(err)
	}
	var st vector.Stats
	out, err := p.Eval(batch, &st)
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for i := range out.Columns() {
		text += fmt.Sprintln(out.ColumnName(i), out.Column(i).DataType(), out.Column(i))
	}
	want := "n int32 [1 (null) (null) (null) 1 1 0]\nsum int32 [6 2 2 (null) (null) (null) 2]\nq int32 [5 (null) (null) (null) 2147483647 (null) (null)]\n"
	if got := text[:min(len(want), len(text))]; got != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	if st.Errors != 2+1+3 {
		t.Errorf("%d errors", st.Errors)
	}
	if out.Column(3).DataType().ID() != arrow.DICTIONARY {
		t.Errorf("a column that is only read is %s", out.Column(3).DataType())
	}
}

func TestWhatDoesNotFitIsRefused(t *testing.T) {
	in := arrow.NewSchema([]arrow.Field{{Name: "a", Type: int64T.Arrow()}}, nil)
	for name, e := range map[string]expr.Expr{
		"missing column":  col("b", int64T),
		"column's type":   col("a", int32T),
		"types differ":    call(expr.Eq, boolT, col("a", int64T), lit(int32(1), int32T)),
		"no bool":         call(expr.And, boolT, col("a", int64T)),
		"literal's type":  lit("x", int64T),
		"no such form":    call(expr.Add, textT, lit("x", textT), lit("x", textT)),
		"no such cast":    call(expr.Cast, dateT, col("a", int64T)),
		"arguments":       call(expr.Eq, boolT, col("a", int64T)),
		"no operator":     call(255, boolT, col("a", int64T)),
		"no constant":     call(expr.In, boolT, col("a", int64T), col("a", int64T)),
		"no pattern":      call(expr.Like, boolT, lit("x", textT)),
		"no else":         call(expr.Case, int64T, lit(true, boolT), col("a", int64T)),
		"case of another": call(expr.Case, int64T, lit(true, boolT), lit("x", textT), col("a", int64T)),
	} {
		if _, err := vector.Compile(e, in); err == nil {
			t.Errorf("%s: compiled", name)
		}
	}
	if _, err := vector.CompileFilter(col("a", int64T), in); err == nil {
		t.Error("a condition that is no bool was compiled")
	}
	p, err := vector.Compile(call(expr.Neg, int64T, col("a", int64T)), in)
	if err != nil {
		t.Fatal(err)
	}
	other := fromJSON(t, arrow.NewSchema([]arrow.Field{{Name: "a", Type: int32T.Arrow()}}, nil), `[{"a": 1}]`)
	if _, err := p.Eval(other, nil); err == nil {
		t.Error("a batch of another schema was evaluated")
	}
}
