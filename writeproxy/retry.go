package writeproxy

import "sync/atomic"

// retries is a token bucket that bounds attempts beyond the first: every request adds a share of a token, every further attempt
// takes one. So a backend that fails for everyone gets little more than the load that it would have anyway.
type retries struct {
	share  int64
	tokens atomic.Int64 // in millionths
}

const (
	token = 1_000_000
	// maxRetryTokens is how many attempts can be saved up: enough for a batcher's restart at light load.
	maxRetryTokens = 100
)

func newRetries(ratio float64) *retries {
	r := &retries{share: int64(ratio * token)}
	if ratio > 0 {
		r.tokens.Store(maxRetryTokens * token)
	}
	return r
}

func (r *retries) request() {
	for {
		have := r.tokens.Load()
		if have >= maxRetryTokens*token || r.tokens.CompareAndSwap(have, min(have+r.share, maxRetryTokens*token)) {
			return
		}
	}
}

func (r *retries) take() bool {
	for {
		have := r.tokens.Load()
		if have < token {
			return false
		}
		if r.tokens.CompareAndSwap(have, have-token) {
			return true
		}
	}
}
