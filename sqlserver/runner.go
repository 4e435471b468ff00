package sqlserver

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"

	"scribe/consumer"
	"scribe/internal/role/restrict"
)

// Request is a query with its settings.
type Request struct {
	SQL string
	// Bound means that SQL is not the client's text, since values of parameters were put into it: places in it tell the client nothing.
	Bound bool
	// Reading begins at the persisted time FromTime, or as From says: "earliest", "latest", or "", which means earliest, and
	// latest for following queries. It ends at the persisted time To; the zero time means the end at the time when the query
	// began.
	From     string
	FromTime time.Time
	To       time.Time
	// Place is the checkpoint of a category at which reading begins instead; nil without one.
	Place *consumer.Start
	// Checkpoints has the answer tell the places after its rows, from which another query can go on.
	Checkpoints bool
	// Follow continues with new messages, until the client goes away.
	Follow bool
	// Limit is the maximum number of rows, in addition to the query's own LIMIT; -1 = no bound.
	Limit int64
	// Timeout bounds the query's time, if it is lower than the server's bound; 0 = the server's bound.
	Timeout time.Duration
	// limits are the rows and columns to which the caller is limited; nil = all.
	limits *restrict.Restriction
	// Memory bounds the query's memory in bytes. A single payload is read even if it is larger.
	Memory int64
}

// Values of Request.From.
const (
	fromEarliest = "earliest"
	fromLatest   = "latest"
)

// Kind is a class of errors, by what the client should do.
type Kind uint8

// Kinds of errors.
const (
	KindInternal    Kind = 0  // damaged data or a bug
	KindInvalid     Kind = 1  // the query or its parameters are wrong
	KindUnknown     Kind = 2  // the category does not exist
	KindTooLarge    Kind = 3  // the request is too large
	KindLimit       Kind = 4  // the answer exceeds a bound
	KindBusy        Kind = 5  // too many queries: retry later, or at another server
	KindUnavailable Kind = 6  // a dependency is unavailable: retry later
	KindTimeout     Kind = 7  // it took too long
	KindCancelled   Kind = 8  // the client went away
	KindDenied      Kind = 9  // the client may not do that
	KindUnproven    Kind = 10 // the client has not proved who it is
)

// kinds are the representations of each kind: its word in answers, logs and metrics, its HTTP status and its gRPC code.
var kinds = [...]struct {
	word   string
	status int
	code   codes.Code
}{
	KindInternal:    {"internal", http.StatusInternalServerError, codes.Internal},
	KindInvalid:     {"invalid", http.StatusBadRequest, codes.InvalidArgument},
	KindDenied:      {"denied", http.StatusForbidden, codes.PermissionDenied},
	KindUnproven:    {"unauthenticated", http.StatusUnauthorized, codes.Unauthenticated},
	KindUnknown:     {"unknown_category", http.StatusNotFound, codes.NotFound},
	KindTooLarge:    {"too_large", http.StatusRequestEntityTooLarge, codes.InvalidArgument},
	KindLimit:       {"limit", http.StatusUnprocessableEntity, codes.ResourceExhausted},
	KindBusy:        {"busy", http.StatusTooManyRequests, codes.ResourceExhausted},
	KindUnavailable: {"unavailable", http.StatusServiceUnavailable, codes.Unavailable},
	KindTimeout:     {"timeout", http.StatusGatewayTimeout, codes.DeadlineExceeded},
	KindCancelled:   {"cancelled", http.StatusServiceUnavailable, codes.Canceled}, // the client went away and does not see the status
}

// String returns the kind's word.
func (k Kind) String() string { return kinds[k].word }

// Error is an error as clients see it.
type Error struct {
	Kind    Kind
	Message string
	// Line and Column, from 1, and Position, a byte offset from 0, locate the error in the query's text; Line is 0 if the error
	// has no location.
	Line, Column, Position int
	// Caret shows the location: the line of the text, and a line with a caret below it.
	Caret string
	// Hint suggests a correction.
	Hint string
	// RetryAfter is the retry hint of KindBusy and KindUnavailable.
	RetryAfter time.Duration

	status int // the HTTP status; 0 = the kind's
}

// Error returns all fields as text, in several lines if it has a location.
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

// withoutPlace returns an error without its location in the query's text.
func (e *Error) withoutPlace() *Error {
	placeless := *e
	placeless.Line, placeless.Column, placeless.Position, placeless.Caret = 0, 0, 0, ""
	return &placeless
}

// errorOf returns an error as the client sees it: one that is not an *Error is internal.
func errorOf(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Kind: KindInternal, Message: err.Error()}
}

func errorf(k Kind, format string, args ...any) *Error {
	return &Error{Kind: k, Message: fmt.Sprintf(format, args...)}
}
