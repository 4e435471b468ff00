package quota

import (
	"context"
	"sync"
	"time"

	"scribe/internal/base/lifecycle"
	"scribe/internal/role/budget"
)

const (
	stripes = 64
	// MinHeld is the minimum charge of a waiting request, in bytes: for a goroutine, a timer and a connection's buffers.
	MinHeld = 16 << 10
	// maxSleep bounds the sleep of the first waiter in a line, since its quota or its share may be raised meanwhile.
	maxSleep = 250 * time.Millisecond
)

// Registry has the states of quotas that were used recently. Quotas share locks; a lock is held only for arithmetic.
type Registry struct {
	// Short wakes who reports demands: something did not pass.
	Short lifecycle.WakeChannel
	// Waiting bounds the memory of requests that wait.
	Waiting *budget.Budget

	// sharers returns the number of processes that share the quotas.
	sharers func() int
	now     func() time.Duration
	stripes [stripes]stripe
}

type stripe struct {
	sync.Mutex
	byKey map[Key]*State
}

// NewRegistry returns a registry. now returns the time since any instant; sharers the number of processes that share the quotas, this
// one included, and may be nil for one. Requests that wait hold at most waiting bytes.
func NewRegistry(now func() time.Duration, sharers func() int, waiting int64) *Registry {
	if sharers == nil {
		sharers = func() int { return 1 }
	}
	q := &Registry{sharers: sharers, now: now, Waiting: budget.New("requests that wait for a quota", waiting), Short: lifecycle.NewWakeChannel()}
	for i := range q.stripes {
		q.stripes[i].byKey = make(map[Key]*State)
	}
	return q
}

// CountSharers returns the number of processes that share the quotas.
func (qs *Registry) CountSharers() int { return max(qs.sharers(), 1) }

// withState calls fn with a quota's state, at its current rate.
func (qs *Registry) withState(l Limit, fn func(now time.Duration, q *State)) {
	now := qs.now()
	s := &qs.stripes[l.stripe()]
	s.Lock()
	defer s.Unlock()
	q := s.byKey[l.Key]
	share := qs.shareAt(now, q)
	if q == nil {
		s.forgetIdle(now)
		q = newState(now, l, share)
		s.byKey[l.Key] = q
	}
	q.setLimit(now, l, share)
	fn(now, q)
}

// withKnown calls fn with the state of a quota if there is one, as requests have set it.
func (qs *Registry) withKnown(key Key, fn func(now time.Duration, q *State)) {
	s := &qs.stripes[key.stripe()]
	s.Lock()
	defer s.Unlock()
	if q := s.byKey[key]; q != nil {
		fn(qs.now(), q)
	}
}

// eachState calls fn with every state.
func (qs *Registry) eachState(fn func(now time.Duration, q *State)) {
	for i := range qs.stripes {
		s := &qs.stripes[i]
		s.Lock()
		now := qs.now()
		for _, q := range s.byKey {
			fn(now, q)
		}
		s.Unlock()
	}
}

// forgetIdle evicts idle states among a few random ones. It is called before a state is added, so that about as many are kept as
// quotas were used recently.
func (s *stripe) forgetIdle(now time.Duration) {
	looks := 3
	for key, q := range s.byKey {
		if q.isIdle(now) {
			delete(s.byKey, key)
		}
		if looks--; looks == 0 {
			return
		}
	}
}

// CountQuotas returns how many quotas have a state, and of how many of them more than the equal share is leased.
func (qs *Registry) CountQuotas() (known, leased int) {
	equal := qs.equalShare()
	qs.eachState(func(now time.Duration, q *State) {
		known++
		if now < q.lease.until && q.lease.share > equal {
			leased++
		}
	})
	return known, leased
}

// PassLeading charges a request whose parts have n sizes. It returns how many of the leading parts pass, and the time until the next one
// does.
func (qs *Registry) PassLeading(l Limit, n int, size func(i int) int64) (passed int, after time.Duration) {
	qs.withState(l, func(now time.Duration, q *State) {
		passed = q.passLeading(now, n, size)
		if passed < n {
			after = q.waitTime(now)
			qs.noteShort(q)
		}
	})
	return passed, after
}

// SampleParts decides about each part of a request whose parts have n sizes: decide gets how many parts it stands for, 0 if it is left out.
// Sampling is by bytes; a request beyond a limit of requests is refused: then it is false, with the time until one passes.
func (qs *Registry) SampleParts(l Limit, n int, size func(i int) int64, decide func(i int, rate uint32)) (after time.Duration, ok bool) {
	qs.withState(l, func(now time.Duration, q *State) {
		offered, passed := int64(0), int64(0)
		if ok = q.requests.IsReady(now); !ok {
			after = q.requests.WaitFor(0)
			q.use.offerRequest(now, 0)
			qs.noteShort(q)
			return
		}
		q.requests.Charge(1)
		for i := range n {
			bytes, rate := size(i), uint32(1)
			if l.Bytes > 0 {
				rate = q.sampler.SampleUnit(now, bytes, &q.bytes)
			}
			offered += bytes
			if rate > 0 {
				passed += bytes
			}
			if rate != 1 {
				qs.noteShort(q)
			}
			decide(i, rate)
		}
		q.use.offerRequest(now, offered)
		q.use.passed.addRequest(passed)
	})
	return after, ok
}

// EnterLine passes a request (nil, 0, true), queues it (a waiter for AwaitTurn, 0, true), or refuses it because it would wait beyond the
// deadline of ctx or exceed the memory for waiters (nil, the time until it would pass, false). held is the memory retained while it
// waits, in bytes.
func (qs *Registry) EnterLine(ctx context.Context, l Limit, bytes, held int64) (w *Waiter, after time.Duration, ok bool) {
	held = max(held, MinHeld)
	qs.withState(l, func(now time.Duration, q *State) {
		q.use.offerRequest(now, bytes)
		if len(q.line.waiters) == 0 && q.isReady(now) {
			q.chargeRequest(bytes)
			ok = true
			return
		}
		qs.noteShort(q)
		after = q.waitTime(now)
		deadline, limited := ctx.Deadline()
		switch {
		case limited && time.Until(deadline) <= after:
		// One category may have as much as it leaves to the others, so none takes all. The first to wait is let in if there is any.
		case len(q.line.waiters) > 0 && q.line.held+held > qs.Waiting.Limit()-qs.Waiting.Used():
		case qs.Waiting.Charge(held) != nil:
		default:
			w, after, ok = q.line.joinLine(bytes, held), 0, true
		}
	})
	return w, after, ok
}

// AwaitTurn waits until a waiter has passed. Otherwise it returns false: with the time until it would have passed if ctx ends first, or
// with 0 when ended is closed.
func (qs *Registry) AwaitTurn(ctx context.Context, l Limit, w *Waiter, ended <-chan struct{}) (passed bool, after time.Duration) {
	defer qs.Waiting.Release(w.held)
	timer := time.NewTimer(0)
	defer timer.Stop()
	gone := false
	for {
		select {
		case <-w.turn:
		case <-timer.C:
		case <-ended:
			gone = true
		case <-ctx.Done():
		}
		// A state with waiters is never evicted.
		qs.withKnown(l.Key, func(now time.Duration, q *State) {
			q.setLimit(now, q.limit, qs.shareAt(now, q))
			q.use.last = now
			if passed, after = q.serveWaiter(now, w); passed {
				return
			}
			if ctx.Err() != nil {
				after, gone = q.waitTime(now), true
			} else if gone {
				after = 0
			}
			if gone {
				q.line.leaveLine(w)
			}
		})
		if passed || gone {
			return passed, after
		}
		if after > 0 {
			timer.Reset(min(after, maxSleep))
		}
	}
}

// Refund takes back what a request was charged by quotas before a later one refused it, or some of its parts: their bytes, and the request
// itself if nothing of it is served.
func (qs *Registry) Refund(limits []Limit, bytes int64, request bool) {
	if bytes == 0 && !request {
		return
	}
	for i := range limits {
		qs.withKnown(limits[i].Key, func(now time.Duration, q *State) { q.refund(now, bytes, request) })
	}
}
