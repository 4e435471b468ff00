package scribed

import (
	"time"
)

// backfillPacer paces the backfill. Beside live traffic, backfill requests are smaller and run one at a time, and after each one
// backfill pauses for a multiple of the time that the request took. The multiple grows while live requests take clearly longer
// than without backfill beside them, and shrinks otherwise. Without live traffic, backfill runs as fast as the upstream accepts.
type backfillPacer struct {
	limit int64     // bytes a second; 0 = unlimited
	next  time.Time // no backfill request is sent before
	// calm and loaded are the smoothed durations of live requests without and with backfill beside them, in seconds; 0 = unknown.
	calm, loaded float64
	factor       float64
	live         bool // live traffic was answered since the last backfill request ended
}

const (
	smoothing  = 0.2 // weight of the newest duration
	minFactor  = 0.5
	maxFactor  = 16
	tooSlow    = 1.5 // ratio of loaded to calm above which backfill slows down
	liveShare  = 4   // backfill requests beside live traffic are smaller by this factor; under a limit, a request has at most this fraction of a second's bytes
	minPacedBy = time.Millisecond
)

// noteLive is the event that a live request was answered; beside says that backfill was running.
func (p *backfillPacer) noteLive(took time.Duration, beside bool) {
	avg := &p.calm
	if beside {
		avg = &p.loaded
	}
	if *avg == 0 {
		*avg = took.Seconds()
	}
	*avg += smoothing * (took.Seconds() - *avg)
	p.live = true
}

// requestSize is the size of the next backfill request in bytes.
func (p *backfillPacer) requestSize(batch int, live bool) int {
	if live || p.live {
		batch /= liveShare
	}
	if p.limit > 0 {
		batch = min(batch, int(min(p.limit/liveShare, 1<<30)))
	}
	return max(batch, 1)
}

// noteFill is the event that a backfill request of n bytes, begun at start, was answered.
func (p *backfillPacer) noteFill(start, now time.Time, n int64, live bool) {
	p.next = now
	if live || p.live {
		if p.factor = max(p.factor, minFactor); p.calm > 0 && p.loaded > tooSlow*p.calm {
			p.factor = min(2*p.factor, maxFactor)
		} else {
			p.factor = max(0.8*p.factor, minFactor)
		}
		p.next = now.Add(max(time.Duration(float64(now.Sub(start))*p.factor), minPacedBy))
	}
	if p.limit > 0 {
		p.next = laterOf(p.next, start.Add(time.Duration(float64(n)/float64(p.limit)*float64(time.Second))))
	}
	p.live = false
}
