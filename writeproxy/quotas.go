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
	// minHeld is what a waiting request takes beside its bytes: a goroutine, a timer, a connection's buffers.
	minHeld = 16 << 10
	// maxSleep bounds the pause of the first in a line: its quota may have been raised.
	maxSleep = time.Second
)

// quotas keeps the state of every category that has a quota and wrote lately. Categories share a lock with a few others, by id; it
// is held for as long as arithmetic takes.
type quotas struct {
	// proxies is how many write proxies share a quota.
	proxies func() int
	now     func() time.Duration
	// waiting bounds the memory of requests that wait.
	waiting *budget.Budget
	stripes [quotaStripes]quotaStripe
}

type quotaStripe struct {
	sync.Mutex
	byID map[uint32]*quota
}

func newQuotas(now func() time.Duration, proxies func() int, waiting int64) *quotas {
	if proxies == nil {
		proxies = func() int { return 1 }
	}
	q := &quotas{proxies: proxies, now: now, waiting: budget.New("requests that wait for a quota", waiting)}
	for i := range q.stripes {
		q.stripes[i].byID = make(map[uint32]*quota)
	}
	return q
}

// rate is this proxy's share of a category's quota, in bytes a second.
func (qs *quotas) rate(c *scribev1.Category) float64 {
	return float64(c.GetQuotaBytesPerSecond()) / float64(max(qs.proxies(), 1))
}

// of calls fn with a category's state, at its present rate.
func (qs *quotas) of(c *scribev1.Category, fn func(now time.Duration, q *quota)) {
	now, rate := qs.now(), qs.rate(c)
	s := &qs.stripes[c.GetId()%quotaStripes]
	s.Lock()
	defer s.Unlock()
	q := s.byID[c.GetId()]
	switch {
	case q == nil:
		s.forget(now)
		q = &quota{bucket: newBucket(now, rate)}
		s.byID[c.GetId()] = q
	case q.bucket.rate != rate:
		q.bucket.set(now, rate)
	}
	fn(now, q)
}

// waited calls fn with the state of a category that has a waiter, at the rate that requests since then have set.
func (qs *quotas) waited(id uint32, fn func(now time.Duration, q *quota)) {
	s := &qs.stripes[id%quotaStripes]
	s.Lock()
	defer s.Unlock()
	fn(qs.now(), s.byID[id])
}

// forget looks at a few states, which map iteration picks at random, and removes idle ones. Since it is called before one is added,
// about as many are kept as categories wrote lately.
func (s *quotaStripe) forget(now time.Duration) {
	looks := 3
	for id, q := range s.byID {
		if q.idle(now) {
			delete(s.byID, id)
		}
		if looks--; looks == 0 {
			return
		}
	}
}

// countCategories returns how many categories have a state.
func (qs *quotas) countCategories() (n int) {
	for i := range qs.stripes {
		s := &qs.stripes[i]
		s.Lock()
		n += len(s.byID)
		s.Unlock()
	}
	return n
}

// block charges as many of the frames, from the first on, as pass, and returns how many they are and when the next one passes.
func (qs *quotas) block(c *scribev1.Category, frames []*item) (n int, after time.Duration) {
	qs.of(c, func(now time.Duration, q *quota) {
		n = q.pass(now, func(yield func(int64) bool) {
			for _, it := range frames {
				if !yield(int64(len(it.bytes))) {
					return
				}
			}
		})
		after = q.wait(now)
	})
	return n, after
}

// sample decides about each frame, and sets the rate of those that are kept.
func (qs *quotas) sample(c *scribev1.Category, frames []*item) {
	qs.of(c, func(now time.Duration, q *quota) {
		for _, it := range frames {
			n := q.sampler.next(now, int64(len(it.bytes)), &q.bucket)
			it.leftOut = n == 0
			if n > 1 {
				it.sampleRate = scaled(it.sampleRate, n)
				it.resampled = true
			}
		}
	})
}

// enter lets frames of so many bytes pass (nil, nil), has them wait (a waiter, to be given to await), or refuses them since they
// would wait for longer than ctx lasts, or with more memory than there is for them. held is what waits with them.
func (qs *quotas) enter(ctx context.Context, c *scribev1.Category, bytes, held int64) (w *waiter, err error) {
	held = max(held, minHeld)
	qs.of(c, func(now time.Duration, q *quota) {
		if len(q.line.waiters) == 0 && q.bucket.ready(now) {
			q.bucket.charge(bytes)
			return
		}
		wait := q.wait(now)
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
			w = q.line.join(bytes, held)
		}
	})
	return w, err
}

// await returns when a waiter has passed, or why it does not. ended wakes it early when the proxy closes.
func (qs *quotas) await(ctx context.Context, c *scribev1.Category, w *waiter, ended <-chan struct{}) (err error) {
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
		qs.waited(c.GetId(), func(now time.Duration, q *quota) {
			if passed, after = q.serve(now, w); passed {
				err = nil
				return
			}
			if err == nil && ctx.Err() != nil {
				err = overQuota(c, q.wait(now))
			}
			if err != nil {
				q.line.leave(w)
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

// overQuota is what a producer is told: when there will be room.
func overQuota(c *scribev1.Category, after time.Duration) error {
	return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, after,
		"category %s is over its quota of %d bytes a second: try again in %v", c.GetName(), c.GetQuotaBytesPerSecond(), after.Round(time.Millisecond))
}
