package pebblelog

import (
	"math"
	"sync"
)

// watermarkClock gives the times of records and watermarks. It never goes back, and what it promised holds after a crash.
//
// A watermark W promises that no later record has a time below it. Within a process that needs a clock that never goes back. For
// a restart whose wall clock is behind it needs a bound on disk: nothing above the bound is promised, and a restart begins at
// the bound if the wall clock is below it. The bound is a lease ahead of the clock, so that it need not be written for every
// promise; it moves within batches that are committed anyway, and otherwise in a batch of its own when a reader asks.
//
// A batch takes its time when the committer begins to build it, and is visible only a sync later. In between the clock goes on,
// and a watermark taken from it would be wrong for the batch's shards:
//
//	committer                      subscription
//	begin: the batch's time is 10
//	                               watermark: the clock says 20; the tail is LSN 5; sends W=20
//	publish: LSN 5 has time 10
//
// Therefore a watermark is at most the time of the batch being committed. And it must be taken before the tail is looked at:
//
//	committer                      subscription
//	begin: the batch's time is 10
//	                               the tail is LSN 5
//	publish: LSN 5 has time 10
//	end: no batch
//	                               watermark: the clock says 20; sends W=20
//
// With the watermark first, a record that the tail does not show yet belongs to the batch that is being committed at that moment,
// whose time bounds the watermark, or to one that begins later, whose time the clock gives then.
type watermarkClock struct {
	wall  func() int64
	lease int64 // microseconds
	mu    struct {
		sync.Mutex
		// last is the newest time that was given out.
		last int64
		// bound is on disk: a restart begins at it or later.
		bound int64
		// batch is the time of the batch being committed; 0 when there is none.
		batch int64
	}
}

// startAt makes the clock begin at the wall's time or at the bound found on disk, whichever is later.
func (c *watermarkClock) startAt(bound int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.last = max(bound, c.wall(), 1)
	c.mu.bound = bound
}

// beginBatch returns the time of the next batch, and the bound that the batch must write; 0 when the present one is far enough ahead.
func (c *watermarkClock) beginBatch() (now, bound int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now = c.tick()
	c.mu.batch = now
	if c.nearBound(now) {
		bound = now + min(c.lease, math.MaxInt64-now)
	}
	return now, bound
}

// endBatch tells that the batch that begin began is durable and published, and the bound that it wrote, if it did.
func (c *watermarkClock) endBatch(bound int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.batch = 0
	c.mu.bound = max(c.mu.bound, bound)
}

// watermark returns a time below which no record that is not published yet will be. stale says that it is behind the clock
// because the bound is, and extend that the bound should be moved soon.
func (c *watermarkClock) watermark() (w int64, stale, extend bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w = c.mu.batch
	if w == 0 {
		w = c.tick()
	}
	extend = c.nearBound(w)
	if w > c.mu.bound {
		return c.mu.bound, true, extend
	}
	return w, false, extend
}

// exactBound returns the bound to write when the engine closes: what was given out, and no more.
func (c *watermarkClock) exactBound() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.last
}

// microsAhead returns by how many microseconds the clock is ahead of the wall's; it stands still until the wall has caught up.
func (c *watermarkClock) microsAhead() int64 {
	wall := c.wall()
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(c.mu.last-wall, 0)
}

// nearBound says that the bound is less than half a lease ahead of t.
func (c *watermarkClock) nearBound(t int64) bool { return c.mu.bound-t < c.lease/2 }

func (c *watermarkClock) tick() int64 {
	c.mu.last = max(c.mu.last, c.wall())
	return c.mu.last
}
