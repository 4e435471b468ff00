package postgres

import (
	"errors"
	"flag"
	"fmt"
	"math/big"
	"math/rand/v2"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"scribe/columnar/plan"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
	"scribe/columnar/value"
	"scribe/columnar/vector"
)

var (
	queries = flag.Int("queries", 4000, "random queries that are compared")
	seed    = flag.Uint64("seed", 0, "of the random rows and queries; 0 for another each time")
)

// randomness is that of a test, by which it can be repeated with -seed. Each test has a stream of its own.
func randomness(t *testing.T, stream uint64) *rand.Rand {
	t.Helper()
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", *seed)
	return rand.New(rand.NewPCG(*seed, stream))
}

func TestRandomQueries(t *testing.T) {
	n := *queries
	r := randomness(t, 1)
	s := start(t)
	s.safe()
	sch := tableSchema()
	g := grammar{r}
	kept, rejected, rows := 0, 0, 0
	var batches []arrow.RecordBatch
	failures := 0
	for i := range n {
		if i%200 == 0 {
			batches = s.fill(r, 60)
		}
		where := g.expr(schema.Bool, 1+r.IntN(4))
		items := make([]pair, 1+r.IntN(4))
		for i := range items {
			items[i] = g.expr(pick(r, kinds), 1+r.IntN(4))
		}
		our, pg := "SELECT id", "SELECT id"
		for i, item := range items {
			our += fmt.Sprintf(", %s AS c%d", item.our, i)
			pg += ", " + item.pg
		}
		our += " FROM t WHERE " + where.our
		pg += " FROM t WHERE " + where.pg + " ORDER BY id"
		want, err := s.query(pg)
		if err != nil {
			t.Fatalf("%v\nin %s", err, pg)
		}
		got, err := run(our, sch, batches)
		if err != nil {
			var refused *sql.Error
			if errors.As(err, &refused) && constantError(err) {
				rejected++ // a constant that PostgreSQL would end the query for, too
				continue
			}
			t.Errorf("%v\nin %s", err, our)
			failures++
			continue
		}
		rows += len(want)
		if len(want) > 0 {
			kept++
		}
		if difference := compare(got, want); difference != "" {
			t.Errorf("%s\n ours %s\ntheirs %s", difference, our, pg)
			failures++
		}
		if failures > 20 {
			t.Fatal("and so on")
		}
	}
	t.Logf("%d queries, %d with rows, %d rows, %d refused for a constant", n, kept, rows, rejected)
	if kept < n/4 || rejected > n/5 {
		t.Errorf("the queries say little: of %d only %d had rows, %d were refused", n, kept, rejected)
	}
}

// constantError reports whether a query was refused since one of its constants can't be what it is to be.
func constantError(err error) bool {
	for _, s := range []string{"invalid input syntax", "out of range", "division by zero", "must not be zero"} {
		if strings.Contains(err.Error(), s) {
			return true
		}
	}
	return false
}

// run evaluates a query over batches.
func run(text string, s *schema.Schema, batches []arrow.RecordBatch) ([]result, error) {
	q, err := sql.Parse(text)
	if err != nil {
		return nil, err
	}
	p, err := plan.Bind(q, s, plan.Options{Now: time.Unix(1709210096, 123456000)})
	if err != nil {
		return nil, err
	}
	// What travels is the canonical text: it must mean the same.
	again, err := sql.Parse(q.String())
	if err != nil || again.String() != q.String() {
		return nil, fmt.Errorf("the canonical text %s is not read back: %w", q.String(), err)
	}
	in := batches[0].Schema()
	filter, err := vector.CompileFilter(p.Where, in)
	if err != nil {
		return nil, err
	}
	outputs := make([]vector.Output, len(p.Output))
	for i, o := range p.Output {
		outputs[i] = vector.Output(o)
	}
	projection, err := vector.Project(outputs, in)
	if err != nil {
		return nil, err
	}
	var rows []result
	for _, b := range batches {
		sel, err := filter.Select(b, nil)
		if err != nil {
			return nil, err
		}
		out, err := projection.Eval(sel.Take(b), nil)
		if err != nil {
			return nil, err
		}
		for i := range int(out.NumRows()) {
			row := result{}
			for c := range int(out.NumCols()) {
				row.texts = append(row.texts, textAt(out.Column(c), i))
				row.types = append(row.types, out.Column(c).DataType())
			}
			rows = append(rows, row)
		}
	}
	sort.Slice(rows, func(i, j int) bool {
		a, _ := strconv.Atoi(rows[i].texts[0])
		b, _ := strconv.Atoi(rows[j].texts[0])
		return a < b
	})
	return rows, nil
}

// result is a row of an answer.
type result struct {
	texts []string
	types []arrow.DataType
}

// textAt is a value as PostgreSQL sends it.
func textAt(a arrow.Array, i int) string {
	if a.IsNull(i) {
		return null
	}
	switch a := a.(type) {
	case *array.Boolean:
		return map[bool]string{false: "f", true: "t"}[a.Value(i)]
	case *array.Int32:
		return string(value.AppendInt(nil, int64(a.Value(i))))
	case *array.Int64:
		return string(value.AppendInt(nil, a.Value(i)))
	case *array.Uint64:
		return string(value.AppendUint(nil, a.Value(i)))
	case *array.Float64:
		return string(value.AppendFloat(nil, a.Value(i)))
	case *array.Decimal128:
		return string(value.AppendDecimal(nil, a.Value(i), a.DataType().(*arrow.Decimal128Type).Scale))
	case *array.String:
		return a.Value(i)
	case *array.Binary:
		return string(value.AppendBinary(nil, a.Value(i)))
	case *array.Date32:
		return string(value.AppendDate(nil, a.Value(i)))
	case *array.Timestamp:
		return string(value.AppendTimestamp(nil, a.Value(i)))
	case *array.MonthDayNanoInterval:
		return string(value.AppendInterval(nil, a.Value(i)))
	case *array.Dictionary:
		return textAt(a.Dictionary(), a.GetValueIndex(i))
	}
	panic(fmt.Sprintf("no text of %T", a))
}

// compare returns what differs, empty if nothing does.
func compare(got []result, want [][]string) string {
	ids := func(n int, id func(int) string) (out []string) {
		for i := range n {
			out = append(out, id(i))
		}
		return out
	}
	ours := ids(len(got), func(i int) string { return got[i].texts[0] })
	theirs := ids(len(want), func(i int) string { return want[i][0] })
	if strings.Join(ours, " ") != strings.Join(theirs, " ") {
		return fmt.Sprintf("our rows are %v, theirs %v", ours, theirs)
	}
	for i, row := range got {
		for c := range row.texts {
			if !equal(row.texts[c], want[i][c], row.types[c]) {
				return fmt.Sprintf("row %s: column %d is %q (%s), theirs is %q", row.texts[0], c, row.texts[c], row.types[c], want[i][c])
			}
		}
	}
	return ""
}

// equal compares two texts. A decimal of theirs may have more digits behind the point: ours is that, rounded.
func equal(ours, theirs string, t arrow.DataType) bool {
	d, ok := t.(*arrow.Decimal128Type)
	if !ok || ours == null || theirs == null {
		return ours == theirs
	}
	v, ok := new(big.Rat).SetString(theirs)
	return ok && v.FloatString(int(d.Scale)) == ours || strings.TrimLeft(ours, "-0.") == strings.TrimLeft(theirs, "-0.")
}
