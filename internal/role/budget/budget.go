// Package budget bounds the bytes that a role buffers for others. A request charges its bytes before they are read or copied, and is
// refused at once when they do not fit: nothing waits. A refusal says when to try again, from how fast bytes were released lately, so
// that callers come back when there is likely to be space, neither sooner nor much later.
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

// New returns a budget of limit bytes. what names those who share it, for errors: "requests that the write proxy reads".
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

// Admit charges n bytes and returns how to release them; calling that again is harmless. It refuses with REASON_OVERLOADED and a
// retry hint when they do not fit now, and with REASON_TOO_LARGE when they never will.
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

// Release gives n charged bytes back.
func (b *Budget) Release(n int64) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.account.Release(now, n)
}
