package writeproxy

import (
	"context"
	"sync"
	"time"

	"scribe/internal/role/budget"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

const (
	quotaStripes = 64
	// minHeld is the minimum charge of a waiting request, in bytes: for a goroutine, a timer and a connection's buffers.
	minHeld = 16 << 10
	// maxSleep bounds the sleep of the first waiter in a line, since its quota may be raised meanwhile.
	maxSleep = time.Second
)

// quotaRegistry has the quota states of categories that were written to recently. Categories share locks, by id; a lock is held
// only for arithmetic.
type quotaRegistry struct {
	// proxies returns the number of write proxies that share a quota.
	proxies func() int
	now     func() time.Duration
	// waiting bounds the memory of requests that wait.
	waiting *budget.Budget
	stripes [quotaStripes]quotaStripe
}

type quotaStripe struct {
	sync.Mutex
	byID map[uint32]*quotaState
}

func newQuotaRegistry(now func() time.Duration, proxies func() int, waiting int64) *quotaRegistry {
	if proxies == nil {
		proxies = func() int { return 1 }
	}
	q := &quotaRegistry{proxies: proxies, now: now, waiting: budget.New("requests that wait for a quota", waiting)}
	for i := range q.stripes {
		q.stripes[i].byID = make(map[uint32]*quotaState)
	}
	return q
}

// shareOf returns this proxy's share of a category's quota, in bytes a second.
func (qs *quotaRegistry) shareOf(c *scribev1.Category) float64 {
	return float64(c.GetQuotaBytesPerSecond()) / float64(max(qs.proxies(), 1))
}

// withQuota calls fn with a category's state, at its current rate.
func (qs *quotaRegistry) withQuota(c *scribev1.Category, fn func(now time.Duration, q *quotaState)) {
	now, rate := qs.now(), qs.shareOf(c)
	s := &qs.stripes[c.GetId()%quotaStripes]
	s.Lock()
	defer s.Unlock()
	q := s.byID[c.GetId()]
	switch {
	case q == nil:
		s.forgetIdle(now)
		q = &quotaState{bucket: newDebtBucket(now, rate)}
		s.byID[c.GetId()] = q
	case q.bucket.rate != rate:
		q.bucket.setRate(now, rate)
	}
	fn(now, q)
}

// withWaiting calls fn with the state of a category that has a waiter, at the rate that requests since then have set.
func (qs *quotaRegistry) withWaiting(id uint32, fn func(now time.Duration, q *quotaState)) {
	s := &qs.stripes[id%quotaStripes]
	s.Lock()
	defer s.Unlock()
	fn(qs.now(), s.byID[id])
}

// forgetIdle evicts idle states among a few random ones. It is called before a state is added, so that about as many are kept as
// categories were written to recently.
func (s *quotaStripe) forgetIdle(now time.Duration) {
	looks := 3
	for id, q := range s.byID {
		if q.isIdle(now) {
			delete(s.byID, id)
		}
		if looks--; looks == 0 {
			return
		}
	}
}

// countCategories returns how many categories have a state.
func (qs *quotaRegistry) countCategories() (n int) {
	for i := range qs.stripes {
		s := &qs.stripes[i]
		s.Lock()
		n += len(s.byID)
		s.Unlock()
	}
	return n
}

// blockFrames charges the leading frames that pass. It returns their number, and the time until the next one passes.
func (qs *quotaRegistry) blockFrames(c *scribev1.Category, frames []*frameItem) (n int, after time.Duration) {
	qs.withQuota(c, func(now time.Duration, q *quotaState) {
		n = q.passFrames(now, frames)
		after = q.waitTime(now)
	})
	return n, after
}

// sampleFrames decides about each frame, and sets the rate of those that are kept.
func (qs *quotaRegistry) sampleFrames(c *scribev1.Category, frames []*frameItem) {
	qs.withQuota(c, func(now time.Duration, q *quotaState) {
		for _, it := range frames {
			n := q.sampler.sampleFrame(now, int64(len(it.bytes)), &q.bucket)
			it.leftOut = n == 0
			if n > 1 {
				it.sampleRate = scaleRate(it.sampleRate, n)
				it.resampled = true
			}
		}
	})
}

// enterLine passes frames (nil, nil), queues them (a waiter for awaitTurn), or refuses them because they would wait beyond the
// deadline of ctx or exceed the memory for waiters. held is the memory retained while they wait, in bytes.
func (qs *quotaRegistry) enterLine(ctx context.Context, c *scribev1.Category, bytes, held int64) (w *quotaWaiter, err error) {
	held = max(held, minHeld)
	qs.withQuota(c, func(now time.Duration, q *quotaState) {
		if len(q.line.waiters) == 0 && q.bucket.isReady(now) {
			q.bucket.chargeBytes(bytes)
			return
		}
		wait := q.waitTime(now)
		deadline, ok := ctx.Deadline()
		switch {
		case ok && time.Until(deadline) <= wait:
			err = overQuota(c, wait)
		// One category may have as much as it leaves to the others, so none takes all. The first to wait is let in if there is any.
		case len(q.line.waiters) > 0 && q.line.held+held > qs.waiting.Limit()-qs.waiting.Used():
			err = overQuota(c, wait)
		case qs.waiting.Charge(held) != nil:
			err = overQuota(c, wait)
		default:
			w = q.line.joinLine(bytes, held)
		}
	})
	return w, err
}

// awaitTurn waits until a waiter has passed, or returns the error if it does not. ended is closed when the proxy closes.
func (qs *quotaRegistry) awaitTurn(ctx context.Context, c *scribev1.Category, w *quotaWaiter, ended <-chan struct{}) (err error) {
	defer qs.waiting.Release(w.held)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-w.turn:
		case <-timer.C:
		case <-ended:
			err = errShutDown()
		case <-ctx.Done():
		}
		passed, after := false, time.Duration(0)
		qs.withWaiting(c.GetId(), func(now time.Duration, q *quotaState) {
			if passed, after = q.serveWaiter(now, w); passed {
				err = nil
				return
			}
			if err == nil && ctx.Err() != nil {
				err = overQuota(c, q.waitTime(now))
			}
			if err != nil {
				q.line.leaveLine(w)
			}
		})
		if passed || err != nil {
			return err
		}
		if after > 0 {
			timer.Reset(min(after, maxSleep))
		}
	}
}

// overQuota returns the error for frames over a quota, with a retry hint.
func overQuota(c *scribev1.Category, after time.Duration) error {
	return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, after,
		"category %s is over its quota of %d bytes a second: try again in %v", c.GetName(), c.GetQuotaBytesPerSecond(), after.Round(time.Millisecond))
}
