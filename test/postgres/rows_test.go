package postgres

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar/schema"
	"scribe/columnar/value"
)

// field is a column of the table: its name, its type here, and there.
type field struct {
	name string
	t    schema.Type
	pg   string
}

func of(k schema.Kind) schema.Type { return schema.Type{Kind: k} }

func listOf(k schema.Kind) schema.Type {
	e := of(k)
	return schema.Type{Kind: schema.List, Elem: &e}
}

var pair2 = schema.Type{Kind: schema.Struct, Fields: []schema.Field{
	{Name: "n", Type: of(schema.Int64), Nullable: true},
	{Name: "s", Type: of(schema.String), Nullable: true},
}}

var (
	textType = of(schema.String)
	mapType  = schema.Type{Kind: schema.Map, Elem: &textType}
)

var fields = []field{
	{"id", of(schema.Int32), "int4"},
	{"b", of(schema.Bool), "bool"},
	{"i", of(schema.Int32), "int4"},
	{"i2", of(schema.Int32), "int4"},
	{"j", of(schema.Int64), "int8"},
	{"u", of(schema.Uint64), "numeric(20,0)"},
	{"f", of(schema.Float64), "float8"},
	{"f2", of(schema.Float64), "float8"},
	{"d", schema.Type{Kind: schema.Decimal, Precision: 10, Scale: 2}, "numeric(10,2)"},
	{"s", of(schema.String), "text"},
	{"s2", of(schema.String), "text"},
	{"e", schema.Type{Kind: schema.String, Dictionary: true}, "text"},
	{"x", of(schema.Binary), "bytea"},
	{"dd", of(schema.Date), "date"},
	{"t", of(schema.Timestamp), "timestamptz"},
	{"t2", of(schema.Timestamp), "timestamptz"},
	{"l", listOf(schema.Int64), "int8[]"},
	{"ls", listOf(schema.String), "text[]"},
	{"p", pair2, "pair"},
	{"m", mapType, "hstore"},
}

func tableSchema() *schema.Schema {
	s := &schema.Schema{Version: 1, Format: schema.JSON, OnError: schema.OnErrorNull}
	for _, f := range fields {
		s.Fields = append(s.Fields, schema.Field{Name: f.name, Type: f.t, Nullable: true})
	}
	return s
}

var (
	texts = []string{
		"", "a", "ab", "Ab", "AB", "aba", "abab", "b%", "a_b", "äß€", "Ä", "ÄÖ ab", "x,y,,z", " a ", "12", "-3.5", "true", "2024-02-29", "1 day",
		"%", "_", "a%", "%b%", `\x0a`, "GET /index.html", "GET /index.html HTTP/1.1 200 and so on", "日本語", "NULL", "1e3", `a\b`, "a.b", "it's",
		"  7", "2024-02-29 12:30:45.678901+02", "0044-03-15 BC", "1 year 2 mons -3 days 04:05:06.7", "99999999999", "1.005", "nan", "-Infinity",
		"f", "{}", `"quoted"`, "two\nlines", "tab\there",
	}
	ints   = []int64{0, 1, -1, 2, 3, 7, 10, -13, 100, 404, math.MaxInt32, math.MinInt32, math.MaxInt64, math.MinInt64, 86400, 1 << 53, 1<<53 + 1}
	floats = []float64{
		0, math.Copysign(0, -1), 1, -1, 0.5, 1.5, 2.5, -2.5, 3.25, 0.1, 1e10, 1e15, 123456.789, 1e-5, 1e300, -1e300, 1e-300, math.NaN(), math.Inf(1),
		math.Inf(-1), 1 << 62, 2147483647.5, 1e22, 1.7976931348623157e308, 5e-324,
	}
	days   = []int32{0, -1, 1, 19782, 19783, 11016, -719162, 100000, -719528, 19723, 20088}
	micros = []int64{
		0, -1, 1, 1709210096123456, 951782400000000, -62135596800000000, 1704067199999999, 32503680000000000, 1706659200000000, 1735603200000000,
		-62198755200000000, 1709164800000000, -1000000,
	}
)

func pick[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

// random returns a value of a type as literals have them, nil for null; []any for lists and structs, [][2]any for maps.
func random(r *rand.Rand, t *schema.Type) any {
	if r.IntN(6) == 0 {
		return nil
	}
	switch t.Kind {
	case schema.Bool:
		return r.IntN(2) == 0
	case schema.Int32:
		return int32(pick(r, ints))
	case schema.Int64:
		return pick(r, ints)
	case schema.Uint64:
		return uint64(pick(r, ints))
	case schema.Float64:
		return pick(r, floats)
	case schema.Decimal:
		return decimal128.FromI64(pick(r, ints) % 10_000_000_000)
	case schema.String:
		return pick(r, texts)
	case schema.Binary:
		if r.IntN(5) == 0 {
			return []byte{0xff, 'a', 0, '%'}
		}
		return []byte(pick(r, texts))
	case schema.Date:
		return arrow.Date32(pick(r, days))
	case schema.Timestamp:
		return arrow.Timestamp(pick(r, micros))
	case schema.List:
		out := []any{}
		for range r.IntN(4) {
			out = append(out, random(r, t.Elem))
		}
		return out
	case schema.Struct:
		out := []any{}
		for i := range t.Fields {
			out = append(out, random(r, &t.Fields[i].Type))
		}
		return out
	default:
		out := [][2]any{}
		for _, k := range []string{"a", "b c", ""} {
			if r.IntN(2) == 0 {
				out = append(out, [2]any{k, random(r, t.Elem)})
			}
		}
		return out
	}
}

// constant is a value as both sides read it behind its type's name, without quotes.
func constant(v any, t *schema.Type) string {
	switch v := v.(type) {
	case bool:
		return string(value.AppendBool(nil, v))
	case int32:
		return string(value.AppendInt(nil, int64(v)))
	case int64:
		return string(value.AppendInt(nil, v))
	case uint64:
		return string(value.AppendUint(nil, v))
	case float64:
		return string(value.AppendFloat(nil, v))
	case decimal128.Num:
		return string(value.AppendDecimal(nil, v, t.Scale))
	case string:
		return v
	case []byte:
		return string(value.AppendBinary(nil, v))
	case arrow.Date32:
		return string(value.AppendDate(nil, v))
	case arrow.Timestamp:
		return string(value.AppendTimestamp(nil, v))
	}
	panic(fmt.Sprintf("no constant of %T", v))
}

func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// pgConstant is a value in PostgreSQL's SQL.
func pgConstant(v any, t *schema.Type, pg string) string {
	if v == nil {
		return "NULL"
	}
	switch t.Kind {
	case schema.List:
		var parts []string
		for _, e := range v.([]any) {
			parts = append(parts, pgConstant(e, t.Elem, strings.TrimSuffix(pg, "[]")))
		}
		return "ARRAY[" + strings.Join(parts, ",") + "]::" + pg
	case schema.Struct:
		var parts []string
		for i, e := range v.([]any) {
			parts = append(parts, pgConstant(e, &t.Fields[i].Type, []string{"int8", "text"}[i]))
		}
		return "ROW(" + strings.Join(parts, ",") + ")::" + pg
	case schema.Map:
		out := "''::hstore"
		for _, e := range v.([][2]any) {
			out += " || hstore(" + quoted(e[0].(string)) + "," + pgConstant(e[1], t.Elem, "text") + ")"
		}
		return out
	default:
		return quoted(constant(v, t)) + "::" + pg
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
		for _, e := range v.([][2]any) {
			appendValue(b.KeyBuilder(), e[0])
			appendValue(b.ItemBuilder(), e[1])
		}
	default:
		panic(fmt.Sprintf("no value for %T", b))
	}
}

// fill makes random rows, puts them into PostgreSQL's table t, and returns them as batches that are cut out of one.
func (s *server) fill(r *rand.Rand, rows int) []arrow.RecordBatch {
	in := make([]arrow.Field, len(fields))
	var columns []string
	for i, f := range fields {
		in[i] = arrow.Field{Name: f.name, Type: f.t.Arrow(), Nullable: true}
		columns = append(columns, f.name+" "+f.pg)
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(in, nil))
	s.do("DROP TABLE IF EXISTS t", "CREATE TABLE t ("+strings.Join(columns, ", ")+")")
	var inserts []string
	for id := range rows {
		var texts []string
		for i, f := range fields {
			v := random(r, &f.t)
			if f.name == "id" {
				v = int32(id)
			}
			appendValue(b.Field(i), v)
			texts = append(texts, pgConstant(v, &f.t, f.pg))
		}
		inserts = append(inserts, "("+strings.Join(texts, ",")+")")
	}
	s.do("INSERT INTO t VALUES " + strings.Join(inserts, ",\n"))
	whole := b.NewRecordBatch()
	first, second := int64(r.IntN(rows+1)), int64(r.IntN(rows+1))
	first, second = min(first, second), max(first, second)
	return []arrow.RecordBatch{whole.NewSlice(0, first), whole.NewSlice(first, second), whole.NewSlice(second, int64(rows))}
}
