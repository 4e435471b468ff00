package aggregate

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"

	"scribe/columnar/expr"
	"scribe/columnar/plan"
	"scribe/columnar/schema"
)

// The columns of the tests' batches, one of each scalar type.
var columns = []schema.Field{
	{Name: "bool", Type: schema.Type{Kind: schema.Bool}},
	{Name: "int32", Type: schema.Type{Kind: schema.Int32}},
	{Name: "int64", Type: schema.Type{Kind: schema.Int64}},
	{Name: "uint64", Type: schema.Type{Kind: schema.Uint64}},
	{Name: "float64", Type: schema.Type{Kind: schema.Float64}},
	{Name: "decimal", Type: schema.Type{Kind: schema.Decimal, Precision: 38, Scale: 2}},
	{Name: "string", Type: schema.Type{Kind: schema.String}},
	{Name: "code", Type: schema.Type{Kind: schema.String, Dictionary: true}},
	{Name: "binary", Type: schema.Type{Kind: schema.Binary}},
	{Name: "date", Type: schema.Type{Kind: schema.Date}},
	{Name: "timestamp", Type: schema.Type{Kind: schema.Timestamp}},
	{Name: "interval", Type: schema.Type{Kind: schema.Interval}},
	{Name: "null", Type: schema.Type{Kind: schema.Null}},
}

func arrowSchema() *arrow.Schema {
	var fields []arrow.Field
	for i := range columns {
		f := columns[i].Arrow()
		f.Nullable = true
		fields = append(fields, f)
	}
	return arrow.NewSchema(fields, nil)
}

func column(name string) *expr.Column {
	for i := range columns {
		if columns[i].Name == name {
			return &expr.Column{Name: name, T: columns[i].Type}
		}
	}
	panic(name)
}

// row holds a value of each column as Go has it, nil for null.
type row []any

func drawRow(t *rapid.T) row {
	values := []any{
		rapid.Bool().Draw(t, "bool"),
		rapid.SampledFrom([]int32{0, 1, -1, math.MaxInt32, math.MinInt32}).Draw(t, "int32"),
		rapid.SampledFrom([]int64{0, 1, -1, 7, math.MaxInt64, math.MinInt64}).Draw(t, "int64"),
		rapid.SampledFrom([]uint64{0, 1, math.MaxUint64}).Draw(t, "uint64"),
		rapid.SampledFrom([]float64{0, math.Copysign(0, -1), 1.5, -2.25, math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64}).Draw(t, "float64"),
		rapid.SampledFrom([]decimal128.Num{decimal128.FromI64(0), decimal128.FromI64(-125), decimal128.FromI64(99), decimal128.MaxDecimal128, decimal128.MaxDecimal128.Negate()}).
			Draw(t, "decimal"),
		rapid.SampledFrom([]string{"", "a", "b", "aa", strings.Repeat("x", 70)}).Draw(t, "string"),
		rapid.SampledFrom([]string{"", "red", "green"}).Draw(t, "code"),
		[]byte(rapid.SampledFrom([]string{"", "\x00", "\xff\xfe"}).Draw(t, "binary")),
		rapid.SampledFrom([]arrow.Date32{0, -1, 20000}).Draw(t, "date"),
		rapid.SampledFrom([]arrow.Timestamp{0, -1, 1_700_000_000_000_000}).Draw(t, "timestamp"),
		rapid.SampledFrom([]arrow.MonthDayNanoInterval{{}, {Months: 1}, {Days: 30}, {Days: 1, Nanoseconds: -5000}, {Nanoseconds: 86_400_000_000_000}}).Draw(t, "interval"),
		nil,
	}
	for i := range values {
		if rapid.IntRange(0, 4).Draw(t, "null") == 0 {
			values[i] = nil
		}
	}
	return values
}

func batchOf(rows []row) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrowSchema())
	defer b.Release()
	for _, r := range rows {
		for i, v := range r {
			appendValue(b.Field(i), v)
		}
	}
	return b.NewRecordBatch()
}

func appendValue(b array.Builder, v any) {
	switch v := v.(type) {
	case nil:
		b.AppendNull()
	case bool:
		b.(*array.BooleanBuilder).Append(v)
	case int32:
		b.(*array.Int32Builder).Append(v)
	case int64:
		b.(*array.Int64Builder).Append(v)
	case uint64:
		b.(*array.Uint64Builder).Append(v)
	case float64:
		b.(*array.Float64Builder).Append(v)
	case decimal128.Num:
		b.(*array.Decimal128Builder).Append(v)
	case string:
		switch b := b.(type) {
		case *array.StringBuilder:
			b.Append(v)
		case *array.BinaryDictionaryBuilder:
			if err := b.AppendString(v); err != nil {
				panic(err)
			}
		}
	case []byte:
		b.(*array.BinaryBuilder).Append(v)
	case arrow.Date32:
		b.(*array.Date32Builder).Append(v)
	case arrow.Timestamp:
		b.(*array.TimestampBuilder).Append(v)
	case arrow.MonthDayNanoInterval:
		b.(*array.MonthDayNanoIntervalBuilder).Append(v)
	}
}

// canonical is the text of a value, the same for values that are equal.
func canonical(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case float64:
		if v == 0 {
			v = 0
		}
		return fmt.Sprint(v)
	case []byte:
		return fmt.Sprintf("%x", v)
	case arrow.MonthDayNanoInterval:
		n := new(big.Int).Mul(big.NewInt(30*int64(v.Months)+int64(v.Days)), big.NewInt(24*3600*1_000_000_000))
		return n.Add(n, big.NewInt(v.Nanoseconds)).String()
	case decimal128.Num:
		return v.BigInt().String()
	default:
		return fmt.Sprint(v)
	}
}

func compare(a, b any) int {
	switch a := a.(type) {
	case bool:
		return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
	case int32:
		return big.NewInt(int64(a)).Cmp(big.NewInt(int64(b.(int32))))
	case int64:
		return big.NewInt(a).Cmp(big.NewInt(b.(int64)))
	case uint64:
		return new(big.Int).SetUint64(a).Cmp(new(big.Int).SetUint64(b.(uint64)))
	case float64:
		b := b.(float64)
		switch {
		case a != a && b != b || a == b:
			return 0
		case a != a || a > b:
			return 1
		}
		return -1
	case decimal128.Num:
		return a.Cmp(b.(decimal128.Num))
	case string:
		return strings.Compare(a, b.(string))
	case []byte:
		return strings.Compare(string(a), string(b.([]byte)))
	case arrow.Date32:
		return int(a) - int(b.(arrow.Date32))
	case arrow.Timestamp:
		return int(a - b.(arrow.Timestamp))
	case arrow.MonthDayNanoInterval:
		x, _ := new(big.Int).SetString(canonical(a), 10)
		y, _ := new(big.Int).SetString(canonical(b), 10)
		return x.Cmp(y)
	}
	panic("no order")
}

// integer returns a number as an integer: a decimal's without its point.
func integer(v any) *big.Int {
	switch v := v.(type) {
	case int32:
		return big.NewInt(int64(v))
	case int64:
		return big.NewInt(v)
	case uint64:
		return new(big.Int).SetUint64(v)
	case decimal128.Num:
		return v.BigInt()
	}
	panic("no integer")
}

// expected is what an aggregate of some rows of a group is, as canonical does.
func expected(p *plan.Aggregate, rows []row) string {
	at := -1
	if p.Arg != nil {
		at = slices.IndexFunc(columns, func(f schema.Field) bool { return f.Name == p.Arg.(*expr.Column).Name })
	}
	var vs []any
	seen := map[string]bool{}
	for _, r := range rows {
		if p.Filter != nil && canonical(r[0]) != "true" {
			continue
		}
		if at < 0 {
			vs = append(vs, true)
			continue
		}
		if c := canonical(r[at]); r[at] != nil && (!p.Distinct || !seen[c]) {
			seen[c] = true
			vs = append(vs, r[at])
		}
	}
	switch p.Func {
	case "count":
		return fmt.Sprint(len(vs))
	case "approx_count_distinct":
		return fmt.Sprint(len(seen))
	}
	if len(vs) == 0 {
		return "null"
	}
	switch p.Func {
	case "min", "max":
		best := vs[0]
		for _, v := range vs {
			if c := compare(v, best); c < 0 && p.Func == "min" || c > 0 && p.Func == "max" {
				best = v
			}
		}
		return canonical(best)
	}
	if _, ok := vs[0].(float64); ok {
		sum, finite := 0.0, true
		for _, v := range vs {
			sum += v.(float64)
			finite = finite && v.(float64)-v.(float64) == 0
		}
		if finite && sum-sum != 0 {
			return "null"
		}
		if p.Func == "avg" {
			sum /= float64(len(vs))
		}
		return canonical(sum)
	}
	sum, scale := new(big.Int), int32(0)
	for _, v := range vs {
		sum.Add(sum, integer(v))
	}
	if p.Arg.Type().Kind == schema.Decimal {
		scale = p.Arg.Type().Scale
	}
	return expectedNumber(p, sum, scale, len(vs))
}

func expectedNumber(p *plan.Aggregate, sum *big.Int, scale int32, n int) string {
	exact := new(big.Rat).SetFrac(sum, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(scale)), nil))
	if p.Func == "avg" {
		exact.Quo(exact, new(big.Rat).SetInt64(int64(n)))
	}
	switch p.T.Kind {
	case schema.Float64:
		f, _ := exact.Float64()
		return canonical(f)
	case schema.Int64:
		if !sum.IsInt64() {
			return "null"
		}
		return sum.String()
	default:
		text := strings.Replace(exact.FloatString(int(p.T.Scale)), ".", "", 1)
		i, _ := new(big.Int).SetString(text, 10)
		if len(strings.TrimLeft(strings.TrimPrefix(i.String(), "-"), "0")) > int(p.T.Precision) {
			return "null"
		}
		return i.String()
	}
}

func value(a arrow.Array, i int) any {
	if a.IsNull(i) || a.DataType().ID() == arrow.NULL {
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
	}
	panic(fmt.Sprintf("%T", a))
}

// lines is a result as sorted texts.
func lines(b arrow.RecordBatch) []string {
	var out []string
	for i := range int(b.NumRows()) {
		var parts []string
		for _, c := range b.Columns() {
			parts = append(parts, canonical(value(c, i)))
		}
		out = append(out, strings.Join(parts, "|"))
	}
	sort.Strings(out)
	return out
}

func drawGroup(t *rapid.T) *plan.Group {
	g := &plan.Group{}
	for range rapid.IntRange(0, 3).Draw(t, "keys") {
		g.Keys = append(g.Keys, column(rapid.SampledFrom(columns).Draw(t, "key").Name))
	}
	decimal := func(scale int32) schema.Type { return schema.Type{Kind: schema.Decimal, Precision: 38, Scale: scale} }
	int64s, float64s := schema.Type{Kind: schema.Int64}, schema.Type{Kind: schema.Float64}
	for range rapid.IntRange(1, 5).Draw(t, "aggregates") {
		a := plan.Aggregate{Func: rapid.SampledFrom([]string{"count", "*", "sum", "avg", "min", "max", "approx_count_distinct"}).Draw(t, "func")}
		if rapid.Bool().Draw(t, "filter") {
			a.Filter = column("bool")
		}
		a.Distinct = rapid.IntRange(0, 3).Draw(t, "distinct") == 0
		switch a.Func {
		case "*":
			a.Func, a.T, a.Distinct = "count", int64s, false
		case "count", "approx_count_distinct":
			a.Arg, a.T = column(rapid.SampledFrom(columns).Draw(t, "arg").Name), int64s
		case "min", "max":
			c := column(rapid.SampledFrom(columns[:12]).Draw(t, "arg").Name)
			a.Arg, a.T = c, c.T
		default:
			c := column(rapid.SampledFrom([]string{"int32", "int64", "uint64", "float64", "decimal"}).Draw(t, "arg"))
			a.Arg = c
			switch {
			case c.T.Kind == schema.Float64:
				a.T = float64s
			case a.Func == "avg":
				a.T = rapid.SampledFrom([]schema.Type{float64s, decimal(16), decimal(2), decimal(0)}).Draw(t, "type")
			case c.T.Kind == schema.Decimal:
				a.T = decimal(2)
			default:
				a.T = rapid.SampledFrom([]schema.Type{int64s, decimal(0), float64s}).Draw(t, "type")
			}
		}
		g.Aggregates = append(g.Aggregates, a)
	}
	return g
}

func result(t interface {
	Helper()
	Fatal(args ...any)
}, a *Aggregator,
) []string {
	t.Helper()
	b, err := a.Result()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	return lines(b)
}

// Whatever the rows, however they are cut into batches, the result is what a simple program says.
func TestRandomGroups(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := drawGroup(t)
		rows := make([]row, rapid.IntRange(0, 40).Draw(t, "rows"))
		for i := range rows {
			rows[i] = drawRow(t)
		}
		groups, order := map[string][]row{}, []string{}
		if len(g.Keys) == 0 {
			groups[""], order = nil, []string{""}
		}
		for _, r := range rows {
			var parts []string
			for _, k := range g.Keys {
				at := slices.IndexFunc(columns, func(f schema.Field) bool { return f.Name == k.(*expr.Column).Name })
				parts = append(parts, canonical(r[at]))
			}
			key := strings.Join(parts, "|")
			if _, ok := groups[key]; !ok {
				order = append(order, key)
			}
			groups[key] = append(groups[key], r)
		}
		var want []string
		for _, key := range order {
			var parts []string
			if len(g.Keys) > 0 {
				parts = append(parts, key)
			}
			for i := range g.Aggregates {
				parts = append(parts, expected(&g.Aggregates[i], groups[key]))
			}
			want = append(want, strings.Join(parts, "|"))
		}
		sort.Strings(want)

		a, err := New(g, arrowSchema(), Limits{})
		if err != nil {
			t.Fatal(err)
		}
		for len(rows) > 0 {
			n := rapid.IntRange(1, len(rows)).Draw(t, "batch")
			whole := batchOf(rows)
			b := whole.NewSlice(0, int64(n))
			if err := a.Add(b); err != nil {
				t.Fatal(err)
			}
			b.Release()
			whole.Release()
			rows = rows[n:]
		}
		got := result(t, a)
		if !slices.Equal(got, want) {
			t.Fatalf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if again := result(t, a); !slices.Equal(got, again) {
			t.Fatal("a second result differs")
		}
	})
}

func countBy(keys ...string) *plan.Group {
	g := &plan.Group{Aggregates: []plan.Aggregate{{Func: "count", T: schema.Type{Kind: schema.Int64}}}}
	for _, k := range keys {
		g.Keys = append(g.Keys, column(k))
	}
	return g
}

func intBatch(n int, value func(i int) int64) arrow.RecordBatch {
	rows := make([]row, n)
	for i := range rows {
		rows[i] = make(row, len(columns))
		rows[i][2] = value(i)
	}
	return batchOf(rows)
}

func TestLimits(t *testing.T) {
	b := intBatch(100, func(i int) int64 { return int64(i) })
	for _, c := range []struct {
		limits Limits
		group  *plan.Group
		says   string
	}{
		{Limits{Groups: 99}, countBy("int64"), "more than 99 groups"},
		{Limits{Bytes: 2000}, countBy("int64"), "bytes, 2000 are allowed"},
		{Limits{Groups: 99}, &plan.Group{Aggregates: []plan.Aggregate{
			{Func: "count", Arg: column("int64"), Distinct: true, T: schema.Type{Kind: schema.Int64}},
		}}, "approx_count_distinct"},
	} {
		a, err := New(c.group, b.Schema(), c.limits)
		if err != nil {
			t.Fatal(err)
		}
		err = a.Add(b)
		if !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), c.says) {
			t.Fatalf("error %v, want one that says %q", err, c.says)
		}
		if _, err := a.Result(); !errors.Is(err, ErrLimit) {
			t.Fatalf("a result after the limit: %v", err)
		}
	}
	a, err := New(countBy("int64"), b.Schema(), Limits{Groups: 100})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := a.Add(b); err != nil {
			t.Fatal(err)
		}
	}
	if s := a.Stats(); s.Rows != 300 || s.Groups != 100 || s.Bytes < 100*8 {
		t.Fatalf("%+v", s)
	}
}

func TestRefused(t *testing.T) {
	list := schema.Type{Kind: schema.List, Elem: &schema.Type{Kind: schema.Int64}}
	int64s := schema.Type{Kind: schema.Int64}
	for _, g := range []*plan.Group{
		{Keys: []expr.Expr{&expr.Column{Name: "int64", T: list}}},
		{Keys: []expr.Expr{&expr.Column{Name: "nothing", T: int64s}}},
		{Aggregates: []plan.Aggregate{{Func: "median", Arg: column("int64"), T: int64s}}},
		{Aggregates: []plan.Aggregate{{Func: "sum", T: int64s}}},
		{Aggregates: []plan.Aggregate{{Func: "sum", Arg: column("string"), T: int64s}}},
		{Aggregates: []plan.Aggregate{{Func: "max", Arg: column("string"), T: int64s}}},
		{Aggregates: []plan.Aggregate{{Func: "approx_quantile", Arg: column("int64"), T: schema.Type{Kind: schema.Float64}, Params: []float64{1.5}}}},
	} {
		if _, err := New(g, arrowSchema(), Limits{}); err == nil {
			t.Errorf("%+v was accepted", g)
		}
	}
	if _, err := New(countBy(), arrowSchema(), Limits{Groups: -1}); err == nil {
		t.Error("a negative limit was accepted")
	}
}

func TestOverflowIsCountedOnce(t *testing.T) {
	g := &plan.Group{Aggregates: []plan.Aggregate{{Func: "sum", Arg: column("int64"), T: schema.Type{Kind: schema.Int64}}}}
	a, err := New(g, arrowSchema(), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	add := func(n int64) {
		if err := a.Add(intBatch(1, func(int) int64 { return n })); err != nil {
			t.Fatal(err)
		}
	}
	add(math.MaxInt64)
	add(1)
	for range 2 {
		if got := result(t, a); got[0] != "null" || a.Stats().Errors != 1 {
			t.Fatalf("%v, %+v", got, a.Stats())
		}
	}
	add(-2)
	if got := result(t, a); got[0] != fmt.Sprint(math.MaxInt64-1) || a.Stats().Errors != 0 {
		t.Fatalf("a sum that fits again: %v, %+v", got, a.Stats())
	}
}

func TestHaving(t *testing.T) {
	g := countBy("int64")
	g.Aggregates = append(g.Aggregates, plan.Aggregate{Func: "max", Arg: column("bool"), T: schema.Type{Kind: schema.Bool}})
	g.Having = &expr.Column{Name: "$a1", T: schema.Type{Kind: schema.Bool}}
	a, err := New(g, arrowSchema(), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	rows := []row{}
	for i, b := range []any{true, false, nil, true} {
		r := make(row, len(columns))
		r[0], r[2] = b, int64(i/2)
		rows = append(rows, r)
	}
	rows = append(rows, slices.Clone(rows[1]))
	rows[4][2] = int64(9)
	if err := a.Add(batchOf(rows)); err != nil {
		t.Fatal(err)
	}
	if got := result(t, a); !slices.Equal(got, []string{"0|2|true", "1|2|true"}) {
		t.Fatal(got)
	}
}

// PostgreSQL 17: select avg(x) from (values ('1 mon'::interval), ('1 day'), ('2 mons -3 days 05:00')) v(x) is 1 mon -00:40:00 ...
func TestIntervals(t *testing.T) {
	interval := schema.Type{Kind: schema.Interval}
	g := &plan.Group{Aggregates: []plan.Aggregate{{Func: "sum", Arg: column("interval"), T: interval}, {Func: "avg", Arg: column("interval"), T: interval}}}
	a, err := New(g, arrowSchema(), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	const hour = 3600 * 1_000_000_000
	rows := []row{}
	for _, v := range []arrow.MonthDayNanoInterval{{Months: 1}, {Days: 1}, {Months: 2, Days: -3, Nanoseconds: 5 * hour}, {Months: 1, Days: 1}} {
		r := make(row, len(columns))
		r[11] = v
		rows = append(rows, r)
	}
	if err := a.Add(batchOf(rows)); err != nil {
		t.Fatal(err)
	}
	b, err := a.Result()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := value(b.Column(0), 0), (arrow.MonthDayNanoInterval{Months: 4, Days: -1, Nanoseconds: 5 * hour}); got != want {
		t.Errorf("sum %+v, want %+v", got, want)
	}
	// 4 mons -1 days 05:00 / 4 = 1 mon -04:45:00 in PostgreSQL.
	if got, want := value(b.Column(1), 0), (arrow.MonthDayNanoInterval{Months: 1, Nanoseconds: -(4*hour + hour*3/4)}); got != want {
		t.Errorf("avg %+v, want %+v", got, want)
	}
}

func TestOneSketchServesManyQuantiles(t *testing.T) {
	g := &plan.Group{}
	for _, q := range []float64{0.5, 0.99} {
		g.Aggregates = append(g.Aggregates, plan.Aggregate{Func: "approx_quantile", Arg: column("int64"), Params: []float64{q}, T: schema.Type{Kind: schema.Float64}})
	}
	a, err := New(g, arrowSchema(), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Add(intBatch(10_000, func(i int) int64 { return int64(i) + 1 })); err != nil {
		t.Fatal(err)
	}
	if len(a.aggregates) != 1 {
		t.Errorf("%d sketches", len(a.aggregates))
	}
	b, err := a.Result()
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []float64{5000, 9900} {
		if got := value(b.Column(i), 0).(float64); math.Abs(got-want) > accuracy*want {
			t.Errorf("quantile %v, want %v", got, want)
		}
	}
}
