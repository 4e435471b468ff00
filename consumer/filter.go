package consumer

import (
	"context"
	"errors"
	"slices"
	"time"

	"scribe/columnar/finish"
	"scribe/columnar/plan"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
	"scribe/columnar/transcode"
	scribev1 "scribe/proto/scribe/v1"
)

// bind binds a filter when the first iteration begins.
func (c *Consumer) bind(ctx context.Context) error {
	if c.cfg.filter == "" {
		return nil
	}
	c.binding.Lock()
	defer c.binding.Unlock()
	if c.eval != nil {
		return nil
	}
	s, err := c.currentSchema(ctx)
	if err != nil {
		return err
	}
	now := c.cfg.query.now
	if now.IsZero() {
		now = c.cfg.now()
	}
	p, err := c.bindFilter(s, now)
	if err != nil {
		return err
	}
	f, err := finish.New(p, transcode.Limits{})
	if err != nil {
		return err
	}
	c.eval = &evaluation{finisher: f, local: true, messages: true}
	// A filter that is too long for a query's text is evaluated here alone.
	if text := wireText(filterText(c.category, p.Text), filterText(c.category, c.cfg.filter)); len(text) <= MaxQueryText {
		c.eval.wire = &scribev1.Query{Text: text, SchemaVersion: s.Version, Now: now.UnixMicro()}
	}
	return nil
}

// ErrFiltered means that a consumer with a filter was asked for something else than records.
var ErrFiltered = errors.New("consumer: WithFilter is for Records: NewQuery has batches of rows that match")

// matching are the messages of a payload that a filter lets through, in increasing order, each once.
func matching(rows *finish.Rows) []uint32 { return slices.Compact(slices.Clone(rows.Index)) }

// filterText is a filter as a query, which is how it travels.
func filterText(category, condition string) string {
	return "SELECT " + schema.ColumnTime + ` FROM "` + category + `" WHERE ` + condition
}

// bindFilter makes a plan of the predicate.
func (c *Consumer) bindFilter(s *schema.Schema, now time.Time) (*plan.Plan, error) {
	p, err := sql.ParsePredicate(c.cfg.filter)
	if err != nil {
		return nil, err
	}
	return plan.BindPredicate(p, s, plan.Options{Now: now})
}

// lets is which messages of a payload a filter lets through, walked in their order. nil lets everything through.
type lets struct{ left []uint32 }

// filtered returns what a filter lets through of a payload.
func (it *item) filtered() *lets {
	if it.result == nil {
		return nil
	}
	return &lets{it.result.match}
}

// none reports whether nothing of n messages from index on is let through.
func (l *lets) none(index, n int) bool {
	if l == nil {
		return false
	}
	for len(l.left) > 0 && int(l.left[0]) < index {
		l.left = l.left[1:]
	}
	return len(l.left) == 0 || int(l.left[0]) >= index+n
}

// lets reports whether a message is let through.
func (l *lets) lets(index int) bool { return l == nil || !l.none(index, 1) }
