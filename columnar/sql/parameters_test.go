package sql

import (
	"strings"
	"testing"
)

// TestBindParameters shows what a text becomes with values.
func TestBindParameters(t *testing.T) {
	text := func(s string) Parameter { return Parameter{Text: s} }
	number := func(s string) Parameter { return Parameter{Type: NumberType, Text: s} }
	for _, c := range []struct {
		text   string
		values []Parameter
		want   string // or the beginning of an error
	}{
		{"select a from t", nil, "select a from t"},
		{"select a from t where b = ? and c=? limit ?", []Parameter{text("it's"), number("-5"), text("10")}, "SELECT a FROM t WHERE b = 'it''s' AND c = -5 LIMIT 10"},
		{"select $2, $1, $2::int from t offset $3", []Parameter{text("x"), number("-1.5"), number("2")}, "SELECT -1.5, 'x', (-1.5)::integer FROM t OFFSET 2"},
		{"select a from t where b in (?, ?) or c is distinct from ?", []Parameter{number("1"), {Null: true}, {Type: "boolean", Text: "true"}}, "SELECT a FROM t WHERE b IN (1, NULL) OR c IS DISTINCT FROM TRUE"},
		{"select a from t where b = ?", []Parameter{{Type: "timestamptz", Text: "2024-01-01 00:00:00+00"}}, "SELECT a FROM t WHERE b = timestamptz '2024-01-01 00:00:00+00'"},
		// What a value has is a value, whatever stands before it.
		{"select a from t where b = ?", []Parameter{text("\\' OR true --")}, "SELECT a FROM t WHERE b = '\\'' OR true --'"},
		{"select '?', \"$1\" /* ? */ from t where b = ? -- $2", []Parameter{text("?")}, "SELECT '?', \"$1\" FROM t WHERE b = '?'"},
		{"select E? from t", []Parameter{text("\\'")}, "! syntax error"},
		{"select a from t limit ?", []Parameter{{Null: true}}, "SELECT a FROM t"},
		{"select a from t limit ?", []Parameter{text("1; drop")}, "! LIMIT 1; drop is not supported"},
		{"select a from t limit ?", []Parameter{number("-1")}, "! LIMIT takes a number that is not negative"},
		{"select ? from t", []Parameter{number("1 or true")}, "! the value 1 or true of the parameter ? is not a number"},
		{"select ? from t", []Parameter{number("")}, "! the value  of the parameter ? is not a number"},
		{"select ? from t", []Parameter{text("a\x00")}, "! the value of the parameter ? has a zero byte"},
		{"select ?, ? from t", []Parameter{text("a")}, "! the parameter ? has no value: 1 are given"},
		{"select ? from t", []Parameter{text("a"), text("b")}, "! the query has 1 parameters, but 2 values are given"},
		{"select ?, $1 from t", []Parameter{text("a"), text("b")}, "! a query has both ? and $1"},
		{"select $0 from t", []Parameter{text("a")}, "! parameters are $1 to $1000"},
		{"select $99999999999999999999 from t", nil, "! parameters are $1 to $1000"},
		{"select " + strings.Repeat("?,", MaxParameters) + "? from t", make([]Parameter, MaxParameters), "! the query has more than 1000 parameters"},
		{"describe a.b", []Parameter{text("a"), text("b")}, "! DESCRIBE a.b has no parameters, but 2 values are given"},
		{"show tables", []Parameter{text("a")}, "! SHOW TABLES has no parameters, but 1 values are given"},
		{"describe ?", []Parameter{text("a")}, "! syntax error"},
		{"select a from ?", []Parameter{text("t")}, "! syntax error"},
		{"select ? from t", []Parameter{text(strings.Repeat("x", MaxText))}, "! query text with the values of its parameters is"},
		{"select a from t", make([]Parameter, MaxParameters+1), "! 1001 values of parameters are given"},
	} {
		got, err := BindParameters(c.text, c.values)
		if err != nil {
			got = "! " + err.Error()
		}
		if got != c.want && (!strings.HasPrefix(c.want, "! ") || !strings.HasPrefix(got, c.want)) {
			t.Errorf("%.200s:\n got %.500s\nwant %.500s", c.text, got, c.want)
		}
		if err != nil {
			continue
		}
		q, err := Parse(got)
		if err != nil {
			t.Errorf("%s: %v", got, err)
			continue
		}
		again(t, q)
	}
}

// TestCountParameters counts parameters, and has a text to bind before they have values.
func TestCountParameters(t *testing.T) {
	for text, want := range map[string]string{
		"select a from t": "0 select a from t",
		"select a from t where b = ? and c = ? limit ?": "3 SELECT a FROM t WHERE b = NULL AND c = NULL",
		"select $3 from t": "3 SELECT NULL FROM t",
		"select a from t where b = ? and c = $2 limit 3": "! a query has both",
	} {
		n, bound, err := CountParameters(text)
		got := string(rune('0'+n)) + " " + bound
		if err != nil {
			got = "! " + err.Error()
		}
		if got != want && (!strings.HasPrefix(want, "! ") || !strings.HasPrefix(got, want)) {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

// TestParseStatement shows what is asked for besides rows.
func TestParseStatement(t *testing.T) {
	for text, want := range map[string]string{
		"show tables":                      "SHOW TABLES",
		"SHOW TABLES;":                     "SHOW TABLES",
		"describe web.access":              "DESCRIBE web.access",
		"desc \"Web-Access\";":             "DESCRIBE \"Web-Access\"",
		"describe table t":                 "DESCRIBE t",
		"show columns from a.b -- comment": "DESCRIBE a.b",
		"show columns in a":                "DESCRIBE a",
		"select a from t":                  "SELECT a FROM t",
		"show":                             "! syntax error at end of input",
		"show databases":                   "! syntax error at or near \"databases\"",
		"describe":                         "! syntax error at end of input",
		"describe select 1 from t":         "! the columns of a query are not shown",
		"describe order":                   "! syntax error at or near \"order\"",
		"show tables; select 1 from t":     "! several statements",
		"show columns from a where b":      "! syntax error",
		"selct a from t":                   "! syntax error at or near \"selct\"",
	} {
		q, show, err := ParseStatement(text)
		var got string
		switch {
		case err != nil:
			got = "! " + err.Error()
		case show != nil:
			got = show.String()
		default:
			got = q.String()
		}
		if got != want && (!strings.HasPrefix(want, "! ") || !strings.HasPrefix(got, want)) {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

// FuzzBindParameters checks that no value changes what a text means: with its values, as many constants are different, and nothing else.
func FuzzBindParameters(f *testing.F) {
	f.Add("select a from t where b = ? limit ?", "x' or true --", "10")
	f.Add("select $1, E'\\'' || $2 from t", "\\", "-1e5")
	f.Fuzz(func(t *testing.T, text, first, second string) {
		for _, kind := range []string{"", NumberType, "bytea"} {
			bound, err := BindParameters(text, []Parameter{{Text: first}, {Type: kind, Text: second}})
			if err != nil {
				continue
			}
			q, err := Parse(bound)
			if err != nil {
				t.Fatalf("%q with %q and %q is not read back: %v", text, first, second, err)
			}
			n, withNulls, err := CountParameters(text)
			if err != nil || n != 2 {
				t.Fatalf("%q: %d parameters, %v", text, n, err)
			}
			nulls, err := Parse(withNulls)
			if err != nil {
				t.Fatal(err)
			}
			if nulls.From.Category != q.From.Category || len(nulls.Items) != len(q.Items) || len(nulls.OrderBy) != len(q.OrderBy) || (nulls.Where == nil) != (q.Where == nil) {
				t.Fatalf("%q means something else than %q", bound, withNulls)
			}
		}
	})
}
