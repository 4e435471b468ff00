package batcher

import (
	"context"
	"slices"

	"scribe/internal/format/record"
	"scribe/internal/role/request"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// maxTails bounds the producers whose last accepted frames are known, at about 150 bytes each. Random ones above it are evicted: what
// follows their frames is refused, and sent again after them.
const maxTails = 1 << 16

// maxChains bounds the tails of one producer in a logical shard. An agent forwards what its producers send beside what it has in its
// backlog of them, so two are common; a newer instance of a producer may begin beside the backlog of the older one.
const maxChains = 4

// tailKey names a producer in a logical shard.
type tailKey struct {
	shard    record.ShardID // with writer slot 0
	producer uint64
}

// producerTail is the end of some frames that a producer has sent to a logical shard, which continue one another.
type producerTail struct {
	epoch uint32
	// next is the sequence after the frame that was accepted last, log where it went, and chain that of its span: what follows the
	// frame is not stored if the chain is broken. chain is nil, and next 0, if no frame was accepted.
	next  uint64
	log   record.ShardID
	chain *requestChain
	// refused: a frame that begins with the sequence missing, next or later, was refused, and has not been accepted since.
	refused bool
	missing uint64
}

// mayBeStored reports whether the frame that was accepted last went to a log, and may still be stored there.
func (t *producerTail) mayBeStored(log record.ShardID) bool {
	return t.chain != nil && t.log == log && !t.chain.broken.Load()
}

// producerTails knows where producers are that have several requests in flight. Their requests may overtake one another on the way:
// one that follows another is held until that one is accepted.
type producerTails struct {
	byKey map[tailKey][]producerTail // the tails of a key, the one that changed last at the end
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

// setTail sets the tail of a key at an index, or a new one below 0, and wakes the requests that are held.
func (t *producerTails) setTail(k tailKey, at int, tail producerTail) {
	if t.byKey == nil {
		t.byKey = make(map[tailKey][]producerTail)
	}
	tails := t.byKey[k]
	switch {
	case at >= 0:
		tails = slices.Delete(tails, at, at+1)
	case len(tails) == maxChains && tail.chain == nil:
		return // of what was refused, nothing follows what was accepted
	case len(tails) == maxChains:
		tails = slices.Delete(tails, 0, 1)
	}
	t.byKey[k] = append(tails, tail)
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

// findTail returns the index of the tail that a frame is behind: the last of its epoch that ends where it begins or before; -1 if there
// is none. exact reports that it ends there.
func (t *producerTails) findTail(k tailKey, epoch uint32, first uint64) (at int, exact bool) {
	at = -1
	tails := t.byKey[k]
	for i := range tails {
		if c := &tails[i]; c.epoch == epoch && c.next <= first && (at < 0 || c.next >= tails[at].next) {
			at = i
		}
	}
	return at, at >= 0 && tails[at].chain != nil && tails[at].next == first
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
	k := tailKeyOf(log, producer)
	at, exact := t.findTail(k, epoch, first)
	if at < 0 {
		return followLater
	}
	switch tail := &t.byKey[k][at]; {
	case exact && tail.log != log:
		return followNever // logs do not wait for each other
	case exact:
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
		p.after = brokenChain
		k := tailKeyOf(log, f.producer)
		if at, exact := t.findTail(k, f.epoch, f.first); exact && t.byKey[k][at].log == log {
			p.after = t.byKey[k][at].chain
		}
	}
	for from := 0; from < len(p.frames); {
		f := &p.frames[from]
		to := from + 1 // the frames of a producer that are adjacent are one: the last one decides
		for to < len(p.frames) && p.frames[to].sequenced == f.sequenced && p.frames[to].producer == f.producer {
			to++
		}
		if from = to; f.sequenced {
			if p.chain == nil {
				p.chain = &requestChain{}
			}
			t.advanceTail(log, f, &p.frames[to-1], p.chain)
		}
	}
}

// advanceTail notes that the frames of a producer from first to last were accepted.
func (t *producerTails) advanceTail(log record.ShardID, first, last *frame, chain *requestChain) {
	k := tailKeyOf(log, first.producer)
	tail := producerTail{epoch: last.epoch, next: last.lastSequence() + 1, log: log, chain: chain}
	at, exact := t.findTail(k, last.epoch, tail.next)
	if exact && t.byKey[k][at].mayBeStored(log) {
		return // a copy of what is there
	}
	if !exact { // it replaces what it continues, or what was refused there
		at, exact = t.findTail(k, first.epoch, first.first)
	}
	if at >= 0 {
		old := t.byKey[k][at]
		if old.refused && old.missing >= tail.next {
			tail.refused, tail.missing = true, old.missing
		}
		if !exact && old.chain != nil { // it does not continue that: two senders, or frames between them are missing
			at = -1
		}
	}
	t.setTail(k, at, tail)
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
		at, _ := b.mu.tails.findTail(r.key, r.epoch, r.first)
		tail := producerTail{epoch: r.epoch}
		if at >= 0 {
			tail = b.mu.tails.byKey[r.key][at]
		}
		if tail.refused && tail.missing <= r.first {
			continue // one before it was refused
		}
		tail.refused, tail.missing = true, r.first
		b.mu.tails.setTail(r.key, at, tail)
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
