package batcher

import (
	"maps"

	scribev1 "scribe/proto/scribe/v1"
)

// amount counts frames and what is in them.
type amount struct{ frames, bytes, messages int64 }

func (a *amount) plus(b amount) {
	a.frames += b.frames
	a.bytes += b.bytes
	a.messages += b.messages
}

func (a amount) minus(b amount) amount {
	return amount{frames: a.frames - b.frames, bytes: a.bytes - b.bytes, messages: a.messages - b.messages}
}

// counts says what became of the frames that were accepted. At all times accepted = committed + duplicate + failed + buffered.
type counts struct {
	accepted  amount
	committed amount
	duplicate amount
	failed    map[scribev1.Reason]amount
	// overloaded counts requests that were refused for lack of memory; they were not accepted.
	overloaded int64
	// turned counts frames that were refused alone, for their category's share or their shard's trouble; they were not accepted.
	turnedShare, turnedHeld int64
}

// failures is the sum over all reasons.
func (c *counts) failures() amount {
	var sum amount
	for _, a := range c.failed {
		sum.plus(a)
	}
	return sum
}

// buffered is what has no outcome yet.
func (c *counts) buffered() amount {
	return c.accepted.minus(c.committed).minus(c.duplicate).minus(c.failures())
}

func (c *counts) add(o *counts) {
	c.committed.plus(o.committed)
	c.duplicate.plus(o.duplicate)
	for reason, a := range o.failed {
		sum := c.failed[reason]
		sum.plus(a)
		c.failed[reason] = sum
	}
}

func (c *counts) clone() counts {
	out := *c
	out.failed = maps.Clone(c.failed)
	return out
}

// answer sets the results of all frames of a part that is done, and counts them. The writers are not woken yet.
func answer(p *part) *counts {
	out := &counts{failed: make(map[scribev1.Reason]amount)}
	for _, g := range p.groups {
		if g.exactlyOnce {
			orphans(g)
		}
		for _, pl := range g.payloads {
			answerPayload(pl, out)
		}
	}
	return out
}

// orphans finds the frames that repeat others of the flush which came to nothing, be it in another payload or as part of another request:
// they share the fate of those.
func orphans(g *group) {
	type place struct {
		epoch uint32
		next  uint64
	}
	if !g.repeats() {
		return
	}
	reached := make(map[uint64]place) // by those that are stored, of each producer
	fault := &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_NO_BACKEND, Message: "the frames that it repeats were not stored: send it again"}
	for _, pl := range g.payloads {
		for i := range pl.pieces {
			frames := pl.pieces[i].frames
			for j := range frames {
				f := &frames[j]
				switch at := reached[f.producer]; {
				case f.verdict == stored, f.verdict == kept && pl.fault == nil:
					if f.sequenced {
						reached[f.producer] = place{f.epoch, f.last() + 1}
					}
				case f.verdict == kept:
					fault = pl.fault
				case f.verdict == dropped:
					fault = f.fault
				case f.verdict == repeated && (at.epoch != f.epoch || f.last() >= at.next):
					f.verdict, f.fault = dropped, fault
				}
			}
		}
	}
}

// repeats reports whether there are frames that repeat others of the flush.
func (g *group) repeats() bool {
	for _, pl := range g.payloads {
		for i := range pl.pieces {
			for j := range pl.pieces[i].frames {
				if pl.pieces[i].frames[j].verdict == repeated {
					return true
				}
			}
		}
	}
	return false
}

func answerPayload(pl *payload, out *counts) {
	var (
		next   int // the extent after the present one
		inside bool
		result scribev1.FrameResult // written to when nobody waits
	)
	for i := range pl.pieces {
		p := &pl.pieces[i]
		for j := range p.frames {
			f := &p.frames[j]
			r := &result
			if p.sub != nil {
				r = &p.sub.results[p.index+j]
			}
			size := amount{frames: 1, bytes: int64(f.size), messages: int64(f.messages)}
			fault := pl.fault
			if f.verdict == refused || f.verdict == dropped {
				fault = f.fault
			}
			if f.verdict != kept {
				inside = false
			} else if !inside {
				next, inside = next+1, true
			}
			switch {
			case f.verdict == stored, f.verdict == repeated && fault == nil:
				r.Shard, r.Duplicate = uint64(pl.group.shard), true
				out.duplicate.plus(size)
			case fault != nil:
				r.Error = fault
				sum := out.failed[fault.GetReason()]
				sum.plus(size)
				out.failed[fault.GetReason()] = sum
			default:
				r.Shard, r.Lsn = uint64(pl.group.shard), uint64(pl.extents[next-1].lsn)
				out.committed.plus(size)
			}
		}
	}
}

// release wakes the writers of a part.
func release(p *part) {
	for _, g := range p.groups {
		for _, pl := range g.payloads {
			for i := range pl.pieces {
				if sub := pl.pieces[i].sub; sub != nil {
					sub.finish()
				}
			}
		}
	}
}
