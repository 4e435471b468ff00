package zone_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/zone"
)

// testSchema has a column of each kind that has zones, named as its kind, and some that have none.
func testSchema() *schema.Schema {
	return &schema.Schema{Version: 3, Format: schema.JSON, Fields: []schema.Field{
		{Name: "b", Type: schema.Type{Kind: schema.Bool}, Nullable: true},
		{Name: "i32", Type: schema.Type{Kind: schema.Int32}, Nullable: true},
		{Name: "i64", Type: schema.Type{Kind: schema.Int64}, Nullable: true},
		{Name: "u64", Type: schema.Type{Kind: schema.Uint64}, Nullable: true},
		{Name: "f64", Type: schema.Type{Kind: schema.Float64}, Nullable: true},
		{Name: "dec", Type: schema.Type{Kind: schema.Decimal, Precision: 20, Scale: 2}, Nullable: true},
		{Name: "s", Type: schema.Type{Kind: schema.String}, Nullable: true},
		{Name: "d", Type: schema.Type{Kind: schema.String, Dictionary: true}, Nullable: true},
		{Name: "bin", Type: schema.Type{Kind: schema.Binary}, Nullable: true},
		{Name: "date", Type: schema.Type{Kind: schema.Date}, Nullable: true},
		{Name: "ts", Type: schema.Type{Kind: schema.Timestamp}, Nullable: true},
		{Name: "list", Type: schema.Type{Kind: schema.List, Elem: &schema.Type{Kind: schema.Int32}}, Nullable: true},
	}}
}

// drawValue draws a value as literals hold it; small domains, so that values meet, and the ends of the large ones.
func drawValue(t *rapid.T, typ *schema.Type) any {
	n := rapid.Int64Range(-3, 6).Draw(t, "n")
	far := rapid.IntRange(0, 9).Draw(t, "far") == 0
	switch typ.Kind {
	case schema.Bool:
		return n > 0
	case schema.Int32:
		if far {
			return rapid.SampledFrom([]int32{math.MinInt32, math.MaxInt32}).Draw(t, "end")
		}
		return int32(n)
	case schema.Int64:
		if far {
			return rapid.SampledFrom([]int64{math.MinInt64, math.MaxInt64, 1<<53 + 1}).Draw(t, "end")
		}
		return n
	case schema.Uint64:
		if far {
			return uint64(math.MaxUint64)
		}
		return uint64(n + 3)
	case schema.Float64:
		if far {
			return rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1), 1 << 53}).Draw(t, "end")
		}
		return float64(n) / 2
	case schema.Decimal:
		return decimal128.FromI64(n * 50)
	case schema.String:
		return drawText(t, n, far)
	case schema.Binary:
		return []byte(drawText(t, n, far))
	case schema.Date:
		return arrow.Date32(n)
	default:
		return arrow.Timestamp(n * 20 * 3600 * 1e6)
	}
}

func drawText(t *rapid.T, n int64, far bool) string {
	text := rapid.SampledFrom([]string{"", "a", "ab", "abc", "b", "ba", "é", "\xff"}).Draw(t, "text") + strings.Repeat("x", int(n&1))
	if far {
		return strings.Repeat(rapid.SampledFrom([]string{"a", "\xff"}).Draw(t, "long"), 70) + text
	}
	return text
}

// appendValue appends a value, nil for null.
func appendValue(b array.Builder, v any) {
	switch b := b.(type) {
	case *array.BooleanBuilder:
		push(b, b.Append, v)
	case *array.Int32Builder:
		push(b, b.Append, v)
	case *array.Int64Builder:
		push(b, b.Append, v)
	case *array.Uint64Builder:
		push(b, b.Append, v)
	case *array.Float64Builder:
		push(b, b.Append, v)
	case *array.Decimal128Builder:
		push(b, b.Append, v)
	case *array.StringBuilder:
		push(b, b.Append, v)
	case *array.BinaryBuilder:
		push(b, b.Append, v)
	case *array.BinaryDictionaryBuilder:
		if v == nil {
			b.AppendNull()
		} else if err := b.AppendString(v.(string)); err != nil {
			panic(err)
		}
	case *array.Date32Builder:
		push(b, b.Append, v)
	case *array.TimestampBuilder:
		push(b, b.Append, v)
	default:
		panic(fmt.Sprintf("%T", b))
	}
}

func push[T any](b array.Builder, add func(T), v any) {
	if v == nil {
		b.AppendNull()
		return
	}
	add(v.(T))
}

// payload is rows, by column name, and their map after a round trip through its encoding.
type payload struct {
	n    int
	rows map[string][]any
	m    *zone.Map
}

func drawPayload(t *rapid.T, s *schema.Schema) payload {
	p := payload{n: rapid.IntRange(0, 12).Draw(t, "rows"), rows: map[string][]any{}}
	b := zone.NewBuilder(zone.Define(s))
	b.AddRows(p.n)
	for i := range s.Fields {
		f := &s.Fields[i]
		if f.Type.Kind == schema.List {
			continue
		}
		how := rapid.IntRange(0, 3).Draw(t, "how") // all null, no null, some
		values := make([]any, p.n)
		build := array.NewBuilder(memory.DefaultAllocator, f.Type.Arrow())
		for r := range values {
			if how > 0 && (how == 1 || rapid.IntRange(0, 3).Draw(t, "null") > 0) {
				values[r] = drawValue(t, &f.Type)
			}
			appendValue(build, values[r])
		}
		p.rows[f.Name] = values
		if rapid.IntRange(0, 9).Draw(t, "known") > 0 {
			b.AddArray(f.Name, build.NewArray())
		}
	}
	if p.m = b.Map(); p.m != nil {
		m, err := zone.Decode(p.m.Append(nil))
		if err != nil {
			t.Fatal(err)
		}
		p.m = m.Under(zone.Define(s))
	}
	return p
}

func TestPruningNeverLosesARow(t *testing.T) {
	s := testSchema()
	var pruned, kept int
	rapid.Check(t, func(t *rapid.T) {
		p := drawPayload(t, s)
		for range 20 {
			e := drawCondition(t, s, 3)
			may, matches := zone.MayMatch(e, p.m), 0
			for r := range p.n {
				row := func(name string) any { return p.rows[name][r] }
				if is(evaluate(e, row), true) {
					matches++
				}
			}
			switch {
			case matches > 0 && !may:
				t.Fatalf("%d rows match, but the map says that none can: %s", matches, show(e))
			case may:
				kept++
			default:
				pruned++
			}
		}
	})
	if pruned < kept/20 {
		t.Errorf("only %d of %d were left out: the map says nothing", pruned, pruned+kept)
	}
}

func TestFilterLeavesOutWhatTheBoundsHold(t *testing.T) {
	s := testSchema()
	b := zone.NewBuilder(zone.Define(s))
	ints := array.NewInt32Builder(memory.DefaultAllocator)
	texts := array.NewStringBuilder(memory.DefaultAllocator)
	for i := range 1000 {
		ints.Append([]int32{200, 301, 503}[i%3])
		texts.Append(fmt.Sprintf("user-%d", i%100*7))
	}
	b.AddRows(1000)
	b.AddArray("i32", ints.NewArray())
	b.AddArray("s", texts.NewArray())
	m := b.Map()
	col := func(name string, t schema.Type) expr.Expr { return &expr.Column{Name: name, T: t} }
	is := func(c, v expr.Expr) expr.Expr {
		return &expr.Call{Op: expr.Eq, Args: []expr.Expr{c, v}, T: schema.Type{Kind: schema.Bool}}
	}
	number, wide, text := schema.Type{Kind: schema.Int32}, schema.Type{Kind: schema.Int64}, schema.Type{Kind: schema.String}
	i32, str := col("i32", number), col("s", text)
	cast := &expr.Call{Op: expr.Cast, Args: []expr.Expr{i32}, T: wide}
	out := 0
	for i := range 100 {
		for _, e := range []expr.Expr{
			is(i32, &expr.Literal{T: number, Value: int32(302 + i)}),
			is(cast, &expr.Literal{T: wide, Value: int64(302 + i)}),
			is(str, &expr.Literal{T: text, Value: fmt.Sprintf("user-%d", i*7+1)}),
		} {
			if !zone.MayMatch(e, m) {
				out++
			}
		}
	}
	if out < 290 {
		t.Errorf("%d of 300 values that are not there were left out", out)
	}
	for i := range 100 {
		if !zone.MayMatch(is(str, &expr.Literal{T: text, Value: fmt.Sprintf("user-%d", i*7)}), m) {
			t.Errorf("user-%d was left out", i*7)
		}
	}
	if n := len(m.Append(nil)); n > 600 {
		t.Errorf("the map takes %d bytes", n)
	}
}

func TestMapIsSmallWhateverItHolds(t *testing.T) {
	s := &schema.Schema{Version: 1, Format: schema.JSON}
	for i := range 80 {
		s.Fields = append(s.Fields, schema.Field{Name: fmt.Sprintf("column_%d_%s", i, strings.Repeat("n", 40)), Type: schema.Type{Kind: schema.String}, Nullable: true})
	}
	b := zone.NewBuilder(zone.Define(s))
	b.AddRows(600)
	texts := array.NewStringBuilder(memory.DefaultAllocator)
	for i := range 600 {
		texts.Append(strings.Repeat(fmt.Sprint(i), 40))
	}
	a := texts.NewArray()
	for i := range s.Fields {
		b.AddArray(s.Fields[i].Name, a)
	}
	m := b.Map()
	encoded := m.Append(nil)
	if len(encoded) > zone.MaxLen || !m.Has(s.Fields[0].Name) {
		t.Errorf("the map takes %d bytes", len(encoded))
	}
	if _, err := zone.Decode(encoded); err != nil {
		t.Error(err)
	}
}

func TestColumnsOfOtherDefinitionsAreLeftOut(t *testing.T) {
	s := testSchema()
	b := zone.NewBuilder(zone.Define(s))
	b.AddRows(1)
	for _, name := range []string{"i32", "i64", "s"} {
		build := array.NewBuilder(memory.DefaultAllocator, s.Fields[map[string]int{"i32": 1, "i64": 2, "s": 6}[name]].Type.Arrow())
		build.AppendNull()
		b.AddArray(name, build.NewArray())
	}
	later := testSchema()
	later.Version = 4
	later.Fields[1].Aliases = [][]string{{"old"}}                      // looked for elsewhere
	later.Fields[2].Default = "7"                                      // not null any more
	later.Fields[6].Type.Dictionary = true                             // the same values
	later.Fields = append(later.Fields, schema.Field{Name: "another"}) // changes no other
	m := b.Map().Under(zone.Define(later))
	if m.Has("i32") || m.Has("i64") || !m.Has("s") || m.Version != 4 {
		t.Errorf("i32 %v, i64 %v, s %v", m.Has("i32"), m.Has("i64"), m.Has("s"))
	}
	later.Format = schema.NDJSON
	if b.Map().Under(zone.Define(later)).Has("s") {
		t.Error("a column of another format")
	}
}

func TestColumnsThatAreNotWholeAreLeftOut(t *testing.T) {
	s := testSchema()
	b := zone.NewBuilder(zone.Define(s))
	b.AddRows(2)
	one := array.NewInt32Builder(memory.DefaultAllocator)
	one.Append(1)
	a := one.NewArray()
	b.AddArray("i32", a)
	b.AddArray("i64", a) // another type
	b.AddArray("list", a)
	b.AddArray("nothing", a)
	if m := b.Map(); m != nil {
		t.Errorf("%+v", m)
	}
	b.AddArray("i32", a)
	if m := b.Map(); !m.Has("i32") {
		t.Error("a column in two arrays is not there")
	}
}

func TestWhatThePointerSays(t *testing.T) {
	ts := schema.Type{Kind: schema.Timestamp}
	m := (*zone.Map)(nil).With(schema.ColumnPersisted, ts, arrow.Timestamp(100))
	e := &expr.Call{Op: expr.Gt, T: schema.Type{Kind: schema.Bool}, Args: []expr.Expr{
		&expr.Column{Name: schema.ColumnPersisted, T: ts}, &expr.Literal{T: ts, Value: arrow.Timestamp(100)},
	}}
	if zone.MayMatch(e, m) {
		t.Error("100 > 100")
	}
	later := (*zone.Map)(nil).With(schema.ColumnPersisted, ts, arrow.Timestamp(101)).Under(zone.Define(testSchema()))
	if !zone.MayMatch(e, later) {
		t.Error("101 > 100 was left out")
	}
	if !later.Has(schema.ColumnPersisted) {
		t.Error("another schema takes away what the pointer says")
	}
}

func TestDecodeRefusesDamage(t *testing.T) {
	s := testSchema()
	rapid.Check(t, func(t *rapid.T) {
		p := drawPayload(t, s)
		if p.m == nil {
			return
		}
		encoded := p.m.Append(nil)
		if again, err := zone.Decode(encoded); err != nil || !bytes.Equal(again.Append(nil), encoded) {
			t.Fatalf("round trip: %v", err)
		}
		bad := bytes.Clone(encoded)
		bad[rapid.IntRange(0, len(bad)-1).Draw(t, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if _, err := zone.Decode(bad); !errors.Is(err, zone.ErrInvalid) {
			t.Fatalf("a flipped bit: %v", err)
		}
		if _, err := zone.Decode(encoded[:rapid.IntRange(0, len(encoded)-1).Draw(t, "length")]); !errors.Is(err, zone.ErrInvalid) {
			t.Fatalf("a part: %v", err)
		}
	})
}

// TestGolden reads what version 1 wrote, byte by byte.
func TestGolden(t *testing.T) {
	s := testSchema()
	b := zone.NewBuilder(zone.Define(s))
	b.AddRows(3)
	ints, texts := array.NewInt32Builder(memory.DefaultAllocator), array.NewStringBuilder(memory.DefaultAllocator)
	for _, v := range []any{int32(-5), nil, int32(404)} {
		appendValue(ints, v)
	}
	for _, v := range []any{"ERROR", "INFO", nil} {
		appendValue(texts, v)
	}
	b.AddArray("i32", ints.NewArray())
	b.AddArray("s", texts.NewArray())
	got := b.Map().Append(nil)
	const file = "testdata/golden/v1"
	if *rewrite {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	if m, err := zone.Decode(want); err != nil || m.Rows != 3 || m.Version != 3 || !m.Has("s") {
		t.Errorf("%+v, %v", m, err)
	}
	want[0]++
	if _, err := zone.Decode(zone.Seal(want[:len(want)-4])); !errors.Is(err, zone.ErrVersion) {
		t.Errorf("version 2: %v", err)
	}
}

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

func FuzzDecode(f *testing.F) {
	s := testSchema()
	b := zone.NewBuilder(zone.Define(s))
	b.AddRows(2)
	texts := array.NewStringBuilder(memory.DefaultAllocator)
	texts.Append("a")
	texts.AppendNull()
	b.AddArray("s", texts.NewArray())
	f.Add(b.Map().Append(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, in []byte) {
		m, err := zone.Decode(zone.Seal(in))
		if err != nil {
			return
		}
		e := &expr.Call{Op: expr.Eq, T: schema.Type{Kind: schema.Bool}, Args: []expr.Expr{
			&expr.Column{Name: "s", T: schema.Type{Kind: schema.String}}, &expr.Literal{T: schema.Type{Kind: schema.String}, Value: "a"},
		}}
		zone.MayMatch(e, m)
		if again, err := zone.Decode(m.Append(nil)); err != nil || again.Rows != m.Rows {
			t.Errorf("what was read is written as something else: %v", err)
		}
	})
}
