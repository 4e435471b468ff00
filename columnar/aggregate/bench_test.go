package aggregate

import (
	"fmt"
	"testing"

	"scribe/columnar/plan"
	"scribe/columnar/schema"
)

// go test ./columnar/aggregate -run '^$' -bench . -benchtime 0.3s
func BenchmarkAdd(b *testing.B) {
	rows := make([]row, 64<<10)
	codes := []string{"GET", "POST", "PUT", "DELETE", "HEAD"}
	for i := range rows {
		r := make(row, len(columns))
		r[1], r[2], r[4] = int32(200+i%7), int64(i*7919%100_000), float64(i)*0.25
		r[6], r[7] = fmt.Sprintf("/path/%d", i%1000), codes[i*31%5]
		rows[i] = r
	}
	batch := batchOf(rows)
	defer batch.Release()
	float64s := schema.Type{Kind: schema.Float64}
	count := plan.Aggregate{Func: "count", T: schema.Type{Kind: schema.Int64}}
	sum := plan.Aggregate{Func: "sum", Arg: column("int64"), T: schema.Type{Kind: schema.Int64}}
	avg := plan.Aggregate{Func: "avg", Arg: column("float64"), T: float64s}
	quantile := plan.Aggregate{Func: "approx_quantile", Arg: column("float64"), Params: []float64{0.99}, T: float64s}
	distinct := plan.Aggregate{Func: "approx_count_distinct", Arg: column("int64"), T: schema.Type{Kind: schema.Int64}}
	exact := plan.Aggregate{Func: "count", Arg: column("int64"), Distinct: true, T: schema.Type{Kind: schema.Int64}}
	for _, c := range []struct {
		name       string
		keys       []string
		aggregates []plan.Aggregate
	}{
		{"keys=none/count,sum", nil, []plan.Aggregate{count, sum}},
		{"keys=int32/count", []string{"int32"}, []plan.Aggregate{count}},
		{"keys=int64(100k)/count", []string{"int64"}, []plan.Aggregate{count}},
		{"keys=string(1000)/count", []string{"string"}, []plan.Aggregate{count}},
		{"keys=dictionary/count", []string{"code"}, []plan.Aggregate{count}},
		{"keys=int32,string/count,sum,avg", []string{"int32", "string"}, []plan.Aggregate{count, sum, avg}},
		{"keys=int32/approx_quantile", []string{"int32"}, []plan.Aggregate{quantile}},
		{"keys=int32/approx_count_distinct", []string{"int32"}, []plan.Aggregate{distinct}},
		{"keys=int32/count(distinct)", []string{"int32"}, []plan.Aggregate{exact}},
	} {
		b.Run(c.name, func(b *testing.B) {
			a, err := New(&plan.Group{Keys: countBy(c.keys...).Keys, Aggregates: c.aggregates}, batch.Schema(), Limits{})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := a.Add(batch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(rows)*b.N)/b.Elapsed().Seconds()/1e6, "Mrows/s")
		})
	}
}
