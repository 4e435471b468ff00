package budget

import (
	"math"
	"time"
)

const (
	// interval is the least time between two measurements: shorter ones see single requests.
	interval = 50 * time.Millisecond
	// memory is how far back the speed looks: the time constant of its average.
	memory = time.Second

	// unknownHint is given before anything is known of the speed: about as long as a commit takes.
	unknownHint = 50 * time.Millisecond
	// Hints stay within these: shorter ones are not worth a pause, and what is stuck now may go on at any time.
	minHint = 5 * time.Millisecond
	maxHint = 5 * time.Second
)

// drain is the speed at which bytes are given back: an average that forgets exponentially, over the times in which some were
// held. It is a plain state machine; times are since any fixed moment.
type drain struct {
	known bool
	rate  float64 // bytes a second
	at    time.Duration
	total int64 // given back until at
}

// resume restarts the measurement after a time in which nothing was held; what was measured before stays.
func (d *drain) resume(now time.Duration, total int64) { d.at, d.total = now, total }

// observe takes how much has been given back in all.
func (d *drain) observe(now time.Duration, total int64) {
	passed := now - d.at
	if passed <= 0 {
		return
	}
	rate := float64(total-d.total) / passed.Seconds()
	if !d.known {
		d.known, d.rate = true, rate
	} else {
		d.rate += (rate - d.rate) * (1 - math.Exp(-passed.Seconds()/memory.Seconds()))
	}
	d.at, d.total = now, total
}

// hint returns when need bytes will have been given back at the present speed.
func (d *drain) hint(need int64) time.Duration {
	if !d.known {
		return unknownHint
	}
	if d.rate <= 0 || float64(need)/d.rate > maxHint.Seconds() {
		return maxHint
	}
	return max(time.Duration(float64(need)/d.rate*float64(time.Second)), minHint)
}
