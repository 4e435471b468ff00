package merge

import "sync/atomic"

// Budget is a number of bytes shared by several merges. It is safe for concurrent use.
//
// While at most three quarters are in use, a merge takes what it wants. Above that the budget is pressed: a merge takes no more
// than its share, half of the budget divided by the number of merges, and [Merge.Shrink] gives back what exceeds the share. So
// merges of stalled streams can't keep others from reading in large steps.
type Budget struct {
	limit  int64
	used   atomic.Int64
	merges atomic.Int64
}

// NewBudget returns a budget of limit bytes.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// Used returns the bytes in use.
func (b *Budget) Used() int64 { return b.used.Load() }

// Pressed reports whether merges are limited to their shares.
func (b *Budget) Pressed() bool { return b.used.Load() > b.plentyBytes() }

// plentyBytes returns how much may be in use before shares apply.
func (b *Budget) plentyBytes() int64 { return b.limit / 4 * 3 }

func (b *Budget) shareBytes() int64 { return b.limit / 2 / max(b.merges.Load(), 1) }

// takeBytes takes n bytes for a merge that already holds held bytes, if they are available to it, or in any case when forced.
func (b *Budget) takeBytes(n, held int, force bool) bool {
	total := b.used.Add(int64(n))
	if !force && (total > b.limit || total > b.plentyBytes() && int64(held+n) > b.shareBytes()) {
		b.used.Add(-int64(n))
		return false
	}
	return true
}

// roomFor returns how many bytes a merge that holds held bytes could take.
func (b *Budget) roomFor(held int) int {
	used := b.used.Load()
	return int(max(min(b.limit-used, max(b.plentyBytes()-used, b.shareBytes()-int64(held))), 0))
}

func (b *Budget) freeBytes(n int) { b.used.Add(-int64(n)) }

// Shrink gives back what the merge holds beyond its share of the budget, the newest records of each shard first. They are read
// again when it is their turn. It returns the number of bytes given back. Its time is proportional to the number of shards and of
// these records.
func (m *Merge) Shrink() int {
	share, before := int(m.opts.Budget.shareBytes()), m.used
	if m.used <= share {
		return 0
	}
	quota := share / max(m.active, 1)
	for _, c := range m.cursors {
		if c.bytes > quota {
			m.shrinkCursor(c, quota)
			m.updateCursor(c)
		}
		if m.used <= share {
			break
		}
	}
	return before - m.used
}

// shrinkCursor drops a cursor's newest items until its records take no more than quota bytes.
func (m *Merge) shrinkCursor(c *shardCursor, quota int) {
	c.tail = max(c.tail, c.next) // dropped records still exist
	for c.bytes > quota {
		it := c.popLast()
		switch it.Kind {
		case Entry:
			m.freeRecord(c, len(it.Data))
			c.low = it.order
		case Gap: // a later read meets it again
		case End:
			c.closing = false
		}
		c.next = it.LSN
		// If the front entry is dropped, its time stays known.
		c.stub = c.isEmpty() && it.Kind == Entry && c.want != wantFailed
	}
}

// popLast removes the last item of a non-empty queue.
func (c *shardCursor) popLast() orderedItem {
	last := len(c.queue) - 1
	it := c.queue[last]
	c.queue[last] = orderedItem{}
	if c.queue = c.queue[:last]; c.isEmpty() {
		c.queue, c.first = nil, 0
	}
	return it
}
