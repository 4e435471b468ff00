package batcher

import (
	"cmp"
	"math"
	"slices"
	"time"

	"scribe/internal/base/account"
	"scribe/internal/format/record"
	"scribe/internal/role/shedding"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Charges for bookkeeping in bytes, in addition to the frames' own bytes: the structures of a flush, of its blob's footer and of
// the answer. A span may be the only one of its payload, its shard and its category.
const (
	frameOverhead = 200
	spanOverhead  = 1000
)

// overheadBytes returns the charge for bookkeeping.
func overheadBytes(spans, frames int) int64 {
	return int64(spans)*spanOverhead + int64(frames)*frameOverhead
}

// classShare is the share of a retention class, as a multiple of Config.Share.
const classShare = 2

// accumulator decides which frames are admitted, how they are grouped into payloads, and when a flush is cut. It is a plain state
// machine: methods take events and times, takeActions returns the actions for the driver. It does no I/O, starts no goroutine,
// and reads no clock.
type accumulator struct {
	cfg    Config
	memory *account.Account

	tickets  uint64
	requests uint64
	last     *flush // the flush cut last; kept for the order of claims
	accounts map[uint32]*categoryAccount
	batches  map[record.ShardID]*logBatch // frames that no flush has taken yet
	queues   []*classQueue                // by class
	stalled  map[record.ShardID]struct{}
	parts    int // unfinished parts
	detached int // those of them that do not count as in flight
	closing  bool
	// latency is the moving average of the duration of flushes. lastEnd is the time when the last one ended.
	latency time.Duration
	lastEnd time.Time
	// shedder decides which categories are refused first when memory is short. Its times are since began.
	shedder *shedding.Shedder
	began   time.Time

	actions driverActions
}

// driverActions are the tasks of the driver.
type driverActions struct {
	compress []*block // enqueue at the compressor
	urge     []*block // prioritize at the compressor: a flush waits for them
	complete []*flush // report that all blocks are compressed
	start    []*flush // start writing, in this order
}

func newAccumulator(cfg Config) accumulator {
	return accumulator{
		cfg:      cfg,
		memory:   account.New(cfg.MemoryBytes),
		shedder:  &shedding.Shedder{},
		accounts: make(map[uint32]*categoryAccount),
		batches:  make(map[record.ShardID]*logBatch),
		stalled:  make(map[record.ShardID]struct{}),
	}
}

// takeActions returns the actions added since the last call.
func (a *accumulator) takeActions() driverActions {
	jobs := a.actions
	a.actions = driverActions{}
	return jobs
}

// classQueueOf returns the class queue of a retention class, and creates it if it is new. There are few classes.
func (a *accumulator) classQueueOf(class uint32) *classQueue {
	i, found := slices.BinarySearchFunc(a.queues, class, func(fl *classQueue, class uint32) int { return cmp.Compare(fl.class, class) })
	if !found {
		a.queues = slices.Insert(a.queues, i, &classQueue{class: class})
	}
	return a.queues[i]
}

// accountOf returns the account of a target's category, and creates it if it is new.
func (a *accumulator) accountOf(t logTarget) *categoryAccount {
	id := t.shard.Category()
	tn := a.accounts[id]
	switch {
	case tn == nil:
		tn = &categoryAccount{category: id, queue: a.classQueueOf(t.class)}
		tn.batches = tn.one[:0]
		a.accounts[id] = tn
	case tn.pending == 0 && tn.queue.class != t.class:
		// All pending frames of a category are in one class queue, so that flushes keep the order of the frames of a shard.
		tn.queue.held -= tn.held
		tn.queue = a.classQueueOf(t.class)
		tn.queue.held += tn.held
	}
	return tn
}

// chargeCategory adds n bytes to the charge of a category, or subtracts them if n is negative.
func (a *accumulator) chargeCategory(t *categoryAccount, n int64) {
	t.held += n
	t.queue.held += n
	if t.held == 0 && t.pending == 0 {
		delete(a.accounts, t.category)
	}
}

// admitCategories decides which categories of a request are admitted. It admits all frames of a category or none, and charges the
// admitted ones; addSpan or withdrawCharges must follow. The memory of the whole request was reserved before. It returns the
// error of a refused category, if any.
func (a *accumulator) admitCategories(now time.Time, in *parsedRequest) (last error) {
	var asking []*categoryAccount
	for i := range in.spans {
		p := &in.spans[i]
		p.account = a.accountOf(p.target)
		if p.account.asked == 0 {
			asking = append(asking, p.account)
			p.account.priority = shedding.LevelOf(p.target.settings)
		}
		p.account.asked += p.memoryCharge()
	}
	for _, t := range asking {
		a.admitCategory(now, t)
	}
	in.refuseSpans(func(p *routedSpan) error {
		if p.account.givesWay {
			return p.account.refusal
		}
		return nil
	}, &in.refusedPriority)
	in.refuseSpans(func(p *routedSpan) error { return p.account.refusal }, &in.refusedShare)
	for _, t := range asking {
		last = cmp.Or(t.refusal, last)
		t.asked, t.refusal, t.givesWay = 0, nil, false
		a.chargeCategory(t, 0)
	}
	return last
}

// admitCategory admits one category, or sets its refusal.
func (a *accumulator) admitCategory(now time.Time, t *categoryAccount) {
	// alone is the bound of a category when no other uses memory.
	if alone := int64(float64(a.cfg.MemoryBytes) * a.cfg.Share / (1 + a.cfg.Share)); t.asked > alone {
		t.refusal = rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE,
			"the frames of the category take %d bytes of memory, which is more than the %d that one category may have: send less at once", t.asked, alone)
		return
	}
	if a.began.IsZero() {
		a.began = now
	}
	since := now.Sub(a.began)
	a.shedder.Note(since, t.priority)
	if reserved := a.shedder.ReservedShare(since, t.priority); shedding.GivesWay(reserved, a.memory.Used(), a.memory.Limit()) {
		t.givesWay = true
		t.refusal = rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, a.memory.Hint(now, t.asked),
			"the batcher holds %d bytes of at most %d, and keeps the rest for categories of higher priority: try again later", a.memory.Used(), a.memory.Limit())
		return
	}
	ok, excess := a.memory.WithinShare(t.held, t.asked, a.cfg.Share)
	if ok && t.priority <= scribev1.Priority_PRIORITY_NORMAL { // what is kept for higher ones is theirs also within a class
		ok, excess = a.memory.WithinShare(t.queue.held, t.asked, classShare*a.cfg.Share)
	}
	if ok {
		a.chargeCategory(t, t.asked)
		return
	}
	if 2*t.held < a.memory.Used() { // others have the memory, not the category itself
		a.shedder.NoteRefused(since, t.priority)
	}
	t.refusal = rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, a.memory.Hint(now, excess),
		"the batcher holds %d bytes of the category and its retention class and %d of all, at most %d: try again later",
		t.queue.held, a.memory.Used(), a.memory.Limit())
}

// withdrawCharges undoes the charges of admitCategories.
func (a *accumulator) withdrawCharges(in *parsedRequest) {
	for i := range in.spans {
		a.chargeCategory(in.spans[i].account, -in.spans[i].memoryCharge())
	}
}

// addSpan adds a span that admitCategories has charged. The caller calls tick after the last span of a request, so that no flush
// is cut in the middle of a request. It must not be called after close.
func (a *accumulator) addSpan(now time.Time, t *categoryAccount, to logTarget, p frameSpan) {
	g := a.batches[to.shard]
	if g == nil {
		to.class = t.queue.class
		g = newLogBatch(to, t)
		a.batches[to.shard] = g
		t.pending++
		if _, g.stalled = a.stalled[to.shard]; !g.stalled {
			t.queue.listBatch(t, g)
		}
	}
	pl := g.open
	if pl != nil && (pl.bytes+p.bytes > a.cfg.PayloadBytes || pl.runs+p.runs > maxPayloadRuns) {
		a.closePayload(pl)
		pl = nil
	}
	counted := !g.stalled
	if pl == nil {
		pl = newPayload(g, now)
		g.open = pl
		g.payloads = append(g.payloads, pl)
	} else if counted {
		t.queue.countPayload(pl, -1)
	}
	if to.key != nil {
		pl.key = to.key
	}
	pl.spans = append(pl.spans, p)
	pl.bytes += p.bytes
	pl.frames += len(p.frames)
	pl.runs += p.runs
	pl.overhead += overheadBytes(1, len(p.frames))
	for i := range p.frames {
		pl.messages += int(p.frames[i].messages)
	}
	switch {
	case p.isAwaited():
		pl.waiters++
	case p.sub != nil:
		pl.lingered++
	}
	if counted {
		t.queue.countPayload(pl, 1)
	}
	if p.isAwaited() && !g.awaited {
		g.awaited = true
		if counted {
			t.queue.listAwaited(g)
		}
	}
	if pl.bytes >= a.cfg.PayloadBytes {
		a.closePayload(pl)
	}
}

// chainSpan chains a span to the previous one in its log if both are of one request: they may be stored separately. It must be
// called before addSpan.
func (a *accumulator) chainSpan(shard record.ShardID, p *frameSpan) {
	p.request = a.requests
	g := a.batches[shard]
	if g == nil || len(g.payloads) == 0 {
		return
	}
	pieces := g.payloads[len(g.payloads)-1].spans
	before := &pieces[len(pieces)-1]
	if before.request != p.request {
		return
	}
	if before.chain == nil {
		before.chain = &requestChain{}
	}
	p.chain = before.chain
}

// closePayload ends a payload, and queues it for compression before a flush takes it.
func (a *accumulator) closePayload(pl *payload) {
	pl.batch.open = nil
	b := newBlock([]*payload{pl})
	a.actions.compress = append(a.actions.compress, b)
}

// newBlock returns a block of the payloads.
func newBlock(payloads []*payload) *block {
	b := &block{payloads: payloads}
	for _, pl := range payloads {
		pl.block, pl.offset = b, b.raw
		b.raw += pl.bytes
	}
	return b
}

// blocksPacked is the event that a flush's small payloads were packed into blocks, which are queued for compression next.
func (a *accumulator) blocksPacked(f *flush, blocks int) {
	f.uncompressed += blocks - 1
	a.completeFlush(f)
}

func (a *accumulator) completeFlush(f *flush) {
	if f.uncompressed == 0 {
		a.actions.complete = append(a.actions.complete, f)
	}
}

// blockCompressed is the event that a block was compressed to size bytes. freed is the memory of raw frames that became free, in
// bytes.
func (a *accumulator) blockCompressed(now time.Time, b *block, size int, freed int64) {
	a.memory.Release(now, int64(b.raw)-int64(size)+freed)
	left := int64(size)
	for i, pl := range b.payloads {
		share := left
		if i+1 < len(b.payloads) {
			share = int64(size) * int64(pl.bytes) / int64(b.raw)
		}
		left -= share
		pending := b.flush == nil && !pl.batch.stalled
		if pending {
			pl.batch.account.queue.countPayload(pl, -1)
		}
		before := pl.memoryCharge()
		pl.stored = share
		a.chargeCategory(pl.batch.account, pl.memoryCharge()-before)
		if pending {
			pl.batch.account.queue.countPayload(pl, 1)
		}
	}
	if f := b.flush; f != nil {
		f.uncompressed--
		a.completeFlush(f)
	}
}

// partDivided is the event that batches of p were moved to rest. A detached flush stays detached.
func (a *accumulator) partDivided(p, rest *flushPart) {
	a.parts++
	rest.attached = p.attached
	if rest.attached {
		rest.flush.attached++
	} else {
		a.detached++
	}
}

// maxDetached bounds the unfinished parts that do not count as in flight.
const maxDetached = 256

// detachPart is the event that a part waits for a cause that does not affect other parts: it no longer counts as in flight.
func (a *accumulator) detachPart(now time.Time, p *flushPart) {
	if !p.attached || a.detached >= maxDetached {
		return
	}
	p.attached = false
	a.detached++
	a.releaseInFlight(p.flush)
	a.cutDue(now)
}

// releaseInFlight detaches a part from its flush. A flush without attached parts is no longer in flight.
func (a *accumulator) releaseInFlight(f *flush) {
	f.attached--
	if f.attached > 0 {
		return
	}
	fl := f.queue
	switch {
	case f.urgent:
		fl.urgent--
	case f.large:
		fl.large--
		fallthrough
	default:
		fl.running--
	}
	fl.runningFlushes = slices.DeleteFunc(fl.runningFlushes, func(s runningFlush) bool { return s.flush == f })
}

// partFinished is the event that a part is finished. took is the time since its flush was cut, freed its compressed bytes that
// became free.
func (a *accumulator) partFinished(now time.Time, p *flushPart, freed int64, took time.Duration) {
	a.parts--
	for _, g := range p.batches {
		for _, pl := range g.payloads {
			freed += pl.overhead
			a.chargeCategory(g.account, -pl.memoryCharge())
		}
	}
	a.memory.Release(now, freed)
	if p.attached {
		p.attached = false
		a.releaseInFlight(p.flush)
		if a.latency == 0 {
			a.latency = took
		}
		a.latency += (took - a.latency) / 4
		a.lastEnd = now
	} else {
		a.detached--
	}
	if a.last == p.flush {
		a.last = nil
	}
	a.cutDue(now)
}

// tick is the event that time has passed, or that a request's spans were added.
func (a *accumulator) tick(now time.Time) {
	a.cutDue(now)
	a.compressStalled(now)
}

// close cuts the remaining frames into flushes. No span may be added afterwards.
func (a *accumulator) close(now time.Time) {
	a.closing = true
	a.cutDue(now)
}

// isEmpty reports whether there are no pending frames and no unfinished parts.
func (a *accumulator) isEmpty() bool { return len(a.batches) == 0 && a.parts == 0 }

// cutDue cuts the flushes that are due.
func (a *accumulator) cutDue(now time.Time) {
	for _, fl := range a.queues {
		for {
			t, ok := a.dueTrigger(fl, now)
			if !ok {
				break
			}
			a.cutFlush(fl, t, now)
		}
	}
}

// dueTrigger reports whether a flush is due now, and by which trigger.
func (a *accumulator) dueTrigger(fl *classQueue, now time.Time) (flushTrigger, bool) {
	switch {
	case fl.pending.payloads == 0:
		return 0, false
	case a.mayPass(fl) && !now.Before(a.urgentFloorEnd(fl)):
		return triggerAwaited, true
	case fl.running >= a.cfg.MaxInFlight:
		return 0, false
	case a.closing:
		return triggerClose, true
	case fl.pending.isFull(&a.cfg):
		return triggerSize, true
	case now.Before(a.floorEnd(fl)) && fl.pending.raw < a.cfg.FloorBytes:
		return 0, false
	case fl.waiters > 0 && fl.running < a.cfg.GroupCommit:
		return triggerCommit, true
	case a.mayGather(fl) && !now.Before(fl.oldest.Add(a.cfg.GatherTime)):
		return triggerCommit, true
	case !now.Before(fl.oldest.Add(a.cfg.MaxAge)):
		return triggerAge, true
	default:
		return 0, false
	}
}

// mayGather reports whether a flush of what lingered is due when that was gathered. If flushes are slow, what comes gathers for longer.
func (a *accumulator) mayGather(fl *classQueue) bool {
	return fl.lingered > 0 && fl.running < a.cfg.GroupCommit
}

// floorEnd returns the earliest time for a flush of less than Config.FloorBytes; zero if there is no bound.
func (a *accumulator) floorEnd(fl *classQueue) time.Time {
	if fl.lastCut.IsZero() {
		return time.Time{}
	}
	return fl.lastCut.Add(a.cfg.FlushFloor)
}

// mayPass reports whether the awaited batches get a flush of their own, beside the large ones that lingered frames make: which run, or
// are about to be cut. Where all frames are awaited, or what lingered is little, one flush has all.
func (a *accumulator) mayPass(fl *classQueue) bool {
	return fl.awaited.payloads > 0 && fl.urgent < a.cfg.GroupCommit && !a.closing && (fl.large > 0 || fl.isMixed(&a.cfg)) && !fl.awaited.isFull(&a.cfg)
}

// urgentFloorEnd returns the earliest time for a flush of awaited batches; zero if there is no bound.
func (a *accumulator) urgentFloorEnd(fl *classQueue) time.Time {
	if fl.lastAwaited.IsZero() || fl.awaited.raw >= a.cfg.FloorBytes {
		return time.Time{}
	}
	return fl.lastAwaited.Add(a.cfg.FlushFloor)
}

// nextTick returns the time at which tick must be called if no other event comes first; zero if no tick is needed.
func (a *accumulator) nextTick() (at time.Time) {
	for _, fl := range a.queues {
		if fl.pending.payloads == 0 {
			continue
		}
		if a.mayPass(fl) {
			at = earlierTime(at, a.urgentFloorEnd(fl))
		}
		if fl.running >= a.cfg.MaxInFlight {
			continue // partFinished comes first
		}
		due, floor := fl.oldest.Add(a.cfg.MaxAge), a.floorEnd(fl)
		if a.mayGather(fl) {
			due = earlierTime(due, fl.oldest.Add(a.cfg.GatherTime))
		}
		if fl.waiters > 0 && fl.running < a.cfg.GroupCommit || due.Before(floor) {
			due = floor
		}
		at = earlierTime(at, due)
	}
	if len(a.stalled) > 0 { // ranging over a map has a cost even if it is empty
		for s := range a.stalled {
			if g := a.batches[s]; g != nil && g.open != nil {
				at = earlierTime(at, g.open.since.Add(a.cfg.MaxAge))
			}
		}
	}
	return at
}

// earlierTime returns the earlier of two times. The zero time means none.
func earlierTime(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// cutFlush cuts a flush of pending payloads, and adds the action to write it.
func (a *accumulator) cutFlush(fl *classQueue, t flushTrigger, now time.Time) {
	a.tickets++
	f := newFlush(a.tickets, fl, a.last)
	f.trigger, f.cutAt = t, now
	f.urgent = t == triggerAwaited
	f.large = a.takeBatches(f, fl)
	a.last = f
	switch {
	case f.urgent:
		fl.urgent++
	case f.large:
		fl.large++
		fallthrough
	default:
		fl.running++
		fl.lastCut = now
	}
	fl.runningFlushes = append(fl.runningFlushes, runningFlush{f, now})
	a.parts++
	a.actions.start = append(a.actions.start, f)
}

// latencyHalfLife is the half-life of the average latency while no flush ends.
const latencyHalfLife = 5 * time.Second

// currentLatency returns an estimate of the current duration of a flush.
func (a *accumulator) currentLatency(now time.Time) time.Duration {
	idle := max(now.Sub(a.lastEnd), 0)
	slow := time.Duration(float64(a.latency) * math.Exp2(-float64(idle)/float64(latencyHalfLife)))
	for _, fl := range a.queues {
		slow = max(slow, fl.longestRunning(now))
	}
	return slow
}

// loadLevel returns the load that routers compare: 0 idle, 1000 refusing. It grows with the used memory and with the latency of
// flushes; a latency of one second alone is a load of 500.
func (a *accumulator) loadLevel(now time.Time) uint32 {
	slow := a.currentLatency(now)
	late := float64(slow) / float64(slow+time.Second)
	full := min(max(float64(a.memory.Used())/float64(a.cfg.MemoryBytes), 0), 1)
	return uint32(1000 - 1000*(1-full)*(1-late))
}
