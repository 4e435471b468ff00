package app

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
	"scribe/internal/cell/catalog"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/sqlserver"
)

// queries carries out what the gateway is asked, as a consumer of the cell.
type queries struct {
	server     string
	categories *catalog.View
	log        *slog.Logger
}

// queryPatience is how long servers may be away until a query says so.
const queryPatience = 15 * time.Second

// Query implements sqlserver.Runner.
func (q *queries) Query(ctx context.Context, req *sqlserver.Request) (sqlserver.Result, error) {
	query, err := columns.NewQuery(ctx, q.server, req.SQL, q.options(req)...)
	if errors.Is(err, consumer.ErrUnknownCategory) {
		return nil, q.unknown(req.SQL)
	}
	if err != nil {
		return nil, told(err)
	}
	a := &answer{queries: q, query: query}
	a.next, a.stop = iter.Pull2(query.Batches(ctx))
	return a, nil
}

func (q *queries) options(req *sqlserver.Request) []consumer.Option {
	opts := []consumer.Option{
		columns.WithMaxMemory(req.Memory), consumer.WithName("gateway"), consumer.WithLogger(q.log),
		consumer.WithRetryTimeout(queryPatience),
	}
	if req.Limit >= 0 {
		opts = append(opts, columns.WithRowLimit(req.Limit))
	}
	switch req.From.At {
	case sqlserver.StartTime:
		opts = append(opts, consumer.WithStart(consumer.At(req.From.Time)))
	case sqlserver.StartLatest:
		opts = append(opts, consumer.WithStart(consumer.Latest()))
	case sqlserver.StartEarliest:
		opts = append(opts, consumer.WithStart(consumer.Earliest()))
	case sqlserver.StartDefault:
		if req.Follow {
			opts = append(opts, consumer.WithStart(consumer.Latest()))
		}
	}
	if req.Follow {
		opts = append(opts, columns.WithFollow())
	}
	if !req.To.IsZero() {
		opts = append(opts, columns.WithUntil(req.To))
	}
	return opts
}

// Tables implements sqlserver.Runner.
func (q *queries) Tables(context.Context) ([]sqlserver.Table, error) {
	var tables []sqlserver.Table
	for c := range q.categories.All() {
		h, err := schema.ParseHistory(c.GetSchema())
		if err != nil {
			return nil, fmt.Errorf("the schema of category %q: %w", c.GetName(), err)
		}
		tables = append(tables, sqlserver.Table{Name: c.GetName(), Schema: arrowSchema(h.Current())})
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

// unknown is what a client is told who asks for a category that does not exist.
func (q *queries) unknown(text string) error {
	parsed, err := sql.Parse(text)
	if err != nil {
		return told(err)
	}
	f := near.NewFinder(parsed.From.Category)
	for c := range q.categories.All() {
		f.Offer(c.GetName())
	}
	return &sqlserver.Error{
		Kind: sqlserver.KindUnknown, Message: fmt.Sprintf("there is no category %q", parsed.From.Category),
		Hint: near.Phrase(f.Names()),
	}
}

// told is what a client is told of an error; one that nobody can do anything about stays as it is.
func told(err error) error {
	if e, ok := errors.AsType[*sql.Error](err); ok {
		caret := strings.TrimSuffix(strings.TrimPrefix(e.Error(), e.Message+"\n"), "\nHINT: "+e.Hint)
		return &sqlserver.Error{
			Kind: sqlserver.KindInvalid, Message: e.Message, Line: e.Line, Column: e.Column, Position: e.Pos, Caret: caret, Hint: e.Hint,
		}
	}
	if e, ok := errors.AsType[*columns.LimitError](err); ok {
		return &sqlserver.Error{Kind: sqlserver.KindLimit, Message: plainly(err), Hint: e.Hint}
	}
	switch {
	case errors.Is(err, aggregate.ErrLimit):
		return &sqlserver.Error{Kind: sqlserver.KindLimit, Message: plainly(err), Hint: "group by less, or narrow the range of time"}
	case errors.Is(err, consumer.ErrUnknownCategory): // it was deleted on the way
		return &sqlserver.Error{Kind: sqlserver.KindUnknown, Message: plainly(err)}
	case errors.Is(err, consumer.ErrUnavailable), retry.Retryable(err) && rpc.ReasonOf(err) != scribev1.Reason_REASON_UNKNOWN_OUTCOME:
		return &sqlserver.Error{Kind: sqlserver.KindUnavailable, Message: plainly(err), RetryAfter: time.Second}
	}
	return err
}

// plainly is an error's text without the name of the package that a client knows nothing of.
func plainly(err error) string { return strings.TrimPrefix(err.Error(), "consumer: ") }

// answer is a query of the consumer as the gateway's.
type answer struct {
	queries *queries
	query   *columns.Query
	next    func() (arrow.RecordBatch, error, bool)
	stop    func()
}

// Schema implements sqlserver.Result.
func (a *answer) Schema() *arrow.Schema { return a.query.Schema() }

// Next implements sqlserver.Result. Gaps are counted, and passed over: the messages behind them are not worse for it.
func (a *answer) Next() (arrow.RecordBatch, error) {
	for {
		batch, err, more := a.next()
		switch {
		case !more:
			return nil, io.EOF
		case errors.Is(err, consumer.ErrGap):
			a.queries.log.Warn("a query met a gap", "category", a.query.Category(), "error", err)
		case err != nil:
			return nil, told(err)
		default:
			batch.Retain() // the iteration releases it at its next step
			return batch, nil
		}
	}
}

// Stats implements sqlserver.Result.
func (a *answer) Stats() sqlserver.Stats {
	s := a.query.Stats()
	return sqlserver.Stats{
		Category: a.query.Category(), RowsRead: int64(s.RowsRead), BytesFetched: int64(s.FetchedBytes), Pruned: int64(s.Skipped), //nolint:gosec // counters
		Rejected: int64(s.RowsRejected), Errors: int64(s.Errors), Gaps: int64(s.Gaps), //nolint:gosec // counters
	}
}

// Close implements sqlserver.Result.
func (a *answer) Close() {
	a.stop()
	if err := a.query.Close(); err != nil {
		a.queries.log.Warn("close a query", "error", err)
	}
}
