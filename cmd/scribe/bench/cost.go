package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"scribe/internal/base/units"
	"scribe/producer"
)

// CostOptions say what traffic is priced.
type CostOptions struct {
	Workload Workload
	// BytesPerSecond of payload; 0 = as much as goes.
	BytesPerSecond units.Bytes
	// Categories that share it, by Zipf's law.
	Categories int
	Duration   units.Duration
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
func Cost(ctx context.Context, server string, o CostOptions) (r CostReport, err error) {
	r.Categories = o.Categories
	p, err := newLoadProducer(server, producer.WithMaxBufferedBytes(128<<20), producer.WithMaxInFlight(16))
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.Close(ctx), p.firstLoss()) }()
	names := make([]string, o.Categories)
	for i := range names {
		names[i] = fmt.Sprintf("cost-%d-%d", time.Now().UnixNano(), i)
	}
	pick := func() string { return names[0] }
	if len(names) > 1 {
		pick = pickByZipf(names)
	}
	write := func(d time.Duration) (*trafficLoad, error) {
		l := &trafficLoad{producer: p.Producer, workload: o.Workload, pick: pick, wait: true, bytesPerSecond: float64(o.BytesPerSecond)}
		return l, errors.Join(runFor(ctx, d, l.writeTraffic), p.Flush(ctx))
	}
	// What creating categories and opening logs takes is not the traffic's.
	if _, err := write(o.Duration.Std() / 4); err != nil {
		return r, err
	}
	var l *trafficLoad
	span, err := measureSpan(ctx, server, func() (err error) {
		l, err = write(o.Duration.Std())
		return err
	})
	if err != nil {
		return r, err
	}
	r.Bytes = l.bytes.Load()
	if r.Bytes == 0 {
		return r, errors.New("no message was written")
	}
	grown, perGB := span.grown, 1e9/float64(r.Bytes)
	blobs := grown["scribe_batcher_blobs_total"]
	r.MBPerSecond = float64(r.Bytes) / 1e6 / span.wall.Seconds()
	r.Puts = blobs * perGB
	r.Pointers = grown["scribe_metalog_appended_records_total"] * perGB
	r.StoredBytes = grown["scribe_batcher_blob_bytes_total"] * perGB
	r.PointerBytes = grown["scribe_metalog_appended_bytes_total"] * perGB
	r.BlobBytes = grown["scribe_batcher_blob_bytes_total"] / max(blobs, 1)
	return r, nil
}

// CostTable prints reports for people.
func CostTable(w io.Writer, reports []CostReport) error {
	const header = "categories\tMB/s\tPUTs/GB\tmean blob MB\tpointers/GB\tpointer MB/GB\tstored MB/GB\t"
	return printTable(w, header, reports, func(w io.Writer, r *CostReport) {
		fmt.Fprintf(w, "%d\t%.1f\t%.0f\t%.2f\t%.0f\t%.2f\t%.0f\t\n", r.Categories, r.MBPerSecond, r.Puts, r.BlobBytes/1e6, r.Pointers, r.PointerBytes/1e6, r.StoredBytes/1e6)
	})
}
