package producer

import "time"

// sendWindow bounds the bytes of a stream that are in flight: as much as the way to the server and back holds (bandwidth times
// delay), and no more, since what is queued at the server only costs it memory. It is a plain state machine.
//
// It begins with one request at a time. While the answers of a server say that it keeps the order, the window grows by what is
// answered, as long as it is used up and the requests do not take much longer than the quickest one did lately; it shrinks when
// they do. A request that came out of order closes it for some time: the way there does not keep the order for now.
type sendWindow struct {
	// first is the limit with which the window opens: windowParts full frames.
	first int64
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

const (
	// maxWindow is the largest limit: memory bounds it first.
	maxWindow = 256 << 20
	// windowParts is how many requests a window is divided into, if they are not too large.
	windowParts = 4
	// Above slowFactor times the quickest answer the window shrinks, below it grows.
	slowFactor = 4
	// quickestAge is how long the quickest answer counts.
	quickestAge = 10 * time.Second
	// firstPenalty and maxPenalty are how long a window is closed: the penalty doubles until an answer comes in order.
	firstPenalty = 100 * time.Millisecond
	maxPenalty   = 10 * time.Second
)

// isOpen reports whether n more bytes may be sent beside those in flight.
func (w *sendWindow) isOpen(n int) bool { return w.inFlight+int64(n) <= w.limit }

// worthSending returns how many bytes are worth a request beside others.
func (w *sendWindow) worthSending() int { return int(min(w.limit/windowParts, maxRequest)) }

// noteSent notes n bytes that were sent. It reports whether they make use of the window.
func (w *sendWindow) noteSent(n int64) (used bool) {
	w.inFlight += n
	return w.inFlight > w.limit/2
}

// noteAnswer notes the answer of a request with n bytes that took a time. used is what noteSent said; ordered says that the server
// keeps the order of requests.
func (w *sendWindow) noteAnswer(now time.Time, n int64, used bool, took time.Duration, ordered bool) {
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
		w.limit = w.first
	case took > slowFactor*w.quickest:
		w.limit = max(w.limit-w.limit/8, w.first)
	case used:
		w.limit = min(w.limit+n, maxWindow)
	}
	if w.limit > windowParts*w.first {
		w.penalty = 0 // whole windows came in order
	}
}

// noteFailure notes a request with n bytes of which frames are to be sent again. outOfOrder says that one came out of order.
func (w *sendWindow) noteFailure(now time.Time, n int64, outOfOrder bool) {
	w.inFlight -= n
	if w.limit > w.first {
		w.limit = max(w.limit/2, w.first)
	}
	if outOfOrder && !now.Before(w.closedTill) {
		w.penalty = min(max(2*w.penalty, firstPenalty), maxPenalty)
		w.closedTill, w.limit = now.Add(w.penalty), 0
	}
}
