package consumer_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"scribe/columnar"
	"scribe/columnar/export"
	"scribe/columnar/expr"
	planning "scribe/columnar/plan"
	"scribe/columnar/schema"
	"scribe/columnar/schema/schematest"
	"scribe/columnar/sql"
	"scribe/columnar/transcode"
	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// rowsSchema is the schema of the rows that these tests write.
const rowsSchema = `
format: json
fields:
  - {name: n, type: int64, nullable: true}
  - {name: x, type: float64, nullable: true}
  - {name: s, type: string, nullable: true}
  - {name: kind, type: dictionary, nullable: true}
  - {name: ok, type: bool, nullable: true}
  - {name: at, type: timestamp, nullable: true}
  - {name: tags, type: list<string>, nullable: true}
`

// historyOf is what a category keeps of the schema.
func historyOf(t testing.TB) string { return history(t, rowsSchema) }

// history is what a category keeps of a schema.
func history(t testing.TB, text string) string {
	t.Helper()
	return schematest.History(t, text).Marshal()
}

// ways are how a payload's rows may come about.
var ways = []string{"here", "exact view", "all columns and rows", "another reader's rows", "no views", "compressed views", "skipped pointers", "views of half"}

// serve has a cell answer in one of the ways.
func (c *cell) serve(way string) {
	c.views, c.skips = nil, nil
	half := 0
	switch way {
	case "exact view", "compressed views":
		c.views = func(q *scribev1.Query, frames []byte) (*scribev1.Payload, error) {
			return c.make(q, frames, false, nil)
		}
	case "all columns and rows":
		c.views = func(q *scribev1.Query, frames []byte) (*scribev1.Payload, error) {
			return c.make(q, frames, true, func(expr.Expr) expr.Expr { return nil })
		}
	case "another reader's rows":
		c.views = func(q *scribev1.Query, frames []byte) (*scribev1.Payload, error) {
			return c.make(q, frames, true, func(e expr.Expr) expr.Expr {
				if e == nil {
					return nil
				}
				n := &expr.Column{Name: "n", T: schema.Type{Kind: schema.Int64}}
				other := &expr.Call{Op: expr.IsNotNull, Args: []expr.Expr{n}, T: schema.Type{Kind: schema.Bool}}
				return &expr.Call{Op: expr.Or, Args: []expr.Expr{e, other}, T: schema.Type{Kind: schema.Bool}}
			})
		}
	case "views of half":
		c.views = func(q *scribev1.Query, frames []byte) (*scribev1.Payload, error) {
			if half++; half%2 == 0 {
				return &scribev1.Payload{Error: &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_TOO_LARGE, Message: "too large a view"}}, nil
			}
			return c.make(q, frames, false, nil)
		}
	case "skipped pointers":
		c.skips = func(q *scribev1.Query, frames []byte) bool {
			p, err := c.make(q, frames, false, nil)
			return err == nil && p.GetView().GetKept() == 0
		}
	}
}

// make is a view of a payload: exact, or with all columns and another predicate.
func (c *cell) make(q *scribev1.Query, frames []byte, wide bool, where func(expr.Expr) expr.Expr) (*scribev1.Payload, error) {
	h, err := schema.ParseHistory(c.schema)
	if err != nil {
		return nil, err
	}
	parsed, err := sql.Parse(q.GetText())
	if err != nil {
		return nil, err
	}
	s := h.Version(q.GetSchemaVersion())
	p, err := planning.Bind(parsed, s, planning.Options{Now: time.UnixMicro(q.GetNow())})
	if err != nil {
		return nil, err
	}
	spec := transcode.Spec{Schema: s, Where: p.Pushdown(), EarlyStop: p.EarlyStop, Columns: []string{transcode.ColumnIndex}}
	columns := p.Columns
	if wide {
		columns = s.Columns()
		slices.Reverse(columns)
		spec.Where, spec.EarlyStop = where(spec.Where), false
	}
	for _, col := range columns {
		if col.Name != schema.ColumnPersisted && col.Name != schema.ColumnShard && col.Name != schema.ColumnOffset {
			spec.Columns = append(spec.Columns, col.Name)
		}
	}
	frames, losses := withoutReports(frames)
	tc, err := transcode.New(spec)
	if err != nil {
		return nil, err
	}
	batch, st, err := tc.Transcode(frames, nil)
	if err != nil {
		return nil, err
	}
	defer batch.Release()
	data, err := columnar.EncodeIPC(nil, batch)
	if err != nil {
		return nil, err
	}
	return &scribev1.Payload{
		Codec: 1, Data: data, RawLength: uint64(len(data)), Crc: record.CRC(data),
		View: &scribev1.PayloadView{Exact: !wide, Rows: uint64(st.Rows), Kept: uint64(st.Kept), Losses: losses},
	}, nil
}

// withoutReports takes away the reports of losses at the end of a payload.
func withoutReports(frames []byte) (rest []byte, losses []*scribev1.LossFrame) {
	index := uint32(0)
	for f, err := range record.Split(frames) {
		if err != nil {
			panic(err)
		}
		if bytes.Contains(f.Bytes, []byte("buffer_full")) {
			losses = append(losses, &scribev1.LossFrame{Index: index, Frame: f.Bytes})
		} else {
			rest = append(rest, f.Bytes...)
		}
		index += uint32(f.Count)
	}
	return rest, losses
}

// answer is a query's answer as JSON lines, and the query.
func answer(t testing.TB, c *cell, text string, opts ...consumer.Option) (string, *columns.Query) {
	t.Helper()
	opts = append([]consumer.Option{
		consumer.WithServices(c, c), consumer.WithControl(c), consumer.WithWindow(0), consumer.WithHeartbeat(50 * time.Millisecond),
		columns.WithNow(time.UnixMicro(1_700_000_000_000_000)),
	}, opts...)
	q, err := columns.NewQuery(t.Context(), "", text, opts...)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	defer func() { _ = q.Close() }()
	return lines(t, q), q
}

// lines drains a query.
func lines(t testing.TB, q *columns.Query) string {
	t.Helper()
	var out bytes.Buffer
	w, err := export.New(export.JSONLines, &out, q.Schema())
	if err != nil {
		t.Fatal(err)
	}
	for batch, err := range q.Batches(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if !batch.Schema().Equal(q.Schema()) {
			t.Fatalf("a batch of %v, want %v", batch.Schema(), q.Schema())
		}
		if err := w.Write(batch); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// rowsFrame is a frame of rows with keys, times and attributes.
func rowsFrame(logical uint32, n int, rows ...string) []byte {
	var b record.Builder
	if err := b.Reset(nil, record.Envelope{Category: categoryName, Shard: logical, BaseTime: 1_600_000_000_000_000}); err != nil {
		panic(err)
	}
	for i, row := range rows {
		m := record.Message{Payload: []byte(row), Time: time.UnixMicro(1_600_000_000_000_000 + int64(n*1000+i))}
		if i%2 == 0 {
			m.Key = fmt.Appendf(nil, "k%d", i%3)
		}
		if i%3 == 0 {
			m.Attributes = []record.Attribute{{Name: "trace", Value: []byte{byte('a' + i%5)}}}
		}
		if err := b.Append(&m); err != nil {
			panic(err)
		}
	}
	out, err := b.Finish()
	if err != nil {
		panic(err)
	}
	return out
}

// anyRow draws a row: most fit the schema, some do not, few are no JSON.
func anyRow(t *rapid.T) string {
	pick := func(of ...string) string { return rapid.SampledFrom(of).Draw(t, "value") }
	if rapid.IntRange(0, 30).Draw(t, "broken") == 0 {
		return pick(`{"n":1,`, `[1]`, ``, `{"n":01}`, `{"s":"\q"}`, `{"n":1}}`)
	}
	fields := map[string]string{
		"n": pick("1", "2", "3", "-7", "9007199254740993", "null", `"two"`), "x": pick("0.5", "1e3", "-2.25", "null", "true"),
		"s": pick(`"abc"`, `"a\u00e9b"`, `"GET /"`, `"100%"`, `""`, "null", "17"), "kind": pick(`"red"`, `"green"`, "null"),
		"ok": pick("true", "false", "null"), "at": pick(`"2020-09-13T12:26:40Z"`, `"2021-01-01T00:00:00.5+01:00"`, "null", `"soon"`),
		"tags": pick(`["a","b"]`, `[]`, `[null]`, "null"), "other": pick("1", `{"deep":[1,2]}`),
	}
	var parts []string
	for _, name := range []string{"n", "x", "s", "kind", "ok", "at", "tags", "other"} {
		if rapid.IntRange(0, 4).Draw(t, "there") > 0 {
			parts = append(parts, fmt.Sprintf("%q:%s", name, fields[name]))
		}
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// anyPredicate draws a condition.
func anyPredicate(t *rapid.T, depth int) string {
	if depth > 0 && rapid.Bool().Draw(t, "nested") {
		a, b := anyPredicate(t, depth-1), anyPredicate(t, depth-1)
		return rapid.SampledFrom([]string{"(" + a + " AND " + b + ")", "(" + a + " OR " + b + ")", "NOT (" + a + ")"}).Draw(t, "logic")
	}
	return rapid.SampledFrom([]string{
		"n = 2", "n > 1", "n <> 3", "n IS NULL", "n IS NOT NULL", "n IN (1, 3, NULL)", "n BETWEEN -10 AND 2", "n % 2 = 1", "10 / n > 3", "n = 9007199254740993",
		"x < 1", "x = 1000", "x IS DISTINCT FROM 0.5", "n + x > 2", "s = 'abc'", "s LIKE 'a%'", "s LIKE '%00\\%'", "s ILIKE 'get%'", "length(s) = 3", "s ~ '^[a-z]+$'",
		"upper(s) = 'ABC'", "s <> ''", "s IN ('abc', '17')", "kind = 'red'", "kind <> 'red'", "kind IS NULL", "coalesce(kind, 'red') = 'red'", "kind LIKE 'gr%'",
		"ok", "ok IS NOT TRUE", "ok = (n > 1)", "at > timestamp '2020-12-01'", "extract(year FROM at) = 2020", "at < now()", "tags[1] = 'a'", "'b' = ANY(tags)",
		"_error IS NULL", "_error IS NOT NULL", "_rest LIKE '%deep%'", "_key = 'k0'", "_key IS NULL", "_attr['trace'] = 'a'", "_time < timestamp '2020-09-13 12:26:40.002'",
		"_persisted > timestamp '2001-01-01'", "_offset % 2 = 0", "_shard = " + fmt.Sprint(uint64(shardID(0, 1))), "CASE WHEN n = 1 THEN ok ELSE x > 0 END", "true", "NULL",
	}).Draw(t, "term")
}

// outputs is a SELECT list of plain columns and expressions.
var outputs = []string{
	"n, s", "*", "n + 1 AS m, upper(s) AS u, kind", "_offset, _shard, _persisted, _time", "_key, _attr['trace'] AS trace, tags", "_error, _rest, n", "kind || '!' AS k, x", "1 AS one",
	"coalesce(kind, s) AS name, at",
}

// fillRows writes payloads of random rows to two shards.
func fillRows(t *rapid.T, c *cell) {
	for n := range rapid.IntRange(1, 6).Draw(t, "payloads") {
		logical := uint16(n % 2)
		var frames [][]byte
		for f := range rapid.IntRange(1, 3).Draw(t, "frames") {
			var rows []string
			for range rapid.IntRange(1, 8).Draw(t, "rows") {
				rows = append(rows, anyRow(t))
			}
			frames = append(frames, rowsFrame(uint32(logical), n*10+f, rows...))
		}
		c.addFrames(shardID(logical, 1), frames...)
	}
}

// TestSameAnswer: a query has one answer, wherever its predicate is evaluated: here, at the read proxy, at both, through a view that serves
// others, with pointers skipped, and after the fact.
func TestSameAnswer(t *testing.T) {
	kept := historyOf(t)
	rapid.Check(t, func(rt *rapid.T) {
		c := newCell()
		c.schema = kept
		fillRows(rt, c)
		for range 3 {
			list := rapid.SampledFrom(outputs).Draw(rt, "list")
			where := anyPredicate(rt, 2)
			text := fmt.Sprintf(`SELECT %s FROM "%s" WHERE %s`, list, categoryName, where)
			c.serve("here")
			want, _ := answer(t, c, text, columns.WithLocal())
			// After the fact: all rows, with what the predicate is of each.
			all, _ := answer(t, c, fmt.Sprintf(`SELECT %s, (%s) AS "matches?" FROM "%s"`, list, where, categoryName), columns.WithLocal())
			var after strings.Builder
			for line := range strings.Lines(all) {
				if row, ok := strings.CutSuffix(line, `,"matches?":true}`+"\n"); ok {
					after.WriteString(row + "}\n")
				}
			}
			if after.String() != want {
				rt.Fatalf("%s\nafter the fact:\n%s\nat once:\n%s", text, after.String(), want)
			}
			for _, way := range ways[1:] {
				c.serve(way)
				got, q := answer(t, c, text, consumer.WithConcurrency(2))
				if got != want {
					rt.Fatalf("%s\n%s:\n%s\nhere:\n%s", text, way, got, want)
				}
				if s := q.Stats(); s.RowsOut != uint64(strings.Count(want, "\n")) || s.Skipped+s.Payloads != s.Pointers {
					rt.Fatalf("%s, %s: %+v", text, way, s)
				}
			}
			c.check(t)
		}
	})
}

// TestSameGroups is TestSameAnswer for GROUP BY.
func TestSameGroups(t *testing.T) {
	kept := historyOf(t)
	rapid.Check(t, func(rt *rapid.T) {
		c := newCell()
		c.schema = kept
		fillRows(rt, c)
		text := fmt.Sprintf(`SELECT %s FROM "%s" WHERE %s %s`, rapid.SampledFrom([]string{
			"kind, count(*) AS c, sum(n) AS s, min(x) AS lo, max(s) AS hi", "kind, avg(n) AS a, count(DISTINCT s) AS d, max(_offset) AS last",
		}).Draw(rt, "list"), categoryName, anyPredicate(rt, 1), rapid.SampledFrom([]string{
			"GROUP BY kind", "GROUP BY kind HAVING count(*) > 1", "GROUP BY kind ORDER BY count(*) DESC, kind LIMIT 2",
		}).Draw(rt, "group"))
		c.serve("here")
		want, _ := answer(t, c, text, columns.WithLocal())
		for _, way := range ways[1:] {
			c.serve(way)
			if got, _ := answer(t, c, text); got != want {
				rt.Fatalf("%s\n%s:\n%s\nhere:\n%s", text, way, got, want)
			}
		}
		c.check(t)
	})
}
