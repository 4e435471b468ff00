package bench

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"scribe/internal/transport/rpc"
)

// Report is what one measurement found. CPU figures are of the whole process.
type Report struct {
	// What was measured: produce, consume, catchup or e2e.
	What     string `json:"what"`
	Workload string `json:"workload"`
	// InProcess says that the cell ran in the measuring process, so that its CPU time is counted.
	InProcess bool `json:"in_process"`
	// Messages and Bytes of payload that were acknowledged, or delivered.
	Messages int64   `json:"messages"`
	Bytes    int64   `json:"bytes"`
	Seconds  float64 `json:"seconds"`
	// MBPerSecond is in 10^6 bytes.
	MBPerSecond       float64 `json:"mb_per_second"`
	MessagesPerSecond float64 `json:"messages_per_second"`
	CPUSeconds        float64 `json:"cpu_seconds"`
	CPUNsPerByte      float64 `json:"cpu_ns_per_byte"`
	// Limit is the operation that the hardware has to do at least once, on the same bytes in the same run: "zstd" (fastest level)
	// for writes and "unzstd" for reads, over a stream that no cache holds and on all cores; "read+unzstd" for a catch-up: the very
	// blobs, read and decompressed.
	Limit          string  `json:"limit,omitempty"`
	LimitNsPerByte float64 `json:"limit_ns_per_byte,omitempty"`
	Ratio          float64 `json:"ratio,omitempty"` // CPUNsPerByte to LimitNsPerByte
	// LimitMBPerSecond is what the limit of a catch-up does in that time on all cores, SpeedRatio how many times longer the path takes.
	LimitMBPerSecond float64 `json:"limit_mb_per_second,omitempty"`
	SpeedRatio       float64 `json:"speed_ratio,omitempty"`
	// StoredBytes is what a catch-up reads from the blobs.
	StoredBytes int64 `json:"stored_bytes,omitempty"`
	// WarmNsPerByte is the limit's operation over the same few blocks again and again, on one core; for writes and reads.
	WarmNsPerByte   float64 `json:"warm_ns_per_byte,omitempty"`
	WarmRatio       float64 `json:"warm_ratio,omitempty"` // CPUNsPerByte to WarmNsPerByte
	CompressionRate float64 `json:"compression_rate,omitempty"`
	// Commit is from the write to its acknowledgement, Delivery from the write to the consumer; at light load only.
	Commit   *Latency `json:"commit,omitempty"`
	Delivery *Latency `json:"delivery,omitempty"`
}

// Latency is a distribution in milliseconds.
type Latency struct {
	P50 float64 `json:"p50_ms"`
	P90 float64 `json:"p90_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
}

func newLatency(samples []time.Duration) *Latency {
	if len(samples) == 0 {
		return nil
	}
	slices.Sort(samples)
	at := func(percent int) float64 { return float64(nearestRank(samples, percent)) / float64(time.Millisecond) }
	return &Latency{P50: at(50), P90: at(90), P99: at(99), Max: at(100)}
}

// nearestRank returns the smallest of sorted samples that so many per cent do not exceed.
func nearestRank[T any](samples []T, percent int) T {
	rank := (len(samples)*percent + 99) / 100
	return samples[max(rank, 1)-1]
}

// fillRates fills in what follows from the rest.
func (r *Report) fillRates(wall, cpu time.Duration) {
	r.Seconds, r.CPUSeconds = wall.Seconds(), cpu.Seconds()
	if r.Bytes == 0 || wall == 0 {
		return
	}
	r.MBPerSecond = float64(r.Bytes) / 1e6 / r.Seconds
	r.MessagesPerSecond = float64(r.Messages) / r.Seconds
	r.CPUNsPerByte = float64(cpu) / float64(r.Bytes)
	if r.LimitNsPerByte > 0 {
		r.Ratio = r.CPUNsPerByte / r.LimitNsPerByte
	}
	if r.WarmNsPerByte > 0 {
		r.WarmRatio = r.CPUNsPerByte / r.WarmNsPerByte
	}
	if r.MBPerSecond > 0 {
		r.SpeedRatio = r.LimitMBPerSecond / r.MBPerSecond
	}
}

// printTable prints a row for each report.
func printTable[R any](w io.Writer, header string, reports []R, printRow func(w io.Writer, r *R)) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, header)
	for i := range reports {
		printRow(tw, &reports[i])
	}
	return tw.Flush()
}

// Table prints reports for people.
func Table(w io.Writer, reports []Report) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for i, r := range reports {
		if r.Commit != nil || r.Delivery != nil {
			if i == 0 || reports[i-1].What != r.What {
				fmt.Fprintln(tw, "what\tworkload\tmessages\tcommit p50\tp90\tp99\tmax ms\tdelivery p50\tp90\tp99\tmax ms\t")
			}
			c, d := r.Commit, r.Delivery
			fmt.Fprintf(tw, "%s\t%s\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t\n", r.What, r.Workload, r.Messages, c.P50, c.P90, c.P99, c.Max, d.P50, d.P90, d.P99, d.Max)
			continue
		}
		if i == 0 || reports[i-1].What != r.What {
			fmt.Fprint(tw, "what\tworkload\tmessages\tMB/s\tmsgs/s\tCPU ns/B\tlimit\tns/B\tratio\t")
			if r.WarmNsPerByte > 0 {
				fmt.Fprint(tw, "warm ns/B\tratio\t")
			}
			if r.LimitMBPerSecond > 0 {
				fmt.Fprint(tw, "limit MB/s\tratio\tstored MB\t")
			}
			fmt.Fprintln(tw)
		}
		fmt.Fprintf(tw, "%s\t%s\t%d\t%.0f\t%.0f\t%.2f\t%s\t%.2f\t%.2f\t", r.What, r.Workload, r.Messages, r.MBPerSecond, r.MessagesPerSecond, r.CPUNsPerByte, r.Limit, r.LimitNsPerByte, r.Ratio)
		if r.WarmNsPerByte > 0 {
			fmt.Fprintf(tw, "%.2f\t%.2f\t", r.WarmNsPerByte, r.WarmRatio)
		}
		if r.LimitMBPerSecond > 0 {
			fmt.Fprintf(tw, "%.0f\t%.2f\t%d\t", r.LimitMBPerSecond, r.SpeedRatio, r.StoredBytes/1e6)
		}
		fmt.Fprintln(tw)
	}
	return tw.Flush()
}

// metricValues are a process's metrics: the sum over the labels by name (of a histogram by name_count), and each sample of one label by name{label="value"}.
type metricValues map[string]float64

// scrapeMetrics reads a process's /metrics.
func scrapeMetrics(ctx context.Context, server string) (metricValues, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(server, "/")+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	res, err := rpc.Default().HTTPClient().Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s/metrics: %s", server, res.Status)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(res.Body)
	if err != nil {
		return nil, fmt.Errorf("%s/metrics: %w", server, err)
	}
	out := metricValues{}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			out[name] += metricValue(m)
			if m.Histogram != nil {
				out[name+"_count"] += float64(m.GetHistogram().GetSampleCount())
			}
			if l := m.GetLabel(); len(l) == 1 {
				out[fmt.Sprintf("%s{%s=%q}", name, l[0].GetName(), l[0].GetValue())] += metricValue(m)
			}
		}
	}
	return out, nil
}

func metricValue(m *dto.Metric) float64 {
	switch {
	case m.Counter != nil:
		return m.GetCounter().GetValue()
	case m.Gauge != nil:
		return m.GetGauge().GetValue()
	default:
		return 0
	}
}

// growthSince is what each counter has grown by.
func (c metricValues) growthSince(before metricValues) metricValues {
	out := make(metricValues, len(c))
	for name, v := range c {
		out[name] = v - before[name]
	}
	return out
}

// measuredSpan is what a piece of work took.
type measuredSpan struct {
	wall, cpu time.Duration
	grown     metricValues // of the cell
}

// measureSpan measures what run takes, of the process and by the cell's metrics.
func measureSpan(ctx context.Context, server string, run func() error) (s measuredSpan, err error) {
	before, err := scrapeMetrics(ctx, server)
	if err != nil {
		return s, err
	}
	begin, cpu := time.Now(), cpuTime()
	if err := run(); err != nil {
		return s, err
	}
	s.wall, s.cpu = time.Since(begin), cpuTime()-cpu
	after, err := scrapeMetrics(ctx, server)
	s.grown = after.growthSince(before)
	return s, err
}
