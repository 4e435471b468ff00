// Package account is a bound on bytes: what is charged, what is free, and how soon more will be, from how fast bytes were released
// lately. [Account] is a plain state machine for owners with a mutex and a clock of their own; internal/role/budget makes of it the
// admission of requests, with errors that say when to try again.
package account

import (
	"math"
	"time"
)

const (
	// interval is the least time between two measurements: shorter ones see single requests.
	interval = 50 * time.Millisecond
	// memory is how far back the speed looks: the time constant of its average.
	memory = time.Second

	// UnknownHint is given before anything is known of the speed: about as long as a commit takes.
	UnknownHint = 50 * time.Millisecond
	// MinHint is the shortest hint: shorter ones are not worth a pause.
	MinHint = 5 * time.Millisecond
	// MaxHint is the longest: what is stuck now may go on at any time.
	MaxHint = 5 * time.Second
)

// Account is a bound on bytes. Its owner makes it safe for concurrent use.
type Account struct {
	limit, used, peak int64

	// The speed at which bytes are released is an average that forgets exponentially, over the times in which some were charged.
	measured bool
	speed    float64   // bytes a second
	since    time.Time // of the measurement that runs
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

// Peak returns the most bytes that were ever charged at once.
func (a *Account) Peak() int64 { return a.peak }

// Charge charges n bytes, and reports whether they fit. What does not fit changes nothing.
func (a *Account) Charge(now time.Time, n int64) bool {
	if n > a.limit-a.used {
		return false
	}
	if a.used == 0 {
		// Nothing was charged, so nothing could be released: that time says nothing of the speed.
		a.since, a.released = now, 0
	}
	a.used += n
	a.peak = max(a.peak, a.used)
	return true
}

// Cancel undoes a charge of n bytes of which nothing came. It does not count as speed.
func (a *Account) Cancel(n int64) { a.used -= n }

// Release gives n charged bytes back.
func (a *Account) Release(now time.Time, n int64) {
	a.used -= n
	a.released += n
	a.measureSpeed(now)
}

// measureSpeed takes what was released into the average, when it is time.
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

// Hint returns when excess more bytes will be free than are now, at the present speed.
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

// WithinShare reports whether someone who holds so much may hold n bytes more, which are charged already, at a share. excess is what
// would have to become free before.
//
// Everyone may hold a multiple, share, of what is free. So the account is never full, and who comes later finds space however much
// the others bring.
func (a *Account) WithinShare(held, n int64, share float64) (ok bool, excess int64) {
	over := float64(held+n) - share*float64(a.Free())
	return over <= 0, int64(over / (1 + share))
}
