package sql

import (
	"reflect"
	"strings"
	"testing"
)

// TestCanonical shows what texts become, which also shows how operators bind.
func TestCanonical(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"select * from access", "SELECT * FROM access"},
		{"SELECT Client_IP, \"Path\" p FROM web.access;", "SELECT client_ip, \"Path\" AS p FROM web.access"},
		{"select 1 from \"web-access\" limit 10", "SELECT 1 FROM \"web-access\" LIMIT 10"},
		{"select a from b where a = 1 or b = 2 and not c", "SELECT a FROM b WHERE a = 1 OR b = 2 AND NOT c"},
		{"select (a or b) and (c and (d and e)) from t", "SELECT (a OR b) AND c AND d AND e FROM t"},
		{"select a = b is null, a is not distinct from b || c from t", "SELECT a = b IS NULL, a IS NOT DISTINCT FROM b || c FROM t"},
		{"select (a is distinct from b) is null from t", "SELECT (a IS DISTINCT FROM b) IS NULL FROM t"},
		{"select -a::int, (-a)::int, - -1, a - -1 from t", "SELECT -a::integer, (-a)::integer, - -1, a - -1 FROM t"},
		{"select a+b*c, (a+b)*c, a-(b-c), a-b-c from t", "SELECT a + b * c, (a + b) * c, a - (b - c), a - b - c FROM t"},
		{"select a=-1, a<-1, a||-b from t", ""},
		{"select a=-1, a<-1, a>=+1 from t", "SELECT a = -1, a < -1, a >= +1 FROM t"},
		{"select a like 'x' || b escape '\\' from t", "SELECT a LIKE 'x' || b ESCAPE '\\' FROM t"},
		{"select a ~ b || c from t", "SELECT a ~ b || c FROM t"},
		{"select not a in (1,2) and b not in (3) from t", "SELECT NOT a IN (1, 2) AND b NOT IN (3) FROM t"},
		{"select a between 1 and 2 and b from t", "SELECT a BETWEEN 1 AND 2 AND b FROM t"},
		{"select a between symmetric 1+1 and 2 or b from t", "SELECT a BETWEEN SYMMETRIC 1 + 1 AND 2 OR b FROM t"},
		{"select cast(a as decimal(10,2)), a::varchar, b::timestamp with time zone from t", "SELECT a::numeric(10,2), a::text, b::timestamptz FROM t"},
		{"select timestamp '2024-01-01', interval '5' minute, double precision '1' from t", "SELECT timestamptz '2024-01-01', interval '5 minute', double precision '1' FROM t"},
		{"select timestamp, date, time from t", "SELECT \"timestamp\", \"date\", \"time\" FROM t"},
		{"select extract(hour from a), extract('DOW' from a) from t", "SELECT extract(hour FROM a), extract('DOW' FROM a) FROM t"},
		{"select substring(a from 2 for 3), substring(a for 3), substring(a,1), substr(a,1) from t", "SELECT substring(a, 2, 3), substring(a, 1, 3), substring(a, 1), substr(a, 1) FROM t"},
		{"select trim(a), trim(both from a), trim(leading 'x' from a), trim(a, 'y') from t", "SELECT btrim(a), btrim(a), ltrim(a, 'x'), btrim(a, 'y') FROM t"},
		{"select position('a' in b), left(a, 1) from t", "SELECT position('a' IN b), left(a, 1) FROM t"},
		{"select a.b.c, (a).b, a[1].c, _attr['x'], (a.b)[2] from t", "SELECT a.b.c, (a).b, a[1].c, _attr['x'], a.b[2] FROM t"},
		{"select (f(a))[1], (f(a)).b from t", "SELECT (f(a))[1], (f(a)).b FROM t"},
		{"select case when a then b else c end, case a when 1 then 2 end from t", "SELECT CASE WHEN a THEN b ELSE c END, CASE a WHEN 1 THEN 2 END FROM t"},
		{"select count(*), count(distinct a), sum(a) filter (where b) from t", "SELECT count(*), count(DISTINCT a), sum(a) FILTER (WHERE b) FROM t"},
		{"select a from t group by a, 2 having count(*) > 1 order by a desc nulls last, 2 limit all", "SELECT a FROM t GROUP BY a, 2 HAVING count(*) > 1 ORDER BY a DESC NULLS LAST, 2"},
		{"select now(), current_timestamp from t as x", "SELECT now(), CURRENT_TIMESTAMP FROM t AS x"},
		{"select a = any(b), 1_000, 0x1F, .5, 1e3, 1.e2 from t", "SELECT a = ANY (b), 1000, 31, .5, 1e3, 1.e2 FROM t"},
		{"select 'it''s', E'a\\n\\x41\\u00e9', $$a'b$$, $q$x$$y$q$ from t", "SELECT 'it''s', 'a\nAé', 'a''b', 'x$$y' FROM t"},
		{"select a /* c /* d */ */ from t -- end", "SELECT a FROM t"},
		{"select a isnull, b notnull, c is not unknown from t", "SELECT a IS NULL, b IS NOT NULL, c IS NOT UNKNOWN FROM t"},
		{"select \"order\", \"user\" from t", "SELECT \"order\", \"user\" FROM t"},
		{"select distinct a, b from t order by 1 limit 3 offset 2 rows", "SELECT DISTINCT a, b FROM t ORDER BY 1 LIMIT 3 OFFSET 2"},
		{"select all a from t offset 2 row limit 3", "SELECT a FROM t LIMIT 3 OFFSET 2"},
		{"select a from t limit null offset null", "SELECT a FROM t"},
		{"select a from t limit 2 offset 0", "SELECT a FROM t LIMIT 2"},
		{"select a != b from t where a !~* 'x'", "SELECT a <> b FROM t WHERE a !~* 'x'"},
	} {
		q, err := Parse(c.text)
		if c.want == "" {
			if err == nil {
				t.Errorf("%s: no error", c.text)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if got := q.String(); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.text, got, c.want)
		}
		again(t, q)
	}
}

// again parses the canonical text of a query and compares the trees.
func again(t *testing.T, q *Select) {
	t.Helper()
	q2, err := Parse(q.String())
	if err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	text := q.String()
	if q2.String() != text {
		t.Fatalf("canonical text is no fixpoint:\n%s\n%s", text, q2)
	}
	q.text, q2.text = "", ""
	clearPositions(reflect.ValueOf(q))
	clearPositions(reflect.ValueOf(q2))
	if !reflect.DeepEqual(q, q2) {
		t.Fatalf("%s: another tree", text)
	}
}

func clearPositions(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			clearPositions(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			clearPositions(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			switch v.Type().Field(i).Name {
			case "At":
				v.Field(i).SetInt(0)
			case "text":
			default:
				clearPositions(v.Field(i))
			}
		}
	default:
	}
}

// TestErrors shows messages, with the place and the hint.
func TestErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "the query is empty\nHINT: A query is SELECT ... FROM category."},
		{"selct a from t", "syntax error at or near \"selct\"\nLINE 1: selct a from t\n        ^\nHINT: Perhaps you meant SELECT."},
		{"select a form t", "syntax error at or near \"t\"\nLINE 1: select a form t\n                      ^\nHINT: Perhaps \"form\" was meant to be FROM."},
		{"select a\nfrom t\nwhere a = = 2", "syntax error at or near \"=\"\nLINE 3: where a = = 2\n                  ^\nHINT: Expected an expression."},
		{"select a from t where", "syntax error at end of input\nLINE 1: select a from t where\n                             ^\nHINT: Expected an expression."},
		{"select é, 'x from t", "unterminated quoted string\nLINE 1: select é, 'x from t\n                  ^"},
	} {
		_, err := Parse(c.text)
		if err == nil {
			t.Errorf("%s: no error", c.text)
			continue
		}
		if got := err.Error(); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.text, got, c.want)
		}
	}
}

// TestUnsupported shows that what PostgreSQL has and this language has not is named.
func TestUnsupported(t *testing.T) {
	for _, c := range []struct{ text, message, hint string }{
		{"with x as (select 1) select * from x", "WITH is not supported", "one SELECT"},
		{"insert into t values (1)", "INSERT is not supported", "Queries read"},
		{"explain select 1 from t", "EXPLAIN is not supported", "--explain"},
		{"select distinct on (a) b from t", "DISTINCT ON is not supported", "GROUP BY"},
		{"show tables", "SHOW is not supported here", "SQL servers"},
		{"select a from t, u", "several categories", "one category"},
		{"select a from t join u on true", "JOIN is not supported", "one category"},
		{"select a from t left join u on true", "JOIN is not supported", "one category"},
		{"select a from (select 1)", "subqueries are not supported", ""},
		{"select a from t where a in (select 1)", "subqueries are not supported", ""},
		{"select (select 1) from t", "subqueries are not supported", ""},
		{"select exists (select 1) from t", "subqueries are not supported", ""},
		{"select a from t union select b from t", "UNION is not supported", "two queries"},
		{"select a from t limit 3, 1", "LIMIT #,# is not supported", "OFFSET"},
		{"select a from t offset -1", "OFFSET must not be negative", ""},
		{"select a from t limit 1 limit 2", "syntax error at or near \"limit\"", "order is"},
		{"select a from t fetch first 3 rows only", "FETCH is not supported", "LIMIT"},
		{"select a from t for update", "FOR is not supported", ""},
		{"select row_number() over (order by a) from t", "OVER", "GROUP BY"},
		{"select percentile_cont(0.5) within group (order by a) from t", "WITHIN GROUP", "approx_quantile"},
		{"select a similar to 'x' from t", "SIMILAR TO is not supported", "regular"},
		{"select a at time zone 'utc' from t", "AT is not supported", "interval"},
		{"select a collate \"C\" from t", "COLLATE is not supported", "bytes"},
		{"select a->>'b' from t", "operator \"->>\" is not supported", "dot"},
		{"select a from t where a == 1", "operator \"==\" is not supported", "="},
		{"select a from t where (a @> b)", "operator \"@>\" is not supported", "ANY"},
		{"select f(a => 1) from t", "operator \"=>\" is not supported", "place"},
		{"select array[1] from t", "ARRAY is not supported", "IN"},
		{"select a = all(b) from t", "only = ANY", "IN"},
		{"select a < any(b) from t", "only = ANY", "IN"},
		{"select (a, b) = (1, 2) from t", "rows of several values", "AND"},
		{"select a[1:2] from t", "slices are not supported", ""},
		{"select t.* from t", "* after a name", "alone"},
		{"select $1 from t", "the parameter $1 has no value", "--param"},
		{"select a from t where a = ?", "the parameter ? has no value", "--param"},
		{"select x'ff' from t", "prefix x", "bytea"},
		{"select a::smallint from t", "type smallint is not supported", "integer"},
		{"select a::intt from t", "type \"intt\" does not exist", "int"},
		{"select a::varchar(3) from t", "length of varchar", "left"},
		{"select a::numeric(50,2) from t", "invalid precision or scale", "38"},
		{"select a::int[] from t", "types of arrays", ""},
		{"select user from t", "syntax error at or near \"user\"", "double quotes"},
		{"select a from order", "syntax error at or near \"order\"", "double quotes"},
		{"select a from web-access", "syntax error at or near \"-\"", "double quotes"},
		{"select a from 'web'", "syntax error", "double quotes: \"web\""},
		{"select a < b < c from t", "syntax error at or near \"<\"", "chained"},
		{"select a from t; select b from t", "several statements", "one"},
		{"select a from t group by a where b", "syntax error at or near \"where\"", "order is"},
		{"select 1a from t", "trailing junk", ""},
		{"select a from t limit -1", "must not be negative", ""},
		{"select a", "the query has no FROM", "FROM"},
		{"select a from t where a = not b", "syntax error at or near \"not\"", "parentheses"},
		{"select a /* x from t", "unterminated /* comment", ""},
		{"select \"\" from t", "zero-length", ""},
		{"select 'a\x00' from t", "zero byte", ""},
		{"select '\xff' from t", "not UTF-8", ""},
		{"select count(a order by b) from t", "ORDER BY among arguments", ""},
		{"select a from t where exists(b) or case when a then b", "subqueries", ""},
		{"select a.b(c) from t", "functions in schemas", ""},
		{"select a from t window w as ()", "WINDOW is not supported", "date_bin"},
		{"select a from t group by rollup(a)", "GROUP BY ROLLUP", ""},
	} {
		_, err := Parse(c.text)
		if err == nil {
			t.Errorf("%s: no error", c.text)
			continue
		}
		e := err.(*Error) //nolint:errorlint // Parse promises the type
		if !strings.Contains(e.Message, c.message) || !strings.Contains(e.Hint, c.hint) {
			t.Errorf("%s: got %q, hint %q", c.text, e.Message, e.Hint)
		}
	}
}
