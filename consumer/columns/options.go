package columns

import (
	"context"
	"errors"
	"fmt"
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

// Limits of queries.
const (
	// DefaultQueryMemory bounds the memory of a query, see [WithMaxMemory].
	DefaultQueryMemory = 256 << 20
	// MaxQueryText bounds the text of a query, in bytes.
	MaxQueryText = 64 << 10
)

// columnOptions holds the settings of this package's options.
type columnOptions struct {
	filter   string   // a predicate; may be empty
	keys     []string // none = all messages
	follow   bool
	until    time.Time // the zero Time means no end
	now      time.Time // value of now(); the zero Time means when the query or the first iteration begins
	local    bool
	rowLimit int64         // -1 = none
	maxRows  int64         // 0 = no bound
	maxBytes int64         // 0 = no bound
	timeout  time.Duration // 0 = none
	memory   int64
	compress uint32
	// allShards: all logical shards are read.
	allShards bool

	query *Query // nil when the consumer is not a query's
}

// option returns an option that changes the extension of a consumer.
func option(set func(*columnOptions)) consumer.Option {
	return consumer.WithExtension(func(of consumer.Extension) consumer.Extension {
		e, ok := of.(*columnOptions)
		if !ok {
			e = &columnOptions{memory: DefaultQueryMemory, rowLimit: -1}
		}
		set(e)
		return e
	})
}

// Validate implements [consumer.Extension].
func (e *columnOptions) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("consumer: "+format, args...))
		}
	}
	check(e.maxRows >= 0, "WithMaxRows: %d is negative", e.maxRows)
	check(e.rowLimit >= -1, "WithRowLimit: %d is negative", e.rowLimit)
	check(e.maxBytes >= 0, "WithMaxBytes: %d is negative", e.maxBytes)
	check(e.timeout >= 0, "WithTimeLimit: %v is negative", e.timeout)
	check(e.memory >= 1<<20, "WithMaxMemory: %d is below %d", e.memory, 1<<20)
	check(!e.follow || e.until.IsZero(), "WithFollow and WithUntil exclude each other")
	if e.filter != "" {
		_, err := sql.ParsePredicate(e.filter)
		check(err == nil, "Where: %w", err)
		check(e.query == nil, "Where: a query has its own WHERE")
	}
	check(len(e.keys) <= MaxKeys, "Keys: %d values, the limit is %d", len(e.keys), MaxKeys)
	check(len(e.keys) == 0 || e.query == nil, "Keys: a query has its WHERE")
	return errors.Join(errs...)
}

// Adjust implements [consumer.Extension].
func (e *columnOptions) Adjust(l *payload.Limits) {
	l.Until = e.until
	if e.query != nil {
		l.UntilEnd = !e.follow && !e.until.After(e.query.began)
		l.PrefetchBytes = max(min(l.PrefetchBytes, e.memory/2), 64<<10)
	}
}

// Filters implements [consumer.Extension].
func (e *columnOptions) Filters() bool { return e.filter != "" || len(e.keys) > 0 }

// WithFollow makes a query continue with messages written after it began, until its context ends. By default a query ends at the
// tails that the shards had when it began.
func WithFollow() consumer.Option { return option(func(e *columnOptions) { e.follow = true }) }

// WithUntil ends a query before messages persisted at or after t: its answer has the rows whose _persisted is below t. If t is in
// the future, the query waits for it.
func WithUntil(t time.Time) consumer.Option { return option(func(e *columnOptions) { e.until = t }) }

// WithNow sets the value of now() in a query or a filter; the default is the time at which it begins.
func WithNow(t time.Time) consumer.Option { return option(func(e *columnOptions) { e.now = t }) }

// WithLocal evaluates stored payloads in this process and requests no views from read proxies. The answer is the same, at the
// cost of transferring whole payloads and of local CPU time.
func WithLocal() consumer.Option { return option(func(e *columnOptions) { e.local = true }) }

// WithAllShards reads all logical shards, also those that can't hold a row of a query's answer, or a message that satisfies [Where], since the
// category places messages by key or field. Then a checkpoint is a position in all of them, from which another query or predicate can
// continue. [Keys] leaves out shards nevertheless.
func WithAllShards() consumer.Option { return option(func(e *columnOptions) { e.allShards = true }) }

// WithRowLimit ends an answer after n rows, as LIMIT does; the lower of the two applies.
func WithRowLimit(n int64) consumer.Option { return option(func(e *columnOptions) { e.rowLimit = n }) }

// WithMaxRows ends a query with a [LimitError] when its answer has more than n rows. (To get only the first rows, use LIMIT.)
func WithMaxRows(n int64) consumer.Option { return option(func(e *columnOptions) { e.maxRows = n }) }

// WithMaxBytes ends a query with a [LimitError] when its answer takes more than n bytes, as Arrow batches.
func WithMaxBytes(n int64) consumer.Option { return option(func(e *columnOptions) { e.maxBytes = n }) }

// WithTimeLimit ends an iteration of a query with a [LimitError] after d.
func WithTimeLimit(d time.Duration) consumer.Option {
	return option(func(e *columnOptions) { e.timeout = d })
}

// WithMaxMemory bounds the memory of a query, in bytes: half for payloads and rows ahead of the loop, half for groups. A query
// whose groups exceed their half ends with an error. The default is [DefaultQueryMemory]. A payload that is larger than its half
// is held alone: up to 80 MiB, and the memory of its rows.
func WithMaxMemory(n int64) consumer.Option { return option(func(e *columnOptions) { e.memory = n }) }

// Compression is the compression of views on the network.
type Compression uint32

// Compressions. None is best in one process or on one host, S2 costs little CPU time, and Zstd is smallest.
const (
	CompressionNone Compression = 0
	CompressionZstd Compression = 2
	CompressionS2   Compression = codecS2
)

// WithCompression sets the compression of views; the default is [CompressionNone].
func WithCompression(c Compression) consumer.Option {
	return option(func(e *columnOptions) { e.compress = uint32(c) })
}

// Where makes [consumer.Consumer.Records] leave out messages for which a predicate is not true. The predicate is written as after
// WHERE in a query, over the columns of the category, for example
//
//	status >= 500 AND path LIKE '/api/%'
//
// It is evaluated like that of a query: the stream leaves out pointers to payloads that it knows to contain no match. A message
// that is a batch of rows matches if one of its rows does. Logical shards in which no message can match, by how the category places
// messages, are not read, as in a query: see [WithAllShards]. A checkpoint stays exact to the message. The predicate is bound to the
// schema that the category has when the first iteration begins; an invalid predicate makes that iteration yield a *sql.Error, if
// [consumer.New] did not report it. [Batches] and [consumer.Consumer.SequencedBatches] do not support it and fail with
// [consumer.ErrFiltered]; use [NewQuery].
func Where(predicate string) consumer.Option {
	return option(func(e *columnOptions) { e.filter = predicate })
}

// ErrLimit matches every [LimitError].
var ErrLimit = errors.New("consumer: a limit of the query was reached")

// LimitError reports which limit ended a query. It matches [ErrLimit].
type LimitError struct {
	What  string // rows, bytes, time or memory
	Limit string // as it was set
	Hint  string // what to do about it
	Cause error  // says more; it may be nil
}

// Error names the limit and the remedy.
func (e *LimitError) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("consumer: the query reached its limit of %s (%s): %v: %s", e.What, e.Limit, e.Cause, e.Hint)
	}
	return fmt.Sprintf("consumer: the query reached its limit of %s (%s): %s", e.What, e.Limit, e.Hint)
}

// Unwrap returns the cause.
func (e *LimitError) Unwrap() error { return e.Cause }

// Is reports whether target is [ErrLimit].
func (e *LimitError) Is(target error) bool { return target == ErrLimit }

// Bind implements [consumer.Extension].
func (e *columnOptions) Bind(ctx context.Context, c *consumer.Consumer, now time.Time) (*payload.Evaluation, error) {
	switch {
	case e.query != nil:
		return &e.query.Evaluation, nil
	case !e.Filters():
		return nil, nil
	}
	v := &payload.Evaluation{}
	if e.filter != "" {
		var err error
		if v, err = e.bindFilter(ctx, c, now); err != nil {
			return nil, err
		}
	}
	if len(e.keys) == 0 {
		return v, nil
	}
	k, err := bindKeys(ctx, c, e.keys)
	if err != nil {
		return nil, err
	}
	filtered, left := v.FromFrames, v.Shards
	v.FromFrames = func(p *payload.Payload, skip uint32) error {
		if filtered != nil {
			if err := filtered(p, skip); err != nil {
				return err
			}
		}
		return k.match(p, skip)
	}
	v.Shards = func(category *scribev1.Category) ([]uint32, bool) {
		shards, ok := k.shards(category)
		if left == nil {
			return shards, ok
		}
		some, known := left(category)
		switch {
		case !known:
			return shards, ok
		case !ok:
			return some, true
		}
		return intersect(shards, some), true
	}
	return v, nil
}

// bindFilter binds the predicate.
func (e *columnOptions) bindFilter(ctx context.Context, c *consumer.Consumer, now time.Time) (*payload.Evaluation, error) {
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
	if !e.allShards {
		v.Shards = func(category *scribev1.Category) ([]uint32, bool) { return matchingShards(p.Where, p.Schema, category) }
	}
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
