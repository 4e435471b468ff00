package scribed

import (
	"context"
	"errors"
	"time"

	"scribe/internal/format/record"
	"scribe/internal/role/publish"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/spool"
)

// submission is a request whose frames have no outcome yet.
type submission struct {
	data    []byte // the request's frames, the caller's
	results []*scribev1.FrameResult
	entries []*entry // of it that were put into the queue
	pending int      // frames without an outcome; guarded by Scribed.mu
	done    chan struct{}
}

// finish tells a submission that n of its frames have an outcome. The caller holds Scribed.mu.
func (sub *submission) finish(n int) {
	if sub == nil || n == 0 {
		return
	}
	if sub.pending -= n; sub.pending == 0 {
		close(sub.done)
	}
}

// Write implements rpc.WriteService. With ACK_LEVEL_NONE it answers when the frames are in memory or in the spool; with
// ACK_LEVEL_SPOOLED when they are synced in the spool, or committed; with any other level when the upstream has committed them, or
// they have failed. Without a spool, SPOOLED is answered when committed. Frames of a category that has no room meet what its rule
// says; when all frames of a request are refused, so is the request. The request's bytes are not used after it returns.
func (s *Scribed) Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	return s.write(ctx, req, false)
}

// write is Write. One that yields is refused where there is no room, whatever the rule: it neither waits nor takes the room of others.
func (s *Scribed) write(ctx context.Context, req *scribev1.WriteRequest, yields bool) (*scribev1.WriteResponse, error) {
	data := req.GetFrames()
	if int64(len(data)) > s.cfg.MaxRequestBytes {
		return nil, rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "the request has %d bytes of frames, the limit is %d: send less at once", len(data), s.cfg.MaxRequestBytes)
	}
	in, err := split(ctx, data)
	if err != nil {
		return nil, err
	}
	w := &writing{s: s, in: in, ack: s.levelOf(req.GetAck()), yields: yields}
	if w.ack != ackNone {
		w.sub = &submission{data: data, results: in.results, done: make(chan struct{}), pending: 1} // 1 for accept
	}
	if err := w.accept(ctx); err != nil {
		return nil, err
	}
	if w.sub != nil {
		select {
		case <-w.sub.done:
		case <-ctx.Done():
			if err := s.abandon(ctx, w.sub); err != nil {
				return nil, err
			}
		}
	}
	return &scribev1.WriteResponse{Results: in.results}, nil
}

func (s *Scribed) levelOf(ack scribev1.AckLevel) ackLevel {
	switch {
	case ack == scribev1.AckLevel_ACK_LEVEL_NONE:
		return ackNone
	case ack == scribev1.AckLevel_ACK_LEVEL_SPOOLED && s.spool != nil:
		return ackSpooled
	default:
		return ackCommitted
	}
}

// Publish implements rpc.WriteService: it encodes the messages into one frame, which then goes the way of Write.
func (s *Scribed) Publish(ctx context.Context, req *scribev1.PublishRequest) (*scribev1.PublishResponse, error) {
	// The category's own limit is the write proxy's to enforce.
	frame, err := publish.Frame(req, publish.MaxBytes, s.now())
	if err != nil {
		return nil, err
	}
	resp, err := s.Write(ctx, &scribev1.WriteRequest{Frames: frame, Ack: req.GetAck()})
	if err != nil {
		return nil, err
	}
	r := resp.GetResults()[0]
	if r.GetError() != nil {
		return nil, rpc.FromInfo(r.GetError())
	}
	return &scribev1.PublishResponse{Count: uint32(len(req.GetMessages())), Shard: r.GetShard(), Lsn: r.GetLsn(), SampledOut: r.GetSampledOut()}, nil
}

// parsed is a request taken apart by category.
type parsed struct {
	results []*scribev1.FrameResult
	entries []*entry // one for each category, in the order of their first frames
}

// maxBlock is how many results are made at once, so that one that is kept keeps few others.
const maxBlock = 64

// split checks every frame of a request, but for the sums of those that the caller has checked. A frame that is refused alone has its error in results; when nobody knows where the next
// frame begins, the whole request is refused.
func split(ctx context.Context, data []byte) (*parsed, error) {
	in, check := &parsed{}, rpc.CheckerOf(ctx)
	var last *entry
	var byCategory map[string]*entry
	var block []scribev1.FrameResult // results are made many at a time
	for offset := 0; offset < len(data); {
		h, err := check(data[offset:])
		size := h.Len
		if err != nil {
			if size, err = damaged(data[offset:], offset, err); size == 0 {
				return nil, err
			}
		}
		index := len(in.results)
		if len(block) == 0 {
			block = make([]scribev1.FrameResult, min(max(len(in.results), 1), maxBlock))
		}
		block[0].Error = rpc.Info(err)
		in.results, block = append(in.results, &block[0]), block[1:]
		if err == nil {
			if last == nil || last.category != string(h.Category) {
				if byCategory == nil {
					byCategory = make(map[string]*entry, 1)
				}
				if last = byCategory[string(h.Category)]; last == nil {
					last = &entry{category: h.CategoryName()}
					byCategory[last.category] = last
					in.entries = append(in.entries, last)
				}
			}
			last.frames = append(last.frames, frame{
				bytes: data[offset : offset+size], messages: int32(h.Count), sequenced: h.Sequenced(), index: int32(index), //nolint:gosec // bounded by the format
			})
			last.bytes += int64(size)
		}
		offset += size
	}
	return in, nil
}

// damaged decides about a frame that does not pass its check: it returns its size and the error of that frame alone when only
// its body is damaged, else 0 and the error of the whole request.
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

// writing is a request on its way into the agent.
type writing struct {
	s     *Scribed
	in    *parsed
	ack   ackLevel
	sub   *submission // nil with ackNone
	taken int         // entries that were accepted, or dropped as their rule says
	first error       // of those that were refused
	// yields: see Scribed.write.
	yields bool
}

// accept brings the entries of a request to where they have room: into memory, to the spool, or nowhere. Those that wait for room
// are tried again until they have it. It is an error when all were refused.
func (w *writing) accept(ctx context.Context) error {
	s := w.s
	if !s.accepting.Enter() {
		return errShutDown()
	}
	defer s.accepting.Leave()
	todo := w.in.entries
	for _, e := range todo {
		e.ack, e.sub = w.ack, w.sub
	}
	for len(todo) > 0 {
		todo = w.round(ctx, todo)
		if len(todo) > 0 && todo[0].waiter != nil {
			w.wait(ctx, todo[0].waiter)
		}
	}
	if w.taken == 0 && w.first != nil {
		return w.first
	}
	if w.sub != nil {
		s.mu.Lock()
		w.sub.finish(1)
		s.mu.Unlock()
	}
	return nil
}

// wait returns when a call may have room, or must look why it has none.
func (w *writing) wait(ctx context.Context, at *waiter) {
	select {
	case <-at.ready:
	case <-ctx.Done():
	case <-w.s.accepting.Draining():
	}
}

// placed is what a round decided, by where entries go.
type placed struct {
	memory []*entry
	disk   []*appending // one each
	passed []*entry     // those in disk
	again  []*entry     // those that wait, or for which something is dropped
	drops  map[string]int64
}

// round places entries once, and returns those that are to be tried again.
func (w *writing) round(ctx context.Context, todo []*entry) []*entry {
	s := w.s
	p := &placed{}
	s.mu.Lock()
	for _, e := range todo {
		w.place(ctx, e, p)
	}
	s.settle()
	s.mu.Unlock()
	for category, n := range p.drops {
		s.dropBacklog(category, n, time.Time{}, fullReason)
	}
	live := w.enter(p.memory)
	appended := false
	for i, a := range p.disk {
		err := s.execute(a)
		appended = appended || err == nil
		w.passed(p.passed[i], err, p)
	}
	for _, a := range live {
		if err := s.execute(a); err != nil {
			w.demote(a.parts[len(a.parts)-1].e, err)
			continue
		}
		appended = true
	}
	if w.ack == ackSpooled && appended {
		w.synced(s.sync(ctx), p)
	}
	return p.again
}

// place decides about one entry. The caller holds Scribed.mu.
func (w *writing) place(ctx context.Context, e *entry, p *placed) {
	s := w.s
	q := &s.mu.queue
	if e.waiter == nil && !w.refuseGaps(e) {
		return
	}
	l := q.lane(e.category)
	where := q.placeFor(l, e, s.now())
	switch {
	case q.closing:
		if where == inMemory {
			q.release(e)
		}
		w.refuse(l, e, errShutDown())
	case where == inMemory:
		q.unblock(l, e)
		w.taken++
		p.memory = append(p.memory, e)
	case where == onDisk: // it keeps its place among those that wait until it is written
		p.disk, p.passed = append(p.disk, q.appendPassing(l, e)), append(p.passed, e)
	case where == never:
		q.counts.refused++
		w.refuse(l, e, rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "%d bytes of category %s are more than the agent holds of one category: send less at once", e.bytes, e.category))
	case ctx.Err() != nil && e.waiter != nil:
		w.refuse(l, e, retryHint(s.retryAfter(), scribev1.Reason_REASON_OVERLOADED, "the agent had no room for %d bytes of category %s while the caller waited: %w", e.bytes, e.category, context.Cause(ctx)))
	default:
		w.whenFull(l, e, p)
	}
}

// whenFull does what the rule of a category says about an entry for which there is no room.
func (w *writing) whenFull(l *lane, e *entry, p *placed) {
	s := w.s
	q := &s.mu.queue
	rule := l.rule.WhenFull
	if w.yields {
		rule = Reject
	}
	switch rule {
	case Block:
		if q.block(l, e) {
			p.again = append(p.again, e)
			return
		}
	case DropOldest:
		if e.dropped < maxDrops && w.makeRoom(l, e, p) {
			e.dropped++
			p.again = append(p.again, e)
			return
		}
	case DropNewest:
		if w.ack == ackNone {
			sum := q.loseFrames(e.category, fullReason, e.frames, s.now())
			q.counts.accepted.plus(sum)
			s.notes.dropped(s.ctx, e.category, fullReason, sum)
			w.taken++
			q.forget(l)
			return
		}
	case Reject:
	}
	q.counts.refused++
	w.refuse(l, e, retryHint(s.retryAfter(), scribev1.Reason_REASON_OVERLOADED, "the agent has no room for %d bytes of category %s: try again later", e.bytes, e.category))
}

// fullPause is how long nothing is appended after the spool said that it is full.
const fullPause = 100 * time.Millisecond

// maxDrops bounds how often older frames are dropped for one entry.
const maxDrops = 4

// makeRoom drops the oldest frames of a category, or asks for it, and reports whether that may help. The caller holds Scribed.mu.
func (w *writing) makeRoom(l *lane, e *entry, p *placed) bool {
	s := w.s
	q := &s.mu.queue
	if !q.spooling || e.ack == ackCommitted || q.backlogOf(l).frames == 0 { // what is in the spool is older
		gone := q.dropOldest(l, e.charge)
		s.giveUpEntries(gone, fullReason)
		return len(gone) > 0
	}
	if p.drops == nil {
		p.drops = make(map[string]int64)
	}
	need := max(q.diskRoom(l, e.onDisk()), e.onDisk())
	if e.dropped > 0 { // the spool gives files back whole
		need = max(need, s.cfg.Spool.SegmentBytes)
	}
	p.drops[l.name] += need
	return true
}

// refuse tells the caller that an entry was not taken. The caller holds Scribed.mu.
func (w *writing) refuse(l *lane, e *entry, err error) {
	w.s.mu.queue.unblock(l, e)
	w.s.mu.queue.forget(l)
	w.refused(e, err)
}

func (w *writing) refused(e *entry, err error) {
	info := rpc.Info(err)
	for i := range e.frames {
		w.in.results[e.frames[i].index].Error = info
	}
	if w.first == nil {
		w.first = err
	}
}

// enter puts entries into the queue that have room in memory, and begins the appends of those that go to the spool besides.
func (w *writing) enter(entries []*entry) (live []*appending) {
	s := w.s
	if len(entries) == 0 {
		return nil
	}
	if w.ack != ackCommitted { // else the bytes are the caller's as long as they are needed
		for _, e := range entries {
			e.keep(s.buffers.Get(int(e.bytes)))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.settle()
	q := &s.mu.queue
	now := s.now()
	for _, e := range entries {
		if q.closing {
			q.release(e)
			q.unref(e.mem)
			w.taken--
			w.refused(e, errShutDown())
			continue
		}
		e.since = now
		q.counts.accepted.plus(e.amount())
		q.add(e)
		if w.sub != nil {
			w.sub.entries = append(w.sub.entries, e)
			w.sub.pending += len(e.frames)
		}
		if w.ack == ackSpooled {
			live = append(live, q.appendEntry(e))
		}
	}
	return live
}

// passed deals with the end of an append of an entry that did not come into memory.
func (w *writing) passed(e *entry, err error, p *placed) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.mu.queue.lane(e.category)
	if err == nil {
		w.taken++
		s.mu.queue.unblock(l, e)
		s.mu.queue.forget(l)
		s.settle()
		return
	}
	if errors.Is(err, spool.ErrFull) {
		s.mu.queue.diskFullTill = s.now().Add(fullPause)
		w.whenFull(l, e, p)
		return
	}
	s.mu.queue.counts.refused++
	w.refuse(l, e, s.spoolError(e, err))
}

// demote deals with a live entry that could not be written to the spool: its caller waits for the upstream instead, unless that is
// away.
func (w *writing) demote(e *entry, err error) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.settle()
	if e.sub == nil {
		return // it has an outcome
	}
	q := &s.mu.queue
	e.ack = ackCommitted
	sum := e.amount()
	if !q.away() || !q.withdraw(e) {
		return
	}
	q.counts.memory = q.counts.memory.minus(sum)
	q.counts.fail(reasonLabel(scribev1.Reason_REASON_OVERLOADED), sum)
	w.refused(e, s.spoolError(e, err))
	w.sub.finish(len(e.frames))
	w.taken--
	q.unref(e.mem)
}

// synced answers what is in the spool, err is why it may not be on disk. What is in memory, too, is answered by the upstream then.
func (w *writing) synced(err error, p *placed) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.settle()
	for _, e := range w.sub.entries {
		switch {
		case e.ack != ackSpooled || !e.spooled():
		case err == nil:
			w.sub.finish(len(e.frames)) // their results say nothing, which is that they are taken
			e.sub = nil
		default:
			e.ack = ackCommitted
		}
	}
	if err == nil {
		return
	}
	unknown := rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "the agent's spool could not be synced: %w", err)
	for i, a := range p.disk {
		if a.err == nil {
			w.refused(p.passed[i], unknown)
		}
	}
}
