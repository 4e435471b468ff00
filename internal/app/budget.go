package app

import (
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// budget bounds the bytes of request bodies that are read for a role which keeps no account of them itself.
type budget struct {
	limit int64
	used  atomic.Int64
}

// admit charges n bytes, or refuses with a hint; it is an rpc.Services.Admit.
func (b *budget) admit(n int64) (release func(), err error) {
	if used := b.used.Add(n); used > b.limit {
		b.used.Add(-n)
		return nil, rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, retryHint, "requests of %d bytes are being read, at most %d: try again later", used-n, b.limit)
	}
	return sync.OnceFunc(func() { b.used.Add(-n) }), nil
}

// retryHint is about how long a body takes to arrive and to be copied.
const retryHint = 20 * time.Millisecond
