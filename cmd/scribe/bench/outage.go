package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"scribe/consumer"
	"scribe/internal/base/backoff"
	"scribe/internal/base/units"
	"scribe/producer"
)

// OutageOptions say how a host's agent is measured while its backend is away.
type OutageOptions struct {
	// Agent is its address, Cell that of its backend, which must be new.
	Agent, Cell string
	// Down takes the backend away, Up brings it back with everything that it had.
	Down, Up func(context.Context) error
	Workload Workload
	// BytesPerSecond of payload that applications of the host write all the time, half of it acknowledged `none`, half `spooled`.
	BytesPerSecond units.Bytes
	// Normal is how long things are normal, Outage how long the backend is away.
	Normal, Outage units.Duration
	// Every is the pause between two writes whose latency is measured.
	Every units.Duration
}

// OutageReport compares what writers notice before, in and after an outage. An outage lasts from the moment when the backend begins to
// go until it has committed the first write again.
type OutageReport struct {
	MBPerSecond float64 `json:"mb_per_second"`
	// Seconds of the outage, of which BackSeconds from when the backend was there again to the first write that it committed.
	Seconds     float64 `json:"outage_seconds"`
	BackSeconds float64 `json:"back_seconds"`
	// BacklogMB is what the agent held on disk only when the backend was there again, DrainSeconds how long it took from then on to
	// forward that beside live traffic.
	BacklogMB    float64 `json:"backlog_mb"`
	DrainSeconds float64 `json:"drain_seconds"`
	// Messages were written by the applications. Refused were not acknowledged, Lost are not in the cell in the end although they
	// were, Repeated are there more than once.
	Messages int64 `json:"messages"`
	Refused  int64 `json:"refused_messages"`
	Lost     int64 `json:"lost_messages"`
	Repeated int64 `json:"repeated_messages"`
	// Latency of writes in each phase by level; an outage stops committed ones.
	None      OutageLatency `json:"none"`
	Spooled   OutageLatency `json:"spooled"`
	Committed OutageLatency `json:"committed"`
}

// OutageLatency is that of one acknowledgement level before the outage, in it, and while the backlog drains; nil = not measured.
type OutageLatency struct {
	Normal *Latency `json:"normal"`
	Outage *Latency `json:"outage,omitempty"`
	Drain  *Latency `json:"drain"`
}

// DrainRatio is how much longer the median write takes while the backlog drains than normally; 0 = not known.
func (l *OutageLatency) DrainRatio() float64 {
	if l.Normal == nil || l.Drain == nil || l.Normal.P50 == 0 {
		return 0
	}
	return l.Drain.P50 / l.Normal.P50
}

const (
	// backlogMetric is what the agent has on disk only and has not forwarded, heldMetric everything that it has not forwarded.
	backlogMetric = `scribe_scribed_buffered_bytes{where="spool"}`
	heldMetric    = "scribe_scribed_buffered_frames"
	// look is how often the agent's metrics are read while something is waited for.
	look = 200 * time.Millisecond
	// drainSamples is for how long at least the latency beside the backlog is measured, if there is next to none.
	drainSamples = time.Second
)

// outageRun is a measurement under way.
type outageRun struct {
	OutageOptions

	probes [3]*writeProbe // none, spooled, committed
	loads  []*trafficLoad
	back   time.Time // when the backend was there again
	r      OutageReport
}

// Outage measures it.
func Outage(ctx context.Context, opts OutageOptions) (r OutageReport, err error) {
	o := &outageRun{OutageOptions: opts}
	// The probes and the load are different applications: what one buffers does not hold the other.
	var refused atomic.Int64
	app, err := producer.New(o.Agent, producer.WithAck(producer.AckNone), producer.WithMaxBufferedBytes(buffered),
		producer.WithOnDrop(func(d producer.Drop) { refused.Add(int64(d.Messages)) }))
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, app.Close(ctx)) }()
	quick, err := producer.New(o.Agent, producer.WithLinger(0))
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, quick.Close(ctx)) }()
	for i, level := range []producer.AckLevel{producer.AckNone, producer.AckSpooled, producer.AckCommitted} {
		o.probes[i] = &writeProbe{producer: quick.WithCallAck(level), categories: []string{"outage.probe-" + level.String()}, every: o.Every.Std()}
	}
	for _, level := range []producer.AckLevel{producer.AckNone, producer.AckSpooled} {
		category := "outage.load-" + level.String()
		o.loads = append(o.loads, &trafficLoad{
			producer: app.WithCallAck(level), workload: o.Workload, bytesPerSecond: float64(o.BytesPerSecond) / 2, wait: true, numbered: true,
			pick: func() string { return category },
		})
	}
	if err := runDuring(ctx, o.measurePhases, o.loads[0].writeTraffic, o.loads[1].writeTraffic); err != nil {
		return r, err
	}
	if err := app.Flush(ctx); err != nil {
		return r, err
	}
	o.r.Refused = refused.Load()
	err = o.countLost(ctx)
	return o.r, err
}

// measurePhases measures one after the other, while the load runs.
func (o *outageRun) measurePhases(ctx context.Context) error {
	begin := time.Now()
	pause := func(d time.Duration) func(context.Context) error {
		return func(ctx context.Context) error { return backoff.Sleep(ctx, d) }
	}
	none, spooled, committed := &o.r.None, &o.r.Spooled, &o.r.Committed
	for _, phase := range []struct {
		when    string
		run     func(context.Context) error
		results []**Latency // by probe
	}{
		// Categories are created, logs opened, before anything is measured.
		{"at the beginning", pause(time.Second), []**Latency{new(*Latency), new(*Latency), new(*Latency)}},
		{"before the outage", pause(o.Normal.Std()), []**Latency{&none.Normal, &spooled.Normal, &committed.Normal}},
		{"in the outage", o.runOutage, []**Latency{&none.Outage, &spooled.Outage}},
		{"after the outage", o.awaitDrain, []**Latency{&none.Drain, &spooled.Drain, &committed.Drain}},
	} {
		var runs []func(context.Context) error
		for i := range phase.results {
			runs = append(runs, o.probes[i].probeWrites)
		}
		if err := runDuring(ctx, phase.run, runs...); err != nil {
			return fmt.Errorf("%s: %w", phase.when, err)
		}
		for i, result := range phase.results {
			*result = o.probes[i].takeLatency()
		}
	}
	var bytes int64
	for _, l := range o.loads {
		bytes += l.bytes.Load()
	}
	o.r.MBPerSecond = float64(bytes) / 1e6 / time.Since(begin).Seconds()
	return nil
}

// runOutage is the outage.
func (o *outageRun) runOutage(ctx context.Context) error {
	begin := time.Now()
	if err := o.Down(ctx); err != nil {
		return fmt.Errorf("take the backend away: %w", err)
	}
	if err := backoff.Sleep(ctx, o.Outage.Std()); err != nil {
		return err
	}
	// Not later: a small backlog may be forwarded before anything else is committed.
	now, err := scrapeMetrics(ctx, o.Agent)
	if err != nil {
		return err
	}
	o.r.BacklogMB = now[backlogMetric] / 1e6
	if err := o.Up(ctx); err != nil {
		return fmt.Errorf("bring the backend back: %w", err)
	}
	o.back = time.Now()
	probe := o.probes[2]
	if err := probe.producer.Write(ctx, probe.categories[0], producer.Message{Payload: []byte("back")}); err != nil {
		return fmt.Errorf("the first write to be committed: %w", err)
	}
	o.r.BackSeconds, o.r.Seconds = time.Since(o.back).Seconds(), time.Since(begin).Seconds()
	return nil
}

// awaitDrain returns when the backlog is forwarded.
func (o *outageRun) awaitDrain(ctx context.Context) error {
	begin := time.Now()
	if err := o.awaitZero(ctx, backlogMetric); err != nil {
		return err
	}
	o.r.DrainSeconds = time.Since(o.back).Seconds()
	return backoff.Sleep(ctx, drainSamples-time.Since(begin))
}

// awaitZero waits until a metric of the agent is 0.
func (o *outageRun) awaitZero(ctx context.Context, metric string) error {
	for {
		now, err := scrapeMetrics(ctx, o.Agent)
		if err != nil || now[metric] == 0 {
			return err
		}
		if err := backoff.Sleep(ctx, look); err != nil {
			return err
		}
	}
}

// countLost reads what the load has written back from the cell, when the agent has forwarded everything.
func (o *outageRun) countLost(ctx context.Context) error {
	if err := o.awaitZero(ctx, heldMetric); err != nil {
		return err
	}
	missing := int64(0)
	for _, l := range o.loads {
		written := l.messages.Load()
		o.r.Messages += written
		there, repeated, err := o.countStored(ctx, l.pick(), written)
		if err != nil {
			return err
		}
		missing += written - there
		o.r.Repeated += repeated
	}
	o.r.Lost = max(missing-o.r.Refused, 0) // some that were refused may be there after all
	return nil
}

// countStored counts the numbers from 0 to below written that a category has, and messages that have one again.
func (o *outageRun) countStored(ctx context.Context, category string, written int64) (there, repeated int64, err error) {
	c, err := consumer.New(o.Cell, category, consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd())
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	seen := make([]bool, written)
	for rec, err := range c.Records(ctx) {
		if err != nil {
			return 0, 0, fmt.Errorf("read %s: %w", category, err)
		}
		n := uint64(written) //nolint:gosec // not negative
		if len(rec.Payload) >= stampLen {
			n = binary.LittleEndian.Uint64(rec.Payload)
		}
		switch {
		case n >= uint64(written): //nolint:gosec // not negative
			return 0, 0, fmt.Errorf("read %s: a message that nobody has written", category)
		case seen[n]:
			repeated++
		default:
			seen[n] = true
			there++
		}
	}
	return there, repeated, nil
}

// Print writes the report for people.
func (r *OutageReport) Print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%.1f MB/s, backend away for %.1f s, of which %.1f s after it was there again\n", r.MBPerSecond, r.Seconds, r.BackSeconds)
	fmt.Fprintf(w, "backlog %.1f MB, forwarded in %.1f s\n", r.BacklogMB, r.DrainSeconds)
	fmt.Fprintf(w, "%d messages written, %d refused, %d lost, %d stored again\n", r.Messages, r.Refused, r.Lost, r.Repeated)
	fmt.Fprintln(tw, "level\tnormal p50 ms\tp99\tmax\toutage p50\tp99\tmax\tdraining p50\tp99\tmax\tratio p50\t")
	for _, row := range []struct {
		name string
		l    *OutageLatency
	}{{"none", &r.None}, {"spooled", &r.Spooled}, {"committed", &r.Committed}} {
		fmt.Fprintf(tw, "%s\t", row.name)
		for _, l := range []*Latency{row.l.Normal, row.l.Outage, row.l.Drain} {
			if l == nil {
				fmt.Fprint(tw, "-\t-\t-\t")
				continue
			}
			fmt.Fprintf(tw, "%.2f\t%.2f\t%.1f\t", l.P50, l.P99, l.Max)
		}
		fmt.Fprintf(tw, "%.2f\t\n", row.l.DrainRatio())
	}
	return tw.Flush()
}
