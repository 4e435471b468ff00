package batcher

import (
	"context"
	"slices"

	"scribe/internal/format/record"
	"scribe/internal/role/request"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// maxTails bounds the producers whose last accepted frame is known, at about 100 bytes each. Random ones above it are evicted: what
// follows their frames is refused, and sent again after them.
const maxTails = 1 << 16

// tailKey names a producer in a logical shard.
type tailKey struct {
	shard    record.ShardID // with writer slot 0
	producer uint64
}

// producerTail is the end of what a producer has sent to a logical shard.
type producerTail struct {
	epoch uint32
	// next is the sequence after the frame that was accepted last, log where it went, and chain that of its span: what follows the
	// frame is not stored if the chain is broken. chain is nil if no frame of the epoch was accepted.
	next  uint64
	log   record.ShardID
	chain *requestChain
	// refused: a frame that begins with the sequence missing was refused, and has not been accepted since.
	refused bool
	missing uint64
}

// producerTails knows where producers are that have several requests in flight. Their requests may overtake one another on the way:
// one that follows another is held until that one is accepted.
type producerTails struct {
	byKey map[tailKey]producerTail
	// changed is closed when a tail changes while requests are held; nil while none is.
	changed chan struct{}
}

// brokenChain is the chain of frames whose predecessor is not known.
var brokenChain = func() *requestChain {
	c := &requestChain{}
	c.broken.Store(true)
	return c
}()

func tailKeyOf(shard record.ShardID, producer uint64) tailKey {
	return tailKey{record.MakeShardID(shard.Category(), shard.Logical(), 0), producer}
}

// setTail sets a tail, and wakes the requests that are held.
func (t *producerTails) setTail(k tailKey, tail producerTail) {
	if t.byKey == nil {
		t.byKey = make(map[tailKey]producerTail)
	}
	t.byKey[k] = tail
	for old := range t.byKey { // in the map's order: random
		if len(t.byKey) <= maxTails {
			break
		}
		if old != k {
			delete(t.byKey, old)
		}
	}
	t.wakeHeld()
}

// wakeHeld makes held requests look again.
func (t *producerTails) wakeHeld() {
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// followState is the state of a frame that follows another.
type followState uint8

const (
	followNow   followState = iota // the other was accepted
	followLater                    // the other has not arrived
	followNever                    // the other was refused, or went to another log
)

// stateOf returns the state of a frame for a log.
func (t *producerTails) stateOf(log record.ShardID, producer uint64, epoch uint32, first uint64) followState {
	switch tail := t.byKey[tailKeyOf(log, producer)]; {
	case tail.epoch != epoch:
		return followLater
	case tail.chain != nil && tail.next == first && tail.log != log:
		return followNever // logs do not wait for each other
	case tail.chain != nil && tail.next == first:
		return followNow
	case tail.refused && tail.missing < first:
		return followNever
	default:
		return followLater
	}
}

// acceptSpan notes that a span was accepted, and links it to the span that it follows.
func (t *producerTails) acceptSpan(p *routedSpan) {
	log := p.target.shard
	if f := &p.frames[0]; p.follows {
		if p.after = brokenChain; t.stateOf(log, f.producer, f.epoch, f.first) == followNow {
			p.after = t.byKey[tailKeyOf(log, f.producer)].chain
		}
	}
	for i := range p.frames {
		f := &p.frames[i]
		if !f.sequenced || i+1 < len(p.frames) && p.frames[i+1].producer == f.producer {
			continue // the last one of the producer decides
		}
		if p.chain == nil {
			p.chain = &requestChain{}
		}
		k := tailKeyOf(log, f.producer)
		tail, old := producerTail{epoch: f.epoch, next: f.lastSequence() + 1, log: log, chain: p.chain}, t.byKey[k]
		if old.epoch == f.epoch {
			if old.chain != nil && old.log == log && old.next >= tail.next && !old.chain.broken.Load() {
				continue // a copy of what is there
			}
			if old.refused && old.missing >= tail.next {
				tail.refused, tail.missing = true, old.missing
			}
		}
		t.setTail(k, tail)
	}
}

// awaitPredecessors waits until each frame that follows another may be accepted, for Config.FollowWait at most. It returns those that
// may not. Nothing is charged to the memory meanwhile.
func (b *Batcher) awaitPredecessors(ctx context.Context, req *scribev1.SubmitRequest, followers request.Followers) (late []uint32) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.FollowWait)
	defer cancel()
	var list request.FollowList
	for frames := request.WalkHeaders(req.GetFrames()); frames.Next(); {
		marked := followers.Marks(&frames)
		if frames.Err != nil || !frames.Sequenced() {
			continue
		}
		h := &frames.Header
		if list.Continues(h.Stream(), h.Epoch, h.FirstSequence, h.NextSequence()) || !marked {
			continue
		}
		if !b.awaitPredecessor(ctx, h) {
			late = append(late, uint32(frames.Index)) //nolint:gosec // bounded by the request's bytes
		}
	}
	return late
}

// awaitPredecessor waits until a frame may be accepted. It returns false if its predecessor was refused, or the time is over.
func (b *Batcher) awaitPredecessor(ctx context.Context, h *record.Header) bool {
	c, ok := b.categories.LookupFrame(h)
	if !ok {
		return false
	}
	for {
		log := logOf(c, h.Shard, b.deps.Slot())
		b.mu.Lock()
		state := b.mu.tails.stateOf(log, h.Producer, h.Epoch, h.FirstSequence)
		if b.mu.closed {
			state = followNever
		}
		if state == followLater && b.mu.tails.changed == nil {
			b.mu.tails.changed = make(chan struct{})
		}
		changed := b.mu.tails.changed
		b.mu.Unlock()
		if state != followLater {
			return state == followNow
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// noteRefused notes the frames of a request that were refused, so that those which follow them are not held in vain. results is
// nil if all were.
func (b *Batcher) noteRefused(req *scribev1.SubmitRequest, results []scribev1.FrameResult) {
	type refusal struct {
		key   tailKey
		epoch uint32
		first uint64
	}
	var refused []refusal
	for frames := request.WalkHeaders(req.GetFrames()); frames.Next(); {
		if frames.Err != nil || !frames.Sequenced() || results != nil && results[frames.Index].GetError() == nil {
			continue
		}
		if c, ok := b.categories.LookupFrame(&frames.Header); ok {
			refused = append(refused, refusal{tailKeyOf(logOf(c, frames.Shard, 0), frames.Producer), frames.Epoch, frames.FirstSequence})
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range refused {
		tail := b.mu.tails.byKey[r.key]
		if tail.epoch != r.epoch {
			tail = producerTail{epoch: r.epoch}
		}
		if tail.refused && tail.missing <= r.first {
			continue // one before it was refused
		}
		tail.refused, tail.missing = true, r.first
		b.mu.tails.setTail(r.key, tail)
	}
}

// errOutOfOrder is the error of a frame whose predecessor did not arrive, or was refused.
func errOutOfOrder() error {
	return rpc.Errorf(scribev1.Reason_REASON_OUT_OF_ORDER, "the frame that it follows was not taken here: send that first")
}

// isListed reports whether a frame is in an ascending list of indices.
func isListed(indices []uint32, frame int) bool {
	_, found := slices.BinarySearch(indices, uint32(frame)) //nolint:gosec // bounded by the request's bytes
	return found
}
