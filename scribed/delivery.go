package scribed

import (
	"context"
	"log/slog"
	"time"

	"scribe/internal/format/delivery"
	"scribe/internal/transport/counting"
	scribev1 "scribe/proto/scribe/v1"
)

// noteDelivery adds to what the agent counts of a frame's messages. Loss reports are no messages of anybody.
func (q *sendQueue) noteDelivery(category string, f *queuedFrame, reason string, c delivery.Counts) {
	if q.delivery == nil || f.report {
		return
	}
	key := delivery.Key{Category: category, Minute: f.minute, Reason: reason}
	if f.sequenced {
		key.Producer = f.sequences.stream.producer
	}
	q.delivery.Add(key, c)
}

// noteTaken counts frames that the agent has accepted.
func (q *sendQueue) noteTaken(e *queueEntry) {
	for i := range e.frames {
		q.noteDelivery(e.category, &e.frames[i], "", delivery.Counts{Produced: int64(e.frames[i].messages)})
	}
}

// noteGivenBack uncounts frames that failed: their caller knows, and may send them again, as others or as the same.
func (q *sendQueue) noteGivenBack(category string, frames ...queuedFrame) {
	for i := range frames {
		q.noteDelivery(category, &frames[i], "", delivery.Counts{Produced: -int64(frames[i].messages)})
	}
}

// noteForwarded counts a frame that the upstream took at a level.
func (q *sendQueue) noteForwarded(category string, f *queuedFrame, ack scribev1.AckLevel) {
	n := int64(f.messages)
	c := delivery.Counts{Stored: n}
	switch {
	case f.sampledOut:
		c = delivery.Counts{Sampled: n}
	case ack == scribev1.AckLevel_ACK_LEVEL_NONE:
		c = delivery.Counts{Passed: n}
	}
	q.noteDelivery(category, f, "", c)
}

// noteDropped counts a frame that was dropped. It may be stored if an attempt had no answer.
func (q *sendQueue) noteDropped(category, reason string, f *queuedFrame) {
	if f.unsure {
		reason = delivery.UnknownOutcome
	}
	q.noteDelivery(category, f, reason, delivery.Counts{Dropped: int64(f.messages)})
}

// noteLoss counts dropped messages of which only the sum is known: they are of the host, and of the minute in which they were dropped, until a
// reader of the counts knows better.
func (q *sendQueue) noteLoss(category, reason string, messages int64, now time.Time) {
	if q.delivery != nil && category != "" {
		q.delivery.Add(delivery.Key{Category: category, Minute: delivery.MinuteOf(now.UnixMicro()), Reason: reason}, delivery.Counts{Dropped: messages})
	}
}

// sendDelivery reports what was counted. Rows wait in memory and in their file, not in the spool, where they would be part of what may be dropped.
// Those that are not accepted are sent again, unchanged, in the next round, and nothing newer before them.
func (s *Scribed) sendDelivery(ctx context.Context) {
	select {
	case s.reporting <- struct{}{}:
		defer func() { <-s.reporting }()
	case <-ctx.Done():
		return
	}
	s.mu.Lock()
	q := &s.mu.queue
	if q.delivery == nil {
		s.mu.Unlock()
		return
	}
	s.readBacklog() // what is gone from the spool is counted with what is held
	frames := q.delivery.Reports(s.now(), s.heldMessages())
	s.mu.Unlock()
	s.keepReports() // before they are sent: see delivery.Ledger.AppendKept
	sender := counting.Sender{
		Service: yieldingWrites{s}, Timeout: reportTimeout, Renews: true, // with another token of the agent they are taken
		Settle: func(done map[*delivery.Pending]bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			q.delivery.Settle(done)
		},
		Refused: func(p *delivery.Pending, err error) {
			s.throttled.warn(s.ctx, "delivery", "delivery counts refused", slog.Int64("messages", p.Messages), slog.Any("error", err))
		},
	}
	sender.Send(ctx, frames, scribev1.AckLevel_ACK_LEVEL_COMMITTED)
}

// yieldingWrites are the agent's writes of its own.
type yieldingWrites struct{ s *Scribed }

// Write implements counting.Service.
func (w yieldingWrites) Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	return w.s.write(ctx, req, true)
}

// heldMessages returns how many messages the agent has of each category. The caller holds mu.
func (s *Scribed) heldMessages() map[string]int64 {
	held := make(map[string]int64, len(s.mu.queue.queues))
	for _, l := range s.mu.queue.queues {
		if n := s.mu.queue.heldOf(l).Messages; n > 0 {
			held[l.name] = n
		}
	}
	return held
}
