package transcode

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/klauspost/compress/zstd"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/transcode/jsonscan"
	"scribe/internal/format/record"
)

// benchBytes is about the size of a payload.
const benchBytes = 2 << 20

func sampleLines(tb testing.TB, name string) []string {
	tb.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		tb.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// repeated repeats rows until they are as large as a payload.
func repeated(rows []string) []string {
	var out []string
	for n := 0; n < benchBytes; {
		out = append(out, rows[len(out)%len(rows)])
		n += len(out[len(out)-1])
	}
	return out
}

func nullable(name string, t schema.Type, path ...string) schema.Field {
	return schema.Field{Name: name, Type: t, Nullable: true, Path: path}
}

var (
	tInt    = schema.Type{Kind: schema.Int64}
	tFloat  = schema.Type{Kind: schema.Float64}
	tBool   = schema.Type{Kind: schema.Bool}
	tString = schema.Type{Kind: schema.String}
	tDict   = schema.Type{Kind: schema.String, Dictionary: true}
	tTime   = schema.Type{Kind: schema.Timestamp}
)

func accessSchema(text schema.Type) *schema.Schema {
	return &schema.Schema{Version: 1, Format: schema.JSON, Fields: []schema.Field{
		nullable("ts", tTime), nullable("client_ip", text), nullable("method", text), nullable("path", text), nullable("protocol", text),
		nullable("status", tInt), nullable("bytes", tInt), nullable("referrer", text), nullable("user_agent", text),
	}}
}

// eventRows are nested events: half of them with escapes, nulls, lists and objects.
func eventRows(n int) []string {
	rng := rand.New(rand.NewPCG(1, 2))
	words := strings.Fields("connection refused while reading upstream response header timeout retry backend user session token order payment")
	text := func(n int) string {
		var b strings.Builder
		for i := range n {
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(words[rng.IntN(len(words))])
		}
		return b.String()
	}
	rows := make([]string, n)
	for i := range rows {
		message, tags, duration, agent := text(6), `["`+text(1)+`","`+text(1)+`"]`, fmt.Sprintf("%.3f", rng.Float64()*1000), "null"
		if i%2 == 0 {
			message = text(2) + `\n\t` + text(2) + ` \"` + text(1) + `\" caf\u00e9`
			agent = `"Mozilla/5.0 (` + text(2) + `)"`
			tags = fmt.Sprintf(`["%s","%s","%s"]`, text(1), text(1), text(1))
		}
		rows[i] = fmt.Sprintf(`{"time":"2024-03-%02dT%02d:%02d:%02d.%03dZ","level":%q,"service":"api-%d","message":"%s","duration":%s,`+
			`"user":{"id":%d,"name":"%s","premium":%v,"agent":%s},"tags":%s,"http":{"method":"GET","status":%d,"sizes":[%d,%d,%d]},"trace":"%016x","retries":%s}`,
			1+rng.IntN(28), rng.IntN(24), rng.IntN(60), rng.IntN(60), rng.IntN(1000), []string{"INFO", "WARN", "ERROR", "INFO"}[rng.IntN(4)], rng.IntN(20),
			message, duration, rng.IntN(1_000_000), text(2), rng.IntN(2) == 0, agent, tags, 200+rng.IntN(5)*100, rng.IntN(5000), rng.IntN(5000), rng.IntN(90),
			rng.Uint64(), []string{"null", "0", "1"}[rng.IntN(3)])
	}
	return rows
}

func eventSchema() *schema.Schema {
	list := func(t schema.Type) schema.Type { return schema.Type{Kind: schema.List, Elem: &t} }
	return &schema.Schema{Version: 1, Format: schema.JSON, Fields: []schema.Field{
		nullable("time", tTime), nullable("level", tString), nullable("service", tString), nullable("message", tString), nullable("duration", tFloat),
		nullable("user", schema.Type{Kind: schema.Struct, Fields: []schema.Field{
			nullable("id", tInt), nullable("name", tString), nullable("premium", tBool), nullable("agent", tString),
		}}),
		nullable("tags", list(tString)),
		nullable("http", schema.Type{Kind: schema.Struct, Fields: []schema.Field{
			nullable("method", tString), nullable("status", tInt), nullable("sizes", list(tInt)),
		}}),
		nullable("trace", tString), nullable("retries", tInt),
	}}
}

func statusSchema() *schema.Schema {
	return &schema.Schema{Version: 1, Format: schema.JSON, Fields: []schema.Field{
		nullable("timestamp", schema.Type{Kind: schema.Timestamp, Formats: []schema.TimeFormat{schema.UnixMillis}}),
		nullable("address", tString), nullable("pid", tInt), nullable("active", tInt, "connections", "active"), nullable("total", tInt, "requests", "total"),
	}}
}

func names(s *schema.Schema) (all []string) {
	for i := range s.Fields {
		all = append(all, s.Fields[i].Name)
	}
	return all
}

func columnOf(s *schema.Schema, name string) *expr.Column {
	for _, c := range s.Columns() {
		if c.Name == name {
			return &expr.Column{Name: name, T: c.Type}
		}
	}
	panic("no column " + name)
}

func callOf(op expr.Op, args ...expr.Expr) *expr.Call {
	return &expr.Call{Op: op, Args: args, T: schema.Type{Kind: schema.Bool}}
}

func literal(t schema.Type, v any) *expr.Literal { return &expr.Literal{T: t, Value: v} }

func like(a expr.Expr, pattern string) *expr.Call {
	p, err := expr.ParsePattern(pattern, '\\', false)
	if err != nil {
		panic(err)
	}
	return &expr.Call{Op: expr.Like, Args: []expr.Expr{a}, T: tBool, Detail: p}
}

// BenchmarkTranscode is JSON to Arrow, in bytes of JSON:
//
//	go test -run '^$' -bench Transcode -cpu 1 -count 6 ./columnar/transcode
func BenchmarkTranscode(b *testing.B) {
	access, events, status := repeated(sampleLines(b, "access.jsonl")), repeated(eventRows(2000)), repeated(sampleLines(b, "nginx_status.jsonl"))
	plain, dict, nested, few := accessSchema(tString), accessSchema(tDict), eventSchema(), statusSchema()
	notFound := callOf(expr.Eq, columnOf(plain, "status"), literal(tInt, int64(404)))
	for _, bench := range []struct {
		name string
		rows []string
		spec Spec
	}{
		{"access/all", access, Spec{Schema: plain, Columns: names(plain)}},
		{"access/dictionaries", access, Spec{Schema: dict, Columns: names(dict)}},
		{"access/two", access, Spec{Schema: plain, Columns: []string{"status", "path"}}},
		{"access/status=404", access, Spec{Schema: plain, Columns: names(plain), Where: notFound, EarlyStop: true}},
		{"access/status>=500", access, Spec{
			Schema: plain, Columns: names(plain), EarlyStop: true,
			Where: callOf(expr.Ge, columnOf(plain, "status"), literal(tInt, int64(500))),
		}},
		{"access/like", access, Spec{
			Schema: plain, Columns: names(plain), EarlyStop: true, Where: like(columnOf(plain, "user_agent"), "%Googlebot%"),
		}},
		{"events/all", events, Spec{Schema: nested, Columns: names(nested)}},
		{"events/level=ERROR", events, Spec{
			Schema: nested, Columns: names(nested), EarlyStop: true,
			Where: callOf(expr.Eq, columnOf(nested, "level"), literal(tString, "ERROR")),
		}},
		{"status/five", status, Spec{Schema: few, Columns: names(few)}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			payload := frameOf(b, bench.rows...)
			tr, err := New(bench.spec)
			if err != nil {
				b.Fatal(err)
			}
			measure(b, jsonBytes(bench.rows), func() {
				batch, _, err := tr.Transcode(payload, nil)
				if err != nil {
					b.Fatal(err)
				}
				batch.Release()
			})
		})
	}
}

func jsonBytes(rows []string) (n int64) {
	for _, r := range rows {
		n += int64(len(r))
	}
	return n
}

// measure runs an operation on so many bytes, and reports beside the mean the best: what else runs on the machine changes it least.
func measure(b *testing.B, bytes int64, operation func()) {
	b.SetBytes(bytes)
	b.ReportAllocs()
	best := time.Duration(math.MaxInt64)
	for b.Loop() {
		start := time.Now()
		operation()
		best = min(best, time.Since(start))
	}
	b.ReportMetric(float64(bytes)/1e6/best.Seconds(), "best-MB/s")
}

// BenchmarkBeside is what Transcode is compared with: arrow-go's own reader of JSON, the decompression of the same bytes, the index
// alone, and the messages of the frame alone, with its checksum.
func BenchmarkBeside(b *testing.B) {
	access, events := repeated(sampleLines(b, "access.jsonl")), repeated(eventRows(2000))
	for _, bench := range []struct {
		name   string
		rows   []string
		schema *schema.Schema
	}{{"access", access, accessSchema(tString)}, {"events", events, eventSchema()}} {
		text := []byte(strings.Join(bench.rows, "\n"))
		fields := make([]arrow.Field, len(bench.schema.Fields))
		for i := range fields {
			fields[i] = bench.schema.Fields[i].Arrow()
		}
		n := int64(len(text))
		b.Run(bench.name+"/arrow-go", func(b *testing.B) {
			measure(b, n, func() {
				r := array.NewJSONReader(bytes.NewReader(text), arrow.NewSchema(fields, nil), array.WithChunk(-1))
				defer r.Release()
				for r.Next() {
				}
				if r.Err() != nil {
					b.Fatal(r.Err())
				}
			})
		})
		b.Run(bench.name+"/zstd", func(b *testing.B) {
			e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest))
			if err != nil {
				b.Fatal(err)
			}
			d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
			if err != nil {
				b.Fatal(err)
			}
			defer d.Close()
			packed := e.EncodeAll(text, nil)
			var out []byte
			measure(b, n, func() {
				if out, err = d.DecodeAll(packed, out[:0]); err != nil {
					b.Fatal(err)
				}
			})
		})
		b.Run(bench.name+"/index", func(b *testing.B) {
			var x jsonscan.Index
			measure(b, n, func() {
				for at := 0; at < len(text); at += 32 << 10 {
					x.Reset(text[at:min(len(text), at+32<<10)])
				}
			})
		})
		b.Run(bench.name+"/messages", func(b *testing.B) {
			payload := frameOf(b, bench.rows...)
			var d record.Decoder
			var r record.Record
			measure(b, n, func() {
				if _, err := d.Reset(payload); err != nil {
					b.Fatal(err)
				}
				for d.Next(&r) {
				}
			})
		})
	}
}
