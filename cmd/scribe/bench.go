package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/pprof"
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
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure writes, reads and latency beside the cost of compression alone",
		Long: `Measure a cell on real text. Without --server the cell runs in this process, on files in a temporary folder, and is reached over
TCP loopback; CPU time is then that of producer, every role and consumer together. Each figure stands beside what zstd alone
costs on the same bytes in the same run. MB are millions of bytes.`,
		Example: `  scribe bench produce
  scribe bench e2e --messages 100
  scribe bench consume --workload access-log --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, b := range []struct {
		name, short, long string
		run               func(context.Context, bench.Options) (bench.Report, error)
	}{
		{"produce", "Committed writes as fast as one producer can", `Write a workload until --bytes of payload are committed, with one producer that has several requests in flight, and compare the CPU
time for a byte with what zstd alone takes for the same bytes.`, bench.Produce},
		{"consume", "Reads from the beginning to the end as fast as one consumer can", `Fill a category, which is not measured, read it from its beginning to its end, and compare the CPU time for a byte with what the
decoder alone takes for the same bytes: over a stream that no cache holds and on all cores, and over a few blocks again and again.`, bench.Consume},
		{"catchup", "Reads of a backlog that is on disk alone", `Fill a category, which is not measured, make the system forget the files, and read it from its beginning to its end. What that takes
stands beside reading and decompressing the same files with nothing around it, on all cores, in time and in CPU time. The cell runs in this
process.`, bench.CatchUp},
		{"e2e", "Latency of committed writes and of delivery at a fixed light load", `Write messages at a fixed rate, one at a time, each committed, while a consumer follows, and report how long the acknowledgement and
the delivery took.`, bench.EndToEnd},
	} {
		c := newBenchOf(b.name, b.short, b.run)
		c.Long = b.long
		cmd.AddCommand(c)
	}
	cmd.AddCommand(newBenchCategories(), newBenchCost(), newBenchFanout(), newBenchNeighbour(), newBenchOutage(), newBenchQuery())
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
	fs.StringVar(&f.profile, "cpuprofile", "", "write a CPU profile of what is measured to this file, from the first run's beginning to the last one's end")
	fs.BoolVar(&f.json, "json", false, "a JSON object a run")
	switch name {
	case "e2e":
		fs.IntVar(&f.messages, "messages", 1000, "messages to send")
		fs.IntVar(&f.rate, "rate", 100, "messages a second")
		cmd.Flags().Lookup("workload").DefValue = "access-log"
		f.workloads = []string{"access-log"}
	case "catchup":
		cmd.Flags().Lookup("workload").DefValue = "access-log"
		f.workloads = []string{"access-log"}
		fs.Var(&f.bytes, "bytes", "payload of the backlog")
	default:
		fs.Var(&f.bytes, "bytes", "payload of a run")
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.count < 1 || name == "e2e" && (f.messages < 1 || f.rate < 1 || f.rate > 1_000_000) {
			return usage(errors.New("--count, --messages and --rate must be above zero, --rate at most 1000000"))
		}
		if f.bytes < 1 || len(f.workloads) == 0 {
			return usage(errors.New("--bytes must be above zero, and there must be a --workload"))
		}
		return f.run(cmd, run)
	}
	return cmd
}

func (f *benchFlags) run(cmd *cobra.Command, run func(context.Context, bench.Options) (bench.Report, error)) (err error) {
	ctx := cmd.Context()
	o := bench.Options{Server: f.server, Bytes: int64(f.bytes), Messages: f.messages, Rate: f.rate}
	if f.server == "" {
		stop, url, serr := benchCell(cmd, f.data, func(c *app.Config) { o.Blobs = c.BlobPath() })
		if serr != nil {
			return serr
		}
		defer func() { err = errors.Join(err, stop()) }()
		o.Server, o.InProcess = url, true
	} else if err := reachable(ctx, f.server); err != nil {
		return err
	}
	if f.profile != "" {
		var stop func() error
		defer func() {
			if stop != nil {
				err = errors.Join(err, stop())
			}
		}()
		o.Measured = func() (err error) {
			if stop == nil {
				stop, err = startProfile(f.profile)
			}
			return err
		}
	}
	var reports []bench.Report
	for _, name := range f.workloads {
		if o.Workload, err = bench.NewWorkload(name); err != nil {
			return usage(err)
		}
		for i := range f.count {
			o.Category = fmt.Sprintf("bench-%d-%s-%d", time.Now().UnixNano(), name, i)
			r, err := run(ctx, o)
			if err != nil {
				return fmt.Errorf("bench %s, workload %s: %w", cmd.Name(), name, err)
			}
			if f.json {
				if err := json.NewEncoder(cmd.OutOrStdout()).Encode(r); err != nil {
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

// reachable asks a cell for a sign of life: a load on one that is not there would only be given up after minutes.
func reachable(ctx context.Context, server string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := rpc.NewControlClient(rpc.Default(), server).GetStatus(ctx, &scribev1.GetStatusRequest{}); err != nil {
		return called(server, "bench", err)
	}
	return nil
}

func startProfile(path string) (stop func() error, err error) {
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
