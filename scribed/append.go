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

// appendPart is an entry in an append.
type appendPart struct {
	l        *categoryQueue
	e        *queueEntry
	kind     partKind
	from, to int // its records
}

// spoolAppend is one append to the spool: entries of one or more lanes, of each in order.
type spoolAppend struct {
	parts   []appendPart
	records []spool.Record
	ids     []int32 // frame.index of each record
	// prevs are the appends before it in its lanes. It waits for them, so that the spool has each lane in order, and fails as they
	// did if the lane is ordered: what was in front of it would stand behind it.
	prevs []earlierAppend
	done  chan struct{}
	err   error // set when done is closed
}

type earlierAppend struct {
	a       *spoolAppend
	ordered bool
}

func newAppending() *spoolAppend { return &spoolAppend{done: make(chan struct{})} }

// follow makes the append the newest of a lane.
func (a *spoolAppend) follow(l *categoryQueue) {
	if l.last == a {
		return
	}
	if l.last != nil {
		a.prevs = append(a.prevs, earlierAppend{a: l.last, ordered: l.isOrdered()})
	}
	l.last = a
	l.appends++
}

// addEntry adds an entry to the append.
func (a *spoolAppend) addEntry(l *categoryQueue, e *queueEntry, kind partKind) {
	a.follow(l)
	p := appendPart{l: l, e: e, kind: kind, from: len(a.records)}
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

// addMemoryOnly adds what of an ordered lane is in memory only: what comes to the spool later must not be in front of it there.
func (a *spoolAppend) addMemoryOnly(l *categoryQueue) {
	if !l.isOrdered() {
		return
	}
	for _, entries := range [][]*queueEntry{l.inFlight, l.entries} {
		for _, e := range entries {
			if e.canSpill() && !e.isSpooled() {
				a.addEntry(l, e, stays)
			}
		}
	}
}

// appendEntry begins the append of an entry that is in the queue and stays there.
func (q *sendQueue) appendEntry(e *queueEntry) *spoolAppend {
	a, l := newAppending(), q.queues[e.category]
	e.writing = true // along leaves it out
	a.addMemoryOnly(l)
	a.addEntry(l, e, stays)
	return a
}

// appendPassing begins the append of an entry that does not come into memory.
func (q *sendQueue) appendPassing(l *categoryQueue, e *queueEntry) *spoolAppend {
	a := newAppending()
	q.added++
	e.number = q.added
	for i := range e.frames {
		l.sequenced = l.sequenced || e.frames[i].sequenced
	}
	a.addMemoryOnly(l)
	a.addEntry(l, e, passes)
	return a
}

// maxSpill bounds one append that frees memory, in bytes. Larger entries go alone.
const maxSpill = 4 << 20

// planSpill begins an append that takes entries out of memory: those that have been there for SpillAfter, those of any age while more
// than SpillAbove is in use, the fullest lanes first, and, when closing, those that cannot be sent now. It is nil when there is
// nothing to do. Entries that the spool turns out to have no room for come back.
func (q *sendQueue) planSpill(now time.Time, everything bool) *spoolAppend {
	need := q.used - int64(q.cfg.SpillAbove*float64(q.cfg.MemoryBytes))
	oldest := now.Add(-q.cfg.SpillAfter)
	var lanes []*categoryQueue
	for _, l := range q.queues {
		if len(l.entries) > 0 && !l.spilling {
			lanes = append(lanes, l)
		}
	}
	slices.SortFunc(lanes, func(a, b *categoryQueue) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.name, b.name))
	})
	a := newAppending()
	size, limit := int64(0), min(maxSpill, q.cfg.Spool.SegmentBytes/2)
	for _, l := range lanes {
		stuck := everything || q.closing && (q.isUnavailable() || l.failures > 0 || !q.isEligible(l, l.entries[0]))
		size += q.spillLane(a, l, now, limit-size, func(e *queueEntry) bool {
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
func (q *sendQueue) spillLane(a *spoolAppend, l *categoryQueue, now time.Time, limit int64, wanted func(*queueEntry) bool, need *int64) (size int64) {
	var leaving []*queueEntry
	for _, e := range l.entries {
		if !e.canSpill() {
			continue
		}
		if !wanted(e) || size > 0 && size+e.bytes > limit {
			break
		}
		// What is in the spool already finds room there in any case, so it does not go with what may not.
		if spooled := e.isSpooled(); !spooled && now.Before(l.fullTill) || len(leaving) > 0 && leaving[0].isSpooled() != spooled ||
			len(a.parts) > 0 && (len(a.records) == 0) != spooled {
			break
		}
		size += e.bytes
		*need -= e.charge
		leaving = append(leaving, e)
	}
	if len(leaving) > 0 {
		q.moveToAppend(a, l, leaving)
	}
	return size
}

// moveToAppend moves entries from a lane's queue to an append. In an ordered lane what is on its way comes with them, since it stood in
// front.
func (q *sendQueue) moveToAppend(a *spoolAppend, l *categoryQueue, leaving []*queueEntry) {
	if l.isOrdered() {
		for _, e := range l.inFlight {
			if e.canSpill() && !e.isSpooled() {
				a.addEntry(l, e, stays)
			}
		}
	}
	l.entries = slices.DeleteFunc(l.entries, func(e *queueEntry) bool { return slices.Contains(leaving, e) })
	if len(l.entries) == 0 {
		q.leaveTurn(l)
	}
	l.spilling = true
	for _, e := range leaving {
		a.addEntry(l, e, leaves)
	}
}

// finishAppend is the event that an append has ended. refs are of its records, if it did not fail. Entries that are in the spool only become
// part of the backlog; those that have no room there come back. The entries that passed are the caller's to answer.
func (q *sendQueue) finishAppend(a *spoolAppend, refs []spool.Ref, now time.Time) {
	lanes := make(map[*categoryQueue][]*queueEntry, 1) // and those of their entries that come back
	for i := range a.parts {
		p := &a.parts[i]
		l, e := p.l, p.e
		back := lanes[l]
		e.writing = false
		q.releaseBuffer(e.mem)
		if a.err == nil {
			q.assignRefs(p, a.ids, refs)
		}
		if lanes[l] = back; p.kind == stays {
			continue
		}
		l.leaving = slices.DeleteFunc(l.leaving, func(x *queueEntry) bool { return x == e })
		l.spilling = l.spilling && p.kind != leaves
		switch {
		case a.err == nil:
			q.leaveToBacklog(l, e, p.kind)
		case p.kind == leaves:
			lanes[l] = append(back, e)
		}
	}
	for l, back := range lanes {
		l.entries = append(back, l.entries...)
		slices.SortStableFunc(l.entries, func(a, b *queueEntry) int { return cmp.Compare(a.number, b.number) })
		l.appends--
		if l.last == a {
			l.last = nil
		}
		if a.err != nil {
			l.fullTill = now.Add(time.Second)
		}
		q.joinTurn(l)
		q.forgetIdle(l)
	}
}

// assignRefs gives the frames of a part their references. Those that have an outcome by now are done.
func (q *sendQueue) assignRefs(p *appendPart, ids []int32, refs []spool.Ref) {
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
	q.setOwed(p.l, p.e, 0)
}

// setOwed accounts for what an entry in memory may have to take in the spool.
func (q *sendQueue) setOwed(l *categoryQueue, e *queueEntry, n int64) {
	l.owed += n - e.owed
	q.owed += n - e.owed
	e.owed = n
}

// removeFromSpool takes a frame out of the spool.
func (q *sendQueue) removeFromSpool(f *queuedFrame) {
	if f.spooled {
		q.spool.Done(f.ref)
		q.freed = true
	}
}

// leaveToBacklog leaves an entry to the spool. What stands behind it in memory is sent after it.
func (q *sendQueue) leaveToBacklog(l *categoryQueue, e *queueEntry, kind partKind) {
	sum := e.amount()
	refs := e.spoolRefs()
	q.spool.Release(refs...)
	if kind == leaves {
		q.counts.memory = q.counts.memory.minus(sum)
		q.releaseBuffer(e.mem)
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
