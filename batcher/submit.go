package batcher

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"scribe/internal/record"
	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// maxRequest bounds the frames of one request in bytes.
const maxRequest = 64 << 20

// submission is a request that waits for the outcome of its pieces.
type submission struct {
	results []scribev1.FrameResult
	pending atomic.Int64 // pieces without an outcome
	done    chan struct{}
}

// finish tells the submission that one of its pieces has its results.
func (s *submission) finish() {
	if s.pending.Add(-1) == 0 {
		close(s.done)
	}
}

// Submit implements rpc.BatchService. It answers when every frame is durable and visible or has failed, with ACK_LEVEL_NONE when
// they are in memory. What the request as a whole is refused for is an error: too little memory (REASON_OVERLOADED with a hint),
// bytes that are no frames, a batcher that is closed. The request's bytes are not used after it returns. When ctx ends first the
// error has REASON_UNKNOWN_OUTCOME, and the frames are stored or not.
func (b *Batcher) Submit(ctx context.Context, req *scribev1.SubmitRequest) (*scribev1.SubmitResponse, error) {
	data := req.GetFrames()
	wait := req.GetAck() != scribev1.AckLevel_ACK_LEVEL_NONE
	// A byte in memory is charged twice: see Config.MemoryBytes.
	charged := 2 * int64(len(data))
	if err := b.reserve(charged, len(data)); err != nil {
		return nil, err
	}
	in, err := b.parse(ctx, data)
	if err == nil {
		extra := 2*in.bytes + overhead(len(in.pieces), len(in.frames)) - charged
		if err = b.adjust(charged, extra, len(data)); err == nil {
			charged += extra
		}
	}
	if err != nil {
		b.unreserve(charged)
		return nil, err
	}
	resp := &scribev1.SubmitResponse{Results: make([]*scribev1.FrameResult, len(in.results))}
	for i := range in.results {
		resp.Results[i] = &in.results[i]
	}
	if len(in.pieces) == 0 {
		resp.Load = b.load()
		return resp, nil
	}
	var sub *submission
	if wait {
		sub = &submission{results: in.results, done: make(chan struct{})}
		sub.pending.Store(int64(len(in.pieces)))
	}
	for i := range in.pieces {
		p := &in.pieces[i]
		p.sub = sub
		p.mem = b.arena.alloc(p.bytes)
		copy(p.mem.bytes(), data[p.start:])
	}
	load, err := b.accept(in)
	if err != nil || !wait {
		resp.Load = load
		return resp, err
	}
	select {
	case <-sub.done:
		resp.Load = b.load()
		return resp, nil
	case <-ctx.Done():
		// The flush goes on and writes to in.results, which nobody reads any more.
		return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "frames are in memory but not durable yet: %w", context.Cause(ctx))
	}
}

// accept hands the pieces over, or releases them when the batcher has closed meanwhile.
func (b *Batcher) accept(in *parsed) (load uint32, err error) {
	b.mu.Lock()
	if b.mu.closed {
		b.mu.Unlock()
		segments := make([]segment, 0, len(in.pieces))
		for i := range in.pieces {
			segments = append(segments, in.pieces[i].mem)
		}
		// Half of the bytes' charge is the memory's, which is freed by the chunk.
		b.unreserve(in.bytes + overhead(len(in.pieces), len(in.frames)) + b.arena.release(segments))
		return 0, errShutDown()
	}
	now := b.now()
	for i := range in.pieces {
		b.mu.acc.add(now, in.pieces[i].target, in.pieces[i].piece)
	}
	b.mu.acc.tick(now)
	b.mu.counts.accepted.plus(in.accepted)
	load = b.mu.acc.load()
	todo := b.settle()
	b.mu.Unlock()
	b.drive(todo)
	return load, nil
}

func errShutDown() error {
	return rpc.Errorf(scribev1.Reason_REASON_SHUTTING_DOWN, "the batcher is shutting down: send to another one")
}

// reserve charges n bytes of memory for a request with so many bytes of frames.
func (b *Batcher) reserve(n int64, size int) error {
	if size > maxRequest {
		return rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "the request has %d bytes of frames, the limit is %d: send less at once", size, maxRequest)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.mu.closed:
		return errShutDown()
	case n > b.cfg.MemoryBytes:
		return b.neverFits(size)
	case !b.mu.acc.reserve(n):
		return b.overloaded()
	}
	return nil
}

func (b *Batcher) neverFits(size int) error {
	return rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE,
		"the request has %d bytes of frames, more than the batcher's memory of %d takes at once: send less at once", size, b.cfg.MemoryBytes)
}

// overloaded is the error of a request that finds the memory full. The caller holds mu.
func (b *Batcher) overloaded() error {
	b.mu.counts.overloaded++
	return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, b.mu.acc.retryAfter(),
		"the batcher holds %d bytes of at most %d: try again later", b.mu.acc.used, b.cfg.MemoryBytes)
}

// adjust charges n bytes more than were charged for a request, or less when n is negative.
func (b *Batcher) adjust(charged, n int64, size int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if charged+n > b.cfg.MemoryBytes {
		return b.neverFits(size)
	}
	if n <= 0 {
		b.mu.acc.release(-n)
		return nil
	}
	if !b.mu.acc.reserve(n) {
		return b.overloaded()
	}
	return nil
}

func (b *Batcher) unreserve(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.acc.release(n)
}

func (b *Batcher) load() uint32 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.acc.load()
}

// parsed is a request taken apart.
type parsed struct {
	frames   []frame // those that are taken
	results  []scribev1.FrameResult
	pieces   []located
	bytes    int64 // of the frames that are taken
	accepted amount
}

// located is a piece and where it goes and comes from.
type located struct {
	piece
	target target
	start  int // in the request's bytes
	from   int // in parsed.frames
}

// maxPieceFrames bounds the frames of a piece whose sequences count.
const maxPieceFrames = maxPayloadRuns

// parse checks every frame and puts runs of one target together. Frames that are refused alone have their error in results.
func (b *Batcher) parse(ctx context.Context, data []byte) (*parsed, error) {
	var (
		in      = &parsed{}
		finder  = finder{b: b, slot: b.deps.Slot()}
		refuse  = func(err error) { in.results[len(in.results)-1].Error = rpc.Info(err) }
		current *located
	)
	for offset := 0; offset < len(data); {
		h, err := record.Check(data[offset:])
		size := h.Len
		if err != nil {
			if size, err = damaged(data[offset:], offset, err); size == 0 {
				return nil, err
			}
		}
		start := offset
		offset += size
		index := len(in.results)
		in.results = append(in.results, scribev1.FrameResult{})
		var t target
		if err == nil {
			t, err = finder.find(ctx, &h)
		}
		if err != nil {
			refuse(err)
			current = nil
			continue
		}
		f := frame{
			size: uint32(size), messages: uint32(h.Count), baseTime: h.BaseTime,
			producer: h.Producer, epoch: h.Epoch, first: h.FirstSequence, sequenced: h.Sequenced(),
		}
		in.frames = append(in.frames, f)
		in.bytes += int64(size)
		in.accepted.plus(amount{frames: 1, bytes: int64(size), messages: int64(h.Count)})
		if current == nil || current.target != t || current.bytes+size > b.cfg.PayloadBytes ||
			(t.exactlyOnce && len(in.frames)-1-current.from >= maxPieceFrames) {
			in.pieces = append(in.pieces, located{piece: piece{index: index}, target: t, start: start, from: len(in.frames) - 1})
			current = &in.pieces[len(in.pieces)-1]
		}
		current.bytes += size
	}
	in.divide()
	return in, nil
}

// divide gives each piece its frames, when they do not move in memory any more.
func (in *parsed) divide() {
	for i := range in.pieces {
		p := &in.pieces[i]
		end := len(in.frames)
		if i+1 < len(in.pieces) {
			end = in.pieces[i+1].from
		}
		p.frames = in.frames[p.from:end:end]
		if !p.target.exactlyOnce {
			continue
		}
		for j := range p.frames {
			f := &p.frames[j]
			if f.sequenced && (j == 0 || !f.follows(&p.frames[j-1])) {
				p.runs++
			}
		}
	}
}

// damaged decides about a frame that does not pass its check: it returns its size and the error of that frame alone when only
// its body is damaged, else 0 and the error of the whole request, for nobody knows where the next frame begins.
func damaged(b []byte, offset int, err error) (int, error) {
	h, herr := record.ParseHeader(b)
	if herr == nil && h.Len <= len(b) {
		return h.Len, rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "frame at byte %d of the request: %w", offset, err)
	}
	reason := scribev1.Reason_REASON_CORRUPT
	if errors.Is(err, record.ErrVersion) {
		reason = scribev1.Reason_REASON_INVALID
	}
	return 0, rpc.Errorf(reason, "frame at byte %d of the request: %w", offset, err)
}

// finder finds the targets of a request's frames. It remembers the last one: neighbours often have the same.
type finder struct {
	b    *Batcher
	slot uint16

	category *scribev1.Category
	last     target
}

func (d *finder) find(ctx context.Context, h *record.Header) (target, error) {
	if d.category == nil || d.category.GetName() != string(h.Category) {
		d.category = nil
		c, err := d.lookup(ctx, h.CategoryName())
		if err != nil {
			return target{}, err
		}
		d.category = c
		d.last = target{
			category:    c.GetName(),
			class:       retentionClass(c.GetRetention().AsDuration()),
			exactlyOnce: c.GetDelivery() == scribev1.Delivery_DELIVERY_EXACTLY_ONCE,
		}
	}
	c := d.category
	if h.Shard >= max(c.GetShards(), 1) {
		// The category may have grown.
		grown, err := d.b.deps.Categories.Resolve(ctx, c.GetName())
		if err != nil {
			return target{}, fmt.Errorf("category %s: %w", c.GetName(), err)
		}
		d.category = grown
		if h.Shard >= max(grown.GetShards(), 1) {
			return target{}, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_SHARD,
				"category %s has %d logical shards, the frame is for number %d", c.GetName(), grown.GetShards(), h.Shard)
		}
	}
	slot := d.slot
	if d.last.exactlyOnce {
		slot = 0
	} else if slot == 0 {
		return target{}, rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, d.b.cfg.RetryMax, "the batcher has no writer slot at present: send to another one")
	}
	d.last.shard = record.MakeShardID(c.GetId(), uint16(h.Shard), slot)
	return d.last, nil
}

func (d *finder) lookup(ctx context.Context, name string) (*scribev1.Category, error) {
	if c, ok := d.b.deps.Categories.Lookup(name); ok {
		return c, nil
	}
	c, err := d.b.deps.Categories.Resolve(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("category %s: %w", name, err)
	}
	return c, nil
}
