// Package backoff bounds the rate and the number of retries. It does not classify errors: package transport/retry tells which
// errors are retryable, and their retry hints.
//
//	pauses := backoff.Backoff{Min: 100 * time.Millisecond, Max: 10 * time.Second}
//	for failures := 1; ; failures++ {
//		if err := try(ctx); err == nil {
//			return nil
//		}
//		if err := backoff.Sleep(ctx, pauses.Pause(failures)); err != nil {
//			return err
//		}
//	}
package backoff

import (
	"context"
	"sync/atomic"
	"time"

	"scribe/internal/base/entropy"
)

// Backoff is a pause that doubles with each failure in a row, from Min to Max.
type Backoff struct {
	Min, Max time.Duration
	// Random draws the jitter.
	Random *entropy.Source
}

// Mean returns the pause after a number of consecutive failures, without jitter.
func (b Backoff) Mean(failures int) time.Duration {
	if d := b.Min << max(failures-1, 0); failures <= 32 && d > 0 && d>>max(failures-1, 0) == b.Min {
		return min(d, b.Max)
	}
	return b.Max
}

// Pause returns the pause after a number of consecutive failures, jittered over its upper half, so that callers that failed
// together do not retry together.
func (b Backoff) Pause(failures int) time.Duration {
	d := b.Mean(failures)
	return d/2 + time.Duration(b.Random.Float64()*float64(d/2))
}

// Jitter returns d, give or take up to that share of it: 0.2 is from 0.8 d to 1.2 d.
func Jitter(random *entropy.Source, d time.Duration, share float64) time.Duration {
	return time.Duration(float64(d) * (1 + share*(2*random.Float64()-1)))
}

// Sleep waits for d. It fails with the cause of ctx if that ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Budget bounds retries to a share of the requests: each request earns a fraction of a retry, each retry takes a whole one. So a
// failing server gets little more than its normal load. It is safe for concurrent use.
type Budget struct {
	share, most int64        // in millionths of a retry
	saved       atomic.Int64 // in millionths of a retry
}

const retry = 1_000_000

// NewBudget returns a full budget. A request earns share of a retry, and at most most retries accumulate. If share is 0, there
// are no retries.
func NewBudget(share float64, most int) *Budget {
	b := &Budget{share: int64(share * retry), most: int64(most) * retry}
	if share > 0 {
		b.saved.Store(b.most)
	}
	return b
}

// Earn is called for each request.
func (b *Budget) Earn() {
	for {
		saved := b.saved.Load()
		if saved >= b.most || b.saved.CompareAndSwap(saved, min(saved+b.share, b.most)) {
			return
		}
	}
}

// TakeRetry takes a retry, and reports whether there was one.
func (b *Budget) TakeRetry() bool {
	for {
		saved := b.saved.Load()
		if saved < retry {
			return false
		}
		if b.saved.CompareAndSwap(saved, saved-retry) {
			return true
		}
	}
}
