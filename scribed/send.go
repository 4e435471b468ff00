package scribed

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// send makes one request to the upstream and deals with its answer.
func (s *Scribed) send(b *batch) {
	frames, release := s.join(b)
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.Timeout)
	start := s.now()
	resp, err := s.deps.Upstream.Write(ctx, &scribev1.WriteRequest{Frames: frames, Ack: b.ack})
	cancel()
	release()
	s.metrics.sent(b, s.now().Sub(start))

	total := 0
	for _, e := range b.entries {
		total += len(e.frames)
	}
	if err == nil && len(resp.GetResults()) != total {
		err = rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "the upstream answered for %d of %d frames", len(resp.GetResults()), total)
	}
	if err != nil {
		s.metrics.failures.Inc()
		s.deps.Logger.WarnContext(s.ctx, "forwarding failed", slog.Int("frames", total), slog.Any("error", err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.settle()
	if err != nil {
		s.refused(b, rpc.Info(err))
		return
	}
	s.answered(b, resp.GetResults())
}

// join returns the bytes of a batch: those of its entry when it has one that is whole, else a copy.
func (s *Scribed) join(b *batch) (frames []byte, release func()) {
	if len(b.entries) == 1 && len(b.entries[0].mem.B) == int(b.entries[0].bytes) {
		return b.entries[0].mem.B, func() {}
	}
	buf := s.buffers.Get(int(b.bytes))
	at := 0
	for _, e := range b.entries {
		for i := range e.frames {
			at += copy(buf.B[at:], e.frames[i].bytes)
		}
	}
	return buf.B, func() { s.buffers.Put(buf) }
}

// free gives the memory of entries back that nothing refers to any more.
func (s *Scribed) free(entries ...*entry) {
	for _, e := range entries {
		s.buffers.Put(e.mem)
		e.mem = nil
	}
}

// size is the bytes of the frames without an outcome.
func (e *entry) size() (n int64) {
	for i := range e.frames {
		n += int64(len(e.frames[i].bytes))
	}
	return n
}

// refused deals with a request that failed as a whole. The caller holds mu.
func (s *Scribed) refused(b *batch, info *scribev1.ErrorInfo) {
	var pause time.Duration
	retryable := rpc.Retryable(rpc.FromInfo(info))
	if retryable {
		s.mu.queue.failures++
		pause = s.backoff(s.mu.queue.failures, info)
	}
	for _, e := range b.entries {
		switch {
		case retryable:
			s.attempt(e, func(*frame) *scribev1.ErrorInfo { return info })
		case len(b.entries) > 1:
			e.alone = true // one of them is the cause, and the others need not share its fate
		default:
			s.fail(e, info)
			e.frames = nil
		}
	}
	s.free(s.mu.queue.settled(s.now(), b, pause, nil)...)
}

// answered deals with the results of a batch. The caller holds mu.
func (s *Scribed) answered(b *batch, results []*scribev1.FrameResult) {
	s.mu.queue.failures = 0
	var held map[*lane]time.Duration
	for _, e := range b.entries {
		mine := results[:len(e.frames)]
		results = results[len(e.frames):]
		worst := s.settleEntry(e, mine)
		if len(e.frames) == 0 {
			continue
		}
		l := s.mu.queue.lanes[e.category]
		if held == nil {
			held = make(map[*lane]time.Duration)
		}
		if _, ok := held[l]; !ok {
			l.failures++
		}
		held[l] = max(held[l], s.backoff(l.failures, worst))
	}
	s.free(s.mu.queue.settled(s.now(), b, 0, held)...)
}

// settleEntry takes the results of an entry's frames: those with an outcome leave it, the others are to be sent again. It returns
// the error with the longest hint among the latter.
func (s *Scribed) settleEntry(e *entry, results []*scribev1.FrameResult) (worst *scribev1.ErrorInfo) {
	next := 0
	s.attempt(e, func(f *frame) *scribev1.ErrorInfo {
		r := results[next]
		next++
		info := r.GetError()
		if info == nil {
			s.mu.counts.forwarded.plus(f.amount())
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

// attempt ends an attempt to send an entry: result says what became of each frame, nil that it is with the upstream. Frames stay
// in the entry if they are to be sent again.
func (s *Scribed) attempt(e *entry, result func(*frame) *scribev1.ErrorInfo) {
	left := e.frames[:0]
	done := 0
	for i := range e.frames {
		f := &e.frames[i]
		info := result(f)
		switch {
		case info == nil:
			done++
		case e.again(f, info, s.cfg.SequenceAttempts):
			left = append(left, *f)
		default:
			done++
			s.failFrame(e, f, info)
		}
	}
	e.frames = left
	e.bytes = e.size()
	e.sub.finish(done)
}

// again reports whether a frame is to be sent again after an error.
func (e *entry) again(f *frame, info *scribev1.ErrorInfo, sequenceAttempts int) bool {
	unknown := info.GetReason() == scribev1.Reason_REASON_UNKNOWN_OUTCOME
	e.unsure, f.unsure = e.unsure || unknown, f.unsure || unknown
	switch {
	case e.abandoned || !rpc.Retryable(rpc.FromInfo(info)):
		return false
	case info.GetReason() == scribev1.Reason_REASON_OUT_OF_SEQUENCE:
		f.attempts++
		return f.attempts < sequenceAttempts
	case unknown && e.sub != nil && !f.sequenced:
		return false // it may be stored, and nothing would tell the second copy: the caller is there to decide
	default:
		return true
	}
}

// fail ends all frames of an entry with an error. The caller holds mu.
func (s *Scribed) fail(e *entry, info *scribev1.ErrorInfo) {
	for i := range e.frames {
		s.failFrame(e, &e.frames[i], info)
	}
	e.sub.finish(len(e.frames))
}

// failFrame counts a frame that will not be sent again, and tells whoever waits for it.
func (s *Scribed) failFrame(e *entry, f *frame, info *scribev1.ErrorInfo) {
	if e.sub != nil {
		if f.unsure && info.GetReason() != scribev1.Reason_REASON_UNKNOWN_OUTCOME {
			info = &scribev1.ErrorInfo{
				Reason: scribev1.Reason_REASON_UNKNOWN_OUTCOME, RetryAfter: info.GetRetryAfter(), Conflicts: info.GetConflicts(),
				Message: "an earlier attempt may have stored it; the last one: " + info.GetMessage(),
			}
		}
		e.sub.results[f.index] = &scribev1.FrameResult{Error: info}
		s.mu.counts.fail(reasonLabel(info.GetReason()), f.amount())
		return
	}
	s.mu.counts.drop(reasonLabel(info.GetReason()), f.amount())
	s.deps.Logger.WarnContext(s.ctx, "dropped a frame that the upstream does not take",
		slog.String("category", e.category), slog.Int("messages", f.messages), slog.Int("bytes", len(f.bytes)), slog.String("error", info.GetMessage()))
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

// backoff is the pause after so many failures in a row: longer each time, jittered, and as long as the upstream asks for.
func (s *Scribed) backoff(failures int, info *scribev1.ErrorInfo) time.Duration {
	mean := min(s.cfg.RetryBase<<min(failures-1, 20), s.cfg.RetryMax)
	mean = max(mean, min(info.GetRetryAfter().AsDuration(), s.cfg.RetryMax))
	return mean/2 + rand.N(mean)
}
