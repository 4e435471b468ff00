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
	}, newBenchCategories(), newBenchCost(), newBenchFanout(), newBenchNeighbour(), newBenchOutage(), newBenchQuery())
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
	f := benchFlags{bytes: 256 << 20}
	if name == "catchup" {
		f.bytes = 5_000_000_000
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
		fs.StringVar(&f.server, "server", "", "address of a running cell (default: one in this process)")
	}
	fs.StringVar(&f.data, "data", "", "folder of the cell in this process (default: a temporary one)")
	fs.StringSliceVar(&f.workloads, "workload", bench.WorkloadNames(), "messages: 100b, access-log, 10kb")
	fs.IntVar(&f.count, "count", 1, "runs of each workload")
	fs.StringVar(&f.profile, "cpuprofile", "", "write a CPU profile of the measurements to this file, from the start of the first run to the end of the last")
	fs.BoolVar(&f.json, "json", false, "print a JSON object per run")
	switch name {
	case "e2e":
		fs.IntVar(&f.messages, "messages", 1000, "messages to send")
		fs.IntVar(&f.rate, "rate", 100, "messages a second")
		cmd.Flags().Lookup("workload").DefValue = "access-log"
		f.workloads = []string{"access-log"}
	case "catchup":
		cmd.Flags().Lookup("workload").DefValue = "access-log"
		f.workloads = []string{"access-log"}
		fs.Var(&f.bytes, "bytes", "payload bytes of the backlog")
	default:
		fs.Var(&f.bytes, "bytes", "payload bytes of each run")
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
		return f.measureWorkloads(cmd, o, run)
	}
	return withCell(cmd, f.data, func(c *app.Config) { o.Blobs = c.BlobPath() }, func(server string) error {
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
