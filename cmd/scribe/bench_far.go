package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/cmd/scribe/bench"
	"scribe/internal/base/units"
	"scribe/producer"
	"scribe/storage/blob"
)

// farBench is what bench far was told.
type farBench struct {
	server    serverFlags
	store     app.Config // that names the store
	options   bench.FarOptions
	runs      []bench.FarOptions // by scenario and rate
	scenarios []string
	bytes     units.Bytes
	rates     []string
	manyRates []string
	workload  string
	count     int
	profile   string
	json      bool
}

// startStoreHint is how to get a store to measure with.
const startStoreHint = `the S3 store must run already; for one on this machine:
  ROOT_ACCESS_KEY=scribe ROOT_SECRET_KEY=scribe-secret versitygw --port 127.0.0.1:7070 posix ./objects
  export SCRIBE_S3_ENDPOINT=http://127.0.0.1:7070 SCRIBE_S3_BUCKET=bench SCRIBE_S3_ACCESS_KEY=scribe SCRIBE_S3_SECRET_KEY=scribe-secret
  scribe bench far --s3-create-bucket`

func newBenchFar() *cobra.Command {
	f := &farBench{scenarios: bench.FarScenarios(), bytes: 512 << 20, rates: []string{"1MB", "30MB"}, manyRates: []string{"max"}, workload: "access-log", count: 1}
	o := &f.options
	o.Delay = bench.DelayRange{Least: units.Duration(30 * time.Millisecond), Most: units.Duration(90 * time.Millisecond)}
	o.Duration, o.Categories, o.Active = 10*second, 100_000, 10_000
	o.WriterMemory = producer.DefaultMaxBufferedBytes
	cmd := &cobra.Command{
		Use:   "far",
		Short: "Writes, latency, reads and cost where the object store is far away",
		Long: `Measure a cell on an S3 store behind a built-in delay: each request to the store waits for a random time in the range of --delay. The
store must run already. It must accept any host name, and the bucket in the path, as self-hosted ones do. The cell runs in this process, a
new one for each scenario, with a prefix of its own in the bucket. Its objects are deleted at the end.

Scenarios:
  write       one producer writes one category, committed, as fast as it can
  agent       four producers of one host write one category through the agent
  categories  four producers of one host write a category each through the agent
  latency     one producer writes 1 MB/s, committed, while a consumer follows
  backlog     one consumer reads what was written before the cell restarted
  tail        one consumer follows four producers that write --rate together
  many        four producers write to many categories by Zipf's law, --many-rate together, without waiting, beside a program with small
              committed writes

The scenarios latency and tail are measured in steady state: batchers push what is read at the tail to the read proxies, so they should show
no GETs. Delivery is from the commit of a pointer to the consumer's having its messages.

Speeds are compared with the store's client alone, behind the same delay and in the same run. For writes it puts 16 objects of 8 MB, 8 at a
time, of payload compressed before (objects are smaller where --bytes is less than 128 MB). For reads it gets the very blobs, each as a whole,
8 at a time, and does not decompress them. MB are millions of bytes.

What a GB costs assumes the list prices of S3 Standard in us-east-1: 0.005 dollars for 1,000 PUTs, POSTs or LISTs, 0.0004 for 1,000 GETs or
HEADs, and 0.023 for a GB and month. Requests are paid once, storage every month.`,
		Example: `  # a store on this machine, in another terminal:
  ROOT_ACCESS_KEY=scribe ROOT_SECRET_KEY=scribe-secret versitygw --port 127.0.0.1:7070 posix ./objects

  export SCRIBE_S3_ENDPOINT=http://127.0.0.1:7070 SCRIBE_S3_BUCKET=bench SCRIBE_S3_ACCESS_KEY=scribe SCRIBE_S3_SECRET_KEY=scribe-secret
  scribe bench far --s3-create-bucket
  scribe bench far --scenario write,latency --delay 5ms..15ms --count 3 --json
  scribe bench far --scenario many --many-rate 1MB,100MB,max --linger 1m --duration 2m
  scribe bench far --scenario many --many-rate 1MB,30MB,150MB --categories 1 --active 1
  scribe bench far --scenario write --delay 0 --bytes 2GiB --cpuprofile cpu.out`,
		Args: cobra.NoArgs,
		RunE: f.runFar,
	}
	d := app.DefaultConfig()
	d.Blobs.Kind = "s3"
	f.server.addFlags(cmd, "far", d)
	fs := cmd.Flags()
	fs.Var(&o.Delay, "delay", "how long each request to the store is held back: a duration, or a range in which each waits a random time")
	fs.StringSliceVar(&f.scenarios, "scenario", f.scenarios, "what to measure")
	fs.Var(&f.bytes, "bytes", "payload bytes of each scenario that goes as fast as it can")
	fs.Var(&o.Duration, "duration", "length of each other scenario, after warming up")
	fs.StringSliceVar(&f.rates, "rate", f.rates, "payload a second of the scenario tail, a measurement each")
	fs.IntVar(&o.Categories, "categories", o.Categories, "categories of the scenario many")
	fs.IntVar(&o.Active, "active", o.Active, "how many of them are written to")
	fs.StringSliceVar(&f.manyRates, "many-rate", f.manyRates, "payload a second of the scenario many, a measurement each; max = as much as goes")
	fs.Var(&o.Linger, "linger", "linger of its categories; 0s = as producers choose")
	fs.Var(&o.WriterMemory, "writer-memory", "what each of its four producers may buffer")
	fs.StringVar(&f.workload, "workload", f.workload, "messages: 100b, access-log, 10kb")
	fs.IntVar(&f.count, "count", f.count, "runs of each scenario")
	fs.StringVar(&f.profile, "cpuprofile", "", "write a CPU profile of all runs to this file")
	fs.BoolVar(&f.json, "json", false, "print a JSON object a line")
	return cmd
}

// checkFlags checks everything that can be checked without the store.
func (f *farBench) checkFlags(cmd *cobra.Command) (err error) {
	o := &f.options
	if f.bytes < 1 || o.Duration < second || f.count < 1 {
		return usageError(errors.New("want more than 0 for --bytes and --count, and a second or more for --duration"))
	}
	if o.Active < 1 || o.Categories < o.Active || o.Categories > 10_000_000 {
		return usageError(errors.New("want 1 <= --active <= --categories <= 10000000"))
	}
	if o.Workload, err = bench.NewWorkload(f.workload); err != nil {
		return usageError(err)
	}
	if o.Linger < 0 || o.Linger.Std() > producer.MaxLinger || o.WriterMemory < 1<<20 {
		return usageError(fmt.Errorf("want 0s to %v for --linger, and 1MiB or more for --writer-memory", producer.MaxLinger))
	}
	o.Bytes = int64(f.bytes)
	if err := f.planRuns(); err != nil {
		return err
	}
	if f.store, err = f.server.configure(cmd); err != nil {
		return err
	}
	if err := f.store.ValidateBlobs(); err != nil {
		return usageError(fmt.Errorf("%w\n%s", err, startStoreHint))
	}
	return nil
}

// parseRates parses rates, given by a flag. most is the word for as much as goes, if there is one.
func parseRates(flag string, texts []string, most string) (rates []units.Bytes, err error) {
	for _, text := range texts {
		var rate units.Bytes
		if most == "" || text != most {
			if err := rate.Set(text); err != nil || rate == 0 {
				return nil, usageError(fmt.Errorf("%s %q: want bytes a second, such as 1MB", flag, text))
			}
		}
		rates = append(rates, rate)
	}
	return rates, nil
}

// planRuns lists what is measured: each scenario once, but a tail and many categories at each of their rates.
func (f *farBench) planRuns() error {
	rates, err := parseRates("--rate", f.rates, "")
	if err != nil {
		return err
	}
	manyRates, err := parseRates("--many-rate", f.manyRates, "max")
	if err != nil {
		return err
	}
	ratesOf := map[string][]units.Bytes{bench.FarTail: rates, bench.FarMany: manyRates}
	for _, scenario := range f.scenarios {
		if err := checkChoice("--scenario", scenario, bench.FarScenarios()...); err != nil {
			return err
		}
		o := f.options
		o.Scenario = scenario
		rates, several := ratesOf[scenario]
		if !several {
			rates = []units.Bytes{0}
		}
		for _, o.BytesPerSecond = range rates {
			f.runs = append(f.runs, o)
		}
	}
	if len(f.runs) == 0 {
		return usageError(errors.New("want at least one --scenario, one --rate for the scenario tail, and one --many-rate for many"))
	}
	return nil
}

// runFar measures every scenario as often as it was told.
func (f *farBench) runFar(cmd *cobra.Command, _ []string) (err error) {
	if err := f.checkFlags(cmd); err != nil {
		return err
	}
	// A store that is not there, or denies access, is an error of its own rather than of a cell. This also creates the bucket.
	if err := withBlobs(cmd.Context(), f.store, func(blob.Store) error { return nil }); err != nil {
		return err
	}
	stop, err := startProfile(f.profile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	var reports []bench.FarReport
	for range f.count {
		for _, o := range f.runs {
			r, err := f.measureScenario(cmd, o)
			if err != nil {
				return fmt.Errorf("bench far, scenario %s: %w", o.Scenario, err)
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
	return bench.FarTable(cmd.OutOrStdout(), reports)
}

// cleanUpTimeout bounds how long deleting a cell's objects takes, also after an interruption.
const cleanUpTimeout = 2 * time.Minute

// measureScenario measures a new cell, with a delay between it and the store, a folder and a prefix of its own.
func (f *farBench) measureScenario(cmd *cobra.Command, o bench.FarOptions) (r bench.FarReport, err error) {
	c := f.store
	c.Blobs.S3.Prefix = strings.Join(slices.DeleteFunc([]string{f.store.Blobs.S3.Prefix, "bench-far-" + strings.ToLower(rand.Text())}, func(s string) bool { return s == "" }), "/")
	c.Log.Level, c.Listen = "warn", "127.0.0.1:0"
	near := c
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), cleanUpTimeout)
		defer cancel()
		if derr := withBlobs(ctx, near, func(s blob.Store) error { return bench.DeleteBlobs(ctx, s) }); derr != nil {
			err = errors.Join(err, fmt.Errorf("delete the objects below %s: %w", near.Blobs.S3.Prefix, derr))
		}
	}()
	if c.Data, err = os.MkdirTemp("", "scribe-bench-"); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(c.Data)) }()
	if o.Proxy, err = bench.NewDelayProxy(cmd.Context(), c.Blobs.S3.Endpoint, o.Delay); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, o.Proxy.Close()) }()
	c.Blobs.S3.Endpoint = o.Proxy.URL()
	cell, stop, err := startApp(cmd.Context(), c, app.Options{}, cmd.ErrOrStderr())
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	o.Server = cell.URL()
	o.Restart = func(ctx context.Context) (string, error) {
		if err := stop(); err != nil {
			return "", err
		}
		cell, again, err := startApp(ctx, c, app.Options{}, cmd.ErrOrStderr())
		if err != nil {
			return "", err
		}
		stop = again
		return cell.URL(), nil
	}
	err = withBlobs(cmd.Context(), c, func(s blob.Store) (err error) {
		o.Store = s
		r, err = bench.Far(cmd.Context(), o)
		return err
	})
	return r, err
}
