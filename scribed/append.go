package scribed

import (
	"cmp"
	"slices"
	"time"

	"scribe/scribed/spool"
)

// partKind says what happens to an entry that is appended to the spool.
type partKind uint8

const (
	stays  partKind = 1 // it is in the queue or in flight, and stays there
	leaves partKind = 2 // it was removed from the queue, and will be in the spool only
	passes partKind = 3 // it was never in the queue
)

// appendPart is an entry in an append.
type appendPart struct {
	l        *categoryQueue
	e        *queueEntry
	kind     partKind
	from, to int // range of its records in the append
}

// spoolAppend is one append to the spool: entries of one or more queues, in order within each queue.
type spoolAppend struct {
	parts   []appendPart
	records []spool.Record
	ids     []int32 // frame.index of each record
	// prevs are the appends before it in its queues. It waits for them, so that the spool has each queue in order. If an earlier
	// append of an ordered queue fails, it fails too: otherwise the entries of the failed append would stand after it.
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

// addMemoryOnly adds those of the given entries of an ordered queue that are in memory only: entries that reach the spool later
// must not stand before them there.
func (a *spoolAppend) addMemoryOnly(l *categoryQueue, lists ...[]*queueEntry) {
	if !l.isOrdered() {
		return
	}
	if l.live.failed { // what failed is queued again, and what followed it is still in flight
		all := slices.Concat(lists...)
		slices.SortStableFunc(all, compareEntries)
		lists = [][]*queueEntry{all}
	}
	for _, entries := range lists {
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
	e.writing = true // addMemoryOnly skips it
	a.addMemoryOnly(l, l.live.entries(), l.entries)
	a.addEntry(l, e, stays)
	return a
}

// appendPassing begins the append of an entry that goes to the spool without entering memory.
func (q *sendQueue) appendPassing(l *categoryQueue, e *queueEntry) *spoolAppend {
	a := newAppending()
	q.added++
	e.number = q.added
	for i := range e.frames {
		l.sequenced = l.sequenced || e.frames[i].sequenced
	}
	a.addMemoryOnly(l, l.live.entries(), l.entries)
	a.addEntry(l, e, passes)
	return a
}

// maxSpill bounds the bytes of one append that frees memory. Larger entries go alone.
const maxSpill = 4 << 20

// planSpill begins an append that moves entries out of memory: those older than SpillAfter; entries of any age while more than
// SpillAbove is in use, from the fullest queues first; and, when closing, those that cannot be sent now. It returns nil when
// there are none. Entries return to the queue if the spool turns out to be full.
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

// spillCandidates returns the queues that have entries to spill, the fullest first. What failed stays until what follows it is
// answered: that may be appended only after it.
func (q *sendQueue) spillCandidates() (queues []*categoryQueue) {
	for _, c := range q.queues {
		if len(c.entries) > 0 && !c.spilling && !c.live.failed {
			queues = append(queues, c)
		}
	}
	slices.SortFunc(queues, func(a, b *categoryQueue) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.name, b.name))
	})
	return queues
}

// spillPlan is the state of planSpill while it fills an append.
type spillPlan struct {
	now         time.Time
	a           *spoolAppend
	size, limit int64 // bytes of the entries
	need        int64 // bytes of memory above SpillAbove
	oldest      time.Time
	copied      bool // the entries are already in the spool, and only leave the memory
}

// chooseEntries returns the entries that leave, from the front of the queue. Entries of a stuck queue leave at any age.
func (p *spillPlan) chooseEntries(c *categoryQueue, stuck bool) (leaving []*queueEntry) {
	for _, e := range c.entries {
		if !e.canSpill() {
			continue
		}
		copied := e.isSpooled()
		mustLeave := stuck || p.need > 0 || e.since.Before(p.oldest)
		fits := p.size == 0 || p.size+e.bytes <= p.limit
		refused := !copied && p.now.Before(c.fullTill)
		// An entry that is already in the spool never fails to leave, so it is not mixed with entries that may.
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

// moveToAppend moves entries from a queue to an append. In an ordered queue the entries in flight are appended too, since they
// stood before them.
func (q *sendQueue) moveToAppend(a *spoolAppend, c *categoryQueue, leaving []*queueEntry) {
	a.addMemoryOnly(c, c.live.entries())
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
		c.queued -= e.bytes
		a.addEntry(c, e, leaves)
	}
}

// finishAppend is the event that an append has ended. refs are those of its records, if it succeeded. Entries that are now in the
// spool only become part of the backlog; entries that found the spool full return to the queue. The caller answers the entries
// that passed.
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
			for _, e := range entries {
				c.queued += e.bytes
			}
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

// waitFor makes the remaining entries wait for those before them that left the memory. Both are in order of their numbers.
func (c *categoryQueue) waitFor(gone []*queueEntry) {
	at, next := spool.Position(0), 0
	for _, e := range c.entries {
		for ; next < len(gone) && gone[next].number < e.number; next++ {
			at = gone[next].spoolRefs()[len(gone[next].frames)-1].Position
		}
		e.after = max(e.after, at)
	}
}

// assignRefs assigns references to the frames of a part. Records of frames that already have an outcome are marked done.
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
		p.l.end = max(p.l.end, f.ref.Position)
		at++
	}
	q.spool.Done(refs[at:p.to]...)
	q.setOwed(p.l, p.e, 0)
}

// setOwed sets the bytes that an entry in memory may need in the spool.
func (q *sendQueue) setOwed(l *categoryQueue, e *queueEntry, n int64) {
	l.owed += n - e.owed
	q.owed += n - e.owed
	e.owed = n
}

// removeFromSpool marks a frame's record done, if it has one.
func (q *sendQueue) removeFromSpool(f *queuedFrame) {
	if f.spooled {
		q.spool.Done(f.ref)
		q.freed = true
	}
}

// leaveToBacklog makes an entry part of the backlog.
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
		q.noteTaken(e)
	}
	q.joinBacklog(l)
}
