package admission

import (
	"sync"
	"time"
)

// TokenBucket is a token bucket: rate tokens a second, of which at most burst are saved. It is safe for concurrent use.
type TokenBucket struct {
	rate, burst float64

	mu struct {
		sync.Mutex
		last   time.Time
		tokens float64
		// promised is the number of tokens that refused callers were told to come back for. They are not reserved: callers are
		// served as they come. It decreases as tokens arrive.
		promised float64
	}
}

// NewBucket returns a full bucket. A rate of 0 means no limit; a burst below 1 counts as 1.
func NewBucket(rate, burst float64) *TokenBucket {
	b := &TokenBucket{rate: rate, burst: max(burst, 1)}
	b.mu.tokens = b.burst
	return b
}

// farthest bounds the delay that a refused caller is told: with a longer one it would go elsewhere.
const farthest = 10 * time.Second

// TakeToken takes a token; ok is false if there is none. Then after is the delay after which to ask again: until there is a
// token, if all callers that were refused before come back when they were told to. It is at most 10 s.
func (b *TokenBucket) TakeToken(now time.Time) (after time.Duration, ok bool) {
	return b.TakeTokenAbove(now, 0)
}

// TakeTokenAbove is TakeToken for a caller that leaves a share of the burst to others.
func (b *TokenBucket) TakeTokenAbove(now time.Time, share float64) (after time.Duration, ok bool) {
	left := b.burst * share
	return b.takeOr(now, left, func() float64 {
		b.mu.promised = min(b.mu.promised+1, b.rate*farthest.Seconds())
		return b.mu.promised + left
	})
}

// TakeOrWait is TakeToken for a single caller that waits for the token itself and that no other caller overtakes: after is the
// time until there is one.
func (b *TokenBucket) TakeOrWait(now time.Time) (after time.Duration, ok bool) {
	return b.takeOr(now, 0, func() float64 { return 1 })
}

// takeOr takes a token if so many are left besides. If there is none, it returns the time until the bucket has received as many as awaited returns.
func (b *TokenBucket) takeOr(now time.Time, left float64, awaited func() float64) (after time.Duration, ok bool) {
	if b.rate <= 0 {
		return 0, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addTokens(now)
	if b.mu.tokens >= 1+left {
		b.mu.tokens--
		return 0, true
	}
	d := time.Duration(max(awaited()-b.mu.tokens, 0) / b.rate * float64(time.Second))
	return min(max(d, time.Millisecond), farthest), false
}

func (b *TokenBucket) addTokens(now time.Time) {
	if b.mu.last.IsZero() {
		b.mu.last = now
	}
	if dt := now.Sub(b.mu.last).Seconds(); dt > 0 {
		b.mu.tokens = min(b.mu.tokens+dt*b.rate, b.burst)
		b.mu.promised = max(b.mu.promised-dt*b.rate, 0)
		b.mu.last = now
	}
}
