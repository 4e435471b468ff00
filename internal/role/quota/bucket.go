package quota

import (
	"math"
	"time"
)

const (
	// burstTime is the time in which a quota accumulates a full burst.
	burstTime = time.Second
	// farAway is the longest wait that is told.
	farAway = math.MaxInt64 / 2 * time.Nanosecond
)

// Bucket is a token bucket that goes into debt: a charge passes while there are any tokens, and is charged in full. So charges
// larger than the burst pass too, and in the long run exactly the rate passes. Times are relative to any fixed instant and never
// decrease.
type Bucket struct {
	tokens float64 // below 0 is debt
	rate   float64 // a second; 0 = no limit
	at     time.Duration
}

// NewBucket returns a full bucket. A rate of 0 limits nothing.
func NewBucket(now time.Duration, rate float64) Bucket {
	return Bucket{tokens: burstOf(rate), rate: rate, at: now}
}

func burstOf(rate float64) float64 { return rate * burstTime.Seconds() }

// SetRate changes the rate. Tokens and debt stay, but tokens above the new burst are lost.
func (b *Bucket) SetRate(now time.Duration, rate float64) {
	if b.rate <= 0 || rate <= 0 {
		*b = NewBucket(now, rate)
		return
	}
	b.refill(now)
	b.rate = rate
	b.tokens = min(b.tokens, burstOf(rate))
}

func (b *Bucket) refill(now time.Duration) {
	if passed := now - b.at; passed > 0 {
		b.tokens = min(b.tokens+b.rate*passed.Seconds(), burstOf(b.rate))
		b.at = now
	}
}

// IsReady reports whether the next charge passes.
func (b *Bucket) IsReady(now time.Duration) bool { return b.isReadyOwing(now, 0) }

// isReadyOwing is IsReady for a charge that passes beside a debt of less than owed.
func (b *Bucket) isReadyOwing(now time.Duration, owed float64) bool {
	if b.rate <= 0 {
		return true
	}
	b.refill(now)
	return b.tokens > -owed
}

// Charge takes n tokens, going into debt if necessary.
func (b *Bucket) Charge(n float64) {
	if b.rate > 0 {
		b.tokens -= n
	}
}

// Refund gives back n tokens that were charged for something that did not happen.
func (b *Bucket) Refund(now time.Duration, n float64) {
	if b.rate > 0 {
		b.refill(now)
		b.tokens = min(b.tokens+n, burstOf(b.rate))
	}
}

// WaitFor returns the time, from the last refill, until a charge passes that comes after ahead more tokens.
func (b *Bucket) WaitFor(ahead float64) time.Duration {
	need := ahead - b.tokens
	if need < 0 || b.rate <= 0 {
		return 0
	}
	seconds := need / b.rate
	if seconds >= farAway.Seconds() {
		return farAway
	}
	// Rounded up, since a charge does not pass at exactly 0 tokens.
	return time.Duration(seconds*float64(time.Second)) + time.Microsecond
}

// isFull reports whether the bucket is full, as a new one is.
func (b *Bucket) isFull(now time.Duration) bool {
	b.refill(now)
	return b.tokens >= burstOf(b.rate)
}

// debt returns the tokens that are owed, 0 or more.
func (b *Bucket) debt(now time.Duration) float64 {
	b.refill(now)
	return max(-b.tokens, 0)
}
