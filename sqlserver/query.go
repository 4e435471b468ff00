package sqlserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/util"

	"scribe/consumer/columns"
)

const (
	// sliceBytes is the approximate size of one write and of one Flight message; ADBC clients accept up to 16 MiB.
	sliceBytes = 2 << 20
	// sliceRows also bounds a slice: its text may be far larger than the Arrow data.
	sliceRows = 64 << 10
)

// runningQuery is an admitted query. One goroutine at a time uses it, except for cancel.
type runningQuery struct {
	g      *Server
	api    string
	client string
	req    *Request
	id     string // by which clients can cancel it; may be empty
	began  time.Time
	ctx    context.Context //nolint:containedctx // the query's life
	cancel context.CancelCauseFunc
	stop   context.CancelFunc // releases the deadline
	source rowSource          // nil until it is bound
	// unwatch ends the watch over the caller's rights.
	unwatch context.CancelFunc

	rest   arrow.RecordBatch // the part of the last batch that was not handed out
	offset int64
	rows   int64 // handed out
	handed int64 // approximate bytes of the last slice
	bytes  int64 // written, for the metrics
	quiet  bool  // only its schema was requested: not counted as an answer
}

// beginQuery admits a query and binds it. An error was already counted and logged; without an error the caller must call
// endQuery.
func (g *Server) beginQuery(ctx context.Context, q *runningQuery) error {
	g.startQuery(ctx, q)
	err := q.bindQuery()
	if err != nil {
		q.endQuery(err)
	}
	return err
}

// startQuery begins a query's time. The caller must call endQuery.
func (g *Server) startQuery(ctx context.Context, q *runningQuery) {
	q.g, q.began = g, g.now()
	limit := g.cfg.MaxTime
	if q.req.Follow {
		limit = g.cfg.MaxFollowTime
	}
	q.req.Memory = g.cfg.QueryMemory
	q.ctx, q.cancel = context.WithCancelCause(ctx)
	q.stop, q.unwatch = func() {}, func() {}
	if limit = lowerBound(limit, q.req.Timeout); limit > 0 {
		q.ctx, q.stop = context.WithTimeoutCause(q.ctx, limit, errTimeout)
	}
}

// lowerBound returns the lower of two bounds, where 0 means no bound.
func lowerBound(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func (q *runningQuery) bindQuery() error {
	switch {
	case q.req.SQL == "":
		return &Error{Kind: KindInvalid, Message: "there is no query", Hint: "give one as sql=SELECT ..., or as the body of a POST"}
	case len(q.req.SQL) > MaxText:
		return errorf(KindTooLarge, "the query has %d bytes, at most %d are allowed", len(q.req.SQL), MaxText)
	}
	if err := q.g.admitQuery(q); err != nil {
		return err
	}
	q.g.log.Debug("query begins", "api", q.api, "client", q.client, "text", q.req.SQL)
	if err := q.checkRights(); err != nil {
		return err
	}
	return q.recoverPanic(func() (err error) {
		if q.source, err = q.g.open(q.ctx, q.req); err != nil {
			q.source = nil
			return q.clientFailure(err)
		}
		return nil
	})
}

// recoverPanic turns a panic into an error: a bug in one query must not end the others.
func (q *runningQuery) recoverPanic(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			q.g.log.Error("a query panicked", "api", q.api, "panic", v, "stack", string(debug.Stack()))
			err = errorf(KindInternal, "the query met a bug; the server's log has the stack")
		}
	}()
	return fn()
}

// clientFailure returns an error as the client sees it; if the query was ended, the reason for that.
func (q *runningQuery) clientFailure(err error) error {
	if q.ctx.Err() != nil {
		return q.endReason()
	}
	if e, ok := errors.AsType[*Error](err); ok {
		if q.req.Bound {
			e = e.withoutPlace()
		}
		return e
	}
	q.g.log.Warn("query failed", "api", q.api, "error", err)
	return &Error{Kind: KindInternal, Message: err.Error()}
}

// endReason returns why the query's context ended. A following query that reached its time is complete: io.EOF.
func (q *runningQuery) endReason() error {
	switch cause := context.Cause(q.ctx); {
	case isDenial(cause):
		return denialError(cause)
	case hasChanged(cause):
		return changedError()
	case errors.Is(cause, errTimeout) && q.req.Follow && q.source != nil:
		return io.EOF
	case errors.Is(cause, errTimeout):
		return &Error{
			Kind: KindTimeout, Message: fmt.Sprintf("%v: it was ended after %v", errTimeout, q.g.now().Sub(q.began).Round(time.Millisecond)),
			Hint: "read less with from and to, or a narrower WHERE",
		}
	case errors.Is(cause, errClosing):
		return &Error{Kind: KindUnavailable, Message: errClosing.Error(), RetryAfter: time.Second}
	default:
		return errorf(KindCancelled, "the query was cancelled")
	}
}

// fetchSlice returns the next slice of the answer, which the caller releases, or io.EOF.
func (q *runningQuery) fetchSlice() (batch arrow.RecordBatch, err error) {
	err = q.recoverPanic(func() (err error) {
		batch, err = q.takeSlice()
		return err
	})
	return batch, err
}

func (q *runningQuery) takeSlice() (arrow.RecordBatch, error) {
	for q.rest == nil {
		if q.ctx.Err() != nil {
			return nil, q.endReason()
		}
		var err error
		if q.rest, err = q.source.Next(); errors.Is(err, io.EOF) {
			return nil, err
		} else if err != nil {
			return nil, q.clientFailure(err)
		}
		if q.offset = 0; q.rest.NumRows() == 0 {
			q.dropBatch()
		}
	}
	n, size := q.nextSlice()
	if most := q.g.cfg.MaxRows; most > 0 && !q.req.Follow && q.rows+n > most {
		return nil, &Error{
			Kind: KindLimit, Message: fmt.Sprintf("the answer has more than %d rows, the limit of this server", most),
			Hint: "ask for less with LIMIT or WHERE",
		}
	}
	q.rows, q.handed = q.rows+n, size
	if n == q.rest.NumRows() {
		batch := q.rest
		q.rest = nil
		return batch, nil
	}
	batch := q.rest.NewSlice(q.offset, q.offset+n)
	if q.offset += n; q.offset == q.rest.NumRows() {
		q.dropBatch()
	}
	return batch, nil
}

// nextSlice returns how many rows of the batch to hand out next, and their approximate bytes.
func (q *runningQuery) nextSlice() (n, bytes int64) {
	rows, size := q.rest.NumRows(), util.TotalRecordSize(q.rest)
	n = min(rows, sliceRows)
	if size > sliceBytes {
		n = min(n, max(1, int64(float64(rows)*sliceBytes/float64(size))))
	}
	n = min(n, rows-q.offset)
	return n, int64(float64(size) * float64(n) / float64(rows))
}

func (q *runningQuery) dropBatch() {
	if q.rest != nil {
		q.rest.Release()
		q.rest = nil
	}
}

// answerChunk is a slice of the answer, or the error that ended it.
type answerChunk struct {
	batch arrow.RecordBatch
	// checkpoint is the place after it, "" where more of its rows follow, or nobody asked.
	checkpoint string
	err        error
}

// startPump fetches slices in a new goroutine, so that a writer can wait for rows and for a timer at once. The channel is closed
// after the last chunk, or when the query is ended; then the caller owns the query again.
func (q *runningQuery) startPump() <-chan answerChunk {
	out := make(chan answerChunk)
	go func() {
		defer close(out)
		for {
			batch, err := q.fetchSlice()
			c := answerChunk{batch: batch, err: err}
			if q.req.Checkpoints && q.rest == nil && (err == nil || errors.Is(err, io.EOF)) {
				c.checkpoint = q.source.Checkpoint()
			}
			select {
			case out <- c:
			case <-q.ctx.Done():
				if batch != nil {
					batch.Release()
				}
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return out
}

// endQuery releases the query, and counts and logs its result: nil or io.EOF means a complete answer.
func (q *runningQuery) endQuery(err error) {
	var stats columns.Stats
	category := ""
	q.cancel(nil)
	q.stop()
	q.unwatch()
	q.dropBatch()
	if q.source != nil {
		category, stats = q.source.Category(), q.source.Stats()
		if err := q.source.Close(); err != nil {
			q.g.log.Warn("close a query", "error", err)
		}
	}
	q.g.releaseQuery(q)
	result := resultOK
	if err != nil && !errors.Is(err, io.EOF) {
		result = errorOf(err).Kind.String()
	} else if q.quiet {
		return
	}
	took := q.g.now().Sub(q.began)
	m := q.g.metrics
	m.rows.WithLabelValues(q.api).Add(float64(q.rows))
	m.bytes.WithLabelValues(q.api).Add(float64(q.bytes))
	m.fetched.Add(float64(stats.FetchedBytes))
	if !q.req.Follow {
		m.seconds.WithLabelValues(q.api).Observe(took.Seconds())
	}
	m.queries.WithLabelValues(q.api, result).Inc() // last, so that an observer of this count sees the others
	q.g.log.LogAttrs(context.Background(), slog.LevelInfo, "query", slog.String("api", q.api), slog.String("client", q.client),
		slog.String("category", category), slog.String("result", result), slog.Duration("took", took), slog.Int64("rows", q.rows),
		slog.Uint64("rows_read", stats.RowsRead), slog.Uint64("bytes_fetched", stats.FetchedBytes), slog.Uint64("pruned", stats.Skipped),
		slog.Bool("follow", q.req.Follow))
}
