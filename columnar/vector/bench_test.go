package vector_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar/expr"
	"scribe/columnar/vector"
)

const benchRows = 1 << 15

// accessLog makes rows like those of an access log.
func accessLog() arrow.RecordBatch {
	s := arrow.NewSchema([]arrow.Field{
		{Name: "status", Type: int64T.Arrow()},
		{Name: "bytes", Type: int64T.Arrow(), Nullable: true},
		{Name: "method", Type: textT.Arrow()},
		{Name: "dict", Type: dictT.Arrow()},
		{Name: "agent", Type: textT.Arrow()},
		{Name: "path", Type: textT.Arrow()},
		{Name: "ms", Type: floatT.Arrow()},
	}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	r := rand.New(rand.NewPCG(1, 2))
	methods := []string{"GET", "GET", "GET", "POST", "HEAD", "PUT"}
	agents := []string{
		"Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36", "curl/8.5.0", "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
		"Mozilla/5.0 (X11; Linux x86_64; rv:109.0) Gecko/20100101 Firefox/115.0", "Mozilla/5.0 (iPhone; CPU iPhone OS 16_5 like Mac OS X)",
	}
	for range benchRows {
		status := int64(200)
		if r.IntN(50) == 0 {
			status = 404
		} else if r.IntN(20) == 0 {
			status = 500
		}
		method := methods[r.IntN(len(methods))]
		for i, v := range []any{
			status, int64(r.IntN(1 << 20)), method, method, agents[min(r.IntN(100), 4)], fmt.Sprintf("/api/v1/items/%d?page=%d", r.IntN(1e6), r.IntN(10)),
			r.Float64() * 100,
		} {
			if i == 1 && r.IntN(10) == 0 {
				v = nil
			}
			appendValue(b.Field(i), v)
		}
	}
	return b.NewRecordBatch()
}

func like(column, text string) expr.Expr {
	p, err := expr.ParsePattern(text, '\\', false)
	if err != nil {
		panic(err)
	}
	return &expr.Call{Op: expr.Like, T: boolT, Args: []expr.Expr{col(column, textT)}, Detail: p}
}

func compareTo(op expr.Op, e expr.Expr, v any) expr.Expr {
	return call(op, boolT, e, lit(v, *e.Type()))
}

// BenchmarkFilter evaluates conditions, and beside them what a plain loop over the same memory takes.
//
//	go test ./columnar/vector -run '^$' -bench Filter -cpu 1 -count 6
func BenchmarkFilter(b *testing.B) {
	batch := accessLog()
	status, size := col("status", int64T), col("bytes", int64T)
	in := []expr.Expr{status}
	for _, v := range []int64{404, 500, 502} {
		in = append(in, lit(v, int64T))
	}
	many := []expr.Expr{status}
	for v := range int64(20) {
		many = append(many, lit(v*1000003, int64T))
	}
	for _, bench := range []struct {
		name string
		e    expr.Expr
	}{
		{"int=", compareTo(expr.Eq, status, int64(404))},
		{"int>nulls", compareTo(expr.Gt, size, int64(1<<19))},
		{"float<", compareTo(expr.Lt, col("ms", floatT), 5.0)},
		{"int_in_3", call(expr.In, boolT, in...)},
		{"int_in_20", call(expr.In, boolT, many...)},
		{"text=", compareTo(expr.Eq, col("method", textT), "POST")},
		{"text=long", compareTo(expr.Eq, col("agent", textT), "curl/8.5.0")},
		{"dict=", compareTo(expr.Eq, col("dict", dictT), "POST")},
		{"like_x%", like("path", "/api/v1/items/12%")},
		{"like_%x%rare", like("path", "%page=99%")},
		{"like_%x%some", like("agent", "%Googlebot%")},
		{"like_%x%most", like("agent", "%iPhone%")},
		{"and_or", call(expr.Or, boolT, call(expr.And, boolT, compareTo(expr.Eq, status, int64(200)), compareTo(expr.Gt, size, int64(1<<19))),
			compareTo(expr.Eq, col("method", textT), "POST"))},
		{"and_like", call(expr.And, boolT, like("agent", "%Googlebot%"), compareTo(expr.Eq, status, int64(404)))},
	} {
		b.Run(bench.name, func(b *testing.B) {
			f, err := vector.CompileFilter(bench.e, batch.Schema())
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := f.Select(batch, nil); err != nil {
					b.Fatal(err)
				}
			}
			reportRows(b)
		})
	}
	ints := batch.Column(0).(*array.Int64).Int64Values()
	texts, agents := batch.Column(2).(*array.String), batch.Column(4).(*array.String)
	bools := make([]bool, benchRows)
	for name, loop := range map[string]func(){
		"plain/int=": func() {
			for i, v := range ints {
				bools[i] = v == 404
			}
		},
		"plain/text=": func() {
			for i := range bools {
				bools[i] = texts.Value(i) == "POST"
			}
		},
		"plain/like_%x%": func() {
			data, offsets, what := agents.ValueBytes(), agents.ValueOffsets(), []byte("Googlebot")
			for i := range bools {
				bools[i] = bytes.Contains(data[offsets[i]:offsets[i+1]], what)
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				loop()
			}
			reportRows(b)
		})
	}
}

func reportRows(b *testing.B) {
	b.ReportMetric(float64(b.N)*benchRows/b.Elapsed().Seconds()/1e6, "Mrows/s")
}

// BenchmarkTake gathers rows of all columns.
func BenchmarkTake(b *testing.B) {
	batch := accessLog()
	for name, e := range map[string]expr.Expr{
		"kept=2%":  compareTo(expr.Eq, col("status", int64T), int64(404)),
		"kept=93%": compareTo(expr.Eq, col("status", int64T), int64(200)),
	} {
		f, err := vector.CompileFilter(e, batch.Schema())
		if err != nil {
			b.Fatal(err)
		}
		s, err := f.Select(batch, nil)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				s.Take(batch)
			}
			reportRows(b)
		})
	}
}

// BenchmarkProject evaluates expressions that make columns.
func BenchmarkProject(b *testing.B) {
	batch := accessLog()
	for name, e := range map[string]expr.Expr{
		"int*8":     call(expr.Mul, int64T, col("bytes", int64T), lit(int64(8), int64T)),
		"lower":     call(expr.Lower, textT, col("agent", textT)),
		"substring": call(expr.Substring, textT, col("path", textT), lit(int32(2), int32T), lit(int32(6), int32T)),
		"length":    call(expr.Length, int32T, col("path", textT)),
		"int::text": call(expr.Cast, textT, col("bytes", int64T)),
		"case": call(expr.Case, textT, compareTo(expr.Ge, col("status", int64T), int64(500)), lit("error", textT),
			compareTo(expr.Ge, col("status", int64T), int64(400)), lit("refused", textT), lit("ok", textT)),
	} {
		p, err := vector.Compile(e, batch.Schema())
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.Eval(batch, nil); err != nil {
					b.Fatal(err)
				}
			}
			reportRows(b)
		})
	}
}
