package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"scribe/consumer"
	"scribe/internal/base/backoff"
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
	// Readers read the category over and over, where reading is measured, which has so many bytes.
	Readers int
	Stored  units.Bytes
	// Quiet categories are probed, one after the other, every Every.
	Quiet    int
	Every    units.Duration
	Duration units.Duration // of each of the two phases
}

// NeighbourReport compares the latency of committed writes to, or of reads of, quiet categories without and with a noisy one beside them.
type NeighbourReport struct {
	Mode string `json:"mode"`
	// Offered and Taken are the noisy category's traffic and what of it passed, in MB/s; readers offer whatever they can.
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

// NeighbourReads measures the same of reading: the time that it takes to open a small category and read it to its end, without and with readers
// beside it that read a large category over and over, far beyond its quota for reading.
func NeighbourReads(ctx context.Context, server string, o NeighbourOptions) (r NeighbourReport, err error) {
	noisy := fmt.Sprintf("noisy-%d", time.Now().UnixNano())
	c := &scribev1.Category{Name: noisy, ReadQuotaBytesPerSecond: uint64(o.Quota), ReadQuotaMode: o.Mode} //nolint:gosec // not negative
	if err := createCategory(ctx, rpc.NewControlClient(rpc.Default(), server), c); err != nil {
		return r, err
	}
	r = NeighbourReport{Mode: scribev1.EnumName(o.Mode), Quota: float64(o.Quota) / 1e6}
	probe := &readProbe{server: server, every: o.Every.Std()}
	for i := range max(o.Quiet, 1) {
		probe.categories = append(probe.categories, fmt.Sprintf("%s-quiet-%d", noisy, i))
	}
	if err := fillNeighbours(ctx, server, noisy, probe.categories, o); err != nil {
		return r, err
	}
	if err := runFor(ctx, time.Duration(2*len(probe.categories))*o.Every.Std(), probe.probeReads); err != nil {
		return r, err
	}
	probe.takeLatency()
	if err := runFor(ctx, o.Duration.Std(), probe.probeReads); err != nil {
		return r, err
	}
	r.Alone = probe.takeLatency()
	g := &greedyReaders{server: server, category: noisy, readers: o.Readers}
	err = runFor(ctx, o.Duration.Std(), g.readOverAndOver, probe.probeReads)
	r.Taken = float64(g.bytes.Load()) / 1e6 / o.Duration.Std().Seconds()
	r.Beside = probe.takeLatency()
	return r, err
}

// fillNeighbours writes what is to be read: a small message to each of the quiet categories, and the bytes of the large one.
func fillNeighbours(ctx context.Context, server, noisy string, quiet []string, o NeighbourOptions) (err error) {
	p, err := producer.New(server)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close(ctx)) }()
	for _, name := range quiet {
		if err := p.Write(ctx, name, producer.Message{Payload: make([]byte, 100)}); err != nil {
			return err
		}
	}
	for next, left := 0, int64(o.Stored); left > 0; {
		var batch []producer.Message
		for size := 0; size < 1<<20 && left > 0; next++ {
			m := o.Workload.Messages[next%len(o.Workload.Messages)]
			batch = append(batch, producer.Message{Payload: m})
			size += len(m)
			left -= int64(len(m))
		}
		if err := p.Write(ctx, noisy, batch...); err != nil {
			return err
		}
	}
	return nil
}

// readProbe reads small categories from their beginning to their end at a fixed rate, and measures how long each takes.
type readProbe struct {
	latencySamples

	server     string
	categories []string
	every      time.Duration
}

// probeReads probes until ctx ends. A read that fails is an error.
func (p *readProbe) probeReads(ctx context.Context) error {
	pace := time.NewTicker(p.every)
	defer pace.Stop()
	for i := 0; ; i++ {
		select {
		case <-pace.C:
		case <-ctx.Done():
			return nil
		}
		begin := time.Now()
		n, err := readOnce(context.WithoutCancel(ctx), p.server, p.categories[i%len(p.categories)], nil)
		if err == nil && n == 0 {
			err = errors.New("a category that was written is empty")
		}
		if err != nil {
			return err
		}
		p.addSample(time.Since(begin))
	}
}

// readOnce reads a category from its beginning to its end, and returns the number of its messages.
func readOnce(ctx context.Context, server, category string, count func(bytes int)) (messages int, err error) {
	c, err := consumer.New(server, category, consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd())
	if err != nil {
		return 0, err
	}
	for rec, err := range c.Records(ctx) {
		if err != nil {
			return messages, errors.Join(err, c.Close())
		}
		messages++
		if count != nil {
			count(len(rec.Payload))
		}
	}
	return messages, c.Close()
}

// greedyReaders read a category over and over.
type greedyReaders struct {
	server, category string
	readers          int
	bytes            atomic.Int64 // that they got
}

// readOverAndOver reads until ctx ends. What its quota refuses for too long is tried again.
func (g *greedyReaders) readOverAndOver(ctx context.Context) error {
	var group sync.WaitGroup
	for range g.readers {
		group.Go(func() {
			for ctx.Err() == nil {
				if _, err := readOnce(ctx, g.server, g.category, func(n int) { g.bytes.Add(int64(n)) }); err != nil {
					_ = backoff.Sleep(ctx, 100*time.Millisecond) // it ends with ctx
				}
			}
		})
	}
	group.Wait()
	return nil
}

// MedianOf returns the report whose ratio of 99th percentiles is the median of some reports of one mode: a single run shows the machine as much as the
// cell.
func MedianOf(reports []NeighbourReport) NeighbourReport {
	ratio := func(r NeighbourReport) float64 {
		if r.Alone == nil || r.Beside == nil {
			return 0
		}
		return r.Beside.P99 / r.Alone.P99
	}
	sorted := slices.SortedFunc(slices.Values(reports), func(a, b NeighbourReport) int { return cmp.Compare(ratio(a), ratio(b)) })
	return sorted[len(sorted)/2]
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
