package merge

import (
	"container/heap"
	"iter"
	"math"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// Unbounded is the window of a merge that does not wait.
const Unbounded int64 = math.MaxInt64

// Options of a Merge.
type Options struct {
	// Window is how far apart in persisted time records may be handed out of order, in microseconds: 0 is a total order,
	// [Unbounded] no promise.
	Window int64
	// Limit bounds the bytes of queued records, but for one that has to go next: it is taken in any case. There are two or three of these
	// when an older one of another shard turns up before the first could go.
	Limit int
	// Budget, if not nil, bounds them together with those of other merges.
	Budget *Budget
}

// Kind is what an Item is.
type Kind uint8

// Kinds of Item.
const (
	// Entry is a record.
	Entry Kind = 1
	// Gap is a range of records that will not come.
	Gap Kind = 2
	// End says that the shard was sealed and all of it was handed out.
	End Kind = 3
)

// Cause is why there is a gap.
type Cause uint8

// Causes of a gap.
const (
	// Trimmed: retention removed the records.
	Trimmed Cause = 1
	// Corrupt: the record is damaged in the engine.
	Corrupt Cause = 2
)

// Item is one step of a stream. The items of a shard continue each other: an entry's successor has the next LSN, a gap's the
// LSN To.
type Item struct {
	Kind  Kind
	Cause Cause // of a gap
	Shard record.ShardID
	// LSN is the entry's, the first of the gap, or the one after the shard's last record.
	LSN record.LSN
	// To is the LSN after the gap.
	To record.LSN
	// Time is the entry's persisted time in Unix microseconds.
	Time int64
	// Data is the entry's record; the receiver's to keep.
	Data []byte
}

// Status says what a merge needs.
type Status uint8

// Statuses.
const (
	// Ready: there is an item.
	Ready Status = 1
	// Read: reads are wanted, see [Merge.Wants].
	Read Status = 2
	// Look: a record is held back by what is not known of shards that have nothing at the moment, or that may have appeared. Look at
	// the tails and for new shards, then call [Merge.Tail], [Merge.Floor] and [Merge.Looked] with what was found.
	Look Status = 3
	// Idle: nothing to do until there is news.
	Idle Status = 4
)

// Want is a read that a merge needs, to be answered with [Merge.Loaded], [Merge.Skip] or [Merge.Fail].
type Want struct {
	Shard record.ShardID
	LSN   record.LSN
	// MaxBytes is how much there is room for; the first record is welcome in any case.
	MaxBytes int
}

// entryOverhead is counted for a queued record beside its data.
const entryOverhead = 96

// Merge merges shards. See the package's comment.
type Merge struct {
	opts    Options
	cursors map[record.ShardID]*shardCursor
	// ready holds the cursors that have an item or know the time of their next record; tails those that have nothing and are at
	// their tail; behind those that have nothing although there is something, or whose tail is not known. Ended ones are in none.
	ready  cursorHeap
	tails  cursorHeap
	behind cursorHeap
	// wants are cursors to be read, first in first out. Some may have got records in the meantime.
	wants  []*shardCursor
	failed []*shardCursor

	// begun are cursors whose next record was handed out in part before, see Begin.
	begun []*shardCursor

	used    int    // bytes in queues
	active  int    // cursors that share Limit
	pending uint64 // records that exist and were not handed out, the sum of the cursors' owed
	ended   int
	// floor: no cursor in tails brings a record below it, whatever its own low. It keeps what an idle shard costs a merge at
	// nothing: one number goes on, not one for each shard.
	floor int64
	// seen is the newest time or watermark that was heard of; horizon what it was when shards were last looked for.
	seen    int64
	horizon int64
}

// New returns a merge of no shards, which is part of its budget until Close.
func New(opts Options) *Merge {
	opts.Budget.addMerge()
	return &Merge{opts: opts, cursors: map[record.ShardID]*shardCursor{}}
}

// Add adds a shard to be handed out from LSN on. It does nothing for one that is there. Until its Tail is told it may bring anything;
// the tail must be from after the last call of Floor.
func (m *Merge) Add(shard record.ShardID, from record.LSN) {
	if _, ok := m.cursors[shard]; ok {
		return
	}
	c := &shardCursor{shard: shard, next: max(from, record.FirstLSN)}
	m.cursors[shard] = c
	m.updateCursor(c)
}

// Begin tells that of the first record of a shard that was added a part was handed out, by an earlier merge: the rest comes before
// anything else, so that what is one, such as an atomic batch, stays together.
func (m *Merge) Begin(shard record.ShardID) {
	if c := m.cursors[shard]; c != nil {
		m.begun = append(m.begun, c)
	}
}

// frontCursor is the cursor that is next: one that was begun, or the first by time. It is nil when there is none, or when the one that was
// begun has nothing yet.
func (m *Merge) frontCursor() *shardCursor {
	for len(m.begun) > 0 {
		c := m.begun[0]
		switch absent := c.known && c.next >= c.tail; {
		case !c.ended && (!c.isEmpty() || c.stub):
			return c
		case !c.ended && !absent:
			return nil
		}
		m.begun = m.begun[1:]
	}
	if len(m.ready) == 0 {
		return nil
	}
	return m.ready[0]
}

// Has reports whether a shard was added.
func (m *Merge) Has(shard record.ShardID) bool { return m.cursors[shard] != nil }

// Shards is the number of shards that have not ended.
func (m *Merge) Shards() int { return len(m.cursors) - m.ended }

// Total is the number of shards that were added.
func (m *Merge) Total() int { return len(m.cursors) }

// Tail tells where a shard ends: records up to next exist, what comes from there on has no time below watermark (0 = unknown).
// sealed says that nothing will come.
func (m *Merge) Tail(shard record.ShardID, next record.LSN, watermark int64, sealed bool) {
	if c := m.cursors[shard]; c != nil && !c.ended {
		m.noteTail(c, next, watermark, sealed)
		m.updateCursor(c)
	}
}

func (m *Merge) noteTail(c *shardCursor, next record.LSN, watermark int64, sealed bool) {
	// What holds for all records from a tail on holds for those from a later tail on: the two maxima go together.
	c.tail = max(c.tail, next)
	c.mark = max(c.mark, watermark)
	c.sealed = c.sealed || sealed
	c.known = true
	m.seen = max(m.seen, watermark)
}

// Floor tells that no shard brings a record below t that is not below the tail told of it. It is for watermarks of many idle shards
// at once, and costs the same however many they are.
func (m *Merge) Floor(t int64) {
	m.floor = max(m.floor, t)
	m.seen = max(m.seen, t)
}

// Update takes an update of a subscription. Of its memory only the data of entries is kept, which nobody may change: several merges
// may share it.
func (m *Merge) Update(u *metalog.Update) {
	c := m.cursors[u.Shard]
	if c == nil || c.ended {
		return
	}
	// Entries after TrimmedTo leave a hole, so the cursor will want a read and learn of the gap there.
	m.queueEntries(c, u.Entries, false)
	m.noteTail(c, u.NextLSN, u.Watermark, u.Sealed)
	m.updateCursor(c)
}

// firstRead is the bytes that the first read of a shard brings at most, so that a stream has something to send soon; each further one may
// bring twice as many, firstRead<<mostAhead in the end.
const (
	firstRead = 16 << 10
	mostAhead = 8
)

// Wants appends at most limit wanted reads to dst. Each should be answered before the next call of Next, for what it brings may come
// first; one that can't be is to be told with Late.
func (m *Merge) Wants(dst []Want, limit int) []Want {
	for limit > 0 && len(m.wants) > 0 {
		c := m.wants[0]
		m.wants = m.wants[1:]
		if !c.needsRead() {
			m.cancelWant(c)
			continue
		}
		c.want = wantRunning
		room := min(m.cursorQuota(), m.opts.Limit-m.used, m.opts.Budget.roomFor(m.used), firstRead<<c.ahead)
		c.ahead = min(c.ahead+1, mostAhead)
		dst = append(dst, Want{Shard: c.shard, LSN: c.next, MaxBytes: max(room, 1)})
		limit--
	}
	if len(m.wants) == 0 {
		m.wants = nil
	}
	return dst
}

// cancelWant takes back a want that was met by an update.
func (m *Merge) cancelWant(c *shardCursor) {
	c.want, c.force = wantNone, false
	m.updateCursor(c)
}

// Loaded answers a want with what was read, whose data the merge keeps. Nothing, although there should be something, counts as
// a failure, unless the shard is sealed: then it was erased with its category, and all up to its tail is a gap.
func (m *Merge) Loaded(shard record.ShardID, entries []metalog.Entry) {
	c := m.cursors[shard]
	if c == nil || c.ended {
		return
	}
	before := c.next
	m.queueEntries(c, entries, c.force)
	if len(entries) == 0 && c.sealed && c.needsRead() {
		c.pushGap(c.tail, Trimmed)
	}
	// To learn the time of the next record is something, too, unless the record itself was wanted.
	if gained := c.next != before || c.stub && !c.force; !gained && c.needsRead() {
		m.failWant(c)
	} else if c.want == wantRunning {
		c.want, c.force = wantNone, false
	}
	m.updateCursor(c)
}

// Skip answers a want when the records from its LSN up to to can't be had.
func (m *Merge) Skip(shard record.ShardID, to record.LSN, cause Cause) {
	c := m.cursors[shard]
	if c == nil || c.ended {
		return
	}
	if c.want == wantRunning {
		c.want, c.force = wantNone, false
	}
	if to > c.next {
		c.pushGap(to, cause)
	}
	m.updateCursor(c)
}

// Late tells that a want takes long to answer. Until it is answered the shard keeps back what its window does not allow before
// it, and nothing else.
func (m *Merge) Late(shard record.ShardID) {
	if c := m.cursors[shard]; c != nil && !c.ended && c.want == wantRunning && c.stub {
		c.stub = false
		m.updateCursor(c)
	}
}

// Fail answers a want when the read failed. The shard is not wanted again before Retry.
func (m *Merge) Fail(shard record.ShardID) {
	if c := m.cursors[shard]; c != nil && !c.ended {
		m.failWant(c)
		m.updateCursor(c)
	}
}

func (m *Merge) failWant(c *shardCursor) {
	c.want, c.force, c.stub = wantFailed, false, false
	m.failed = append(m.failed, c)
}

// Retry wants the reads again that failed, and reports whether there are any.
func (m *Merge) Retry() bool {
	failed := m.failed
	m.failed = nil
	for _, c := range failed {
		c.want = wantNone
		m.updateCursor(c)
	}
	return len(failed) > 0
}

// Seen is the newest time or watermark that the merge was told. Take it before looking for shards.
func (m *Merge) Seen() int64 { return m.seen }

// Looked tells that all shards were added which existed when the newest time or watermark known of any was t.
func (m *Merge) Looked(t int64) { m.horizon = max(m.horizon, t) }

// Peek returns the kind of the next item, or why there is none.
func (m *Merge) Peek() (Kind, Status) {
	for len(m.wants) > 0 {
		if m.wants[0].needsRead() {
			return 0, Read
		}
		c := m.wants[0]
		m.wants = m.wants[1:]
		m.cancelWant(c)
	}
	c := m.frontCursor()
	if c == nil {
		return 0, Idle
	}
	if !c.stub {
		if k := c.firstItem().Kind; k != Entry {
			return k, Ready
		}
	}
	if len(m.begun) == 0 {
		if s := m.holdStatus(c); s != Ready {
			return 0, s
		}
	}
	if c.stub {
		if c.want == wantRunning {
			return 0, Idle
		}
		c.want, c.force = wantQueued, true
		m.wants = append(m.wants, c)
		return 0, Read
	}
	return Entry, Ready
}

// holdStatus says whether the window lets the head of c, an entry, go.
func (m *Merge) holdStatus(c *shardCursor) Status {
	if m.opts.Window == Unbounded {
		return Ready
	}
	if m.opts.Window == 0 {
		// Every other shard's next record must come later in the order, also where times are equal.
		switch {
		case len(m.behind) > 0 && !c.isBefore(m.behind[0]):
			return Idle // a read of it failed
		case len(m.tails) > 0 && m.floor <= c.key && !c.isBefore(m.tails[0]):
			return Look
		case m.horizon <= c.key:
			return Look // a shard that appears may have a record of the same time
		}
		return Ready
	}
	least := max(c.key, 0) - m.opts.Window
	switch {
	case len(m.behind) > 0 && m.behind[0].key < least:
		return Idle
	case len(m.tails) > 0 && max(m.tails[0].key, m.floor) < least:
		return Look
	case m.horizon < least:
		return Look
	}
	return Ready
}

// Head is the place of the next item, when the status is Ready.
func (m *Merge) Head() (record.ShardID, record.LSN) {
	c := m.frontCursor()
	return c.shard, c.firstItem().LSN
}

// Next returns the next item when the status is Ready, and takes it out.
func (m *Merge) Next() (Item, Status) {
	if _, s := m.Peek(); s != Ready {
		return Item{}, s
	}
	c := m.frontCursor()
	it := c.popItem()
	if len(m.begun) > 0 {
		m.begun = m.begun[1:]
	}
	if it.Kind == Entry {
		m.freeRecord(c, len(it.Data))
	}
	if it.Kind == End {
		c.ended = true
		m.ended++
	}
	m.updateCursor(c)
	return it, Ready
}

// Low is a time such that no later entry will have one below it minus the window; 0 = unknown. Without a window it speaks only
// of the shards that are known.
func (m *Merge) Low() int64 {
	low := Unbounded
	if len(m.ready) > 0 {
		low = m.ready[0].key
	}
	if len(m.behind) > 0 {
		low = min(low, m.behind[0].key)
	}
	if len(m.tails) > 0 {
		low = min(low, max(m.tails[0].key, m.floor))
	}
	if low == Unbounded {
		return 0
	}
	return max(min(low, m.horizonReach()), 0)
}

// horizonReach is the latest time that Low may be while there may be shards that are not known.
func (m *Merge) horizonReach() int64 {
	if m.horizon > math.MaxInt64-m.opts.Window {
		return math.MaxInt64
	}
	return m.horizon + m.opts.Window
}

// Lagging reports whether a look for new shards would raise Low.
func (m *Merge) Lagging() bool { return m.horizonReach() < m.seen && m.seen > m.horizon }

// Positions yields each shard's next LSN to hand out, ended shards included, in no order.
func (m *Merge) Positions() iter.Seq2[record.ShardID, record.LSN] {
	return func(yield func(record.ShardID, record.LSN) bool) {
		for shard, c := range m.cursors {
			if !yield(shard, c.position()) {
				return
			}
		}
	}
}

// Held are the records of a shard that are queued, from one LSN up to another; none for one that was not added.
func (m *Merge) Held(shard record.ShardID) (from, to record.LSN) {
	if c := m.cursors[shard]; c != nil {
		return c.position(), c.next
	}
	return 0, 0
}

// Pending is how many records exist, as far as is known, that were not handed out.
func (m *Merge) Pending() uint64 { return m.pending }

// Buffered is the bytes in queues.
func (m *Merge) Buffered() int { return m.used }

// Close gives the queues' bytes back to the budget, and its share. It is called once, and the merge is not used afterwards.
func (m *Merge) Close() {
	m.opts.Budget.freeBytes(m.used)
	m.opts.Budget.removeMerge()
	m.used = 0
}

// queueEntries takes the entries that continue a cursor's queue, as far as there is room. With force there is room for one in any case.
func (m *Merge) queueEntries(c *shardCursor, entries []metalog.Entry, force bool) {
	for i := range entries {
		e := &entries[i]
		m.seen = max(m.seen, e.Time)
		if e.LSN < c.next {
			continue
		}
		if e.LSN > c.next {
			return // a hole; a read will fill it
		}
		// Times of a shard never decrease; if an engine breaks that, order by what was promised.
		c.low = max(c.low, e.Time)
		size := len(e.Data) + entryOverhead
		room := c.bytes == 0 || c.bytes+size <= m.cursorQuota()
		if !force && (!room || m.used+size > m.opts.Limit) || !m.opts.Budget.takeBytes(size, m.used, force) {
			// The time alone orders the cursor until there is room.
			c.stub = c.isEmpty() && c.want != wantFailed
			return
		}
		force = false
		if c.queue == nil && i+1 < len(entries) { // grows once, by what is likely to fit
			c.queue = make([]orderedItem, 0, min(len(entries)-i, m.cursorQuota()/size+1))
		}
		c.pushItem(orderedItem{Item: Item{Kind: Entry, Shard: c.shard, LSN: e.LSN, Time: e.Time, Data: e.Data}, order: c.low})
		c.next++
		c.stub = false
		c.bytes += size
		m.used += size
	}
}

func (m *Merge) freeRecord(c *shardCursor, data int) {
	size := data + entryOverhead
	c.bytes -= size
	m.used -= size
	m.opts.Budget.freeBytes(size)
}

// cursorQuota is a cursor's part of the limit.
func (m *Merge) cursorQuota() int { return m.opts.Limit / max(m.active, 1) }

// updateCursor brings all that depends on a cursor up to date after any change to it.
func (m *Merge) updateCursor(c *shardCursor) {
	c.reachTail()
	if c.want == wantNone && c.needsRead() && !c.stub {
		c.want = wantQueued
		m.wants = append(m.wants, c)
	}
	m.countPending(c)
	m.moveToHeap(c)
	m.countActive(c)
}

// countPending brings the sum of what exists and was not handed out up to date with a cursor.
func (m *Merge) countPending(c *shardCursor) {
	m.pending -= c.owed
	c.owed = 0
	if end, at := max(c.tail, c.next), c.position(); end > at {
		c.owed = uint64(end - at)
	}
	m.pending += c.owed
}

// moveToHeap puts a cursor into the heap that it belongs to, where its key says; one that has ended into none.
func (m *Merge) moveToHeap(c *shardCursor) {
	var home *cursorHeap
	switch c.key = c.low; {
	case c.ended:
	case !c.isEmpty():
		home, c.key = &m.ready, c.firstItem().order
	case c.stub:
		home = &m.ready
	case !c.known || c.next < c.tail:
		home = &m.behind
	default:
		home = &m.tails
	}
	if c.home == home && home != nil {
		heap.Fix(home, c.index)
		return
	}
	if c.home != nil {
		heap.Remove(c.home, c.index)
	}
	if c.home = home; home != nil {
		heap.Push(home, c)
	}
}

// countActive counts a cursor among those that share the limit while it holds something or is to be read.
func (m *Merge) countActive(c *shardCursor) {
	active := !c.ended && (!c.isEmpty() || c.stub || c.want != wantNone)
	switch {
	case active && !c.active:
		m.active++
	case !active && c.active:
		m.active--
	}
	c.active = active
}
