package scribed

import (
	"time"
)

// backfillPacer paces the backfill. Beside live traffic, backfill requests are smaller. While live requests take clearly longer than
// without backfill beside them, they run one at a time, and after each one backfill pauses for a multiple of the time that the request took;
// the multiple grows. Otherwise it shrinks, then more and more bytes may be in flight. Without live traffic, backfill runs as fast as the
// upstream accepts.
type backfillPacer struct {
	limit int64     // bytes a second; 0 = unlimited
	next  time.Time // no backfill request is sent before
	// calm and loaded are the smoothed durations of live requests without and with backfill beside them, in seconds; 0 = unknown.
	calm, loaded float64
	factor       float64
	live         bool // live traffic was answered since the backfill request began that was answered last
	// calmAt and liveAt are when live requests were answered last, without backfill beside them and in any case.
	calmAt, liveAt time.Time
	// window bounds the bytes in flight beside live traffic; 0 = one request at a time. It shrank last at shrunkAt.
	window, inFlight int64
	shrunkAt         time.Time
}

const (
	smoothing  = 0.2 // weight of the newest duration
	minFactor  = 0.5
	maxFactor  = 16
	tooSlow    = 1.5 // ratio of loaded to calm above which backfill slows down
	liveShare  = 4   // backfill requests beside live traffic are smaller by this factor; under a limit, a request has at most this fraction of a second's bytes
	minPacedBy = time.Millisecond
	// calmAge is how long the durations of live requests without backfill count: then backfill makes way for another look.
	calmAge = 10 * time.Second
)

// noteLive is the event that a live request was answered; beside says that backfill was running.
func (p *backfillPacer) noteLive(now time.Time, took time.Duration, beside bool) {
	avg := &p.calm
	if beside {
		avg = &p.loaded
	} else {
		p.calmAt = now
	}
	if *avg == 0 {
		*avg = took.Seconds()
	}
	*avg += smoothing * (took.Seconds() - *avg)
	p.live, p.liveAt = true, now
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

// hasSpace reports whether a backfill request of n bytes may be sent beside the others.
func (p *backfillPacer) hasSpace(n int64, live bool) bool {
	return !live && !p.live || p.inFlight == 0 || p.inFlight+n <= p.window
}

// noteStart is the event that a backfill request of about n bytes begins.
func (p *backfillPacer) noteStart(now time.Time, n int64) {
	p.inFlight += n
	if p.limit > 0 {
		p.next = laterOf(p.next, now).Add(p.timeFor(n))
	}
}

// noteClaimed is the event that a request that has begun has more bytes than it was to have; fewer if below 0.
func (p *backfillPacer) noteClaimed(more int64) {
	if p.limit > 0 {
		p.next = p.next.Add(p.timeFor(more))
	}
}

// timeFor is how long n bytes take under the limit.
func (p *backfillPacer) timeFor(n int64) time.Duration {
	return time.Duration(float64(n) / float64(p.limit) * float64(time.Second))
}

// noteFill is the event that a backfill request of n bytes, begun at start, was answered.
func (p *backfillPacer) noteFill(start, now time.Time, n int64, live bool) {
	p.live = !p.liveAt.Before(start)
	if !live && !p.live {
		return
	}
	p.factor = max(p.factor, minFactor)
	switch slow := p.calm > 0 && p.loaded > tooSlow*p.calm; {
	case slow && p.window > 0:
		if start.Before(p.shrunkAt) {
			break // it was sent before the window shrank
		}
		p.shrunkAt = now
		if p.window /= 2; p.window < 2*n {
			p.window = 0
		}
	case slow:
		p.factor = min(2*p.factor, maxFactor)
	case p.factor > minFactor:
		p.factor = max(0.8*p.factor, minFactor)
	case now.Sub(p.calmAt) > calmAge:
		p.window = 0
	default:
		p.window += n
	}
	if p.window == 0 {
		p.next = laterOf(p.next, now.Add(max(time.Duration(float64(now.Sub(start))*p.factor), minPacedBy)))
	}
}
