package admission

import (
	"sync"
	"time"
)

// TokenBucket is a token bucket: rate tokens a second, up to burst of them saved. It is safe for concurrent use.
type TokenBucket struct {
	rate, burst float64

	mu struct {
		sync.Mutex
		last   time.Time
		tokens float64
		// promised are tokens that those who were refused were told to come back for. They are no reservation: who comes first is
		// served. It shrinks as tokens come.
		promised float64
	}
}

// NewBucket returns one that is full. A rate of 0 has no limit; a burst of less than 1 counts as 1.
func NewBucket(rate, burst float64) *TokenBucket {
	b := &TokenBucket{rate: rate, burst: max(burst, 1)}
	b.mu.tokens = b.burst
	return b
}

// farthest bounds how far ahead a promise may be: who is told to wait for longer asks elsewhere.
const farthest = 10 * time.Second

// TakeToken takes a token at a time; ok is false when there is none. Then after is when to ask again: the time at which there will be one,
// if all who were refused before come back when they were told to. It is at most 10 s.
func (b *TokenBucket) TakeToken(now time.Time) (after time.Duration, ok bool) {
	if b.rate <= 0 {
		return 0, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addTokens(now)
	if b.mu.tokens >= 1 {
		b.mu.tokens--
		return 0, true
	}
	b.mu.promised = min(b.mu.promised+1, b.rate*farthest.Seconds())
	return b.timeUntil(b.mu.promised), false
}

// TakeOrWait is Take for one caller who waits for the token itself, and whom nobody can overtake: after is when there will be one.
func (b *TokenBucket) TakeOrWait(now time.Time) (after time.Duration, ok bool) {
	if b.rate <= 0 {
		return 0, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addTokens(now)
	if b.mu.tokens >= 1 {
		b.mu.tokens--
		return 0, true
	}
	return b.timeUntil(1), false
}

// timeUntil is when the bucket will have had n tokens. The mutex is held.
func (b *TokenBucket) timeUntil(n float64) time.Duration {
	d := time.Duration(max(n-b.mu.tokens, 0) / b.rate * float64(time.Second))
	return min(max(d, time.Millisecond), farthest)
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
