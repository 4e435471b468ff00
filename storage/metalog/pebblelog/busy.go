package pebblelog

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"scribe/storage/metalog/journal"
)

// stallLimit is for how many times TakeoverAfter a leader that is busy with one group is kept alive by beats. A disk that takes longer is not
// one to lead with: another replica takes over then.
const stallLimit = 10

// busySince tells since when the committer has been busy with one group, or one beat. The zero value is idle.
type busySince struct {
	since atomic.Pointer[time.Time]
}

func (b *busySince) begin() { b.since.Store(new(time.Now())) }

func (b *busySince) end() { b.since.Store(nil) }

// lasts returns for how long the committer has been busy; 0 if it is idle.
func (b *busySince) lasts() time.Duration {
	if since := b.since.Load(); since != nil {
		return time.Since(*since)
	}
	return 0
}

// startBusyBeats beats in place of the committer while that is busy, for example since it waits for a slow flush, until stop is called. The
// beats tell no times, which are the committer's. After stallLimit they end, and the replica only looks whether another one leads, so that
// what waits for the committer is refused.
func (c *logCommitter) startBusyBeats() (stop func()) {
	r, l := c.e.replica, c.leading
	ctx, cancel := context.WithCancel(r.life)
	done := make(chan struct{})
	r.work.Go(func() {
		defer close(done)
		ticks := time.NewTicker(c.e.opts.BeatEvery)
		defer ticks.Stop()
		for {
			select {
			case <-ticks.C:
				r.beatIfBusy(ctx, l)
			case <-ctx.Done():
				return
			}
		}
	})
	return func() { cancel(); <-done }
}

// beatIfBusy beats once, or looks once whether another replica leads.
func (r *replica) beatIfBusy(ctx context.Context, l *journal.Leader) {
	busy := r.busy.lasts()
	switch {
	case busy < r.e.opts.BeatEvery:
	case busy < stallLimit*r.e.opts.TakeoverAfter:
		if lost := new(journal.LostError); errors.As(l.Beat(ctx, journal.Times{}), &lost) {
			r.offerHead(lost.Head)
		}
	default:
		if head, err := r.readHead(ctx); err == nil {
			r.offerHead(head)
		}
	}
}
