package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/cmd/scribe/bench"
	"scribe/internal/base/units"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

type benchFlags struct {
	server    string
	data      string
	workloads []string
	bytes     units.Bytes
	messages  int
	rate      int
	count     int
	json      bool
	profile   string
}

func newBench() *cobra.Command {
	cmd := newParent(&cobra.Command{
		Use:   "bench",
		Short: "Measure writes, reads and latency, compared with compression alone",
		Long: `Measure a cell with real text. Without --server the cell runs in this process, on files in a temporary folder, and is reached over TCP
loopback; the CPU time is then that of the producer, all roles and the consumer together. Each figure is compared with zstd alone on the
same bytes in the same run. MB are millions of bytes.`,
		Example: `  scribe bench produce
  scribe bench e2e --messages 100
  scribe bench consume --workload access-log --json`,
	}, newBenchCategories(), newBenchCost(), newBenchFailover(), newBenchFanout(), newBenchFar(), newBenchMetalog(), newBenchNeighbour(), newBenchOutage(), newBenchQuery())
	for _, b := range []struct {
		name, short, long string
		run               func(context.Context, bench.Options) (bench.Report, error)
	}{
		{"produce", "Committed writes as fast as one producer can", `Write a workload until --bytes of payload are committed, with one producer that has several requests in flight, and compare the CPU
time per byte with that of zstd alone on the same bytes.`, bench.Produce},
		{"consume", "Reads from the beginning to the end as fast as one consumer can", `Fill a category, which is not measured, read it from beginning to end, and compare the CPU time per byte with that of the decoder alone on
the same bytes: over a stream too large for caches on all cores, and over a few blocks repeatedly.`, bench.Consume},
		{"catchup", "Reads of a backlog that is only on disk", `Fill a category, which is not measured, drop its files from the page cache, and read it from beginning to end. The time and the CPU time are
compared with only reading and decompressing the same files, on all cores. The cell runs in this process.`, bench.CatchUp},
		{"e2e", "Latency of committed writes and of delivery at a fixed light load", `Write messages at a fixed rate, one at a time, each committed, while a consumer follows, and report the latency of the
acknowledgement and of the delivery.`, bench.EndToEnd},
	} {
		c := newBenchOf(b.name, b.short, b.run)
		c.Long = b.long
		cmd.AddCommand(c)
	}
	return cmd
}

func newBenchOf(name, short string, run func(context.Context, bench.Options) (bench.Report, error)) *cobra.Command {
	f, written := benchFlags{bytes: 256 << 20}, "each run"
	if name == "catchup" {
		f.bytes, written = 5_000_000_000, "the backlog"
	}
	cmd := &cobra.Command{
		Use:   name,
		Short: short,
		Example: fmt.Sprintf(`  scribe bench %[1]s
  scribe bench %[1]s --workload access-log --count 5 --json`, name),
		Args: cobra.NoArgs,
	}
	fs := cmd.Flags()
	if name != "catchup" {
		fs.Var((*addressFlag)(&f.server), "server", "address of a running cell, or several, separated by commas (default: one in this process)")
		addClientTLS(fs)
	}
	fs.StringVar(&f.data, "data", "", "folder of the cell in this process (default: a temporary one)")
	fs.StringSliceVar(&f.workloads, "workload", bench.WorkloadNames(), "messages: 100b, access-log, 10kb")
	if name == "e2e" || name == "catchup" {
		fs.Lookup("workload").DefValue, f.workloads = "access-log", []string{"access-log"}
	}
	fs.IntVar(&f.count, "count", 1, "runs of each workload")
	fs.StringVar(&f.profile, "cpuprofile", "", "write a CPU profile of the measurements to this file, from the start of the first run to the end of the last")
	fs.BoolVar(&f.json, "json", false, "print a JSON object per run")
	if name == "e2e" {
		fs.IntVar(&f.messages, "messages", 1000, "messages to send")
		fs.IntVar(&f.rate, "rate", 100, "messages a second")
	} else {
		fs.Var(&f.bytes, "bytes", "payload bytes of "+written)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.count < 1 || name == "e2e" && (f.messages < 1 || f.rate < 1 || f.rate > 1_000_000) {
			return usageError(errors.New("want more than 0 for --count, --messages and --rate, and at most 1000000 for --rate"))
		}
		if f.bytes < 1 || len(f.workloads) == 0 {
			return usageError(errors.New("want more than 0 for --bytes, and at least one --workload"))
		}
		return f.runBench(cmd, run)
	}
	return cmd
}

func (f *benchFlags) runBench(cmd *cobra.Command, run func(context.Context, bench.Options) (bench.Report, error)) error {
	o := bench.Options{Server: f.server, Bytes: int64(f.bytes), Messages: f.messages, Rate: f.rate}
	if f.server != "" {
		// A load on a cell that is not there would only be given up after minutes.
		if _, err := callCell(cmd.Context(), f.server, "bench", controlClient(f.server).GetStatus, &scribev1.GetStatusRequest{}); err != nil {
			return err
		}
		// Of several addresses the one that answered is measured, so that the load and the metrics are of one process.
		servers, err := rpc.Default().Addresses(f.server)
		if err != nil {
			return err
		}
		o.Server = servers.Order()[0]
		return f.measureWorkloads(cmd, o, run)
	}
	return withCell(cmd, f.data, func(c *app.Config) {
		o.Blobs = c.BlobPath()
		// With a certificate the cell in this process has it too: what TLS costs is measured so.
		if files := clientTLS(cmd.Flags()); files.Serves() {
			c.TLS = files
			c.TLS.ClientCA = files.CA
		}
	}, func(server string) error {
		o.Server, o.InProcess = server, true
		return f.measureWorkloads(cmd, o, run)
	})
}

func (f *benchFlags) measureWorkloads(cmd *cobra.Command, o bench.Options, run func(context.Context, bench.Options) (bench.Report, error)) (err error) {
	stop := func() error { return nil }
	defer func() { err = errors.Join(err, stop()) }()
	o.Measured = sync.OnceValue(func() error {
		started, err := startProfile(f.profile)
		if err == nil {
			stop = started
		}
		return err
	})
	var reports []bench.Report
	for _, name := range f.workloads {
		if o.Workload, err = bench.NewWorkload(name); err != nil {
			return usageError(err)
		}
		for i := range f.count {
			o.Category = fmt.Sprintf("bench-%d-%s-%d", time.Now().UnixNano(), name, i)
			r, err := run(cmd.Context(), o)
			if err != nil {
				return fmt.Errorf("bench %s, workload %s: %w", cmd.Name(), name, err)
			}
			if f.json {
				if err := printLines(cmd.OutOrStdout(), r); err != nil {
					return err
				}
			}
			reports = append(reports, r)
		}
	}
	if f.json {
		return nil
	}
	return bench.Table(cmd.OutOrStdout(), reports)
}

// startProfile starts a CPU profile, if it has a file.
func startProfile(path string) (stop func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	out, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(out); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return out.Close()
	}, nil
}

// withCell runs fn against a cell in this process, on files in a folder; empty = a temporary one.
func withCell(cmd *cobra.Command, dir string, adjust func(*app.Config), fn func(server string) error) (err error) {
	if dir == "" {
		if dir, err = os.MkdirTemp("", "scribe-bench-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	c := app.DefaultConfig()
	c.Data, c.Log.Level = dir, "warn"
	if adjust != nil {
		adjust(&c)
	}
	return withApp(cmd.Context(), c, cmd.ErrOrStderr(), fn)
}

// measureCell measures a new cell in this process.
func measureCell[O, R any](cmd *cobra.Command, adjust func(*app.Config), measure func(ctx context.Context, server string, o O) (R, error), o O) (r R, err error) {
	err = withCell(cmd, "", adjust, func(server string) (err error) {
		r, err = measure(cmd.Context(), server, o)
		return err
	})
	return r, err
}

// printReports writes reports as JSON objects, a line each, or as a table.
func printReports[R any](w io.Writer, asJSON bool, reports []R, table func(io.Writer, []R) error) error {
	if asJSON {
		return printLines(w, reports...)
	}
	return table(w, reports)
}

// printReport writes one report as a JSON object, or for people.
func printReport(w io.Writer, asJSON bool, report interface{ Print(w io.Writer) error }) error {
	if asJSON {
		return printLines(w, report)
	}
	return report.Print(w)
}

// checkRange is a usage error if one of the values of a flag is outside 1 to most.
func checkRange(flag string, most int, values ...int) error {
	for _, n := range values {
		if n < 1 || n > most {
			return usageError(fmt.Errorf("%s %d is outside 1 to %d", flag, n, most))
		}
	}
	return nil
}

// second is the least duration of a measurement.
const second = units.Duration(time.Second)

func newBenchCategories() *cobra.Command {
	o := bench.CategoriesOptions{Duration: units.Duration(20 * time.Second)}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "categories",
		Short: "Memory and CPU of many categories in one process, idle and with traffic",
		Long: `Create many categories in a cell in this process, look at memory and CPU while nothing is written, then write to some of them by
Zipf's law: a few get most of the traffic, nearly all get little.`,
		Example: `  scribe bench categories
  scribe bench categories --categories 1000 --active 100 --rate 10000 --duration 5s --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.Active < 2 || o.Categories < o.Active || o.Categories > 10_000_000 || o.MessagesPerSecond < 1 || o.Duration < second {
				return usageError(errors.New("want 2 <= --active <= --categories <= 10000000, --rate above zero, --duration of a second or more"))
			}
			if o.Workload, err = bench.NewWorkload("access-log"); err != nil {
				return err
			}
			r, err := measureCell(cmd, nil, bench.Categories, o)
			if err != nil {
				return err
			}
			return printReport(cmd.OutOrStdout(), asJSON, &r)
		},
	}
	fs := cmd.Flags()
	fs.IntVar(&o.Categories, "categories", 100_000, "categories to create")
	fs.IntVar(&o.Active, "active", 10_000, "how many of them are written to")
	fs.IntVar(&o.MessagesPerSecond, "rate", 50_000, "messages a second to them, in all")
	fs.Var(&o.Duration, "duration", "length of the phase with traffic")
	fs.BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func newBenchCost() *cobra.Command {
	var (
		rates      = []string{"1MB", "100MB", "max"}
		categories = []int{1, 10_000}
		floor      = units.Duration(80 * time.Millisecond)
		o          = bench.CostOptions{Duration: units.Duration(20 * time.Second)}
		workload   = "access-log"
		asJSON     bool
	)
	cmd := &cobra.Command{
		Use:   "cost",
		Short: "PUT requests, pointers and stored bytes per gigabyte of traffic",
		Long: `Write at several rates, to one category and to many with little traffic each, and count the store requests in the cell's metrics. The cell
runs in this process on files, with the pause between flushes that it has on S3.`,
		Example: `  scribe bench cost
  scribe bench cost --rate 5MB --categories 1,1000 --flush-floor 1s --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.Workload, err = bench.NewWorkload(workload); err != nil {
				return usageError(err)
			}
			if o.Duration < second {
				return usageError(errors.New("--duration must be a second or more"))
			}
			var reports []bench.CostReport
			for _, rate := range rates {
				o.BytesPerSecond = 0
				if rate != "max" {
					if err := o.BytesPerSecond.Set(rate); err != nil || o.BytesPerSecond == 0 {
						return usageError(fmt.Errorf("--rate %q: want bytes a second, such as 1MB, or max", rate))
					}
				}
				for _, n := range categories {
					if err := checkRange("--categories", 1_000_000, n); err != nil {
						return err
					}
					o.Categories = n
					r, err := measureCell(cmd, func(c *app.Config) { c.FlushFloor = new(floor.Std()) }, bench.Cost, o)
					if err != nil {
						return fmt.Errorf("%s to %d categories: %w", rate, n, err)
					}
					reports = append(reports, r)
				}
			}
			return printReports(cmd.OutOrStdout(), asJSON, reports, bench.CostTable)
		},
	}
	fs := cmd.Flags()
	fs.StringSliceVar(&rates, "rate", rates, "payload a second, or max")
	fs.IntSliceVar(&categories, "categories", categories, "categories that share it")
	fs.Var(&floor, "flush-floor", "least time between two small flushes of the batcher")
	fs.Var(&o.Duration, "duration", "length of each measurement")
	fs.StringVar(&workload, "workload", workload, "messages: 100b, access-log, 10kb")
	fs.BoolVar(&asJSON, "json", false, "print a JSON object a line")
	return cmd
}

func newBenchNeighbour() *cobra.Command {
	o := bench.NeighbourOptions{
		Quota: 256 << 10, Every: units.Duration(10 * time.Millisecond), Duration: units.Duration(20 * time.Second), Readers: 8, Stored: 32 << 20,
	}
	var (
		asJSON, reads bool
		count         = 1
	)
	cmd := &cobra.Command{
		Use:   "neighbour",
		Short: "Latency of quiet categories next to one far over its quota",
		Long: `Measure the latency of committed writes to quiet categories, first alone, then while writers offer another category many times its quota,
for each quota mode. With --reads: the time in which a quiet category is opened and read to its end, first alone, then while readers read another
one over and over, as fast as they can, under a quota for reading that blocks or throttles. Of several runs (--count) the one with the median
ratio of 99th percentiles is shown; with --json all of them.`,
		Example: `  scribe bench neighbour
  scribe bench neighbour --reads --count 5
  scribe bench neighbour --quota 1MiB --excess 100 --duration 60s --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.Quota == 0 || o.Excess <= 0 || o.Quiet < 1 || o.Every <= 0 || o.Duration < second || o.Readers < 1 || o.Stored < 1<<20 {
				return usageError(errors.New("--quota, --excess, --quiet, --every and --readers must be above zero, --duration a second or more, --stored 1MiB or more"))
			}
			if err := checkRange("--count", 100, count); err != nil {
				return err
			}
			if o.Workload, err = bench.NewWorkload("access-log"); err != nil {
				return err
			}
			var reports []bench.NeighbourReport
			measure, modes := bench.Neighbour, []scribev1.QuotaMode{
				scribev1.QuotaMode_QUOTA_MODE_BLOCK, scribev1.QuotaMode_QUOTA_MODE_THROTTLE, scribev1.QuotaMode_QUOTA_MODE_SAMPLE,
			}
			if reads { // who samples does not hold its readers back
				measure, modes = bench.NeighbourReads, modes[:2]
			}
			for _, o.Mode = range modes {
				var runs []bench.NeighbourReport
				for range count {
					r, err := measureCell(cmd, nil, measure, o)
					if err != nil {
						return err
					}
					runs = append(runs, r)
				}
				if !asJSON {
					runs = []bench.NeighbourReport{bench.MedianOf(runs)}
				}
				reports = append(reports, runs...)
			}
			return printReports(cmd.OutOrStdout(), asJSON, reports, bench.NeighbourTable)
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&reads, "reads", false, "measure reading")
	fs.IntVar(&o.Readers, "readers", o.Readers, "with --reads: readers of the noisy category")
	fs.Var(&o.Stored, "stored", "with --reads: bytes that the noisy category has")
	fs.IntVar(&count, "count", count, "runs of each mode, up to 100")
	fs.Var(&o.Quota, "quota", "bytes a second that the noisy category may write, or be read")
	fs.Float64Var(&o.Excess, "excess", 100, "how many times its quota it is offered")
	fs.IntVar(&o.Quiet, "quiet", 10, "quiet categories")
	fs.Var(&o.Every, "every", "pause between two of their writes")
	fs.Var(&o.Duration, "duration", "length of each half of a measurement")
	fs.BoolVar(&asJSON, "json", false, "print a JSON object a line")
	return cmd
}

func newBenchFanout() *cobra.Command {
	var (
		o         = bench.FanoutOptions{BytesPerSecond: 8_000_000, Duration: units.Duration(10 * time.Second)}
		consumers = []int{1, 10, 100}
		workload  = "access-log"
		profile   string
		asJSON    bool
	)
	cmd := &cobra.Command{
		Use:   "fanout",
		Short: "Store requests and CPU time of many consumers of one live category",
		Long: `Write one category at a fixed rate while 1, 10 and 100 consumers follow it, each reading everything. Report the bytes delivered per byte
fetched from the store, and the CPU time per byte delivered: the total, and that of reading alone, which excludes the cost of the same
traffic without readers. Each measurement runs a new cell in this process.`,
		Example: `  scribe bench fanout
  scribe bench fanout --consumers 1,300 --rate 2MB --duration 30s --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.BytesPerSecond < 1 || o.Duration < second {
				return usageError(errors.New("--rate must be above zero, --duration a second or more"))
			}
			if err := checkRange("--consumers", 10_000, consumers...); err != nil {
				return err
			}
			if o.Workload, err = bench.NewWorkload(workload); err != nil {
				return usageError(err)
			}
			limit, err := bench.DecoderNsPerByte(o.Workload)
			if err != nil {
				return err
			}
			stop, err := startProfile(profile)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, stop()) }()
			var reports []bench.FanoutReport
			for _, o.Consumers = range append([]int{0}, consumers...) {
				r, err := measureCell(cmd, nil, bench.Fanout, o)
				if err != nil {
					return fmt.Errorf("%d consumers: %w", o.Consumers, err)
				}
				if len(reports) > 0 {
					r.Beside(reports[0], limit)
				}
				reports = append(reports, r)
			}
			return printReports(cmd.OutOrStdout(), asJSON, reports[1:], bench.FanoutTable)
		},
	}
	fs := cmd.Flags()
	fs.IntSliceVar(&consumers, "consumers", consumers, "consumers that follow at the same time, a measurement each")
	fs.Var(&o.BytesPerSecond, "rate", "payload a second that is written")
	fs.Var(&o.Duration, "duration", "how long is written in each measurement")
	fs.StringVar(&workload, "workload", workload, "messages: 100b, access-log, 10kb")
	fs.StringVar(&profile, "cpuprofile", "", "write a CPU profile of the measurements to this file")
	fs.BoolVar(&asJSON, "json", false, "print a JSON object a line")
	return cmd
}

func newBenchQuery() *cobra.Command {
	var (
		o                   = bench.QueryOptions{Queries: bench.QueryCount(), BytesPerSecond: 4_000_000, Duration: units.Duration(10 * time.Second)}
		readers             = []int{1, 20, 100}
		history units.Bytes = 1_000_000_000
		profile string
		asJSON  bool
	)
	cmd := &cobra.Command{
		Use:   "query",
		Short: "Cost of many queries over one live category, and the time to the first row of a history",
		Long: `Write an access log of JSON objects at a fixed rate while 1, 20 and 100 readers follow it, each with one of 20 queries. Report the bytes
fetched from the store, the payloads computed for one reader and served to others, and the CPU time per reader, which excludes the cost of
the same traffic without readers. Then write a history and search it for its only matching row, first without zone maps and then with
them. Each measurement runs a new cell in this process.`,
		Example: `  scribe bench query
  scribe bench query --readers 100 --rate 2MB --duration 30s --history 0 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.BytesPerSecond < 1 || o.Duration < second {
				return usageError(errors.New("--rate must be above zero, --duration a second or more"))
			}
			if err := checkRange("--readers", 10_000, readers...); err != nil {
				return err
			}
			if err := checkRange("--queries", bench.QueryCount(), o.Queries); err != nil {
				return err
			}
			stop, err := startProfile(profile)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, stop()) }()
			var reports []bench.QueryReport
			for _, o.Readers = range append([]int{0}, readers...) {
				r, err := measureCell(cmd, nil, bench.Queries, o)
				if err != nil {
					return fmt.Errorf("%d readers: %w", o.Readers, err)
				}
				if len(reports) > 0 {
					r.Beside(reports[0])
				}
				reports = append(reports, r)
			}
			if history > 0 {
				r, err := measureCell(cmd, nil, bench.FirstRow, int64(history))
				if err != nil {
					return fmt.Errorf("the first row of a history: %w", err)
				}
				reports = append(reports, r)
			}
			return printReports(cmd.OutOrStdout(), asJSON, reports[1:], bench.QueryTable)
		},
	}
	fs := cmd.Flags()
	fs.IntSliceVar(&readers, "readers", readers, "readers that follow at the same time, a measurement each")
	fs.IntVar(&o.Queries, "queries", o.Queries, "different queries among them")
	fs.Var(&o.BytesPerSecond, "rate", "payload a second that is written")
	fs.Var(&o.Duration, "duration", "how long is written in each measurement")
	fs.Var(&history, "history", "payload that is there when the first row is looked for; 0 leaves that out")
	fs.StringVar(&profile, "cpuprofile", "", "write a CPU profile of the measurements to this file")
	fs.BoolVar(&asJSON, "json", false, "print a JSON object a line")
	return cmd
}
