package scribed

import (
	"time"
)

// backfillPacer says how fast the backlog is sent. Beside live traffic it is sent in smaller requests, one at a time, and after each the
// backlog pauses for a multiple of the time that the request took. The multiple grows while live requests take clearly longer than
// without backlog beside them, and shrinks while they do not. Alone, the backlog takes what the upstream gives.
type backfillPacer struct {
	limit int64     // bytes a second; 0 = none
	next  time.Time // nothing is sent before
	// calm and loaded are the recent durations of live requests without and with backlog beside them, in seconds; 0 = not known.
	calm, loaded float64
	factor       float64
	live         bool // live traffic was sent since the last request with backlog began
}

const (
	smoothing  = 0.2 // weight of the newest duration
	minFactor  = 0.5
	maxFactor  = 16
	tooSlow    = 1.5 // loaded over calm at which the backlog gives way
	liveShare  = 4   // requests with backlog beside live traffic are that much smaller, and have at most that part of a second's limit
	minPacedBy = time.Millisecond
)

// noteLive is the event that a live request was answered.
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

// requestSize is how much of the backlog the next request should have.
func (p *backfillPacer) requestSize(batch int, live bool) int {
	if live || p.live {
		batch /= liveShare
	}
	if p.limit > 0 {
		batch = min(batch, int(min(p.limit/liveShare, 1<<30)))
	}
	return max(batch, 1)
}

// noteFill is the event that a request with n bytes of backlog, begun at start, was answered.
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
