// Package budget bounds the bytes that a role buffers for its callers. A request charges its bytes before they are read or
// copied. If they do not fit, it is refused at once; it never waits. The refusal has a retry hint, derived from the recent
// release rate, so that callers return when space is likely to be free.
package budget

import (
	"sync"
	"time"

	"scribe/internal/base/account"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Budget is a bound on bytes. It is safe for concurrent use.
type Budget struct {
	what  string
	limit int64
	mu    struct {
		sync.Mutex
		account *account.Account
	}
}

// New returns a budget of limit bytes. what names its users in errors, for example "requests that the write proxy reads".
func New(what string, limit int64) *Budget {
	b := &Budget{what: what, limit: limit}
	b.mu.account = account.New(limit)
	return b
}

// Limit returns the bound in bytes.
func (b *Budget) Limit() int64 { return b.limit }

// Used returns the bytes that are charged.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.account.Used()
}

// UsedPart returns the part of the limit that is charged, 0 to 1.
func (b *Budget) UsedPart() float64 {
	return min(max(float64(b.Used())/float64(max(b.limit, 1)), 0), 1)
}

// Admit charges n bytes and returns a function that releases them; repeated calls of it are harmless. It fails with
// REASON_OVERLOADED and a retry hint if they do not fit now, and with REASON_TOO_LARGE if they never will.
func (b *Budget) Admit(n int64) (release func(), err error) {
	if err := b.Charge(n); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { b.Release(n) }), nil
}

// Charge is Admit for callers that call Release themselves, once.
func (b *Budget) Charge(n int64) error {
	if n > b.limit {
		return rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "%d bytes are more than all %s may take, %d: send less at once", n, b.what, b.limit)
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.account.Charge(now, n) {
		return nil
	}
	return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, b.mu.account.Hint(now, n-b.mu.account.Free()),
		"%s take %d bytes, at most %d: try again later", b.what, b.mu.account.Used(), b.limit)
}

// Release releases n charged bytes.
func (b *Budget) Release(n int64) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.account.Release(now, n)
}
