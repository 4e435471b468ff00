package admission

import (
	"sync"
	"time"
)

// Breaker stops calls to a dependency that fails repeatedly: after a few failures in a row it refuses calls for a while, then
// allows one call to try. The dependency must be optional: a refused call goes elsewhere at once, instead of waiting for a
// timeout. It is safe for concurrent use.
type Breaker struct {
	failures    int
	first, last time.Duration

	mu struct {
		sync.Mutex
		failed int           // in a row
		pause  time.Duration // after the last failure
		until  time.Time     // when the next call may try; while trying is set, only the result of that call counts
		trying bool
	}
}

// NewBreaker returns a breaker that allows calls until failures calls in a row have failed. The first pause is first; it doubles
// up to longest.
func NewBreaker(failures int, first, longest time.Duration) *Breaker {
	return &Breaker{failures: failures, first: first, last: longest}
}

// Allow reports whether a call may be made now. An allowed call ends with ReportResult.
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

// ReportResult records the result of a call.
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
		return // calls that began before the pause say nothing new
	}
	b.mu.pause = min(max(2*b.mu.pause, b.first), b.last)
	b.mu.until = now.Add(b.mu.pause)
}

// PauseLeft returns the time until a call may try again; 0 if one may now.
func (b *Breaker) PauseLeft(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.mu.failed < b.failures:
		return 0
	case b.mu.trying:
		return b.first // the running try decides
	}
	return max(b.mu.until.Sub(now), 0)
}

// Tripped reports whether the last calls failed.
func (b *Breaker) Tripped() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.failed >= b.failures
}
