package postgres

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"scribe/columnar/schema"
)

// pair is an expression in our SQL and in PostgreSQL's. The texts differ where PostgreSQL would end the query with an error of a row.
type pair struct{ our, pg string }

// both makes an expression of others, %s stands for each in both texts.
func both(format string, of ...pair) pair {
	our, pg := make([]any, len(of)), make([]any, len(of))
	for i, p := range of {
		our[i], pg[i] = p.our, p.pg
	}
	return pair{fmt.Sprintf(format, our...), fmt.Sprintf(format, pg...)}
}

// differ is both with a text of its own for PostgreSQL.
func differ(our, pg string, of ...pair) pair {
	return pair{both(our, of...).our, both(pg, of...).pg}
}

func same(s string) pair { return pair{s, s} }

// verbatim makes a text a part of a format.
func verbatim(s string) string { return strings.ReplaceAll(s, "%", "%%") }

// grammar makes random expressions.
type grammar struct{ *rand.Rand }

// kinds are the types of expressions.
var kinds = []schema.Kind{
	schema.Bool, schema.Bool, schema.Int32, schema.Int64, schema.Float64, schema.Decimal, schema.String, schema.String, schema.Binary, schema.Date,
	schema.Timestamp, schema.Interval,
}

var pgNames = map[schema.Kind]string{
	schema.Bool: "bool", schema.Int32: "int4", schema.Int64: "int8", schema.Float64: "float8", schema.Decimal: "numeric", schema.String: "text",
	schema.Binary: "bytea", schema.Date: "date", schema.Timestamp: "timestamptz", schema.Interval: "interval",
}

// ourNames are names of the types that both sides know.
var ourNames = map[schema.Kind][]string{
	schema.Bool: {"bool", "boolean"}, schema.Int32: {"int", "integer", "int4"}, schema.Int64: {"bigint", "int8"},
	schema.Float64: {"double precision", "float8"}, schema.Decimal: {"numeric(14,4)"}, schema.String: {"text", "varchar"}, schema.Binary: {"bytea"},
	schema.Date: {"date"}, schema.Timestamp: {"timestamptz"}, schema.Interval: {"interval"},
}

// expr returns an expression of a kind.
func (g grammar) expr(k schema.Kind, depth int) pair {
	if depth <= 0 || g.IntN(7) == 0 {
		return g.leaf(k)
	}
	sub := func(k schema.Kind) pair { return g.expr(k, depth-1) }
	if k != schema.Decimal { // whose scale depends on all of its parts
		switch g.IntN(24) {
		case 0:
			return both("CASE WHEN %s THEN %s WHEN %s THEN %s ELSE %s END", sub(schema.Bool), sub(k), sub(schema.Bool), sub(k), sub(k))
		case 1:
			return both("CASE WHEN %s THEN %s END", sub(schema.Bool), sub(k))
		case 2:
			return both("coalesce(%s, %s)", sub(k), sub(k))
		case 3:
			return both("nullif(%s, %s)", sub(k), sub(k))
		case 4:
			return both(pick(g.Rand, []string{"greatest", "least"})+"(%s, %s, %s)", sub(k), sub(k), sub(k))
		case 5:
			x := pick(g.Rand, []schema.Kind{schema.Int32, schema.String})
			return both("CASE %s WHEN %s THEN %s ELSE %s END", sub(x), g.leaf(x), sub(k), sub(k))
		}
	}
	switch k {
	case schema.Bool:
		return g.boolean(sub)
	case schema.Int32:
		return g.int32(sub)
	case schema.Int64:
		return g.int64(sub)
	case schema.Float64:
		return g.float(sub)
	case schema.Decimal:
		return g.decimal(sub)
	case schema.String:
		return g.text(sub)
	case schema.Binary:
		return g.cast(sub(schema.String), schema.Binary)
	case schema.Date:
		return g.date(sub)
	case schema.Timestamp:
		return g.timestamp(sub)
	default:
		return g.interval(sub)
	}
}

func (g grammar) leaf(k schema.Kind) pair {
	var names []string
	for _, f := range fields {
		if f.t.Kind == k && f.name != "id" {
			names = append(names, f.name)
		}
	}
	if len(names) > 0 && g.IntN(3) > 0 {
		return same(pick(g.Rand, names))
	}
	if g.IntN(12) == 0 {
		return same("NULL::" + pgNames[k])
	}
	switch k {
	case schema.Bool:
		return same(pick(g.Rand, []string{"true", "false"}))
	case schema.Int32:
		return same(pick(g.Rand, []string{"0", "1", "2", "(-1)", "7", "404", "2147483647", "(-2147483648)"}))
	case schema.Int64:
		return same(pick(g.Rand, []string{"3000000000", "9223372036854775807", "5::bigint", "(-9007199254740993)"}))
	case schema.Float64:
		return same("'" + constant(pick(g.Rand, floats), nil) + "'::float8")
	case schema.Decimal:
		return same(pick(g.Rand, []string{"1.5", "0.01", "(-2.25)", "100.0", "0.0"}))
	case schema.String:
		return same(quoted(pick(g.Rand, texts)))
	case schema.Binary:
		return same(pick(g.Rand, []string{`'\x6162'::bytea`, `'\xff'::bytea`, "'ab'::bytea", `'a\\b\001'::bytea`}))
	case schema.Date:
		return same(pick(g.Rand, []string{"DATE '2024-02-29'", "DATE '1970-01-01'", "DATE '0044-03-15 BC'", "'20240101'::date"}))
	case schema.Timestamp:
		return same("TIMESTAMPTZ " + pick(g.Rand, []string{
			"'2024-02-29 12:30:45.678901+02'", "'1970-01-01'", "'2000-01-01T00:00:00Z'", "'0001-01-01 00:00:00 BC'", "'2024-12-31 23:59:60'",
		}))
	default:
		return same("INTERVAL " + pick(g.Rand, []string{
			"'1 day'", "'1 month'", "'-1 year 2 mons -3 days 04:05:06.7'", "'36 hours'", "'1.5 months'", "'30 days'", "'0'", "'-00:00:01'", "'P1DT2H'", "'1 week ago'",
		}))
	}
}

// sortable are the kinds that have an order.
var sortable = []schema.Kind{
	schema.Bool, schema.Int32, schema.Int64, schema.Float64, schema.Decimal, schema.String, schema.String, schema.Binary, schema.Date, schema.Timestamp,
	schema.Interval,
}

func (g grammar) boolean(sub func(schema.Kind) pair) pair {
	switch g.IntN(22) {
	case 0, 1, 2:
		return both("(%s AND %s)", sub(schema.Bool), sub(schema.Bool))
	case 3, 4, 5:
		return both("(%s OR %s)", sub(schema.Bool), sub(schema.Bool))
	case 6:
		return both("(NOT %s)", sub(schema.Bool))
	case 7:
		return both("(%s IS "+pick(g.Rand, []string{"NULL", "NOT NULL"})+")", sub(pick(g.Rand, kinds)))
	case 8:
		return both("(%s IS "+pick(g.Rand, []string{"TRUE", "NOT TRUE", "FALSE", "NOT FALSE", "UNKNOWN", "NOT UNKNOWN"})+")", sub(schema.Bool))
	case 9, 10:
		return g.in(sub)
	case 11:
		k := pick(g.Rand, sortable)
		return both("(%s "+pick(g.Rand, []string{"", "NOT "})+"BETWEEN %s AND %s)", sub(k), sub(k), sub(k))
	case 12, 13:
		return g.like(sub)
	case 14:
		pattern := pick(g.Rand, []string{"a", "^a.*b$", "[0-9]+", "a(b|c)+", "^$", "b{2,}|html", "(ab){2}", `\d\d`, "[^a-z]", "HTTP/1.1", "^.{3}$", "ä"})
		return both("(%s "+pick(g.Rand, []string{"~", "~*", "!~", "!~*"})+" "+quoted(pattern)+")", sub(schema.String))
	case 15:
		return both("(%s = ANY(l))", sub(schema.Int64))
	case 16:
		return both("(%s = ANY(ls))", sub(schema.String))
	case 17:
		return both("starts_with(%s, %s)", sub(schema.String), sub(schema.String))
	case 18:
		return g.cast(sub(pick(g.Rand, []schema.Kind{schema.String, schema.Int32})), schema.Bool)
	case 19: // numbers of different types
		numbers := []schema.Kind{schema.Int32, schema.Int64, schema.Float64, schema.Decimal}
		a, b := pick(g.Rand, numbers), pick(g.Rand, numbers)
		if g.IntN(4) == 0 {
			return both("(u "+g.comparison()+" %s)", sub(pick(g.Rand, []schema.Kind{schema.Int32, schema.Int64})))
		}
		return both("(%s "+g.comparison()+" %s)", sub(a), sub(b))
	default:
		k := pick(g.Rand, sortable)
		return both("(%s "+g.comparison()+" %s)", sub(k), sub(k))
	}
}

func (g grammar) comparison() string {
	return pick(g.Rand, []string{"=", "<>", "!=", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"})
}

func (g grammar) in(sub func(schema.Kind) pair) pair {
	k := pick(g.Rand, sortable)
	list := make([]string, 1+g.IntN(7))
	for i := range list {
		if list[i] = g.constant(k); g.IntN(10) == 0 {
			list[i] = "NULL"
		}
	}
	return both("(%s "+pick(g.Rand, []string{"IN", "NOT IN"})+" ("+verbatim(strings.Join(list, ", "))+"))", sub(k))
}

// constant is a literal without NULL.
func (g grammar) constant(k schema.Kind) string {
	for {
		p := g.leaf(k)
		if isColumn := len(p.our) <= 2; !isColumn && !strings.HasPrefix(p.our, "NULL") || k == schema.Int32 && p.our[0] <= '9' {
			return p.our
		}
	}
}

func (g grammar) like(sub func(schema.Kind) pair) pair {
	op := pick(g.Rand, []string{"LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE"})
	patterns := []string{
		"a%", "%a", "%a%", "%ab%", "%html%", "a", "", "%", "%%", "_%", "a_b", "%_b", "_b%_", "%ä%", "%a%b%", `a\%`, `%\_b`, "%GET /i%", "Ä%", "%b_b%", "%Ä_€%", `a\\b`, "%1.1%",
	}
	switch g.IntN(5) {
	case 0:
		return both("(%s "+op+" CASE WHEN %s THEN "+verbatim(quoted(pick(g.Rand, patterns)))+" ELSE "+verbatim(quoted(pick(g.Rand, patterns)))+" END)", sub(schema.String), sub(schema.Bool))
	case 1:
		return both("(%s "+strings.Replace(op, "ILIKE", "LIKE", 1)+" "+verbatim(quoted(pick(g.Rand, []string{"%a%", "_b", "a%", "%|%%", "_a_%"})))+" ESCAPE '|')", sub(schema.String))
	case 2:
		return both("(x LIKE '%%b%%')")
	default:
		return both("(%s "+op+" "+verbatim(quoted(pick(g.Rand, patterns)))+")", sub(schema.String))
	}
}

// cast is an explicit cast, in one of its spellings.
func (g grammar) cast(p pair, to schema.Kind) pair {
	name := pick(g.Rand, ourNames[to])
	our := both("(%s)::"+name, p).our
	if g.IntN(2) == 0 {
		our = both("CAST(%s AS "+name+")", p).our
	}
	return pair{our, both("to_"+pgNames[to]+"(%s)", p).pg}
}

// fromText is a cast of p or of a text as it is: of pieces of texts PostgreSQL reads more as times than we do.
func (g grammar) fromText(p pair, to schema.Kind) pair {
	if g.IntN(2) == 0 {
		p = g.leaf(schema.String)
	}
	return g.cast(p, to)
}

func (g grammar) small() pair {
	return same(fmt.Sprintf("(%d)", g.IntN(10)-3))
}

func (g grammar) integers(k schema.Kind, sub func(schema.Kind) pair) pair {
	a, b := sub(k), sub(k)
	if k == schema.Int64 && g.IntN(2) == 0 { // the other side is converted
		b = sub(schema.Int32)
	}
	if g.IntN(2) == 0 && k == schema.Int64 {
		a, b = b, a
		if a.our == b.our {
			b = sub(k)
		}
	}
	t := pgNames[k]
	wide := func(p pair) pair { return pair{p.our, "(" + p.pg + ")::" + t} }
	i := g.IntN(7)
	if i < 5 && k == schema.Int64 {
		// At least one side has to be the larger type.
		a.our = "(" + a.our + ")::int8"
	}
	switch i {
	case 5:
		return differ("(- %s)", "s_neg(%s)", sub(k))
	case 6:
		return differ("abs(%s)", "s_abs(%s)", sub(k))
	default:
		return differ([]string{"(%s + %s)", "(%s - %s)", "(%s * %s)", "(%s / %s)", "(%s %% %s)"}[i],
			[]string{"s_add", "s_sub", "s_mul", "s_div", "s_mod"}[i]+"(%s, %s)", wide(a), wide(b))
	}
}

func (g grammar) int32(sub func(schema.Kind) pair) pair {
	switch g.IntN(9) {
	case 0:
		return both("length(%s)", sub(pick(g.Rand, []schema.Kind{schema.String, schema.String, schema.Binary})))
	case 1:
		return both("position(%s IN %s)", sub(schema.String), sub(schema.String))
	case 2:
		return both("strpos(%s, %s)", sub(schema.String), sub(schema.String))
	case 3:
		return both(pick(g.Rand, []string{"cardinality(l)", "array_length(l, 1)", "cardinality(ls)"}))
	case 4:
		return both("(%s - %s)", sub(schema.Date), sub(schema.Date))
	case 5:
		return g.cast(sub(pick(g.Rand, []schema.Kind{schema.String, schema.Int64, schema.Float64, schema.Decimal, schema.Bool})), schema.Int32)
	default:
		return g.integers(schema.Int32, sub)
	}
}

func (g grammar) int64(sub func(schema.Kind) pair) pair {
	switch g.IntN(7) {
	case 0:
		return both("l[%s]", g.small())
	case 1:
		return pair{"p.n", "(p).n"}
	case 2:
		return g.cast(sub(pick(g.Rand, []schema.Kind{schema.String, schema.Int32, schema.Float64, schema.Decimal})), schema.Int64)
	case 3:
		return g.cast(same("u"), schema.Int64)
	default:
		return g.integers(schema.Int64, sub)
	}
}

func (g grammar) float(sub func(schema.Kind) pair) pair {
	switch g.IntN(10) {
	case 0, 1:
		return g.extract(sub)
	case 2:
		return g.cast(sub(pick(g.Rand, []schema.Kind{schema.String, schema.Int32, schema.Int64, schema.Decimal})), schema.Float64)
	case 3:
		return both(pick(g.Rand, []string{"floor", "ceil", "ceiling", "round", "abs", "-"})+"(%s)", sub(schema.Float64))
	case 4:
		return both(pick(g.Rand, []string{"floor", "ceil", "round"})+"(%s)", sub(schema.Int32))
	default:
		a, b := sub(schema.Float64), sub(pick(g.Rand, []schema.Kind{schema.Float64, schema.Float64, schema.Int32, schema.Int64}))
		i := g.IntN(4)
		return differ([]string{"(%s + %s)", "(%s - %s)", "(%s * %s)", "(%s / %s)"}[i],
			[]string{"s_add", "s_sub", "s_mul", "s_div"}[i]+"(%s, (%s)::float8)", a, b)
	}
}

func (g grammar) extract(sub func(schema.Kind) pair) pair {
	units := []string{"year", "month", "day", "quarter", "decade", "century", "millennium", "epoch"}
	k := pick(g.Rand, []schema.Kind{schema.Timestamp, schema.Timestamp, schema.Date, schema.Interval})
	if k != schema.Date {
		units = append(units, "hour", "minute", "second", "milliseconds", "microseconds")
	}
	if k != schema.Interval {
		units = append(units, "dow", "isodow", "doy", "week", "isoyear")
	}
	unit := pick(g.Rand, units)
	if g.IntN(2) == 0 {
		return differ("date_part('"+unit+"', %s)", "extract("+unit+" FROM %s)::float8", sub(k))
	}
	return differ("extract("+unit+" FROM %s)", "extract("+unit+" FROM %s)::float8", sub(k))
}

// decimal stays within few digits: PostgreSQL's numeric has no bound, ours has.
func (g grammar) decimal(sub func(schema.Kind) pair) pair {
	switch g.IntN(9) {
	case 0:
		return both("(%s * %s)", g.leaf(schema.Decimal), g.leaf(schema.Decimal))
	case 1:
		return differ("round(%s / %s, 6)", "round(s_div(%s, %s), 6)", g.leaf(schema.Decimal), g.leaf(schema.Decimal))
	case 2:
		return differ("(%s %% %s)", "s_mod(%s, %s)", g.leaf(schema.Decimal), g.leaf(schema.Decimal))
	case 3:
		return both("round(%s, "+pick(g.Rand, []string{"0", "1", "2"})+")", g.leaf(schema.Decimal))
	case 4:
		return both(pick(g.Rand, []string{"floor", "ceil", "round", "abs", "-"})+"(%s)", g.leaf(schema.Decimal))
	case 5:
		return g.cast(sub(pick(g.Rand, []schema.Kind{schema.String, schema.Int32, schema.Int64, schema.Float64})), schema.Decimal)
	case 6:
		return both("(%s + %s)", g.leaf(schema.Decimal), g.leaf(pick(g.Rand, []schema.Kind{schema.Int32, schema.Int64})))
	default:
		return both(pick(g.Rand, []string{"(%s + %s)", "(%s - %s)"}), g.leaf(schema.Decimal), g.leaf(schema.Decimal))
	}
}

func (g grammar) text(sub func(schema.Kind) pair) pair {
	switch g.IntN(18) {
	case 0, 1:
		return both("(%s || %s)", sub(schema.String), sub(schema.String))
	case 2:
		return both("concat(%s, %s, %s)", sub(schema.String), sub(schema.String), sub(pick(g.Rand, []schema.Kind{schema.Int32, schema.String, schema.Date})))
	case 3:
		return both(pick(g.Rand, []string{"lower", "upper"})+"(%s)", sub(schema.String))
	case 4:
		return both("substring(%s FROM %s)", sub(schema.String), g.small())
	case 5:
		return differ("substring(%s FROM %s FOR %s)", "s_substring(%s, %s, %s)", sub(schema.String), g.small(), g.small())
	case 6:
		return differ("substr(%s, %s, %s)", "s_substring(%s, %s, %s)", sub(schema.String), sub(schema.Int32), sub(schema.Int32))
	case 7:
		return both(pick(g.Rand, []string{"btrim", "ltrim", "rtrim"})+"(%s, %s)", sub(schema.String), sub(schema.String))
	case 8:
		return both("trim("+pick(g.Rand, []string{"", "LEADING ", "TRAILING ", "BOTH "})+pick(g.Rand, []string{"", "'a' ", "'ab' "})+"FROM %s)", sub(schema.String))
	case 9:
		return both("replace(%s, %s, %s)", sub(schema.String), sub(schema.String), sub(schema.String))
	case 10:
		return differ("split_part(%s, %s, %s)", "s_split(%s, %s, %s)", sub(schema.String), same(pick(g.Rand, []string{"','", "'a'", "''", "' '"})), g.small())
	case 11:
		return both(pick(g.Rand, []string{"left", "right"})+"(%s, "+pick(g.Rand, []string{"0", "2", "-2", "5", "-1"})+")", sub(schema.String))
	case 12:
		return pair{"m['a']", "(m -> 'a')"}
	case 13:
		return pair{"p.s", "(p).s"}
	case 14:
		return both("ls[%s]", g.small())
	case 15:
		return differ("convert_from(x, 'UTF8')", "s_utf8(x)")
	default:
		return g.cast(sub(pick(g.Rand, []schema.Kind{schema.Bool, schema.Int32, schema.Int64, schema.Float64, schema.Date, schema.Timestamp, schema.Interval})), schema.String)
	}
}

func (g grammar) date(sub func(schema.Kind) pair) pair {
	switch g.IntN(4) {
	case 0:
		return g.fromText(sub(schema.Timestamp), schema.Date)
	case 1:
		return differ("(%s - %s)", "s_sub(%s, %s)", sub(schema.Date), sub(schema.Int32))
	default:
		return differ("(%s + %s)", "s_add(%s, %s)", sub(schema.Date), sub(schema.Int32))
	}
}

func (g grammar) timestamp(sub func(schema.Kind) pair) pair {
	switch g.IntN(8) {
	case 0:
		return g.fromText(sub(schema.Date), schema.Timestamp)
	case 1, 2:
		unit := pick(g.Rand, []string{
			"microseconds", "milliseconds", "second", "minute", "hour", "day", "week", "month", "quarter", "year", "decade", "century", "millennium",
		})
		return both("date_trunc('"+unit+"', %s)", sub(schema.Timestamp))
	case 3:
		return differ("date_bin(%s, %s, %s)", "s_bin(%s, %s, %s)", same("INTERVAL "+pick(g.Rand, []string{"'1 day'", "'15 minutes'", "'1 week'", "'0.5 seconds'"})), sub(schema.Timestamp), sub(schema.Timestamp))
	case 4:
		return both("to_timestamp(" + pick(g.Rand, []string{"0", "1.5::float8", "-1e9::float8", "1709210096.123456::float8"}) + ")")
	case 5:
		return differ("(%s - %s)", "s_sub(%s, %s)", sub(schema.Timestamp), sub(schema.Interval))
	default:
		return differ("(%s + %s)", "s_add(%s, %s)", sub(schema.Timestamp), sub(schema.Interval))
	}
}

func (g grammar) interval(sub func(schema.Kind) pair) pair {
	switch g.IntN(6) {
	case 0:
		return g.fromText(sub(schema.Interval), schema.Interval)
	case 1:
		return differ("(%s - %s)", "s_sub(%s, %s)", sub(schema.Timestamp), sub(schema.Timestamp))
	case 2:
		i := g.IntN(2)
		return differ([]string{"(%s * %s)", "(%s / %s)"}[i], []string{"s_mul", "s_div"}[i]+"(%s, %s::float8)", sub(schema.Interval), same(pick(g.Rand, []string{"2", "0.5", "(-1.5)", "0", "1e10"})))
	case 3:
		return differ("(- %s)", "s_neg(%s)", sub(schema.Interval))
	default:
		i := g.IntN(2)
		return differ([]string{"(%s + %s)", "(%s - %s)"}[i], []string{"s_add", "s_sub"}[i]+"(%s, %s)", sub(schema.Interval), sub(schema.Interval))
	}
}
