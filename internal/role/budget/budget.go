package budget

import (
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Budget is a bound on bytes. It is safe for concurrent use.
type Budget struct {
	what    string
	limit   int64
	started time.Time

	used     atomic.Int64
	returned atomic.Int64 // bytes given back in all
	// next is when the speed is measured again, since started; whoever passes it first does.
	next atomic.Int64

	mu struct {
		sync.Mutex
		drain drain
	}
}

// New returns a budget of limit bytes. what names those who share it, for errors: "requests that the write proxy holds".
func New(what string, limit int64) *Budget {
	return &Budget{what: what, limit: limit, started: time.Now()}
}

// Limit returns the bound in bytes.
func (b *Budget) Limit() int64 { return b.limit }

// Used returns the bytes that are charged.
func (b *Budget) Used() int64 { return b.used.Load() }

// Take charges n bytes and returns how to give them back; calling that again is harmless. It refuses with REASON_OVERLOADED and a
// hint when they do not fit now, and with REASON_TOO_LARGE when they never will.
func (b *Budget) Take(n int64) (release func(), err error) {
	if err := b.Charge(n); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { b.Return(n) }), nil
}

// Charge is Take for callers that give the bytes back by Return, once.
func (b *Budget) Charge(n int64) error {
	if n > b.limit {
		return rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "%d bytes are more than all %s may take, %d: send less at once", n, b.what, b.limit)
	}
	used := b.used.Add(n)
	if used > b.limit {
		used = b.used.Add(-n)
		return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, b.hint(used+n-b.limit),
			"%s take %d bytes, at most %d: try again later", b.what, used, b.limit)
	}
	if used == n {
		// Nothing was held, so nothing could be given back: that time says nothing of the speed.
		b.resume()
	}
	return nil
}

// Return gives n bytes back that were charged.
func (b *Budget) Return(n int64) {
	b.returned.Add(n)
	b.used.Add(-n)
	if now := time.Since(b.started); int64(now) >= b.next.Load() && b.mu.TryLock() {
		b.measure(now)
		b.mu.Unlock()
	}
}

// resume begins to measure after a time in which nothing was held.
func (b *Budget) resume() {
	now := time.Since(b.started)
	if int64(now) < b.next.Load() || !b.mu.TryLock() {
		return
	}
	defer b.mu.Unlock()
	b.mu.drain.resume(now, b.returned.Load())
	b.next.Store(int64(now + interval))
}

// measure is called with b.mu held.
func (b *Budget) measure(now time.Duration) {
	b.mu.drain.observe(now, b.returned.Load())
	b.next.Store(int64(now + interval))
}

// hint is when need bytes will have been given back.
func (b *Budget) hint(need int64) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := time.Since(b.started); int64(now) >= b.next.Load() {
		b.measure(now)
	}
	return b.mu.drain.hint(need)
}
