package postgres

import (
	"fmt"
	"strings"

	"scribe/columnar/schema"
)

// safe makes the functions that turn PostgreSQL's errors into nulls, and the types of the table.
func (s *server) safe() {
	s.t.Helper()
	statements := []string{"CREATE EXTENSION hstore", "CREATE TYPE pair AS (n int8, s text)"}
	create := func(name, result, body string, args ...string) {
		statements = append(statements, fmt.Sprintf("CREATE FUNCTION %s(%s) RETURNS %s LANGUAGE plpgsql IMMUTABLE STRICT AS $f$ "+
			"BEGIN RETURN %s; EXCEPTION WHEN OTHERS THEN RETURN NULL; END $f$", name, strings.Join(args, ", "), result, body))
	}
	for _, t := range []string{"int4", "int8", "float8", "numeric"} {
		for name, op := range map[string]string{"s_add": "+", "s_sub": "-", "s_mul": "*", "s_div": "/", "s_mod": "%"} {
			if t == "float8" && op == "%" {
				continue
			}
			create(name, t, "$1 "+op+" $2", t, t)
		}
		create("s_neg", t, "- $1", t)
		create("s_abs", t, "abs($1)", t)
	}
	for _, op := range []struct{ name, op, a, b, result string }{
		{"s_add", "+", "date", "int4", "date"},
		{"s_sub", "-", "date", "int4", "date"},
		{"s_add", "+", "timestamptz", "interval", "timestamptz"},
		{"s_sub", "-", "timestamptz", "interval", "timestamptz"},
		{"s_sub", "-", "timestamptz", "timestamptz", "interval"},
		{"s_add", "+", "interval", "interval", "interval"},
		{"s_sub", "-", "interval", "interval", "interval"},
		{"s_mul", "*", "interval", "float8", "interval"},
		{"s_div", "/", "interval", "float8", "interval"},
	} {
		create(op.name, op.result, bounded(op.result, "$1 "+op.op+" $2"), op.a, op.b)
	}
	create("s_neg", "interval", bounded("interval", "- $1"), "interval")
	create("s_substring", "text", "substring($1, $2, $3)", "text", "int4", "int4")
	create("s_split", "text", "split_part($1, $2, $3)", "text", "text", "int4")
	create("s_bin", "timestamptz", bounded("timestamptz", "date_bin($1, $2, $3)"), "interval", "timestamptz", "timestamptz")
	create("s_utf8", "text", "convert_from($1, 'UTF8')", "bytea")
	for _, from := range []string{"bool", "int4", "int8", "float8", "numeric", "text", "bytea", "date", "timestamptz", "interval"} {
		for kind, to := range pgNames {
			if !s.casts(from, to) {
				continue
			}
			target := to
			if kind == schema.Decimal {
				target = "numeric(14,4)"
			}
			create("to_"+to, to, bounded(to, "$1::"+target), from)
		}
	}
	s.do(statements...)
}

// bounded makes null of what our types have no value for.
func bounded(t, body string) string {
	switch t {
	case "timestamptz":
		return "CASE WHEN isfinite(" + body + ") AND " + body + " <= '294247-01-10 04:00:54.775807+00' THEN " + body + " END"
	case "date":
		return "CASE WHEN isfinite(" + body + ") THEN " + body + " END"
	case "numeric":
		return "nullif(" + body + ", 'NaN')"
	case "interval":
		// The time is up to 2^63 nanoseconds.
		return "CASE WHEN (extract(hour FROM " + body + ") * 3600 + extract(minute FROM " + body + ") * 60 + extract(second FROM " + body +
			")) BETWEEN -9223372036.854775 AND 9223372036.854775 THEN " + body + " END"
	}
	return body
}

// casts reports whether PostgreSQL has a cast.
func (s *server) casts(from, to string) bool {
	_, err := s.query("SELECT NULL::" + from + "::" + to)
	return err == nil
}
