package batcher

import (
	"time"
)

// Limits of one flush beside its size. They keep a transaction within the limits of package metalog, a footer within those of
// package layout even if every run of sequences is stored partly and cut in two, and a pointer within those of package pointer: a
// run takes 33 bytes at most there.
const (
	maxFlushPayloads = 20_000
	maxFlushRuns     = 30_000
	maxPayloadRuns   = 1024
	// maxRawFactor bounds the raw bytes of a flush whose payloads compress very well, in multiples of FlushBytes.
	maxRawFactor = 8
)

// What bookkeeping is charged for in bytes, beside the frames' own bytes: the structures of package flush and of the answer.
const (
	frameOverhead = 200
	pieceOverhead = 400
)

// accumulator decides what is gathered, when it is cut into a flush, and when a flush is written. It is a plain state machine:
// events and times go in, and what to do comes out of take. It does no I/O, starts nothing, and reads no clock.
type accumulator struct {
	cfg Config

	used    int64 // bytes charged, at most cfg.MemoryBytes but for rounding
	peak    int64
	tickets uint64
	open    *flush   // takes frames; nil when there are none
	last    *flush   // cut last; nil when it is done
	waiting []*flush // cut, to be written when fewer than MaxInFlight are
	running int
	lastCut time.Time // zero before the first
	closing bool
	// drained is the moving average of how long flushes take: a hint for those that are refused.
	drained time.Duration

	todo ready
}

// ready is what the driver must do.
type ready struct {
	compress []*block // give to the compressor
	complete []*flush // cut, and all blocks are compressed
	start    []*flush // begin to write, in this order
}

// take returns what is to be done since the last call.
func (a *accumulator) take() ready {
	todo := a.todo
	a.todo = ready{}
	return todo
}

// reserve charges n bytes, or refuses.
func (a *accumulator) reserve(n int64) bool {
	if a.used+n > a.cfg.MemoryBytes {
		return false
	}
	a.used += n
	a.peak = max(a.peak, a.used)
	return true
}

// release undoes reserve.
func (a *accumulator) release(n int64) { a.used -= n }

// load is how full the memory is: 0 idle, 1000 refusing.
func (a *accumulator) load() uint32 {
	return uint32(min(max(a.used, 0)*1000/a.cfg.MemoryBytes, 1000))
}

// retryAfter is when a request that was refused should be tried again: when a flush will have ended, more or less.
func (a *accumulator) retryAfter() time.Duration {
	return min(max(a.drained, 20*time.Millisecond), 5*time.Second)
}

// active is the number of flushes that are cut and not done.
func (a *accumulator) active() int { return a.running + len(a.waiting) }

// add takes a piece over; the caller has reserved its charge, and calls tick after the last piece of a request, so that no flush
// is cut in the middle of one but for its size. It must not be called after close.
func (a *accumulator) add(now time.Time, t target, p piece) {
	f := a.open
	if f == nil {
		a.tickets++
		f = newFlush(a.tickets, now, a.last)
		a.open = f
	}
	g := f.groups[t.shard]
	if g == nil {
		g = &group{target: t}
		f.groups[t.shard] = g
		f.order = append(f.order, g)
	}
	pl := g.open
	if pl != nil && (pl.bytes+p.bytes > a.cfg.PayloadBytes || pl.runs+p.runs > maxPayloadRuns || pl.class != t.class) {
		a.seal(f, pl)
		pl = nil
	}
	if pl == nil {
		pl = &payload{group: g, class: t.class}
		g.open = pl
		g.payloads = append(g.payloads, pl)
		f.payloads++
	}
	pl.pieces = append(pl.pieces, p)
	pl.bytes += p.bytes
	pl.frames += len(p.frames)
	pl.runs += p.runs
	messages := 0
	for i := range p.frames {
		messages += int(p.frames[i].messages)
	}
	pl.messages += messages
	f.frames += len(p.frames)
	f.messages += messages
	f.runs += p.runs
	f.raw += int64(p.bytes)
	f.size += int64(p.bytes)
	f.charge += overhead(1, len(p.frames))
	if p.sub != nil {
		f.waiters++
	}
	if pl.bytes >= a.cfg.PayloadBytes {
		a.seal(f, pl)
	}
	if a.full(f) {
		a.cut(f, triggerSize, now)
	}
}

// full reports whether a flush has reached a limit.
func (a *accumulator) full(f *flush) bool {
	return f.size >= a.cfg.FlushBytes || f.raw >= maxRawFactor*a.cfg.FlushBytes || f.payloads >= maxFlushPayloads || f.runs >= maxFlushRuns
}

// overhead is the charge for bookkeeping.
func overhead(pieces, frames int) int64 {
	return int64(pieces)*pieceOverhead + int64(frames)*frameOverhead
}

// seal ends a payload that is full and has it compressed while the flush still takes frames.
func (a *accumulator) seal(f *flush, pl *payload) {
	pl.group.open = nil
	a.compress(f, &block{class: pl.class, payloads: []*payload{pl}, raw: pl.bytes})
}

func (a *accumulator) compress(f *flush, b *block) {
	b.flush = f
	offset := 0
	for _, pl := range b.payloads {
		pl.block, pl.offset = b, offset
		offset += pl.bytes
	}
	f.blocks = append(f.blocks, b)
	f.uncompressed++
	a.todo.compress = append(a.todo.compress, b)
}

// compressed is the event that a block is compressed to that many bytes. freed is how much memory of raw frames became free.
func (a *accumulator) compressed(b *block, size int, freed int64) {
	f := b.flush
	saved := int64(b.raw) - int64(size)
	a.release(saved + freed)
	f.charge += int64(size)
	f.size -= saved
	f.uncompressed--
	if f.cut && f.uncompressed == 0 {
		a.todo.complete = append(a.todo.complete, f)
	}
}

// finished is the event that a flush is done, took having passed since it was started.
func (a *accumulator) finished(now time.Time, f *flush, took time.Duration) {
	a.running--
	a.release(f.charge)
	if a.drained == 0 {
		a.drained = took
	}
	a.drained += (took - a.drained) / 4
	if a.last == f {
		a.last = nil
	}
	a.advance(now)
}

// tick is the event that time has passed, or that a request's pieces were added.
func (a *accumulator) tick(now time.Time) { a.advance(now) }

// close cuts what is open. Nothing is added afterwards.
func (a *accumulator) close(now time.Time) {
	a.closing = true
	a.advance(now)
}

// advance cuts the open flush if it is time to, and starts flushes that may be.
func (a *accumulator) advance(now time.Time) {
	if f := a.open; f != nil {
		if t, ok := a.due(f, now); ok {
			a.cut(f, t, now)
		}
	}
	for len(a.waiting) > 0 && a.running < a.cfg.MaxInFlight {
		a.todo.start = append(a.todo.start, a.waiting[0])
		a.waiting = a.waiting[1:]
		a.running++
	}
}

// due reports whether the open flush is to be cut now, and why.
func (a *accumulator) due(f *flush, now time.Time) (trigger, bool) {
	switch {
	case a.closing:
		return triggerClose, true
	case a.active() >= a.cfg.MaxInFlight || now.Before(a.floor()):
		return 0, false
	case f.waiters > 0 && a.active() < a.cfg.GroupCommit:
		return triggerCommit, true
	case !now.Before(f.opened.Add(a.cfg.MaxAge)):
		return triggerAge, true
	default:
		return 0, false
	}
}

// floor is the earliest time for a flush that is not full; zero when there is no such bound.
func (a *accumulator) floor() time.Time {
	if a.lastCut.IsZero() {
		return time.Time{}
	}
	return a.lastCut.Add(a.cfg.FlushFloor)
}

// wake is when tick is needed if nothing else happens before; zero when it is not.
func (a *accumulator) wake() time.Time {
	f := a.open
	if f == nil || a.active() >= a.cfg.MaxInFlight {
		return time.Time{} // the end of a running flush comes first
	}
	at := f.opened.Add(a.cfg.MaxAge)
	if f.waiters > 0 && a.active() < a.cfg.GroupCommit {
		at = a.floor()
	}
	if floor := a.floor(); at.Before(floor) {
		at = floor
	}
	return at
}

// cut ends the open flush: what is not compressed yet is packed into blocks. A full one is cut even when none may be started: it
// waits, compressed, and the next one gathers.
func (a *accumulator) cut(f *flush, t trigger, now time.Time) {
	f.trigger, f.cut, f.cutAt = t, true, now
	a.open, a.last, a.lastCut = nil, f, now
	var rest []*payload
	for _, g := range f.order {
		if g.open != nil {
			rest = append(rest, g.open)
			g.open = nil
		}
	}
	for _, b := range pack(rest, a.cfg.BlockBytes) {
		a.compress(f, b)
	}
	if f.uncompressed == 0 {
		a.todo.complete = append(a.todo.complete, f)
	}
	a.waiting = append(a.waiting, f)
}
