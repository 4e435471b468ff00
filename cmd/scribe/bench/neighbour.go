package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"scribe/internal/transport/rpc"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

// NeighbourOptions say how much one category goes beyond its quota while others are measured.
type NeighbourOptions struct {
	Server   string
	Workload Workload
	Mode     scribev1.QuotaMode
	// Quota in bytes a second, and how many times that the category is offered.
	Quota  int64
	Excess float64
	// Quiet categories are probed, one after the other, every Every.
	Quiet    int
	Every    time.Duration
	Duration time.Duration // of each of the two phases
}

// NeighbourReport compares the latency of committed writes of quiet categories without and with a noisy one beside them.
type NeighbourReport struct {
	Mode string `json:"mode"`
	// Offered and Taken are the noisy category's traffic and what of it passed, in MB/s.
	Offered float64  `json:"offered_mb_per_second"`
	Taken   float64  `json:"taken_mb_per_second"`
	Quota   float64  `json:"quota_mb_per_second"`
	Alone   *Latency `json:"alone"`
	Beside  *Latency `json:"beside"`
}

// Neighbour measures it.
func Neighbour(ctx context.Context, o NeighbourOptions) (r NeighbourReport, err error) {
	noisy := fmt.Sprintf("noisy-%d", time.Now().UnixNano())
	if err := createNoisy(ctx, o, noisy); err != nil {
		return r, err
	}
	r = NeighbourReport{Mode: modeName(o.Mode), Quota: float64(o.Quota) / 1e6}
	// Producers are of different applications: what one buffers does not hold the other.
	quiet, err := producer.New(o.Server, producer.WithLinger(0))
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, quiet.Close(ctx)) }()
	p := &writeProbe{producer: quiet, every: o.Every}
	for i := range max(o.Quiet, 1) {
		p.categories = append(p.categories, fmt.Sprintf("%s-quiet-%d", noisy, i))
	}
	var alone, beside []time.Duration
	// The first writes create the categories and open their logs.
	warm := func(ctx context.Context) error { _, err := p.probeWrites(ctx); return err }
	if err := runFor(ctx, time.Duration(2*len(p.categories))*o.Every, warm); err != nil {
		return r, err
	}
	if err := runFor(ctx, o.Duration, func(ctx context.Context) (err error) { alone, err = p.probeWrites(ctx); return err }); err != nil {
		return r, err
	}
	loud, err := producer.New(o.Server, producer.WithDeliveryTimeout(o.Duration), producer.WithMaxBufferedBytes(16<<20))
	if err != nil {
		return r, err
	}
	l := &trafficLoad{producer: loud, workload: o.Workload, pick: func() string { return noisy }, bytesPerSecond: float64(o.Quota) * o.Excess}
	err = runFor(ctx, o.Duration, l.writeTraffic, func(ctx context.Context) (err error) { beside, err = p.probeWrites(ctx); return err })
	stats := loud.Stats()
	ended, cancel := context.WithCancel(ctx)
	cancel() // what the quota holds back is not waited for
	_ = loud.Close(ended)
	r.Offered = float64(l.bytes.Load()) / 1e6 / o.Duration.Seconds()
	r.Taken = float64(stats.Acked) / float64(max(l.messages.Load(), 1)) * r.Offered
	r.Alone, r.Beside = newLatency(alone), newLatency(beside)
	return r, err
}

func createNoisy(ctx context.Context, o NeighbourOptions, name string) error {
	transport := rpc.NewTransport(nil)
	defer transport.Close()
	_, err := rpc.NewControlClient(transport, o.Server).CreateCategory(ctx, &scribev1.CreateCategoryRequest{Category: &scribev1.Category{
		Name: name, QuotaBytesPerSecond: uint64(o.Quota), QuotaMode: o.Mode, //nolint:gosec // not negative
	}})
	return err
}

func modeName(m scribev1.QuotaMode) string {
	switch m {
	case scribev1.QuotaMode_QUOTA_MODE_THROTTLE:
		return "throttle"
	case scribev1.QuotaMode_QUOTA_MODE_SAMPLE:
		return "sample"
	case scribev1.QuotaMode_QUOTA_MODE_BLOCK, scribev1.QuotaMode_QUOTA_MODE_UNSPECIFIED:
	}
	return "block"
}

// NeighbourTable prints reports for people.
func NeighbourTable(w io.Writer, reports []NeighbourReport) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "mode\tquota MB/s\toffered\ttaken\talone p50 ms\tp99\tbeside p50\tp99\tratio p50\tp99\t")
	for _, r := range reports {
		a, b := r.Alone, r.Beside
		if a == nil || b == nil {
			return errors.New("no probe was answered")
		}
		fmt.Fprintf(tw, "%s\t%.2f\t%.1f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t\n", r.Mode, r.Quota, r.Offered, r.Taken, a.P50, a.P99, b.P50, b.P99, b.P50/a.P50, b.P99/a.P99)
	}
	return tw.Flush()
}
