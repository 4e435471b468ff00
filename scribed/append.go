package scribed

import (
	"cmp"
	"slices"
	"time"

	"scribe/scribed/spool"
)

// partKind is what becomes of an entry that is appended to the spool.
type partKind uint8

const (
	stays  partKind = 1 // it is in the queue or on its way, and stays there
	leaves partKind = 2 // it was taken out of the queue, and will be in the spool only
	passes partKind = 3 // it never was in the queue
)

// part is an entry in an append.
type part struct {
	l        *lane
	e        *entry
	kind     partKind
	from, to int // its records
}

// appending is one append to the spool: entries of one or more lanes, of each in order.
type appending struct {
	parts   []part
	records []spool.Record
	ids     []int32 // frame.index of each record
	// prevs are the appends before it in its lanes. It waits for them, so that the spool has each lane in order, and fails as they
	// did if the lane is ordered: what was in front of it would stand behind it.
	prevs []earlierAppend
	done  chan struct{}
	err   error // set when done is closed
}

type earlierAppend struct {
	a       *appending
	ordered bool
}

func newAppending() *appending { return &appending{done: make(chan struct{})} }

// join makes the append the newest of a lane.
func (a *appending) join(l *lane) {
	if l.last == a {
		return
	}
	if l.last != nil {
		a.prevs = append(a.prevs, earlierAppend{a: l.last, ordered: l.ordered()})
	}
	l.last = a
	l.appends++
}

// put adds an entry to the append.
func (a *appending) put(l *lane, e *entry, kind partKind) {
	a.join(l)
	p := part{l: l, e: e, kind: kind, from: len(a.records)}
	e.writing = true
	if e.mem != nil {
		e.mem.refs++
	}
	for i := range e.frames {
		if f := &e.frames[i]; !f.spooled {
			a.records = append(a.records, spool.Record{Category: l.name, Messages: int(f.messages), Data: f.bytes})
			a.ids = append(a.ids, f.index)
		}
	}
	p.to = len(a.records)
	if kind != stays {
		l.leaving = append(l.leaving, e)
	}
	a.parts = append(a.parts, p)
}

// along adds what of an ordered lane is in memory only: what comes to the spool later must not be in front of it there.
func (a *appending) along(l *lane) {
	if !l.ordered() {
		return
	}
	for _, entries := range [][]*entry{l.flying, l.entries} {
		for _, e := range entries {
			if e.spillable() && !e.spooled() {
				a.put(l, e, stays)
			}
		}
	}
}

// appendEntry begins the append of an entry that is in the queue and stays there.
func (q *queue) appendEntry(e *entry) *appending {
	a, l := newAppending(), q.lanes[e.category]
	e.writing = true // along leaves it out
	a.along(l)
	a.put(l, e, stays)
	return a
}

// appendPassing begins the append of an entry that does not come into memory.
func (q *queue) appendPassing(l *lane, e *entry) *appending {
	a := newAppending()
	q.added++
	e.number = q.added
	for i := range e.frames {
		l.sequenced = l.sequenced || e.frames[i].sequenced
	}
	a.along(l)
	a.put(l, e, passes)
	return a
}

// maxSpill bounds one append that frees memory, in bytes. Larger entries go alone.
const maxSpill = 4 << 20

// spill begins an append that takes entries out of memory: those that have been there for SpillAfter, those of any age while more
// than SpillAbove is in use, the fullest lanes first, and, when closing, those that cannot be sent now. It is nil when there is
// nothing to do. Entries that the spool turns out to have no room for come back.
func (q *queue) spill(now time.Time, everything bool) *appending {
	need := q.used - int64(q.cfg.SpillAbove*float64(q.cfg.MemoryBytes))
	oldest := now.Add(-q.cfg.SpillAfter)
	var lanes []*lane
	for _, l := range q.lanes {
		if len(l.entries) > 0 && !l.spilling {
			lanes = append(lanes, l)
		}
	}
	slices.SortFunc(lanes, func(a, b *lane) int { return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.name, b.name)) })
	a := newAppending()
	size, limit := int64(0), min(maxSpill, q.cfg.Spool.SegmentBytes/2)
	for _, l := range lanes {
		stuck := everything || q.closing && (q.away() || l.failures > 0 || !q.eligible(l, l.entries[0]))
		size += q.spillLane(a, l, now, limit-size, func(e *entry) bool {
			return stuck || need > 0 || e.since.Before(oldest)
		}, &need)
		if size >= limit {
			break
		}
	}
	if len(a.parts) == 0 {
		return nil
	}
	return a
}

// spillLane takes entries of a lane, from the front as long as wanted says so, up to limit bytes but at least one, and returns their
// bytes.
func (q *queue) spillLane(a *appending, l *lane, now time.Time, limit int64, wanted func(*entry) bool, need *int64) (size int64) {
	var leaving []*entry
	for _, e := range l.entries {
		if !e.spillable() {
			continue
		}
		if !wanted(e) || size > 0 && size+e.bytes > limit {
			break
		}
		// What is in the spool already finds room there in any case, so it does not go with what may not.
		if spooled := e.spooled(); !spooled && now.Before(l.fullTill) || len(leaving) > 0 && leaving[0].spooled() != spooled ||
			len(a.parts) > 0 && (len(a.records) == 0) != spooled {
			break
		}
		size += e.bytes
		*need -= e.charge
		leaving = append(leaving, e)
	}
	if len(leaving) > 0 {
		q.takeOut(a, l, leaving)
	}
	return size
}

// takeOut moves entries from a lane's queue to an append. In an ordered lane what is on its way comes with them, since it stood in
// front.
func (q *queue) takeOut(a *appending, l *lane, leaving []*entry) {
	if l.ordered() {
		for _, e := range l.flying {
			if e.spillable() && !e.spooled() {
				a.put(l, e, stays)
			}
		}
	}
	l.entries = slices.DeleteFunc(l.entries, func(e *entry) bool { return slices.Contains(leaving, e) })
	if len(l.entries) == 0 {
		q.leaveTurn(l)
	}
	l.spilling = true
	for _, e := range leaving {
		a.put(l, e, leaves)
	}
}

// appended is the event that an append has ended. refs are of its records, if it did not fail. Entries that are in the spool only become
// part of the backlog; those that have no room there come back. The entries that passed are the caller's to answer.
func (q *queue) appended(a *appending, refs []spool.Ref, now time.Time) {
	lanes := make(map[*lane][]*entry, 1) // and those of their entries that come back
	for i := range a.parts {
		p := &a.parts[i]
		l, e := p.l, p.e
		back := lanes[l]
		e.writing = false
		q.unref(e.mem)
		if a.err == nil {
			q.spooled(p, a.ids, refs)
		}
		if lanes[l] = back; p.kind == stays {
			continue
		}
		l.leaving = slices.DeleteFunc(l.leaving, func(x *entry) bool { return x == e })
		l.spilling = l.spilling && p.kind != leaves
		switch {
		case a.err == nil:
			q.enterBacklog(l, e, p.kind)
		case p.kind == leaves:
			lanes[l] = append(back, e)
		}
	}
	for l, back := range lanes {
		l.entries = append(back, l.entries...)
		slices.SortStableFunc(l.entries, func(a, b *entry) int { return cmp.Compare(a.number, b.number) })
		l.appends--
		if l.last == a {
			l.last = nil
		}
		if a.err != nil {
			l.fullTill = now.Add(time.Second)
		}
		q.joinTurn(l)
		q.forget(l)
	}
}

// spooled gives the frames of a part their references. Those that have an outcome by now are done.
func (q *queue) spooled(p *part, ids []int32, refs []spool.Ref) {
	at := p.from
	for i := range p.e.frames {
		f := &p.e.frames[i]
		if f.spooled {
			continue
		}
		for ; at < p.to && ids[at] != f.index; at++ {
			q.spool.Done(refs[at])
		}
		if at == p.to {
			break
		}
		f.ref, f.spooled = refs[at], true
		p.l.end = max(p.l.end, f.ref.Position())
		at++
	}
	q.spool.Done(refs[at:p.to]...)
	q.owe(p.l, p.e, 0)
}

// owe accounts for what an entry in memory may have to take in the spool.
func (q *queue) owe(l *lane, e *entry, n int64) {
	l.owed += n - e.owed
	q.owed += n - e.owed
	e.owed = n
}

// unspool takes a frame out of the spool.
func (q *queue) unspool(f *frame) {
	if f.spooled {
		q.spool.Done(f.ref)
		q.freed = true
	}
}

// enterBacklog leaves an entry to the spool. What stands behind it in memory is sent after it.
func (q *queue) enterBacklog(l *lane, e *entry, kind partKind) {
	sum := e.amount()
	refs := e.refs()
	q.spool.Release(refs...)
	if kind == leaves {
		q.counts.memory = q.counts.memory.minus(sum)
		q.unref(e.mem)
		q.used -= e.charge
		q.freed = true
		l.bytes -= e.charge
	} else {
		q.counts.accepted.plus(sum)
	}
	for _, x := range l.entries {
		if x.number > e.number {
			x.after = max(x.after, refs[len(refs)-1].Position())
		}
	}
	q.joinBacklog(l)
}
