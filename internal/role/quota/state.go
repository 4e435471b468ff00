package quota

import "time"

// idleAfter is how long a category must not have been used before its state is forgotten. It is longer than a lease, and than the
// time between two reports, so that nothing is forgotten that was not reported.
const idleAfter = 2 * LeaseTime

// State is the state of one quota in this process, in any mode.
type State struct {
	limit    Limit
	bytes    Bucket
	requests Bucket
	sampler  Sampler
	line     waitLine
	use      usage
	lease    lease
}

func newState(now time.Duration, l Limit, share float64) *State {
	return &State{
		limit: l, bytes: NewBucket(now, float64(l.Bytes)*share), requests: NewBucket(now, float64(l.Requests)*share),
		use: usage{since: now, last: now},
	}
}

// setLimit adapts the buckets to the quota and to the share of it that the process has now.
func (q *State) setLimit(now time.Duration, l Limit, share float64) {
	q.limit = l
	if rate := float64(l.Bytes) * share; rate != q.bytes.rate {
		q.bytes.SetRate(now, rate)
	}
	if rate := float64(l.Requests) * share; rate != q.requests.rate {
		q.requests.SetRate(now, rate)
	}
}

// isReady reports whether the next charge passes.
func (q *State) isReady(now time.Duration) bool {
	return q.bytes.IsReady(now) && q.requests.IsReady(now)
}

// chargeRequest charges a request of some bytes.
func (q *State) chargeRequest(bytes int64) {
	q.bytes.Charge(float64(bytes))
	q.requests.Charge(1)
	q.use.passed.addRequest(bytes)
}

// passLeading charges the leading ones of n sizes that pass, as one request, and returns their number. None overtakes one that does not
// pass.
func (q *State) passLeading(now time.Duration, n int, size func(i int) int64) (passed int) {
	sum, owed := int64(0), q.mayOwe(now)
	if len(q.line.waiters) == 0 && q.bytes.isReadyOwing(now, owed) && q.requests.IsReady(now) {
		for ; passed < n && q.bytes.isReadyOwing(now, owed); passed++ {
			q.bytes.Charge(float64(size(passed)))
			sum += size(passed)
		}
		q.requests.Charge(1)
		q.use.passed.addRequest(sum)
	}
	for i := passed; i < n; i++ {
		sum += size(i)
	}
	q.use.offerRequest(now, sum)
	return passed
}

// mayOwe returns the debt of bytes beside which a request passes that is blocked where others are sampled. A sampler passes as much as there is, and less the more is owed:
// with a debt of a burst the half. So what is blocked gets what it needs of the other half, and nothing more while nothing is sampled.
func (q *State) mayOwe(now time.Duration) float64 {
	if !q.limit.BesideSampled || q.sampler.offered.rateAt(now, sampleMemory) < q.bytes.rate/100 {
		return 0
	}
	return burstOf(q.bytes.rate)
}

// waitTime returns the time until a request passes that comes after all current waiters.
func (q *State) waitTime(now time.Duration) time.Duration {
	q.bytes.refill(now)
	q.requests.refill(now)
	return max(q.bytes.WaitFor(float64(q.line.bytes)-q.mayOwe(now)), q.requests.WaitFor(float64(len(q.line.waiters))))
}

// serveWaiter passes a waiter if it is its turn. Otherwise it returns the time until the buckets are ready, or 0 if other waiters
// come first.
func (q *State) serveWaiter(now time.Duration, w *Waiter) (passed bool, after time.Duration) {
	if q.line.waiters[0] != w {
		return false, 0
	}
	if !q.isReady(now) {
		return false, max(q.bytes.WaitFor(0), q.requests.WaitFor(0))
	}
	q.chargeRequest(w.bytes)
	q.line.leaveLine(w)
	return true, 0
}

// refund takes back a charge for bytes, and for a request if it was not served at all.
func (q *State) refund(now time.Duration, bytes int64, request bool) {
	q.bytes.Refund(now, float64(bytes))
	q.use.passed.bytes -= float64(bytes)
	if request {
		q.requests.Refund(now, 1)
		q.use.passed.requests--
	}
}

// isIdle reports whether the state can be evicted, because a new one would be equivalent and everything has been reported.
func (q *State) isIdle(now time.Duration) bool {
	return len(q.line.waiters) == 0 && now-q.use.last > idleAfter && q.bytes.isFull(now) && q.requests.isFull(now) &&
		(q.bytes.rate <= 0 || q.sampler.offered.rateAt(now, sampleMemory) < q.bytes.rate/1000)
}
