package sqlserver

import (
	"context"
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
)

// Runner carries queries out. Its methods are called by many goroutines.
type Runner interface {
	// Query binds a query. Reading begins with the first Next, and ends when ctx does: a result that is made for its schema alone
	// costs little. Errors that callers can do something about are *[Error].
	Query(ctx context.Context, req *Request) (Result, error)
	// Tables returns what can be queried, by name.
	Tables(ctx context.Context) ([]Table, error)
}

// Result is the answer to a query as it is read. One goroutine at a time uses it.
type Result interface {
	// Schema is that of every batch.
	Schema() *arrow.Schema
	// Next returns the next batch, which the caller releases, or io.EOF after the last one. Errors are as those of [Runner.Query].
	Next() (arrow.RecordBatch, error)
	// Stats are what was done up to now.
	Stats() Stats
	// Close gives up what is left. It is called once, after the last Next.
	Close()
}

// Request is a query and what goes with it.
type Request struct {
	SQL string
	// From is where reading begins, To the persisted time at which it ends; zero = at what was there when the query began.
	From Start
	To   time.Time
	// Follow goes on with what comes, until the client goes away.
	Follow bool
	// Limit is the most rows that are wanted, beside the query's own LIMIT; -1 = no bound.
	Limit int64
	// Timeout is how long it may run, if that is less than the gateway's bound; 0 = the gateway's.
	Timeout time.Duration
	// Memory is how many bytes the query may hold at a time. A single payload is read even if it is larger.
	Memory int64
}

// Start is where a query begins to read.
type Start struct {
	At StartAt
	// Time is a persisted time; only with StartTime.
	Time time.Time
}

// StartAt is a kind of Start.
type StartAt uint8

// Kinds of places. StartDefault is the earliest message, and for queries that follow the latest.
const (
	StartDefault  StartAt = 0
	StartEarliest StartAt = 1
	StartLatest   StartAt = 2
	StartTime     StartAt = 3
)

// Stats are what a query cost.
type Stats struct {
	// Category is what was queried.
	Category string
	// RowsRead were looked at, by whoever evaluated the predicate; BytesFetched came from read proxies; Pruned pointers were passed
	// over without fetching what they stand for.
	RowsRead     int64
	BytesFetched int64
	Pruned       int64
	// Rejected rows did not fit the category's schema and were left out, as its policy says; Errors are values that could not be computed,
	// which are null; Gaps are places at which messages were missing.
	Rejected int64
	Errors   int64
	Gaps     int64
}

// Table is a category as a query sees it.
type Table struct {
	Name   string
	Schema *arrow.Schema
}

// Kind says what has to be done about an error.
type Kind uint8

// Kinds of errors.
const (
	KindInternal    Kind = 0 // nobody knows
	KindInvalid     Kind = 1 // the query or its parameters are wrong
	KindUnknown     Kind = 2 // the category does not exist
	KindTooLarge    Kind = 3 // the request is too large
	KindLimit       Kind = 4 // the answer goes beyond a bound
	KindBusy        Kind = 5 // too many queries: later, or at another gateway
	KindUnavailable Kind = 6 // what the query needs does not answer: later
	KindTimeout     Kind = 7 // it took too long
	KindCancelled   Kind = 8 // the client went away
)

// String is the word for a kind in answers, logs and metrics.
func (k Kind) String() string {
	switch k {
	case KindInvalid:
		return "invalid"
	case KindUnknown:
		return "unknown_category"
	case KindTooLarge:
		return "too_large"
	case KindLimit:
		return "limit"
	case KindBusy:
		return "busy"
	case KindUnavailable:
		return "unavailable"
	case KindTimeout:
		return "timeout"
	case KindCancelled:
		return "cancelled"
	default:
		return "internal"
	}
}

// kinds are all of them.
var kinds = []Kind{
	KindInternal, KindInvalid, KindUnknown, KindTooLarge, KindLimit, KindBusy, KindUnavailable, KindTimeout, KindCancelled,
}

// Error is what a client is told.
type Error struct {
	Kind    Kind
	Message string
	// Line and Column, from 1, and Position, a byte from 0, are where in the query's text; Line is 0 when it is not about a place.
	Line, Column, Position int
	// Caret shows the place: the line of the text, and a line with a caret below it.
	Caret string
	// Hint says what may have been meant.
	Hint string
	// RetryAfter is when to try again; with KindBusy and KindUnavailable.
	RetryAfter time.Duration
}

// Error is the whole of it, over several lines when it shows a place.
func (e *Error) Error() string {
	text := e.Message
	if e.Caret != "" {
		text += "\n" + e.Caret
	} else if e.Line > 0 {
		text = fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, text)
	}
	if e.Hint != "" {
		text += "\nHINT: " + e.Hint
	}
	return text
}

func errorf(k Kind, format string, args ...any) *Error {
	return &Error{Kind: k, Message: fmt.Sprintf(format, args...)}
}
