package sqlserver

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"scribe/consumer"
	"scribe/internal/role/restrict"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Queries and tails of callers who are limited to some rows and columns. The server reads as a member of the cell, who has no limits: it says with each request for whom it
// reads, and takes no answer of a process that does not say that it has heeded it.

// errLimits refuses to read under limits without connections on which they can be told.
var errLimits = errors.New("sqlserver: no connections to the cell on which a restriction can be told")

// clientOptions returns the options with which a consumer reads, under a restriction if it is not nil.
func (g *Server) clientOptions(r *restrict.Restriction) ([]consumer.Option, error) {
	switch t := g.deps.Transport; {
	case t != nil && r != nil:
		hc := t.HTTPClient()
		hc.Transport = &restrictedTransport{next: hc.Transport, says: r.Encode(), heeded: r.Digest().Text()}
		return []consumer.Option{consumer.WithHTTPClient(hc)}, nil
	case t != nil:
		return []consumer.Option{consumer.WithHTTPClient(t.HTTPClient())}, nil
	case r != nil:
		return nil, errLimits
	}
	return nil, nil
}

// restrictedTransport tells a restriction with each request.
type restrictedTransport struct {
	next         http.RoundTripper
	says, heeded string
}

// RoundTrip implements http.RoundTripper.
func (t *restrictedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context()) // it is the caller's
	r.Header.Set(restrict.Header, t.says)
	res, err := t.next.RoundTrip(r)
	if err != nil || res.Header.Get(restrict.Header) == t.heeded || isRefusal(res.StatusCode) {
		return res, err
	}
	_ = res.Body.Close() // nothing of it is looked at
	return nil, fmt.Errorf("the process at %s does not know grants that are limited to rows and columns: it is older than these, or does not know this process as a member of its cell", r.URL.Host)
}

// isRefusal reports whether an answer was given before anything was read for it.
func isRefusal(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return true
	}
	return false
}

// hasChanged reports whether an error of Rights says that the caller is limited to other rows and columns than when the query began.
func hasChanged(err error) bool { return rpc.ReasonOf(err) == scribev1.Reason_REASON_TICKET_EXPIRED }

// changedError is that for the client.
func changedError() *Error {
	return &Error{Kind: KindUnavailable, Message: "what you may see of the category has changed meanwhile: ask again", RetryAfter: time.Second}
}
