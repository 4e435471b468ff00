package sqlserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/aggregate"
	"scribe/columnar/near"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// rowSource is the answer to a query as it is read. One goroutine at a time uses it. Tests have answers of their own.
type rowSource interface {
	// Schema is that of every batch.
	Schema() *arrow.Schema
	// Next returns the next batch, which the caller releases, or io.EOF after the last one.
	Next() (arrow.RecordBatch, error)
	// Category is what is queried, Stats what was done up to now.
	Category() string
	Stats() columns.Stats
	// Close gives up what is left. It is called once, after the last Next.
	Close() error
}

// unavailableTimeout is how long servers may be unavailable until a query fails.
const unavailableTimeout = 15 * time.Second

// openQuery binds a query. Reading begins with the first Next, and ends when ctx does: one that is opened for its schema alone costs little.
func (g *Server) openQuery(ctx context.Context, req *Request) (rowSource, error) {
	opts := []consumer.Option{
		columns.WithMaxMemory(req.Memory), consumer.WithName("sqlserver"), consumer.WithLogger(g.log), consumer.WithRetryTimeout(unavailableTimeout),
	}
	if req.Limit >= 0 {
		opts = append(opts, columns.WithRowLimit(req.Limit))
	}
	switch {
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
	q, err := columns.NewQuery(ctx, g.deps.Server, req.SQL, opts...)
	if errors.Is(err, consumer.ErrUnknownCategory) {
		return nil, g.unknownCategory(req.SQL)
	}
	if err != nil {
		return nil, clientError(err)
	}
	c := &cellQuery{Query: q, log: g.log}
	c.next, c.stop = iter.Pull2(q.Batches(ctx))
	return c, nil
}

// cellQuery is a query of the cell.
type cellQuery struct {
	*columns.Query
	log  *slog.Logger
	next func() (arrow.RecordBatch, error, bool)
	stop func()
}

// Next implements rowSource. Gaps are counted, and passed over: the messages after them are not worse for it.
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
			batch.Retain() // the iteration releases it at its next step
			return batch, nil
		}
	}
}

// Close implements rowSource.
func (c *cellQuery) Close() error {
	c.stop()
	return c.Query.Close()
}

// tableInfo is a category as a query sees it.
type tableInfo struct {
	name   string
	schema *arrow.Schema
}

// listTables returns what can be queried.
func (g *Server) listTables() ([]tableInfo, error) {
	var tables []tableInfo
	for c := range g.deps.Categories.All() {
		h, err := schema.ParseHistory(c.GetSchema())
		if err != nil {
			return nil, fmt.Errorf("read the schema of category %q: %w", c.GetName(), err)
		}
		tables = append(tables, tableInfo{c.GetName(), arrowSchema(h.Current())})
	}
	return tables, nil
}

// arrowSchema has every column that a query can name.
func arrowSchema(s *schema.Schema) *arrow.Schema {
	var fields []arrow.Field
	for _, c := range s.Columns() {
		fields = append(fields, arrow.Field{Name: c.Name, Type: c.Type.Arrow(), Nullable: c.Field < 0 || s.Fields[c.Field].Nullable})
	}
	return arrow.NewSchema(fields, nil)
}

// unknownCategory is the error of a query of a category that does not exist.
func (g *Server) unknownCategory(text string) error {
	parsed, err := sql.Parse(text)
	if err != nil {
		return clientError(err)
	}
	f := near.NewFinder(parsed.From.Category)
	for c := range g.deps.Categories.All() {
		f.Offer(c.GetName())
	}
	return &Error{Kind: KindUnknown, Message: fmt.Sprintf("there is no category %q", parsed.From.Category), Hint: near.Phrase(f.Names())}
}

// clientError is what a client is told of an error; one that nobody can do anything about stays as it is.
func clientError(err error) error {
	if e, ok := errors.AsType[*sql.Error](err); ok {
		caret := strings.TrimSuffix(strings.TrimPrefix(e.Error(), e.Message+"\n"), "\nHINT: "+e.Hint)
		return &Error{Kind: KindInvalid, Message: e.Message, Line: e.Line, Column: e.Column, Position: e.Pos, Caret: caret, Hint: e.Hint}
	}
	message := strings.TrimPrefix(err.Error(), "consumer: ") // a client knows nothing of the package
	if e, ok := errors.AsType[*columns.LimitError](err); ok {
		return &Error{Kind: KindLimit, Message: message, Hint: e.Hint}
	}
	switch {
	case errors.Is(err, aggregate.ErrLimit):
		return &Error{Kind: KindLimit, Message: message, Hint: "group by less, or narrow the range of time"}
	case errors.Is(err, consumer.ErrUnknownCategory): // it was deleted on the way
		return &Error{Kind: KindUnknown, Message: message}
	case errors.Is(err, consumer.ErrUnavailable), retry.Retryable(err) && rpc.ReasonOf(err) != scribev1.Reason_REASON_UNKNOWN_OUTCOME:
		return &Error{Kind: KindUnavailable, Message: message, RetryAfter: time.Second}
	}
	return err
}
