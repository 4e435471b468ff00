package columns

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/util"

	"scribe/columnar/aggregate"
	"scribe/columnar/finish"
	"scribe/columnar/plan"
	"scribe/columnar/sql"
	"scribe/columnar/transcode"
	"scribe/consumer"
	"scribe/consumer/internal/payload"
	"scribe/internal/format/loss"
	scribev1 "scribe/proto/scribe/v1"
)

// Query is a SELECT over a category, with its position. One iteration runs at a time; the other methods may be called
// concurrently from any goroutine.
type Query struct {
	consumer *consumer.Consumer
	options  *columnOptions
	plan     *plan.Plan
	*payloadEvaluation
	text  string // the query's canonical text
	began time.Time

	mu struct {
		sync.Mutex
		rows, bytes int64 // of the answer
		skipped     int64 // rows that OFFSET left out
		groups      int
		groupErrors int64
	}
	done atomic.Bool // LIMIT was reached, or a bounded query has ended
}

// NewQuery returns a query of the cell that a server belongs to; "" means [consumer.DefaultServer]. It gets the category and its
// newest schema from the control plane, and stays bound to that version; it reads nothing before the first iteration. It returns
// a *sql.Error for a mistake in the text, which shows the place; [consumer.ErrUnknownCategory]; and all violations of options.
//
// A query begins with the oldest readable message and ends at the tails that the shards have when its first iteration begins,
// unless [consumer.WithStart], [WithUntil] or [WithFollow] says otherwise. It also takes the options of a [consumer.Consumer].
func NewQuery(ctx context.Context, server, text string, opts ...consumer.Option) (*Query, error) {
	if len(text) > MaxQueryText {
		return nil, fmt.Errorf("consumer: a query of %d bytes, the limit is %d", len(text), MaxQueryText)
	}
	parsed, err := sql.Parse(text)
	if err != nil {
		return nil, err
	}
	q := &Query{began: time.Now()}
	c, err := consumer.New(server, parsed.From.Category, slices.Concat([]consumer.Option{consumer.WithStart(consumer.Earliest())}, opts,
		[]consumer.Option{option(func(e *columnOptions) {
			if q.options, e.query = e, q; e.now.IsZero() {
				e.now = q.began
			}
		})})...)
	if err != nil {
		return nil, err
	}
	q.consumer = c
	if err := q.bind(ctx, parsed, text); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return q, nil
}

// bind binds the query to the current schema of the category.
func (q *Query) bind(ctx context.Context, parsed *sql.Select, text string) error {
	s, err := currentSchema(ctx, q.consumer)
	if err != nil {
		return err
	}
	e := q.options
	if q.plan, err = plan.Bind(parsed, s, plan.Options{Now: e.now}); err != nil {
		return err
	}
	q.text = parsed.String()
	if err := q.refuseEndless(parsed); err != nil {
		return err
	}
	// Rows are made locally in the half of the memory that is for payloads.
	finisher, err := finish.New(q.plan, transcode.Limits{Bytes: min(e.memory/2, transcode.DefaultBytes)})
	if err != nil {
		return err
	}
	q.payloadEvaluation = newEvaluation(finisher, e.memory)
	if !e.allShards {
		q.Shards = func(c *scribev1.Category) ([]uint32, bool) { return matchingShards(q.plan.Where, q.plan.Schema, c) }
	}
	q.Query = &scribev1.Query{Text: wireText(q.plan.Text, text), SchemaVersion: s.Version, Now: e.now.UnixMicro()}
	if !e.local {
		q.View = &scribev1.View{Query: q.Query, Codec: e.compress}
	}
	return nil
}

// refuseEndless returns an error for a query that follows, and whose answer needs an end of what is read.
func (q *Query) refuseEndless(parsed *sql.Select) error {
	at, what := 0, ""
	switch {
	case !q.options.follow:
	case parsed.Distinct:
		what = "SELECT DISTINCT needs"
	case q.plan.Group != nil:
		what = "GROUP BY and aggregates need"
		if len(parsed.GroupBy) > 0 {
			at = parsed.GroupBy[0].Pos()
		}
	case len(q.plan.Order) > 0:
		at, what = parsed.OrderBy[0].Expr.Pos(), "ORDER BY needs"
	}
	if what == "" {
		return nil
	}
	return parsed.Errorf(at, "Do not follow, or say up to which time.", "%s an end of what is read, a query that follows has none", what)
}

// wireText returns a query's text for requests: the canonical text, by which servers recognize equal queries, or the original
// text if the canonical one exceeds the limit.
func wireText(canonical, written string) string {
	if len(canonical) > MaxQueryText {
		return written
	}
	return canonical
}

// Schema returns the schema of the batches.
func (q *Query) Schema() *arrow.Schema { return q.finisher.Schema() }

// Category returns the name of the category that is read.
func (q *Query) Category() string { return q.consumer.Category() }

// Close releases the query's resources, see [consumer.Consumer.Close].
func (q *Query) Close() error { return q.consumer.Close() }

// Checkpoint returns the position after the last batch or gap that was yielded, see [consumer.Consumer.Checkpoint]. It is after a
// whole payload, or, where LIMIT cut one, before the message of the next row. A query that begins there continues the answer
// without omitting a row; with GROUP BY, DISTINCT or ORDER BY its rows are those of
// the range that it reads, and OFFSET leaves out rows anew. Where a message has several rows, as in
// NDJSON and CSV, and LIMIT cut in the middle of one, the first rows of that message come again: a LIMIT that does not exceed the
// rows of a message never gets past it.
func (q *Query) Checkpoint() string { return q.consumer.Checkpoint() }

// Watermark is like [consumer.Consumer.Watermark].
func (q *Query) Watermark() time.Time { return q.consumer.Watermark() }

// Lag is like [consumer.Consumer.Lag].
func (q *Query) Lag() time.Duration { return q.consumer.Lag() }

// Backlog is like [consumer.Consumer.Backlog].
func (q *Query) Backlog() consumer.Backlog { return q.consumer.Backlog() }

// Batches yields the answer as Arrow record batches with the columns of [Query.Schema], as they arrive: at most one for a
// payload, none for a payload without matching rows, and with GROUP BY, DISTINCT or ORDER BY one at the end. Errors are as with
// [consumer.Consumer.Records]: after a *[consumer.GapError] the iteration continues if the caller does; any other error ends it.
// When ctx ends, running requests are canceled.
//
// A batch is released at the next step of the iteration: Retain it to keep it. After an iteration has ended, another one
// continues after the last batch; the counts for limits carry over.
func (q *Query) Batches(ctx context.Context) iter.Seq2[arrow.RecordBatch, error] {
	return func(yield func(arrow.RecordBatch, error) bool) {
		ctx, cancel := q.limited(ctx)
		defer cancel()
		r := queryIteration{query: q, yield: yield}
		limits := aggregate.Limits{Bytes: q.options.memory / 2} // groups or rows to sort have half of the memory, payloads the other half
		var err error
		switch {
		case q.plan.Group != nil:
			r.grouping, err = q.finisher.Grouping(limits)
		case len(q.plan.Order) > 0:
			if r.sorter, err = q.finisher.Sorting(q.sortedRows(), limits); err == nil {
				defer r.sorter.Close()
			}
		}
		if err != nil {
			yield(nil, err)
			return
		}
		r.iterate(ctx)
	}
}

// limited returns ctx with the query's time limit.
func (q *Query) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	d := q.options.timeout
	if d == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, d, &LimitError{What: "time", Limit: d.String(), Hint: "narrow the range of time or the WHERE, or allow more"})
}

// queryIteration is one iteration of a query.
type queryIteration struct {
	query    *Query
	yield    func(arrow.RecordBatch, error) bool
	grouping *finish.Grouping  // nil without
	sorter   *aggregate.Sorter // nil without
	over     bool              // ended by an error, by LIMIT, or by the caller
}

func (r *queryIteration) iterate(ctx context.Context) {
	q := r.query
	if q.done.Load() || q.limit() == 0 {
		return
	}
	q.consumer.Payloads(ctx, r.refuse, r.deliver)
	if r.over || r.grouping == nil && r.sorter == nil {
		return
	}
	whole, err := r.result()
	if err != nil {
		r.yield(nil, q.memoryLimit(err))
		return
	}
	from, to := int64(0), whole.NumRows()
	from = min(q.plan.Offset, to)
	if limit := q.limit(); limit >= 0 && limit < to-from {
		to = from + limit
	}
	batch := whole.NewSlice(from, to)
	whole.Release()
	defer batch.Release()
	if err := q.count(batch); err != nil {
		r.yield(nil, err)
		return
	}
	q.done.Store(true)
	if batch.NumRows() > 0 {
		r.yield(batch, nil)
	}
}

// result returns the rows of an answer that is known at its end only.
func (r *queryIteration) result() (arrow.RecordBatch, error) {
	if r.sorter != nil {
		return r.sorter.Result()
	}
	batch, err := r.grouping.Result()
	if err == nil {
		r.query.note(r.grouping)
	}
	return batch, err
}

// refuse yields an error.
func (r *queryIteration) refuse(err error) bool {
	goOn := r.yield(nil, err)
	r.over = r.over || !goOn || !errors.Is(err, consumer.ErrGap)
	return goOn
}

// deliver yields the rows of a payload, after the losses that were reported among its messages.
func (r *queryIteration) deliver(p *payload.Payload, tell func(*loss.Report) bool, _ func() bool) bool {
	q, res := r.query, p.Result.(*payloadResult)
	defer res.rows.Batch.Release()
	for _, report := range res.lost {
		if !tell(report) {
			return false
		}
	}
	switch {
	case r.grouping != nil:
		if err := r.grouping.Add(res.rows); err != nil {
			return r.refuse(q.memoryLimit(err))
		}
		q.note(r.grouping)
		p.Left.Store(0)
		return true
	case r.sorter != nil:
		if err := r.sorter.Add(res.rows.Batch); err != nil {
			return r.refuse(q.memoryLimit(err))
		}
		p.Left.Store(0)
		return true
	}
	batch, left, last := q.cut(res.rows, p)
	defer batch.Release()
	if err := q.count(batch); err != nil {
		r.refuse(err)
		return false
	}
	p.Left.Store(int64(left))
	goOn := batch.NumRows() == 0 || r.yield(batch, nil)
	if last {
		q.done.Store(true)
	}
	r.over = !goOn || last
	return !r.over
}

// cut applies OFFSET and LIMIT. It returns the rows to yield, the number of messages of the payload that remain, and whether these are the
// last rows of the answer. The caller releases the batch.
func (q *Query) cut(rows *finish.Rows, p *payload.Payload) (batch arrow.RecordBatch, left uint32, last bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := rows.Batch.NumRows()
	from := min(q.plan.Offset-q.mu.skipped, n)
	q.mu.skipped += from
	limit := q.limit()
	if limit < 0 || q.mu.rows+n-from < limit {
		return rows.Batch.NewSlice(from, n), 0, false
	}
	to := from + max(limit-q.mu.rows, 0)
	if to < n {
		left = p.Messages - min(rows.Index[to], p.Messages)
	}
	return rows.Batch.NewSlice(from, to), left, true
}

// count counts rows of the answer and checks the limits.
func (q *Query) count(batch arrow.RecordBatch) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	cfg := q.options
	rows, bytes := q.mu.rows+batch.NumRows(), q.mu.bytes+util.TotalRecordSize(batch)
	switch {
	case cfg.maxRows > 0 && rows > cfg.maxRows:
		return &LimitError{What: "rows", Limit: fmt.Sprint(cfg.maxRows), Hint: "add a LIMIT, narrow the WHERE, or allow more"}
	case cfg.maxBytes > 0 && bytes > cfg.maxBytes:
		return &LimitError{What: "bytes", Limit: fmt.Sprint(cfg.maxBytes), Hint: "select fewer columns, add a LIMIT, or allow more"}
	}
	q.mu.rows, q.mu.bytes = rows, bytes
	return nil
}

func (q *Query) note(g *finish.Grouping) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.groups, q.mu.groupErrors = g.Groups(), g.Errors()
}

// sortedRows returns how many rows have to be sorted, those that OFFSET leaves out included; -1 means all.
func (q *Query) sortedRows() int64 {
	limit := q.limit()
	if limit < 0 || limit > plan.MaxSorted || limit+q.plan.Offset > plan.MaxSorted { // a limit of the options, which are not of the query's text
		return -1
	}
	return limit + q.plan.Offset
}

// limit returns LIMIT, or the row limit of the options if that is lower; -1 without either.
func (q *Query) limit() int64 {
	if n := q.options.rowLimit; n >= 0 && (q.plan.Limit < 0 || n < q.plan.Limit) {
		return n
	}
	return q.plan.Limit
}
