package scribed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"scribe/internal/role/request"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/spool"
)

var errClosed = errors.New("scribed: closed before everything was forwarded")

// LossError counts the frames that Close could not save: frames without a waiting caller that are neither forwarded nor in the
// spool.
type LossError struct {
	request.Amount
	// Cause is why they could not be written to the spool; nil without a spool.
	Cause error
}

// Error implements error.
func (e *LossError) Error() string {
	text := fmt.Sprintf("scribed: %d frames with %d messages and %d bytes could not be forwarded before the end", e.Frames, e.Messages, e.Bytes)
	if e.Cause != nil {
		text += ", nor kept: " + e.Cause.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *LossError) Unwrap() error { return e.Cause }

// Close refuses new requests and forwards the frames in memory. When ctx ends first, waiting callers get an error, and frames
// without a waiting caller are written to the spool; while the upstream is unavailable, they are spilled at once. The spool is
// synced, and the next run forwards its contents. The error is a [LossError] if frames could not be saved; without a spool these
// are all that were not forwarded. Later calls wait for the first one, and return its error.
func (s *Scribed) Close(ctx context.Context) error {
	s.reportAtEnd(ctx)
	return s.accepting.Close(ctx, func() error { return s.shutDown(ctx) })
}

func (s *Scribed) shutDown(ctx context.Context) error {
	s.mu.Lock()
	s.mu.queue.closing = true
	s.notifyChange()
	s.mu.Unlock()
	select {
	case <-s.drained:
	case <-ctx.Done():
		s.cancel(errClosed)
	}
	<-s.accepting.Idle()
	close(s.stopKeeping)
	s.keepers.Wait()
	// The requests in flight end: their frames return to the queue or have an outcome.
	s.tasks.Wait()
	err := s.emptyMemory()
	s.keepLastReports()
	s.cancel(nil)
	if s.spool != nil {
		err = errors.Join(err, s.closeSpool())
	}
	s.metrics.set.Unregister()
	return err
}

func (s *Scribed) closeSpool() error {
	err := s.spool.Sync(context.Background())
	if errors.Is(err, spool.ErrFailed) {
		err = s.spool.Sync(context.Background())
	}
	return errors.Join(err, s.spool.Close())
}

// emptyMemory empties the memory: entries go to the spool, or fail if a caller waits for them or there is no capacity.
func (s *Scribed) emptyMemory() error {
	var cause error
	if s.spool != nil {
		cause = s.spillAll()
	}
	s.mu.Lock()
	q := &s.mu.queue
	var lost request.Amount
	for _, l := range slices.Collect(maps.Values(q.queues)) {
		for _, e := range slices.Clone(l.entries) {
			s.leaveToSpool(l, e)
			if e.sub == nil || s.spool == nil {
				lost = lost.Plus(e.amount())
			}
			s.failEntry(e, lossReason(e))
			q.removeEntry(e)
			q.releaseBuffer(e.mem)
		}
	}
	s.mu.idle = true
	s.mu.Unlock()
	if lost.Frames == 0 {
		return nil
	}
	return &LossError{Amount: lost, Cause: cause}
}

// leaveToSpool moves the spooled frames of an entry to the backlog when the entry could not leave the memory as a whole. If a
// caller waits for the entry, they are removed from the spool instead, since the caller is told that they failed. The caller
// holds mu.
func (s *Scribed) leaveToSpool(l *categoryQueue, e *queueEntry) {
	q := &s.mu.queue
	left := e.frames[:0]
	for i := range e.frames {
		f := &e.frames[i]
		switch {
		case !f.spooled:
			left = append(left, *f)
		case e.sub != nil:
			q.removeFromSpool(f)
			left = append(left, *f)
		default:
			q.spool.Release(f.ref)
			q.joinBacklog(l)
			q.counts.memory = q.counts.memory.Minus(f.amount())
		}
	}
	e.frames = left
}

// spillAll spills every entry that may leave the memory.
func (s *Scribed) spillAll() error {
	for {
		s.mu.Lock()
		for _, l := range s.mu.queue.queues {
			l.fullTill = time.Time{}
		}
		a := s.mu.queue.planSpill(s.now(), true)
		s.mu.Unlock()
		if a == nil {
			return nil
		}
		if err := s.runAppend(a); err != nil {
			return err
		}
	}
}

// failEntry gives all frames of an abandoned entry their outcome. The caller holds mu.
func (s *Scribed) failEntry(e *queueEntry, reason scribev1.Reason) {
	q := &s.mu.queue
	sum := e.amount()
	q.counts.memory = q.counts.memory.Minus(sum)
	if e.sub == nil {
		q.countLostFrames(e.category, rpc.ReasonLabel(reason), e.frames, s.now())
		s.throttled.warnDropped(s.ctx, e.category, rpc.ReasonLabel(reason), sum)
		return
	}
	q.counts.addFailed(rpc.ReasonLabel(reason), sum)
	q.noteGivenBack(e.category, e.frames...)
	for i := range e.frames {
		e.sub.results[e.frames[i].index] = &scribev1.FrameResult{Error: &scribev1.ErrorInfo{Reason: reason, Message: errClosed.Error()}}
	}
	e.sub.finishFrames(len(e.frames))
}

// lossReason is the reason that the caller of an abandoned entry gets.
func lossReason(e *queueEntry) scribev1.Reason {
	if e.unsure {
		return scribev1.Reason_REASON_UNKNOWN_OUTCOME
	}
	return scribev1.Reason_REASON_SHUTTING_DOWN
}

// Backlog counts the frames of a category, in memory and in the spool, that were not forwarded yet.
type Backlog struct {
	Category string
	request.Amount
}

// Drain forwards everything that scribed holds, at the rate that the upstream accepts, until nothing is left or ctx ends. It
// returns what is left, the largest category first. New requests are still accepted and forwarded.
func (s *Scribed) Drain(ctx context.Context) []Backlog {
	s.countDrains(1)
	defer s.countDrains(-1)
	t := time.NewTicker(drainInterval)
	defer t.Stop()
	for {
		left := s.Backlogs()
		if len(left) == 0 {
			return nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return s.Backlogs()
		case <-s.ctx.Done():
			return s.Backlogs()
		}
	}
}

// drainInterval is how often Drain checks whether it is done.
const drainInterval = 10 * time.Millisecond

func (s *Scribed) countDrains(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.draining += n
	s.mu.queue.draining = s.mu.draining > 0
	s.notifyChange()
}

// heldOf sums the frames of a queue, in memory and in the spool.
func (q *sendQueue) heldOf(l *categoryQueue) request.Amount {
	sum := q.backlogOf(l)
	for _, entries := range [][]*queueEntry{l.entries, l.live.entries(), l.direct, l.leaving} {
		for _, e := range entries {
			sum = sum.Plus(e.amount())
		}
	}
	return sum
}

// Backlogs returns each category's frames that were not forwarded yet, the largest category first.
func (s *Scribed) Backlogs() []Backlog {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Backlog
	for _, l := range s.mu.queue.queues {
		if sum := s.mu.queue.heldOf(l); sum.Frames != 0 {
			all = append(all, Backlog{Category: l.name, Amount: sum})
		}
	}
	slices.SortFunc(all, func(a, b Backlog) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Category, b.Category))
	})
	return all
}
