package producer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"scribe/internal/base/buffers"
	"scribe/internal/format/delivery"
	"scribe/internal/transport/rpc"
	"scribe/producer/internal/schedule"
	scribev1 "scribe/proto/scribe/v1"
)

// outRequest is one call of the service. It has frames of any streams; those of one stream are adjacent and in order.
type outRequest struct {
	frames []*outFrame
	runs   []streamRun
	size   int // bytes of the frames
	ack    AckLevel
	// lingered: its frames did, so nobody waits for it.
	lingered bool

	alone  bool  // takes no other frame
	limit  int   // bound of size if there are several frames
	copied int64 // bytes charged for copies, until the frames have left their own buffers; 0 if they are sent without a copy
	// packed has all frames of the request, once they are copied; nil if they are not.
	packed *buffers.Buffer
	// follows are the frames before which others of their stream are in flight, by index.
	follows []uint32
}

// maxRequest bounds a request of several frames, in bytes. Each request costs its servers a file, two syncs and a log record, so
// requests should be large when many frames wait.
const maxRequest = 8 << 20

// copyMemory is the memory for copies: a request of several frames copies them into one buffer. They leave their own buffers then, which
// for small frames are much larger.
type copyMemory struct {
	free atomic.Int64
	pool buffers.Pool
}

// requestLimit returns the bound on the next request in bytes: half of the free memory, so that concurrent requests get a share
// too. A single frame can always be sent, since it is not copied.
func (m *copyMemory) requestLimit() int { return int(min(m.free.Load()/2, maxRequest)) }

// streamRun is the part of a request that belongs to one stream: frames[from:to].
type streamRun struct {
	s        *shardStream
	from, to int
	flight   *streamFlight
}

// finishedFrame is a frame with its final outcome.
type finishedFrame struct {
	s   *shardStream
	f   *outFrame
	err error
	at  Position
}

// sendLoop sends due frames until the producer is stopped. It blocks only on the scheduler's signal and its timer: requests run
// in goroutines of their own, at most maxInFlight.
func (c *sharedCore) sendLoop() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	defer c.clock.stopTicks()
	var due []*shardStream
	for !c.sched.IsStopped() {
		now := time.Now()
		ticking := c.clock.takeTick(now)
		due = c.sched.TakeDue(now, due[:0])
		for _, s := range due {
			c.endLinger(s, now)
		}
		clear(due)
		c.relieveMemory()
		expiry := c.dropOverdue(now)
		for s := c.sched.Unpark(now); s != nil; s = c.sched.Unpark(now) {
			s.stripe.mu.Lock()
			s.parked = false
			c.scheduleStream(s)
			s.stripe.mu.Unlock()
		}
		for lane, ok := c.sched.StartRequest(now, c.cfg.maxInFlight); ok; lane, ok = c.sched.StartRequest(now, c.cfg.maxInFlight) {
			req := c.composeRequest(now, lane)
			if req == nil {
				c.sched.EndRequest(lane)
				continue
			}
			c.senders.Go(func() {
				c.sendRequest(req)
				c.sched.EndRequest(lane)
			})
		}
		c.sched.Depart(c.linger.nextDeparture(now))
		timer.Stop()
		at := c.sched.NextWake(c.cfg.maxInFlight)
		if at.IsZero() || !ticking.IsZero() && ticking.Before(at) {
			at = ticking
		}
		if !expiry.IsZero() && (at.IsZero() || expiry.Before(at)) {
			at = expiry
		}
		if !at.IsZero() {
			timer.Reset(time.Until(at))
		}
		select {
		case <-c.sched.Changed():
		case <-timer.C:
		}
	}
}

// maxPassed bounds the streams that composeRequest skips because their next frame can't join the request.
const maxPassed = 64

// composeRequest fills a request with frames of the ready streams of a lane, in the order in which they became ready. It returns nil if
// there are none.
func (c *sharedCore) composeRequest(now time.Time, lane schedule.Lane) *outRequest {
	req := c.requests.Get().(*outRequest)
	var (
		passed []*shardStream
		late   []finishedFrame
	)
	req.limit = c.copies.requestLimit()
	for (len(req.frames) == 0 || req.size < req.limit) && !req.alone && len(passed) < maxPassed {
		s := c.sched.PopReady(lane)
		if s == nil {
			break
		}
		s.stripe.mu.Lock()
		if !s.ready { // it was in both lanes
			s.stripe.mu.Unlock()
			continue
		}
		s.ready = false
		late = c.dropLate(s, now, late)
		if s.urgent && s.open != nil && len(s.flights) == 0 {
			c.sealFrame(s, false)
		}
		if s.maySend() && s.mayPass(s.head) && !c.addFrames(s, req) {
			s.ready, s.lane = true, lane
			passed = append(passed, s)
		}
		s.stripe.mu.Unlock()
	}
	c.sched.ReturnReady(lane, passed)
	for _, r := range req.runs { // not before, so that no stream is in a request twice
		r.s.stripe.mu.Lock()
		c.scheduleStream(r.s)
		r.s.stripe.mu.Unlock()
	}
	c.concludeFrames(late)
	if len(req.frames) == 0 {
		c.requests.Put(req)
		return nil
	}
	if len(req.frames) > 1 && !c.inPieces(req) {
		req.copied = int64(req.size)
		c.copies.free.Add(-req.copied)
	}
	return req
}

// dropLate fails frames whose delivery timeout has passed. The stripe's mutex is held.
func (c *sharedCore) dropLate(s *shardStream, now time.Time, late []finishedFrame) []finishedFrame {
	if c.cfg.deliveryTimeout == 0 {
		return late
	}
	for s.head != nil && now.Sub(s.head.taken) > c.cfg.deliveryTimeout {
		f := s.popFrame()
		cause := f.lastWhy
		if cause == nil {
			cause = ErrUnavailable // no request carried it
		}
		detail := fmt.Errorf("not acknowledged within %v", c.cfg.deliveryTimeout)
		if f.last != nil {
			detail = fmt.Errorf("%w; the last attempt: %w", detail, f.last)
		}
		late = append(late, c.failFrame(s, f, nil, attemptOutcome{cause: cause, detail: detail}))
	}
	return late
}

// dropOverdue fails what is overdue although it can't be sent yet: the server that refused it asked for a longer pause. It returns when more
// may be, as far as that is known; zero if nothing was refused.
func (c *sharedCore) dropOverdue(now time.Time) (next time.Time) {
	if at := c.overdue.Load(); at != 0 && int64(now.Sub(c.clock.zero)) > at {
		c.overdue.CompareAndSwap(at, 0) // else older frames have just come back
		var late []finishedFrame
		for i := range c.stripes {
			st := &c.stripes[i]
			st.mu.Lock()
			for _, s := range st.mu.streams {
				if s.open != nil && now.Sub(s.open.taken) > c.cfg.deliveryTimeout {
					c.sealFrame(s, false)
				}
				late = c.dropLate(s, now, late)
				c.noteWaiting(cmp.Or(s.head, s.open), now.Add(c.cfg.deliveryTimeout/overdueShare))
			}
			st.mu.Unlock()
		}
		c.concludeFrames(late)
	}
	if at := c.overdue.Load(); at != 0 {
		next = c.clock.zero.Add(time.Duration(at + 1))
	}
	return next
}

// overdueShare is the part of the delivery timeout that passes at least until all streams are looked at again.
const overdueShare = 64

// noteWaiting notes when a frame that waits is overdue, but no earlier than from then on. f is the first one of a stream, or nil.
func (c *sharedCore) noteWaiting(f *outFrame, earliest time.Time) {
	if f == nil || c.cfg.deliveryTimeout == 0 {
		return
	}
	end := f.taken.Add(c.cfg.deliveryTimeout)
	if end.Before(earliest) {
		end = earliest
	}
	due := max(int64(end.Sub(c.clock.zero)), 1)
	for {
		at := c.overdue.Load()
		if at != 0 && at <= due || c.overdue.CompareAndSwap(at, due) {
			return
		}
	}
}

// addFrames moves frames of s into the request and numbers them. It reports whether any could join. The stripe's mutex is held.
func (c *sharedCore) addFrames(s *shardStream, req *outRequest) bool {
	from, size := len(req.frames), req.size
	for s.head != nil && s.mayPass(s.head) && c.mayJoin(s, req, len(req.frames)-from) {
		if len(s.flights) > 0 && len(req.frames) > from && s.window.Space() < int64(req.size-size+s.head.length) {
			break
		}
		f := s.popFrame()
		if !f.numbered {
			f.numbered, f.epoch, f.first = true, s.epoch, s.next
			s.next += uint64(f.count)
		}
		req.frames = append(req.frames, f)
		req.size += f.length
		req.ack, req.alone, req.lingered = f.ack, f.alone, f.lingered
	}
	if len(req.frames) == from {
		return false
	}
	fl := &streamFlight{
		frames: req.frames[from:len(req.frames):len(req.frames)], bytes: int64(req.size - size), ack: req.ack, alone: req.alone,
		epoch: req.frames[from].epoch, follows: len(s.flights) > 0,
	}
	if fl.follows {
		req.follows = append(req.follows, uint32(from)) //nolint:gosec // bounded by the size of a request
	}
	s.flights = append(s.flights, fl)
	fl.used = s.window.NoteSent(fl.bytes)
	req.runs = append(req.runs, streamRun{s, from, len(req.frames), fl})
	return true
}

// mayJoin reports whether the next frame of s may join a request whose last own frames are also of s.
func (c *sharedCore) mayJoin(s *shardStream, req *outRequest, own int) bool {
	f := s.head
	if len(req.frames) == 0 {
		return true // one frame can always be sent
	}
	if f.ack != req.ack || f.lingered != req.lingered || f.alone || req.alone || req.size+f.length > req.limit {
		return false
	}
	if own == 0 {
		return true
	}
	epoch := s.epoch
	if f.numbered {
		epoch = f.epoch
	}
	// Frames with an older epoch must have an outcome first, since a newer epoch would fence them. For s.known see its comment.
	return epoch == req.frames[len(req.frames)-1].epoch && epoch <= s.known && own != c.cfg.framesPerRequest
}

// sendRequest makes one attempt and processes its outcome.
func (c *sharedCore) sendRequest(req *outRequest) {
	started := time.Now()
	res, err := c.callService(req)
	if err == nil && len(res.GetResults()) != len(req.frames) {
		err = fmt.Errorf("%w: the server answered for %d frames instead of %d", ErrUnknownOutcome, len(res.GetResults()), len(req.frames))
	}
	c.metrics.countRequest(err)
	var done []finishedFrame
	whole := attemptOutcome{}
	if err != nil {
		whole = classifyRequest(err, len(req.frames) > 1, c.renews)
		if whole.action == repeat {
			c.logOutage(err, "frames", len(req.frames), "bytes", req.size)
			c.sched.ShutGate(time.Now(), started, func(n int) time.Duration { return max(c.backoff.Pause(n), whole.after) })
		}
	} else {
		c.sched.OpenGate()
		c.logOutage(nil)
	}
	for _, r := range req.runs {
		done = c.settleFrames(r, &requestAnswer{req: req, res: res, whole: whole, started: started, now: time.Now(), renews: c.renews}, done)
	}
	c.concludeFrames(done)
	clear(req.frames)
	clear(req.runs)
	c.copies.free.Add(req.copied) // of a request that failed before it was packed
	c.copies.pool.Put(req.packed) // a service does not use the bytes after it returns
	*req = outRequest{frames: req.frames[:0], runs: req.runs[:0], follows: req.follows[:0]}
	c.requests.Put(req)
}

// logOutage logs the failure of a request that is repeated, and the next success, if err is nil.
func (c *sharedCore) logOutage(err error, args ...any) {
	c.outage.Lock()
	defer c.outage.Unlock()
	switch {
	case err == nil:
		c.outage.throttle.Recovered(context.Background(), c.cfg.logger, "write requests succeed again")
	case c.ctx.Err() == nil: // else Close ended the request
		c.outage.throttle.Failed(context.Background(), c.cfg.logger, "write request failed, repeating it", append(args, "error", err)...)
	}
}

// callService finishes the encoding of the frames and calls the service.
func (c *sharedCore) callService(req *outRequest) (*scribev1.WriteResponse, error) {
	for _, f := range req.frames {
		if err := f.finishEncoding(c.id); err != nil {
			return nil, err
		}
		f.attempts++
	}
	ctx, cancel := context.WithTimeout(rpc.WithChecked(c.ctx), c.cfg.requestTimeout) // finishEncoding has computed the checksums
	defer cancel()
	body := req.frames[0].data
	switch {
	case len(req.frames) == 1:
	case req.copied == 0:
		pieces := make([][]byte, len(req.frames))
		for i, f := range req.frames {
			pieces[i] = f.data
		}
		return c.pieces.WritePieces(ctx, &scribev1.WriteRequest{Ack: req.ack.proto(), Follows: req.follows, Lingered: req.lingered}, pieces...)
	default:
		body = c.packFrames(req)
	}
	return c.service.Write(ctx, &scribev1.WriteRequest{Frames: body, Ack: req.ack.proto(), Follows: req.follows, Lingered: req.lingered})
}

// packFrames copies the frames of a request into one buffer, and returns its bytes.
func (c *sharedCore) packFrames(req *outRequest) []byte {
	req.packed = c.copies.pool.Get(req.size)
	body, saved := req.packed.B[:0], int64(0)
	for _, f := range req.frames {
		from := len(body)
		body = append(body, f.data...)
		saved += f.capacity - int64(f.length)
		c.buffers.Put(f.buf)
		f.data, f.buf, f.capacity = body[from:len(body):len(body)], nil, int64(f.length)
	}
	c.memory.giveBack(saved)
	c.copies.free.Add(req.copied)
	req.copied = 0
	c.sched.SignalLoop() // the next request may be larger
	return body
}

// minPiece is the minimum average size of frames that are sent without a copy, in bytes: each piece costs a system call.
const minPiece = 32 << 10

// inPieces reports whether a request of several frames is sent without a copy.
func (c *sharedCore) inPieces(req *outRequest) bool {
	return c.pieces != nil && req.size >= minPiece*len(req.frames)
}

// requestAnswer is how an attempt ended. If the whole request failed, whole is its outcome; otherwise res has a result for each
// frame.
type requestAnswer struct {
	req          *outRequest
	res          *scribev1.WriteResponse
	whole        attemptOutcome
	started, now time.Time
	renews       bool
}

// outcomesOf returns the outcomes of a stream's frames.
func (a *requestAnswer) outcomesOf(r streamRun, producer uint64) []attemptOutcome {
	outcomes := make([]attemptOutcome, r.to-r.from)
	for i := range outcomes {
		f := a.req.frames[r.from+i]
		if outcomes[i] = a.whole; a.whole.action == 0 {
			outcomes[i] = classifyFrame(a.res.GetResults()[r.from+i], producer, f.first, f.count, a.renews)
		}
		f.maybe = f.maybe || outcomes[i].unknown
	}
	return outcomes
}

// settleFrames decides the outcomes of one stream's frames after an attempt, and appends the finished ones to done.
func (c *sharedCore) settleFrames(r streamRun, a *requestAnswer, done []finishedFrame) []finishedFrame {
	s, frames := r.s, a.req.frames[r.from:r.to]
	s.stripe.mu.Lock()
	defer s.stripe.mu.Unlock()
	var (
		outcomes   = a.outcomesOf(r, c.id)
		again      []*outFrame // in order
		after      time.Duration
		progress   bool
		complete   = s.flights[0] == r.flight // all frames so far are stored
		outOfOrder bool
		ownFault   bool
	)
	for i, f := range frames {
		v := c.decideRetry(s, f, outcomes[i], complete, frames[i+1:])
		switch v.action {
		case acked:
			progress = true
			done = append(done, c.acknowledgeFrame(s, f, a.res.GetResults()[r.from+i]))
		case sampled:
			progress = true
			done = append(done, c.leaveOut(s, f))
		case failed:
			complete = false
			done = append(done, c.failFrame(s, f, frames[i+1:], v))
		default:
			complete = false
			progress = progress || v.action == trim
			f.last, f.lastWhy = v.detail, v.cause
			if a.req.packed != nil {
				f.data = slices.Clone(f.data)
			}
			after = max(after, v.after)
			again = append(again, f)
			outOfOrder = outOfOrder || v.outOfOrder
			ownFault = ownFault || !v.outOfOrder || !r.flight.follows
		}
	}
	if len(again) == 0 {
		s.windowAck = r.flight.ack
		s.window.NoteAnswer(a.now, r.flight.bytes, r.flight.used, a.now.Sub(a.started), a.res.GetOrdered())
	} else {
		s.window.NoteFailure(a.now, r.flight.bytes, outOfOrder)
	}
	s.endFlight(r.flight, again)
	if s.head != nil && s.head.attempts > 0 {
		c.noteWaiting(s.head, a.now)
	}
	if progress || len(again) == 0 {
		s.failures = 0
	}
	// After a failure of the whole request, the gate delays all streams. After a failure of its own frames, only this stream
	// waits. Frames that failed since those before them did wait for these alone.
	if ownFault && a.whole.action == 0 && !s.parked {
		s.failures++
		s.parked = true
		c.sched.Park(s, a.now.Add(max(c.backoff.Pause(s.failures), after)))
	}
	c.scheduleStream(s)
	return done
}

// maxGaps is the number of times that a frame must be refused as out of sequence, although all earlier frames were acknowledged,
// until the producer believes it. Two flushes on the server that overtake each other look the same at first.
const maxGaps = 3

// decideRetry refines the outcome of f with the producer's own state. complete reports that all frames before f in the request
// are stored; later are the frames after it. The stripe's mutex is held.
func (c *sharedCore) decideRetry(s *shardStream, f *outFrame, v attemptOutcome, complete bool, later []*outFrame) attemptOutcome {
	if v.action == acked || v.action == sampled || v.action == failed {
		return v
	}
	if c.ctx.Err() != nil {
		return attemptOutcome{action: failed, cause: ErrClosed, detail: v.detail}
	}
	switch {
	case v.action == isolate:
		f.alone = true
		f.attempts-- // another frame may be the cause
		return v
	case v.action == trim:
		if err := f.cutStored(v.stored); err != nil {
			return attemptOutcome{action: failed, cause: ErrOutOfSequence, detail: err}
		}
		f.count -= v.stored
		return v
	case v.outOfOrder:
		f.attempts-- // those before it are the cause
		return v
	case v.gap && !complete:
		return v // the missing frames are being sent again, or have failed
	case v.gap:
		if f.gaps++; f.gaps < maxGaps {
			break
		}
		s.noteMissing(f, later)
		if c.continued && f.ack != AckNone {
			return attemptOutcome{action: failed, cause: ErrOutOfSequence, detail: v.detail}
		}
		// Acknowledged messages are lost, which is possible below AckCommitted. Continue with the rest under a new epoch.
		c.cfg.logger.Warn("server misses acknowledged messages", "shard", s.shard.String(), "sequence", f.first, "error", v.detail)
		s.renumberAfter(f, later)
		f.numbered, f.gaps = false, 0
	}
	if c.cfg.retries >= 0 && f.attempts > c.cfg.retries {
		v.action = failed
	}
	return v
}

// acknowledgeFrame accounts for a stored frame. The stripe's mutex is held.
func (c *sharedCore) acknowledgeFrame(s *shardStream, f *outFrame, res *scribev1.FrameResult) finishedFrame {
	s.acked = max(s.acked, f.first+uint64(f.count)) // answers may overtake one another
	s.known = max(s.known, f.epoch)
	s.stripe.mu.count.acked.addFrame(f)
	taken := delivery.Counts{Passed: int64(f.messages)}
	if f.ack == AckCommitted {
		taken = delivery.Counts{Stored: int64(f.messages)}
	}
	c.counts.noteFrame(s.shard.Category, f.base, taken)
	return finishedFrame{s: s, f: f, at: Position{
		Shard:     res.GetShard(),
		LSN:       res.GetLsn(),
		Duplicate: res.GetDuplicate() || res.GetError() != nil,
	}}
}

// leaveOut accounts for a frame that the server sampled out. Its sequences are not reused: a server samples only in categories in
// which it does not check for gaps. The stripe's mutex is held.
func (c *sharedCore) leaveOut(s *shardStream, f *outFrame) finishedFrame {
	s.acked = max(s.acked, f.first+uint64(f.count))
	s.stripe.mu.count.sampled.addFrame(f)
	c.counts.noteFrame(s.shard.Category, f.base, delivery.Counts{Sampled: int64(f.messages)})
	return finishedFrame{s: s, f: f, at: Position{Sampled: true}}
}

// failFrame accounts for a frame that failed; later are the frames after it in its request. The stripe's mutex is held.
func (c *sharedCore) failFrame(s *shardStream, f *outFrame, later []*outFrame, v attemptOutcome) finishedFrame {
	if v.cause != ErrStaleProducer { //nolint:errorlint // a sentinel itself; who is shut out does not come back under a new epoch
		s.renumberAfter(f, later)
	}
	n := &s.stripe.mu.count
	n.failed.addFrame(f)
	if v.cause == ErrClosed { //nolint:errorlint // a sentinel itself
		n.unsent.addFrame(f)
		if f.mayBeStored() {
			n.unsentUnknown += uint64(f.messages)
		}
	}
	err := &WriteError{
		Shard:      s.shard,
		Attempts:   f.attempts,
		RetryAfter: v.after,
		cause:      v.cause,
		detail:     v.detail,
		unknown:    f.mayBeStored(),
	}
	c.counts.noteFailed(s.shard.Category, f, err)
	return finishedFrame{s: s, f: f, err: err}
}

// concludeFrames reports the outcomes of frames to hooks and waiters, and frees the frames. No lock is held.
func (c *sharedCore) concludeFrames(done []finishedFrame) {
	for _, d := range done {
		f := d.f
		switch {
		case d.err != nil:
			c.countLost(Drop{Shard: d.s.shard, Messages: f.messages, Bytes: f.size, Reason: reasonOf(d.err), Err: d.err})
		case d.at.Sampled:
			if c.cfg.onSampled != nil {
				c.cfg.onSampled(Sampled{Shard: d.s.shard, Messages: f.messages, Bytes: f.size})
			}
		default:
			latency := time.Since(f.taken)
			c.metrics.latency.Observe(latency.Seconds())
			if c.cfg.onAck != nil {
				c.cfg.onAck(Acked{
					Shard: d.s.shard, Messages: f.messages, Bytes: f.size, Position: d.at,
					Attempts: f.attempts, Latency: latency,
				})
			}
		}
		// Release the memory before the waiters wake.
		out, category, generation := f.out, d.s.category, generationOf(f.placing)
		out.err, out.at = d.err, d.at
		c.recycleFrame(f)
		close(out.done)
		if category != nil && generation <= category.sent.Load() && category.sent.Load() != generationOf(category.placing.Load()) {
			c.categories.continueSwitch(category)
		}
	}
}
