package columns

import (
	"context"
	"time"

	"scribe/columnar/finish"
	"scribe/columnar/plan"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
	"scribe/columnar/transcode"
	"scribe/consumer"
	"scribe/consumer/internal/payload"
	scribev1 "scribe/proto/scribe/v1"
)

// Bind implements [consumer.Extension].
func (e *columnOptions) Bind(ctx context.Context, c *consumer.Consumer, now time.Time) (*payload.Evaluation, error) {
	switch {
	case e.query != nil:
		return &e.query.Evaluation, nil
	case e.filter == "":
		return nil, nil
	}
	s, err := currentSchema(ctx, c)
	if err != nil {
		return nil, err
	}
	if !e.now.IsZero() {
		now = e.now
	}
	predicate, err := sql.ParsePredicate(e.filter)
	if err != nil {
		return nil, err
	}
	p, err := plan.BindPredicate(predicate, s, plan.Options{Now: now})
	if err != nil {
		return nil, err
	}
	f, err := finish.New(p, transcode.Limits{})
	if err != nil {
		return nil, err
	}
	v := newEvaluation(f, e.memory)
	v.FromFrames = v.match
	// A filter that is too long for a query's text is evaluated only here.
	if text := wireText(filterText(c.Category(), p.Text), filterText(c.Category(), e.filter)); len(text) <= MaxQueryText {
		v.Query = &scribev1.Query{Text: text, SchemaVersion: s.Version, Now: now.UnixMicro()}
	}
	return &v.Evaluation, nil
}

// filterText returns a filter as a query, its form in requests.
func filterText(category, condition string) string {
	return "SELECT " + schema.ColumnTime + ` FROM "` + category + `" WHERE ` + condition
}
