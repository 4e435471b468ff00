package scribed

import (
	"context"
	"errors"
	"time"

	"scribe/internal/buffers"
	"scribe/internal/publish"
	"scribe/internal/record"
	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// submission is a request that waits for its frames.
type submission struct {
	results []*scribev1.FrameResult
	total   int // frames
	pending int // of them without an outcome; guarded by Scribed.mu
	done    chan struct{}
}

// Write implements rpc.WriteService. With ACK_LEVEL_NONE it answers when the frames are in memory; with any other level when the
// upstream has committed them, or they have failed. SPOOLED is answered when committed, as there is no disk buffer. Frames of a
// category that has no room are refused with REASON_OVERLOADED and a hint; when that is all of them, so is the request. The
// request's bytes are not used after it returns.
func (s *Scribed) Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	data := req.GetFrames()
	if int64(len(data)) > s.cfg.MaxRequestBytes {
		return nil, rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "the request has %d bytes of frames, the limit is %d: send less at once", len(data), s.cfg.MaxRequestBytes)
	}
	in, err := split(data)
	if err != nil {
		return nil, err
	}
	ack := req.GetAck()
	if ack != scribev1.AckLevel_ACK_LEVEL_NONE {
		ack = scribev1.AckLevel_ACK_LEVEL_COMMITTED
	}
	sub, err := s.accept(in, ack)
	if err != nil {
		return nil, err
	}
	if sub != nil {
		select {
		case <-sub.done:
		case <-ctx.Done():
			return s.abandon(ctx, in, sub)
		}
	}
	return &scribev1.WriteResponse{Results: in.results}, nil
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
	return &scribev1.PublishResponse{Count: uint32(len(req.GetMessages())), Shard: r.GetShard(), Lsn: r.GetLsn()}, nil
}

// parsed is a request taken apart by category.
type parsed struct {
	results []*scribev1.FrameResult
	entries []*entry // one for each category, in the order of their first frames
}

// split checks every frame of a request. A frame that is refused alone has its error in results; when nobody knows where the next
// frame begins, the whole request is refused.
func split(data []byte) (*parsed, error) {
	in := &parsed{}
	byCategory := make(map[string]*entry, 1)
	for offset := 0; offset < len(data); {
		h, err := record.Check(data[offset:])
		size := h.Len
		if err != nil {
			if size, err = damaged(data[offset:], offset, err); size == 0 {
				return nil, err
			}
		}
		index := len(in.results)
		in.results = append(in.results, &scribev1.FrameResult{Error: rpc.Info(err)})
		if err == nil {
			e := byCategory[string(h.Category)]
			if e == nil {
				e = &entry{category: h.CategoryName()}
				byCategory[e.category] = e
				in.entries = append(in.entries, e)
			}
			e.frames = append(e.frames, frame{
				bytes: data[offset : offset+size], messages: h.Count, sequenced: h.Sequenced(), index: index,
			})
			e.bytes += int64(size)
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

// accept puts a request's entries into the queue: it reserves their memory, copies them, and adds them. The submission is nil when
// there is nothing to wait for.
func (s *Scribed) accept(in *parsed, ack scribev1.AckLevel) (*submission, error) {
	if err := s.reserve(in); err != nil {
		return nil, err
	}
	var sub *submission
	if ack != scribev1.AckLevel_ACK_LEVEL_NONE && len(in.entries) > 0 {
		sub = &submission{results: in.results, done: make(chan struct{})}
	}
	for _, e := range in.entries {
		e.ack, e.sub = ack, sub
		e.keep(s.buffers.Get(int(e.bytes)))
		if sub != nil {
			sub.total += len(e.frames)
			sub.pending = sub.total
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.settle()
	if s.mu.closed {
		for _, e := range in.entries {
			s.mu.queue.release(e)
			s.free(e)
		}
		return nil, errShutDown()
	}
	now := s.now()
	for _, e := range in.entries {
		e.since = now
		for i := range e.frames {
			s.mu.counts.accepted.plus(e.frames[i].amount())
		}
		s.mu.queue.add(e)
	}
	return sub, nil
}

// reserve charges the entries that there is room for and takes the others out of the request. It is an error when there is room
// for none.
func (s *Scribed) reserve(in *parsed) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return errShutDown()
	}
	var (
		taken []*entry
		first error
	)
	for _, e := range in.entries {
		e.charge = chargeOf(len(e.frames), e.bytes)
		now, ever := s.mu.queue.room(e.category, e.charge)
		if now {
			s.mu.queue.reserve(e)
			taken = append(taken, e)
			continue
		}
		err := rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, s.retryAfter(),
			"the agent's memory has no room for %d bytes of category %s: try again later", e.bytes, e.category)
		if !ever {
			err = rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE,
				"%d bytes of category %s are more than the agent's memory takes of one category: send less at once", e.bytes, e.category)
		}
		s.mu.counts.refused++
		for i := range e.frames {
			in.results[e.frames[i].index].Error = rpc.Info(err)
		}
		if first == nil {
			first = err
		}
	}
	in.entries = taken
	if len(taken) == 0 {
		return first
	}
	return nil
}

// retryAfter is when a request that was refused should be tried again: when the next request to the upstream has been answered,
// more or less. The caller holds mu.
func (s *Scribed) retryAfter() time.Duration {
	return max(s.mu.queue.notBefore.Sub(s.now()), 2*s.cfg.RetryBase)
}

// keep copies the frames, which are the caller's, to mem.
func (e *entry) keep(mem *buffers.Buffer) {
	e.mem = mem
	at := 0
	for i := range e.frames {
		f := &e.frames[i]
		n := copy(mem.B[at:], f.bytes)
		f.bytes = mem.B[at : at+n : at+n]
		at += n
	}
}

// abandon ends the wait of a caller whose patience is over. What was never sent is taken back, so the error is a definite one if
// that is all.
func (s *Scribed) abandon(ctx context.Context, in *parsed, sub *submission) (*scribev1.WriteResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub.pending == 0 { // it was answered at the same moment
		return &scribev1.WriteResponse{Results: in.results}, nil
	}
	left, unsure := 0, false
	for _, e := range in.entries {
		left += len(e.frames)
		unsure = unsure || e.unsure
		if !s.mu.queue.withdraw(e) {
			e.abandoned = true
			unsure = unsure || len(e.frames) > 0
			continue
		}
		for i := range e.frames {
			s.mu.counts.fail(abandonedReason, e.frames[i].amount())
		}
		e.frames = nil
		s.free(e)
	}
	s.settle()
	if unsure || left < sub.total {
		return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "the upstream has not answered for %d of %d frames: %w", left, sub.total, context.Cause(ctx))
	}
	return nil, rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "the upstream did not take the frames in time, they are not stored: %w", context.Cause(ctx))
}
