package columns

import (
	"errors"
	"fmt"
	"time"

	"scribe/columnar/aggregate"
	"scribe/columnar/sql"
	"scribe/consumer"
	"scribe/consumer/internal/payload"
)

// Limits of queries.
const (
	// DefaultQueryMemory bounds the memory of a query, see [WithMaxMemory].
	DefaultQueryMemory = 256 << 20
	// MaxQueryText bounds the text of a query, in bytes.
	MaxQueryText = 64 << 10
)

// extension is what the options of this package ask for of a consumer.
type extension struct {
	filter   string // a predicate; may be empty
	follow   bool
	until    time.Time // the zero Time: no end
	now      time.Time // what now() stands for; the zero Time: when the query or the first iteration begins
	local    bool
	rowLimit int64         // -1 = none
	maxRows  int64         // 0 = no bound
	maxBytes int64         // 0 = no bound
	timeout  time.Duration // 0 = none
	memory   int64
	compress uint32

	query *Query // nil when the consumer is not a query's
}

// option returns an option that changes the extension of a consumer.
func option(set func(*extension)) consumer.Option {
	return consumer.WithExtension(func(of consumer.Extension) consumer.Extension {
		e, ok := of.(*extension)
		if !ok {
			e = &extension{memory: DefaultQueryMemory, rowLimit: -1}
		}
		set(e)
		return e
	})
}

// Validate implements [consumer.Extension].
func (e *extension) Validate() error {
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
	return errors.Join(errs...)
}

// Adjust implements [consumer.Extension].
func (e *extension) Adjust(l *payload.Limits) {
	l.Until = e.until
	if e.query != nil {
		l.UntilEnd = !e.follow && !e.until.After(e.query.began)
		l.PrefetchBytes = max(min(l.PrefetchBytes, e.memory/2), 64<<10)
	}
}

// Filters implements [consumer.Extension].
func (e *extension) Filters() bool { return e.filter != "" }

// groups are the limits of a query's groups: half of the memory, the other half is for payloads.
func (e *extension) groups() aggregate.Limits { return aggregate.Limits{Bytes: e.memory / 2} }

// WithFollow has a query go on with what is written after it began, until its context ends. The default is to end at the tails that the
// shards had when it began.
func WithFollow() consumer.Option { return option(func(e *extension) { e.follow = true }) }

// WithUntil ends a query in front of what was persisted at or after t: rows whose _persisted is below t are in its answer. If t is yet to
// come the query waits for it.
func WithUntil(t time.Time) consumer.Option { return option(func(e *extension) { e.until = t }) }

// WithNow sets what now() stands for in a query or a filter; the default is the time at which it begins.
func WithNow(t time.Time) consumer.Option { return option(func(e *extension) { e.now = t }) }

// WithLocal has rows made here, from payloads as they are stored, and asks read proxies for no views. The answer is the same; it costs the
// network whole payloads, and this process the work.
func WithLocal() consumer.Option { return option(func(e *extension) { e.local = true }) }

// WithRowLimit ends an answer after n rows, as LIMIT does; the lower of the two holds.
func WithRowLimit(n int64) consumer.Option { return option(func(e *extension) { e.rowLimit = n }) }

// WithMaxRows ends a query with a [LimitError] when its answer has more rows. (LIMIT in the query is the way to get the first ones.)
func WithMaxRows(n int64) consumer.Option { return option(func(e *extension) { e.maxRows = n }) }

// WithMaxBytes ends a query with a [LimitError] when its answer takes more bytes, as Arrow batches.
func WithMaxBytes(n int64) consumer.Option { return option(func(e *extension) { e.maxBytes = n }) }

// WithTimeLimit ends an iteration of a query with a [LimitError] after so long.
func WithTimeLimit(d time.Duration) consumer.Option {
	return option(func(e *extension) { e.timeout = d })
}

// WithMaxMemory bounds what a query holds: half of it payloads and rows ahead of the loop, half of it groups, of which more end the query
// with an error. The default is [DefaultQueryMemory]. A payload that is larger by itself is held alone: 80 MiB, and what its rows take.
func WithMaxMemory(n int64) consumer.Option { return option(func(e *extension) { e.memory = n }) }

// Compression is how views come over the network.
type Compression uint32

// Compressions. None is best in one process or on one host, S2 costs little and Zstd is smallest.
const (
	CompressionNone Compression = 0
	CompressionZstd Compression = 2
	CompressionS2   Compression = codecS2
)

// WithCompression sets how views are to be compressed; the default is [CompressionNone].
func WithCompression(c Compression) consumer.Option {
	return option(func(e *extension) { e.compress = uint32(c) })
}

// Where has [consumer.Consumer.Records] leave out messages for which a predicate is not true: what stands behind WHERE in a query, over the
// columns of the category, for example
//
//	status >= 500 AND path LIKE '/api/%'
//
// It is evaluated like a query's: pointers to payloads that hold no such message are left out by the stream, as far as it knows. Of a
// message that is a batch of rows one row is enough. A checkpoint stays exact to the message. The predicate is bound to the schema that the
// category has when the first iteration begins; that one yields the error of a predicate that is wrong, a *sql.Error, if [consumer.New] did not
// find it. Not for [Batches] and [consumer.Consumer.SequencedBatches], which fail with [consumer.ErrFiltered]: see [NewQuery].
func Where(predicate string) consumer.Option {
	return option(func(e *extension) { e.filter = predicate })
}

// ErrLimit matches every [LimitError].
var ErrLimit = errors.New("consumer: a limit of the query was reached")

// LimitError says which limit ended a query. It matches [ErrLimit].
type LimitError struct {
	What  string // rows, bytes, time or memory
	Limit string // as it was set
	Hint  string // what to do about it
	Cause error  // says more; it may be nil
}

// Error says which limit it was, and what to do.
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
