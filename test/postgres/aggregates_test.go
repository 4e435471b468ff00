package postgres

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar/aggregate"
	"scribe/columnar/plan"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
	"scribe/columnar/vector"
)

// keys are what rows are grouped by. None is a constant: that would be the number of an element of the SELECT list, or an error.
var keys = []pair{
	same("b"), same("i"), same("i2"), same("j"), same("u"), same("f"), same("d"), same("s"), same("e"), same("x"), same("dd"), same("t"),
	same("(i > 0)"), same("i % 7"), same("length(s)"), same("lower(s)"), same("coalesce(e, s)"), same("CASE WHEN b THEN 'yes' ELSE e END"), same("s IS NULL"),
	same("date_trunc('month', t)"), same("date_trunc('day', t)"), same("date_bin('1 week', t, '2000-01-01')"), same("date_bin('15 minutes', t2, '2000-01-01')"),
	{"extract(year FROM t)", "extract(year FROM t)::float8"},
	{"m['a']", "m -> 'a'"},
	{"p.s", "(p).s"},
	same("l[1]"), same("dd::timestamptz"),
	{"x::text", "s_utf8(x)"},
}

// alike compares a value of ours with one of theirs; beside is what the column asked for in addition.
type alike func(ours, theirs, beside string, t arrow.DataType) bool

// grouped is a column of an answer over groups.
type grouped struct {
	pair
	beside string // another column of PostgreSQL's answer, empty for none
	alike  alike
}

// exact is equal, but for the sign of zero: 0 and -0 are one group, which has the value of either.
func exact(ours, theirs, _ string, t arrow.DataType) bool {
	unsigned := func(s string) string {
		if s == "-0" && t.ID() == arrow.FLOAT64 {
			return "0"
		}
		return s
	}
	return equal(unsigned(ours), unsigned(theirs), t)
}

// summed allows for another order of additions: beside is the sum of the magnitudes.
func summed(ours, theirs, beside string, _ arrow.DataType) bool {
	if ours == theirs {
		return true
	}
	a, b, sum := number(ours), number(theirs), number(beside)
	return math.Abs(a-b) <= 1e-12*sum
}

// near allows for the error that approx_quantile may have.
func near(ours, theirs, _ string, _ arrow.DataType) bool {
	if ours == theirs {
		return true
	}
	a, b := number(ours), number(theirs)
	return a == b || a != a && b != b || math.Abs(a-b) <= 0.010001*math.Abs(b)
}

// number is NaN for null, which no comparison holds for.
func number(s string) float64 {
	if s == null {
		return math.NaN()
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		panic(err)
	}
	return f
}

// small is a float of which many can be added, and squared as avg does in PostgreSQL, without leaving the range.
const (
	small    = "CASE WHEN abs(%[1]s) < 1e100 THEN %[1]s END"
	infinite = "CASE WHEN abs(%[1]s) < 1e100 OR %[1]s IN ('NaN'::float8, 'Infinity'::float8, '-Infinity'::float8) THEN %[1]s END"
)

// aggregate returns a random aggregate.
func (g grammar) aggregate() grouped {
	filter := same("")
	if g.IntN(4) == 0 {
		filter = both(" FILTER (WHERE %s)", g.expr(schema.Bool, 1))
	}
	arg := func(k schema.Kind) pair { return g.expr(k, g.IntN(3)) }
	distinct := pick(g.Rand, []string{"", "", "DISTINCT "})
	ordered := []schema.Kind{schema.Int32, schema.Int64, schema.Float64, schema.Decimal, schema.String, schema.Date, schema.Timestamp}
	anything := append([]schema.Kind{schema.Bool, schema.Binary, schema.Interval}, ordered...)
	is := func(p pair) grouped { return grouped{both("%s%s", p, filter), "", exact} }
	switch g.IntN(13) {
	case 0:
		return is(same("count(*)"))
	case 1, 2:
		return is(both("count("+distinct+"%s)", arg(pick(g.Rand, anything))))
	case 3:
		return is(differ("approx_count_distinct(%s)", "count(DISTINCT %s)", arg(pick(g.Rand, anything))))
	case 4, 5:
		return is(both(pick(g.Rand, []string{"min", "max"})+"(%s)", arg(pick(g.Rand, ordered))))
	case 6:
		return is(both(pick(g.Rand, []string{"min", "max"})+"(%s)", same(pick(g.Rand, []string{"u", "e", "t - t2", "s"}))))
	case 7:
		return is(both(pick(g.Rand, []string{"bool_and", "bool_or", "every"})+"(%s)", arg(schema.Bool)))
	case 8:
		return is(both("sum("+distinct+"%s)", g.summand(arg)))
	case 9:
		// PostgreSQL's quotient may have fewer digits.
		a := g.summand(arg)
		return grouped{
			pair{both("avg("+distinct+"%s)%s", a, filter).our, both("(sum("+distinct+"%[1]s)%[2]s::numeric(90,40) / count("+distinct+"%[1]s)%[2]s)", a, filter).pg},
			"", exact,
		}
	case 10:
		return is(both(pick(g.Rand, []string{"sum", "avg"})+"(%s)", same("t - t2")))
	case 11:
		x := pick(g.Rand, []string{"f", "f2", "i::float8"})
		of := fmt.Sprintf(pick(g.Rand, []string{small, infinite}), x)
		return grouped{
			both(pick(g.Rand, []string{"sum", "avg"})+"("+distinct+"%s)%s", same(of), filter),
			"sum(abs(" + fmt.Sprintf(small, x) + "))" + filter.pg, summed,
		}
	default:
		x := same(pick(g.Rand, []string{"i", "i2", "d", "j / 1000", "CASE WHEN abs(f) BETWEEN 1e-5 AND 1e11 OR f = 'NaN' THEN f END"}))
		q := pick(g.Rand, []string{"0", "0.01", "0.25", "0.5", "0.9", "0.999", "1"})
		return grouped{differ("approx_quantile(%s, "+q+")%s", "percentile_disc("+q+") WITHIN GROUP (ORDER BY %s)%s", x, filter), "", near}
	}
}

// summand is a number whose sums are exact.
func (g grammar) summand(arg func(schema.Kind) pair) pair {
	if g.IntN(5) == 0 {
		return same(pick(g.Rand, []string{"u", "d"}))
	}
	return arg(pick(g.Rand, []schema.Kind{schema.Int32, schema.Int64, schema.Decimal}))
}

// groupQuery is a random query over groups.
type groupQuery struct {
	our, pg string
	columns []grouped // of the answer
}

func (g grammar) groupQuery() groupQuery {
	var q groupQuery
	by := g.Perm(len(keys))[:g.IntN(3)]
	for _, k := range by {
		q.columns = append(q.columns, grouped{keys[k], "", exact})
	}
	for range 1 + g.IntN(4) {
		q.columns = append(q.columns, g.aggregate())
	}
	q.our, q.pg = "SELECT ", "SELECT "
	beside := ""
	for i, c := range q.columns {
		if i > 0 {
			q.our, q.pg = q.our+", ", q.pg+", "
		}
		q.our += fmt.Sprintf("%s AS c%d", c.our, i)
		q.pg += c.pg
		if c.beside != "" {
			beside += ", " + c.beside
		}
	}
	where := g.expr(schema.Bool, 1+g.IntN(3))
	if g.IntN(2) == 0 {
		where = same("true")
	}
	q.our += " FROM t WHERE " + where.our
	q.pg += beside + " FROM t WHERE " + where.pg
	var ours, theirs, order []string
	for i, k := range by {
		ours, theirs = append(ours, pick(g.Rand, []string{keys[k].our, strconv.Itoa(i + 1)})), append(theirs, keys[k].pg)
		order = append(order, strconv.Itoa(i+1)+pick(g.Rand, []string{"", " ASC", " DESC", " NULLS FIRST", " DESC NULLS LAST"}))
	}
	if len(by) > 0 {
		q.our += " GROUP BY " + strings.Join(ours, ", ")
		q.pg += " GROUP BY " + strings.Join(theirs, ", ")
	}
	if g.IntN(4) == 0 {
		having := pick(g.Rand, []string{" HAVING count(*) > 1", " HAVING max(i) > 0", " HAVING sum(i2) IS NOT NULL AND NOT bool_or(b)", " HAVING min(s) LIKE 'a%'"})
		q.our, q.pg = q.our+having, q.pg+having
	}
	if len(by) > 0 { // all keys: one order
		end := " ORDER BY " + strings.Join(order, ", ")
		if g.IntN(4) == 0 {
			end += " LIMIT " + strconv.Itoa(g.IntN(10))
		}
		if g.IntN(4) == 0 {
			end += " OFFSET " + strconv.Itoa(g.IntN(5))
		}
		q.our, q.pg = q.our+end, q.pg+end
	}
	return q
}

// TestAggregates compares groups with PostgreSQL's, over the same random rows and with random conditions.
func TestAggregates(t *testing.T) {
	n := *queries / 2
	r := randomness(t, 2)
	s := start(t)
	s.safe()
	sch := tableSchema()
	g := grammar{r}
	var batches []arrow.RecordBatch
	groups, rejected, failures := 0, 0, 0
	for i := range n {
		if i%100 == 0 {
			batches = s.fill(r, 150)
		}
		q := g.groupQuery()
		want, err := s.query(q.pg)
		if err != nil {
			t.Fatalf("%v\nin %s", err, q.pg)
		}
		got, err := runGroups(q.our, sch, batches)
		var refused *sql.Error
		switch {
		case errors.As(err, &refused) && constantError(err):
			rejected++
			continue
		case err != nil:
			t.Errorf("%v\nin %s", err, q.our)
			failures++
		default:
			groups += len(want)
			if difference := compareGroups(&q, got, want); difference != "" {
				t.Errorf("%s\n ours %s\ntheirs %s", difference, q.our, q.pg)
				failures++
			}
		}
		if failures > 20 {
			t.Fatal("and so on")
		}
	}
	t.Logf("%d queries, %d groups, %d refused for a constant", n, groups, rejected)
	if groups < n || rejected > n/5 {
		t.Errorf("the queries say little: %d have %d groups, %d were refused", n, groups, rejected)
	}
	t.Run("approximate", func(t *testing.T) { compareApproximate(t, s, r) })
}

// runGroups evaluates a query over groups.
func runGroups(text string, s *schema.Schema, batches []arrow.RecordBatch) ([]result, error) {
	q, err := sql.Parse(text)
	if err != nil {
		return nil, err
	}
	p, err := plan.Bind(q, s, plan.Options{Now: time.Unix(1709210096, 123456000)})
	if err != nil {
		return nil, err
	}
	in := batches[0].Schema()
	filter, err := vector.CompileFilter(p.Where, in)
	if err != nil {
		return nil, err
	}
	one, err := aggregate.New(p.Group, in, aggregate.Limits{})
	if err != nil {
		return nil, err
	}
	for _, b := range batches {
		sel, err := filter.Select(b, nil)
		if err != nil {
			return nil, err
		}
		if err := one.Add(sel.Take(b)); err != nil {
			return nil, err
		}
	}
	found, err := one.Result()
	if err != nil {
		return nil, err
	}
	outputs := make([]vector.Output, len(p.Output))
	for i, o := range p.Output {
		outputs[i] = vector.Output(o)
	}
	projection, err := vector.Project(outputs, one.Schema())
	if err != nil {
		return nil, err
	}
	out, err := projection.Eval(found, nil)
	if err != nil {
		return nil, err
	}
	var rows []result
	first, end := p.Offset, out.NumRows()
	if p.Limit >= 0 {
		end = min(end, first+p.Limit)
	}
	for i := int(first); i < int(end); i++ {
		row := result{}
		for c := range int(out.NumCols()) {
			row.texts, row.types = append(row.texts, textAt(out.Column(c), i)), append(row.types, out.Column(c).DataType())
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// compareGroups returns what differs, empty if nothing does.
func compareGroups(q *groupQuery, got []result, want [][]string) string {
	if len(got) != len(want) {
		return fmt.Sprintf("%d groups, theirs are %d", len(got), len(want))
	}
	for i, row := range got {
		beside := want[i][len(q.columns):]
		for c, column := range q.columns {
			with := ""
			if column.beside != "" {
				with, beside = beside[0], beside[1:]
			}
			if !column.alike(row.texts[c], want[i][c], with, row.types[c]) {
				return fmt.Sprintf("group %d %q: column %d is %q (%s), theirs is %q", i, want[i], c, row.texts[c], row.types[c], want[i][c])
			}
		}
	}
	return ""
}

// compareApproximate compares approximations of large groups with exact values: they are as far off as their documentation allows.
func compareApproximate(t *testing.T, s *server, r *rand.Rand) {
	fields := []schema.Field{
		{Name: "g", Type: of(schema.Int32), Nullable: true}, {Name: "v", Type: of(schema.Int64), Nullable: true}, {Name: "f", Type: of(schema.Float64), Nullable: true},
	}
	sch := &schema.Schema{Version: 1, Format: schema.JSON, OnError: schema.OnErrorNull, Fields: fields}
	in := make([]arrow.Field, len(fields))
	for i := range fields {
		in[i] = fields[i].Arrow()
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(in, nil))
	var inserts []string
	for i := range 40_000 {
		v, group := int64(i), int32(0)
		for _, end := range []int{1000, 4000, 13_000} { // groups of 1,000, 3,000, 9,000 and 27,000 rows
			if i >= end {
				group++
			}
		}
		if i%10 == 0 {
			v = int64(r.IntN(1000)) // some come again
		}
		f := math.Exp(r.NormFloat64()*4) * float64(1-2*r.IntN(2))
		row := []any{group, v, f}
		var texts []string
		for k, x := range row {
			appendValue(b.Field(k), x)
			texts = append(texts, pgConstant(x, &fields[k].Type, []string{"int4", "int8", "float8"}[k]))
		}
		inserts = append(inserts, "("+strings.Join(texts, ",")+")")
	}
	s.do("CREATE TABLE large (g int4, v int8, f float8)", "INSERT INTO large VALUES "+strings.Join(inserts, ","))
	shares := []string{"0", "0.001", "0.1", "0.5", "0.77", "0.99", "0.9999", "1"}
	our, pg := "SELECT g, approx_count_distinct(v) AS n", "SELECT g, count(DISTINCT v)"
	for _, x := range []string{"v", "f"} {
		for _, q := range shares {
			our += ", approx_quantile(" + x + ", " + q + ") AS q"
			pg += ", percentile_disc(" + q + ") WITHIN GROUP (ORDER BY " + x + ")"
		}
	}
	want, err := s.query(pg + " FROM large GROUP BY g ORDER BY g")
	if err != nil {
		t.Fatal(err)
	}
	got, err := runGroups(our+" FROM large WHERE true GROUP BY g ORDER BY g", sch, []arrow.RecordBatch{b.NewRecordBatch()})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) || len(got) < 4 {
		t.Fatalf("%d groups, theirs are %d", len(got), len(want))
	}
	for i, row := range got {
		ours, theirs := number(row.texts[1]), number(want[i][1])
		// Five standard errors; up to 1,536 it is exact.
		if limit := 5 * 0.0081 * theirs; theirs <= 1536 && ours != theirs || math.Abs(ours-theirs) > limit {
			t.Errorf("group %s: about %v different values of %v", row.texts[0], ours, theirs)
		}
		for c := 2; c < len(row.texts); c++ {
			if !near(row.texts[c], want[i][c], "", row.types[c]) {
				t.Errorf("group %s: quantile %s is %s, of %s", row.texts[0], shares[(c-2)%len(shares)], row.texts[c], want[i][c])
			}
		}
	}
}
