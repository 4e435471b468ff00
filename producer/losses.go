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

// lossReporter tells the readers of a category what was dropped of it: sums of Drops, as reports that go to the server beside everything else.
// nil tells nothing.
type lossReporter struct {
	core    *sharedCore
	every   time.Duration
	stopped chan struct{} // closed when the goroutine has ended

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
	l.mu.ledger = loss.NewLedger(loss.ByProducer)
	return l
}

// noteDrop takes a drop. What may be stored is not told: it need not be lost.
func (l *lossReporter) noteDrop(d *Drop, now time.Time) {
	if l == nil || d.Reason == DropUnknownOutcome {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.ledger.Add(loss.Key{Category: d.Shard.Category, Shard: d.Shard.Number, Reason: string(d.Reason)},
		loss.Amount{Bytes: d.Bytes, Messages: int64(d.Messages)}, now, now)
}

// reportLoop reports now and then until the producer closes.
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

// reportLast waits for the goroutine, and reports a last time as long as ctx allows.
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

// waitStopped returns when the goroutine has ended, which the end of the core's context brings about.
func (l *lossReporter) waitStopped() {
	if l != nil {
		<-l.stopped
	}
}

// reportAll sends what there is to report, a request for each category. What is not taken is sent again the next time, as it is; after a
// request that failed as a whole the rest waits, too.
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

// sendReports sends the reports of a category; false when the server is not there for the moment.
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
		case !retry.Retryable(ferr) && rpc.ReasonOf(ferr) != scribev1.Reason_REASON_UNSPECIFIED:
			done[r] = false // there is no such category, for example
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.ledger.Settle(done)
	return err == nil || len(done) > 0
}
