package bench

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"scribe/internal/base/units"
	"scribe/storage/blob"
)

// FarOptions say what is measured of a cell whose store is far away.
type FarOptions struct {
	// Scenario is one of FarScenarios.
	Scenario string
	Workload Workload
	// Server is the address of the cell, which must be new and in this process.
	Server string
	// Restart stops the cell and starts it again with everything that it had stored, and returns its new address.
	Restart func(context.Context) (server string, err error)
	// Proxy is what the cell reaches its store through, and Store that store through the same proxy, with the keys of the cell.
	Proxy *DelayProxy
	Delay DelayRange
	Store blob.Store
	// Bytes of payload are written or read by scenarios that go as fast as they can. Others last for Duration.
	Bytes    int64
	Duration units.Duration
	// BytesPerSecond of payload are written where a tail is followed, and to many categories; there, 0 is as much as goes.
	BytesPerSecond units.Bytes
	// Categories are created where there are many, and Active of them are written to.
	Categories, Active int
	// Linger is that of many categories; 0 = as producers choose. WriterMemory is what each of their producers may buffer.
	Linger       units.Duration
	WriterMemory units.Bytes
}

// FarReport is what one scenario found. CPU figures are of the whole process, which includes the delay proxy. A gigabyte is 10^9 bytes
// of payload.
type FarReport struct {
	Scenario string `json:"scenario"`
	Workload string `json:"workload"`
	Delay    string `json:"delay"`
	// OfferedMBPerSecond is what writers were to write; 0 = as much as goes.
	OfferedMBPerSecond float64 `json:"offered_mb_per_second,omitempty"`
	// Bytes of payload that were acknowledged or, of a backlog or a tail, delivered.
	Bytes       int64   `json:"bytes"`
	Seconds     float64 `json:"seconds"`
	MBPerSecond float64 `json:"mb_per_second"`
	// Limit is what the store's client alone does in the same run, through the same proxy and with nothing else: "put" or "get".
	// LimitMBPerSecond is payload; SpeedRatio is how many times longer the path takes.
	Limit            string  `json:"limit,omitempty"`
	LimitMBPerSecond float64 `json:"limit_mb_per_second,omitempty"`
	SpeedRatio       float64 `json:"speed_ratio,omitempty"`
	// Requests at the store while it was measured, by all roles.
	Requests StoreRequests `json:"requests"`
	// Per gigabyte.
	Puts        float64 `json:"puts_per_gb"`
	Gets        float64 `json:"gets_per_gb"`
	Pointers    float64 `json:"pointers_per_gb"`
	StoredBytes float64 `json:"stored_bytes_per_gb"`
	// RequestDollars are the price of the requests, StorageDollars that of keeping the stored bytes for a month, also per gigabyte.
	RequestDollars float64 `json:"request_dollars_per_gb"`
	StorageDollars float64 `json:"storage_dollars_per_gb_month"`
	// GetsPerSecond at the store.
	GetsPerSecond float64 `json:"gets_per_second"`
	// PushedBytes are those of the blocks that batchers pushed to read proxies. PushedReads are the pushed blocks that were read.
	PushedBytes float64 `json:"pushed_bytes"`
	PushedReads float64 `json:"pushed_reads"`
	// BlobBytes is the mean size of a blob.
	BlobBytes    float64 `json:"blob_bytes"`
	CPUSeconds   float64 `json:"cpu_seconds"`
	CPUNsPerByte float64 `json:"cpu_ns_per_byte"`
	// Commit is from a write to its acknowledgement, Delivery from the commit of a pointer to the consumer's having its messages.
	Commit   *Latency `json:"commit,omitempty"`
	Delivery *Latency `json:"delivery,omitempty"`
}

// farRun is a measurement under way.
type farRun struct {
	FarOptions

	r FarReport
}

// farScenarios are what can be measured, in the order of a report.
var farScenarios = []struct {
	name    string
	measure func(*farRun, context.Context) error
}{
	{"write", func(f *farRun, ctx context.Context) error { return f.measureWrites(ctx, 1, 1) }},
	{"agent", func(f *farRun, ctx context.Context) error { return f.measureWrites(ctx, farProducers, 1) }},
	{"categories", func(f *farRun, ctx context.Context) error { return f.measureWrites(ctx, farProducers, farProducers) }},
	{"latency", func(f *farRun, ctx context.Context) error {
		f.BytesPerSecond = latencyRate
		return f.followTail(ctx, 1)
	}},
	{"backlog", (*farRun).readBacklog},
	{FarTail, func(f *farRun, ctx context.Context) error { return f.followTail(ctx, farProducers) }},
	{FarMany, (*farRun).writeToMany},
}

const (
	// FarTail is a scenario that is measured at several rates.
	FarTail = "tail"
	// FarMany is one with rates of its own.
	FarMany = "many"
	// farProducers are the programs of one host.
	farProducers = 4
)

// FarScenarios lists the names.
func FarScenarios() []string {
	var names []string
	for _, s := range farScenarios {
		names = append(names, s.name)
	}
	return names
}

// Far measures one scenario.
func Far(ctx context.Context, o FarOptions) (FarReport, error) {
	f := &farRun{FarOptions: o, r: FarReport{Scenario: o.Scenario, Workload: o.Workload.Name, Delay: o.Delay.String()}}
	for _, s := range farScenarios {
		if s.name == o.Scenario {
			err := s.measure(f, ctx)
			return f.r, err
		}
	}
	return f.r, fmt.Errorf("unknown scenario %q: the scenarios are %s", o.Scenario, strings.Join(FarScenarios(), ", "))
}

// measureRequests measures what run takes, and what the store is asked for meanwhile. run sets the report's Bytes.
func (f *farRun) measureRequests(ctx context.Context, run func() error) error {
	before := f.Proxy.Requests()
	span, err := measureSpan(ctx, f.Server, run)
	if err != nil {
		return err
	}
	f.r.Requests = f.Proxy.Requests().growthSince(before)
	f.r.fillRates(span)
	return nil
}

// fillRates fills in what follows from the span and the rest.
func (r *FarReport) fillRates(span measuredSpan) {
	r.Seconds, r.CPUSeconds = span.wall.Seconds(), span.cpu.Seconds()
	if r.Bytes == 0 || r.Seconds == 0 {
		return
	}
	perGB := 1e9 / float64(r.Bytes)
	r.MBPerSecond = float64(r.Bytes) / 1e6 / r.Seconds
	r.SpeedRatio = r.LimitMBPerSecond / r.MBPerSecond
	r.CPUNsPerByte = float64(span.cpu) / float64(r.Bytes)
	r.Puts, r.Gets = float64(r.Requests.Put)*perGB, float64(r.Requests.Get)*perGB
	r.RequestDollars = r.Requests.dollars() * perGB
	r.GetsPerSecond = float64(r.Requests.Get) / r.Seconds
	r.PushedBytes, r.PushedReads = span.grown["scribe_batcher_pushed_bytes_total"], span.grown["scribe_readproxy_pushed_reads_total"]
	r.Pointers = span.grown["scribe_metalog_appended_records_total"] * perGB
	if blobs := span.grown["scribe_batcher_blobs_total"]; blobs > 0 {
		stored := span.grown["scribe_batcher_blob_bytes_total"]
		r.StoredBytes, r.BlobBytes = stored*perGB, stored/blobs
		r.StorageDollars = r.StoredBytes / 1e9 * priceGBForMonth
	}
}

// FarTable prints reports for people.
func FarTable(w io.Writer, reports []FarReport) error {
	const header = "scenario\tMB/s\tlimit MB/s\tratio\tPUTs/GB\tGETs/GB\tGETs/s\tpointers/GB\tblob MB\tstored MB/GB\trequests $/GB\tstorage $/GB/month\tCPU ns/B\tcommit p50 ms\tp99\tdelivery p50 ms\tp99\t"
	return printTable(w, header, reports, func(w io.Writer, r *FarReport) {
		name := r.Scenario
		if r.OfferedMBPerSecond > 0 {
			name += fmt.Sprintf(", %.0f MB/s", r.OfferedMBPerSecond)
		}
		fmt.Fprintf(w, "%s\t%.1f\t%s\t%s\t%.0f\t%.0f\t%.1f\t%.0f\t%s\t%s\t%.5f\t%s\t%.1f\t", name, r.MBPerSecond, farCell(r.LimitMBPerSecond, 0), farCell(r.SpeedRatio, 1), r.Puts, r.Gets, r.GetsPerSecond,
			r.Pointers, farCell(r.BlobBytes/1e6, 2), farCell(r.StoredBytes/1e6, 0), r.RequestDollars, farCell(r.StorageDollars, 5), r.CPUNsPerByte)
		for _, l := range []*Latency{r.Commit, r.Delivery} {
			if l == nil {
				l = &Latency{}
			}
			decimals := 0
			if l.P50 < 10 {
				decimals = 1 // a tail that is in the caches
			}
			fmt.Fprintf(w, "%s\t%s\t", farCell(l.P50, decimals), farCell(l.P99, 0))
		}
		fmt.Fprintln(w)
	})
}

// farCell is a number of a table; a dash if it was not measured.
func farCell(v float64, decimals int) string {
	if v == 0 {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}
