package finish

import (
	"errors"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/aggregate"
	"scribe/columnar/schema"
	"scribe/columnar/vector"
)

// Grouping holds the groups of a query with GROUP BY or aggregates. It is not safe for concurrent use.
type Grouping struct {
	finisher   *Finisher
	aggregator *aggregate.Aggregator
	project    *vector.Projection
	limits     aggregate.Limits
	errors     int64
}

// Grouping returns an empty Grouping.
func (f *Finisher) Grouping(limits aggregate.Limits) (*Grouping, error) {
	if f.plan.Group == nil {
		return nil, errors.New("finish: the query has no groups")
	}
	a, err := aggregate.New(f.plan.Group, f.keptSchema, limits)
	if err != nil {
		return nil, err
	}
	project, err := vector.Project(f.plan.Output, a.Schema())
	if err != nil {
		return nil, err
	}
	return &Grouping{finisher: f, aggregator: a, project: project, limits: limits}, nil
}

// Add adds the rows of a payload. It does not keep them.
func (g *Grouping) Add(rows *Rows) error { return g.aggregator.Add(rows.Batch) }

// Result returns the result over the rows added so far, in the order of ORDER BY, or else in the order in which the groups first
// appeared. OFFSET and LIMIT are not applied yet. The caller releases it.
func (g *Grouping) Result() (arrow.RecordBatch, error) {
	groups, err := g.aggregator.Result()
	if err != nil {
		return nil, err
	}
	defer groups.Release()
	var vs vector.Stats
	out, err := projectBatch(g.project, groups, g.finisher.schema, &vs)
	g.errors = vs.Errors
	if err != nil || !g.finisher.plan.Distinct {
		return out, err
	}
	defer out.Release()
	kinds := make([]schema.Kind, len(g.finisher.plan.Output))
	for i, o := range g.finisher.plan.Output {
		kinds[i] = o.Expr.Type().Kind
	}
	return aggregate.DistinctRows(out, kinds, g.limits)
}

// Sorting returns an empty sorter of the rows of a query with ORDER BY and no groups. It keeps the first n in order, or all if n is negative.
func (f *Finisher) Sorting(n int64, limits aggregate.Limits) (*aggregate.Sorter, error) {
	return aggregate.NewSorter(f.plan.Order, f.projected, n, limits)
}

// Errors returns the number of group values that could not be computed and are null.
func (g *Grouping) Errors() int64 { return g.aggregator.Stats().Errors + g.errors }

// Groups returns the number of groups.
func (g *Grouping) Groups() int { return g.aggregator.Stats().Groups }

// Bytes returns the memory of the groups in bytes.
func (g *Grouping) Bytes() int64 { return g.aggregator.Stats().Bytes }
