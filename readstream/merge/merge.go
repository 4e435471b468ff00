package merge

import (
	"cmp"
	"container/heap"
	"iter"
	"math"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// Unbounded is the window of a merge that does not wait.
const Unbounded int64 = math.MaxInt64

// Options are the options of a Merge.
type Options struct {
	// Window is how far records may be handed out of order, in microseconds of persisted time: 0 means a total order, [Unbounded]
	// no promise.
	Window int64
	// Limit bounds the bytes of queued records. A record that has to go next is accepted in any case. Two or three such records
	// may be queued when an older record of another shard appears before the first could go.
	Limit int
	// Budget, if not nil, bounds the bytes of several merges together.
	Budget *Budget
}

// Kind is the kind of an Item.
type Kind uint8

// Kinds of Item.
const (
	// Entry is a record.
	Entry Kind = 1
	// Gap is a range of records that will not come.
	Gap Kind = 2
	// End: the shard was sealed, and all its records were handed out.
	End Kind = 3
)

// Cause is the cause of a gap.
type Cause uint8

// Causes of a gap.
const (
	// Trimmed: retention removed the records.
	Trimmed Cause = 1
	// Corrupt: the record is damaged in the engine.
	Corrupt Cause = 2
	// Unbegun: the shard began after them in a recovery of the metadata.
	Unbegun Cause = 3
)

// Item is one step of a stream. The items of a shard are contiguous: an entry's successor has the next LSN, a gap's successor the
// LSN To.
type Item struct {
	Kind  Kind
	Cause Cause // of a gap
	Shard record.ShardID
	// LSN is that of the entry, of the gap's first record, or, at an End, the one after the shard's last record.
	LSN record.LSN
	// To is the LSN after the gap.
	To record.LSN
	// Time is the entry's persisted time in Unix microseconds.
	Time int64
	// Data is the entry's record. The receiver may keep it.
	Data []byte
}

// Status is what a merge needs next.
type Status uint8

// Values of Status.
const (
	// Ready: there is an item.
	Ready Status = 1
	// Read: the merge needs reads, see [Merge.Wants].
	Read Status = 2
	// Look: a record is held back because too little is known of idle shards, or of shards that may have appeared. Look at the
	// tails and for new shards, then call [Merge.Tail], [Merge.Floor] and [Merge.Looked] with the results.
	Look Status = 3
	// Idle: nothing to do before the next update.
	Idle Status = 4
)

// Want is a read that a merge needs, to be answered with [Merge.Loaded], [Merge.Skip] or [Merge.Fail].
type Want struct {
	Shard record.ShardID
	LSN   record.LSN
	// MaxBytes bounds the read; its first record is accepted in any case.
	MaxBytes int
}

// entryOverhead is the memory charged for a queued record in addition to its data.
const entryOverhead = 96

// Merge merges shards. See the package comment.
type Merge struct {
	opts    Options
	cursors map[record.ShardID]*shardCursor
	// Each cursor that has not ended is in one heap. ready: it has an item, or the time of its next record is known. tails: it
	// has no item and is at its tail. behind: it has no item although records exist, or its tail is unknown.
	ready  cursorHeap
	tails  cursorHeap
	behind cursorHeap
	// wants are cursors to be read, in FIFO order. Some may have received records in the meantime.
	wants  []*shardCursor
	failed []*shardCursor

	// begun are cursors whose next record was partly handed out before, see Begin.
	begun []*shardCursor

	used    int    // bytes in queues
	active  int    // number of cursors that share Limit
	pending uint64 // existing records that were not handed out: the sum of the cursors' owed
	ended   int
	// floor: no cursor in tails brings a record below it, whatever its own low. It makes idle shards free: a heartbeat advances
	// one number instead of one per shard.
	floor int64
	// seen is the newest time or watermark received; horizon is the value of seen at the last look for shards.
	seen    int64
	horizon int64
}

// New returns a merge without shards, which shares its budget until Close.
func New(opts Options) *Merge {
	opts.Budget = cmp.Or(opts.Budget, NewBudget(math.MaxInt64))
	opts.Budget.merges.Add(1)
	return &Merge{opts: opts, cursors: map[record.ShardID]*shardCursor{}}
}

// Add adds a shard, beginning at LSN from. It does nothing for a shard that was already added. Until Tail is called for the
// shard, it may bring any record; the tail must be newer than the last call of Floor.
func (m *Merge) Add(shard record.ShardID, from record.LSN) {
	if _, ok := m.cursors[shard]; ok {
		return
	}
	c := &shardCursor{shard: shard, next: max(from, record.FirstLSN)}
	m.cursors[shard] = c
	m.updateCursor(c)
}

// Begin marks an added shard whose first record was partly handed out by an earlier merge. The rest of this record precedes all
// else, so that what belongs together, such as an atomic batch, stays together.
func (m *Merge) Begin(shard record.ShardID) {
	if c := m.cursors[shard]; c != nil {
		m.begun = append(m.begun, c)
	}
}

// frontCursor returns the next cursor: a begun one, or the first by time. It returns nil when there is none, or when the begun
// cursor has no item yet.
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

// Shards returns the number of shards that have not ended.
func (m *Merge) Shards() int { return len(m.cursors) - m.ended }

// Total returns the number of shards that were added.
func (m *Merge) Total() int { return len(m.cursors) }

// Tail updates the tail of a shard: records below next exist, and no record from next on has a time below watermark (0 =
// unknown). sealed reports that no more records will come.
func (m *Merge) Tail(shard record.ShardID, next record.LSN, watermark int64, sealed bool) {
	if c := m.cursors[shard]; c != nil && !c.ended {
		m.noteTail(c, next, watermark, sealed)
		m.updateCursor(c)
	}
}

func (m *Merge) noteTail(c *shardCursor, next record.LSN, watermark int64, sealed bool) {
	// A bound for all records from a tail on also holds from any later tail on: so the two maxima belong together.
	c.tail = max(c.tail, next)
	c.mark = max(c.mark, watermark)
	c.sealed = c.sealed || sealed
	c.known = true
	m.seen = max(m.seen, watermark)
}

// Floor updates the floor: no shard brings a record below t at or after its reported tail. It covers the watermarks of many idle
// shards at once, at a cost independent of their number.
func (m *Merge) Floor(t int64) {
	m.floor = max(m.floor, t)
	m.seen = max(m.seen, t)
}

// Update applies an update of a subscription. The merge keeps only the data of entries, which nobody may change: several merges
// may share it.
func (m *Merge) Update(u *metalog.Update) {
	c := m.cursors[u.Shard]
	if c == nil || c.ended {
		return
	}
	// Entries after TrimmedTo leave a hole. The cursor then wants a read, which reports the gap.
	m.queueEntries(c, u.Entries, false)
	m.noteTail(c, u.NextLSN, u.Watermark, u.Sealed)
	m.updateCursor(c)
}

// firstRead bounds the first read of a shard in bytes, so that a stream soon has something to send. Each further read may be
// twice as large, up to firstRead<<mostAhead.
const (
	firstRead = 16 << 10
	mostAhead = 8
)

// Wants appends at most limit wanted reads to dst. Answer each before the next call of Next, since its records may come first;
// report a read that takes longer with Late.
func (m *Merge) Wants(dst []Want, limit int) []Want {
	for m.dropMetWants(); limit > 0 && len(m.wants) > 0; m.dropMetWants() {
		c := m.wants[0]
		m.wants = m.wants[1:]
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

// dropMetWants drops the wants at the front that updates have satisfied.
func (m *Merge) dropMetWants() {
	for len(m.wants) > 0 && !m.wants[0].needsRead() {
		c := m.wants[0]
		m.wants = m.wants[1:]
		c.want, c.force = wantNone, false
		m.updateCursor(c)
	}
}

// Loaded answers a want with the records read, whose data the merge keeps. An empty read although records should exist counts as
// a failure, unless the shard is sealed: then it was erased with its category, and everything up to its tail is a gap.
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
	// Learning the time of the next record is progress, too, unless the record itself was wanted.
	if gained := c.next != before || c.stub && !c.force; !gained && c.needsRead() {
		m.failWant(c)
	} else if c.want == wantRunning {
		c.want, c.force = wantNone, false
	}
	m.updateCursor(c)
}

// Skip answers a want whose records, from its LSN up to to, can't be read.
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

// Late reports that a want takes long to answer. Until it is answered the shard only holds back the records that the window does
// not allow before its own.
func (m *Merge) Late(shard record.ShardID) {
	if c := m.cursors[shard]; c != nil && !c.ended && c.want == wantRunning && c.stub {
		c.stub = false
		m.updateCursor(c)
	}
}

// Fail answers a want whose read failed. The shard is not read again before Retry.
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

// Retry requests the failed reads again, and reports whether there are any.
func (m *Merge) Retry() bool {
	failed := m.failed
	m.failed = nil
	for _, c := range failed {
		c.want = wantNone
		m.updateCursor(c)
	}
	return len(failed) > 0
}

// Seen returns the newest time or watermark that the merge was told. Take it before looking for shards.
func (m *Merge) Seen() int64 { return m.seen }

// Looked reports that all shards were added that existed when the newest known time or watermark was t.
func (m *Merge) Looked(t int64) { m.horizon = max(m.horizon, t) }

// Horizon returns the latest time for which Looked was called: no shard that was not added had a record before it.
func (m *Merge) Horizon() int64 { return m.horizon }

// Peek returns the kind of the next item, or why there is none.
func (m *Merge) Peek() (Kind, Status) {
	if m.dropMetWants(); len(m.wants) > 0 {
		return 0, Read
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

// holdStatus returns Ready if the window lets the head of c, an entry, go.
func (m *Merge) holdStatus(c *shardCursor) Status {
	if m.opts.Window == Unbounded {
		return Ready
	}
	if m.opts.Window == 0 {
		// Every other shard's next record must come later in the order, also if the times are equal.
		switch {
		case len(m.behind) > 0 && !c.isBefore(m.behind[0]):
			return Idle // its read failed
		case len(m.tails) > 0 && m.floor <= c.key && !c.isBefore(m.tails[0]):
			return Look
		case m.horizon <= c.key:
			return Look // a new shard may have a record of the same time
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

// Head returns the shard and LSN of the next item, when the status is Ready.
func (m *Merge) Head() (record.ShardID, record.LSN) {
	c := m.frontCursor()
	return c.shard, c.firstItem().LSN
}

// Next removes and returns the next item when the status is Ready.
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

// Low returns a lower bound: no later entry has a time below it minus the window; 0 = unknown. With an unbounded window it covers
// only the known shards.
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

// horizonReach returns the upper bound of Low while unknown shards may exist.
func (m *Merge) horizonReach() int64 {
	if m.horizon > math.MaxInt64-m.opts.Window {
		return math.MaxInt64
	}
	return m.horizon + m.opts.Window
}

// Lagging reports whether a look for new shards would raise Low.
func (m *Merge) Lagging() bool { return m.horizonReach() < m.seen && m.seen > m.horizon }

// Positions yields the next LSN of each shard, including ended ones, in no order.
func (m *Merge) Positions() iter.Seq2[record.ShardID, record.LSN] {
	return func(yield func(record.ShardID, record.LSN) bool) {
		for shard, c := range m.cursors {
			if !yield(shard, c.position()) {
				return
			}
		}
	}
}

// Held returns the range [from, to) of a shard's queued records; 0, 0 for a shard that was not added.
func (m *Merge) Held(shard record.ShardID) (from, to record.LSN) {
	if c := m.cursors[shard]; c != nil {
		return c.position(), c.next
	}
	return 0, 0
}

// Pending returns the number of existing records, as far as known, that were not handed out.
func (m *Merge) Pending() uint64 { return m.pending }

// Buffered returns the bytes in queues.
func (m *Merge) Buffered() int { return m.used }

// Close returns the queues' bytes and the merge's share to the budget. Call it once; the merge must not be used afterwards.
func (m *Merge) Close() {
	m.opts.Budget.freeBytes(m.used)
	m.opts.Budget.merges.Add(-1)
	m.used = 0
}

// queueEntries queues the entries that continue a cursor's queue, while they fit. With force, the first one is accepted in any
// case.
func (m *Merge) queueEntries(c *shardCursor, entries []metalog.Entry, force bool) {
	for i := range entries {
		e := &entries[i]
		m.seen = max(m.seen, e.Time)
		if e.LSN < c.next {
			continue
		}
		if e.LSN > c.next {
			return // a hole, which a read will fill
		}
		// Times of a shard never decrease. If an engine violates that, order by the promised bound.
		c.low = max(c.low, e.Time)
		size := len(e.Data) + entryOverhead
		room := c.bytes == 0 || c.bytes+size <= m.cursorQuota()
		if !force && (!room || m.used+size > m.opts.Limit) || !m.opts.Budget.takeBytes(size, m.used, force) {
			// The time alone orders the cursor until the record fits.
			c.stub = c.isEmpty() && c.want != wantFailed
			return
		}
		force = false
		if c.queue == nil && i+1 < len(entries) { // grow once, to the number of entries likely to fit
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

// cursorQuota returns a cursor's share of the limit.
func (m *Merge) cursorQuota() int { return m.opts.Limit / max(m.active, 1) }

// updateCursor updates all derived state after a change of a cursor.
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

// countPending updates pending after a change of a cursor.
func (m *Merge) countPending(c *shardCursor) {
	m.pending -= c.owed
	c.owed = 0
	if end, at := max(c.tail, c.next), c.position(); end > at {
		c.owed = uint64(end - at)
	}
	m.pending += c.owed
}

// moveToHeap moves a cursor to its heap, ordered by its key; an ended cursor is in no heap.
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

// countActive counts the cursors that share the limit: those that hold items or are to be read.
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
