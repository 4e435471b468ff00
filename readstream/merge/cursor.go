package merge

import (
	"math"

	"scribe/internal/format/record"
)

// wantState is the state of a cursor's reads.
type wantState uint8

const (
	wantNone    wantState = 0
	wantQueued  wantState = 1 // in Merge.wants
	wantRunning wantState = 2 // handed out by Wants
	wantFailed  wantState = 3 // in Merge.failed
)

// orderedItem is an Item with its sort key: the time of an entry, or the least value for gaps and ends, which never wait.
type orderedItem struct {
	Item
	order int64
}

// shardCursor is the stream's position in a shard.
type shardCursor struct {
	shard record.ShardID
	// queue holds the items from index first on; the next record to arrive has LSN next.
	queue []orderedItem
	first int
	next  record.LSN
	// low: no record from next on has a time below it. With stub, it is exactly the time of next.
	low int64
	// tail: records below it exist. mark: no record from tail on has a time below it.
	tail record.LSN
	mark int64

	bytes int    // of the entries in queue
	owed  uint64 // number of records from its position to the tail

	key   int64 // sort key in its heap
	home  *cursorHeap
	index int // in home

	want    wantState
	ahead   uint8 // log2 of how much larger a read may be than the first one
	force   bool  // the queued or running read is for a record that exceeds the limits
	stub    bool  // the queue is empty, and only the time of the next record is known
	known   bool  // tail is known
	sealed  bool
	closing bool // an End is in the queue
	ended   bool
	active  bool // counted in Merge.active
}

func (c *shardCursor) isEmpty() bool { return c.first == len(c.queue) }

// needsRead reports whether the cursor is empty although records exist.
func (c *shardCursor) needsRead() bool { return !c.ended && c.isEmpty() && c.next < c.tail }

// reachTail updates a cursor that stands at its tail: the tail's mark then bounds its next record, and a sealed shard gets its
// End.
func (c *shardCursor) reachTail() {
	if c.ended || c.next < c.tail {
		return
	}
	c.low = max(c.low, c.mark)
	if c.sealed && !c.closing {
		c.closing = true
		c.pushItem(orderedItem{Item: Item{Kind: End, Shard: c.shard, LSN: c.next}, order: math.MinInt64})
	}
}

func (c *shardCursor) firstItem() *orderedItem { return &c.queue[c.first] }

// position returns the LSN of the first item, or of the next record.
func (c *shardCursor) position() record.LSN {
	if c.isEmpty() {
		return c.next
	}
	return c.firstItem().LSN
}

func (c *shardCursor) pushItem(it orderedItem) {
	if c.first > 0 && len(c.queue) == cap(c.queue) {
		n := copy(c.queue, c.queue[c.first:])
		clear(c.queue[n:])
		c.queue, c.first = c.queue[:n], 0
	}
	c.queue = append(c.queue, it)
}

// keptQueue is the capacity that an empty queue may keep: slow shards do not allocate for each record, and idle shards hold
// little.
const keptQueue = 4

func (c *shardCursor) popItem() Item {
	it := c.queue[c.first].Item
	c.queue[c.first] = orderedItem{}
	if c.first++; c.isEmpty() {
		c.queue, c.first = c.queue[:0], 0
		if cap(c.queue) > keptQueue {
			c.queue = nil
		}
	}
	return it
}

// pushGap appends a gap from next to to, or extends a gap at the end of the queue.
func (c *shardCursor) pushGap(to record.LSN, cause Cause) {
	if !c.isEmpty() {
		if last := &c.queue[len(c.queue)-1]; last.Kind == Gap && last.Cause == cause && last.To == c.next {
			last.To, c.next = to, to
			return
		}
	}
	c.pushItem(orderedItem{Item: Item{Kind: Gap, Cause: cause, Shard: c.shard, LSN: c.next, To: to}, order: math.MinInt64})
	c.next, c.stub = to, false
}

// isBefore reports whether c precedes other in the order of the stream.
func (c *shardCursor) isBefore(other *shardCursor) bool {
	if c.key != other.key {
		return c.key < other.key
	}
	return c.shard < other.shard
}

// cursorHeap is a heap ordered by (key, shard).
type cursorHeap []*shardCursor

func (h cursorHeap) Len() int           { return len(h) }
func (h cursorHeap) Less(i, j int) bool { return h[i].isBefore(h[j]) }

func (h cursorHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *cursorHeap) Push(x any) {
	c := x.(*shardCursor)
	c.index = len(*h)
	*h = append(*h, c)
}

// Pop implements heap.Interface.
func (h *cursorHeap) Pop() any {
	old := *h
	c := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return c
}
