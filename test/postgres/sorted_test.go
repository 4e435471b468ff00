package postgres

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar/aggregate"
	"scribe/columnar/finish"
	"scribe/columnar/plan"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
	"scribe/columnar/transcode"
)

// orderEnds are what may follow an element of ORDER BY.
var orderEnds = []string{"", " ASC", " DESC", " NULLS FIRST", " NULLS LAST", " DESC NULLS LAST", " DESC NULLS FIRST", " ASC NULLS FIRST"}

// sortedQuery is a random query of rows in an order without ties, or of different rows.
func (g grammar) sortedQuery() (q pair, distinct bool) {
	var order []pair
	q = same("SELECT ")
	distinct = g.IntN(2) == 0
	var items []pair
	group := ""
	switch {
	case distinct && g.IntN(3) == 0: // different rows of groups
		by := pick(g.Rand, []string{"i % 7, b", "length(s), i > 0", "e, b", "i, i2"})
		group = " GROUP BY " + by
		items = []pair{same(pick(g.Rand, []string{strings.Split(by, ", ")[0], "count(*)", "count(*) % 2", "max(i)"})), same(pick(g.Rand, []string{"count(*) > 1", "min(i2)", "bool_or(b)"}))}
	case distinct:
		for range 1 + g.IntN(3) {
			items = append(items, pick(g.Rand, keys))
		}
	default:
		items = []pair{same("id")}
		for range g.IntN(4) {
			items = append(items, g.expr(pick(g.Rand, kinds), 1+g.IntN(3)))
		}
	}
	if distinct {
		q = same("SELECT DISTINCT ")
		for _, i := range g.Perm(len(items)) {
			order = append(order, same(strconv.Itoa(i+1)))
		}
	} else {
		for range g.IntN(3) {
			if g.IntN(3) == 0 {
				order = append(order, pick(g.Rand, keys))
				continue
			}
			k := pick(g.Rand, sortable)
			order = append(order, both("CASE WHEN %s THEN %s ELSE %s END", g.expr(schema.Bool, 1), g.expr(k, 1), g.expr(k, 2)))
		}
		order = append(order, same(pick(g.Rand, []string{"id", "1"})))
	}
	for i, item := range items {
		comma := ", "
		if i == 0 {
			comma = ""
		}
		q.our += fmt.Sprintf("%s%s AS c%d", comma, item.our, i)
		// PostgreSQL names a column after a CASE's ELSE, and would order by that column instead of the table's.
		q.pg += fmt.Sprintf("%s%s AS c%d", comma, item.pg, i)
	}
	where := g.expr(schema.Bool, 1+g.IntN(2))
	if g.IntN(2) == 0 {
		where = same("true")
	}
	q.our, q.pg = q.our+" FROM t WHERE "+where.our+group+" ORDER BY ", q.pg+" FROM t WHERE "+where.pg+group+" ORDER BY "
	for i, o := range order {
		end := pick(g.Rand, orderEnds)
		if i > 0 {
			q.our, q.pg = q.our+", ", q.pg+", "
		}
		q.our, q.pg = q.our+o.our+end, q.pg+o.pg+end
	}
	end := ""
	if g.IntN(3) > 0 {
		end += " LIMIT " + strconv.Itoa(g.IntN(30))
	}
	if g.IntN(3) == 0 {
		end += " OFFSET " + strconv.Itoa(g.IntN(20))
	}
	return pair{q.our + end, q.pg + end}, distinct
}

// TestSortedRows compares rows in order, and different rows, with PostgreSQL's, over the same random rows and with random conditions.
func TestSortedRows(t *testing.T) {
	n := *queries / 2
	r := randomness(t, 4)
	s := start(t)
	s.safe()
	sch := tableSchema()
	g := grammar{r}
	var batches []arrow.RecordBatch
	rows, rejected, failures, differing := 0, 0, 0, 0
	for i := range n {
		if i%100 == 0 {
			batches = s.fill(r, 100)
		}
		q, distinct := g.sortedQuery()
		want, err := s.query(q.pg)
		if err != nil {
			t.Fatalf("%v\nin %s", err, q.pg)
		}
		got, err := runSorted(q.our, sch, batches)
		var refused *sql.Error
		if errors.As(err, &refused) && constantError(err) {
			rejected++
			continue
		}
		if err != nil {
			t.Fatalf("%v\nin %s", err, q.our)
		}
		rows += len(want)
		if distinct {
			differing += len(want)
		}
		if difference := compareOrdered(got, want); difference != "" {
			t.Errorf("%s\n ours %s\ntheirs %s", difference, q.our, q.pg)
			failures++
		}
		if failures > 20 {
			t.Fatal("and so on")
		}
	}
	t.Logf("%d queries, %d rows, %d of them of DISTINCT, %d refused for a constant", n, rows, differing, rejected)
	if rows < n || differing < n/2 || rejected > n/5 {
		t.Errorf("the queries say little: %d have %d rows, %d of them of DISTINCT, %d were refused", n, rows, differing, rejected)
	}
}

// compareOrdered returns what differs, empty if nothing does.
func compareOrdered(got []result, want [][]string) string {
	if len(got) != len(want) {
		return fmt.Sprintf("%d rows, theirs are %d", len(got), len(want))
	}
	for i, row := range got {
		for c := range row.texts {
			if !exact(row.texts[c], want[i][c], "", row.types[c]) {
				return fmt.Sprintf("row %d: column %d is %q (%s), theirs is %q", i, c, row.texts[c], row.types[c], want[i][c])
			}
		}
	}
	return ""
}

// runSorted evaluates a query over batches as views of payloads, to its end.
func runSorted(text string, s *schema.Schema, batches []arrow.RecordBatch) ([]result, error) {
	q, err := sql.Parse(text)
	if err != nil {
		return nil, err
	}
	p, err := plan.Bind(q, s, plan.Options{Now: time.Unix(1709210096, 123456000)})
	if err != nil {
		return nil, err
	}
	f, err := finish.New(p, transcode.Limits{})
	if err != nil {
		return nil, err
	}
	end, err := newEnd(f, p)
	if err != nil {
		return nil, err
	}
	var st finish.Stats
	for _, b := range batches {
		rows, err := f.View(withIndex(b), false, finish.Meta{}, &st)
		if err != nil {
			return nil, err
		}
		if err := end.add(rows); err != nil {
			return nil, err
		}
	}
	out, err := end.result()
	if err != nil {
		return nil, err
	}
	first, last := min(p.Offset, out.NumRows()), out.NumRows()
	if p.Limit >= 0 {
		last = min(last, first+p.Limit)
	}
	var rows []result
	for i := int(first); i < int(last); i++ {
		row := result{}
		for _, c := range out.Columns() {
			row.texts, row.types = append(row.texts, textAt(c, i)), append(row.types, c.DataType())
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// answerEnd is where an answer is known at its end only.
type answerEnd struct {
	add    func(*finish.Rows) error
	result func() (arrow.RecordBatch, error)
}

func newEnd(f *finish.Finisher, p *plan.Plan) (*answerEnd, error) {
	if p.Group != nil {
		g, err := f.Grouping(aggregate.Limits{})
		if err != nil {
			return nil, err
		}
		return &answerEnd{g.Add, g.Result}, nil
	}
	n := int64(-1)
	if p.Limit >= 0 {
		n = p.Limit + p.Offset
	}
	s, err := f.Sorting(n, aggregate.Limits{})
	if err != nil {
		return nil, err
	}
	return &answerEnd{func(rows *finish.Rows) error { return s.Add(rows.Batch) }, s.Result}, nil
}

// withIndex adds the numbers of the messages to a batch.
func withIndex(b arrow.RecordBatch) arrow.RecordBatch {
	index := array.NewUint32Builder(memory.DefaultAllocator)
	for i := range int(b.NumRows()) {
		index.Append(uint32(i))
	}
	fields := append(b.Schema().Fields(), arrow.Field{Name: transcode.ColumnIndex, Type: arrow.PrimitiveTypes.Uint32})
	return array.NewRecordBatch(arrow.NewSchema(fields, nil), append(b.Columns(), index.NewArray()), b.NumRows())
}
