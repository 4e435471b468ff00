package postgres

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar/schema"
	"scribe/columnar/value"
)

// edges are the values of arguments, of which every combination is tried.
var edges = map[schema.Kind][]any{
	schema.Bool:  {nil, true, false},
	schema.Int32: {nil, int32(0), int32(1), int32(-1), int32(2), int32(3), int32(-2), int32(7), int32(math.MaxInt32), int32(math.MinInt32)},
	schema.Int64: {
		nil, int64(0), int64(1), int64(-1), int64(2), int64(-7), int64(math.MaxInt64), int64(math.MinInt64), int64(1<<53 + 1), int64(math.MaxInt32), int64(3037000500),
	},
	schema.Float64: anys(floats),
	schema.Decimal: {
		nil, decimal128.FromI64(0), decimal128.FromI64(1), decimal128.FromI64(-1), decimal128.FromI64(50), decimal128.FromI64(-50), decimal128.FromI64(150),
		decimal128.FromI64(250), decimal128.FromI64(149), decimal128.FromI64(9_999_999_999), decimal128.FromI64(-9_999_999_999), decimal128.FromI64(300),
	},
	schema.String: anys([]string{"", "a", "b", "ab", "abab", "ba", "aXb", " a ", "äß€", "ÄÖ", "€", "日本語", ",", "a,b,,c", ",,", "%", `\`, "aaa", "aa"}),
	schema.Binary: {nil, []byte{}, []byte("a"), []byte("ä"), []byte{0xff}, []byte{1, 2}},
	schema.Date:   {nil, arrow.Date32(0), arrow.Date32(-1), arrow.Date32(19782), arrow.Date32(-719162), arrow.Date32(-719163), arrow.Date32(value.MinDays), arrow.Date32(11016)},
	schema.Timestamp: {
		nil, arrow.Timestamp(0), arrow.Timestamp(-1), arrow.Timestamp(1709210096123456), arrow.Timestamp(-62135596800000000), arrow.Timestamp(-62135596800000001),
		arrow.Timestamp(-62198755200000000), arrow.Timestamp(1704067199999999), arrow.Timestamp(1735603200000000), arrow.Timestamp(1706659200000000),
		arrow.Timestamp(978307200000000), arrow.Timestamp(978307199999999), arrow.Timestamp(-210866803200000000), arrow.Timestamp(8900000000000000000),
		arrow.Timestamp(-93692592000000000), arrow.Timestamp(1609459200000000), arrow.Timestamp(1609372800000000),
	},
}

func anys[T any](of []T) []any {
	out := []any{nil}
	for _, v := range of {
		out = append(out, v)
	}
	return out
}

// functions are expressions over the arguments a, b and c.
var functions = []struct {
	args []schema.Kind
	of   []pair
}{
	{[]schema.Kind{schema.Bool, schema.Bool}, []pair{
		same("a AND b"), same("a OR b"), same("NOT a"), same("a = b"), same("a < b"), same("a >= b"), same("a IS DISTINCT FROM b"), same("a IS NOT TRUE"),
		same("a IS UNKNOWN"), same("a IN (true, NULL)"), same("coalesce(a, b)"), same("greatest(a, b)"),
		{"a::text", "to_text(a)"},
		{"a::int", "to_int4(a)"},
	}},
	{[]schema.Kind{schema.Int32, schema.Int32}, []pair{
		{"a + b", "s_add(a, b)"},
		{"a - b", "s_sub(a, b)"},
		{"a * b", "s_mul(a, b)"},
		{"a / b", "s_div(a, b)"},
		{"a % b", "s_mod(a, b)"},
		{"mod(a, b)", "s_mod(a, b)"},
		{"-a", "s_neg(a)"},
		{"abs(a)", "s_abs(a)"},
		same("a < b"), same("a BETWEEN b AND 2"), same("least(a, b)"), same("nullif(a, b)"), same("a NOT IN (1, 7, NULL)"),
		same("floor(a)"), same("round(a)"),
		{"a::text", "to_text(a)"},
		{"a::bool", "to_bool(a)"},
		{"a::numeric(14,4)", "to_numeric(a)"},
	}},
	{[]schema.Kind{schema.Int64, schema.Int64}, []pair{
		{"a + b", "s_add(a, b)"},
		{"a - b", "s_sub(a, b)"},
		{"a * b", "s_mul(a, b)"},
		{"a / b", "s_div(a, b)"},
		{"a % b", "s_mod(a, b)"},
		{"-a", "s_neg(a)"},
		{"abs(a)", "s_abs(a)"},
		same("a > b"),
		{"a::int", "to_int4(a)"},
		same("a::float8"),
		{"a::numeric(14,4)", "to_numeric(a)"},
		same("a = b::float8"),
	}},
	{[]schema.Kind{schema.Float64, schema.Float64}, []pair{
		{"a + b", "s_add(a, b)"},
		{"a - b", "s_sub(a, b)"},
		{"a * b", "s_mul(a, b)"},
		{"a / b", "s_div(a, b)"},
		same("-a"), same("abs(a)"), same("floor(a)"),
		same("ceil(a)"), same("round(a)"), same("a = b"), same("a < b"), same("a > b"), same("a <= b"), same("greatest(a, b)"), same("a::text"),
		{"a::int", "to_int4(a)"},
		{"a::bigint", "to_int8(a)"},
		{"a::numeric(14,4)", "to_numeric(a)"},
		same("a IN ('NaN'::float8, 0, 1.5, 2, 3)"),
	}},
	{[]schema.Kind{schema.Decimal, schema.Decimal}, []pair{
		same("a + b"), same("a - b"), same("a * b"),
		{"round(a / b, 6)", "round(s_div(a, b), 6)"},
		{"a % b", "s_mod(a, b)"},
		same("-a"), same("abs(a)"), same("floor(a)"),
		same("ceil(a)"), same("round(a)"), same("round(a, 1)"), same("a < b"),
		{"a::int", "to_int4(a)"},
		{"a::bigint", "to_int8(a)"},
		same("a::float8"), same("a::text"),
		same("a IN (0, 1.5, -0.01, 3)"), same("a = 1.5"),
	}},
	{[]schema.Kind{schema.String, schema.String}, []pair{
		same("a || b"), same("concat(a, b)"), same("a < b"), same("a >= b"), same("position(a IN b)"), same("strpos(a, b)"), same("starts_with(a, b)"), same("btrim(a, b)"),
		same("ltrim(a, b)"), same("rtrim(a, b)"), same("trim(a)"), same("replace(a, b, 'X')"), same("replace(a, 'a', b)"), same("lower(a)"), same("upper(a)"),
		same("length(a)"), same("a LIKE '%a'"), same("a ILIKE 'ä%'"), same("a LIKE '_'"), same(`a LIKE '\%'`), same("a ~ 'a+$'"), same("a !~* 'B'"), same("left(a, 2)"),
		same("right(a, -1)"), same("left(a, -1)"), same("right(a, 2)"),
	}},
	{[]schema.Kind{schema.String, schema.Int32, schema.Int32}, []pair{
		{"substring(a FROM b FOR c)", "s_substring(a, b, c)"},
		same("substring(a FROM b)"),
		{"split_part(a, ',', b)", "s_split(a, ',', b)"},
		{"split_part(a, 'a', c)", "s_split(a, 'a', c)"},
		{"split_part(a, '', b)", "s_split(a, '', b)"},
	}},
	{[]schema.Kind{schema.Binary, schema.Binary}, []pair{
		same("a = b"), same("a < b"), same("length(a)"), same(`a LIKE '_'`), same(`a IN ('a', '\xff')`), {"convert_from(a, 'UTF8')", "s_utf8(a)"}, {"a::text", "s_utf8(a)"},
	}},
	{[]schema.Kind{schema.Date, schema.Int32}, []pair{
		{"a + b", "s_add(a, b)"}, {"a - b", "s_sub(a, b)"}, same("a - DATE '2000-01-01'"), same("a::text"), same("a::timestamptz"), same("a > '2000-01-01'"),
	}},
	{[]schema.Kind{schema.Timestamp, schema.Timestamp}, []pair{
		{"a - b", "s_sub(a, b)"},
		same("a < b"), same("a::text"), same("a::date"),
		{"date_bin('1 week', a, b)", "s_bin('1 week', a, b)"},
		{"date_bin('7 minutes 3 seconds', a, b)", "s_bin('7 minutes 3 seconds', a, b)"},
		same("a = b::date"),
	}},
}

func init() { //nolint:gochecknoinits // one of each unit
	var times, dates, spans []pair
	for _, unit := range []string{
		"year", "month", "day", "quarter", "decade", "century", "millennium", "epoch", "week", "isoyear", "dow", "isodow", "doy",
		"hour", "minute", "second", "milliseconds", "microseconds",
	} {
		e := pair{"extract(" + unit + " FROM a)", "extract(" + unit + " FROM a)::float8"}
		times = append(times, e)
		if !slices.Contains([]string{"hour", "minute", "second", "milliseconds", "microseconds"}, unit) {
			dates = append(dates, e)
		}
		if !slices.Contains([]string{"week", "isoyear", "dow", "isodow", "doy"}, unit) {
			spans = append(spans, pair{"extract(" + unit + " FROM (a - b))", "extract(" + unit + " FROM s_sub(a, b))::float8"})
		}
	}
	for _, unit := range []string{"microseconds", "milliseconds", "second", "minute", "hour", "day", "week", "month", "quarter", "year", "decade", "century", "millennium"} {
		times = append(times, pair{"date_trunc('" + unit + "', a)", "s_trunc('" + unit + "', a)"})
	}
	for _, interval := range []string{"1 month", "-1 month", "1 year", "30 days", "-25 hours", "13 months -1 day 00:00:01", "-4713 years", "200000 years", "1 microsecond"} {
		times = append(times, pair{"a + INTERVAL '" + interval + "'", "s_add(a, INTERVAL '" + interval + "')"},
			pair{"a - INTERVAL '" + interval + "'", "s_sub(a, INTERVAL '" + interval + "')"})
		for _, by := range []string{"2", "0.3", "-1.5", "1e-9", "1e9"} {
			spans = append(spans, pair{"INTERVAL '" + interval + "' * " + by, "s_mul(INTERVAL '" + interval + "', " + by + "::float8)"},
				pair{"INTERVAL '" + interval + "' / " + by, "s_div(INTERVAL '" + interval + "', " + by + "::float8)"})
		}
	}
	for _, f := range []struct {
		args []schema.Kind
		of   []pair
	}{{[]schema.Kind{schema.Timestamp}, times}, {[]schema.Kind{schema.Date}, dates}, {[]schema.Kind{schema.Timestamp, schema.Timestamp}, spans}} {
		functions = append(functions, struct {
			args []schema.Kind
			of   []pair
		}{f.args, f.of})
	}
}

// TestFunctions compares each function for every combination of its arguments' edges.
func TestFunctions(t *testing.T) {
	s := start(t)
	s.safe()
	s.do("CREATE FUNCTION s_trunc(unit text, at timestamptz) RETURNS timestamptz LANGUAGE plpgsql STRICT AS $f$ BEGIN RETURN date_trunc(unit, at); " +
		"EXCEPTION WHEN OTHERS THEN RETURN NULL; END $f$")
	compared := 0
	for _, f := range functions {
		sch, batch := s.combine(f.args)
		for _, e := range f.of {
			want, err := s.query("SELECT id, " + e.pg + " FROM t ORDER BY id")
			if err != nil {
				t.Fatalf("%v in %s", err, e.pg)
			}
			got, err := run("SELECT id, "+e.our+" AS v FROM t", sch, []arrow.RecordBatch{batch})
			if err != nil {
				t.Errorf("%v in %s", err, e.our)
				continue
			}
			for i, row := range got {
				compared++
				if !equal(row.texts[1], want[i][1], row.types[1]) {
					t.Errorf("%s of %s is %q, theirs is %q", e.our, arguments(batch, i), row.texts[1], want[i][1])
				}
			}
		}
	}
	t.Logf("%d values compared", compared)
}

func arguments(b arrow.RecordBatch, i int) string {
	var texts []string
	for c := 1; c < int(b.NumCols()); c++ {
		texts = append(texts, fmt.Sprintf("%q", textAt(b.Column(c), i)))
	}
	return strings.Join(texts, ", ")
}

// combine makes a table t of every combination of arguments a, b and c, on both sides.
func (s *server) combine(args []schema.Kind) (*schema.Schema, arrow.RecordBatch) {
	names, pg := []string{"id"}, []string{"id int4"}
	sch := &schema.Schema{Version: 1, Format: schema.JSON, OnError: schema.OnErrorNull, Fields: []schema.Field{{Name: "id", Type: of(schema.Int32)}}}
	rows := [][]any{nil}
	for i, k := range args {
		ty, name := of(k), pgNames[k]
		if k == schema.Decimal {
			ty.Precision, ty.Scale, name = 10, 2, "numeric(10,2)"
		}
		sch.Fields = append(sch.Fields, schema.Field{Name: string(rune('a' + i)), Type: ty, Nullable: true})
		names, pg = append(names, string(rune('a'+i))), append(pg, string(rune('a'+i))+" "+name)
		var more [][]any
		for _, row := range rows {
			for _, v := range edges[k] {
				more = append(more, append(append([]any(nil), row...), v))
			}
		}
		rows = more
	}
	in := make([]arrow.Field, len(names))
	for i := range names {
		in[i] = sch.Fields[i].Arrow()
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(in, nil))
	var inserts []string
	for id, row := range rows {
		row = append([]any{int32(id)}, row...)
		var texts []string
		for i, v := range row {
			appendValue(b.Field(i), v)
			texts = append(texts, pgConstant(v, &sch.Fields[i].Type, strings.SplitN(pg[i], " ", 2)[1]))
		}
		inserts = append(inserts, "("+strings.Join(texts, ",")+")")
	}
	s.do("DROP TABLE IF EXISTS t", "CREATE TABLE t ("+strings.Join(pg, ", ")+")", "INSERT INTO t VALUES "+strings.Join(inserts, ","))
	return sch, b.NewRecordBatch()
}
