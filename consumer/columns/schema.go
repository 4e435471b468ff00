package columns

import (
	"context"
	"errors"
	"fmt"

	"scribe/columnar/schema"
	"scribe/consumer"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// ErrSchemaPending means that the schema of a category is still to be inferred, and that the category has no messages to infer it
// from.
var ErrSchemaPending = errors.New("the category's schema is to be inferred from its messages, which can't be done yet")

// maxSchemaAttempts bounds the attempts to infer a schema while others change the category.
const maxSchemaAttempts = 5

// inferOptions returns options for schemas that nobody reviews before they are used: read little, and make columns nullable, so
// that later messages are not rejected for missing values.
func inferOptions() schema.InferOptions {
	o := schema.DefaultInferOptions()
	o.MaxRows, o.MaxBytes, o.Nullable = 5000, 4<<20, true
	return o
}

// currentSchema returns the newest schema of the category. It infers the schema if that is pending.
func currentSchema(ctx context.Context, c *consumer.Consumer) (*schema.Schema, error) {
	category, err := c.Describe(ctx)
	if err != nil {
		return nil, err
	}
	h, _, err := EnsureSchema(ctx, c, c.Control(), category)
	if err != nil {
		return nil, err
	}
	return h.Current(), nil
}

// EnsureSchema returns the schemas of the consumer's category, which the caller has read. If the category was created with its
// first schema to be inferred, and has none yet, EnsureSchema infers it from the first messages and stores it, on condition that
// the category has not changed: of several concurrent callers one stores a schema, and all return it. It also returns the
// category that has these schemas.
//
// The consumer does not move, and may be iterated concurrently. If there are no messages, or none that can be read as JSON or
// Arrow batches, the error is [ErrSchemaPending].
func EnsureSchema(ctx context.Context, c *consumer.Consumer, categories consumer.SchemaService, category *scribev1.Category) (*schema.History, *scribev1.Category, error) {
	name := category.GetName()
	for range maxSchemaAttempts {
		h, err := schema.ParseHistory(category.GetSchema())
		if err != nil {
			return nil, nil, fmt.Errorf("consumer: the schema of category %q can't be read: %w", name, err)
		}
		if !h.Infer() {
			return h, category, nil
		}
		s, _, err := InferSchema(ctx, c, "", inferOptions())
		if errors.Is(err, schema.ErrNoRows) {
			return nil, nil, fmt.Errorf("consumer: category %q: %w: %w", name, ErrSchemaPending, err)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("consumer: infer the schema of category %q: %w", name, err)
		}
		text := string(s.Marshal())
		res, err := categories.UpdateCategory(ctx, &scribev1.UpdateCategoryRequest{Name: name, Revision: category.GetRevision(), Schema: &text})
		if err == nil {
			category = res.GetCategory()
			continue
		}
		// Another caller was first, or this one was and its answer was lost: the current category tells.
		if reason := rpc.ReasonOf(err); reason == scribev1.Reason_REASON_CONFLICT || reason == scribev1.Reason_REASON_UNKNOWN_OUTCOME {
			var now *scribev1.GetCategoryResponse
			if now, err = categories.GetCategory(ctx, &scribev1.GetCategoryRequest{Name: name, ForReading: true}); err == nil {
				category = now.GetCategory()
				continue
			}
		}
		return nil, nil, fmt.Errorf("consumer: store the inferred schema of category %q: %w", name, err)
	}
	return nil, nil, fmt.Errorf("consumer: store the inferred schema of category %q: others changed it %d times meanwhile: try again", name, maxSchemaAttempts)
}

// InferSchema infers a schema from the first messages of the consumer's category: with [schema.Infer], or from Arrow batches with
// [schema.FromArrow]. Format "" detects which. It stores nothing, and the consumer does not move.
func InferSchema(ctx context.Context, c *consumer.Consumer, format schema.Format, o schema.InferOptions) (*schema.Schema, schema.Report, error) {
	own, err := c.Fork(consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd(), consumer.WithWindow(consumer.Unbounded), consumer.WithDamage(consumer.DamageSkip))
	if err != nil {
		return nil, schema.Report{}, err
	}
	defer own.Close() //nolint:errcheck // it has no connections of its own
	var failed error
	s, report, err := schema.Infer(func(yield func([]byte) bool) {
		for rec, err := range own.Records(ctx) {
			if errors.Is(err, consumer.ErrGap) {
				continue
			}
			if failed = err; err != nil || !yield(rec.Payload) {
				return
			}
		}
	}, format, o)
	switch {
	case errors.Is(failed, consumer.ErrColumnar) && (format == schema.Arrow || format == "" && errors.Is(err, schema.ErrNoRows)):
		return arrowSchema(ctx, own, o, report)
	case errors.Is(failed, consumer.ErrColumnar): // the messages before the Arrow batch sufficed, or none has the format
		return s, report, err
	case failed != nil:
		return nil, report, failed
	}
	return s, report, err
}

// arrowSchema returns the schema of the next batch.
func arrowSchema(ctx context.Context, c *consumer.Consumer, o schema.InferOptions, report schema.Report) (*schema.Schema, schema.Report, error) {
	for batch, err := range Batches(ctx, c) {
		if errors.Is(err, consumer.ErrGap) {
			continue
		}
		if err != nil {
			return nil, report, err
		}
		defer batch.Release() //nolint:revive // the loop ends here
		report.Messages, report.Rows = report.Messages+1, report.Rows+batch.NumRows()
		s, err := schema.FromArrow(batch.Schema(), o.Nullable)
		return s, report, err
	}
	return nil, report, schema.ErrNoRows
}
