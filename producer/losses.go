package producer

import (
	"context"
	"sync"
	"time"

	"scribe/internal/format/loss"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// lossReporter writes loss reports: sums of Drops that tell the readers of a category which messages were dropped. They are sent
// in requests of their own. A nil reporter does nothing.
type lossReporter struct {
	core    *sharedCore
	every   time.Duration
	stopped chan struct{} // closed when reportLoop has returned

	mu struct {
		sync.Mutex
		ledger *loss.Ledger
	}
}

func newLossReporter(c *sharedCore, every time.Duration) *lossReporter {
	if every == 0 {
		return nil
	}
	l := &lossReporter{core: c, every: every, stopped: make(chan struct{})}
	l.mu.ledger = loss.NewLedger(loss.ByProducer, c.cfg.random)
	l.mu.ledger.NameReporter(c.cfg.hostName(), "")
	return l
}

// noteDrop adds a drop to the next report. Drops with an unknown outcome are not reported, since the messages may be stored.
func (l *lossReporter) noteDrop(d *Drop, now time.Time) {
	if l == nil || d.Reason == DropUnknownOutcome {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.ledger.Add(loss.Key{Category: d.Shard.Category, Shard: d.Shard.Number, Reason: string(d.Reason)},
		loss.Amount{Bytes: d.Bytes, Messages: int64(d.Messages)}, now, now)
}

// reportLoop sends reports at each interval until the producer closes.
func (l *lossReporter) reportLoop() {
	defer close(l.stopped)
	t := time.NewTicker(l.every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			l.reportAll(l.core.ctx)
		case <-l.core.closing.Done():
			return
		}
	}
}

// reportLast waits for reportLoop and sends the last reports, until ctx ends.
func (l *lossReporter) reportLast(ctx context.Context) {
	if l == nil {
		return
	}
	select {
	case <-l.stopped:
		l.reportAll(ctx)
	case <-ctx.Done():
	}
}

// reportAll sends the pending reports, in one request for each category. Reports that fail are sent again unchanged the next
// time. After a request that failed as a whole, the remaining reports also wait.
func (l *lossReporter) reportAll(ctx context.Context) {
	l.mu.Lock()
	todo := l.mu.ledger.Reports(l.core.clock.readTime())
	l.mu.Unlock()
	for _, reports := range todo {
		if ctx.Err() != nil || !l.sendReports(ctx, reports) {
			return
		}
	}
}

// sendReports sends the reports of a category. It returns false if the server is unavailable.
func (l *lossReporter) sendReports(ctx context.Context, reports []*loss.Pending) bool {
	ctx, cancel := context.WithTimeout(ctx, l.core.cfg.requestTimeout)
	defer cancel()
	var frames []byte
	for _, r := range reports {
		frames = append(frames, r.Frame...)
	}
	res, err := l.core.service.Write(ctx, &scribev1.WriteRequest{Frames: frames, Ack: scribev1.AckLevel_ACK_LEVEL_COMMITTED})
	done := make(map[*loss.Pending]bool, len(reports))
	for i, r := range reports {
		ferr := err
		if err == nil && i < len(res.GetResults()) {
			ferr = rpc.FromInfo(res.GetResults()[i].GetError())
		}
		switch {
		case ferr == nil:
			done[r] = true
		case l.core.renews && retry.IsLapsed(ferr): // the next token may be taken
		case !retry.Retryable(ferr) && rpc.ReasonOf(ferr) != scribev1.Reason_REASON_UNSPECIFIED:
			done[r] = false // permanent failure, such as an unknown category
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.ledger.Settle(done)
	return err == nil || len(done) > 0
}
