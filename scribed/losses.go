package scribed

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"scribe/internal/format/loss"
	"scribe/internal/role/request"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// countLoss counts dropped frames of which only the sum is known. Without a category there are no readers to report to.
func (q *sendQueue) countLoss(category, reason string, sum request.Amount, now time.Time) {
	q.counts.addDropped(reason, sum)
	q.noteLoss(category, reason, sum.Messages, now)
	if q.losses != nil && category != "" {
		q.losses.Add(loss.Key{Category: category, AllShards: true, Reason: reason}, loss.Amount(sum), now, now)
	}
}

// countLostFrames counts dropped frames of a category.
func (q *sendQueue) countLostFrames(category, reason string, frames []queuedFrame, now time.Time) (sum request.Amount) {
	for i := range frames {
		f := &frames[i]
		sum = sum.Plus(f.amount())
		q.noteDropped(category, reason, f)
		if q.losses != nil {
			q.losses.AddFrame(category, reason, f.bytes, int64(f.messages), now)
		}
	}
	q.counts.addDropped(reason, sum)
	return sum
}

// reportLoop sends reports every ReportLosses.
func (s *Scribed) reportLoop() {
	ctx, cancel := context.WithCancel(s.ctx)
	s.keepers.Go(func() { // Close does not wait for reports to reach the upstream
		<-s.accepting.Draining()
		cancel()
	})
	runEvery(s.cfg.ReportLosses, nil, ctx.Done(), func() {
		s.sendDueReports(ctx, scribev1.AckLevel_ACK_LEVEL_COMMITTED)
		s.sendDelivery(ctx)
	})
}

const (
	// reportsAtOnce is how many categories are reported concurrently.
	reportsAtOnce = 16
	// reportTimeout bounds the report of one category; after that it is left for the next round.
	reportTimeout = 5 * time.Second
)

// sendDueReports sends the pending reports, one request for each category. They wait for the upstream in memory, not in the
// spool, where they would be part of what may be dropped. Reports that are not accepted are sent again in the next round.
func (s *Scribed) sendDueReports(ctx context.Context, ack scribev1.AckLevel) {
	select {
	case s.reporting <- struct{}{}:
		defer func() { <-s.reporting }()
	case <-ctx.Done():
		return
	}
	s.mu.Lock()
	todo := s.mu.queue.losses.Reports(s.now())
	alone := s.mu.queue.isUnavailable() // then a single report probes whether it still is
	s.mu.Unlock()
	s.keepReports() // before they are sent: see loss.Ledger.AppendKept
	var group errgroup.Group
	group.SetLimit(reportsAtOnce)
	for _, reports := range todo {
		if alone && ack == scribev1.AckLevel_ACK_LEVEL_COMMITTED {
			s.sendReports(ctx, reports, ack)
			s.mu.Lock()
			alone = s.mu.queue.isUnavailable()
			s.mu.Unlock()
			if alone {
				break
			}
			continue
		}
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			s.sendReports(ctx, reports, ack)
			return nil
		})
	}
	_ = group.Wait() // it has no errors
}

// sendReports sends the reports of one category, and records which were accepted or refused.
func (s *Scribed) sendReports(ctx context.Context, reports []*loss.Pending, ack scribev1.AckLevel) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	var frames []byte
	for _, r := range reports {
		frames = append(frames, r.Frame...)
	}
	res, err := s.write(ctx, &scribev1.WriteRequest{Frames: frames, Ack: ack}, true)
	done := make(map[*loss.Pending]bool, len(reports))
	for i, r := range reports {
		ferr := err
		if err == nil {
			ferr = rpc.FromInfo(res.GetResults()[i].GetError())
		}
		switch {
		case ferr == nil:
			done[r] = true
		case !retry.Retryable(ferr) && rpc.ReasonOf(ferr) != scribev1.Reason_REASON_UNSPECIFIED:
			done[r] = false // for example, the category no longer exists
			s.throttled.warn(s.ctx, "report "+r.Category, "loss report refused",
				slog.String("category", r.Category), slog.Int64("messages", r.Messages), slog.Any("error", ferr))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.queue.losses.Settle(done)
}

// lastReport bounds how long Close waits for the last reports.
const lastReport = time.Second

// reportAtEnd reports the remaining losses, unless that depends on an unavailable upstream. With a spool the next run reports them then: beside
// the backlog, of which they might be dropped themselves.
func (s *Scribed) reportAtEnd(ctx context.Context) {
	s.mu.Lock()
	l := s.mu.queue.losses
	able := !s.accepting.Closed() && !s.mu.queue.isUnavailable()
	s.mu.Unlock()
	if !able {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lastReport)
	defer cancel()
	if l != nil && !l.Idle() {
		s.sendDueReports(ctx, scribev1.AckLevel_ACK_LEVEL_SPOOLED)
	}
	s.sendDelivery(ctx)
}
