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
	frames   int64
	ticket   int64 // what an entry was behind that came just before
}

// appending is one append to the spool: entries of one or more lanes, of each in order.
type appending struct {
	parts   []part
	records []spool.Record
	ids     []int32 // frame.index of each record
	claimed bool    // the records belong to entries that stay in memory
	// release are records of entries that leave, of frames that were in the spool already.
	release []spool.Ref
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
	p := part{l: l, e: e, kind: kind, from: len(a.records), frames: int64(len(e.frames)), ticket: l.tail()}
	e.writing = true
	if e.mem != nil {
		e.mem.refs++
	}
	for i := range e.frames {
		f := &e.frames[i]
		switch {
		case !f.spooled:
			a.records = append(a.records, spool.Record{Category: l.name, Messages: int(f.messages), Data: f.bytes})
			a.ids = append(a.ids, f.index)
		case kind == leaves:
			a.release = append(a.release, f.ref)
		}
	}
	p.to = len(a.records)
	a.claimed = a.claimed || kind == stays
	if kind != stays {
		l.pending += p.frames
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
		stuck := everything || q.closing && (q.away() || l.failures > 0 || !l.eligible(l.entries[0]))
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

// takeOut moves entries from a lane's queue to an append. In an ordered lane everything that stays in memory and stands behind some
// of them is sent after them, and what is on its way comes with them, since it stood in front.
func (q *queue) takeOut(a *appending, l *lane, leaving []*entry) {
	if l.ordered() {
		for _, e := range l.flying {
			if e.spillable() && !e.spooled() {
				a.put(l, e, stays)
			}
		}
	}
	passed := int64(0) // frames of those that leave so far
	next := 0
	rest := l.entries[:0]
	for _, e := range l.entries {
		// In the backlog an entry is where it was behind; what comes after it has so much more in front of it.
		e.behind = max(e.behind, l.finished) + passed
		if next < len(leaving) && leaving[next] == e {
			next++
			passed += int64(len(e.frames))
			continue
		}
		rest = append(rest, e)
	}
	clear(l.entries[len(rest):])
	l.entries = rest
	if len(rest) == 0 {
		q.leaveTurn(l)
	}
	l.spilling = true
	for _, e := range leaving {
		a.put(l, e, leaves)
	}
}

// effects are what has to be done outside of the lock once an event was dealt with.
type effects struct {
	done, release []spool.Ref
	letters       []deadFrame
	unused        []*memory
}

// appended is the event that an append has ended. refs are of its records, if it did not fail. Those of entries that are in the spool
// only are part of the backlog by then. The entries that passed are the caller's to answer.
func (q *queue) appended(a *appending, refs []spool.Ref, now time.Time) (fx effects) {
	err := a.err
	failed := make(map[*lane][]*entry)
	lanes := make(map[*lane]bool, 1)
	for i := range a.parts {
		p := &a.parts[i]
		l, e := p.l, p.e
		lanes[l] = true
		e.writing = false
		if e.mem != nil {
			fx.unused = append(fx.unused, e.mem)
		}
		if err == nil {
			q.spooled(p, a.ids, refs, &fx)
		}
		if p.kind == stays {
			continue
		}
		l.pending -= p.frames
		switch {
		case err == nil:
			q.enterBacklog(p, &fx)
		case p.kind == leaves:
			failed[l] = append(failed[l], e)
		default:
			l.forgo(p)
		}
	}
	for l := range lanes {
		l.appends--
		if l.last == a {
			l.last = nil
		}
		q.putBack(l, failed[l])
		if err != nil {
			l.fullTill = now.Add(time.Second)
		}
		q.forget(l)
	}
	return fx
}

// spooled gives the frames of a part their references. Those that have an outcome by now are done.
func (q *queue) spooled(p *part, ids []int32, refs []spool.Ref, fx *effects) {
	at := p.from
	for i := range p.e.frames {
		f := &p.e.frames[i]
		if f.spooled {
			continue
		}
		for ; at < p.to && ids[at] != f.index; at++ {
			fx.done = append(fx.done, refs[at])
		}
		if at == p.to {
			break
		}
		f.ref, f.spooled = refs[at], true
		at++
		q.hold1(p.l, f, 1)
	}
	fx.done = append(fx.done, refs[at:p.to]...)
	q.owe(p.l, p.e, 0)
}

// owe accounts for what an entry in memory may have to take in the spool.
func (q *queue) owe(l *lane, e *entry, n int64) {
	l.owed += n - e.owed
	q.owed += n - e.owed
	e.owed = n
}

// hold1 accounts for a frame that is in the spool (sign 1), or is not any more (-1).
func (q *queue) hold1(l *lane, f *frame, sign int64) {
	n := sign * (int64(len(f.bytes)) + recordOverhead)
	l.held += n
	q.held += n
	q.freed = q.freed || sign < 0
}

// enterBacklog accounts for an entry that is in the spool only now.
func (q *queue) enterBacklog(p *part, fx *effects) {
	l, e := p.l, p.e
	sum := e.amount()
	l.disk.plus(sum)
	q.counts.disk.plus(sum)
	if p.kind == leaves {
		l.spilling = false
		q.counts.memory = q.counts.memory.minus(sum)
		fx.unused = append(fx.unused, e.mem)
		q.used -= e.charge
		q.freed = true
		l.bytes -= e.charge
	} else {
		q.counts.accepted.plus(sum)
	}
	q.joinBacklog(l)
}

// forgo lets nobody wait for an entry that did not get into the backlog.
func (l *lane) forgo(p *part) {
	for _, e := range l.entries {
		if e.behind > p.ticket {
			e.behind = max(e.behind-p.frames, p.ticket)
		}
	}
}

// putBack returns entries to their places in a lane's queue that could not be written to the spool.
func (q *queue) putBack(l *lane, entries []*entry) {
	if len(entries) == 0 {
		return
	}
	l.spilling = false
	for _, e := range l.entries {
		for _, failed := range entries {
			if failed.number < e.number {
				e.behind -= int64(len(failed.frames))
			}
		}
	}
	for i, e := range entries {
		for _, failed := range entries[:i] {
			e.behind -= int64(len(failed.frames))
		}
	}
	l.entries = append(entries, l.entries...)
	slices.SortStableFunc(l.entries, func(a, b *entry) int { return cmp.Compare(a.number, b.number) })
	q.joinTurn(l)
}
