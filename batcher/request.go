package batcher

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"scribe/batcher/arena"
	"scribe/internal/base/buffers"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/role/request"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob/encryption"
)

// maxRequest bounds the frames of one request in bytes.
const maxRequest = 64 << 20

// waitingRequest is a request whose writer waits for the outcome.
type waitingRequest struct {
	results  []scribev1.FrameResult
	pending  atomic.Int64 // spans without an outcome
	done     chan struct{}
	lingered bool              // nobody waits for the writer: see SubmitRequest.lingered
	borrowed []*arena.Borrowed // buffers borrowed from the caller
}

// reclaimBuffers ends the use of the caller's memory.
func (s *waitingRequest) reclaimBuffers(pool *buffers.Pool) {
	for _, l := range s.borrowed {
		l.Reclaim(pool)
	}
}

// finishSpan counts a span whose results are set, and wakes the writer after the last one.
func (s *waitingRequest) finishSpan() {
	if s.pending.Add(-1) == 0 {
		close(s.done)
	}
}

// Submit implements rpc.BatchService. It returns when every frame is durable and readable or has failed; with ACK_LEVEL_NONE,
// when the frames are in memory. It returns an error if the whole request is refused: for lack of memory (REASON_OVERLOADED with
// a retry hint), for bytes that are not frames, or because the batcher is closed. The request's bytes are not used after it
// returns. If ctx ends first, the error has REASON_UNKNOWN_OUTCOME, and the frames may be stored or not.
//
// The stored frames of one shard in one request are a prefix: if one fails for a transient reason, later ones fail too, with a
// retryable error. So a caller that retries the failed frames in order keeps the order. A frame that is refused for a permanent
// reason (damaged, unknown shard, its own producer's sequences) does not affect later ones.
func (b *Batcher) Submit(ctx context.Context, req *scribev1.SubmitRequest) (*scribev1.SubmitResponse, error) {
	data := req.GetFrames()
	wait := req.GetAck() != scribev1.AckLevel_ACK_LEVEL_NONE
	followers, err := request.NewFollowers(req.GetFollows())
	if err != nil {
		return nil, err
	}
	var late []uint32
	if !followers.IsEmpty() {
		late = b.awaitPredecessors(ctx, req, followers)
	}
	// A byte in memory is charged twice: see Config.MemoryBytes.
	charged := 2 * int64(len(data))
	if err := b.reserveRequest(charged, len(data)); err != nil {
		b.noteRefused(req, nil)
		return nil, err
	}
	in, err := b.parseRequest(ctx, data, followers, late)
	if err == nil {
		b.refuseTroubled(in)
		err = b.admitParsed(in, &charged)
	}
	defer b.recycleSpans(in)
	if err != nil {
		b.cancelReservation(charged)
		b.noteRefused(req, nil)
		return nil, err
	}
	resp := &scribev1.SubmitResponse{Results: make([]*scribev1.FrameResult, len(in.results)), Ordered: true}
	refused := false
	for i := range in.results {
		resp.Results[i] = &in.results[i]
		refused = refused || in.results[i].GetError() != nil
	}
	if refused {
		b.noteRefused(req, in.results)
	}
	if len(in.spans) == 0 {
		b.cancelReservation(charged)
		resp.Load = b.Load()
		return resp, nil
	}
	var sub *waitingRequest
	if wait {
		sub = &waitingRequest{results: in.results, done: make(chan struct{}), lingered: req.GetLingered()}
		sub.pending.Store(int64(len(in.spans)))
	}
	for i := range in.spans {
		p := &in.spans[i]
		p.sub = sub
		if wait && b.arena.IsLarge(p.bytes) {
			p.mem = arena.Borrow(data[p.start : p.start+p.bytes])
			sub.borrowed = append(sub.borrowed, p.mem.Borrowed)
			continue
		}
		p.mem = b.arena.Allocate(p.bytes)
		copy(p.mem.Bytes(), data[p.start:])
	}
	if wait {
		defer sub.reclaimBuffers(b.buffers)
	}
	load, err := b.acceptSpans(in)
	if err != nil || !wait {
		resp.Load = load
		return resp, err
	}
	select {
	case <-sub.done:
		resp.Load = b.Load()
		return resp, nil
	case <-ctx.Done():
		// The flush continues and writes to in.results, which are no longer read.
		return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "frames are in memory but not durable yet: %w", context.Cause(ctx))
	}
}

// acceptSpans passes the spans to the accumulator, or releases them if the batcher has closed meanwhile.
func (b *Batcher) acceptSpans(in *parsedRequest) (load uint32, err error) {
	b.update(func(now time.Time) {
		if b.mu.closed {
			b.mu.acc.withdrawCharges(in)
			err = errShutDown()
			return
		}
		b.mu.acc.requests++
		for i := range in.spans {
			p := &in.spans[i]
			b.mu.acc.chainSpan(p.target.shard, &p.frameSpan)
			b.mu.tails.acceptSpan(p)
			if p.follows {
				b.mu.counts.followed++
			}
			b.mu.acc.addSpan(now, p.account, p.target, p.frameSpan)
		}
		b.mu.acc.tick(now)
		b.mu.counts.accepted = b.mu.counts.accepted.Plus(in.accepted)
		load = b.mu.acc.loadLevel(now)
	})
	if err != nil {
		segments := make([]arena.Segment, 0, len(in.spans))
		charged := int64(0)
		for i := range in.spans {
			p := &in.spans[i]
			segments = append(segments, p.mem)
			charged += p.memoryCharge() - int64(p.bytes)
		}
		// Half of the charge for bytes belongs to the arena's chunks, and is released with these.
		b.cancelReservation(charged + b.arena.Free(segments))
	}
	return load, err
}

func errShutDown() error {
	return rpc.Errorf(scribev1.Reason_REASON_SHUTTING_DOWN, "the batcher is shutting down: send to another one")
}

// Admit charges a request's announced length of n bytes before its body is read. It fails with REASON_OVERLOADED and a retry hint
// if the body, or its frames afterwards, do not fit now, and with REASON_TOO_LARGE if they never will. The caller calls release
// once the request is answered; repeated calls are harmless.
func (b *Batcher) Admit(n int64) (release func(), err error) {
	b.mu.Lock()
	now := b.now()
	free := b.mu.acc.memory.Free()
	switch {
	case b.mu.closed:
		err = errShutDown()
	case 2*n > free && 2*n <= b.mu.acc.memory.Limit(): // a request that never fits is refused below, as too large
		err = b.overloadedError(now, 2*n-free)
	}
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return b.bodies.Admit(n)
}

// Load returns the load of the batcher, by which routers choose among several: 0 idle, 1000 refusing. It grows with the used
// memory and with the latency of flushes.
func (b *Batcher) Load() uint32 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.acc.loadLevel(b.now())
}

// reserveRequest charges n bytes of memory for a request with size bytes of frames.
func (b *Batcher) reserveRequest(n int64, size int) error {
	if size > maxRequest {
		return rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "the request has %d bytes of frames, the limit is %d: send less at once", size, maxRequest)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	switch {
	case b.mu.closed:
		return errShutDown()
	case n > b.cfg.MemoryBytes:
		return b.tooLargeError(size)
	case !b.mu.acc.memory.Charge(now, n):
		return b.overloadedError(now, n-b.mu.acc.memory.Free())
	}
	return nil
}

func (b *Batcher) tooLargeError(size int) error {
	return rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE,
		"the request has %d bytes of frames, more than the batcher's memory of %d takes at once: send less at once", size, b.cfg.MemoryBytes)
}

// overloadedError returns the error of a request that lacks excess bytes of memory. The caller holds mu.
func (b *Batcher) overloadedError(now time.Time, excess int64) error {
	b.mu.counts.overloaded++
	return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, b.mu.acc.memory.Hint(now, excess),
		"the batcher holds %d bytes of at most %d: try again later", b.mu.acc.memory.Used(), b.cfg.MemoryBytes)
}

// refuseTroubled refuses the frames of logs that currently fail, so that they do not hold up other logs.
func (b *Batcher) refuseTroubled(in *parsedRequest) {
	if b.queues.Troubled() == 0 {
		return
	}
	now := b.now()
	in.refuseSpans(func(p *routedSpan) error {
		if err, ok := in.refusedShards[p.target.shard]; ok {
			return err
		}
		t := b.queues.RefusalOf(p.target.shard)
		if t == nil {
			return nil
		}
		reason := scribev1.Reason_REASON_NO_BACKEND
		if t.Refusals > 0 {
			reason = scribev1.Reason_REASON_FENCED
		}
		err := rpc.RetryErrorf(reason, max(t.Retry.Sub(now), b.cfg.RetryBase), "shard %v takes no frames at present: %w", p.target.shard, t.Err)
		// The log may recover while the request is processed, but all frames of a shard must get the same answer.
		if in.refusedShards == nil {
			in.refusedShards = make(map[record.ShardID]error)
		}
		in.refusedShards[p.target.shard] = err
		return err
	}, &in.refusedTrouble)
}

// admitParsed charges the request for its accepted frames, and refuses frames beyond their category's share. On entry *charged is
// the reserved memory; admitParsed updates it to the charge of the frames that are left.
func (b *Batcher) admitParsed(in *parsedRequest, charged *int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	now, sum := b.now(), in.memoryCharge()
	memory := b.mu.acc.memory
	if sum > b.cfg.MemoryBytes {
		return b.tooLargeError(int(in.bytes))
	}
	if extra := sum - *charged; !memory.Charge(now, extra) {
		return b.overloadedError(now, extra-memory.Free())
	}
	*charged = sum
	whole := len(in.spans) > 0 && in.accepted.Frames == int64(len(in.results))
	refusal := b.mu.acc.admitCategories(now, in)
	b.mu.counts.refusedTrouble += in.refusedTrouble
	b.mu.counts.refusedOrder += in.refusedOrder
	b.mu.counts.refusedShare += in.refusedShare
	b.mu.counts.refusedPriority += in.refusedPriority
	if whole && len(in.spans) == 0 {
		if rpc.ReasonOf(refusal) == scribev1.Reason_REASON_OVERLOADED {
			b.mu.counts.overloaded++
		}
		return refusal
	}
	left := in.memoryCharge()
	memory.Cancel(sum - left)
	*charged = left
	return nil
}

func (b *Batcher) cancelReservation(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.acc.memory.Cancel(n)
}

// parsedRequest is a request split into spans.
type parsedRequest struct {
	frames   []frame // the accepted ones
	results  []scribev1.FrameResult
	spans    []routedSpan
	bytes    int64 // of the accepted frames
	accepted request.Amount
	// refusedShards has the errors of refused shards.
	refusedShards map[record.ShardID]error
	// refusedTrouble counts frames refused because their log fails, refusedShare those refused for their category's share, refusedPriority
	// those refused for the sake of higher priorities.
	refusedTrouble, refusedShare, refusedPriority int64
	// refusedOrder counts those whose predecessor is missing.
	refusedOrder int64
}

// routedSpan is a span with its destination and its location in the request.
type routedSpan struct {
	frameSpan
	target  logTarget
	account *categoryAccount // the category's account, once the span is admitted
	follows bool             // the first frame follows one of an earlier request, which may have no outcome yet
	start   int              // offset in the request's bytes
	from    int              // index of the first frame in parsedRequest.frames
}

// maxRecycled bounds the capacity of span memory that is recycled.
const maxRecycled = 4096

// recycleSpans recycles the memory of a request's spans, which the accumulator has copied.
func (b *Batcher) recycleSpans(in *parsedRequest) {
	if in == nil || cap(in.spans) == 0 || cap(in.spans) > maxRecycled {
		return
	}
	all := in.spans[:cap(in.spans)]
	clear(all)
	all = all[:0]
	in.spans = nil
	b.recycled.Put(&all)
}

// memoryCharge returns the charge of a span: a byte counts twice until it is compressed.
func (p *routedSpan) memoryCharge() int64 {
	return 2*int64(p.bytes) + overheadBytes(1, len(p.frames))
}

// memoryCharge returns the charge of all spans.
func (in *parsedRequest) memoryCharge() (sum int64) {
	for i := range in.spans {
		sum += in.spans[i].memoryCharge()
	}
	return sum
}

// refuseSpans refuses the spans for which why returns an error, and counts their frames.
func (in *parsedRequest) refuseSpans(why func(*routedSpan) error, turned *int64) {
	left := in.spans[:0]
	for i := range in.spans {
		p := &in.spans[i]
		err := why(p)
		if err == nil {
			left = append(left, *p)
			continue
		}
		info := rpc.Info(err)
		for j := range p.frames {
			in.results[p.index+j].Error = info
			in.accepted = in.accepted.Minus(request.Amount{Frames: 1, Bytes: int64(p.frames[j].size), Messages: int64(p.frames[j].messages)})
		}
		in.bytes -= int64(p.bytes)
		*turned += int64(len(p.frames))
	}
	in.spans = left
}

// maxSpanFrames bounds the frames of a span in an exactly_once category.
const maxSpanFrames = maxPayloadRuns

// parseRequest checks every frame, except checksums that the caller has verified, and groups runs of one target into spans.
// Frames that are refused individually have their error in results.
// Those of late are refused, since what they follow is not here.
func (b *Batcher) parseRequest(ctx context.Context, data []byte, followers request.Followers, late []uint32) (*parsedRequest, error) {
	var (
		list     request.FollowList
		in       = &parsedRequest{}
		resolver = b.categories.NewResolver()
		logs     = logFinder{slot: b.deps.Slot(), retryAfter: b.cfg.RetryMax, keys: b.deps.Keys}
		current  *routedSpan
	)
	if spans, ok := b.recycled.Get().(*[]routedSpan); ok {
		in.spans = *spans
	}
	frames := request.Walk(ctx, data)
	for frames.Next() {
		in.results = append(in.results, scribev1.FrameResult{})
		follows := followers.Marks(&frames)
		h, err := &frames.Header, frames.Err
		var t logTarget
		if err == nil {
			var c *scribev1.Category
			if c, err = resolver.FindCategory(ctx, h); err == nil {
				t, err = logs.findLog(c, h.Shard)
			}
		}
		if err == nil && len(late) > 0 {
			if err = in.refuseLate(t.shard, isListed(late, frames.Index)); err != nil {
				in.refusedOrder++
			}
		}
		if err != nil {
			in.results[frames.Index].Error = rpc.Info(err)
			current = nil
			continue
		}
		in.frames = append(in.frames, frame{
			size: uint32(h.Len), messages: uint32(h.Count), baseTime: h.BaseTime,
			producer: h.Producer, epoch: h.Epoch, first: h.FirstSequence, sequenced: h.Sequenced(),
		})
		in.bytes += int64(h.Len)
		in.accepted = in.accepted.Plus(request.Amount{Frames: 1, Bytes: int64(h.Len), Messages: int64(h.Count)})
		if !followers.IsEmpty() && h.Sequenced() && list.Continues(h.Stream(), h.Epoch, h.FirstSequence, h.NextSequence()) {
			follows = false // the frame before it is in this request, and they share a chain
		}
		if current == nil || follows || current.target != t || current.bytes+h.Len > b.cfg.PayloadBytes ||
			(t.exactlyOnce && len(in.frames)-1-current.from >= maxSpanFrames) {
			in.spans = append(in.spans, routedSpan{
				frameSpan: frameSpan{index: frames.Index}, target: t, start: int(frames.Offset), from: len(in.frames) - 1, follows: follows,
			})
			current = &in.spans[len(in.spans)-1]
		}
		current.bytes += h.Len
	}
	in.assignFrames()
	return in, frames.Fault()
}

// refuseLate returns the error of a frame that is late, or comes after such a frame of its log: the stored ones are a prefix.
func (in *parsedRequest) refuseLate(shard record.ShardID, late bool) error {
	if late {
		if in.refusedShards == nil {
			in.refusedShards = make(map[record.ShardID]error)
		}
		in.refusedShards[shard] = errOutOfOrder()
	}
	return in.refusedShards[shard]
}

// assignFrames sets the frames of each span, once in.frames no longer grows.
func (in *parsedRequest) assignFrames() {
	for i := range in.spans {
		p := &in.spans[i]
		end := len(in.frames)
		if i+1 < len(in.spans) {
			end = in.spans[i+1].from
		}
		p.frames = in.frames[p.from:end:end]
		if !p.target.exactlyOnce {
			continue
		}
		for j := range p.frames {
			f := &p.frames[j]
			if f.sequenced && (j == 0 || !f.continues(&p.frames[j-1])) {
				p.runs++
			}
		}
	}
}

// logFinder finds the logs of a request's frames. It caches the last category, since neighbouring frames often share it.
type logFinder struct {
	slot       uint16
	retryAfter time.Duration
	keys       Keys // nil if the process has none
	last       logTarget
	// keyErrs say why there is no key of a category, by its id: once a frame of it was refused, so are the later ones of the request, since the key may come
	// in the meantime, and the stored ones are a prefix.
	keyErrs map[uint32]error
}

// findLog returns the target of frames of a category's logical shard.
func (l *logFinder) findLog(c *scribev1.Category, shard uint32) (logTarget, error) {
	if l.last.settings != c {
		l.last = logTarget{
			category:    c.GetName(),
			class:       pointer.RetentionClass(c.GetRetention().AsDuration()),
			exactlyOnce: c.GetDelivery() == scribev1.Delivery_DELIVERY_EXACTLY_ONCE,
			bound:       c.OneLog(),
			settings:    c,
		}
		l.findKey(c)
	}
	if err := l.keyErrs[c.GetId()]; err != nil {
		return logTarget{}, err
	}
	if l.slot == 0 && !l.last.bound {
		return logTarget{}, rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, l.retryAfter,
			"the batcher has no writer slot at present: send to another one")
	}
	l.last.shard = logOf(c, shard, l.slot)
	return l.last, nil
}

// keyPause is about what a key takes that is being fetched: three or four requests to the store.
const keyPause = 200 * time.Millisecond

// findKey sets the key of the last target, whose category is c. It does not wait: a key that is on its way is there when the writer tries again.
func (l *logFinder) findKey(c *scribev1.Category) {
	if !c.GetEncrypted() || l.keyErrs[c.GetId()] != nil {
		return
	}
	err := errNoKeys
	if l.keys != nil {
		l.last.key, err = l.keys.WritingKey(c.GetId(), c.GetKeyGeneration())
	}
	if err == nil {
		return
	}
	if l.keyErrs == nil {
		l.keyErrs = make(map[uint32]error)
	}
	// Writers are not told what the file and the store say: the log has it.
	text, after := "the batcher has no key for it: its log says why", l.retryAfter
	if errors.Is(err, encryption.ErrLoading) {
		text, after = "the batcher is fetching its key", min(keyPause, after)
	}
	l.keyErrs[c.GetId()] = rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, after, "category %q is encrypted: %s", c.GetName(), text)
}

var errNoKeys = errors.New("the process has none")

// logOf returns the log of a category's logical shard: that of the writer slot, or the shard's only log.
func logOf(c *scribev1.Category, shard uint32, slot uint16) record.ShardID {
	if c.OneLog() {
		slot = 0
	}
	return record.MakeShardID(c.GetId(), uint16(shard), slot)
}
