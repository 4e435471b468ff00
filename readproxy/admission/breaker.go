package admission

import (
	"sync"
	"time"
)

// Breaker keeps calls from something that fails again and again: after a few failures in a row it lets nothing through for a while,
// then one call that tries. What it protects is optional: a call that is not let through goes elsewhere at once, instead of waiting
// for a timeout. It is safe for concurrent use.
type Breaker struct {
	failures    int
	first, last time.Duration

	mu struct {
		sync.Mutex
		failed int           // in a row
		pause  time.Duration // of the last failure
		until  time.Time     // when the next call may try; while trying is set, only by its outcome
		trying bool
	}
}

// NewBreaker returns one that is open to calls until as many as failures failed in a row. The first pause is first; it doubles up to
// longest.
func NewBreaker(failures int, first, longest time.Duration) *Breaker {
	return &Breaker{failures: failures, first: first, last: longest}
}

// Allow reports whether a call may be made at a time. Each that may ends with Done.
func (b *Breaker) Allow(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.mu.failed < b.failures:
		return true
	case b.mu.trying || now.Before(b.mu.until):
		return false
	}
	b.mu.trying = true
	return true
}

// ReportResult takes how a call ended.
func (b *Breaker) ReportResult(now time.Time, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.trying = false
	if ok {
		b.mu.failed, b.mu.pause = 0, 0
		return
	}
	b.mu.failed++
	if b.mu.failed < b.failures || now.Before(b.mu.until) {
		return // others that began before the pause say nothing new
	}
	b.mu.pause = min(max(2*b.mu.pause, b.first), b.last)
	b.mu.until = now.Add(b.mu.pause)
}

// PauseLeft is how long it will be at a time until a call may try again; 0 when one may.
func (b *Breaker) PauseLeft(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.mu.failed < b.failures:
		return 0
	case b.mu.trying:
		return b.first // its outcome decides
	}
	return max(b.mu.until.Sub(now), 0)
}

// Tripped reports whether the last calls failed.
func (b *Breaker) Tripped() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.failed >= b.failures
}
