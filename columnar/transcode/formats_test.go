package transcode

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"pgregory.net/rapid"

	binder "scribe/columnar/plan"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
)

// want is the row as lines writes the declared columns.
func (r *logical) want() []string {
	out := []string{
		shown(r.flag, strconv.FormatBool), shown(r.small, func(v int32) string { return fmt.Sprint(v) }), shown(r.big, func(v int64) string { return fmt.Sprint(v) }),
		shown(r.huge, func(v uint64) string { return fmt.Sprint(v) }),
	}
	return out
}

func shown[T any](v *T, text func(T) string) string {
	if v == nil {
		return array.NullValueStr
	}
	return text(*v)
}

// formatQueries are what every format is asked.
var formatQueries = []string{
	"SELECT flag, small, big, huge FROM t",
	"SELECT *, _error FROM t",
	"SELECT deep FROM t",
	"SELECT moved, name FROM t WHERE missing = 42",
	"SELECT pair, list, missing FROM t WHERE big > 0 OR big IS NULL",
	"SELECT price FROM t WHERE name = 'a' AND code <> 'red'",
	"SELECT name FROM t WHERE code IN ('red', '') AND price IS NOT NULL",
	"SELECT count(*) FROM t WHERE flag",
	"SELECT name, tags FROM t WHERE list[1] = 404 OR tags['a'] IS NOT NULL OR (pair).inner < 0",
	"SELECT at, day FROM t WHERE at < timestamp '2000-01-01' OR day > date '2000-01-01'",
	"SELECT name FROM t WHERE name LIKE '%a%' AND _error IS NULL",
	"SELECT raw FROM t WHERE float > 0 AND huge < 10 AND NOT flag",
	"SELECT moved FROM t WHERE deep = 404 AND moved IS DISTINCT FROM 'x'",
}

// specOf makes the Spec of a query.
func specOf(t testing.TB, s *schema.Schema, query string) Spec {
	t.Helper()
	q, err := sql.Parse(query)
	if err != nil {
		t.Fatal(err)
	}
	p, err := binder.Bind(q, s, binder.Options{})
	if err != nil {
		t.Fatal(err)
	}
	spec := Spec{Schema: s, Where: p.Where, EarlyStop: p.EarlyStop}
	for _, c := range p.Columns {
		spec.Columns = append(spec.Columns, c.Name)
	}
	return spec
}

// The same rows are the same batch, whatever they were written in.
func TestFormatsAgree(t *testing.T) {
	cases := formatCases()
	made := map[string]*Transcoder{}
	for _, c := range cases {
		for _, query := range formatQueries {
			tr, err := New(specOf(t, c.schema(), query))
			if err != nil {
				t.Fatalf("%s: %s: %v", c.name, query, err)
			}
			made[c.name+query] = tr
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		rows := make([]logical, rapid.IntRange(1, 6).Draw(rt, "rows"))
		for i := range rows {
			rows[i] = drawLogical(rt)
		}
		wanted := map[string]string{}
		for i, c := range cases {
			payload := c.frames(t, rows)
			for k, query := range formatQueries {
				batch, stats, err := made[c.name+query].Transcode(payload, nil)
				if err != nil {
					rt.Fatalf("%s: %s: %v", c.name, query, err)
				}
				got := lines(batch)
				batch.Release()
				if stats.Rows != int64(len(rows)) || stats.BadRows+stats.BadValues+stats.Rejected != 0 {
					rt.Fatalf("%s: %s: %+v", c.name, query, stats)
				}
				if k == 0 {
					checkWant(rt, c.name, got, rows)
				}
				want := wanted[query]
				if i == 0 {
					want, wanted[query] = got, got
				}
				if got != want {
					rt.Fatalf("%s: %s: got\n%s\nwant\n%s", c.name, query, got, want)
				}
			}
		}
	})
}

func checkWant(t *rapid.T, format, got string, rows []logical) {
	for k, line := range strings.Split(strings.TrimSuffix(got, "\n"), "\n") {
		if want := strings.Join(rows[k].want(), "|"); line != want {
			t.Fatalf("%s: %s, want %s", format, line, want)
		}
	}
}
