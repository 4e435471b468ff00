package scribed

import (
	"context"
	"errors"
	"time"

	"scribe/internal/role/publish"
	"scribe/internal/role/request"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/spool"
)

// pendingCall is a request with frames that have no outcome yet.
type pendingCall struct {
	data    []byte // the request's frames; owned by the caller
	follows bool   // some of them follow others
	ordered bool   // the upstream's last answer for it had WriteResponse.ordered; guarded by Scribed.mu
	results []*scribev1.FrameResult
	entries []*queueEntry // its entries in the queue
	pending int           // frames without an outcome; guarded by Scribed.mu
	done    chan struct{}
}

// finishFrames notes that n of the call's frames have an outcome. The caller holds Scribed.mu.
func (sub *pendingCall) finishFrames(n int) {
	if sub == nil || n == 0 {
		return
	}
	if sub.pending -= n; sub.pending == 0 {
		close(sub.done)
	}
}

// Write implements rpc.WriteService. ACK_LEVEL_NONE is answered when the frames are in memory or in the spool; ACK_LEVEL_SPOOLED
// when they are synced in the spool, or committed; any other level when the upstream has committed them, or they have failed.
// Without a spool, SPOOLED is answered when the frames are committed. Shortly before the deadline of ctx, frames without an outcome
// are answered, too: as refused if they are certainly not stored. When a category has no capacity, its rule decides. If all
// frames of a request are refused, so is the request. The request's bytes are not used after Write returns.
func (s *Scribed) Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	return s.write(ctx, req, false)
}

// write implements Write. A call that yields is refused when there is no capacity, whatever the rule: it neither waits nor takes
// the capacity of others.
func (s *Scribed) write(ctx context.Context, req *scribev1.WriteRequest, yields bool) (*scribev1.WriteResponse, error) {
	data := req.GetFrames()
	if int64(len(data)) > s.cfg.MaxRequestBytes {
		return nil, rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "the request has %d bytes of frames, the limit is %d: send less at once", len(data), s.cfg.MaxRequestBytes)
	}
	results, entries, err := splitRequest(ctx, req)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, request.AnswerBy(deadline, s.cfg.HopMargin))
		defer cancel()
	}
	for _, e := range entries {
		e.lingered = req.GetLingered()
	}
	w := &writeCall{s: s, results: results, entries: entries, ack: s.levelOf(req.GetAck()), yields: yields}
	if w.ack != ackCommitted && len(req.GetFollows()) > 0 {
		return nil, rpc.Errorf(scribev1.Reason_REASON_OUT_OF_ORDER, "the agent answers for itself at this level, and keeps no order of several calls: send one at a time")
	}
	if w.ack != ackNone {
		w.sub = &pendingCall{
			data: data, follows: len(req.GetFollows()) > 0, results: results, done: make(chan struct{}),
			pending: 1, // for acceptEntries
		}
	}
	if err := w.acceptEntries(ctx); err != nil {
		return nil, err
	}
	if w.sub != nil {
		select {
		case <-w.sub.done:
		case <-ctx.Done():
			if results, err = s.abandonCall(ctx, w.sub); err != nil {
				return nil, err
			}
		}
	}
	// The upstream keeps the order of several calls at a time; the agent does not.
	return &scribev1.WriteResponse{Results: results, Ordered: w.ack == ackCommitted && s.isOrdered(w.sub)}, nil
}

func (s *Scribed) isOrdered(sub *pendingCall) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sub.ordered
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

// Publish implements rpc.WriteService. It encodes the messages into one frame, and then acts as Write.
func (s *Scribed) Publish(ctx context.Context, req *scribev1.PublishRequest) (*scribev1.PublishResponse, error) {
	// The write proxy enforces the category's own limit.
	frame, err := publish.Frame(req, publish.MaxBytes, s.now())
	if err != nil {
		return nil, err
	}
	resp, err := s.Write(ctx, &scribev1.WriteRequest{Frames: frame, Ack: req.GetAck()})
	if err != nil {
		return nil, err
	}
	return publish.Response(req, resp.GetResults()[0])
}

// maxBlock bounds the results that are allocated together, so that a retained result retains few others.
const maxBlock = 64

// splitRequest checks every frame of a request, except the checksums, which the caller has checked. A frame that is refused alone
// has its error in results. When the start of the next frame cannot be determined, the whole request is refused. There is one
// entry for each category, in order of their first frames.
func splitRequest(ctx context.Context, req *scribev1.WriteRequest) (results []*scribev1.FrameResult, entries []*queueEntry, err error) {
	followers, err := request.NewFollowers(req.GetFollows())
	if err != nil {
		return nil, nil, err
	}
	var last *queueEntry
	byCategory := make(map[string]*queueEntry, 1)
	var block []scribev1.FrameResult // results are allocated in blocks
	frames := request.Walk(ctx, req.GetFrames())
	for frames.Next() {
		following := followers.Marks(&frames)
		if len(block) == 0 {
			block = make([]scribev1.FrameResult, min(max(len(results), 1), maxBlock))
		}
		block[0].Error = rpc.Info(frames.Err)
		results, block = append(results, &block[0]), block[1:]
		if frames.Err != nil {
			continue
		}
		if last == nil || last.category != string(frames.Category) {
			if last = byCategory[string(frames.Category)]; last == nil {
				last = &queueEntry{category: frames.CategoryName()}
				byCategory[last.category] = last
				entries = append(entries, last)
			}
		}
		last.frames = append(last.frames, queuedFrame{
			bytes: frames.Bytes, messages: int32(frames.Count), follows: following, index: int32(frames.Index), //nolint:gosec // bounded by the format
		})
		last.frames[len(last.frames)-1].setOrigin(&frames.Header)
		last.bytes += int64(len(frames.Bytes))
	}
	return results, entries, frames.Fault()
}

// writeCall is a request that is being accepted.
type writeCall struct {
	s       *Scribed
	results []*scribev1.FrameResult
	entries []*queueEntry
	ack     ackLevel
	sub     *pendingCall // nil with ackNone
	taken   int          // entries that were accepted, or dropped by their rule
	first   error        // the first refusal
	// yields: see Scribed.write.
	yields bool
}

// acceptEntries moves the entries of a request into memory or to the spool, or refuses them. Entries that wait for capacity are
// retried until they have it. It returns an error when all entries were refused.
func (w *writeCall) acceptEntries(ctx context.Context) error {
	s := w.s
	if !s.accepting.Enter() {
		return errShutDown()
	}
	defer s.accepting.Leave()
	todo := w.entries
	for _, e := range todo {
		e.ack, e.sub = w.ack, w.sub
	}
	for len(todo) > 0 {
		todo = w.placeEntries(ctx, todo)
		if len(todo) > 0 && todo[0].ready != nil {
			select { // capacity may be free
			case <-todo[0].ready:
			case <-ctx.Done():
			case <-s.accepting.Draining():
			}
		}
	}
	if w.taken == 0 && w.first != nil {
		return w.first
	}
	if w.sub != nil {
		s.mu.Lock()
		w.sub.finishFrames(1)
		s.mu.Unlock()
	}
	return nil
}

// roundPlacements are the decisions of one round of placeEntries.
type roundPlacements struct {
	memory []*queueEntry
	disk   []*spoolAppend // one for each entry of passed
	passed []*queueEntry  // the entries that are appended by disk
	again  []*queueEntry  // entries to retry: they wait, or frames are dropped for them
	drops  map[string]int64
}

// placeEntries tries once to place each entry, and returns those to retry.
func (w *writeCall) placeEntries(ctx context.Context, todo []*queueEntry) []*queueEntry {
	s := w.s
	p := &roundPlacements{}
	s.mu.Lock()
	for _, e := range todo {
		w.placeEntry(ctx, e, p)
	}
	s.notifyChange()
	s.mu.Unlock()
	for category, n := range p.drops {
		s.dropBacklog(category, n, time.Time{}, fullReason)
	}
	live := w.enqueueEntries(p.memory)
	appended := false
	for i, a := range p.disk {
		err := s.runAppend(a)
		appended = appended || err == nil
		w.finishPassed(p.passed[i], err, p)
	}
	for _, a := range live {
		if err := s.runAppend(a); err != nil {
			w.awaitUpstream(a.parts[len(a.parts)-1].e, err)
			continue
		}
		appended = true
	}
	if w.ack == ackSpooled && appended {
		w.finishSync(s.syncSpool(ctx), p)
	}
	return p.again
}

// placeEntry decides where one entry goes. The caller holds Scribed.mu.
func (w *writeCall) placeEntry(ctx context.Context, e *queueEntry, p *roundPlacements) {
	s := w.s
	q := &s.mu.queue
	if e.ready == nil && !w.refuseGaps(e) {
		return
	}
	l := q.queueOf(e.category)
	where := q.chooseDestination(l, e, s.now())
	switch {
	case q.closing:
		if where == inMemory {
			q.releaseMemory(e)
		}
		w.refuseEntry(l, e, errShutDown())
	case where == inMemory:
		q.unblockCall(l, e)
		w.taken++
		p.memory = append(p.memory, e)
	case where == onDisk: // it stays in the waiting list until it is written
		p.disk, p.passed = append(p.disk, q.appendPassing(l, e)), append(p.passed, e)
	case where == tooLarge:
		q.counts.refused++
		w.refuseEntry(l, e, rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "%d bytes exceed what the agent holds of category %s: send less at once", e.bytes, e.category))
	case ctx.Err() != nil && e.ready != nil:
		w.refuseEntry(l, e, rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, s.retryAfter(), "the agent had no capacity for %d bytes of category %s before the call ended: %v", e.bytes, e.category, context.Cause(ctx)))
	default:
		w.applyRule(l, e, p)
	}
}

// applyRule applies the rule of a category to an entry for which there is no capacity.
func (w *writeCall) applyRule(l *categoryQueue, e *queueEntry, p *roundPlacements) {
	s := w.s
	q := &s.mu.queue
	rule := l.rule.WhenFull
	if w.yields {
		rule = Reject
	}
	switch rule {
	case Block:
		if q.blockCall(l, e) {
			p.again = append(p.again, e)
			return
		}
	case DropOldest:
		if e.dropped < maxDrops && w.dropForEntry(l, e, p) {
			e.dropped++
			p.again = append(p.again, e)
			return
		}
	case DropNewest:
		if w.ack == ackNone {
			sum := q.countLostFrames(e.category, fullReason, e.frames, s.now())
			q.counts.accepted = q.counts.accepted.Plus(sum)
			q.noteTaken(e)
			s.throttled.warnDropped(s.ctx, e.category, fullReason, sum)
			w.taken++
			q.forgetIdle(l)
			return
		}
	case Reject:
	}
	q.counts.refused++
	w.refuseEntry(l, e, rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, s.retryAfter(), "the agent has no capacity for %d bytes of category %s: try again later", e.bytes, e.category))
}

// fullPause is how long appends pause after the spool reported that it is full.
const fullPause = 100 * time.Millisecond

// maxDrops bounds how often older frames are dropped for one entry.
const maxDrops = 4

// dropForEntry drops the oldest frames of a category in memory, or adds them to p.drops if they are in the spool, and reports
// whether that may free capacity. The caller holds Scribed.mu.
func (w *writeCall) dropForEntry(l *categoryQueue, e *queueEntry, p *roundPlacements) bool {
	s := w.s
	q := &s.mu.queue
	if !q.spooling || e.ack == ackCommitted || q.backlogOf(l).Frames == 0 { // else the backlog is older and goes first
		gone := q.takeEntries(l, func(_ *queueEntry, freed int64) bool { return freed < e.charge })
		s.giveUpEntries(gone, fullReason)
		return len(gone) > 0
	}
	if p.drops == nil {
		p.drops = make(map[string]int64)
	}
	need := max(q.spoolExcess(l, e.onDisk()), e.onDisk())
	if e.dropped > 0 { // the spool only frees whole files
		need = max(need, s.cfg.Spool.SegmentBytes)
	}
	p.drops[l.name] += need
	return true
}

// refuseEntry refuses an entry. The caller holds Scribed.mu.
func (w *writeCall) refuseEntry(l *categoryQueue, e *queueEntry, err error) {
	w.s.mu.queue.unblockCall(l, e)
	w.s.mu.queue.forgetIdle(l)
	w.setRefused(e, err)
}

func (w *writeCall) setRefused(e *queueEntry, err error) {
	info := rpc.Info(err)
	for i := range e.frames {
		w.results[e.frames[i].index].Error = info
	}
	if w.first == nil {
		w.first = err
	}
}

// enqueueEntries puts entries that fit into memory into their queues, and begins the appends of those that also go to the spool.
func (w *writeCall) enqueueEntries(entries []*queueEntry) (live []*spoolAppend) {
	s := w.s
	if len(entries) == 0 {
		return nil
	}
	if w.ack != ackCommitted { // else the frames stay in the caller's buffer
		for _, e := range entries {
			e.copyFrames(s.buffers.Get(int(e.bytes)))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.notifyChange()
	q := &s.mu.queue
	now := s.now()
	var added []*queueEntry
	for _, e := range entries {
		if q.closing {
			q.releaseMemory(e)
			q.releaseBuffer(e.mem)
			w.taken--
			w.setRefused(e, errShutDown())
			continue
		}
		e.since = now
		q.counts.accepted = q.counts.accepted.Plus(e.amount())
		q.noteTaken(e)
		q.countEntry(e)
		if w.sub != nil {
			w.sub.entries = append(w.sub.entries, e)
			w.sub.pending += len(e.frames)
		}
		added = append(added, e)
	}
	if w.ack == ackCommitted {
		if b := q.directBatch(w.sub, added); b != nil {
			s.startDirect(b)
			return nil
		}
	}
	for _, e := range added {
		q.enqueueEntry(e)
		if w.ack == ackSpooled {
			live = append(live, q.appendEntry(e))
		}
	}
	return live
}

// finishPassed handles the end of an append of an entry that did not enter memory.
func (w *writeCall) finishPassed(e *queueEntry, err error, p *roundPlacements) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.mu.queue.queueOf(e.category)
	if err == nil {
		w.taken++
		s.mu.queue.unblockCall(l, e)
		s.mu.queue.forgetIdle(l)
		s.notifyChange()
		return
	}
	if errors.Is(err, spool.ErrFull) {
		s.mu.queue.diskFullTill = s.now().Add(fullPause)
		w.applyRule(l, e, p)
		return
	}
	s.mu.queue.counts.refused++
	w.refuseEntry(l, e, s.spoolError(e, err))
}

// awaitUpstream handles an entry in memory that could not be written to the spool: its caller waits for the upstream instead, or
// gets an error if the upstream is unavailable.
func (w *writeCall) awaitUpstream(e *queueEntry, err error) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.notifyChange()
	if e.sub == nil {
		return // it already has an outcome
	}
	q := &s.mu.queue
	e.ack = ackCommitted
	sum := e.amount()
	if !q.isUnavailable() || !q.removeEntry(e) {
		return
	}
	q.counts.memory = q.counts.memory.Minus(sum)
	err = s.spoolError(e, err)
	if e.unsure {
		err = rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "an attempt to forward the frames had no answer, and %s", rpc.Message(err))
	}
	q.counts.addFailed(rpc.ReasonLabel(rpc.ReasonOf(err)), sum)
	q.noteGivenBack(e.category, e.frames...)
	w.setRefused(e, err)
	w.sub.finishFrames(len(e.frames))
	w.taken--
	q.releaseBuffer(e.mem)
}

// finishSync answers the entries that are in the spool; err says why they may not be durable. If the sync failed, the upstream
// answers for those that are also in memory.
func (w *writeCall) finishSync(err error, p *roundPlacements) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.notifyChange()
	for _, e := range w.sub.entries {
		switch {
		case e.ack != ackSpooled || !e.isSpooled():
		case err == nil:
			w.sub.finishFrames(len(e.frames)) // an empty result means success
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
			w.setRefused(p.passed[i], unknown)
		}
	}
}
