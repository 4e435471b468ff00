package writeproxy

import (
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// memory is a bound on bytes. When it is reached, requests are refused with a hint; nothing waits.
type memory struct {
	limit int64
	used  atomic.Int64
}

// take charges n bytes and returns how to give them back, once.
func (m *memory) take(n int64) (release func(), err error) {
	if n > m.limit {
		return nil, rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "the request takes %d bytes, more than the write proxy's memory of %d: send less at once", n, m.limit)
	}
	if m.used.Add(n) > m.limit {
		m.used.Add(-n)
		return nil, rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, overloadHint,
			"the write proxy holds requests of %d bytes, at most %d: try again later", m.used.Load(), m.limit)
	}
	return sync.OnceFunc(func() { m.used.Add(-n) }), nil
}

// overloadHint is when to try again: requests stay for about as long as a commit takes.
const overloadHint = 50 * time.Millisecond

// retries is a token bucket that bounds attempts beyond the first: every request adds a share of a token, every further attempt
// takes one. So a backend that fails for everyone gets little more than the load that it would have anyway.
type retries struct {
	ratio float64
	limit float64

	mu struct {
		sync.Mutex
		tokens float64
	}
}

// maxRetryTokens is how many attempts can be saved up: enough for a batcher's restart at light load.
const maxRetryTokens = 100

func newRetries(ratio float64) *retries {
	r := &retries{ratio: ratio, limit: maxRetryTokens}
	if ratio > 0 {
		r.mu.tokens = r.limit
	}
	return r
}

func (r *retries) request() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.tokens = min(r.mu.tokens+r.ratio, r.limit)
}

func (r *retries) take() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.tokens < 1 {
		return false
	}
	r.mu.tokens--
	return true
}
