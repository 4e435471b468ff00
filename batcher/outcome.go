package batcher

import (
	"scribe/internal/role/request"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// frameCounts counts accepted frames by outcome. At all times accepted = committed + duplicate + failed + buffered.
type frameCounts struct {
	accepted  request.Amount
	committed request.Amount
	duplicate request.Amount
	failed    map[string]request.Amount // by rpc.ReasonLabel
	// overloaded counts requests refused for lack of memory; their frames were not accepted.
	overloaded int64
	// refusedShare, refusedPriority, refusedTrouble and refusedOrder count frames refused individually: for their category's share, for
	// the sake of higher priorities, because their log fails, or because a frame before them is missing. They were not accepted.
	refusedShare, refusedPriority, refusedTrouble, refusedOrder int64
	// followed counts accepted frames that followed one of an earlier request.
	followed int64
}

// totalFailed returns the sum over all reasons.
func (c *frameCounts) totalFailed() request.Amount {
	var sum request.Amount
	for _, a := range c.failed {
		sum = sum.Plus(a)
	}
	return sum
}

// buffered returns the frames without an outcome.
func (c *frameCounts) buffered() request.Amount {
	return c.accepted.Minus(c.committed).Minus(c.duplicate).Minus(c.totalFailed())
}

func (c *frameCounts) addOutcome(o *frameCounts) {
	c.committed = c.committed.Plus(o.committed)
	c.duplicate = c.duplicate.Plus(o.duplicate)
	for reason, a := range o.failed {
		c.failed[reason] = c.failed[reason].Plus(a)
	}
}

// setResults sets the results of all frames of a finished part, and returns their counts. It does not wake the writers.
func setResults(p *flushPart) *frameCounts {
	out := &frameCounts{failed: make(map[string]request.Amount)}
	for _, g := range p.batches {
		if g.exactlyOnce {
			dropRepeats(g)
		}
		for _, pl := range g.payloads {
			setPayloadResults(pl, out)
		}
	}
	return out
}

// dropRepeats drops frames that repeat other frames of the flush, in another payload or of another request, if those were not
// stored.
func dropRepeats(g *logBatch) {
	type place struct {
		epoch uint32
		next  uint64
	}
	if !g.hasRepeats() {
		return
	}
	reached := make(map[uint64]place) // the end of the stored sequences of each producer
	fault := &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_NO_BACKEND, Message: "the frame that it repeats was not stored: send it again"}
	for pl, f := range g.allFrames() {
		switch at := reached[f.producer]; {
		case f.outcome == frameStored, f.outcome == frameKept && pl.fault == nil:
			if f.sequenced {
				reached[f.producer] = place{f.epoch, f.lastSequence() + 1}
			}
		case f.outcome == frameKept:
			fault = pl.fault
		case f.outcome == frameDropped:
			fault = f.fault
		case f.outcome == frameRepeated && (at.epoch != f.epoch || f.lastSequence() >= at.next):
			f.outcome, f.fault = frameDropped, fault
		}
	}
}

// hasRepeats reports whether the batch has frames that repeat others of the flush.
func (g *logBatch) hasRepeats() bool {
	for _, f := range g.allFrames() {
		if f.outcome == frameRepeated {
			return true
		}
	}
	return false
}

func setPayloadResults(pl *payload, out *frameCounts) {
	var (
		next   int // index of the next pointer range
		inside bool
		result scribev1.FrameResult // discarded; used if no writer waits
	)
	for i := range pl.spans {
		p := &pl.spans[i]
		for j := range p.frames {
			f := &p.frames[j]
			r := &result
			if p.sub != nil {
				r = &p.sub.results[p.index+j]
			}
			size := request.Amount{Frames: 1, Bytes: int64(f.size), Messages: int64(f.messages)}
			fault := pl.fault
			if f.outcome == frameRefused || f.outcome == frameDropped {
				fault = f.fault
			}
			if f.outcome != frameKept {
				inside = false
			} else if !inside {
				next, inside = next+1, true
			}
			switch {
			case f.outcome == frameStored, f.outcome == frameRepeated && fault == nil:
				r.Shard, r.Duplicate = uint64(pl.batch.shard), true
				out.duplicate = out.duplicate.Plus(size)
			case fault != nil:
				r.Error = fault
				label := rpc.ReasonLabel(fault.GetReason())
				out.failed[label] = out.failed[label].Plus(size)
			default:
				r.Shard, r.Lsn = uint64(pl.batch.shard), uint64(pl.ranges[next-1].lsn)
				out.committed = out.committed.Plus(size)
			}
		}
	}
}

// wakeWriters wakes the writers of a part.
func wakeWriters(p *flushPart) {
	for _, g := range p.batches {
		for _, pl := range g.payloads {
			for i := range pl.spans {
				if sub := pl.spans[i].sub; sub != nil {
					sub.finishSpan()
				}
			}
		}
	}
}
