package plan

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
)

// TestBounds shows that texts which would make large plans are refused, and at once.
func TestBounds(t *testing.T) {
	between := "b"
	for range 40 {
		between = "(" + between + " BETWEEN b AND b)"
	}
	cases := "i"
	for range 12 {
		cases = "CASE " + cases + strings.Repeat(" WHEN 1 THEN 2", 10) + " END"
	}
	classes := strings.Repeat(`\pL`, 1300)
	for name, c := range map[string]struct{ text, message string }{
		"between":    {"SELECT " + between + " FROM c", "more than 50000 nodes"},
		"case":       {"SELECT " + cases + " FROM c", "more than 50000 nodes"},
		"stars":      {"SELECT " + strings.Repeat("*,", 5000) + "* FROM c", "more than 10000 columns"},
		"names":      {"SELECT " + strings.Repeat("i,", 12_000) + "i FROM c", "more than 10000 columns"},
		"keys":       {"SELECT 1 FROM c GROUP BY i" + strings.Repeat(", i + 1, i + 2", 1) + many(200), "more than 100 keys"},
		"aggregates": {"SELECT " + sums(2000) + " FROM c", "more than 1000 aggregates"},
		"long":       {"SELECT s ~ '" + strings.Repeat("a", 5000) + "' FROM c", "5000 bytes long"},
		"doom":       {"SELECT s ~ '((((a{1,30}){1,30}){1,30}){1,30})' FROM c", "invalid"},
		"program":    {"SELECT s ~ '" + strings.Repeat("(abcdefgh){900}|", 3) + "' FROM c", "too large"},
		"programs":   {"SELECT " + strings.Repeat("s ~ '(abc){900}',", 10) + "1 FROM c", "too large"},
		"classes":    {"SELECT s ~ '" + classes + "' FROM c", "too large"},
		"constant":   {"SELECT '" + strings.Repeat("a", 30_000) + "' ~ '(a{1,99}){1,9}b', i = s FROM c", "does not exist"},
		"dynamic":    {"SELECT s ~ ('(((a{1000}){1000}){1000}' || ')') FROM c", "invalid"},
	} {
		started := time.Now()
		_, err := bind(t, c.text)
		if err == nil || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s: %v", name, err)
		}
		if d := time.Since(started); d > time.Minute { // without the bounds it would be hours, or never
			t.Errorf("%s: it took %v", name, d)
		}
	}
}

// TestDeepGroups shows that deep expressions over a wide struct are bound at once, too.
func TestDeepGroups(t *testing.T) {
	s := schema.Type{Kind: schema.Struct}
	for i := range 3000 {
		s.Fields = append(s.Fields, schema.Field{Name: "f" + strconv.Itoa(i), Type: typeInt64})
	}
	wide := &schema.Schema{Version: 1, Fields: []schema.Field{{Name: "i", Type: typeInt64}, {Name: "s", Type: s}}}
	deep := strings.Repeat("s.f0+", 90) + "s.f0"
	for name, text := range map[string]string{
		"keys":       "SELECT " + strings.Repeat(deep+",", 120) + "s.f1 FROM c GROUP BY s.f0, s.f1",
		"aggregates": "SELECT " + strings.Repeat("max("+deep+"),", 120) + "min(i) FROM c",
		"aliases":    "SELECT " + strings.Repeat("i a,", 8000) + "count(*) FROM c GROUP BY i ORDER BY a" + strings.Repeat(",a", 15_000),
	} {
		q, err := sql.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		started := time.Now()
		if _, err := Bind(q, wide, Options{Now: testNow}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if d := time.Since(started); d > 10*time.Second { // it is some milliseconds
			t.Errorf("%s: it took %v", name, d)
		}
	}
}

// A column of a schema may have the name of an aggregate's column.
func TestColumnNamedLikeAggregate(t *testing.T) {
	q, err := sql.Parse(`SELECT count(*), count(*) + 1, "$a0" FROM c GROUP BY "$a0", "$a0" + 1`)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Bind(q, &schema.Schema{Version: 1, Fields: []schema.Field{{Name: "$a0", Type: typeInt64}}}, Options{Now: testNow})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range p.Output {
		got = append(got, expr.Text(o.Expr))
	}
	if want := []string{`"$a0"`, `"$a0" + 1`, `"$k0"`}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func many(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(", i + " + strings.Repeat("1", 1+i%9) + " * " + strings.Repeat("2", 1+i/9%9))
		b.WriteString(" + " + strings.Repeat("3", 1+i/81))
	}
	return b.String()
}

func sums(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString("sum(i+" + strings.Repeat("1", 1+i%9) + "*" + strings.Repeat("2", 1+i/9%9) + "+" + strings.Repeat("3", 1+i/81%9) + "+" + strings.Repeat("4", 1+i/729) + ")")
	}
	return b.String()
}

func bind(t testing.TB, text string) (*Plan, error) {
	t.Helper()
	q, err := sql.Parse(text)
	if err != nil {
		t.Fatalf("%.100s: %v", text, err)
	}
	return Bind(q, testSchema(), Options{Now: testNow})
}

// FuzzBind: what parses binds or is refused, and its canonical text binds to the same.
func FuzzBind(f *testing.F) {
	for _, e := range []string{
		"i + l * 1.5 - u / d % f", "s like 'a_%' or s ~ '^a+$' and not x like 'b' escape '!'", "case i when 1 then 'a' end", "i in (1, 2.5, null, l) and s not in ('a')",
		"extract(hour from t - interval '1 day'), date_bin('5 min', t, '2000-01-01') from c group by 1, 2 order by count(*)", "greatest(i, l), least(d, 1), coalesce(null, s), nullif(i, 1.5)",
		"substring(s from 2), left(s, -3), trim(both 'x' from s), concat(s, b, i), m['a'], ls[1], st.n.deep, 'a' = any(ls)", "sum(i) filter (where b), approx_quantile(f, 0.5), count(distinct s)",
		"'12'::int, '1.5'::numeric(3,1), date '2024-01-01' + 1, interval '1 day' * 2, t::date, to_timestamp(1.5), round(d, 1)",
	} {
		if !strings.Contains(e, " from c") {
			e += " from c"
		}
		f.Add("select " + e + " where i is not distinct from 5 and _time > now()")
		f.Add("select " + e)
	}
	s := testSchema()
	f.Fuzz(func(t *testing.T, text string) {
		q, err := sql.Parse(text)
		if err != nil {
			return
		}
		p, err := Bind(q, s, Options{Now: testNow})
		if err != nil || len(p.Text) > sql.MaxText {
			return
		}
		p.Pushdown()
		q2, err := sql.Parse(p.Text)
		if err != nil {
			t.Fatalf("%s: %v", p.Text, err)
		}
		p2, err := Bind(q2, s, Options{Now: testNow})
		if err != nil {
			t.Fatalf("%s: %v", p.Text, err)
		}
		if a, b := describe(p), describe(p2); a != b {
			t.Fatalf("%s: another plan\n%s\n%s", text, a, b)
		}
		for _, o := range p.Output {
			if o.Expr.Type().Kind == 0 {
				t.Fatalf("%s: %s has no type", text, o.Name)
			}
			_ = expr.Text(o.Expr)
		}
	})
}

// BenchmarkBind: go test -run '^$' -bench Bind -benchmem ./columnar/plan
func BenchmarkBind(b *testing.B) {
	const text = `SELECT s, "Path", status, l * 8 AS bits FROM "web.access" WHERE status >= 500 AND s IN ('GET', 'HEAD')
		AND "Path" LIKE '/api/%' AND _time BETWEEN '2024-01-01' AND now() - INTERVAL '1 hour' LIMIT 100`
	s := testSchema()
	b.ReportAllocs()
	for b.Loop() {
		q, err := sql.Parse(text)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := Bind(q, s, Options{Now: testNow}); err != nil {
			b.Fatal(err)
		}
	}
}
