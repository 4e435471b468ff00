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

// spoolAppend is one append to the spool: entries of one or more queues, of each in order.
type spoolAppend struct {
	parts   []appendPart
	records []spool.Record
	ids     []int32 // frame.index of each record
	// prevs are the appends before it in its queues. It waits for them, so that the spool has each queue in order, and fails as they
	// did if the queue is ordered: what was in front of it would stand behind it.
	prevs []earlierAppend
	done  chan struct{}
	err   error // set when done is closed
}

type earlierAppend struct {
	a       *spoolAppend
	ordered bool
}

func newAppending() *spoolAppend { return &spoolAppend{done: make(chan struct{})} }

// follow makes the append the newest of a queue.
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

// addMemoryOnly adds what of an ordered queue is in memory only: what comes to the spool later must not be in front of it there.
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
// than SpillAbove is in use, the fullest queues first, and, when closing, those that cannot be sent now. It is nil when there is
// nothing to do. Entries for which the spool turns out to be full come back.
func (q *sendQueue) planSpill(now time.Time, everything bool) *spoolAppend {
	p := spillPlan{
		now: now, a: newAppending(), limit: min(maxSpill, q.cfg.Spool.SegmentBytes/2), oldest: now.Add(-q.cfg.SpillAfter),
		need: q.used - int64(q.cfg.SpillAbove*float64(q.cfg.MemoryBytes)),
	}
	for _, c := range q.spillCandidates() {
		stuck := everything || q.closing && (q.isUnavailable() || c.failures > 0 || !q.isEligible(c, c.entries[0]))
		if leaving := p.chooseEntries(c, stuck); len(leaving) > 0 {
			q.moveToAppend(p.a, c, leaving)
		}
		if p.size >= p.limit {
			break
		}
	}
	if len(p.a.parts) == 0 {
		return nil
	}
	return p.a
}

// spillCandidates returns the queues from which entries may leave the memory, the fullest first.
func (q *sendQueue) spillCandidates() (queues []*categoryQueue) {
	for _, c := range q.queues {
		if len(c.entries) > 0 && !c.spilling {
			queues = append(queues, c)
		}
	}
	slices.SortFunc(queues, func(a, b *categoryQueue) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.name, b.name))
	})
	return queues
}

// spillPlan is an append of entries that leave the memory, while it is filled.
type spillPlan struct {
	now         time.Time
	a           *spoolAppend
	size, limit int64 // bytes of the entries
	need        int64 // bytes of memory above SpillAbove
	oldest      time.Time
	copied      bool // the entries are in the spool already, and only leave the memory
}

// chooseEntries returns the entries of a queue that leave, from its front. stuck entries leave at any age.
func (p *spillPlan) chooseEntries(c *categoryQueue, stuck bool) (leaving []*queueEntry) {
	for _, e := range c.entries {
		if !e.canSpill() {
			continue
		}
		copied := e.isSpooled()
		mustLeave := stuck || p.need > 0 || e.since.Before(p.oldest)
		fits := p.size == 0 || p.size+e.bytes <= p.limit
		refused := !copied && p.now.Before(c.fullTill)
		// What is in the spool already never fails to leave, so it does not go with what may.
		sameKind := p.size == 0 || p.copied == copied
		if !mustLeave || !fits || refused || !sameKind {
			break
		}
		p.copied = copied
		p.size += e.bytes
		p.need -= e.charge
		leaving = append(leaving, e)
	}
	return leaving
}

// moveToAppend moves entries from a queue to an append. In an ordered queue what is on its way comes with them, since it stood in
// front.
func (q *sendQueue) moveToAppend(a *spoolAppend, c *categoryQueue, leaving []*queueEntry) {
	if c.isOrdered() {
		for _, e := range c.inFlight {
			if e.canSpill() && !e.isSpooled() {
				a.addEntry(c, e, stays)
			}
		}
	}
	next := 0
	c.entries = slices.DeleteFunc(c.entries, func(e *queueEntry) bool {
		leaves := next < len(leaving) && leaving[next] == e
		if leaves {
			next++
		}
		return leaves
	})
	if len(c.entries) == 0 {
		q.leaveTurn(c)
	}
	c.spilling = true
	for _, e := range leaving {
		a.addEntry(c, e, leaves)
	}
}

// finishAppend is the event that an append has ended. refs are of its records, if it did not fail. Entries that are in the spool only
// become part of the backlog; those for which it was full come back. The entries that passed are the caller's to answer.
func (q *sendQueue) finishAppend(a *spoolAppend, refs []spool.Ref, now time.Time) {
	leaving := make(map[*categoryQueue][]*queueEntry, 1)
	for i := range a.parts {
		p := &a.parts[i]
		p.e.writing = false
		q.releaseBuffer(p.e.mem)
		if a.err == nil {
			q.assignRefs(p, a.ids, refs)
		}
		switch of := leaving[p.l]; {
		case p.kind != stays && a.err == nil:
			q.leaveToBacklog(p.l, p.e, p.kind)
			leaving[p.l] = append(of, p.e)
		case p.kind == leaves:
			leaving[p.l] = append(of, p.e)
		default:
			leaving[p.l] = of
		}
	}
	for c, entries := range leaving {
		c.leaving = slices.DeleteFunc(c.leaving, func(e *queueEntry) bool { return !e.writing })
		c.spilling = slices.ContainsFunc(c.leaving, func(e *queueEntry) bool { return e.mem != nil })
		if a.err == nil {
			c.waitFor(entries)
		} else {
			c.fullTill = now.Add(time.Second)
			c.entries = append(entries, c.entries...)
			slices.SortStableFunc(c.entries, func(a, b *queueEntry) int { return cmp.Compare(a.number, b.number) })
		}
		c.appends--
		if c.last == a {
			c.last = nil
		}
		q.joinTurn(c)
		q.forgetIdle(c)
	}
}

// waitFor lets what stands behind entries that left the memory be sent after them. Both are in the order of their numbers.
func (c *categoryQueue) waitFor(gone []*queueEntry) {
	at, next := spool.Position(0), 0
	for _, e := range c.entries {
		for ; next < len(gone) && gone[next].number < e.number; next++ {
			at = gone[next].spoolRefs()[len(gone[next].frames)-1].Position()
		}
		e.after = max(e.after, at)
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

// leaveToBacklog leaves an entry to the spool.
func (q *sendQueue) leaveToBacklog(l *categoryQueue, e *queueEntry, kind partKind) {
	sum := e.amount()
	q.spool.Release(e.spoolRefs()...)
	if kind == leaves {
		q.counts.memory = q.counts.memory.Minus(sum)
		q.releaseBuffer(e.mem)
		q.used -= e.charge
		q.freed = true
		l.bytes -= e.charge
	} else {
		q.counts.accepted = q.counts.accepted.Plus(sum)
	}
	q.joinBacklog(l)
}
