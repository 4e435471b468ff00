package batcher

import (
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// lane is what the writer knows of one log, and the queue of what is on its way to it. The group at the head of the queue is the
// only one that may be appended, and its part the only one that may have the log opened. All its fields are guarded by ledger.mu.
type lane struct {
	// open: epoch is the writer's, and no record but its own was appended since next was learnt.
	open  bool
	epoch uint64
	// next is the LSN after everything that is committed.
	next record.LSN
	// start is what next was when the log was opened.
	start record.LSN
	// shifts counts what has changed the places of groups that were in the queue: groups ahead of them that left it otherwise than they
	// were claimed, or came before them. A blob that was put ahead of its turn is appended only if nothing has since then, even if
	// changes have cancelled each other out: so of two blobs of an epoch that claim a place, their footers tell which one got it.
	shifts uint64

	head, tail *group // linked by spot.behind, in the order of tickets but for what insert says

	opening bool // somebody asks the engine for it
	stalled bool // the accumulator was told not to take its frames, until the queue is empty
	trouble *trouble
}

// trouble is what went wrong with a log since the last append that succeeded. nil stands for none.
type trouble struct {
	since time.Time // when it began
	next  time.Time // when to try again
	err   error     // the last
	// opens and refusals count failures to open it and appends that another writer prevented, one after another.
	opens    int
	refusals int
	// final: trying again is of no use.
	final bool
}

// spot is a group's place in the queue of its log. It is guarded by ledger.mu.
type spot struct {
	lane   *lane
	part   *part
	behind *group
	// claimed is how many pointers the group had when it was claimed: what those behind it count on.
	claimed int
}

// ledger is the writer's place in each log that it appends to. It does no I/O.
//
// A part of a flush has a group in the queue of each of its logs. It is appended once it is at the head of all of them, so the frames
// of a shard keep their order, and parts that share no shard do not wait for each other.
type ledger struct {
	max int
	// troubled counts the logs with trouble. It changes with mu held.
	troubled atomic.Int32

	mu struct {
		sync.Mutex
		lanes map[record.ShardID]*lane
		// alive is when the engine last did something for us: what fails since then is not the engine as a whole.
		alive time.Time
		known knowledge
	}
}

func newLedger(limit int) *ledger {
	l := &ledger{max: limit}
	l.mu.lanes = make(map[record.ShardID]*lane)
	l.mu.known = make(knowledge)
	return l
}

// claim puts the groups of a part at the ends of the queues of their logs.
func (l *ledger) claim(p *part) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.evict()
	for _, g := range p.groups {
		g.spot.lane, g.spot.part, g.spot.claimed = l.lane(g.shard), p, len(g.payloads)
		l.push(g)
	}
}

// lane returns a log's lane, a new one when it is not known.
func (l *ledger) lane(s record.ShardID) *lane {
	ln := l.mu.lanes[s]
	if ln == nil {
		ln = &lane{}
		l.mu.lanes[s] = ln
	}
	return ln
}

func (l *ledger) push(g *group) {
	ln := g.spot.lane
	if ln.head == nil {
		ln.head, ln.tail = g, g
		return
	}
	ln.tail.spot.behind = g
	ln.tail = g
	g.spot.part.blocked++
}

// evict forgets logs that are not in use when there are too many: the next flush opens them again.
func (l *ledger) evict() {
	if len(l.mu.lanes) <= l.max {
		return
	}
	for s, ln := range l.mu.lanes { // in the map's order: random
		if ln.head == nil && !ln.opening {
			l.calm(ln)
			delete(l.mu.lanes, s)
		}
		if len(l.mu.lanes) <= l.max*9/10 {
			break
		}
	}
}

// remove takes a group out of the queue of its log. The caller holds mu.
func (l *ledger) remove(g *group) {
	ln := g.spot.lane
	if ln.head == g {
		ln.head = g.spot.behind
		if ln.head == nil {
			ln.tail = nil
			l.calm(ln) // what comes next begins anew
		} else {
			ln.head.spot.part.unblock()
		}
	} else {
		before := ln.head
		for before.spot.behind != g {
			before = before.spot.behind
		}
		before.spot.behind = g.spot.behind
		if ln.tail == g {
			ln.tail = before
		}
		g.spot.part.blocked--
	}
	g.spot.behind = nil
}

// insert puts a group into the queue of its log by its ticket, before what was cut with it, but behind a head that is being
// appended. The caller holds mu.
func (l *ledger) insert(g *group) {
	ln := g.spot.lane
	ln.shifts++
	var before *group
	for x := ln.head; x != nil; x = x.spot.behind {
		taken := x == ln.head && x.spot.part.committing
		if !taken && x.spot.part.flush.ticket >= g.spot.part.flush.ticket {
			break
		}
		before = x
	}
	switch {
	case ln.head == nil:
		ln.head, ln.tail = g, g
	case before == nil:
		ln.head.spot.part.blocked++
		g.spot.behind, ln.head = ln.head, g
	default:
		g.spot.behind, before.spot.behind = before.spot.behind, g
		if ln.tail == before {
			ln.tail = g
		}
		g.spot.part.blocked++
	}
}

// view is how a part stands.
type view struct {
	ready int // groups at the head of logs that are open
	// waiting are groups behind others, shut those at the head of logs that are not open.
	waiting, shut []*group
	// open are logs to be opened now.
	open []opening
	// moved are groups at the head of logs of another writer slot, failed those whose logs are given up.
	moved  []*group
	failed []failure
	placed bool // every group has a place, or the one it will have when all before it have committed
	turn   bool // all groups are ready
	// hopeless: nothing is in the way but logs that could not be opened, and more than once.
	hopeless bool
	// lonely: what is in the way has nothing to do with the engine as a whole.
	lonely bool
	// at is when to look again if nothing happens before; zero when there is no need.
	at time.Time
}

// opening is a log to be opened and how often that has failed.
type opening struct {
	shard  record.ShardID
	failed int
}

// failure is a group and why it is given up.
type failure struct {
	group *group
	err   error
}

// patience is when trouble is given up: after so many refusals, and after so long.
type patience struct {
	refusals int
	opening  time.Duration
}

// look finds out how a part stands, and sets its places. When it is the part's turn, and commit is set, it stays so until the part is
// settled: nobody comes before it any more.
func (l *ledger) look(p *part, slot uint16, now time.Time, limit patience, commit bool) (v view) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v.placed, v.lonely, v.hopeless = true, true, true
	for _, g := range p.groups {
		ln := g.spot.lane
		g.epoch, g.lsn, g.start, g.shifts = 0, 0, ln.start, ln.shifts
		g.predicted = ln.head != g
		switch {
		case ln.head != g:
			v.waiting = append(v.waiting, g)
			v.hopeless = false
			v.placed = v.placed && ln.open
			l.predict(g)
		case ln.open:
			v.ready++
			g.epoch, g.lsn = ln.epoch, ln.next
		case !g.bound && g.shard.Writer() != slot:
			v.moved = append(v.moved, g)
		default:
			v.placed = false
			l.shut(g, now, limit, &v)
		}
	}
	v.turn = v.ready == len(p.groups)
	if p.committing && !v.turn {
		l.yield(p)
	}
	p.committing = v.turn && commit
	return v
}

// shut looks at a group whose log is not open.
func (l *ledger) shut(g *group, now time.Time, limit patience, v *view) {
	ln := g.spot.lane
	t := ln.trouble
	if t != nil && (t.final || t.refusals > limit.refusals || t.opens > 0 && now.Sub(t.since) >= limit.opening) {
		v.failed = append(v.failed, failure{g, t.err})
		return
	}
	v.shut = append(v.shut, g)
	failed := 0
	if t != nil {
		failed = t.opens
		v.hopeless = v.hopeless && t.opens >= heldOpens
		v.lonely = v.lonely && (t.opens == 0 || l.mu.alive.After(t.since))
	} else {
		v.hopeless = false
		v.lonely = v.lonely && l.mu.alive.After(g.spot.part.since)
	}
	switch {
	case ln.opening:
	case t != nil && now.Before(t.next):
		if v.at.IsZero() || t.next.Before(v.at) {
			v.at = t.next
		}
	default:
		ln.opening = true
		v.open = append(v.open, opening{g.shard, failed})
	}
}

// predict gives a group behind others the place that it will have when all of them have committed.
func (l *ledger) predict(g *group) {
	ln := g.spot.lane
	if !ln.open {
		return
	}
	g.epoch, g.lsn = ln.epoch, ln.next
	for x := ln.head; x != g; x = x.spot.behind {
		g.lsn += record.LSN(x.spot.claimed)
	}
}

// yield gives a part's places at the heads of queues back to what was cut before it, and was put behind it while it was being
// appended: parts that wait for each other by their tickets alone never do so in a circle.
func (l *ledger) yield(p *part) {
	p.committing = false
	for _, g := range p.groups {
		if x := g.spot.behind; x != nil && x.spot.part.flush.ticket < p.flush.ticket {
			l.remove(g)
			l.insert(g)
		}
	}
}

// divide gives groups of a part to another one, which keeps their places in the queues.
func (l *ledger) divide(p, to *part, groups []*group) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range groups {
		g.spot.part = to
		if g.spot.lane.head != g {
			p.blocked--
			to.blocked++
		}
	}
}

// move puts groups into the logs of another writer slot, by their tickets. It returns the logs that are not stalled any more.
func (l *ledger) move(groups []*group, slot uint16) (resumed []record.ShardID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range groups {
		l.remove(g)
		g.spot.lane.shifts++
		resumed = resume(g.spot.lane, g.shard, resumed)
		g.shard = record.MakeShardID(g.shard.Category(), g.shard.Logical(), slot)
		g.spot.lane = l.lane(g.shard)
		l.insert(g)
	}
	return resumed
}

// opened takes over what the engine says of logs that were opened.
func (l *ledger) opened(states []metalog.State, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.alive = now
	for _, s := range states {
		ln := l.lane(s.Shard)
		ln.open, ln.opening, ln.epoch, ln.next = true, false, s.Epoch, s.NextLSN
		ln.start = s.NextLSN
		if t := ln.trouble; t != nil && t.refusals == 0 {
			l.calm(ln)
		} else if t != nil {
			t.opens = 0
		}
		l.wake(ln)
	}
}

// unopened says why logs could not be opened, and when to try again.
func (l *ledger) unopened(shards []record.ShardID, err error, now time.Time, pause func(failures int) time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range shards {
		ln := l.lane(s)
		ln.open, ln.opening = false, false
		if ln.head == nil {
			continue // nobody wants it any more
		}
		t := l.trouble(ln, now)
		t.opens++
		t.err, t.next = err, now.Add(pause(t.opens))
		l.wake(ln)
	}
}

// ended says that a log takes no more records, or cannot be opened at all.
func (l *ledger) ended(s record.ShardID, err error, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.lane(s)
	ln.open, ln.opening = false, false
	if ln.head == nil {
		return
	}
	t := l.trouble(ln, now)
	t.err, t.final = err, true
	l.wake(ln)
}

// refusedAppend marks logs whose last append another writer has prevented: they are opened before they are used again.
func (l *ledger) refusedAppend(groups []*group, err error, now time.Time, pause func(failures int) time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.alive = now
	for _, g := range groups {
		ln := g.spot.lane
		ln.open = false
		t := l.trouble(ln, now)
		t.refusals++
		t.err, t.next = err, now
		if t.refusals > 1 {
			// Two writers of a log that take it from each other must not do so in step.
			t.next = now.Add(pause(t.refusals - 1))
		}
	}
}

// lose marks logs as ones that must be opened before they are appended to.
func (l *ledger) lose(groups []*group) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range groups {
		g.spot.lane.open = false
	}
}

func (l *ledger) trouble(ln *lane, now time.Time) *trouble {
	if ln.trouble == nil {
		ln.trouble = &trouble{since: now}
		l.troubled.Add(1)
	}
	return ln.trouble
}

// calm ends a log's trouble.
func (l *ledger) calm(ln *lane) {
	if ln.trouble != nil {
		ln.trouble = nil
		l.troubled.Add(-1)
	}
}

// wake tells everyone in a log's queue that it is open or is not.
func (l *ledger) wake(ln *lane) {
	for g := ln.head; g != nil; g = g.spot.behind {
		g.spot.part.signal()
	}
}

// stall marks logs whose queues do not move, and returns those that were not marked.
func (l *ledger) stall(groups ...[]*group) (shards []record.ShardID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, list := range groups {
		for _, g := range list {
			if !g.spot.lane.stalled {
				g.spot.lane.stalled = true
				shards = append(shards, g.shard)
			}
		}
	}
	return shards
}

// settle takes a part that is done out of the queues, and returns the logs that are not stalled any more. committed says that its
// pointers were appended.
func (l *ledger) settle(p *part, committed bool, now time.Time) (resumed []record.ShardID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if committed {
		l.mu.alive = now
	}
	for _, g := range p.groups {
		ln := g.spot.lane
		if committed {
			ln.next += record.LSN(g.records())
			l.calm(ln)
			if g.exactlyOnce {
				l.learn(g)
			}
		}
		if !committed || g.records() != g.spot.claimed {
			ln.shifts++
		}
		l.remove(g)
		resumed = resume(ln, g.shard, resumed)
	}
	return resumed
}

// resume adds a shard to those that are not stalled any more, if nothing is on its way to its log.
func resume(ln *lane, s record.ShardID, resumed []record.ShardID) []record.ShardID {
	if ln.head != nil || !ln.stalled {
		return resumed
	}
	ln.stalled = false
	return append(resumed, s)
}

// alive is when the engine last did something.
func (l *ledger) alive() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.alive
}

// heldOpens and heldRefusals are how often a log must have failed before new frames for it are refused.
const (
	heldOpens    = 2
	heldRefusals = 2
)

// refusal is why frames for a log are not taken at present: nil, unless it alone, and not the engine, has been in trouble for some
// attempts. Elsewhere they may be stored at once; here they would only take memory.
func (l *ledger) refusal(s record.ShardID) *trouble {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.mu.lanes[s]
	if ln == nil || ln.head == nil || ln.trouble == nil {
		return nil
	}
	t := *ln.trouble
	if t.refusals < heldRefusals && (t.opens < heldOpens || !l.mu.alive.After(t.since)) {
		return nil
	}
	return &t
}
