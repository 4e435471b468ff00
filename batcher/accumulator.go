package batcher

import (
	"cmp"
	"math"
	"slices"
	"time"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// accumulator decides what is gathered, when it is cut into a flush, and when a flush is written. It is a plain state machine:
// events and times go in, and what to do comes out of ready. It does no I/O, starts nothing, and reads no clock.
type accumulator struct {
	cfg  Config
	room room

	tickets  uint64
	requests uint64
	last     *flush // cut last; kept for the order of claims
	tenants  map[uint32]*tenant
	groups   map[record.ShardID]*group // frames that no flush has taken yet
	flows    []*flow                   // by class
	stalled  map[record.ShardID]struct{}
	parts    int // that are not done
	detached int // of them, those that count for no flush in flight
	closing  bool
	// took is the moving average of how long flushes take, ended when the last one did.
	took  time.Duration
	ended time.Time

	jobs ready
}

// ready is what the driver must do.
type ready struct {
	compress []*block // give to the compressor
	urge     []*block // of those, the ones that a flush waits for now
	complete []*flush // cut, and all blocks are compressed
	start    []*flush // begin to write, in this order
}

func newAccumulator(cfg Config) accumulator {
	return accumulator{
		cfg:     cfg,
		room:    room{limit: cfg.MemoryBytes, share: cfg.Share},
		tenants: make(map[uint32]*tenant),
		groups:  make(map[record.ShardID]*group),
		stalled: make(map[record.ShardID]struct{}),
	}
}

// ready returns what is to be done since the last call.
func (a *accumulator) ready() ready {
	jobs := a.jobs
	a.jobs = ready{}
	return jobs
}

// flow returns the flow of a retention class. There are few.
func (a *accumulator) flow(class uint32) *flow {
	i, found := slices.BinarySearchFunc(a.flows, class, func(fl *flow, class uint32) int { return cmp.Compare(fl.class, class) })
	if !found {
		a.flows = slices.Insert(a.flows, i, &flow{class: class})
	}
	return a.flows[i]
}

// tenant returns the category of a target.
func (a *accumulator) tenant(t target) *tenant {
	id := t.shard.Category()
	tn := a.tenants[id]
	switch {
	case tn == nil:
		tn = &tenant{category: id, home: a.flow(t.class)}
		tn.groups = tn.one[:0]
		a.tenants[id] = tn
	case tn.pending == 0 && tn.home.class != t.class:
		// All that waits of a category is in one flow, so a flush never overtakes frames of the same shard.
		tn.home.held -= tn.held
		tn.home = a.flow(t.class)
		tn.home.held += tn.held
	}
	return tn
}

// charge is what a category holds more, or less.
func (a *accumulator) charge(t *tenant, n int64) {
	t.held += n
	t.home.held += n
	if t.held == 0 && t.pending == 0 {
		delete(a.tenants, t.category)
	}
}

// admit decides which categories of a request may bring their frames: all of a category's or none. What it charges them for is for
// add, or for withdraw. Charges of the request as a whole are reserved before. It returns why one was refused, if any.
func (a *accumulator) admit(now time.Time, in *parsed) (last error) {
	var asking []*tenant
	for i := range in.pieces {
		p := &in.pieces[i]
		p.tenant = a.tenant(p.target)
		if p.tenant.asked == 0 {
			asking = append(asking, p.tenant)
		}
		p.tenant.asked += p.charge()
	}
	for _, t := range asking {
		a.decide(now, t)
	}
	in.filter(func(p *located) error { return p.tenant.refusal }, &in.turnedShare)
	for _, t := range asking {
		last = cmp.Or(t.refusal, last)
		t.asked, t.refusal = 0, nil
		a.charge(t, 0)
	}
	return last
}

// decide decides about one category.
func (a *accumulator) decide(now time.Time, t *tenant) {
	if alone := a.room.alone(); t.asked > alone {
		t.refusal = rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE,
			"the frames of the category take %d bytes of memory, which is more than the %d that one category may have: send less at once", t.asked, alone)
		return
	}
	ok, excess := a.room.allows(t.held, t.asked, a.room.share)
	if ok {
		ok, excess = a.room.allows(t.home.held, t.asked, classShare*a.room.share)
	}
	if ok {
		a.charge(t, t.asked)
		return
	}
	t.refusal = rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, a.room.hint(now, excess),
		"the batcher holds %d bytes of the category and its retention class and %d of all, at most %d: try again later",
		t.home.held, a.room.used, a.room.limit)
}

// withdraw undoes admit.
func (a *accumulator) withdraw(in *parsed) {
	for i := range in.pieces {
		a.charge(in.pieces[i].tenant, -in.pieces[i].charge())
	}
}

// add takes a piece over, whose charge admit has taken; the caller calls tick after the last piece of a request, so that no flush
// is cut in the middle of one. It must not be called after close.
func (a *accumulator) add(now time.Time, t *tenant, to target, p piece) {
	g := a.groups[to.shard]
	if g == nil {
		to.class = t.home.class
		g = newGroup(to, t)
		a.groups[to.shard] = g
		t.pending++
		if _, g.stalled = a.stalled[to.shard]; !g.stalled {
			t.home.list(t, g)
		}
	}
	a.chain(g, &p)
	pl := g.open
	if pl != nil && (pl.bytes+p.bytes > a.cfg.PayloadBytes || pl.runs+p.runs > maxPayloadRuns) {
		a.seal(pl)
		pl = nil
	}
	counted := !g.stalled
	if pl == nil {
		pl = newPayload(g, now)
		g.open = pl
		g.payloads = append(g.payloads, pl)
	} else if counted {
		t.home.count(pl, -1)
	}
	pl.pieces = append(pl.pieces, p)
	pl.bytes += p.bytes
	pl.frames += len(p.frames)
	pl.runs += p.runs
	pl.overhead += overhead(1, len(p.frames))
	for i := range p.frames {
		pl.messages += int(p.frames[i].messages)
	}
	if p.sub != nil {
		pl.waiters++
	}
	if counted {
		t.home.count(pl, 1)
	}
	if pl.bytes >= a.cfg.PayloadBytes {
		a.seal(pl)
	}
}

// chain ties a piece to the one before it in its shard when both are of one request and may be stored apart.
func (a *accumulator) chain(g *group, p *piece) {
	p.request = a.requests
	if len(g.payloads) == 0 {
		return
	}
	pieces := g.payloads[len(g.payloads)-1].pieces
	before := &pieces[len(pieces)-1]
	if before.request != p.request {
		return
	}
	if before.chain == nil {
		before.chain = &chain{}
	}
	p.chain = before.chain
}

// seal ends a payload and has it compressed, before a flush takes it.
func (a *accumulator) seal(pl *payload) {
	pl.group.open = nil
	b := newBlock([]*payload{pl})
	a.jobs.compress = append(a.jobs.compress, b)
}

// newBlock makes payloads one block.
func newBlock(payloads []*payload) *block {
	b := &block{payloads: payloads}
	for _, pl := range payloads {
		pl.block, pl.offset = b, b.raw
		b.raw += pl.bytes
	}
	return b
}

// packed is the event that a flush's small payloads are in so many blocks, which are about to be compressed.
func (a *accumulator) packed(f *flush, blocks int) {
	f.uncompressed += blocks - 1
	a.complete(f)
}

func (a *accumulator) complete(f *flush) {
	if f.uncompressed == 0 {
		a.jobs.complete = append(a.jobs.complete, f)
	}
}

// compressed is the event that a block is compressed to that many bytes. freed is how much memory of raw frames became free.
func (a *accumulator) compressed(b *block, size int, freed int64) {
	a.room.release(int64(b.raw) - int64(size) + freed)
	left := int64(size)
	for i, pl := range b.payloads {
		share := left
		if i+1 < len(b.payloads) {
			share = int64(size) * int64(pl.bytes) / int64(b.raw)
		}
		left -= share
		pending := b.flush == nil && !pl.group.stalled
		if pending {
			pl.group.tenant.home.count(pl, -1)
		}
		before := pl.charge()
		pl.stored = share
		a.charge(pl.group.tenant, pl.charge()-before)
		if pending {
			pl.group.tenant.home.count(pl, 1)
		}
	}
	if f := b.flush; f != nil {
		f.uncompressed--
		a.complete(f)
	}
}

// divided is the event that groups of a part are written apart from now on. A flush that has left its place does not take it again.
func (a *accumulator) divided(p, rest *part) {
	a.parts++
	rest.attached = p.attached
	if rest.attached {
		rest.flush.attached++
	} else {
		a.detached++
	}
}

// maxDetached bounds the parts that may wait beside the flushes that count as being written. Beyond it they count.
const maxDetached = 256

// detach is the event that a part waits for something that has nothing to do with others: it leaves its flush's place to them.
func (a *accumulator) detach(now time.Time, p *part) {
	if !p.attached || a.detached >= maxDetached {
		return
	}
	p.attached = false
	a.detached++
	a.leave(p.flush)
	a.advance(now)
}

// leave takes one of its parts from a flush's place, and frees the place with the last one.
func (a *accumulator) leave(f *flush) {
	f.attached--
	if f.attached > 0 {
		return
	}
	fl := f.flow
	fl.running--
	fl.started = slices.DeleteFunc(fl.started, func(s started) bool { return s.flush == f })
}

// finished is the event that a part is done, took having passed since its flush was cut. freed are the compressed bytes that became
// free with it.
func (a *accumulator) finished(now time.Time, p *part, freed int64, took time.Duration) {
	a.parts--
	for _, g := range p.groups {
		for _, pl := range g.payloads {
			freed += pl.overhead
			a.charge(g.tenant, -pl.charge())
		}
	}
	a.room.release(freed)
	a.room.measure(now)
	if p.attached {
		p.attached = false
		a.leave(p.flush)
		if a.took == 0 {
			a.took = took
		}
		a.took += (took - a.took) / 4
		a.ended = now
	} else {
		a.detached--
	}
	if a.last == p.flush {
		a.last = nil
	}
	a.advance(now)
}

// tick is the event that time has passed, or that a request's pieces were added.
func (a *accumulator) tick(now time.Time) {
	a.advance(now)
	a.unpin(now)
}

// close cuts what is open. Nothing is added afterwards.
func (a *accumulator) close(now time.Time) {
	a.closing = true
	a.advance(now)
}

// empty reports whether nothing is held.
func (a *accumulator) empty() bool { return len(a.groups) == 0 && a.parts == 0 }

// advance cuts the flushes that are due and may be written.
func (a *accumulator) advance(now time.Time) {
	for _, fl := range a.flows {
		for {
			t, ok := a.due(fl, now)
			if !ok {
				break
			}
			a.cut(fl, t, now)
		}
	}
}

// due reports whether a flush is to be cut now, and why.
func (a *accumulator) due(fl *flow, now time.Time) (trigger, bool) {
	switch {
	case fl.pending.payloads == 0, fl.running >= a.cfg.MaxInFlight:
		return 0, false
	case a.closing:
		return triggerClose, true
	case fl.pending.full(&a.cfg):
		return triggerSize, true
	case now.Before(a.floor(fl)):
		return 0, false
	case fl.waiters > 0 && fl.running < a.cfg.GroupCommit:
		return triggerCommit, true
	case !now.Before(fl.oldest.Add(a.cfg.MaxAge)):
		return triggerAge, true
	default:
		return 0, false
	}
}

// floor is the earliest time for a flush that is not full; zero when there is no such bound.
func (a *accumulator) floor(fl *flow) time.Time {
	if fl.lastCut.IsZero() {
		return time.Time{}
	}
	return fl.lastCut.Add(a.cfg.FlushFloor)
}

// wake is when tick is needed if nothing else happens before; zero when it is not.
func (a *accumulator) wake() (at time.Time) {
	sooner := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	for _, fl := range a.flows {
		if fl.pending.payloads == 0 || fl.running >= a.cfg.MaxInFlight {
			continue // the end of a running flush comes first
		}
		due, floor := fl.oldest.Add(a.cfg.MaxAge), a.floor(fl)
		if fl.waiters > 0 && fl.running < a.cfg.GroupCommit || due.Before(floor) {
			due = floor
		}
		sooner(due)
	}
	if len(a.stalled) > 0 { // to begin with a map costs something
		for s := range a.stalled {
			if g := a.groups[s]; g != nil && g.open != nil {
				sooner(g.open.since.Add(a.cfg.MaxAge))
			}
		}
	}
	return at
}

// cut makes a flush of what may be taken and has it written.
func (a *accumulator) cut(fl *flow, t trigger, now time.Time) {
	a.tickets++
	f := newFlush(a.tickets, fl, a.last)
	f.trigger, f.cutAt = t, now
	a.take(f, fl)
	a.last, fl.lastCut = f, now
	fl.running++
	fl.started = append(fl.started, started{f, now})
	a.parts++
	a.jobs.start = append(a.jobs.start, f)
}

// forget is after how long half of how slow flushes were does not count any more.
const forget = 5 * time.Second

// slow is how long a flush takes at present.
func (a *accumulator) slow(now time.Time) time.Duration {
	idle := max(now.Sub(a.ended), 0)
	slow := time.Duration(float64(a.took) * math.Exp2(-float64(idle)/float64(forget)))
	for _, fl := range a.flows {
		slow = max(slow, fl.slowest(now))
	}
	return slow
}

// load is what a router should know: 0 idle, 1000 refusing. It grows with the memory that is used and with the time that flushes
// take, of which a second counts for half.
func (a *accumulator) load(now time.Time) uint32 {
	slow := a.slow(now)
	late := float64(slow) / float64(slow+time.Second)
	full := float64(a.room.full()) / 1000
	return uint32(1000 - 1000*(1-full)*(1-late))
}
