package pebblelog

import (
	"math"
	"sync"
)

// watermarkClock gives the times of records and watermarks. It never goes back, and its promises hold after a crash.
//
// A watermark W promises that no later record has a time below it. Within a process, a clock that never goes back is enough. For
// a restart with a wall clock that was set back, the promise needs a bound on disk: no watermark is above the bound, and a
// restart begins at the bound if the wall clock is below it. The bound is a lease ahead of the clock, so that it need not be
// written for every promise. It moves within batches that are committed anyway, and otherwise in a batch of its own when a reader
// asks.
//
// A batch takes its time when the committer begins to build it, and becomes visible one sync later. In between the clock
// advances, and a watermark taken from it would be wrong for the batch's shards:
//
//	committer                      subscription
//	begin: the batch's time is 10
//	                               watermark: the clock says 20; the tail is LSN 5; sends W=20
//	publish: LSN 5 has time 10
//
// Therefore a watermark is at most the time of the batch being committed. It must also be taken before the tail is read:
//
//	committer                      subscription
//	begin: the batch's time is 10
//	                               the tail is LSN 5
//	publish: LSN 5 has time 10
//	end: no batch
//	                               watermark: the clock says 20; sends W=20
//
// With the watermark taken first, a record beyond the observed tail belongs either to the batch being committed at that moment,
// whose time bounds the watermark, or to a later batch, whose time the clock gives after the watermark.
type watermarkClock struct {
	wall  func() int64
	lease int64 // microseconds
	mu    struct {
		sync.Mutex
		// last is the newest time given out.
		last int64
		// bound is the bound on disk: a restart begins at it or later.
		bound int64
		// batch is the time of the batch being committed; 0 if there is none.
		batch int64
		// newest is the newest time that a batch has had, or may have had before a restart.
		newest int64
		// following says that another replica gives out the times: the clock stands, but for what is observed of the other's.
		following bool
	}
}

// startAt sets the clock to the wall clock or to the bound found on disk, whichever is later.
func (c *watermarkClock) startAt(bound int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.last = max(bound, c.wall(), 1)
	c.mu.newest, c.mu.bound = bound, bound
}

// beginBatch returns the time of the next batch, and the bound that the batch must write, or 0 if the current bound is far enough
// ahead. Each batch has a later time than the one before, also while the clock stands still: after a restart that may be for as long
// as the lease. Readers with a strict order merge the logs by time, and a writer that has waited for one message may find the next one
// in another log.
func (c *watermarkClock) beginBatch() (now, bound int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now = c.tick()
	if now <= c.mu.newest && c.mu.newest < math.MaxInt64 {
		now = c.mu.newest + 1
		c.mu.last = now
	}
	c.mu.batch, c.mu.newest = now, now
	if c.nearBound(now) {
		bound = now + min(c.lease, math.MaxInt64-now)
	}
	return now, bound
}

// raiseBatch puts the clock, and the time of the batch being built, forward to t. It returns that time. The watermark stays below the batch's first
// time until the batch is published.
func (c *watermarkClock) raiseBatch(t int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.last, c.mu.newest = max(c.mu.last, t), max(c.mu.newest, t)
	return c.mu.newest
}

// boundAfter returns the bound that a batch must write whose time was put forward to now.
func (c *watermarkClock) boundAfter(now int64) int64 { return now + min(c.lease, math.MaxInt64-now) }

// endBatch records that the batch of beginBatch is durable and published, together with the bound that it wrote, if any.
func (c *watermarkClock) endBatch(bound int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.batch = 0
	c.mu.bound = max(c.mu.bound, bound)
}

// follow stops the clock of a replica that does not lead. What was told so far is at most the bound, so it stays true under every
// later leader, whose clock begins there. The time after last may have been given to a batch that never became durable: nobody was
// told it. observed is a watermark of the journal.
func (c *watermarkClock) follow(observed int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.following {
		c.mu.last = min(c.mu.last, c.mu.bound)
	}
	c.mu.following, c.mu.batch = true, 0
	c.mu.last = max(c.mu.last, observed, 1)
}

// lead starts the clock of a replica that has taken over, at the bound of the leader before.
func (c *watermarkClock) lead(bound int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.following, c.mu.batch = false, 0
	c.mu.last = max(c.mu.last, bound, c.wall())
	c.mu.newest, c.mu.bound = max(c.mu.newest, bound), bound
}

// watermark returns a time W: no unpublished record has a time below it. stale says that the bound keeps W below the clock,
// extend that the bound should be moved soon.
func (c *watermarkClock) watermark() (w int64, stale, extend bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.following {
		return c.mu.last, false, false
	}
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

// exactBound returns the bound to write when the engine closes: the newest time given out.
func (c *watermarkClock) exactBound() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.last
}

// microsAhead returns how many microseconds the clock is ahead of the wall clock. It stands still until the wall clock catches
// up.
func (c *watermarkClock) microsAhead() int64 {
	wall := c.wall()
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(c.mu.last-wall, 0)
}

// nearBound reports whether the bound is less than half a lease ahead of t.
func (c *watermarkClock) nearBound(t int64) bool { return c.mu.bound-t < c.lease/2 }

func (c *watermarkClock) tick() int64 {
	c.mu.last = max(c.mu.last, c.wall())
	return c.mu.last
}
