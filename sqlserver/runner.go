package sqlserver

import (
	"fmt"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"
)

// Request is a query and what goes with it.
type Request struct {
	SQL string
	// Reading begins at FromTime, a persisted time, or where From says: "earliest", "latest", or "" for the earliest message, and the latest for
	// queries that follow. It ends at the persisted time To; zero = at what was there when the query began.
	From     string
	FromTime time.Time
	To       time.Time
	// Follow goes on with what comes, until the client goes away.
	Follow bool
	// Limit is the most rows that are wanted, beside the query's own LIMIT; -1 = no bound.
	Limit int64
	// Timeout is how long it may run, if that is less than the server's bound; 0 = the server's.
	Timeout time.Duration
	// Memory is how many bytes the query may hold at a time. A single payload is read even if it is larger.
	Memory int64
}

// What Request.From may be.
const (
	fromEarliest = "earliest"
	fromLatest   = "latest"
)

// Kind says what has to be done about an error.
type Kind uint8

// Kinds of errors.
const (
	KindInternal    Kind = 0 // nobody knows
	KindInvalid     Kind = 1 // the query or its parameters are wrong
	KindUnknown     Kind = 2 // the category does not exist
	KindTooLarge    Kind = 3 // the request is too large
	KindLimit       Kind = 4 // the answer goes beyond a bound
	KindBusy        Kind = 5 // too many queries: later, or at another server
	KindUnavailable Kind = 6 // what the query needs does not answer: later
	KindTimeout     Kind = 7 // it took too long
	KindCancelled   Kind = 8 // the client went away
)

// kinds says how each kind is told: its word in answers, logs and metrics, the status of HTTP and the code of gRPC.
var kinds = [...]struct {
	word   string
	status int
	code   codes.Code
}{
	KindInternal:    {"internal", http.StatusInternalServerError, codes.Internal},
	KindInvalid:     {"invalid", http.StatusBadRequest, codes.InvalidArgument},
	KindUnknown:     {"unknown_category", http.StatusNotFound, codes.NotFound},
	KindTooLarge:    {"too_large", http.StatusRequestEntityTooLarge, codes.InvalidArgument},
	KindLimit:       {"limit", http.StatusUnprocessableEntity, codes.ResourceExhausted},
	KindBusy:        {"busy", http.StatusTooManyRequests, codes.ResourceExhausted},
	KindUnavailable: {"unavailable", http.StatusServiceUnavailable, codes.Unavailable},
	KindTimeout:     {"timeout", http.StatusGatewayTimeout, codes.DeadlineExceeded},
	KindCancelled:   {"cancelled", http.StatusServiceUnavailable, codes.Canceled}, // nobody reads the status: the client went away
}

// String is the word for a kind.
func (k Kind) String() string { return kinds[k].word }

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
