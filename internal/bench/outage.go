package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"scribe/producer"
)

// OutageOptions say how a host's agent is measured while its backend is away.
type OutageOptions struct {
	// Agent is its address.
	Agent string
	// Down takes the backend away, Up brings it back.
	Down, Up func(context.Context) error
	Workload Workload
	// BytesPerSecond that applications of the host write all the time, half of it acknowledged `none`, half `spooled`.
	BytesPerSecond float64
	// Normal is how long things are normal, Outage how long the backend is away.
	Normal, Outage time.Duration
	// Every is the pause between two writes whose latency is measured.
	Every time.Duration
}

// OutageReport compares what writers notice in the three phases.
type OutageReport struct {
	MBPerSecond float64 `json:"mb_per_second"`
	Seconds     float64 `json:"outage_seconds"`
	// BacklogMB is what the agent held on disk when the backend came back, DrainSeconds how long it took to forward it beside live
	// traffic.
	BacklogMB    float64 `json:"backlog_mb"`
	DrainSeconds float64 `json:"drain_seconds"`
	// Lost is how many messages were not acknowledged in all phases.
	Lost int64 `json:"lost_messages"`
	// Spooled is the latency of spooled writes in each phase, Committed that of committed ones, which an outage stops.
	SpooledNormal   *Latency `json:"spooled_normal"`
	SpooledOutage   *Latency `json:"spooled_outage"`
	SpooledDrain    *Latency `json:"spooled_drain"`
	CommittedNormal *Latency `json:"committed_normal"`
	CommittedDrain  *Latency `json:"committed_drain"`
}

// backlogMetric is what the agent holds on disk that it has not forwarded.
const backlogMetric = "scribe_scribed_spool_held_bytes"

// drained is below how many bytes a backlog counts as forwarded: live traffic passes through the disk, too.
const drained = 4 << 20

// Outage measures it.
func Outage(ctx context.Context, o OutageOptions) (r OutageReport, err error) {
	r = OutageReport{MBPerSecond: o.BytesPerSecond / 1e6, Seconds: o.Outage.Seconds()}
	var lost atomic.Int64
	drop := producer.WithOnDrop(func(d producer.Drop) { lost.Add(int64(d.Messages)) })
	app, err := producer.New(o.Agent, producer.WithAck(producer.AckNone), drop)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, app.Close(ctx)) }()
	spooled := &probe{producer: app.WithCallAck(producer.AckSpooled), categories: []string{"outage.probe"}, every: o.Every}
	committed := &probe{producer: app.WithCallAck(producer.AckCommitted), categories: []string{"outage.committed"}, every: o.Every}
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 2)
	for i, p := range []*producer.Producer{app, app.WithCallAck(producer.AckSpooled)} {
		l := &load{producer: p, workload: o.Workload, bytesPerSecond: o.BytesPerSecond / 2, wait: true, pick: func() string { return fmt.Sprintf("outage.load-%d", i) }}
		go func() { ended <- l.run(running) }()
	}
	both := func(ctx context.Context, d time.Duration) (s, c []time.Duration, err error) {
		err = together(ctx, d,
			func(ctx context.Context) (err error) { s, err = spooled.run(ctx); return err },
			func(ctx context.Context) (err error) { c, err = committed.run(ctx); return err })
		return s, c, err
	}
	if _, _, err := both(ctx, time.Second); err != nil { // categories are created, logs opened
		return r, err
	}
	s, c, err := both(ctx, o.Normal)
	if err != nil {
		return r, fmt.Errorf("before the outage: %w", err)
	}
	r.SpooledNormal, r.CommittedNormal = newLatency(s), newLatency(c)
	if err := o.Down(ctx); err != nil {
		return r, fmt.Errorf("take the backend away: %w", err)
	}
	s = nil
	if err := together(ctx, o.Outage, func(ctx context.Context) (err error) { s, err = spooled.run(ctx); return err }); err != nil {
		return r, fmt.Errorf("in the outage: %w", err)
	}
	r.SpooledOutage = newLatency(s)
	if err := o.Up(ctx); err != nil {
		return r, fmt.Errorf("bring the backend back: %w", err)
	}
	if err := o.drain(ctx, &r, both); err != nil {
		return r, fmt.Errorf("after the outage: %w", err)
	}
	stop()
	err = errors.Join(<-ended, <-ended, app.Flush(ctx))
	r.Lost = lost.Load()
	return r, err
}

// drain measures until the backlog is forwarded.
func (o *OutageOptions) drain(ctx context.Context, r *OutageReport, both func(context.Context, time.Duration) (s, c []time.Duration, err error)) error {
	now, err := scrape(ctx, o.Agent)
	if err != nil {
		return err
	}
	r.BacklogMB = now[backlogMetric] / 1e6
	var spooled, committed []time.Duration
	begin := time.Now()
	for now[backlogMetric] > drained || len(committed) == 0 {
		s, c, err := both(ctx, time.Second)
		if err != nil {
			return err
		}
		spooled, committed = append(spooled, s...), append(committed, c...)
		if now, err = scrape(ctx, o.Agent); err != nil {
			return err
		}
	}
	r.DrainSeconds = time.Since(begin).Seconds()
	r.SpooledDrain, r.CommittedDrain = newLatency(spooled), newLatency(committed)
	return nil
}

// Print writes the report for people.
func (r *OutageReport) Print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "traffic\t%.1f MB/s\n", r.MBPerSecond)
	fmt.Fprintf(tw, "outage\t%.0f s\n", r.Seconds)
	fmt.Fprintf(tw, "backlog\t%.1f MB, forwarded in %.1f s\n", r.BacklogMB, r.DrainSeconds)
	fmt.Fprintf(tw, "messages lost\t%d\n", r.Lost)
	for _, row := range []struct {
		name string
		l    *Latency
	}{
		{"spooled, normal", r.SpooledNormal},
		{"spooled, outage", r.SpooledOutage},
		{"spooled, while draining", r.SpooledDrain},
		{"committed, normal", r.CommittedNormal},
		{"committed, while draining", r.CommittedDrain},
	} {
		if row.l != nil {
			fmt.Fprintf(tw, "%s\tp50 %.2f ms, p99 %.2f ms, max %.1f ms\n", row.name, row.l.P50, row.l.P99, row.l.Max)
		}
	}
	return tw.Flush()
}
