package sqlserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/aggregate"
	"scribe/columnar/listing"
	"scribe/columnar/near"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// rowSource is the answer to a query while it is read. One goroutine at a time uses it. Tests supply their own.
type rowSource interface {
	// Schema returns the schema of every batch.
	Schema() *arrow.Schema
	// Next returns the next batch, which the caller releases, or io.EOF after the last one.
	Next() (arrow.RecordBatch, error)
	// Category returns the category that is queried, Stats the statistics so far.
	Category() string
	Stats() columns.Stats
	// Checkpoint returns the place after the rows of the last batch, for the caller of Next. PausedAt returns the place at which nothing more could be read at once
	// since then, for anybody, if the request asks for checkpoints. "" is none.
	Checkpoint() string
	PausedAt() string
	// Close releases the rest of the answer. It is called once, after the last Next.
	Close() error
}

// unavailableTimeout is how long servers may be unavailable before a query fails.
const unavailableTimeout = 15 * time.Second

// openQuery binds a query. Reading begins with the first Next, and ends with ctx: opening a query only for its schema is cheap.
func (g *Server) openQuery(ctx context.Context, req *Request) (rowSource, error) {
	parsed, show, err := sql.ParseStatement(req.SQL)
	if err != nil {
		return nil, clientError(err)
	}
	if show != nil {
		return g.openListing(ctx, req, show)
	}
	opts := []consumer.Option{
		columns.WithMaxMemory(req.Memory), consumer.WithName("sqlserver"), consumer.WithLogger(g.log), consumer.WithRetryTimeout(unavailableTimeout),
		consumer.WithRandom(g.deps.Random),
	}
	client, err := g.clientOptions(req.limits)
	if err != nil {
		return nil, err
	}
	opts = append(opts, client...)
	if req.Limit >= 0 {
		opts = append(opts, columns.WithRowLimit(req.Limit))
	}
	switch {
	case req.Place != nil:
		opts = append(opts, consumer.WithStart(*req.Place))
	case !req.FromTime.IsZero():
		opts = append(opts, consumer.WithStart(consumer.At(req.FromTime)))
	case req.From == fromLatest, req.From == "" && req.Follow:
		opts = append(opts, consumer.WithStart(consumer.Latest()))
	}
	if req.Follow {
		opts = append(opts, columns.WithFollow())
	}
	if !req.To.IsZero() {
		opts = append(opts, columns.WithUntil(req.To))
	}
	c := &cellQuery{log: g.log}
	if req.Checkpoints {
		opts = append(opts, consumer.WithOnPause(c.notePause))
	}
	q, err := columns.NewQuery(ctx, g.deps.Server, req.SQL, opts...)
	if errors.Is(err, consumer.ErrUnknownCategory) {
		return nil, g.unknownCategory(ctx, parsed.From.Category)
	}
	if err != nil {
		return nil, clientError(err)
	}
	c.Query = q
	c.next, c.stop = iter.Pull2(q.Batches(ctx))
	return c, nil
}

// cellQuery is a query that reads from the cell.
type cellQuery struct {
	*columns.Query
	log  *slog.Logger
	next func() (arrow.RecordBatch, error, bool)
	stop func()
	// paused is what PausedAt returns, nil without a pause since the last batch.
	paused atomic.Pointer[string]
}

// notePause is called within Next.
func (c *cellQuery) notePause() {
	if place := c.Checkpoint(); place != "" {
		c.paused.Store(&place)
	}
}

// PausedAt implements rowSource.
func (c *cellQuery) PausedAt() string {
	if place := c.paused.Load(); place != nil {
		return *place
	}
	return ""
}

// Next implements rowSource. Gaps are counted and skipped: the messages after them are valid.
func (c *cellQuery) Next() (arrow.RecordBatch, error) {
	for {
		batch, err, more := c.next()
		switch {
		case !more:
			return nil, io.EOF
		case errors.Is(err, consumer.ErrGap):
			c.log.Warn("a query met a gap", "category", c.Category(), "error", err)
		case err != nil:
			return nil, clientError(err)
		default:
			c.paused.Store(nil) // it is before the batch
			batch.Retain()      // the iteration releases the batch at its next step
			return batch, nil
		}
	}
}

// Close implements rowSource.
func (c *cellQuery) Close() error {
	c.stop()
	return c.Query.Close()
}

// tableInfo is a category as a table.
type tableInfo struct {
	name string
	// columns reads the table's schema, which may be damaged: then that is the failure of who asks for it alone.
	columns func() (*arrow.Schema, error)
}

// listTables returns the tables that the caller of ctx may know of.
func (g *Server) listTables(ctx context.Context) []tableInfo {
	var tables []tableInfo
	for c := range g.deps.Categories.All() {
		if g.sees(ctx, c) {
			tables = append(tables, tableInfo{c.GetName(), func() (*arrow.Schema, error) {
				seen := c
				if g.deps.Rights != nil {
					seen = g.deps.Rights.SeenAs(ctx, c)
				}
				h, err := schema.ParseHistory(seen.GetSchema())
				if err != nil {
					return nil, fmt.Errorf("read the schema of category %q: %w", c.GetName(), err)
				}
				return listing.Columns(h.Current()), nil
			}})
		}
	}
	return tables
}

// unknownCategory returns the error for a query of a category that does not exist, or that the caller of ctx may not know of.
func (g *Server) unknownCategory(ctx context.Context, name string) error {
	f := near.NewFinder(name)
	for c := range g.deps.Categories.All() {
		if g.sees(ctx, c) {
			f.Offer(c.GetName())
		}
	}
	return &Error{Kind: KindUnknown, Message: fmt.Sprintf("there is no category %q", name), Hint: near.Phrase(f.Names())}
}

// clientText is an error's text for a client, to whom the package's name means nothing.
func clientText(err error) string { return strings.TrimPrefix(err.Error(), "consumer: ") }

// clientError returns an error as the client sees it. An internal error is returned unchanged.
func clientError(err error) error {
	if e, ok := errors.AsType[*sql.Error](err); ok {
		caret := strings.TrimSuffix(strings.TrimPrefix(e.Error(), e.Message+"\n"), "\nHINT: "+e.Hint)
		return &Error{Kind: KindInvalid, Message: e.Message, Line: e.Line, Column: e.Column, Position: e.Pos, Caret: caret, Hint: e.Hint}
	}
	message := clientText(err)
	if e, ok := errors.AsType[*columns.LimitError](err); ok {
		return &Error{Kind: KindLimit, Message: message, Hint: e.Hint}
	}
	switch {
	case isDenial(err): // of who is limited to rows and columns that can't be told
		return denialError(err)
	case errors.Is(err, aggregate.ErrLimit):
		return &Error{Kind: KindLimit, Message: message, Hint: "group or sort less, or narrow the range of time"}
	case errors.Is(err, consumer.ErrCheckpoint):
		return &Error{Kind: KindInvalid, Message: message}
	case errors.Is(err, consumer.ErrUnknownCategory): // deleted in the meantime
		return &Error{Kind: KindUnknown, Message: message}
	case errors.Is(err, consumer.ErrUnavailable), retry.Retryable(err) && rpc.ReasonOf(err) != scribev1.Reason_REASON_UNKNOWN_OUTCOME:
		return &Error{Kind: KindUnavailable, Message: message, RetryAfter: time.Second}
	}
	return err
}
