package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"scribe/internal/base/units"
	"scribe/internal/transport/rpc"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

// NeighbourOptions say how much one category goes beyond its quota while others are measured.
type NeighbourOptions struct {
	Workload Workload
	Mode     scribev1.QuotaMode
	// Quota in bytes a second, and how many times that the category is offered.
	Quota  units.Bytes
	Excess float64
	// Quiet categories are probed, one after the other, every Every.
	Quiet    int
	Every    units.Duration
	Duration units.Duration // of each of the two phases
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
func Neighbour(ctx context.Context, server string, o NeighbourOptions) (r NeighbourReport, err error) {
	noisy := fmt.Sprintf("noisy-%d", time.Now().UnixNano())
	c := &scribev1.Category{Name: noisy, QuotaBytesPerSecond: uint64(o.Quota), QuotaMode: o.Mode} //nolint:gosec // not negative
	if err := createCategory(ctx, rpc.NewControlClient(rpc.Default(), server), c); err != nil {
		return r, err
	}
	r = NeighbourReport{Mode: scribev1.EnumName(o.Mode), Quota: float64(o.Quota) / 1e6}
	// Producers are of different applications: what one buffers does not hold the other.
	quiet, err := producer.New(server, producer.WithLinger(0))
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, quiet.Close(ctx)) }()
	p := &writeProbe{producer: quiet, every: o.Every.Std()}
	for i := range max(o.Quiet, 1) {
		p.categories = append(p.categories, fmt.Sprintf("%s-quiet-%d", noisy, i))
	}
	// The first writes create the categories and open their logs.
	if err := runFor(ctx, time.Duration(2*len(p.categories))*o.Every.Std(), p.probeWrites); err != nil {
		return r, err
	}
	p.takeLatency()
	if err := runFor(ctx, o.Duration.Std(), p.probeWrites); err != nil {
		return r, err
	}
	r.Alone = p.takeLatency()
	loud, err := producer.New(server, producer.WithDeliveryTimeout(o.Duration.Std()), producer.WithMaxBufferedBytes(16<<20))
	if err != nil {
		return r, err
	}
	l := &trafficLoad{producer: loud, workload: o.Workload, pick: func() string { return noisy }, bytesPerSecond: float64(o.Quota) * o.Excess}
	err = runFor(ctx, o.Duration.Std(), l.writeTraffic, p.probeWrites)
	stats := loud.Stats()
	ended, cancel := context.WithCancel(ctx)
	cancel() // what the quota holds back is not waited for
	_ = loud.Close(ended)
	r.Offered = float64(l.bytes.Load()) / 1e6 / o.Duration.Std().Seconds()
	r.Taken = float64(stats.Acked) / float64(max(l.messages.Load(), 1)) * r.Offered
	r.Beside = p.takeLatency()
	return r, err
}

// NeighbourTable prints reports for people.
func NeighbourTable(w io.Writer, reports []NeighbourReport) error {
	if slices.ContainsFunc(reports, func(r NeighbourReport) bool { return r.Alone == nil || r.Beside == nil }) {
		return errors.New("no probe was answered")
	}
	const header = "mode\tquota MB/s\toffered\ttaken\talone p50 ms\tp99\tbeside p50\tp99\tratio p50\tp99\t"
	return printTable(w, header, reports, func(w io.Writer, r *NeighbourReport) {
		a, b := r.Alone, r.Beside
		fmt.Fprintf(w, "%s\t%.2f\t%.1f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t\n", r.Mode, r.Quota, r.Offered, r.Taken, a.P50, a.P99, b.P50, b.P99, b.P50/a.P50, b.P99/a.P99)
	})
}
