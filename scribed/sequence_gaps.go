package scribed

import (
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// sequenceGaps remembers the sequences of exactly_once categories that lost an acknowledged frame. The upstream would refuse all
// later frames for the gap, and producers that do not wait for it would never know. So the agent refuses their frames at once,
// and they continue with a new epoch.
type sequenceGaps struct {
	since *simplelru.LRU[producerSequence, time.Time]
}

func newSequenceGaps() (g sequenceGaps) {
	g.since, _ = simplelru.NewLRU[producerSequence, time.Time](maxGaps, nil) // fails only without a size
	return g
}

// producerSequence is a producer's sequence in a logical shard.
type producerSequence struct {
	category string
	shard    uint32
	producer uint64
	epoch    uint32
}

const (
	maxGaps = 1024        // beyond this, the oldest is forgotten
	gapTime = time.Minute // then the frames are tried again: the upstream may no longer miss any
)

// sequenceOf returns the sequence that a frame belongs to.
func sequenceOf(category string, f *queuedFrame) (producerSequence, bool) {
	of := &f.sequences
	return producerSequence{category: category, shard: of.stream.shard, producer: of.stream.producer, epoch: of.epoch}, f.sequenced
}

// noteLost is the event that a frame was given up because an earlier one is missing, or because its epoch is fenced.
func (g *sequenceGaps) noteLost(category string, f *queuedFrame, r scribev1.Reason, now time.Time) {
	if r != scribev1.Reason_REASON_OUT_OF_SEQUENCE && r != scribev1.Reason_REASON_STALE_PRODUCER {
		return
	}
	if key, ok := sequenceOf(category, f); ok {
		g.since.Add(key, now)
	}
}

// hasGap reports whether a frame belongs to a sequence with a gap.
func (g *sequenceGaps) hasGap(category string, f *queuedFrame, now time.Time) bool {
	if g.since.Len() == 0 {
		return false
	}
	key, ok := sequenceOf(category, f)
	if !ok {
		return false
	}
	since, ok := g.since.Peek(key)
	if ok && now.Sub(since) >= gapTime {
		g.since.Remove(key)
		ok = false
	}
	return ok
}

// refuseGaps refuses the frames of an entry that belong to a sequence with a gap, and reports whether any are left. The caller
// holds Scribed.mu.
func (w *writeCall) refuseGaps(e *queueEntry) bool {
	g := &w.s.mu.queue.gaps
	if g.since.Len() == 0 {
		return true
	}
	now := w.s.now()
	left := e.frames[:0]
	for i := range e.frames {
		f := &e.frames[i]
		if !g.hasGap(e.category, f, now) {
			left = append(left, *f)
			continue
		}
		err := rpc.Errorf(scribev1.Reason_REASON_OUT_OF_SEQUENCE, "frames of the producer in category %s were given up before this one: go on with a new epoch", e.category)
		w.results[f.index].Error = rpc.Info(err)
		if w.first == nil {
			w.first = err
		}
	}
	e.frames = left
	e.bytes = e.countBytes()
	return len(left) > 0
}
