// Package account bounds bytes. It tracks charged and free bytes, and predicts from the recent release rate when more will be
// free. [Account] is a plain state machine for owners with a mutex and a clock of their own; internal/role/budget uses it to
// admit requests, with errors that carry a retry hint.
package account

import (
	"math"
	"time"
)

const (
	// interval is the minimum time between two measurements: shorter ones would measure single requests.
	interval = 50 * time.Millisecond
	// memory is the time constant of the average speed.
	memory = time.Second

	// UnknownHint is the hint before the first measurement: about the duration of a commit.
	UnknownHint = 50 * time.Millisecond
	// MinHint is the shortest hint: shorter pauses are not worthwhile.
	MinHint = 5 * time.Millisecond
	// MaxHint is the longest hint: a stall may end at any time.
	MaxHint = 5 * time.Second
)

// Account is a bound on bytes. Its owner makes it safe for concurrent use.
type Account struct {
	limit, used, peak int64

	// The release rate is an exponential moving average over the times in which bytes were charged.
	measured bool
	speed    float64   // bytes a second
	since    time.Time // start of the current measurement
	released int64     // since then
}

// New returns an account of limit bytes.
func New(limit int64) *Account { return &Account{limit: limit} }

// Limit returns the bound in bytes.
func (a *Account) Limit() int64 { return a.limit }

// Used returns the charged bytes.
func (a *Account) Used() int64 { return a.used }

// Free returns the bytes that can be charged now.
func (a *Account) Free() int64 { return a.limit - a.used }

// Peak returns the maximum of charged bytes so far.
func (a *Account) Peak() int64 { return a.peak }

// Charge charges n bytes, and reports whether they fit. If they do not fit, it changes nothing.
func (a *Account) Charge(now time.Time, n int64) bool {
	if n > a.limit-a.used {
		return false
	}
	if a.used == 0 {
		// While nothing was charged, nothing could be released: exclude that time from the measurement.
		a.since, a.released = now, 0
	}
	a.used += n
	a.peak = max(a.peak, a.used)
	return true
}

// Cancel undoes a charge of n bytes that were not used. It does not count towards the release rate.
func (a *Account) Cancel(n int64) { a.used -= n }

// Release releases n charged bytes.
func (a *Account) Release(now time.Time, n int64) {
	a.used -= n
	a.released += n
	a.measureSpeed(now)
}

// measureSpeed adds the released bytes to the average, once interval has passed.
func (a *Account) measureSpeed(now time.Time) {
	took := now.Sub(a.since)
	if took < interval {
		return
	}
	speed := float64(a.released) / took.Seconds()
	if !a.measured {
		a.measured, a.speed = true, speed
	} else {
		a.speed += (speed - a.speed) * (1 - math.Exp(-took.Seconds()/memory.Seconds()))
	}
	a.since, a.released = now, 0
}

// Hint returns the time until excess more bytes are free, at the current release rate.
func (a *Account) Hint(now time.Time, excess int64) time.Duration {
	a.measureSpeed(now)
	switch excess = max(excess, 1); {
	case !a.measured:
		return UnknownHint
	case a.speed <= 0 || float64(excess)/a.speed > MaxHint.Seconds():
		return MaxHint
	default:
		return max(time.Duration(float64(excess)/a.speed*float64(time.Second)), MinHint)
	}
}

// WithinShare reports whether a holder of held bytes may hold n more, which are already charged, with the given share. excess is
// the number of bytes that would have to become free first.
//
// Each holder may hold share times the free bytes. So the account is never full, and later holders find space whatever the others
// hold.
func (a *Account) WithinShare(held, n int64, share float64) (ok bool, excess int64) {
	over := float64(held+n) - share*float64(a.Free())
	return over <= 0, int64(over / (1 + share))
}
