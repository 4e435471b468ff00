package feed

import (
	"container/heap"
	"slices"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// Listener is told about changes in a category. Its methods are called one at a time, and must neither block nor call the feed.
type Listener interface {
	// Updates reports updates of followed shards, in order for each shard. The slice is valid until the call returns. The data of
	// entries may be kept, and must not be changed.
	Updates(updates []metalog.Update)
	// Tail reports the tail of a newly followed shard: its records below next exist. Later records will be reported, and have no
	// time below mark.
	Tail(shard record.ShardID, next record.LSN, mark int64, sealed bool)
	// Floor reports that no followed shard brings an unreported record below t.
	Floor(t int64)
	// Shards reports existing shards that were not reported before, followed or not. With them, all shards are known that existed
	// when the newest known time was horizon; a horizon of 0 makes no such promise. The slice must not be changed.
	Shards(fresh []record.ShardID, horizon int64)
	// Fail reports that a call of the engine has failed for too long, or that the engine is closed.
	Fail(err error)
}

// tailTable is the state of a feed: a plain state machine without I/O or locks.
type tailTable struct {
	tails map[record.ShardID]*shardTail
	// order holds the followed tails that are not sealed, ordered by mark.
	order   tailHeap
	members map[*Member]struct{}

	// known are the listed shards, each with the number of the last look before whose end it was found or told. list has the same shards in
	// order of discovery, so that a member is told what was appended to it. Removed ones leave both: who comes later does not follow them.
	known map[record.ShardID]uint64
	list  []record.ShardID

	looks   uint64 // how many looks have begun
	applied uint64 // how many were applied
	seen    int64  // newest time or watermark received
	floor   int64  // newest floor reported
	horizon int64

	touched []*Member // scratch space of applyUpdates
}

// shardTail is a shard's tail, as its members were told.
type shardTail struct {
	shard record.ShardID
	// next: records below it are known to exist. mark: no record from next on has a time below it.
	next record.LSN
	mark int64
	// sent is where a subscription resumes: next, or less while records are in flight.
	sent record.LSN
	// A look may know more than was reported: no record from aheadNext on has a time below aheadMark.
	aheadNext record.LSN
	aheadMark int64
	looked    uint64 // the last look that found it, of those applied
	sealed    bool

	members []*Member
	group   *tailGroup // its subscription
	index   int        // index in order; -1 when not in it
}

func newTailTable() *tailTable {
	return &tailTable{tails: map[record.ShardID]*shardTail{}, members: map[*Member]struct{}{}, known: map[record.ShardID]uint64{}}
}

// joinMember adds a member, whose floors are withheld until it follows shards.
func (t *tailTable) joinMember(m *Member) {
	m.held = true
	t.members[m] = struct{}{}
}

// followShards makes a member follow shards, and tells it their tails. states may be old: they are used only for shards that no
// member followed. It reports whether a shard has no subscription yet.
func (t *tailTable) followShards(m *Member, states []metalog.State) (fresh bool) {
	m.held = false
	for i := range states {
		st := &states[i]
		x := t.tails[st.Shard]
		if x == nil {
			x = &shardTail{shard: st.Shard, next: st.NextLSN, sent: st.NextLSN, mark: st.Watermark, sealed: st.Sealed, index: -1}
			t.tails[st.Shard] = x
			t.seen = max(t.seen, st.Watermark)
		} else if x.group != nil && len(x.members) == 0 {
			x.group.unfollowed--
		}
		x.members = append(x.members, m)
		m.shards = append(m.shards, st.Shard)
		t.placeTail(x)
		fresh = fresh || x.group == nil && !x.sealed
		m.listener.Tail(x.shard, x.next, x.mark, x.sealed)
		if st.Epoch != 0 && !st.Removed {
			t.noteExists(st.Shard)
		}
	}
	if least := t.leastMark(); least > 0 {
		m.listener.Floor(least)
	}
	t.tellShards(m)
	return fresh
}

// leaveMember removes a member. It reports whether a shard has lost its last follower.
func (t *tailTable) leaveMember(m *Member) (lost bool) {
	delete(t.members, m)
	for _, shard := range m.shards {
		x := t.tails[shard]
		last := len(x.members) - 1
		x.members[slices.Index(x.members, m)] = x.members[last]
		x.members[last] = nil
		x.members = x.members[:last]
		if last > 0 {
			continue
		}
		lost = true
		t.placeTail(x)
		if x.group == nil {
			delete(t.tails, shard)
		} else {
			x.group.unfollowed++
		}
	}
	m.shards = nil
	t.advanceFloor()
	return lost
}

// dropTail removes a tail without a subscription and without followers.
func (t *tailTable) dropTail(x *shardTail) {
	x.group = nil
	if len(x.members) == 0 {
		delete(t.tails, x.shard)
	}
}

// placeTail updates a tail's place in order after its mark or its members changed.
func (t *tailTable) placeTail(x *shardTail) {
	switch in := len(x.members) > 0 && !x.sealed; {
	case in && x.index < 0:
		heap.Push(&t.order, x)
	case in:
		heap.Fix(&t.order, x.index)
	case x.index >= 0:
		heap.Remove(&t.order, x.index)
	}
}

// applyUpdates applies updates of a subscription. Members may keep the data of the entries.
func (t *tailTable) applyUpdates(updates []metalog.Update) {
	for i := range updates {
		u := &updates[i]
		x := t.tails[u.Shard]
		if x == nil {
			continue
		}
		for k := range u.Entries {
			t.seen = max(t.seen, u.Entries[k].Time)
		}
		t.seen = max(t.seen, u.Watermark)
		news := u.NextLSN > x.next || len(u.Entries) > 0 || u.Sealed && !x.sealed
		if n := len(u.Entries); n > 0 {
			x.sent = max(x.sent, u.Entries[n-1].LSN+1)
		}
		if u.NextLSN >= x.next { // a reopened subscription may lag what was reported
			x.next, x.mark = u.NextLSN, max(x.mark, u.Watermark)
		}
		if x.next >= x.aheadNext {
			x.mark = max(x.mark, x.aheadMark)
		}
		x.sealed = x.sealed || u.Sealed
		t.placeTail(x)
		if !news {
			continue // heartbeat of an idle shard: the floor covers it
		}
		for _, m := range x.members {
			if len(m.batch) == 0 {
				t.touched = append(t.touched, m)
			}
			m.batch = append(m.batch, *u)
		}
	}
	for i, m := range t.touched {
		m.listener.Updates(m.batch)
		clear(m.batch)
		m.batch = m.batch[:0]
		if cap(m.batch) > keptBatch {
			m.batch = nil
		}
		t.touched[i] = nil
	}
	t.touched = t.touched[:0]
	t.advanceFloor()
}

// keptBatch is the capacity for updates that a member keeps.
const keptBatch = 16

// beginLook takes note that shards are about to be listed. Only one look runs at a time.
func (t *tailTable) beginLook() { t.looks++ }

// noteLooked applies the states of all shards, listed since beginLook, when the newest known time was seen. It reports whether any member was
// told something new.
func (t *tailTable) noteLooked(states []metalog.State, seen int64) bool {
	floor, horizon, shards := t.floor, t.horizon, len(t.list)
	t.applied++
	for i := range states {
		st := &states[i]
		t.noteExists(st.Shard)
		t.seen = max(t.seen, st.Watermark)
		x := t.tails[st.Shard]
		if x == nil {
			continue
		}
		x.looked = t.applied
		if st.NextLSN <= x.next {
			x.mark = max(x.mark, st.Watermark)
			t.placeTail(x)
		} else if st.NextLSN >= x.aheadNext {
			x.aheadNext, x.aheadMark = st.NextLSN, max(x.aheadMark, st.Watermark)
		}
	}
	for _, x := range t.order {
		// A shard that does not exist yet, or was removed and has no records, brings none that is older than the look.
		if x.looked != t.applied {
			x.mark = max(x.mark, seen)
		}
	}
	heap.Init(&t.order)
	t.horizon = max(t.horizon, seen)
	t.tellAll()
	t.advanceFloor()
	gained := t.floor > floor || t.horizon > horizon || len(t.list) > shards
	t.dropRemoved()
	return gained
}

// dropRemoved drops the shards that the look has not found, but for those that were told since it began: they were removed. Members that follow
// one go on with it; it is told again when it appears again.
func (t *tailTable) dropRemoved() {
	removed := func(shard record.ShardID) bool { return t.known[shard] < t.looks }
	if !slices.ContainsFunc(t.list, removed) {
		return
	}
	list := make([]record.ShardID, 0, len(t.list))
	before := make([]int, len(t.list)+1) // how many of the first ones stay
	for i, shard := range t.list {
		if removed(shard) {
			delete(t.known, shard)
		} else {
			list = append(list, shard)
		}
		before[i+1] = len(list)
	}
	for m := range t.members {
		m.offered = before[m.offered]
	}
	t.list = list
}

// noteAppeared applies shards that the watch has reported.
func (t *tailTable) noteAppeared(shards []record.ShardID) {
	for _, shard := range shards {
		t.noteExists(shard)
	}
	t.tellAll()
}

func (t *tailTable) noteExists(shard record.ShardID) {
	if _, ok := t.known[shard]; !ok {
		t.list = append(t.list, shard)
	}
	t.known[shard] = t.looks
}

func (t *tailTable) tellAll() {
	for m := range t.members {
		t.tellShards(m)
	}
}

func (t *tailTable) tellShards(m *Member) {
	if m.offered == len(t.list) && m.horizon == t.horizon {
		return
	}
	fresh := t.list[m.offered:len(t.list):len(t.list)]
	m.offered, m.horizon = len(t.list), t.horizon
	m.listener.Shards(fresh, t.horizon)
}

// leastMark returns the current floor; 0 = none.
func (t *tailTable) leastMark() int64 {
	if len(t.order) == 0 {
		return 0
	}
	return t.order[0].mark
}

// advanceFloor reports a higher floor to members.
func (t *tailTable) advanceFloor() {
	least := t.leastMark()
	if least <= t.floor {
		return
	}
	t.floor = least
	for m := range t.members {
		if !m.held {
			m.listener.Floor(least)
		}
	}
}

func (t *tailTable) failMembers(err error) {
	for m := range t.members {
		m.listener.Fail(err)
	}
}

// tailHeap is a heap ordered by mark.
type tailHeap []*shardTail

func (h tailHeap) Len() int           { return len(h) }
func (h tailHeap) Less(i, j int) bool { return h[i].mark < h[j].mark }

func (h tailHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *tailHeap) Push(x any) {
	t := x.(*shardTail)
	t.index = len(*h)
	*h = append(*h, t)
}

// Pop implements heap.Interface.
func (h *tailHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.index = -1
	return t
}
