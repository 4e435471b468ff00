package batcher

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"scribe/internal/base/buffers"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// maxRequest bounds the frames of one request in bytes.
const maxRequest = 64 << 20

// submission is a request that waits for the outcome of its pieces.
type submission struct {
	results []scribev1.FrameResult
	pending atomic.Int64 // pieces without an outcome
	done    chan struct{}
	loans   []*loan // of the request's memory
}

// leave gives the request's memory back to the caller.
func (s *submission) leave(pool *buffers.Pool) {
	for _, l := range s.loans {
		l.leave(pool)
	}
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
//
// The frames of one shard in one request are stored as a prefix: when one is not, for a reason that may pass, those behind it are not
// either, and their error is one to repeat. So a caller that sends what is left again, in order, keeps the order. A frame that is
// refused for what it is (damaged, unknown shard, its own producer's sequences) holds nobody back.
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
		b.held(in)
		err = b.admit(in, &charged)
	}
	defer b.recycle(in)
	if err != nil {
		b.unreserve(charged)
		return nil, err
	}
	resp := &scribev1.SubmitResponse{Results: make([]*scribev1.FrameResult, len(in.results))}
	for i := range in.results {
		resp.Results[i] = &in.results[i]
	}
	if len(in.pieces) == 0 {
		b.unreserve(charged)
		resp.Load = b.Load()
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
		if wait && b.arena.large(p.bytes) {
			p.mem = lend(data[p.start : p.start+p.bytes])
			sub.loans = append(sub.loans, p.mem.loan)
			continue
		}
		p.mem = b.arena.alloc(p.bytes)
		copy(p.mem.bytes(), data[p.start:])
	}
	if wait {
		defer sub.leave(b.buffers)
	}
	load, err := b.accept(in)
	if err != nil || !wait {
		resp.Load = load
		return resp, err
	}
	select {
	case <-sub.done:
		resp.Load = b.Load()
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
		b.mu.acc.withdraw(in)
		b.mu.Unlock()
		segments := make([]segment, 0, len(in.pieces))
		charged := int64(0)
		for i := range in.pieces {
			p := &in.pieces[i]
			segments = append(segments, p.mem)
			charged += p.charge() - int64(p.bytes)
		}
		// Half of the bytes' charge is the memory's, which is freed by the chunk.
		b.unreserve(charged + b.arena.release(segments))
		return 0, errShutDown()
	}
	now := b.now()
	b.mu.acc.requests++
	for i := range in.pieces {
		p := &in.pieces[i]
		b.mu.acc.add(now, p.tenant, p.target, p.piece)
	}
	b.mu.acc.tick(now)
	b.mu.counts.accepted.plus(in.accepted)
	load = b.mu.acc.load(now)
	jobs := b.settle()
	b.mu.Unlock()
	b.drive(jobs)
	return load, nil
}

func errShutDown() error {
	return rpc.Errorf(scribev1.Reason_REASON_SHUTTING_DOWN, "the batcher is shutting down: send to another one")
}

// Admit charges a request's announced length before its body is read: it refuses with REASON_OVERLOADED and a hint when the body, or
// its frames afterwards, would find no room, and with REASON_TOO_LARGE when they never will. release is to be called once the request
// is answered; calling it again is harmless.
func (b *Batcher) Admit(n int64) (release func(), err error) {
	b.mu.Lock()
	now := b.now()
	free := b.mu.acc.room.limit - b.mu.acc.room.used
	switch {
	case b.mu.closed:
		err = errShutDown()
	case 2*n > free && 2*n <= b.mu.acc.room.limit: // what never fits is refused with the reason for that
		err = b.overloaded(now, 2*n-free)
	}
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return b.bodies.Admit(n)
}

// Load is how busy the batcher is, for those who choose among several: 0 idle, 1000 refusing. It grows with the memory that is used
// and with the time that flushes take.
func (b *Batcher) Load() uint32 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.acc.load(b.now())
}

// reserve charges n bytes of memory for a request with so many bytes of frames.
func (b *Batcher) reserve(n int64, size int) error {
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
		return b.neverFits(size)
	case !b.mu.acc.room.reserve(now, n):
		return b.overloaded(now, n-(b.cfg.MemoryBytes-b.mu.acc.room.used))
	}
	return nil
}

func (b *Batcher) neverFits(size int) error {
	return rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE,
		"the request has %d bytes of frames, more than the batcher's memory of %d takes at once: send less at once", size, b.cfg.MemoryBytes)
}

// overloaded is the error of a request that finds the memory full, excess bytes of which would have to be free. The caller holds mu.
func (b *Batcher) overloaded(now time.Time, excess int64) error {
	b.mu.counts.overloaded++
	return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, b.mu.acc.room.hint(now, excess),
		"the batcher holds %d bytes of at most %d: try again later", b.mu.acc.room.used, b.cfg.MemoryBytes)
}

// held refuses the frames of shards whose logs are in trouble that others are not in.
func (b *Batcher) held(in *parsed) {
	if b.ledger.troubled.Load() == 0 {
		return
	}
	now := b.now()
	in.filter(func(p *located) error {
		if err, ok := in.asked[p.target.shard]; ok {
			return err
		}
		t := b.ledger.refusal(p.target.shard)
		if t == nil {
			return nil
		}
		reason := scribev1.Reason_REASON_NO_BACKEND
		if t.refusals > 0 {
			reason = scribev1.Reason_REASON_FENCED
		}
		err := rpc.RetryErrorf(reason, max(t.next.Sub(now), b.cfg.RetryBase), "shard %v takes nothing at present: %w", p.target.shard, t.err)
		// The trouble may end while the request is looked at, and all frames of a shard must get the same answer.
		if in.asked == nil {
			in.asked = make(map[record.ShardID]error)
		}
		in.asked[p.target.shard] = err
		return err
	}, &in.turnedHeld)
}

// admit has the request charged for what is taken of it, and refuses what is beyond its category's share. charged is what was
// reserved so far, and what is after it.
func (b *Batcher) admit(in *parsed, charged *int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	now, sum := b.now(), in.charge()
	room := &b.mu.acc.room
	if sum > b.cfg.MemoryBytes {
		return b.neverFits(int(in.bytes))
	}
	if extra := sum - *charged; !room.reserve(now, extra) {
		return b.overloaded(now, extra-(b.cfg.MemoryBytes-room.used))
	}
	*charged = sum
	whole := len(in.pieces) > 0 && in.accepted.frames == int64(len(in.results))
	refusal := b.mu.acc.admit(now, in)
	b.mu.counts.turnedHeld += in.turnedHeld
	b.mu.counts.turnedShare += in.turnedShare
	if whole && len(in.pieces) == 0 {
		if rpc.ReasonOf(refusal) == scribev1.Reason_REASON_OVERLOADED {
			b.mu.counts.overloaded++
		}
		return refusal
	}
	left := in.charge()
	room.cancel(sum - left)
	*charged = left
	return nil
}

func (b *Batcher) unreserve(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.acc.room.cancel(n)
}

// parsed is a request taken apart.
type parsed struct {
	frames   []frame // those that are taken
	results  []scribev1.FrameResult
	pieces   []located
	bytes    int64 // of the frames that are taken
	accepted amount
	// asked are the shards that were refused, and why.
	asked map[record.ShardID]error
	// turnedHeld and turnedShare count frames that were refused for their shard's trouble and their category's share.
	turnedHeld, turnedShare int64
}

// located is a piece and where it goes and comes from.
type located struct {
	piece
	target target
	tenant *tenant // the category's account, once the piece is admitted
	start  int     // in the request's bytes
	from   int     // in parsed.frames
}

// maxRecycled is how many pieces' memory is kept for other requests.
const maxRecycled = 4096

// pieces returns memory for a request's pieces.
func (b *Batcher) pieces() []located {
	if p, ok := b.recycled.Get().(*[]located); ok {
		return *p
	}
	return nil
}

// recycle gives it back: what has become of the pieces has been copied.
func (b *Batcher) recycle(in *parsed) {
	if in == nil || cap(in.pieces) == 0 || cap(in.pieces) > maxRecycled {
		return
	}
	all := in.pieces[:cap(in.pieces)]
	clear(all)
	all = all[:0]
	in.pieces = nil
	b.recycled.Put(&all)
}

// charge is what a piece takes of the memory: a byte counts twice until it is compressed.
func (p *located) charge() int64 { return 2*int64(p.bytes) + overhead(1, len(p.frames)) }

// charge is what all pieces take.
func (in *parsed) charge() (sum int64) {
	for i := range in.pieces {
		sum += in.pieces[i].charge()
	}
	return sum
}

// filter refuses the pieces for which why returns an error, and counts their frames.
func (in *parsed) filter(why func(*located) error, turned *int64) {
	left := in.pieces[:0]
	for i := range in.pieces {
		p := &in.pieces[i]
		err := why(p)
		if err == nil {
			left = append(left, *p)
			continue
		}
		info := rpc.Info(err)
		for j := range p.frames {
			in.results[p.index+j].Error = info
			in.accepted = in.accepted.minus(amount{frames: 1, bytes: int64(p.frames[j].size), messages: int64(p.frames[j].messages)})
		}
		in.bytes -= int64(p.bytes)
		*turned += int64(len(p.frames))
	}
	in.pieces = left
}

// maxPieceFrames bounds the frames of a piece whose sequences count.
const maxPieceFrames = maxPayloadRuns

// parse checks every frame, but for the sums of those that the caller has checked, and puts runs of one target together. Frames that are refused alone have their error in results.
func (b *Batcher) parse(ctx context.Context, data []byte) (*parsed, error) {
	var (
		in      = &parsed{pieces: b.pieces()}
		finder  = finder{b: b, slot: b.deps.Slot()}
		refuse  = func(err error) { in.results[len(in.results)-1].Error = rpc.Info(err) }
		current *located
		check   = rpc.CheckerOf(ctx)
	)
	for offset := 0; offset < len(data); {
		h, err := check(data[offset:])
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
			t, err = finder.take(ctx, &h)
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
	// taken: frames of the category have been taken. once are the ids of the exactly_once categories before it of which some were.
	taken bool
	once  map[string]uint32
	// failed are the shards of which a frame could not be taken for a reason that may pass: those behind it are not taken either.
	failed map[failedShard]error
}

type failedShard struct {
	category string
	shard    uint32
}

// take is find for the frames of a request one after another.
func (d *finder) take(ctx context.Context, h *record.Header) (target, error) {
	if len(d.failed) > 0 {
		if err := d.failed[failedShard{string(h.Category), h.Shard}]; err != nil {
			return target{}, err
		}
	}
	t, err := d.find(ctx, h)
	d.taken = d.taken || err == nil
	if err != nil && retry.Retryable(err) {
		if d.failed == nil {
			d.failed = make(map[failedShard]error)
		}
		d.failed[failedShard{h.CategoryName(), h.Shard}] = err
	}
	return t, err
}

func (d *finder) find(ctx context.Context, h *record.Header) (target, error) {
	if d.category == nil || d.category.GetName() != string(h.Category) {
		c, err := d.lookup(ctx, h.CategoryName())
		if err != nil {
			return target{}, err
		}
		if err := d.use(c); err != nil {
			return target{}, err
		}
	}
	if h.Shard >= max(d.category.GetShards(), 1) { // it may have grown
		if err := d.resolve(ctx); err != nil {
			return target{}, err
		}
	}
	if err := d.locate(h); err != nil {
		return target{}, err
	}
	if d.b.endedLogs.has(d.last.shard) {
		// The view may not know that the category was deleted, and perhaps created again. If the control plane does not either, the
		// engine decides.
		if err := d.resolve(ctx); err != nil {
			return target{}, err
		}
		if err := d.locate(h); err != nil {
			return target{}, err
		}
	}
	return d.last, nil
}

// use makes a category the one of the frames that follow.
//
// The view may learn in the middle of a request that an exactly_once category was deleted and created again. If frames of one producer
// went partly to the old logs, which refuse them, and then to the new ones, the former, sent again, would be taken for repetitions: the
// new logs have seen later sequences. So the latter are not taken either.
func (d *finder) use(c *scribev1.Category) error {
	name := c.GetName()
	id, taken := d.once[name]
	if old := d.category; old != nil && d.taken && d.last.exactlyOnce {
		if old.GetName() == name {
			id, taken = old.GetId(), true
		} else {
			if d.once == nil {
				d.once = make(map[string]uint32)
			}
			d.once[old.GetName()] = old.GetId()
		}
	}
	if taken && id != c.GetId() {
		return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, d.b.cfg.RetryBase,
			"category %s was deleted and created again while the request was read: send the frames again", name)
	}
	d.category, d.taken = c, taken
	d.last = target{
		category:    name,
		class:       pointer.RetentionClass(c.GetRetention().AsDuration()),
		exactlyOnce: c.GetDelivery() == scribev1.Delivery_DELIVERY_EXACTLY_ONCE,
		bound:       c.OneLog(),
		settings:    c,
	}
	return nil
}

// resolve asks the control plane for the category.
func (d *finder) resolve(ctx context.Context) error {
	name := d.category.GetName()
	c, err := d.b.deps.Categories.Resolve(ctx, name)
	if err != nil {
		return fmt.Errorf("category %s: %w", name, err)
	}
	return d.use(c)
}

// locate finds the log of a frame of the category.
func (d *finder) locate(h *record.Header) error {
	c, slot := d.category, d.slot
	switch {
	case h.Shard >= max(c.GetShards(), 1):
		return rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_SHARD,
			"category %s has %d logical shards, the frame is for number %d", c.GetName(), c.GetShards(), h.Shard)
	case d.last.bound:
		slot = 0
	case slot == 0:
		return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, d.b.cfg.RetryMax, "the batcher has no writer slot at present: send to another one")
	}
	d.last.shard = record.MakeShardID(c.GetId(), uint16(h.Shard), slot)
	return nil
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
