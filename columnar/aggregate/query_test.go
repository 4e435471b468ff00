package aggregate

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar/plan"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
	"scribe/columnar/vector"
)

// What package plan binds is what an Aggregator computes: queries from their text to their answer.
func TestQueries(t *testing.T) {
	s := &schema.Schema{Version: 1, Format: schema.JSON, Fields: slices.Clone(columns[:11])}
	list := schema.Type{Kind: schema.List, Elem: &schema.Type{Kind: schema.Int64}}
	s.Fields = append(s.Fields, schema.Field{Name: "list", Type: list, Nullable: true})
	in := arrow.NewSchema(append(slices.Clone(arrowSchema().Fields()[:11]), arrow.Field{Name: "list", Type: list.Arrow(), Nullable: true}), nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, in)
	for range 10 {
		for k := range 12 {
			b.Field(k).AppendNull()
		}
	}
	for i := range 20 {
		v := int64(i)
		for k, x := range []any{
			i%2 == 0, int32(i % 3), v, uint64(v), float64(i) / 4, decimal128.FromI64(v), fmt.Sprint("s", i%4), []string{"x", "y"}[i%2],
			[]byte{byte(i)},
			arrow.Date32(i), arrow.Timestamp(v * 20_000_000),
		} {
			appendValue(b.Field(k), x)
		}
		l := b.Field(11).(*array.ListBuilder)
		l.Append(true)
		l.ValueBuilder().(*array.Int64Builder).Append(v)
	}
	batch := b.NewRecordBatch()
	defer batch.Release()
	for _, c := range []struct{ text, want string }{
		{"SELECT count(*), count(list), count(int32), count(DISTINCT int32) FROM t", "30|20|20|3"},
		{"SELECT sum(int32), sum(int64), sum(uint64), sum(float64), sum(decimal) FROM t", "19|190|190|47.5|190"},
		{"SELECT avg(int32), avg(float64) FROM t WHERE int64 < 4", "7500000000000000|0.375"},
		{"SELECT min(string), max(code), min(date), max(timestamp), min(\"binary\"), bool_and(bool), bool_or(bool) FROM t", "s0|y|0|380000000|00|false|true"},
		{"SELECT int32, count(*) AS n FROM t GROUP BY int32 HAVING count(*) > 6 ORDER BY n DESC, int32 NULLS FIRST", "null|10; 0|7; 1|7"},
		{"SELECT string FROM t GROUP BY string ORDER BY string DESC NULLS LAST", "s3; s2; s1; s0; null"},
		{
			"SELECT date_trunc('minute', timestamp) AS m, sum(int64) FROM t WHERE int64 IS NOT NULL GROUP BY m ORDER BY m LIMIT 2",
			"0|3; 60000000|12; 120000000|21; 180000000|30; 240000000|39; 300000000|48; 360000000|37",
		},
		{"SELECT code || '!', count(*) FILTER (WHERE bool), approx_count_distinct(string) FROM t GROUP BY code ORDER BY 1", "x!|10|2; y!|0|2; null|0|0"},
		{"SELECT max(int64) - min(int64), sum(int64) / count(int64) FROM t WHERE bool", "18|9000000"},
		{"SELECT avg(timestamp - timestamp '1970-01-01 00:00:00+00') FROM t", "190000000000"},
		{"SELECT int64 % 2, count(*) FROM t WHERE false GROUP BY 1", ""},
		{"SELECT count(*), sum(int64) FROM t WHERE false", "0|null"},
	} {
		q, err := sql.Parse(c.text)
		if err != nil {
			t.Fatal(err)
		}
		p, err := plan.Bind(q, s, plan.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := run(t, p, batch); got != c.want {
			t.Errorf("%s\n is %s\nwant %s", c.text, got, c.want)
		}
	}
}

// run evaluates a plan over a batch, as whoever runs queries does.
func run(t *testing.T, p *plan.Plan, batch arrow.RecordBatch) string {
	t.Helper()
	a, err := New(p.Group, batch.Schema(), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if p.Where != nil {
		where, err := vector.CompileFilter(p.Where, batch.Schema())
		if err != nil {
			t.Fatal(err)
		}
		keep, err := where.Select(batch, &vector.Stats{})
		if err != nil {
			t.Fatal(err)
		}
		batch = keep.Take(batch)
		defer batch.Release()
	}
	if err := a.Add(batch); err != nil {
		t.Fatal(err)
	}
	groups, err := a.Result()
	if err != nil {
		t.Fatal(err)
	}
	defer groups.Release()
	var outputs []vector.Output
	for _, o := range p.Output {
		outputs = append(outputs, vector.Output(o))
	}
	project, err := vector.Project(outputs, a.Schema())
	if err != nil {
		t.Fatal(err)
	}
	answer, err := project.Eval(groups, &vector.Stats{})
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Release()
	var rows []string
	for i := range int(answer.NumRows()) {
		var parts []string
		for _, c := range answer.Columns() {
			parts = append(parts, canonical(value(c, i)))
		}
		rows = append(rows, strings.Join(parts, "|"))
	}
	return strings.Join(rows, "; ")
}
