package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"scribe/consumer"
	"scribe/internal/base/backoff"
	"scribe/internal/base/units"
	"scribe/producer"
)

// FailoverOptions say how often the node that leads the metadata logs ends.
type FailoverOptions struct {
	// Kills is how often it is killed, Stops how often it is stopped in order.
	Kills, Stops int
	// Every is the pause of each client between a committed write and its next.
	Every units.Duration
	// Settle is how long is measured after each end at least, and how long all nodes have run before the next.
	Settle units.Duration
}

// FailoverReport is what clients noticed. There is one for each node, which has that node first in its list of addresses: what counts is the
// longest gap that any of them had.
type FailoverReport struct {
	Kills *FailoverGaps `json:"kills,omitempty"`
	Stops *FailoverGaps `json:"stops,omitempty"`
	// Messages were acknowledged. Lost were not delivered although they were, Repeated more than once.
	Messages int64 `json:"messages"`
	Lost     int64 `json:"lost_messages"`
	Repeated int64 `json:"repeated_messages"`
}

// FailoverGaps are the longest gaps between two acknowledgements, and between two deliveries, of each time that a node ended, in seconds.
type FailoverGaps struct {
	Writes     []float64 `json:"write_gaps_seconds"`
	Deliveries []float64 `json:"delivery_gaps_seconds"`
}

// gapMeter measures the longest time between two events.
type gapMeter struct {
	mu      sync.Mutex
	last    time.Time
	longest time.Duration
}

// noteMessage takes note of an event.
func (g *gapMeter) noteMessage(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.longest, g.last = max(g.longest, now.Sub(g.last)), now
}

// take returns the longest gap since it was last called, the one that lasts included, and begins anew.
func (g *gapMeter) take(now time.Time) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	longest := max(g.longest, now.Sub(g.last))
	g.longest = 0
	return longest
}

// since reports whether there was an event after a time.
func (g *gapMeter) since(t time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last.After(t)
}

// failoverClient writes numbered messages to a category of its own, one after another, and reads them.
type failoverClient struct {
	servers, category string
	every             time.Duration
	written           atomic.Int64 // numbers below are acknowledged
	acks, deliveries  gapMeter
	// seen counts deliveries by number. Only the reader uses it, until it has ended.
	seen map[uint64]int64
}

// write writes until ctx ends.
func (c *failoverClient) write(ctx context.Context) (err error) {
	p, err := producer.New(c.servers, producer.WithLinger(0))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close(context.WithoutCancel(ctx))) }()
	for {
		number := uint64(c.written.Load()) //nolint:gosec // not negative
		// A started write completes, so that what was acknowledged is known.
		if err := p.Write(context.WithoutCancel(ctx), c.category, producer.Message{Payload: binary.LittleEndian.AppendUint64(nil, number)}); err != nil {
			return fmt.Errorf("write to %s: %w", c.servers, err)
		}
		c.acks.noteMessage(time.Now())
		c.written.Add(1)
		if backoff.Sleep(ctx, c.every) != nil {
			return nil
		}
	}
}

// read reads until ctx ends.
func (c *failoverClient) read(ctx context.Context) (err error) {
	r, err := consumer.New(c.servers, c.category, consumer.WithStart(consumer.Earliest()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for rec, err := range r.Records(ctx) {
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("read from %s: %w", c.servers, err)
		case len(rec.Payload) != 8:
			return fmt.Errorf("read from %s: a message that nobody has written", c.servers)
		}
		c.deliveries.noteMessage(time.Now())
		c.seen[binary.LittleEndian.Uint64(rec.Payload)]++
	}
	return nil
}

// failoverRun is a measurement under way.
type failoverRun struct {
	FailoverOptions

	fleet   *Fleet
	clients []*failoverClient
	report  FailoverReport
}

// Failover measures it with a cell of nodes.
func Failover(ctx context.Context, fleet *Fleet, o FailoverOptions) (FailoverReport, error) {
	r := &failoverRun{FailoverOptions: o, fleet: fleet}
	var writes, reads []func(context.Context) error
	for i := range fleet.nodes {
		c := &failoverClient{
			servers: fleet.servers(i), category: fmt.Sprintf("failover-%d-%d", time.Now().UnixNano(), i), every: o.Every.Std(), seen: map[uint64]int64{},
		}
		if err := c.startWriting(ctx); err != nil {
			return r.report, err
		}
		r.clients = append(r.clients, c)
		writes, reads = append(writes, c.write), append(reads, c.read)
	}
	err := runDuring(ctx, func(ctx context.Context) error {
		if err := runDuring(ctx, r.endNodes, writes...); err != nil {
			return err
		}
		return r.awaitDelivered(ctx)
	}, reads...)
	r.countMessages()
	return r.report, err
}

// startWriting creates the category with its first message.
func (c *failoverClient) startWriting(ctx context.Context) (err error) {
	p, err := producer.New(c.servers, producer.WithLinger(0))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close(ctx)) }()
	err = p.Write(ctx, c.category, producer.Message{Payload: binary.LittleEndian.AppendUint64(nil, 0)})
	c.written.Store(1)
	return err
}

// endNodes ends the node that leads, again and again.
func (r *failoverRun) endNodes(ctx context.Context) (err error) {
	if r.report.Kills, err = r.measureGaps(ctx, r.Kills, r.fleet.Kill); err != nil {
		return fmt.Errorf("kill the node that leads: %w", err)
	}
	if r.report.Stops, err = r.measureGaps(ctx, r.Stops, r.fleet.Stop); err != nil {
		return fmt.Errorf("stop the node that leads: %w", err)
	}
	return nil
}

// measureGaps ends the node that leads n times, and starts it again.
func (r *failoverRun) measureGaps(ctx context.Context, n int, end func(int) error) (*FailoverGaps, error) {
	if n == 0 {
		return nil, nil
	}
	gaps := &FailoverGaps{}
	for range n {
		if _, err := r.fleet.awaitSettled(ctx); err != nil {
			return gaps, err
		}
		if err := backoff.Sleep(ctx, r.Settle.Std()); err != nil {
			return gaps, err
		}
		leader, err := r.fleet.awaitSettled(ctx)
		if err != nil {
			return gaps, err
		}
		r.takeGaps()
		began := time.Now()
		if err := end(leader); err != nil {
			return gaps, err
		}
		if err := r.awaitClients(ctx, began.Add(r.Settle.Std())); err != nil {
			return gaps, err
		}
		write, delivery := r.takeGaps()
		gaps.Writes, gaps.Deliveries = append(gaps.Writes, write.Seconds()), append(gaps.Deliveries, delivery.Seconds())
		if err := r.fleet.Restart(ctx, leader); err != nil {
			return gaps, err
		}
	}
	return gaps, nil
}

// takeGaps returns the longest gaps of any client since it was last called.
func (r *failoverRun) takeGaps() (write, delivery time.Duration) {
	now := time.Now()
	for _, c := range r.clients {
		write, delivery = max(write, c.acks.take(now)), max(delivery, c.deliveries.take(now))
	}
	return write, delivery
}

// awaitClients waits until all clients have written and read after a time.
func (r *failoverRun) awaitClients(ctx context.Context, t time.Time) error {
	for {
		waiting := slices.ContainsFunc(r.clients, func(c *failoverClient) bool { return !c.acks.since(t) || !c.deliveries.since(t) })
		if !waiting {
			return nil
		}
		if err := backoff.Sleep(ctx, look); err != nil {
			return err
		}
	}
}

// drainLimit bounds how long the last messages may take to be delivered.
const drainLimit = 30 * time.Second

// awaitDelivered waits until nothing has been delivered for a while, after the writers have ended.
func (r *failoverRun) awaitDelivered(ctx context.Context) error {
	for began := time.Now(); time.Since(began) < drainLimit; {
		if err := backoff.Sleep(ctx, time.Second); err != nil {
			return err
		}
		if idle := time.Now().Add(-2 * time.Second); !slices.ContainsFunc(r.clients, func(c *failoverClient) bool { return c.deliveries.since(idle) }) {
			return nil
		}
	}
	return nil
}

func (r *failoverRun) countMessages() {
	for _, c := range r.clients {
		written := c.written.Load()
		r.report.Messages += written
		for number := range uint64(written) { //nolint:gosec // not negative
			if n := c.seen[number]; n > 0 {
				r.report.Repeated += n - 1
			} else {
				r.report.Lost++
			}
		}
	}
}

// Print writes the report for people.
func (r *FailoverReport) Print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "end of the leading node\ttimes\twrites: median s\tp90\tmax\tdeliveries: median s\tp90\tmax\t")
	for _, row := range []struct {
		name string
		gaps *FailoverGaps
	}{{"kill -9", r.Kills}, {"SIGTERM", r.Stops}} {
		if row.gaps == nil {
			continue
		}
		fmt.Fprintf(tw, "%s\t%d\t", row.name, len(row.gaps.Writes))
		for _, gaps := range [][]float64{row.gaps.Writes, row.gaps.Deliveries} {
			l := newLatency(secondsOf(gaps))
			fmt.Fprintf(tw, "%.2f\t%.2f\t%.2f\t", l.P50/1e3, l.P90/1e3, l.Max/1e3)
		}
		fmt.Fprintln(tw)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d messages acknowledged, %d lost, %d delivered again\n", r.Messages, r.Lost, r.Repeated)
	return err
}

func secondsOf(values []float64) []time.Duration {
	out := make([]time.Duration, len(values))
	for i, v := range values {
		out[i] = time.Duration(v * float64(time.Second))
	}
	return out
}
