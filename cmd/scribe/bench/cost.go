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

// CostOptions say what traffic is priced.
type CostOptions struct {
	Server   string
	Workload Workload
	// BytesPerSecond of payload; 0 = as much as goes.
	BytesPerSecond float64
	// Categories that share it, by Zipf's law.
	Categories int
	Duration   time.Duration
}

// CostReport is what a gigabyte (10^9 bytes of payload) of traffic costs at the store.
type CostReport struct {
	Categories  int     `json:"categories"`
	MBPerSecond float64 `json:"mb_per_second"` // that was committed
	Bytes       int64   `json:"bytes"`
	// Per gigabyte of payload.
	Puts     float64 `json:"puts_per_gb"`
	Pointers float64 `json:"pointers_per_gb"`
	// Stored bytes of blobs, and of pointers.
	StoredBytes  float64 `json:"stored_bytes_per_gb"`
	PointerBytes float64 `json:"pointer_bytes_per_gb"`
	// BlobBytes is the mean size of a blob.
	BlobBytes float64 `json:"blob_bytes"`
}

// Cost writes for a while and reads from the cell's counters what the store was asked for.
func Cost(ctx context.Context, o CostOptions) (r CostReport, err error) {
	r.Categories = o.Categories
	var failed atomic.Pointer[producer.Drop]
	p, err := producer.New(o.Server, producer.WithMaxBufferedBytes(128<<20), producer.WithMaxInFlight(16),
		producer.WithOnDrop(func(d producer.Drop) { failed.CompareAndSwap(nil, &d) }))
	if err != nil {
		return r, err
	}
	names := make([]string, o.Categories)
	for i := range names {
		names[i] = fmt.Sprintf("cost-%d-%d", time.Now().UnixNano(), i)
	}
	pick := func() string { return names[0] }
	if len(names) > 1 {
		pick = pickByZipf(names)
	}
	// What creating categories and opening logs takes is not the traffic's.
	warm := &trafficLoad{producer: p, workload: o.Workload, pick: pick, wait: true, bytesPerSecond: o.BytesPerSecond}
	if err := errors.Join(runFor(ctx, o.Duration/4, warm.writeTraffic), p.Flush(ctx)); err != nil {
		return r, errors.Join(err, p.Close(ctx))
	}
	start, err := scrapeMetrics(ctx, o.Server)
	if err != nil {
		return r, errors.Join(err, p.Close(ctx))
	}
	l := &trafficLoad{producer: p, workload: o.Workload, pick: pick, wait: true, bytesPerSecond: o.BytesPerSecond}
	begin := time.Now()
	err = errors.Join(runFor(ctx, o.Duration, l.writeTraffic), p.Flush(ctx))
	wall := time.Since(begin)
	end, serr := scrapeMetrics(ctx, o.Server)
	if err = errors.Join(err, serr, p.Close(ctx)); err != nil {
		return r, err
	}
	if d := failed.Load(); d != nil {
		return r, d.Err
	}
	r.Bytes = l.bytes.Load()
	if r.Bytes == 0 {
		return r, errors.New("no message was written")
	}
	grown, perGB := end.growthSince(start), 1e9/float64(r.Bytes)
	blobs := grown["scribe_batcher_blobs_total"]
	r.MBPerSecond = float64(r.Bytes) / 1e6 / wall.Seconds()
	r.Puts = blobs * perGB
	r.Pointers = grown["scribe_metalog_appended_records_total"] * perGB
	r.StoredBytes = grown["scribe_batcher_blob_bytes_total"] * perGB
	r.PointerBytes = grown["scribe_metalog_appended_bytes_total"] * perGB
	r.BlobBytes = grown["scribe_batcher_blob_bytes_total"] / max(blobs, 1)
	return r, nil
}

// CostTable prints reports for people.
func CostTable(w io.Writer, reports []CostReport) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "categories\tMB/s\tPUTs/GB\tmean blob MB\tpointers/GB\tpointer MB/GB\tstored MB/GB\t")
	for _, r := range reports {
		fmt.Fprintf(tw, "%d\t%.1f\t%.0f\t%.2f\t%.0f\t%.2f\t%.0f\t\n", r.Categories, r.MBPerSecond, r.Puts, r.BlobBytes/1e6, r.Pointers, r.PointerBytes/1e6, r.StoredBytes/1e6)
	}
	return tw.Flush()
}
