package consumer

import (
	"errors"
	"fmt"
	"time"

	"scribe/columnar/aggregate"
)

// Limits of queries.
const (
	// DefaultQueryMemory bounds the memory of a query, see [WithMaxMemory].
	DefaultQueryMemory = 256 << 20
	// MaxQueryText bounds the text of a query, in bytes.
	MaxQueryText = 64 << 10
)

// queryConfig is what the options say of a query.
type queryConfig struct {
	follow   bool
	until    time.Time // the zero Time: no end
	now      time.Time // what now() stands for; the zero Time: when the query begins
	local    bool
	rowLimit int64         // -1 = none
	maxRows  int64         // 0 = no bound
	maxBytes int64         // 0 = no bound
	timeout  time.Duration // 0 = none
	memory   int64
	compress uint32
}

func defaultQueryConfig() queryConfig {
	return queryConfig{memory: DefaultQueryMemory, rowLimit: -1}
}

func (c *queryConfig) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("consumer: "+format, args...))
		}
	}
	check(c.maxRows >= 0, "WithMaxRows: %d is negative", c.maxRows)
	check(c.rowLimit >= -1, "WithRowLimit: %d is negative", c.rowLimit)
	check(c.maxBytes >= 0, "WithMaxBytes: %d is negative", c.maxBytes)
	check(c.timeout >= 0, "WithTimeLimit: %v is negative", c.timeout)
	check(c.memory >= 1<<20, "WithMaxMemory: %d is below %d", c.memory, 1<<20)
	check(!c.follow || c.until.IsZero(), "WithFollow: beside WithUntil, which says where the query ends")
	return errors.Join(errs...)
}

// groups are the limits of a query's groups: half of the memory, the other half is for payloads.
func (c *queryConfig) groups() aggregate.Limits { return aggregate.Limits{Bytes: c.memory / 2} }

// WithFollow has a query go on with what is written after it began, until its context ends. The default is to end at the tails that the
// shards had when it began.
func WithFollow() Option { return option(func(c *config) { c.query.follow = true }) }

// WithUntil ends a query in front of what was persisted at or after t: rows whose _persisted is below t are in its answer. If t is yet to
// come the query waits for it.
func WithUntil(t time.Time) Option { return option(func(c *config) { c.query.until = t }) }

// WithNow sets what now() stands for in a query or a filter; the default is the time at which it begins.
func WithNow(t time.Time) Option { return option(func(c *config) { c.query.now = t }) }

// WithLocal has rows made here, from payloads as they are stored, and asks read proxies for no views. The answer is the same; it costs the
// network whole payloads, and this process the work.
func WithLocal() Option { return option(func(c *config) { c.query.local = true }) }

// WithRowLimit ends an answer after n rows, as LIMIT does; the lower of the two holds.
func WithRowLimit(n int64) Option { return option(func(c *config) { c.query.rowLimit = n }) }

// WithMaxRows ends a query with a [LimitError] when its answer has more rows. (LIMIT in the query is the way to get the first ones.)
func WithMaxRows(n int64) Option { return option(func(c *config) { c.query.maxRows = n }) }

// WithMaxBytes ends a query with a [LimitError] when its answer takes more bytes, as Arrow batches.
func WithMaxBytes(n int64) Option { return option(func(c *config) { c.query.maxBytes = n }) }

// WithTimeLimit ends an iteration of a query with a [LimitError] after so long.
func WithTimeLimit(d time.Duration) Option { return option(func(c *config) { c.query.timeout = d }) }

// WithMaxMemory bounds what a query holds: half of it payloads and rows ahead of the loop, half of it groups, of which more end the query
// with an error. The default is [DefaultQueryMemory]. A payload that is larger by itself is held alone: 80 MiB, and what its rows take.
func WithMaxMemory(n int64) Option { return option(func(c *config) { c.query.memory = n }) }

// Compression is how views come over the network.
type Compression uint32

// Compressions. None is best in one process or on one host, S2 costs little and Zstd is smallest.
const (
	CompressionNone Compression = 0
	CompressionZstd Compression = 2
	CompressionS2   Compression = codecS2
)

// WithCompression sets how views are to be compressed; the default is [CompressionNone].
func WithCompression(c Compression) Option {
	return option(func(cfg *config) { cfg.query.compress = uint32(c) })
}

// WithFilter has [Consumer.Records] leave out messages for which a predicate is not true: what stands behind WHERE in a query, over the
// columns of the category, for example
//
//	status >= 500 AND path LIKE '/api/%'
//
// It is evaluated like a query's: pointers to payloads that hold no such message are left out by the stream, as far as it knows. Of a
// message that is a batch of rows one row is enough. A checkpoint stays exact to the message. The predicate is bound to the schema that the
// category has when the first iteration begins; that one yields the error of a predicate that is wrong, a *sql.Error, if [New] did not
// find it. Not for [Consumer.Batches] and [Consumer.SequencedBatches], which refuse it: see [NewQuery].
func WithFilter(predicate string) Option { return option(func(c *config) { c.filter = predicate }) }

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
