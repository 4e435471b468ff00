package finish

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"pgregory.net/rapid"

	"scribe/columnar/aggregate"
	"scribe/columnar/plan"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
	"scribe/columnar/transcode"
	"scribe/internal/format/record"
)

const testSchema = "format: json\nfields:\n  - {name: n, type: int64}\n  - {name: s, type: string}\n  - {name: d, type: dictionary}\n"

func testPlan(t testing.TB, text string) *plan.Plan {
	t.Helper()
	s, err := schema.Parse([]byte(testSchema))
	if err != nil {
		t.Fatal(err)
	}
	q, err := sql.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.Bind(q, s, plan.Options{Now: time.Unix(0, 0)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func testFinisher(t testing.TB, text string) *Finisher {
	t.Helper()
	f, err := New(testPlan(t, text), transcode.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// payload is a frame of messages.
func payload(t testing.TB, messages ...string) []byte {
	t.Helper()
	var b record.Builder
	if err := b.Reset(nil, record.Envelope{Category: "c", BaseTime: 1}); err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		if err := b.Append(&record.Message{Payload: []byte(m)}); err != nil {
			t.Fatal(err)
		}
	}
	frame, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

// view is what a read proxy could make of a payload: all columns, and the rows for which a predicate is true.
func view(t testing.TB, f *Finisher, frames []byte, exact bool) arrow.RecordBatch {
	t.Helper()
	spec := transcode.Spec{Schema: f.Plan().Schema, Columns: []string{"d", "_index", "s", "n"}}
	if exact {
		spec.Where = f.Pushdown()
	}
	tr, err := transcode.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	batch, _, err := tr.Transcode(frames, nil)
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

func textOf(rows *Rows) string {
	text := fmt.Sprint(rows.Index)
	for i := range int(rows.Batch.NumCols()) {
		text += fmt.Sprintf(" %s=%v", rows.Batch.ColumnName(i), rows.Batch.Column(i))
	}
	return text
}

// TestForms: a payload gives the same rows raw, as an exact view and as a wider one, wherever reading begins and whatever is dropped.
func TestForms(t *testing.T) {
	finishers := []*Finisher{
		testFinisher(t, "SELECT n + 1 AS m, upper(s) AS u, d FROM c WHERE n % 2 = 0"),
		testFinisher(t, "SELECT _offset, _shard, _persisted, n FROM c WHERE n < 30 AND _offset > 0 AND _shard = 7"),
		testFinisher(t, "SELECT s FROM c WHERE d = 'a' OR s LIKE '%1'"),
		testFinisher(t, "SELECT n FROM c"),
	}
	rapid.Check(t, func(rt *rapid.T) {
		var messages []string
		for range rapid.IntRange(1, 12).Draw(rt, "messages") {
			n := rapid.IntRange(0, 40).Draw(rt, "n")
			messages = append(messages, rapid.SampledFrom([]string{
				fmt.Sprintf(`{"n":%d,"s":"row %d","d":"a"}`, n, n), fmt.Sprintf(`{"n":%d,"d":"b"}`, n), `{"n":"x","s":"1"}`, `{`,
			}).Draw(rt, "message"))
		}
		m := Meta{Shard: 7, LSN: 5, Persisted: 1_000_000, Skip: uint32(rapid.IntRange(0, len(messages)).Draw(rt, "skip"))}
		for i := range messages {
			if rapid.IntRange(0, 4).Draw(rt, "drop") == 0 {
				m.Drop = append(m.Drop, uint32(i))
			}
		}
		frames := payload(t, messages...)
		for _, f := range finishers {
			var st Stats
			raw, err := f.Payload(frames, m, &st)
			if err != nil {
				rt.Fatal(err)
			}
			want := textOf(raw)
			for _, i := range raw.Index {
				if i < m.Skip || slices.Contains(m.Drop, i) {
					rt.Fatalf("message %d is not to come", i)
				}
			}
			if st.Kept != raw.Batch.NumRows() || st.Rows != int64(len(messages)) || !raw.Batch.Schema().Equal(f.Schema()) {
				rt.Fatalf("%+v of %d rows, %v", st, len(messages), raw.Batch.Schema())
			}
			raw.Batch.Release()
			for _, exact := range []bool{true, false} {
				batch := view(t, f, frames, exact)
				rows, err := f.View(batch, exact, m, &st)
				if err != nil {
					rt.Fatal(err)
				}
				if got := textOf(rows); got != want {
					rt.Fatalf("%s: exact %v:\n%s\nwant\n%s", f.Plan().Text, exact, got, want)
				}
				rows.Batch.Release()
				batch.Release()
			}
		}
	})
}

// TestNoView: what is no view of the query is refused.
func TestNoView(t *testing.T) {
	f := testFinisher(t, "SELECT n, d FROM c")
	whole := view(t, f, payload(t, `{"n":1}`, `{"n":2}`), false)
	defer whole.Release()
	rename := func(from, to string) arrow.RecordBatch {
		fields := slices.Clone(whole.Schema().Fields())
		for i := range fields {
			if fields[i].Name == from {
				fields[i].Name = to
			}
		}
		return array.NewRecordBatch(arrow.NewSchema(fields, nil), whole.Columns(), whole.NumRows())
	}
	for name, batch := range map[string]arrow.RecordBatch{
		"without index": rename("_index", "x"), "without a column": rename("n", "x"), "with another type": rename("s", "n"), "with an index of texts": rename("s", "_index"),
	} {
		if name == "with another type" { // n is a text, and the number is gone
			batch = array.NewRecordBatch(arrow.NewSchema([]arrow.Field{
				{Name: "n", Type: arrow.BinaryTypes.String}, {Name: "d", Type: whole.Schema().Field(0).Type}, {Name: "_index", Type: arrow.PrimitiveTypes.Uint32},
			}, nil), []arrow.Array{whole.Column(2), whole.Column(0), whole.Column(1)}, whole.NumRows())
		}
		if _, err := f.View(batch, true, Meta{}, new(Stats)); !errors.Is(err, ErrView) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSortedNames: an output may have any name, also one that several have.
func TestSortedNames(t *testing.T) {
	f := testFinisher(t, `SELECT s AS "$o0", s AS "0", n AS "0" FROM c ORDER BY n DESC`)
	s, err := f.Sorting(2, aggregate.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var st Stats
	rows, err := f.Payload(payload(t, `{"n":1,"s":"a"}`, `{"n":3,"s":"b"}`, `{"n":2,"s":"c"}`), Meta{}, &st)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Batch.Release()
	if err := s.Add(rows.Batch); err != nil {
		t.Fatal(err)
	}
	out, err := s.Result()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Release()
	if got := out.Column(0).ValueStr(0) + out.Column(0).ValueStr(1); got != "bc" || !out.Schema().Equal(f.Schema()) {
		t.Errorf("got %s of %v", got, out.Schema())
	}
}

// TestGrouping: groups go on from payload to payload.
func TestGrouping(t *testing.T) {
	f := testFinisher(t, "SELECT d, count(*) AS rows, sum(n) * 2 AS total FROM c WHERE n > 0 GROUP BY d HAVING count(*) > 1 ORDER BY d")
	g, err := f.Grouping(aggregate.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	var st Stats
	for _, p := range [][]byte{payload(t, `{"n":1,"d":"b"}`, `{"n":2,"d":"a"}`, `{"n":0,"d":"a"}`), payload(t, `{"n":3,"d":"b"}`, `{"n":4,"d":"a"}`, `{"n":5,"d":"c"}`)} {
		rows, err := f.Payload(p, Meta{}, &st)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Add(rows); err != nil {
			t.Fatal(err)
		}
		rows.Batch.Release()
	}
	out, err := g.Result()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Release()
	got := ""
	for _, column := range out.Columns() {
		for i := range column.Len() {
			got += column.ValueStr(i) + " "
		}
	}
	if got != "a b 2 2 12 8 " || g.Groups() != 3 || g.Bytes() <= 0 || g.Errors() != 0 || !out.Schema().Equal(f.Schema()) {
		t.Errorf("%q of %d groups", got, g.Groups())
	}
	if _, err := testFinisher(t, "SELECT n FROM c").Grouping(aggregate.Limits{}); err == nil {
		t.Error("groups of a query that has none")
	}
}
