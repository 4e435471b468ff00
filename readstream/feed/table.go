package feed

import (
	"container/heap"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// Listener is told what happens to a category. Its methods are called one at a time, and must neither block nor call the feed.
type Listener interface {
	// Updates tells of followed shards, of each in its order. The slice is valid until the call returns; the data of entries may
	// be kept, and belongs to nobody.
	Updates(updates []metalog.Update)
	// Tail tells of a shard that is followed from now on: its records below next exist, what comes from there on will be told and
	// has no time below mark.
	Tail(shard record.ShardID, next record.LSN, mark int64, sealed bool)
	// Floor tells that no followed shard brings a record below t that was not told.
	Floor(t int64)
	// Shards tells of shards that exist and were not told of, followed or not. With them all are known that existed when the newest
	// time known of any was horizon; 0 says nothing of that. The slice is not changed.
	Shards(fresh []record.ShardID, horizon int64)
	// Fail tells that a call of the engine has failed for too long, or that it is closed.
	Fail(err error)
}

// tailTable is what a feed knows: a plain state machine without I/O or locks.
type tailTable struct {
	tails map[record.ShardID]*shardTail
	// order holds the followed tails that are not sealed, the one with the least mark first.
	order   tailHeap
	members map[*Member]struct{}

	known map[record.ShardID]struct{} // shards that exist
	list  []record.ShardID            // the same, in the order in which they were heard of; only appended to

	seen    int64 // newest time or watermark heard of
	floor   int64 // newest floor told
	horizon int64

	touched []*Member // used again by every update
}

// shardTail is where a shard ends, as its members were told.
type shardTail struct {
	shard record.ShardID
	// next: records below it are known to exist. mark: those from it on have no time below it.
	next record.LSN
	mark int64
	// sent is where a subscription goes on: up to next, or less while records are on their way.
	sent record.LSN
	// A look may know more than was told: records from aheadNext on have no time below aheadMark.
	aheadNext record.LSN
	aheadMark int64
	sealed    bool

	members []*Member
	group   *tailGroup // the subscription that it belongs to
	index   int        // in order; -1 when not there
}

func newTable() *tailTable {
	return &tailTable{tails: map[record.ShardID]*shardTail{}, members: map[*Member]struct{}{}, known: map[record.ShardID]struct{}{}}
}

// joinMember takes a member in, which is held until it follows something.
func (t *tailTable) joinMember(m *Member) {
	m.held = true
	t.members[m] = struct{}{}
}

// followShards makes a member a follower of shards, and tells it where they are. States may be old: they count for shards that nobody
// followed. It reports whether a shard has no subscription yet.
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
		if st.Epoch != 0 {
			t.noteExists(st.Shard)
		}
	}
	if least := t.leastMark(); least > 0 {
		m.listener.Floor(least)
	}
	t.tellShards(m)
	return fresh
}

// leaveMember takes a member out. It reports whether a subscription has lost a shard.
func (t *tailTable) leaveMember(m *Member) (lost bool) {
	delete(t.members, m)
	for _, shard := range m.shards {
		x := t.tails[shard]
		for i := range x.members {
			if x.members[i] == m {
				last := len(x.members) - 1
				x.members[i], x.members[last] = x.members[last], nil
				x.members = x.members[:last]
				break
			}
		}
		if len(x.members) > 0 {
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

// dropTail forgets a tail whose subscription has ended and that nobody follows.
func (t *tailTable) dropTail(x *shardTail) {
	x.group = nil
	if len(x.members) == 0 {
		delete(t.tails, x.shard)
	}
}

// placeTail puts a tail where it belongs in order after its mark or its members changed.
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

// applyUpdates takes what a subscription brought, whose entries' data members may keep.
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
		if u.NextLSN >= x.next { // a subscription that was opened again may be behind what was told
			x.next, x.mark = u.NextLSN, max(x.mark, u.Watermark)
		}
		if x.next >= x.aheadNext {
			x.mark = max(x.mark, x.aheadMark)
		}
		x.sealed = x.sealed || u.Sealed
		t.placeTail(x)
		if !news {
			continue // an idle shard's heartbeat: its share is in the floor
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

// keptBatch is how much room for updates a member keeps.
const keptBatch = 16

// noteLooked takes the states of all shards, listed when the newest time heard of was seen. It reports whether that told anyone
// anything.
func (t *tailTable) noteLooked(states []metalog.State, seen int64) bool {
	floor, horizon, shards := t.floor, t.horizon, len(t.list)
	for i := range states {
		st := &states[i]
		t.noteExists(st.Shard)
		t.seen = max(t.seen, st.Watermark)
		x := t.tails[st.Shard]
		if x == nil {
			continue
		}
		if st.NextLSN <= x.next {
			x.mark = max(x.mark, st.Watermark)
			t.placeTail(x)
		} else if st.NextLSN >= x.aheadNext {
			x.aheadNext, x.aheadMark = st.NextLSN, max(x.aheadMark, st.Watermark)
		}
	}
	for _, x := range t.order {
		// A shard that does not exist yet brings nothing from before the look.
		if _, ok := t.known[x.shard]; !ok {
			x.mark = max(x.mark, seen)
		}
	}
	heap.Init(&t.order)
	t.horizon = max(t.horizon, seen)
	t.tellAll()
	t.advanceFloor()
	return t.floor > floor || t.horizon > horizon || len(t.list) > shards
}

// noteAppeared takes shards that the watch has told of.
func (t *tailTable) noteAppeared(shards []record.ShardID) {
	for _, shard := range shards {
		t.noteExists(shard)
	}
	t.tellAll()
}

func (t *tailTable) noteExists(shard record.ShardID) {
	if _, ok := t.known[shard]; !ok {
		t.known[shard] = struct{}{}
		t.list = append(t.list, shard)
	}
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

// leastMark is the floor that holds now; 0 = none.
func (t *tailTable) leastMark() int64 {
	if len(t.order) == 0 {
		return 0
	}
	return t.order[0].mark
}

// advanceFloor tells of a higher floor.
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

// tailHeap is a heap by mark.
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
