package inflight

import "time"

// Window bounds the bytes in flight of requests that follow one another: as much as the way to the server and back holds (bandwidth
// times delay), and no more, since what is queued at the server only costs it memory. It is a plain state machine, and not safe for
// concurrent use.
//
// It begins with one request at a time. While the answers of a server say that it keeps the order, the window grows by what is
// answered, as long as it is used up and the requests do not take much longer than the quickest one did lately; it shrinks when
// they do. A request that came out of order closes it for some time: the way there does not keep the order for now.
type Window struct {
	// First is the limit in bytes with which the window opens.
	First int64
	// limit is 0 while requests go one at a time.
	limit    int64
	inFlight int64
	// quickest is the time of the quickest answer since quickestAt, or shortly before.
	quickest   time.Duration
	quickestAt time.Time
	// closedTill is when it may open again, after the penalty.
	closedTill time.Time
	penalty    time.Duration
}

// WindowParts is how many requests a window is divided into, if they are not too large.
const WindowParts = 4

const (
	// maxWindow is the largest limit: memory bounds it first.
	maxWindow = 256 << 20
	// Above slowFactor times the quickest answer the window shrinks, below it grows.
	slowFactor = 4
	// quickestAge is how long the quickest answer counts.
	quickestAge = 10 * time.Second
	// firstPenalty and maxPenalty are how long a window is closed: the penalty doubles until an answer comes in order.
	firstPenalty = 100 * time.Millisecond
	maxPenalty   = 10 * time.Second
)

// IsClosed reports whether requests go one at a time.
func (w *Window) IsClosed() bool { return w.limit == 0 }

// Space returns how many bytes may be sent beside those in flight.
func (w *Window) Space() int64 { return max(w.limit-w.inFlight, 0) }

// InFlight returns the bytes in flight.
func (w *Window) InFlight() int64 { return w.inFlight }

// WorthSending returns how many bytes are worth a request beside others, if a request has at most largest bytes.
func (w *Window) WorthSending(largest int64) int64 { return min(w.limit/WindowParts, largest) }

// NoteSent notes n bytes that were sent. It reports whether they make use of the window.
func (w *Window) NoteSent(n int64) (used bool) {
	w.inFlight += n
	return w.inFlight > w.limit/2
}

// NoteAnswer notes the answer of a request with n bytes that took a time. used is what NoteSent said; ordered says that the server
// keeps the order of requests.
func (w *Window) NoteAnswer(now time.Time, n int64, used bool, took time.Duration, ordered bool) {
	w.inFlight -= n
	if !ordered || now.Before(w.closedTill) {
		w.limit = 0
		return
	}
	if w.quickest == 0 || took <= w.quickest || now.Sub(w.quickestAt) > quickestAge {
		w.quickest, w.quickestAt = took, now
	}
	switch {
	case w.limit == 0:
		w.limit = w.First
	case took > slowFactor*w.quickest:
		w.limit = max(w.limit-w.limit/8, w.First)
	case used:
		w.limit = min(w.limit+n, maxWindow)
	}
	if w.limit > WindowParts*w.First {
		w.penalty = 0 // whole windows came in order
	}
}

// NoteFailure notes a request with n bytes of which frames are to be sent again. outOfOrder says that one came out of order.
func (w *Window) NoteFailure(now time.Time, n int64, outOfOrder bool) {
	w.inFlight -= n
	if w.limit > w.First {
		w.limit = max(w.limit/2, w.First)
	}
	if outOfOrder && !now.Before(w.closedTill) {
		w.penalty = min(max(2*w.penalty, firstPenalty), maxPenalty)
		w.closedTill, w.limit = now.Add(w.penalty), 0
	}
}
