package producer

import (
	"context"
	"time"

	"scribe/internal/format/delivery"
	"scribe/internal/transport/counting"
)

// deliveryReporter counts what the producer takes and what becomes of it, by category and minute, and writes the counts as rows of the category
// _delivery (docs/format/delivery.md), in requests of their own. A nil reporter does nothing.
type deliveryReporter struct {
	*counting.Reporter
	core    *sharedCore
	stopped chan struct{} // closed when reportLoop has returned
}

func newDeliveryReporter(c *sharedCore, every time.Duration) *deliveryReporter {
	if every == 0 {
		return nil
	}
	return &deliveryReporter{
		core: c, stopped: make(chan struct{}),
		Reporter: counting.NewReporter(delivery.NewLedger(delivery.Library, c.cfg.hostName(), "", c.cfg.random), every, c.clock.readTime, counting.Sender{
			Service: c.service, Timeout: c.cfg.requestTimeout, Renews: c.renews,
		}),
	}
}

// noteFrame adds to what is counted of a frame's messages. A mutex of a stripe may be held.
func (d *deliveryReporter) noteFrame(category string, begun time.Time, c delivery.Counts) {
	d.addCounts(category, begun, "", c)
}

// noteFailed counts the messages of a frame that failed.
func (d *deliveryReporter) noteFailed(category string, f *outFrame, err error) {
	d.addCounts(category, f.base, string(reasonOf(err)), delivery.Counts{Dropped: int64(f.messages)})
}

// noteRefused counts a message that Log refused: its program believes that it was produced.
func (d *deliveryReporter) noteRefused(category string, reason DropReason, now time.Time) {
	d.addCounts(category, now, "", delivery.Counts{Produced: 1})
	d.addCounts(category, now, string(reason), delivery.Counts{Dropped: 1})
}

func (d *deliveryReporter) addCounts(category string, at time.Time, reason string, c delivery.Counts) {
	if d != nil {
		d.Add(delivery.Key{Category: category, Producer: d.core.id, Minute: delivery.MinuteOf(at.UnixMicro()), Reason: reason}, c)
	}
}

// reportLoop sends counts at each interval until the producer closes.
func (d *deliveryReporter) reportLoop() {
	defer close(d.stopped)
	d.Run(d.core.closing)
}

// lastReport bounds how long Close waits until the last counts are taken.
const lastReport = time.Second

// reportLast sends the last counts, also when Close was not given the time to deliver everything. The producer is closing.
func (d *deliveryReporter) reportLast() {
	if d == nil {
		return
	}
	<-d.stopped // it does not wait for a request
	ctx, cancel := context.WithTimeout(context.Background(), lastReport)
	defer cancel()
	d.ReportRest(ctx)
}
