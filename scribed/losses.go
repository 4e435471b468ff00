package scribed

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"scribe/internal/format/loss"
	"scribe/internal/role/request"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// countLoss counts frames that are dropped, of which only the sum is known. Of an unknown category nobody knows whom to tell.
func (q *sendQueue) countLoss(category, reason string, sum request.Amount, now time.Time) {
	q.counts.addDropped(reason, sum)
	if q.losses != nil && category != "" {
		q.losses.Add(loss.Key{Category: category, AllShards: true, Reason: reason}, loss.Amount{Frames: sum.Frames, Bytes: sum.Bytes, Messages: sum.Messages}, now, now)
	}
}

// countLostFrames counts frames of a category that are dropped.
func (q *sendQueue) countLostFrames(category, reason string, frames []queuedFrame, now time.Time) (sum request.Amount) {
	for i := range frames {
		f := &frames[i]
		sum = sum.Plus(f.amount())
		if q.losses != nil {
			q.losses.AddFrame(category, reason, f.bytes, int64(f.messages), now)
		}
	}
	q.counts.addDropped(reason, sum)
	return sum
}

// reportLoop reports losses now and then.
func (s *Scribed) reportLoop() {
	ctx, cancel := context.WithCancel(s.ctx)
	s.keepers.Go(func() { // Close does not wait for the upstream because of reports
		<-s.accepting.Draining()
		cancel()
	})
	t := time.NewTicker(s.cfg.ReportLosses)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			s.sendDueReports(ctx, scribev1.AckLevel_ACK_LEVEL_COMMITTED)
		case <-ctx.Done():
			return
		}
	}
}

const (
	// reportsAtOnce is how many categories are reported at a time.
	reportsAtOnce = 16
	// reportTimeout bounds how long the report of one category may take until it is left for the next time.
	reportTimeout = 5 * time.Second
)

// sendDueReports sends the reports that there are to be made, each category's in one request. They wait for the upstream, here and not in
// the spool: there they would be a part of what may be dropped. What is not taken is sent again the next time.
func (s *Scribed) sendDueReports(ctx context.Context, ack scribev1.AckLevel) {
	select {
	case s.reporting <- struct{}{}:
		defer func() { <-s.reporting }()
	case <-ctx.Done():
		return
	}
	s.mu.Lock()
	todo := s.mu.queue.losses.Reports(s.now())
	alone := s.mu.queue.isUnavailable() // then one finds out whether it still is
	s.mu.Unlock()
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, reportsAtOnce)
	for _, reports := range todo {
		if alone && ack == scribev1.AckLevel_ACK_LEVEL_COMMITTED {
			s.sendReports(ctx, reports, ack)
			s.mu.Lock()
			alone = s.mu.queue.isUnavailable()
			s.mu.Unlock()
			if alone {
				return
			}
			continue
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		wg.Go(func() {
			defer func() { <-slots }()
			s.sendReports(ctx, reports, ack)
		})
	}
}

// sendReports sends those of a category, and notes what became of them.
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
			done[r] = false // the category does not exist any more, for example
			s.throttled.warn(s.ctx, "report "+r.Category, "loss report refused",
				slog.String("category", r.Category), slog.Int64("messages", r.Messages), slog.Any("error", ferr))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.queue.losses.Settle(done)
}

// lastReport is how long Close waits for the last reports.
const lastReport = time.Second

// reportAtEnd reports what was dropped since the last time, if that does not depend on an upstream that is unavailable.
func (s *Scribed) reportAtEnd(ctx context.Context) {
	s.mu.Lock()
	l := s.mu.queue.losses
	wanted := l != nil && !s.accepting.Closed() && !l.Idle() && (s.spool != nil || !s.mu.queue.isUnavailable())
	s.mu.Unlock()
	if wanted {
		ctx, cancel := context.WithTimeout(ctx, lastReport)
		defer cancel()
		s.sendDueReports(ctx, scribev1.AckLevel_ACK_LEVEL_SPOOLED)
	}
}
