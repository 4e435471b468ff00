package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/base/backoff"
	"scribe/internal/base/units"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// CategoriesOptions say how many categories there are, and how many of them have traffic.
type CategoriesOptions struct {
	// Categories are created, Active of them are written to.
	Categories, Active int
	// MessagesPerSecond of Workload, over the active categories by Zipf's law.
	MessagesPerSecond int
	Workload          Workload
	// Duration of the idle phase's half and of the active phase.
	Duration units.Duration
}

// CategoriesReport says what many categories cost in one process with every role.
type CategoriesReport struct {
	Categories int `json:"categories"`
	Active     int `json:"active"`
	// CreateSeconds is what creating them took.
	CreateSeconds float64 `json:"create_seconds"`
	// HeapPerCategory is by how many bytes the live heap grew for each of them, in all roles together.
	HeapPerCategory float64 `json:"heap_bytes_per_category"`
	// IdleCPU is the process's CPU time a second without traffic, in per cent of one core.
	IdleCPU float64 `json:"idle_cpu_percent"`

	// The active phase.
	MessagesPerSecond float64 `json:"messages_per_second"`
	MBPerSecond       float64 `json:"mb_per_second"`
	Touched           int     `json:"touched_categories"` // that got a message
	BusyCPU           float64 `json:"busy_cpu_percent"`
	HeapMB            float64 `json:"heap_mb"` // live, at its end
	CPUNsPerByte      float64 `json:"cpu_ns_per_byte"`
	PayloadsPerFlush  float64 `json:"payloads_per_blob"`
	// Probe is the latency of committed writes to a category of their own, meanwhile.
	Probe *Latency `json:"probe"`
}

// Categories creates categories in a cell in this process, whose memory and CPU are measured, looks at what they cost while idle, then
// writes to some of them.
func Categories(ctx context.Context, server string, o CategoriesOptions) (r CategoriesReport, err error) {
	r = CategoriesReport{Categories: o.Categories, Active: o.Active}
	before := liveHeap()
	names := make([]string, o.Categories)
	for i := range names {
		names[i] = fmt.Sprintf("bench.team-%03d.service-%06d", i%1000, i)
	}
	begin := time.Now()
	if err := createAll(ctx, server, names, 0); err != nil {
		return r, err
	}
	r.CreateSeconds = time.Since(begin).Seconds()
	r.HeapPerCategory = float64(liveHeap()-before) / float64(o.Categories)

	cpu := cpuTime()
	if err := backoff.Sleep(ctx, o.Duration.Std()/2); err != nil {
		return r, err
	}
	r.IdleCPU = 100 * (cpuTime() - cpu).Seconds() / (o.Duration.Std() / 2).Seconds()
	err = o.measureBusy(ctx, server, &r, names[:o.Active])
	return r, err
}

// measureBusy is the active phase.
func (o CategoriesOptions) measureBusy(ctx context.Context, server string, r *CategoriesReport, active []string) (err error) {
	p, err := newLoadProducer(server)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close(ctx), p.firstLoss()) }()
	touched := map[string]bool{}
	pick := pickByZipf(active)
	l := &trafficLoad{producer: p.Producer, workload: o.Workload, wait: true, pick: func() string {
		name := pick()
		touched[name] = true
		return name
	}}
	l.bytesPerSecond = float64(o.MessagesPerSecond) * float64(o.Workload.Bytes) / float64(len(o.Workload.Messages))
	quiet := &writeProbe{producer: p.Producer, categories: []string{"bench.probe"}, every: 20 * time.Millisecond}
	span, err := measureSpan(ctx, server, func() error {
		return errors.Join(runFor(ctx, o.Duration.Std(), l.writeTraffic, quiet.probeWrites), p.Flush(ctx))
	})
	if err != nil {
		return err
	}
	wall := span.wall.Seconds()
	r.HeapMB = float64(liveHeap()) / 1e6
	r.Touched, r.Probe = len(touched), quiet.takeLatency()
	r.MessagesPerSecond, r.MBPerSecond = float64(l.messages.Load())/wall, float64(l.bytes.Load())/1e6/wall
	r.BusyCPU, r.CPUNsPerByte = 100*span.cpu.Seconds()/wall, float64(span.cpu)/float64(l.bytes.Load())
	r.PayloadsPerFlush = span.grown["scribe_batcher_payloads_total"] / max(span.grown["scribe_batcher_blobs_total"], 1)
	return nil
}

// creators is how many creations run at the same time: they share the store's syncs.
const creators = 128

// createAll creates categories with a linger; 0 = as producers choose.
func createAll(ctx context.Context, server string, names []string, linger units.Duration) error {
	control := rpc.NewControlClient(rpc.Default(), server)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(creators)
	for _, name := range names {
		if ctx.Err() != nil {
			break // the rest would fail, too, one by one
		}
		group.Go(func() error {
			c := &scribev1.Category{Name: name}
			if linger > 0 {
				c.Linger = durationpb.New(linger.Std())
			}
			return createCategory(ctx, control, c)
		})
	}
	return group.Wait()
}

// liveHeap is what the process's heap holds after a collection.
func liveHeap() int64 {
	// Twice: pools keep what they hold for one collection.
	runtime.GC()
	runtime.GC()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // below 2^63
}

// Print writes the report for people.
func (r *CategoriesReport) Print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "categories\t%d, created in %.1f s\n", r.Categories, r.CreateSeconds)
	fmt.Fprintf(tw, "heap of an idle one\t%.0f bytes, in all roles together\n", r.HeapPerCategory)
	fmt.Fprintf(tw, "CPU while idle\t%.1f %% of a core\n", r.IdleCPU)
	fmt.Fprintf(tw, "traffic\t%.0f messages/s, %.1f MB/s over %d categories (%d got a message)\n", r.MessagesPerSecond, r.MBPerSecond, r.Active, r.Touched)
	fmt.Fprintf(tw, "CPU\t%.0f %% of a core, %.1f ns a byte\n", r.BusyCPU, r.CPUNsPerByte)
	fmt.Fprintf(tw, "live heap\t%.0f MB\n", r.HeapMB)
	fmt.Fprintf(tw, "payloads in a blob\t%.0f\n", r.PayloadsPerFlush)
	if p := r.Probe; p != nil {
		fmt.Fprintf(tw, "committed writes beside it\tp50 %.1f ms, p99 %.1f ms\n", p.P50, p.P99)
	}
	return tw.Flush()
}
