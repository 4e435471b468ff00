package finish

import (
	"errors"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/aggregate"
	"scribe/columnar/vector"
)

// Grouping is the groups of a query with GROUP BY, or with aggregates alone. One goroutine uses it at a time.
type Grouping struct {
	finisher   *Finisher
	aggregator *aggregate.Aggregator
	project    *vector.Projection
	errors     int64
}

// Grouping returns an empty one.
func (f *Finisher) Grouping(limits aggregate.Limits) (*Grouping, error) {
	if f.plan.Group == nil {
		return nil, errors.New("finish: the query has no groups")
	}
	a, err := aggregate.New(f.plan.Group, f.keptSchema, limits)
	if err != nil {
		return nil, err
	}
	outputs := make([]vector.Output, len(f.plan.Output))
	for i, o := range f.plan.Output {
		outputs[i] = vector.Output(o)
	}
	project, err := vector.Project(outputs, a.Schema())
	if err != nil {
		return nil, err
	}
	return &Grouping{finisher: f, aggregator: a, project: project}, nil
}

// Add takes the rows of a payload, which it does not keep.
func (g *Grouping) Add(rows *Rows) error { return g.aggregator.Add(rows.Batch) }

// Result is the answer over what was added so far, in the order of ORDER BY, and else in that in which its groups were met. LIMIT is
// yet to cut it. The caller releases it.
func (g *Grouping) Result() (arrow.RecordBatch, error) {
	groups, err := g.aggregator.Result()
	if err != nil {
		return nil, err
	}
	defer groups.Release()
	var vs vector.Stats
	out, err := g.project.Eval(groups, &vs)
	if err != nil {
		return nil, err
	}
	defer out.Release()
	g.errors = int64(vs.Errors)
	return conformBatch(out, g.finisher.schema)
}

// Errors is how many values of groups could not be computed, and are null.
func (g *Grouping) Errors() int64 { return g.aggregator.Stats().Errors + g.errors }

// Groups is how many groups there are, and Bytes the memory that they take.
func (g *Grouping) Groups() int { return g.aggregator.Stats().Groups }

// Bytes is the memory that the groups take.
func (g *Grouping) Bytes() int64 { return g.aggregator.Stats().Bytes }
