package consumer

import (
	"context"
	"fmt"
	"time"

	"scribe/consumer/internal/payload"
	"scribe/internal/base/backoff"
	"scribe/internal/format/loss"
	scribev1 "scribe/proto/scribe/v1"
)

// This file is the seam to package columns, which evaluates payloads into rows, or selects messages in them.

// Extension makes a consumer produce something other than messages from payloads. Its methods take internal types: only package
// columns implements it.
type Extension interface {
	// Validate reports every violation.
	Validate() error
	// Adjust changes the configuration that results from the options.
	Adjust(l *payload.Limits)
	// Bind returns the evaluation of payloads, nil for none. It is called when the first iteration begins, and again after an
	// error.
	Bind(ctx context.Context, c *Consumer, now time.Time) (*payload.Evaluation, error)
	// Filters reports whether the extension selects messages: then only Records yields anything.
	Filters() bool
}

// WithExtension sets or changes the extension, which is nil before the first change.
func WithExtension(change func(Extension) Extension) Option {
	return func(c *consumerOptions) { c.extension = change(c.extension) }
}

// SchemaService reads and changes categories: an RPC client, or in one process the role itself.
type SchemaService interface {
	GetCategory(ctx context.Context, req *scribev1.GetCategoryRequest) (*scribev1.GetCategoryResponse, error)
	UpdateCategory(ctx context.Context, req *scribev1.UpdateCategoryRequest) (*scribev1.UpdateCategoryResponse, error)
}

// Control returns the service for categories; nil if the caller supplied services without it.
func (c *Consumer) Control() SchemaService { return c.control }

// Category returns the name of the category.
func (c *Consumer) Category() string { return c.category }

// Fork returns a consumer of the same category with the same connections and retry limits, and a prefetch of at most 8 MiB. It
// can look at messages beside the consumer's own iteration. Close it before the consumer.
func (c *Consumer) Fork(opts ...Option) (*Consumer, error) {
	fork, err := New("", c.category, append([]Option{
		WithServices(c.streams, c.payloads), WithControl(c.control), WithPrefetchBytes(min(c.cfg.prefetchBytes, 8<<20)), WithRequestTimeout(c.cfg.requestTimeout),
		WithRetryTimeout(c.cfg.retryTimeout), WithBackoff(c.cfg.backoffMin, c.cfg.backoffMax), WithLogger(c.cfg.logger),
	}, opts...)...)
	if err != nil {
		return nil, err
	}
	fork.cfg.renews, fork.cfg.lapse = c.cfg.renews, c.cfg.lapse
	return fork, nil
}

// hasFilter reports whether the extension selects messages.
func (c *Consumer) hasFilter() bool { return c.cfg.extension != nil && c.cfg.extension.Filters() }

// bindExtension binds the extension when the first iteration begins.
func (c *Consumer) bindExtension(ctx context.Context) (err error) {
	if c.cfg.extension == nil {
		return nil
	}
	c.binding.Lock()
	defer c.binding.Unlock()
	if c.eval == nil {
		c.eval, err = c.cfg.extension.Bind(ctx, c, c.cfg.now())
	}
	return err
}

// Payloads delivers whole payloads, for package columns. It is otherwise like [Consumer.Records]: refuse yields an error.
func (c *Consumer) Payloads(ctx context.Context, refuse func(error) bool, deliver payload.Deliver) {
	if c.hasFilter() {
		refuse(ErrFiltered)
		return
	}
	c.runIteration(ctx, refuse, func(it *streamItem) bool {
		return c.takeItem(it, refuse, func() bool {
			return deliver(&it.Payload, func(r *loss.Report) bool { return c.tellLoss(it, r, refuse) }, c.group.mayGoOn(ctx, it))
		})
	})
}

// Payloads is like [Consumer.Payloads], for the member's buckets.
func (g *Group) Payloads(ctx context.Context, refuse func(error) bool, deliver payload.Deliver) {
	g.c.Payloads(ctx, refuse, deliver)
}

// Describe returns the category from the control plane. It retries within the options' retry limits.
func (c *Consumer) Describe(ctx context.Context) (*scribev1.Category, error) {
	doing := fmt.Sprintf("describing category %q", c.category)
	if c.control == nil {
		return nil, fmt.Errorf("consumer: %s: WithServices without WithControl has nobody to ask", doing)
	}
	since := time.Now()
	for failures := 1; ; failures++ {
		rctx, cancel := context.WithTimeoutCause(ctx, c.cfg.requestTimeout, errUnanswered)
		res, err := c.control.GetCategory(rctx, &scribev1.GetCategoryRequest{Name: c.category, ForReading: true})
		cancel()
		if err == nil {
			return res.GetCategory(), nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		cause := c.cfg.permanentError(err)
		if t := c.cfg.retryTimeout; cause == nil && t > 0 && time.Since(since) > t {
			cause = ErrUnavailable
		}
		if cause != nil {
			return nil, &ServerError{Doing: doing, cause: cause, Detail: err}
		}
		pause := c.cfg.pause(failures, err)
		c.cfg.logger.Warn("describing the category failed, retrying", "pause", pause, "error", err)
		if err := backoff.Sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}
