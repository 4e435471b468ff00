package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/cmd/scribe/bench"
	"scribe/internal/base/units"
	scribev1 "scribe/proto/scribe/v1"
)

// benchCell starts a cell in this process, on files in a folder; empty = a temporary one.
func benchCell(cmd *cobra.Command, dir string, adjust func(*app.Config)) (stop func() error, url string, err error) {
	temporary := dir == ""
	if temporary {
		if dir, err = os.MkdirTemp("", "scribe-bench-"); err != nil {
			return nil, "", err
		}
	}
	c := app.DefaultConfig()
	c.Data, c.Listen, c.Log.Level = dir, "127.0.0.1:0", "warn"
	if adjust != nil {
		adjust(&c)
	}
	a, err := app.Start(cmd.Context(), c, app.Options{Logger: newLogger(c.Log, cmd.ErrOrStderr()), Version: programVersion()})
	if err != nil {
		return nil, "", err
	}
	return func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), c.ShutdownTimeout)
		defer cancel()
		err := a.Stop(ctx)
		if temporary {
			err = errors.Join(err, os.RemoveAll(dir))
		}
		return err
	}, a.URL(), nil
}

// withCell runs fn against a new cell in this process.
func withCell(cmd *cobra.Command, adjust func(*app.Config), fn func(server string) error) (err error) {
	stop, url, err := benchCell(cmd, "", adjust)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	return fn(url)
}

// printReports writes reports as JSON objects, a line each, or as a table.
func printReports[R any](w io.Writer, asJSON bool, reports []R, table func(io.Writer, []R) error) error {
	if !asJSON {
		return table(w, reports)
	}
	enc := json.NewEncoder(w)
	for i := range reports {
		if err := enc.Encode(&reports[i]); err != nil {
			return err
		}
	}
	return nil
}

func newBenchCategories() *cobra.Command {
	o := bench.CategoriesOptions{}
	length := units.Duration(20 * time.Second)
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
			if o.Active < 2 || o.Categories < o.Active || o.Categories > 10_000_000 || o.MessagesPerSecond < 1 || length < units.Duration(time.Second) {
				return usageError(errors.New("want 2 <= --active <= --categories <= 10000000, --rate above zero, --duration of a second or more"))
			}
			o.Duration = length.Std()
			if o.Workload, err = bench.NewWorkload("access-log"); err != nil {
				return err
			}
			return withCell(cmd, nil, func(server string) error {
				o.Server = server
				r, err := bench.Categories(cmd.Context(), o)
				if err != nil {
					return err
				}
				return printReports(cmd.OutOrStdout(), asJSON, []bench.CategoriesReport{r}, func(w io.Writer, rs []bench.CategoriesReport) error { return rs[0].Print(w) })
			})
		},
	}
	fs := cmd.Flags()
	fs.IntVar(&o.Categories, "categories", 100_000, "categories to create")
	fs.IntVar(&o.Active, "active", 10_000, "how many of them are written to")
	fs.IntVar(&o.MessagesPerSecond, "rate", 50_000, "messages a second to them, in all")
	fs.Var(&length, "duration", "length of the phase with traffic")
	fs.BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func newBenchCost() *cobra.Command {
	var (
		rates      = []string{"1MB", "100MB", "max"}
		categories = []int{1, 10_000}
		floor      = units.Duration(250 * time.Millisecond)
		length     = units.Duration(20 * time.Second)
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
			w, err := bench.NewWorkload(workload)
			if err != nil {
				return usageError(err)
			}
			if length < units.Duration(time.Second) {
				return usageError(errors.New("--duration must be a second or more"))
			}
			var reports []bench.CostReport
			for _, rate := range rates {
				o := bench.CostOptions{Workload: w, Duration: length.Std()}
				if rate != "max" {
					n, err := units.ParseBytes(rate)
					if err != nil || n == 0 {
						return usageError(fmt.Errorf("--rate %q: want bytes a second, such as 1MB, or max", rate))
					}
					o.BytesPerSecond = float64(n)
				}
				for _, n := range categories {
					if o.Categories = n; n < 1 || n > 1_000_000 {
						return usageError(fmt.Errorf("--categories %d is outside 1 to 1000000", n))
					}
					err := withCell(cmd, func(c *app.Config) { c.FlushFloor = new(floor.Std()) }, func(server string) error {
						o.Server = server
						r, err := bench.Cost(cmd.Context(), o)
						reports = append(reports, r)
						return err
					})
					if err != nil {
						return fmt.Errorf("%s to %d categories: %w", rate, n, err)
					}
				}
			}
			return printReports(cmd.OutOrStdout(), asJSON, reports, bench.CostTable)
		},
	}
	fs := cmd.Flags()
	fs.StringSliceVar(&rates, "rate", rates, "payload a second, or max")
	fs.IntSliceVar(&categories, "categories", categories, "categories that share it")
	fs.Var(&floor, "flush-floor", "least time between two flushes of the batcher")
	fs.Var(&length, "duration", "length of each measurement")
	fs.StringVar(&workload, "workload", workload, "messages: 100b, access-log, 10kb")
	fs.BoolVar(&asJSON, "json", false, "print a JSON object a line")
	return cmd
}

func newBenchNeighbour() *cobra.Command {
	o := bench.NeighbourOptions{}
	var (
		quota  units.Bytes = 256 << 10
		every              = units.Duration(10 * time.Millisecond)
		length             = units.Duration(20 * time.Second)
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "neighbour",
		Short: "Latency of quiet categories next to one far over its quota",
		Long: `Measure the latency of committed writes to quiet categories, first alone, then while writers offer another category many times its quota,
for each quota mode.`,
		Example: `  scribe bench neighbour
  scribe bench neighbour --quota 1MiB --excess 100 --duration 60s --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if quota == 0 || o.Excess <= 0 || o.Quiet < 1 || every <= 0 || length < units.Duration(time.Second) {
				return usageError(errors.New("--quota, --excess, --quiet and --every must be above zero, --duration a second or more"))
			}
			o.Quota, o.Every, o.Duration = int64(quota), every.Std(), length.Std()
			if o.Workload, err = bench.NewWorkload("access-log"); err != nil {
				return err
			}
			var reports []bench.NeighbourReport
			for _, o.Mode = range []scribev1.QuotaMode{
				scribev1.QuotaMode_QUOTA_MODE_BLOCK, scribev1.QuotaMode_QUOTA_MODE_THROTTLE, scribev1.QuotaMode_QUOTA_MODE_SAMPLE,
			} {
				err := withCell(cmd, nil, func(server string) error {
					o.Server = server
					r, err := bench.Neighbour(cmd.Context(), o)
					reports = append(reports, r)
					return err
				})
				if err != nil {
					return err
				}
			}
			return printReports(cmd.OutOrStdout(), asJSON, reports, bench.NeighbourTable)
		},
	}
	fs := cmd.Flags()
	fs.Var(&quota, "quota", "bytes a second that the noisy category may write")
	fs.Float64Var(&o.Excess, "excess", 100, "how many times its quota it is offered")
	fs.IntVar(&o.Quiet, "quiet", 10, "quiet categories")
	fs.Var(&every, "every", "pause between two of their writes")
	fs.Var(&length, "duration", "length of each half of a measurement")
	fs.BoolVar(&asJSON, "json", false, "print a JSON object a line")
	return cmd
}
