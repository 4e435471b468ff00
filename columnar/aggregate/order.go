package aggregate

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/plan"
	"scribe/columnar/schema"
	"scribe/columnar/vector"
)

// orderElement is an element of ORDER BY.
type orderElement struct {
	prog *vector.Program
	kind schema.Kind
	plan plan.Order
}

// compileResult compiles HAVING and ORDER BY.
func (a *Aggregator) compileResult() (err error) {
	g := a.group
	if a.having, err = vector.CompileFilter(g.Having, a.schema); err != nil {
		return fmt.Errorf("aggregate: HAVING: %w", err)
	}
	for i, o := range g.Order {
		t := o.Expr.Type()
		if _, ok := classOf(t.Kind); !ok {
			return fmt.Errorf("aggregate: ORDER BY %d is of type %s: groups are ordered by scalars only", i+1, t)
		}
		prog, err := vector.Compile(o.Expr, a.schema)
		if err != nil {
			return fmt.Errorf("aggregate: ORDER BY: %w", err)
		}
		a.order = append(a.order, orderElement{prog: prog, kind: t.Kind, plan: o})
	}
	return nil
}

// keptGroups returns the groups of a result that HAVING keeps, in order.
func (a *Aggregator) keptGroups(batch arrow.RecordBatch) ([]int, error) {
	kept, err := a.having.Select(batch, &a.result)
	if err != nil {
		return nil, fmt.Errorf("aggregate: HAVING: %w", err)
	}
	places := make([]int, 0, kept.Count())
	for i := range kept.Rows() {
		if kept.Has(i) {
			places = append(places, i)
		}
	}
	return places, a.sortGroups(batch, places)
}

// sortGroups sorts places. Groups that ORDER BY does not distinguish keep the order of their first rows.
func (a *Aggregator) sortGroups(batch arrow.RecordBatch, places []int) error {
	return sortPlaces(a.order, batch, places, &a.result)
}

// sortPlaces sorts places of rows of a batch. Those that the order does not distinguish keep theirs.
func sortPlaces(order []orderElement, batch arrow.RecordBatch, places []int, stats *vector.Stats) error {
	columns := make([]sortableColumn, len(order))
	held := make([]arrow.Array, 0, len(order)) // texts point into these arrays
	defer func() {
		for _, h := range held {
			h.Release()
		}
	}()
	for i, o := range order {
		column, err := o.prog.Eval(batch, stats)
		if err != nil {
			return fmt.Errorf("aggregate: ORDER BY: %w", err)
		}
		held = append(held, column)
		columns[i].orderElement = o
		columns[i].loadRows(o.kind, column, 0, column.Len())
		if columns[i].class == word {
			ordered := extremeState{kind: o.kind}
			for k, w := range columns[i].lo {
				columns[i].lo[k] = ordered.orderWord(w)
			}
		}
	}
	slices.SortStableFunc(places, func(x, y int) int {
		for i := range columns {
			if c := columns[i].compareRows(x, y); c != 0 {
				return c
			}
		}
		return 0
	})
	return nil
}

// sortableColumn is a column that rows are sorted by. Its words sort as unsigned numbers.
type sortableColumn struct {
	orderElement
	columnValues
}

func (s *sortableColumn) compareRows(x, y int) int {
	if s.valid != nil && (!s.valid[x] || !s.valid[y]) {
		switch s.valid[x] {
		case s.valid[y]:
			return 0
		case s.plan.NullsFirst:
			return 1
		default:
			return -1
		}
	}
	c := 0
	switch s.class {
	case word:
		c = cmp.Compare(s.lo[x], s.lo[y])
	case wide:
		c = cmp.Or(cmp.Compare(int64(s.hi[x]), int64(s.hi[y])), cmp.Compare(s.lo[x], s.lo[y]))
	default:
		c = bytes.Compare(s.text[x], s.text[y])
	}
	if s.plan.Desc {
		return -c
	}
	return c
}
