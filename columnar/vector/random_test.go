package vector_test

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/vector"
)

func decimalT(precision, scale int32) schema.Type {
	return schema.Type{Kind: schema.Decimal, Precision: precision, Scale: scale}
}

var (
	uint64T = schema.Type{Kind: schema.Uint64}
	floatT  = schema.Type{Kind: schema.Float64}
	bytesT  = schema.Type{Kind: schema.Binary}
	timeT   = schema.Type{Kind: schema.Timestamp}
	spanT   = schema.Type{Kind: schema.Interval}
	moneyT  = decimalT(10, 2)
	wideT   = decimalT(38, 4)
	intsT   = schema.Type{Kind: schema.List, Elem: &int64T}
	textsT  = schema.Type{Kind: schema.List, Elem: &dictT}
	pairT   = schema.Type{Kind: schema.Struct, Fields: []schema.Field{
		{Name: "n", Type: int64T, Nullable: true}, {Name: "s", Type: textT, Nullable: true}, {Name: "l", Type: intsT, Nullable: true},
	}}
	mapT = schema.Type{Kind: schema.Map, Elem: &textT}
)

// columns of the random batches.
var columns = []*expr.Column{
	col("b", boolT), col("b2", boolT), col("i", int32T), col("i2", int32T), col("j", int64T), col("j2", int64T), col("u", uint64T), col("f", floatT),
	col("f2", floatT), col("d", moneyT), col("w", wideT), col("s", textT), col("s2", textT), col("e", dictT), col("e2", dictT), col("x", bytesT),
	col("day", dateT), col("t", timeT), col("t2", timeT), col("iv", spanT), col("l", intsT), col("ls", textsT), col("p", pairT), col("m", mapT),
}

var (
	someInts  = []int64{0, 1, -1, 2, 3, 7, 10, -13, 100, math.MaxInt32, math.MinInt32, math.MaxInt64, math.MinInt64, 86400, 1 << 53}
	someTexts = []string{
		"", "a", "ab", "Ab", "aba", "abab", "b%", "a_b", "äß€", "Ä", "ÄÖ ab", "x,y,,z", " a ", "12", "-3.5", "true", "2024-02-29", "1 day", "%", "_", "a%", "%b%",
		`\x0a`, "GET /index.html", "GET /index.html HTTP/1.1 200 and so on", "日本語", "NULL", "1e3", "\\", "a\\", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab",
	}
	someFloats  = []float64{0, math.Copysign(0, -1), 1, -1, 0.5, 1.5, 2.5, -2.5, 1e10, 1e300, -1e300, 1e-300, math.NaN(), math.Inf(1), math.Inf(-1), 3.25, 1 << 62, 0.1}
	someTimes   = []int64{0, -1, 1, 1709210096123456, 951782400000000, -62135596800000000, 1704067199999999, 32503680000000000, 1706659200000000}
	someRegexps = []string{"(?s)a", "(?s)^a.*b$", "(?s)[0-9]+", "(?s)a(b|c)+", "(?is)AB", "(?s)", "(?s)G(ET) /", "(?s)b{2,}|html", "(?s)(ab){2}", "("}
)

func drawValue(t *rapid.T, ty *schema.Type) any {
	if rapid.IntRange(0, 5).Draw(t, "null") == 0 {
		return nil
	}
	return drawSome(t, ty)
}

func drawSome(t *rapid.T, ty *schema.Type) any {
	number := func() int64 { return rapid.SampledFrom(someInts).Draw(t, "int") }
	switch ty.Kind {
	case schema.Bool:
		return rapid.Bool().Draw(t, "bool")
	case schema.Int32:
		return int32(number())
	case schema.Int64:
		return number()
	case schema.Uint64:
		return uint64(number())
	case schema.Float64:
		return rapid.SampledFrom(someFloats).Draw(t, "float")
	case schema.Decimal:
		if rapid.IntRange(0, 3).Draw(t, "large") == 0 {
			v := decimal128.FromBigInt(pow(ty.Precision - 1))
			return v.Add(decimal128.FromI64(number() % 1000))
		}
		return decimal128.FromI64(number() % 100000)
	case schema.String:
		return rapid.SampledFrom(someTexts).Draw(t, "text")
	case schema.Binary:
		if rapid.IntRange(0, 5).Draw(t, "raw") == 0 {
			return []byte{0xff, 'a', 0}
		}
		return []byte(rapid.SampledFrom(someTexts).Draw(t, "binary"))
	case schema.Date:
		return arrow.Date32(rapid.SampledFrom([]int32{0, -1, 19782, 19783, 11016, -719162, 100000}).Draw(t, "date"))
	case schema.Timestamp:
		return arrow.Timestamp(rapid.SampledFrom(someTimes).Draw(t, "time"))
	case schema.Interval:
		return arrow.MonthDayNanoInterval{
			Months:      rapid.SampledFrom([]int32{0, 0, 0, 1, -1, 14, 120000}).Draw(t, "months"),
			Days:        rapid.SampledFrom([]int32{0, 1, -1, 30, 45}).Draw(t, "days"),
			Nanoseconds: rapid.SampledFrom([]int64{0, 1000, -1000, 86400e9, 90061e9, 3600e9}).Draw(t, "nanos"),
		}
	case schema.List:
		out := []any{}
		for range rapid.IntRange(0, 3).Draw(t, "elements") {
			out = append(out, drawValue(t, ty.Elem))
		}
		return out
	case schema.Struct:
		out := []any{}
		for i := range ty.Fields {
			out = append(out, drawValue(t, &ty.Fields[i].Type))
		}
		return out
	default: // Map
		out := []entry{}
		for range rapid.IntRange(0, 3).Draw(t, "entries") {
			out = append(out, entry{rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "key"), drawValue(t, ty.Elem)})
		}
		return out
	}
}

func appendValue(b array.Builder, v any) {
	if v == nil {
		b.AppendNull()
		return
	}
	switch b := b.(type) {
	case *array.BooleanBuilder:
		b.Append(v.(bool))
	case *array.Int32Builder:
		b.Append(v.(int32))
	case *array.Int64Builder:
		b.Append(v.(int64))
	case *array.Uint64Builder:
		b.Append(v.(uint64))
	case *array.Float64Builder:
		b.Append(v.(float64))
	case *array.Decimal128Builder:
		b.Append(v.(decimal128.Num))
	case *array.StringBuilder:
		b.Append(v.(string))
	case *array.BinaryDictionaryBuilder:
		if err := b.AppendString(v.(string)); err != nil {
			panic(err)
		}
	case *array.BinaryBuilder:
		b.Append(v.([]byte))
	case *array.Date32Builder:
		b.Append(v.(arrow.Date32))
	case *array.TimestampBuilder:
		b.Append(v.(arrow.Timestamp))
	case *array.MonthDayNanoIntervalBuilder:
		b.Append(v.(arrow.MonthDayNanoInterval))
	case *array.ListBuilder:
		b.Append(true)
		for _, e := range v.([]any) {
			appendValue(b.ValueBuilder(), e)
		}
	case *array.StructBuilder:
		b.Append(true)
		for i, e := range v.([]any) {
			appendValue(b.FieldBuilder(i), e)
		}
	case *array.MapBuilder:
		b.Append(true)
		for _, e := range v.([]entry) {
			appendValue(b.KeyBuilder(), e.key)
			appendValue(b.ItemBuilder(), e.value)
		}
	default:
		panic(fmt.Sprintf("no value for %T", b))
	}
}

// valueAt returns a row as package naive has it.
func valueAt(a arrow.Array, i int) any {
	if a.IsNull(i) {
		return nil
	}
	switch a := a.(type) {
	case *array.Boolean:
		return a.Value(i)
	case *array.Int32:
		return a.Value(i)
	case *array.Int64:
		return a.Value(i)
	case *array.Uint64:
		return a.Value(i)
	case *array.Float64:
		return a.Value(i)
	case *array.Decimal128:
		return a.Value(i)
	case *array.String:
		return a.Value(i)
	case *array.Binary:
		return a.Value(i)
	case *array.Date32:
		return a.Value(i)
	case *array.Timestamp:
		return a.Value(i)
	case *array.MonthDayNanoInterval:
		return a.Value(i)
	case *array.Dictionary:
		return valueAt(a.Dictionary(), a.GetValueIndex(i))
	case *array.List:
		from, to := a.ValueOffsets(i)
		out := []any{}
		for at := from; at < to; at++ {
			out = append(out, valueAt(a.ListValues(), int(at)))
		}
		return out
	case *array.Struct:
		out := []any{}
		for f := range a.NumField() {
			out = append(out, valueAt(a.Field(f), i))
		}
		return out
	case *array.Map:
		from, to := a.ValueOffsets(i)
		out := []entry{}
		for at := from; at < to; at++ {
			out = append(out, entry{a.Keys().(*array.String).Value(int(at)), valueAt(a.Items(), int(at))})
		}
		return out
	}
	panic(fmt.Sprintf("no value of %T", a))
}

func sameValue(a, b any) bool {
	if f, ok := a.(float64); ok && f != f {
		g, ok := b.(float64)
		return ok && g != g
	}
	if v, ok := a.([]byte); ok {
		w, ok := b.([]byte)
		return ok && string(v) == string(w)
	}
	return reflect.DeepEqual(a, b)
}

// drawBatch returns a slice of a batch of random rows, and the rows.
func drawBatch(t *rapid.T) (arrow.RecordBatch, []map[string]any) {
	fields := make([]arrow.Field, len(columns))
	for i, c := range columns {
		fields[i] = arrow.Field{Name: c.Name, Type: c.T.Arrow(), Nullable: true}
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	before, n, after := rapid.IntRange(0, 70).Draw(t, "before"), rapid.IntRange(0, 10).Draw(t, "n"), rapid.IntRange(0, 3).Draw(t, "after")
	if rapid.IntRange(0, 3).Draw(t, "more") == 0 {
		n += 60
	}
	// Drawing each value makes examples that take long; a few rows are drawn, and chosen from.
	distinct := make([][]any, 6)
	for i := range distinct {
		for _, c := range columns {
			distinct[i] = append(distinct[i], drawValue(t, &c.T))
		}
	}
	if rapid.IntRange(0, 9).Draw(t, "nothing") == 0 {
		clear(distinct[0])
		distinct = distinct[:1]
	}
	step := rapid.IntRange(1, 97).Draw(t, "step")
	var rows []map[string]any
	for i := range before + n + after {
		row := map[string]any{}
		for c := range columns {
			v := distinct[(i*step+c*i)%len(distinct)][c]
			appendValue(b.Field(c), v)
			row[columns[c].Name] = v
		}
		rows = append(rows, row)
	}
	return b.NewRecordBatch().NewSlice(int64(before), int64(before+n)), rows[before : before+n]
}

func TestProgramsAgreeWithTheNaiveWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		batch, rows := drawBatch(t)
		for range 4 {
			ty := rapid.SampledFrom(allTypes).Draw(t, "type")
			e := drawExpr(t, ty, rapid.IntRange(1, 4).Draw(t, "depth"))
			checkExpr(t, e, batch, rows)
		}
	})
}

func checkExpr(t *rapid.T, e expr.Expr, batch arrow.RecordBatch, rows []map[string]any) {
	p, err := vector.Compile(e, batch.Schema())
	if err != nil {
		t.Fatalf("%s: %v", show(e), err)
	}
	// In pieces of some rows, too, as where memory is short.
	piece := rapid.SampledFrom([]int{0, 0, 1, 500, 5000}).Draw(t, "piece")
	if piece > 0 {
		p.SetPieces(piece, 1<<20, 1<<30)
	}
	var st vector.Stats
	got, err := p.Eval(batch, &st)
	if err != nil {
		t.Fatalf("%s: %v", show(e), err)
	}
	if got.Len() != len(rows) || !arrow.TypeEqual(got.DataType(), p.Type()) {
		t.Fatalf("%s: %d rows of %s", show(e), got.Len(), got.DataType())
	}
	errs := int64(0)
	var is []bool
	for i, row := range rows {
		n := naive{row: row}
		want := n.eval(e)
		if n.errs {
			errs++
		}
		is = append(is, isBool(want, true))
		if v := valueAt(got, i); !sameValue(v, want) {
			t.Fatalf("%s\nof row %d %v\nis %#v, want %#v", show(e), i, row, v, want)
		}
	}
	if st.Errors > errs || simple(e) && st.Errors != errs {
		t.Fatalf("%s: %d errors, want %d", show(e), st.Errors, errs)
	}
	if e.Type().Kind == schema.Bool {
		checkFilter(t, e, batch, is, piece)
	}
}

func checkFilter(t *rapid.T, e expr.Expr, batch arrow.RecordBatch, is []bool, piece int) {
	f, err := vector.CompileFilter(e, batch.Schema())
	if err != nil {
		t.Fatal(err)
	}
	if piece > 0 {
		f.SetPieces(piece, 1<<20, 1<<30)
	}
	s, err := f.Select(batch, nil)
	if err != nil {
		t.Fatal(err)
	}
	taken := s.Take(batch)
	at := 0
	for i, want := range is {
		if s.Has(i) != want {
			t.Fatalf("%s: row %d is selected: %v, want %v", show(e), i, s.Has(i), want)
		}
		if !want {
			continue
		}
		for c := range int(batch.NumCols()) {
			if v, w := valueAt(taken.Column(c), at), valueAt(batch.Column(c), i); !sameValue(v, w) {
				t.Fatalf("%s: row %d was taken with %s %v, has %v", show(e), i, batch.ColumnName(c), v, w)
			}
		}
		at++
	}
	if at != s.Count() || int64(at) != taken.NumRows() {
		t.Fatalf("%s: %d rows counted, %d taken, want %d", show(e), s.Count(), taken.NumRows(), at)
	}
}

// simple reports whether all parts of an expression are evaluated in every row.
func simple(e expr.Expr) bool {
	c, ok := e.(*expr.Call)
	if !ok {
		return true
	}
	switch c.Op {
	case expr.And, expr.Or, expr.Case, expr.Coalesce:
		return false
	default:
	}
	for _, a := range c.Args {
		if !simple(a) {
			return false
		}
	}
	return true
}

func show(e expr.Expr) string {
	switch e := e.(type) {
	case *expr.Column:
		return e.Name
	case *expr.Literal:
		return fmt.Sprintf("%#v", e.Value)
	}
	c := e.(*expr.Call)
	s := fmt.Sprintf("op%d:%s(", c.Op, &c.T)
	for _, a := range c.Args {
		s += show(a) + ", "
	}
	if p, ok := c.Detail.(*expr.Pattern); ok {
		return s + fmt.Sprintf("like %q)", p.Text)
	}
	if re, ok := c.Detail.(*regexp.Regexp); ok {
		return s + re.String() + ")"
	}
	return s + fmt.Sprint(c.Detail) + ")"
}
