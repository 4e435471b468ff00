package sql

import (
	"strings"
	"testing"
)

// TestBounds shows that hostile texts are refused, with what was too much.
func TestBounds(t *testing.T) {
	deep := func(open, middle, shut string, n int) string {
		return "SELECT " + strings.Repeat(open, n) + middle + strings.Repeat(shut, n) + " FROM t"
	}
	for name, c := range map[string]struct{ text, message string }{
		"megabyte":    {"SELECT '" + strings.Repeat("x", 1<<20) + "' FROM t", "1048592 bytes long, the limit is 65536"},
		"parentheses": {deep("(", "1", ")", 10_000), "deeper than 100"},
		"not":         {deep("NOT ", "true", "", 10_000), "deeper than 100"},
		"minus":       {deep("- ", "1", "", 10_000), "deeper than 100"},
		"calls":       {deep("f(", "1", ")", 10_000), "deeper than 100"},
		"position":    {deep("position(a in ", "b", ")", 4_000), "deeper than 100"},
		"case":        {deep("case when ", "a", " then b end", 1_000), "deeper than 100"},
		"plus":        {deep("1+", "1", "", 10_000), "deeper than 100"},
		"casts":       {deep("", "1", "::int", 10_000), "deeper than 100"},
		"index":       {deep("", "a", "[1]", 10_000), "deeper than 100"},
		"fields":      {deep("", "a", ".b", 10_000), "too many parts"},
		"in":          {"SELECT a IN (" + strings.Repeat("1,", 10_001) + "1) FROM t", "at most 10000 elements"},
		"chains":      {deep("(", "1", "+1+1+1)", 90), "deeper than 100"},
	} {
		q, err := Parse(c.text)
		if err == nil || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s: %v", name, err)
		}
		if q != nil {
			t.Errorf("%s: a query beside an error", name)
		}
		if err != nil && len(err.Error()) > 1000 {
			t.Errorf("%s: the message is %d bytes long", name, len(err.Error()))
		}
	}
	for name, text := range map[string]string{
		"parentheses": deep("(", "1", ")", MaxDepth-1),
		"and":         deep("a AND ", "a", "", 8_000),
		"or":          deep("(a OR b) AND ", "a", "", 3_000),
		"in":          "SELECT a IN (" + strings.Repeat("1,", MaxList-1) + "1) FROM t",
		"plus":        deep("1+", "1", "", MaxDepth-1),
	} {
		q, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		again(t, q)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"select * from a", "select a, -b::int from \"x-y\" where a in (1,2) or not (b like 'x%' escape '!') and c between 1 and 2 limit 3",
		"select case a when 1 then 2 else 3 end, x[1].y, m['k'] from t group by 1 having count(*) filter (where a) > 1 order by 1 desc nulls first",
		"select distinct a, b from t order by a desc nulls last, 2 limit 3 offset 4 rows", "select $1 from t where a = $2", "show columns from \"a-b\"",
		"select extract('a b' from x), position((a or b) in c), trim(both 'x' from y), interval '1' day, E'\\u0041' from t",
		"select a is distinct from (b is null), (a is distinct from b) is not true, a = any(b), - - 1, +-+a from t",
		"select (a = b) = c, (a like b) like c, (a in (1)) in (2), not not a, (f(x))[1].y::text::int, (a::int)[1] from t",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := ParsePredicate(text); err == nil {
			if p2, err := ParsePredicate(p.String()); err != nil && len(p.String()) <= MaxText || err == nil && p2.String() != p.String() {
				t.Fatalf("%s: %v", p, err)
			}
		}
		q, err := Parse(text)
		if err != nil {
			if err.Error() == "" {
				t.Fatal("an error without a message")
			}
			return
		}
		if len(q.String()) > MaxText {
			return // canonical text has blanks that the text need not have
		}
		again(t, q)
	})
}

// BenchmarkParse: go test -run '^$' -bench Parse -benchmem ./columnar/sql
func BenchmarkParse(b *testing.B) {
	const text = `SELECT client_ip, path, status, bytes * 8 AS bits FROM "web.access" WHERE status >= 500 AND method IN ('GET', 'HEAD')
		AND path LIKE '/api/%' AND _time BETWEEN '2024-01-01' AND now() - INTERVAL '1 hour' LIMIT 100`
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(text); err != nil {
			b.Fatal(err)
		}
	}
}
