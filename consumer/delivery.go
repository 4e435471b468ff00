package consumer

import (
	"cmp"
	"context"
	"os"
	"sync"
	"time"

	"scribe/internal/format/delivery"
	"scribe/internal/format/record"
	"scribe/internal/transport/counting"
)

// WriteService takes counts of deliveries: an RPC client, or, in one process, the role itself.
type WriteService = counting.Service

// WithDeliveryReports counts the messages that the loop is given, by producer and minute, and writes the counts in each interval to the category
// _delivery, from which "scribe audit" says what a group or a reader was given (docs/format/delivery.md). They are under the group's name, or that of
// [WithName]. A message that is delivered again counts again. Rows of batches of columns do not count. What a crash of the program takes is at most what it had
// counted since the last interval. The default, 0, writes none.
func WithDeliveryReports(every time.Duration) Option {
	return func(c *consumerOptions) { c.countDelivery = every }
}

// WithWriteService sets where counts of deliveries are written, beside [WithServices].
func WithWriteService(writes WriteService) Option {
	return func(c *consumerOptions) { c.writes = writes }
}

// deliveryCounter counts what a consumer delivers. A nil counter counts nothing.
type deliveryCounter struct {
	*counting.Reporter
	category, reader string

	once    sync.Once
	cancel  context.CancelFunc // ends the goroutine
	stopped chan struct{}      // closed when it has ended
}

// lastCounts bounds how long Close waits until the last counts are written.
const lastCounts = time.Second

// startCounting returns a running counter; nil if none is wanted, or nobody takes its counts.
func (c *Consumer) startCounting(writes WriteService) *deliveryCounter {
	every := c.cfg.countDelivery
	if every == 0 || writes == nil {
		return nil
	}
	host, err := os.Hostname()
	if err != nil {
		host = "" // it is unknown
	}
	d := &deliveryCounter{
		category: c.category, reader: cmp.Or(c.cfg.group.name, c.cfg.name, "reader"), stopped: make(chan struct{}),
		Reporter: counting.NewReporter(delivery.NewLedger(delivery.Reader, host, "", c.cfg.random), every, c.cfg.now, counting.Sender{
			Service: writes, Timeout: c.cfg.requestTimeout, Renews: c.cfg.renews,
		}),
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	go func() {
		defer close(d.stopped)
		d.Run(ctx)
	}()
	return d
}

// noteFrame counts messages of a frame that were delivered.
func (d *deliveryCounter) noteFrame(h *record.Header, messages int) {
	if d != nil && messages > 0 {
		d.Add(delivery.Key{Category: d.category, Producer: h.Producer, Minute: delivery.MinuteOf(h.BaseTime), Reader: d.reader}, delivery.Counts{Delivered: int64(messages)})
	}
}

// close writes the last counts, for a moment.
func (d *deliveryCounter) close() {
	if d == nil {
		return
	}
	d.once.Do(func() {
		d.cancel()
		<-d.stopped
		ctx, cancel := context.WithTimeout(context.Background(), lastCounts)
		defer cancel()
		d.ReportRest(ctx)
	})
}
