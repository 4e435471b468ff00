package scribed

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/format/record"
	"scribe/internal/role/request"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/deadletter"
	"scribe/scribed/spool"
)

// sendLive makes one request with live traffic and handles its answer.
func (s *Scribed) sendLive(ctx context.Context, b *upstreamBatch) {
	results, info := s.callUpstream(ctx, b)
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.handleAnswer(b, results, info)
	for _, e := range b.entries {
		if e.abandoned {
			s.abandonEntry(e)
		}
	}
	for _, e := range s.mu.queue.finishLive(s.now(), b, held) {
		s.mu.queue.releaseBuffer(e.mem)
	}
	s.notifyChange()
}

// handleAnswer handles the answer of a batch. The caller holds mu, which is released while dead letters are written; the queues
// stay busy. It returns the queues that must wait, and for how long.
func (s *Scribed) handleAnswer(b *upstreamBatch, results []*scribev1.FrameResult, info *scribev1.ErrorInfo) map[*categoryQueue]time.Duration {
	o := s.decideOutcome(b, results, info)
	s.notifyChange()
	if len(o.letters) > 0 {
		s.mu.Unlock()
		s.writeLetters(o.letters)
		s.mu.Lock()
		s.countLetters(o.letters)
	}
	return o.held
}

// abandonEntry ends the frames that are left of an entry whose caller has returned: their bytes may not be used any more. The
// caller holds mu.
func (s *Scribed) abandonEntry(e *queueEntry) {
	q := &s.mu.queue
	sum := e.amount()
	for i := range e.frames {
		q.removeFromSpool(&e.frames[i])
	}
	q.counts.memory = q.counts.memory.Minus(sum)
	if sum.Frames > 0 {
		q.counts.addFailed(abandonedReason, sum)
		q.noteGivenBack(e.category, e.frames...)
	}
	e.frames = nil
}

// sendBacklog claims backlog, makes one request with it, and handles its answer.
func (s *Scribed) sendBacklog(ctx context.Context, f *fillPlan) {
	start := s.now()
	b := s.claimBacklog(f)
	if b == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.mu.queue.finishFill(s.now(), f, nil, nil)
		s.notifyChange()
		return
	}
	ctx, b.cancel = context.WithTimeout(ctx, s.cfg.Timeout)
	results, info := s.callUpstream(ctx, b)
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.handleAnswer(b, results, info)
	now := s.now()
	s.mu.queue.pace.noteFill(start, now, b.bytes, s.mu.queue.liveWaits(now))
	s.mu.queue.releaseBuffer(b.buf)
	s.mu.queue.finishFill(now, f, b, held)
	s.notifyChange()
}

// claimBacklog claims backlog from the queues of a fill; it returns nil when none could be claimed.
func (s *Scribed) claimBacklog(f *fillPlan) *upstreamBatch {
	buf := s.buffers.Get(int(f.reserved))
	free := buf.B
	var entries []*queueEntry
	for i, l := range f.queues {
		n := min(int(bufferFor(f.wants[i])), len(free))
		records, err := s.spool.Claim(l.name, f.wants[i], f.upTo[i], free[:0:n])
		if err != nil {
			s.throttled.warn(s.ctx, "claim", "spool read failed", slog.String("category", l.name), slog.Any("error", err))
		}
		if len(records) == 0 {
			s.mu.Lock()
			if err != nil {
				l.notBefore = s.now().Add(s.cfg.RetryMax)
			} else {
				s.mu.queue.noteEmptyClaim(l, f, f.upTo[i], s.now())
			}
			s.mu.Unlock()
			continue
		}
		free = free[n:]
		entries = append(entries, newBackfillEntry(l, records))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.mu.queue.backfillBatch(f, entries)
	if b == nil {
		s.buffers.Put(buf)
		return nil
	}
	b.buf = &sharedBuffer{buf: buf, refs: 1}
	for _, e := range b.entries {
		e.mem = b.buf
	}
	s.notifyChange() // more of the queues may be claimed
	return b
}

// callUpstream makes a request to the upstream. It returns a result for each frame, in the order of the entries' frames, or the
// error of the whole request. When it returns, no frame's bytes are used any more.
func (s *Scribed) callUpstream(ctx context.Context, b *upstreamBatch) ([]*scribev1.FrameResult, *scribev1.ErrorInfo) {
	frames, direct, release := s.joinFrames(b)
	follows := b.listFollowers(b.wholeCall() != nil)
	if !direct {
		b.releaseCallers()
	}
	start := s.now()
	if !b.backfill { // frames read from disk are checked again
		ctx = rpc.WithChecked(ctx)
	}
	resp, err := s.deps.Upstream.Write(ctx, &scribev1.WriteRequest{Frames: frames, Ack: b.ack, Follows: follows, Lingered: b.unawaited})
	took := s.now().Sub(start)
	b.cancel()
	release()
	if direct {
		b.releaseCallers()
	}
	s.metrics.countRequest(b, took)
	results := resp.GetResults()
	if err == nil && len(results) != b.frames {
		err = rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "the upstream answered for %d of %d frames", len(results), b.frames)
	}
	if err != nil {
		s.metrics.failures.Inc()
		return nil, rpc.Info(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b.took, b.ordered = took, resp.GetOrdered()
	for _, e := range b.entries {
		if e.sub != nil {
			e.sub.ordered = b.ordered
		}
	}
	if !b.backfill {
		s.mu.queue.pace.noteLive(s.now(), took, s.mu.queue.filling > 0)
	}
	if !direct || b.entries[0].mem != nil {
		return results, nil
	}
	ordered := make([]*scribev1.FrameResult, 0, len(results))
	for _, e := range b.entries {
		for i := range e.frames {
			ordered = append(ordered, results[e.frames[i].index])
		}
	}
	return ordered, nil
}

// joinFrames returns the bytes of a batch. direct says that they are not a copy: they are the buffer of a single complete entry,
// or a caller's request, forwarded as it came.
func (s *Scribed) joinFrames(b *upstreamBatch) (frames []byte, direct bool, release func()) {
	first := b.entries[0]
	if sub := b.wholeCall(); sub != nil {
		return sub.data, true, func() {}
	}
	if len(b.entries) == 1 && first.mem != nil && !first.backfill && len(first.mem.buf.B) == int(first.bytes) {
		return first.mem.buf.B, true, func() {}
	}
	buf := s.buffers.Get(int(b.bytes))
	at := 0
	for _, e := range b.entries {
		for i := range e.frames {
			at += copy(buf.B[at:], e.frames[i].bytes)
		}
	}
	return buf.B, false, func() { s.buffers.Put(buf) }
}

// releaseCallers signals that callers' bytes are no longer used.
func (b *upstreamBatch) releaseCallers() {
	if b.unused != nil {
		close(b.unused)
	}
}

// wholeCall returns the call whose whole request, with all its frames, the batch is; nil if the batch is anything else.
func (b *upstreamBatch) wholeCall() *pendingCall {
	// An entry with its own buffer may be answered, and lose its call, at any time. The others do not change until this batch
	// answers them.
	first := b.entries[0]
	if first.mem != nil || first.sub == nil || b.frames != len(first.sub.results) {
		return nil
	}
	for _, e := range b.entries {
		if e.mem != nil || e.sub != first.sub {
			return nil
		}
	}
	return first.sub
}

// answerOutcome is what follows from an answer.
type answerOutcome struct {
	ack     scribev1.AckLevel // that was asked for
	held    map[*categoryQueue]time.Duration
	letters []refusedFrame
	// done are the records of frames that have an outcome, release those that return to the backlog.
	done, release []spool.Ref
}

// decideOutcome processes the answer of a batch. The caller holds mu.
func (s *Scribed) decideOutcome(b *upstreamBatch, results []*scribev1.FrameResult, info *scribev1.ErrorInfo) answerOutcome {
	o := answerOutcome{ack: b.ack, held: make(map[*categoryQueue]time.Duration)}
	b.answered = info == nil
	if info != nil {
		s.handleRefusal(b, info, &o)
	} else {
		s.handleResults(b, results, &o)
	}
	if b.backfill {
		s.giveBack(b, &o)
	}
	for i, fl := range b.flights {
		b.queues[i].flightsOf(b).noteOutcome(fl)
	}
	if s.spool != nil {
		s.spool.Done(o.done...)
		s.spool.Release(o.release...)
		s.mu.queue.freed = s.mu.queue.freed || len(o.done) > 0
	}
	return o
}

// giveBack returns the frames that are left of a backfill request to the spool.
func (s *Scribed) giveBack(b *upstreamBatch, o *answerOutcome) {
	for i, e := range b.entries {
		l := b.queues[i]
		for j := range e.frames {
			f := &e.frames[j]
			o.release = append(o.release, f.ref)
			if f.attempts > 0 {
				if l.tries == nil {
					l.tries = make(map[spool.Ref]int32)
				}
				l.tries[f.ref] = f.attempts
			}
		}
	}
}

// handleRefusal handles a request that failed as a whole. The caller holds mu.
func (s *Scribed) handleRefusal(b *upstreamBatch, info *scribev1.ErrorInfo, o *answerOutcome) {
	q := &s.mu.queue
	now := s.now()
	if blamesContent(info) {
		for _, e := range b.entries {
			s.isolateCause(b, e, info, o)
		}
		if len(b.entries) > 1 || len(b.entries[0].frames) > 0 {
			s.throttled.warn(s.ctx, "refused", "request refused by the upstream: retrying its frames in smaller requests", slog.String("error", info.GetMessage()))
		}
		return
	}
	if info.GetReason() == scribev1.Reason_REASON_OUT_OF_ORDER && slices.ContainsFunc(b.entries, (*queueEntry).hasFollowers) {
		for _, e := range b.entries { // the upstream is there, and takes requests one at a time
			s.endAttempt(e, o, func(*queuedFrame) *scribev1.ErrorInfo { return info })
		}
		return
	}
	q.notBefore = now.Add(s.retryPause(q.noteUnavailable(now, b), info))
	if !s.mu.loggedUnavailable && now.Sub(q.unavailableSince) >= unavailableAfter {
		s.mu.loggedUnavailable = true
		s.deps.Logger.WarnContext(s.ctx, "upstream unavailable", slog.Int("failures", q.failures), slog.String("error", info.GetMessage()))
	}
	for _, e := range b.entries {
		s.endAttempt(e, o, func(f *queuedFrame) *scribev1.ErrorInfo {
			if info.GetReason() == scribev1.Reason_REASON_UNSPECIFIED {
				f.attempts = -1 // the error says nothing about the frame
			}
			return info
		})
		if len(e.frames) > 0 {
			o.held[q.queues[e.category]] = 0 // setHold then keeps its failures
		}
	}
}

// unavailableAfter is how long requests must fail before the upstream is logged as unavailable.
const unavailableAfter = time.Second

// blamesContent reports whether an error of a whole request is about its content. Other errors, including those of unknown kind,
// are caused by the upstream or by something in between, and are transient; so are those about who the agent is.
func blamesContent(info *scribev1.ErrorInfo) bool {
	return info.GetReason() != scribev1.Reason_REASON_UNAUTHENTICATED && info.GetReason() != scribev1.Reason_REASON_UNSPECIFIED && !retry.ClassOf(info.GetReason()).Retryable()
}

// isolateCause handles an entry of a request that was refused for its content: one frame is the cause, and the others need not
// share its fate.
func (s *Scribed) isolateCause(b *upstreamBatch, e *queueEntry, info *scribev1.ErrorInfo, o *answerOutcome) {
	l := s.mu.queue.queues[e.category]
	switch {
	case len(b.entries) > 1:
		e.alone = true
		l.cautious = l.cautious || b.backfill
		o.held[l] = 0
	case len(e.frames) == 1:
		s.endAttempt(e, o, func(*queuedFrame) *scribev1.ErrorInfo { return info })
		l.singles = max(l.singles-1, 0)
		l.cautious = l.cautious && l.singles > 0
	case b.backfill:
		l.cautious, l.singles = true, len(e.frames)
		o.held[l] = 0
	default:
		s.bisectEntry(b, e)
	}
}

// bisectEntry splits an entry in flight into two; finishLive returns both to the queue.
func (s *Scribed) bisectEntry(b *upstreamBatch, e *queueEntry) {
	half := len(e.frames) / 2
	other := *e
	other.frames = append([]queuedFrame(nil), e.frames[half:]...)
	other.bytes = other.countBytes()
	other.charge = e.charge / 2
	e.charge -= other.charge
	e.frames = e.frames[:half:half]
	e.bytes = e.countBytes()
	e.alone, other.alone = true, true
	if e.mem != nil {
		e.mem.refs++
	}
	if e.sub != nil {
		e.sub.entries = append(e.sub.entries, &other)
	}
	b.entries = append(b.entries, &other)
	if fl := b.flightOf(s.mu.queue.queues[e.category]); fl != nil {
		fl.entries = append(fl.entries, &other)
	}
}

// handleResults handles the results of a batch. The caller holds mu.
func (s *Scribed) handleResults(b *upstreamBatch, results []*scribev1.FrameResult, o *answerOutcome) {
	q := &s.mu.queue
	s.logRecovery()
	q.noteAnswer(b)
	for _, e := range b.entries {
		l := q.queues[e.category]
		if b.cautious {
			l.singles = max(l.singles-len(e.frames), 0)
			l.cautious = l.cautious && l.singles > 0
		}
		mine := results[:len(e.frames)]
		results = results[len(e.frames):]
		worst := s.applyResults(l, e, mine, o)
		if len(e.frames) == 0 || b.isConsequence(l, e) {
			continue
		}
		if _, ok := o.held[l]; !ok && !l.flightsOf(b).failed {
			l.failures++
		}
		o.held[l] = max(o.held[l], s.retryPause(l.failures, worst))
	}
}

// logRecovery logs once that the upstream is available again.
func (s *Scribed) logRecovery() {
	if !s.mu.loggedUnavailable {
		return
	}
	s.mu.loggedUnavailable = false
	q := &s.mu.queue
	backlog := s.readBacklog()
	s.deps.Logger.WarnContext(s.ctx, "upstream available again", slog.Duration("unavailable_for", s.now().Sub(q.unavailableSince)),
		slog.Int64("memory_bytes", q.counts.memory.Bytes), slog.Int64("spool_bytes", backlog.Bytes), slog.Int64("spool_messages", backlog.Messages))
}

// applyResults applies the results of an entry's frames: frames with an outcome leave the entry, the others are sent again. It
// returns the error with the longest retry hint among the latter.
func (s *Scribed) applyResults(l *categoryQueue, e *queueEntry, results []*scribev1.FrameResult, o *answerOutcome) (worst *scribev1.ErrorInfo) {
	next := 0
	s.endAttempt(e, o, func(f *queuedFrame) *scribev1.ErrorInfo {
		r := results[next]
		next++
		info := r.GetError()
		if info == nil || e.sub == nil && isStored(f, info) {
			l.learnOrder(r.GetShard())
			f.sampledOut = info == nil && r.GetSampledOut()
			if e.sub != nil {
				e.sub.results[f.index] = r
			}
			return nil
		}
		if worst == nil || info.GetRetryAfter().AsDuration() > worst.GetRetryAfter().AsDuration() {
			worst = info
		}
		return info
	})
	return worst
}

// isStored reports whether an error says that all messages of a frame are already stored.
func isStored(f *queuedFrame, info *scribev1.ErrorInfo) bool {
	if info.GetReason() != scribev1.Reason_REASON_DUPLICATE {
		return false
	}
	h, err := record.ParseHeader(f.bytes)
	if err != nil {
		return false
	}
	for _, c := range info.GetConflicts() {
		if c.GetProducer() == h.Producer && c.GetReason() == scribev1.Reason_REASON_DUPLICATE && c.GetNextSequence() < h.NextSequence() {
			return false
		}
	}
	return true
}

// endAttempt ends an attempt to send an entry. result returns the error of each frame, nil if the upstream accepted it. Frames
// that are to be sent again stay in the entry.
func (s *Scribed) endAttempt(e *queueEntry, o *answerOutcome, result func(*queuedFrame) *scribev1.ErrorInfo) {
	left := e.frames[:0]
	done := 0
	for i := range e.frames {
		f := &e.frames[i]
		info := result(f)
		if f.behind && info.GetReason() == scribev1.Reason_REASON_OUT_OF_ORDER {
			s.mu.queue.counts.early++
		}
		if info != nil && e.mayRetry(f, info, s.maxAttempts(e, f, info)) {
			f.refusal, f.behind = info, false
			left = append(left, *f)
			continue
		}
		done++
		if info != nil && s.failFrame(e, f, info, o) {
			continue // it stays accounted until its letter is written
		}
		if info == nil {
			s.mu.queue.counts.forwarded = s.mu.queue.counts.forwarded.Plus(f.amount())
			s.mu.queue.noteForwarded(e.category, f, o.ack)
		}
		s.mu.queue.leaveMemory(e, f)
		if f.spooled {
			o.done = append(o.done, f.ref)
		}
	}
	e.frames = left
	e.bytes = e.countBytes()
	e.sub.finishFrames(done)
}

// maxAttempts is how often a frame is sent when the upstream misses its earlier messages: once if they are known not to come.
func (s *Scribed) maxAttempts(e *queueEntry, f *queuedFrame, info *scribev1.ErrorInfo) int {
	switch {
	case e.sub == nil && s.mu.queue.gaps.hasGap(e.category, f, s.now()):
		return 1
	case info.GetReason() == scribev1.Reason_REASON_OUT_OF_SEQUENCE && e.followsRefused(f):
		return 1
	}
	return s.cfg.SequenceAttempts
}

// followsRefused reports whether an earlier frame of the same sequence was refused: the caller that waits for both must send them
// again.
func (e *queueEntry) followsRefused(f *queuedFrame) bool {
	if len(e.refused) == 0 {
		return false
	}
	key, ok := sequenceOf(e.category, f)
	return ok && slices.Contains(e.refused, key)
}

// leaveMemory removes a frame with an outcome from the memory's count. Backfill frames are counted by the spool only.
func (q *sendQueue) leaveMemory(e *queueEntry, f *queuedFrame) {
	if !e.backfill {
		q.counts.memory = q.counts.memory.Minus(f.amount())
	}
}

// mayRetry reports whether a frame is to be sent again after an error.
func (e *queueEntry) mayRetry(f *queuedFrame, info *scribev1.ErrorInfo, attempts int) bool {
	reason := info.GetReason()
	unknown := reason == scribev1.Reason_REASON_UNKNOWN_OUTCOME
	if unknown || reason == scribev1.Reason_REASON_UNSPECIFIED { // an error without a reason does not say whether it was stored either
		e.unsure, f.unsure = true, true
	}
	switch {
	case e.abandoned, e.isCut(f):
		return false
	case reason == scribev1.Reason_REASON_OUT_OF_ORDER && f.follows && e.awaitsUpstream():
		e.cutSequence(f)
		return false // the caller knows what goes before it
	case reason == scribev1.Reason_REASON_OUT_OF_SEQUENCE && f.behind:
		return true // those before it may have failed since
	case reason == scribev1.Reason_REASON_OUT_OF_SEQUENCE, reason == scribev1.Reason_REASON_UNSPECIFIED && !e.awaitsUpstream():
		f.attempts++
		return int(f.attempts) < attempts
	case reason == scribev1.Reason_REASON_UNAUTHENTICATED && !e.awaitsUpstream():
		return true // the agent's token has ended: with another one the frame is taken
	case !retry.ClassOf(info.GetReason()).Retryable():
		return false
	case unknown && e.awaitsUpstream() && !f.sequenced:
		return false // it may be stored, and a second copy would not be detected: the waiting caller decides
	default:
		return true
	}
}

// refusedFrame is a frame to be written to the dead letters.
type refusedFrame struct {
	deadletter.Letter

	entry *queueEntry
	frame queuedFrame
	mem   *sharedBuffer
}

// failFrame counts a frame that will not be sent again, and tells its waiting caller. Without one, it adds the frame to the dead
// letters, if there are any, and returns true; the frame is counted when the letter is written.
func (s *Scribed) failFrame(e *queueEntry, f *queuedFrame, info *scribev1.ErrorInfo, o *answerOutcome) bool {
	reason := rpc.ReasonLabel(info.GetReason())
	if e.sub != nil {
		if f.unsure {
			info = request.AsUnknown(info)
		}
		e.sub.results[f.index] = &scribev1.FrameResult{Error: info}
		s.mu.queue.counts.addFailed(rpc.ReasonLabel(info.GetReason()), f.amount())
		s.mu.queue.noteGivenBack(e.category, *f)
		if key, ok := sequenceOf(e.category, f); ok && !slices.Contains(e.refused, key) {
			e.refused = append(e.refused, key)
		}
		return false
	}
	s.mu.queue.gaps.noteLost(e.category, f, info.GetReason(), s.now())
	s.throttled.warn(s.ctx, "refused "+reason+" "+e.category, "frames refused by the upstream",
		slog.String("category", e.category), slog.Int("messages", int(f.messages)), slog.Int("bytes", len(f.bytes)), slog.String("error", info.GetMessage()))
	if s.dead == nil {
		s.mu.queue.countLostFrames(e.category, reason, []queuedFrame{*f}, s.now())
		return false
	}
	if e.mem != nil {
		e.mem.refs++
	}
	o.letters = append(o.letters, refusedFrame{entry: e, frame: *f, mem: e.mem, Letter: deadletter.Letter{
		Time: s.now(), Category: e.category, Reason: reason, Message: info.GetMessage(), Frame: f.bytes,
	}})
	return true
}

// countLetters is the event that dead letters were written: their frames now count as dropped. The caller holds mu.
func (s *Scribed) countLetters(dead []refusedFrame) {
	q := &s.mu.queue
	for i := range dead {
		d := &dead[i]
		q.countLostFrames(d.Category, d.Reason, []queuedFrame{d.frame}, s.now())
		q.leaveMemory(d.entry, &d.frame)
		q.removeFromSpool(&d.frame)
		q.releaseBuffer(d.mem)
	}
}

func (s *Scribed) writeLetters(dead []refusedFrame) {
	letters := make([]deadletter.Letter, len(dead))
	for i := range dead {
		letters[i] = dead[i].Letter
	}
	if err := s.dead.Put(letters); err != nil {
		s.metrics.lettersFailed.Add(float64(len(letters)))
		s.throttled.warn(s.ctx, "dead letters", "writing dead letters failed", slog.Any("error", err))
	}
}

// retryPause is the pause after a number of consecutive failures: growing, jittered, and not shorter than the upstream's retry
// hint.
func (s *Scribed) retryPause(failures int, info *scribev1.ErrorInfo) time.Duration {
	pauses := backoff.Backoff{Min: s.cfg.RetryBase, Max: s.cfg.RetryMax}
	hint := retry.Hint(info, retry.LongestHint)
	return max(backoff.Jitter(s.deps.Random, pauses.Mean(failures), 0.5), hint+s.deps.Random.Duration(hint/4+1))
}
