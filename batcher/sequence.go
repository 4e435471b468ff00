package batcher

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// judgeFrames decides the outcomes of a batch's frames after the metadata engine has refused its sequences. known has the log's
// states of the producers in conflict; frames of other producers do not change. It reports whether anything changed.
//
// A frame is stored or refused as a whole. Within one flush, a producer's frames follow one another, so its state advances from
// frame to frame, as in the engine.
func judgeFrames(g *logBatch, known map[uint64]metalog.ProducerState) (changed bool) {
	now := maps.Clone(known)
	g.corrections = g.corrections[:0]
	for f := range g.sequencedFrames() {
		before, ok := known[f.producer]
		if !ok {
			continue
		}
		was := f.outcome
		state := now[f.producer]
		f.outcome, f.fault = judgeFrame(g.shard, f, &state, before)
		now[f.producer] = state
		changed = changed || f.outcome != was
		if f.fault != nil {
			g.corrections = append(g.corrections, f.fault.GetConflicts()...)
		}
	}
	g.after = now
	return changed
}

// judgeConflicts removes the frames whose sequences the engine refused, and reports whether anything changed.
func (b *Batcher) judgeConflicts(p *flushPart, err *metalog.SequenceError) (changed bool) {
	known := make(map[record.ShardID]map[uint64]metalog.ProducerState)
	for _, x := range err.Conflicts {
		if known[x.Shard] == nil {
			known[x.Shard] = make(map[uint64]metalog.ProducerState)
		}
		x.Known.Producer = x.Run.Producer
		known[x.Shard][x.Run.Producer] = x.Known
	}
	for _, g := range p.batches {
		producers := known[g.shard]
		if producers == nil {
			continue
		}
		b.dedup.addStates(g.shard, g.entry.Epoch, slices.Collect(maps.Values(producers))...)
		if judgeFrames(g, producers) {
			p.rebuildRanges(g)
			changed = true
		}
	}
	return changed
}

// rebuildRanges recomputes the pointer ranges of a batch.
func (p *flushPart) rebuildRanges(g *logBatch) {
	for _, pl := range g.payloads {
		pl.rebuildRanges()
	}
	p.stale = true
}

// correctConflicts updates the conflicts in the errors of refused frames, now that the part is durable. Until then they must name
// the sequences that were stored before: if the part failed, a producer that continued after it would lose its frames.
func (p *flushPart) correctConflicts() {
	for _, g := range p.batches {
		for _, c := range g.corrections {
			if s, ok := g.after[c.GetProducer()]; ok && s.Known() {
				c.Epoch, c.NextSequence = s.Epoch, s.Next
			}
		}
	}
}

// dropChained drops frames that follow a frame that was not stored: of the same request and log, or of an earlier request.
func (p *flushPart) dropChained(retry time.Duration) {
	for _, g := range p.batches {
		changed := false
		for _, pl := range g.payloads {
			for i := range pl.spans {
				piece := &pl.spans[i]
				if pl.fault != nil || !piece.isBroken() {
					continue
				}
				piece.breakChain()
				fault := &scribev1.ErrorInfo{
					Reason: scribev1.Reason_REASON_NO_BACKEND, RetryAfter: durationpb.New(retry),
					Message: "earlier frames of the producer or request were not stored: send it again after them",
				}
				for j := range piece.frames {
					if f := &piece.frames[j]; f.outcome != frameDropped {
						f.outcome, f.fault, changed = frameDropped, fault, true
					}
				}
			}
		}
		if changed {
			p.rebuildRanges(g)
		}
	}
}

// judgeFrame decides the outcome of one frame of a producer with state s, and advances s. before is the producer's state in the
// log, without the frames of this flush.
func judgeFrame(shard record.ShardID, f *frame, s *metalog.ProducerState, before metalog.ProducerState) (frameOutcome, *scribev1.ErrorInfo) {
	next, kind := s.Continue(metalog.Sequence{Producer: f.producer, Epoch: f.epoch, First: f.first, Last: f.lastSequence()})
	switch {
	case kind == 0:
		*s = next
		return frameKept, nil
	case kind == metalog.SequenceStaleEpoch:
		return frameRefused, sequenceErrorInfo(shard, f, s, before, scribev1.Reason_REASON_STALE_PRODUCER, scribev1.Reason_REASON_STALE_PRODUCER,
			"a newer instance of the producer has taken over: this one must stop or take a new epoch")
	case kind == metalog.SequenceGap:
		return frameRefused, sequenceErrorInfo(shard, f, s, before, scribev1.Reason_REASON_OUT_OF_SEQUENCE, scribev1.Reason_REASON_OUT_OF_SEQUENCE,
			"earlier messages have not arrived: send them first")
	case f.lastSequence() >= s.Next:
		// A retry can never succeed, so the reason must not be retryable. It must not be a duplicate either, since some messages
		// are not stored.
		return frameRefused, sequenceErrorInfo(shard, f, s, before, scribev1.Reason_REASON_INVALID, scribev1.Reason_REASON_DUPLICATE,
			"some of its messages are stored and some are not: repeat frames as they were sent first")
	case f.epoch == before.Epoch && f.lastSequence() < before.Next:
		return frameStored, nil
	default:
		return frameRepeated, nil
	}
}

// sequenceErrorInfo returns the writer's error for a frame that was refused by state s. Its conflict names the state before,
// which is durable.
func sequenceErrorInfo(
	shard record.ShardID, f *frame, s *metalog.ProducerState, before metalog.ProducerState, reason, kind scribev1.Reason, advice string,
) *scribev1.ErrorInfo {
	return &scribev1.ErrorInfo{
		Reason: reason,
		Message: fmt.Sprintf("shard %v: frame with sequences %d to %d of producer %d in epoch %d, but the shard expects %d in epoch %d: %s",
			shard, f.first, f.lastSequence(), f.producer, f.epoch, s.Next, s.Epoch, advice),
		Conflicts: []*scribev1.SequenceConflict{{
			Shard: uint64(shard), Producer: f.producer, Reason: kind, Epoch: before.Epoch, NextSequence: before.Next,
		}},
	}
}

// rebuildRanges recomputes the pointer ranges of a payload: runs of kept frames, adjacent in its block. The block is not
// compressed again when frames are refused; pointers refer to the ranges of the others.
func (pl *payload) rebuildRanges() {
	pl.ranges = pl.ranges[:0]
	if pl.fault != nil {
		return
	}
	var (
		offset  = pl.offset
		current *pointerRange
		before  *frame // of the last run; nil when the next sequenced frame begins one
	)
	for i := range pl.spans {
		frames := pl.spans[i].frames
		for j := range frames {
			f := &frames[j]
			if f.outcome != frameKept {
				offset += int(f.size)
				current = nil
				continue
			}
			if current == nil {
				pl.ranges = append(pl.ranges, pointerRange{offset: offset, minTime: f.baseTime, maxTime: f.baseTime})
				current, before = &pl.ranges[len(pl.ranges)-1], nil
			}
			offset += int(f.size)
			current.length += int(f.size)
			current.frames++
			current.messages += int(f.messages)
			current.minTime = min(current.minTime, f.baseTime)
			current.maxTime = max(current.maxTime, f.baseTime)
			if !pl.batch.exactlyOnce || !f.sequenced {
				continue
			}
			if before != nil && f.continues(before) {
				current.runs[len(current.runs)-1].Last = f.lastSequence()
			} else {
				current.runs = append(current.runs, pointer.Sequence{Producer: f.producer, Epoch: f.epoch, First: f.first, Last: f.lastSequence()})
			}
			before = f
		}
	}
}
