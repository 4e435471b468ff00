package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/internal/base/units"
)

// serverFlags are those that up, serve and agent share. Each writes into a configuration only when it was given, so that a file
// keeps what it says.
type serverFlags struct {
	config          string
	data            string
	listen          string
	advertise       string
	control         string
	metalog         string
	upstream        string
	roles           string
	id              string
	socket          string
	spool           string
	spoolBytes      units.Bytes
	blobs           string
	blobPath        string
	s3              app.S3Config
	autoCreate      bool
	pprof           bool
	logLevel        string
	logFormat       string
	shutdownTimeout units.Duration
	flushFloor      units.Duration
	leaseTTL        units.Duration
	limits          app.Limits
	collector       app.CollectorConfig
	gateway         app.GatewayConfig
	region          string
	regions         []string
	memcached       []string
	maxViews        int
}

func (f *serverFlags) add(cmd *cobra.Command, d app.Config) {
	fs := cmd.Flags()
	f.shutdownTimeout, f.leaseTTL, f.limits = d.ShutdownTimeout, d.LeaseTTL, d.Limits
	fs.StringVar(&f.config, "config", "", "YAML configuration; flags and environment win over it")
	fs.StringVar(&f.listen, "listen", d.Listen, "address to serve on, host:port; port 0 takes a free one")
	fs.StringVar(&f.id, "id", "", "name in the membership (default: host name and a random part, kept in the data folder)")
	fs.StringVar(&f.logLevel, "log-level", d.Log.Level, "debug, info, warn or error")
	fs.StringVar(&f.logFormat, "log-format", d.Log.Format, "text or json")
	fs.BoolVar(&f.pprof, "pprof", false, "serve profiles under /debug/pprof/")
	fs.Var(&f.shutdownTimeout, "shutdown-timeout", "how long SIGTERM waits for what was accepted to become durable")
	fs.Var(&f.limits.WriteMemory, "write-memory", "most bytes of write requests in flight")
}

func (f *serverFlags) addStorage(cmd *cobra.Command, d app.Config) {
	fs := cmd.Flags()
	f.addBlobs(cmd, d)
	fs.StringVar(&f.advertise, "advertise", "", "base URL under which others reach this process (default: http:// and the listening address)")
	fs.BoolVar(&f.autoCreate, "auto-create", d.AutoCreate, "create a category on the first write to it")
	fs.Var(&f.flushFloor, "flush-floor", "least time between two flushes of a batcher; without it 0 on files, 250ms on S3")
	fs.Var(&f.leaseTTL, "lease-ttl", "how long the process stays a member without a heartbeat")
	fs.Var(&f.limits.BatchMemory, "batch-memory", "most bytes that a batcher holds before they are durable")
	fs.Var(&f.limits.ReadCache, "read-cache", "most bytes that a read proxy caches")
	fs.Var(&f.limits.ReadMemory, "read-memory", "most bytes of requests and answers in a read proxy, and as many of payloads that it fetches")
	fs.StringSliceVar(&f.memcached, "memcached", nil, "memcached servers that the region's read proxies share, HOST:PORT,...")
	fs.IntVar(&f.maxViews, "max-views", d.ReadProxy.Views.Most, "how many views a read proxy makes of payloads for the queries of a category, 1 to 64")
	fs.StringVar(&f.region, "region", "", "name of this cell's region, the same in all its processes; only where there are several")
	fs.StringSliceVar(&f.regions, "regions", nil, "other regions whose payloads are served here, through their read proxies: NAME=URL,...")
	f.collector = d.Collector
	fs.Var(&f.collector.Grace, "collector-grace", "how old a blob is at least when the collector looks at it: how long a batcher may take to commit it")
	fs.Var(&f.collector.Linger, "collector-linger", "how long a blob stays after retention has removed the last pointer to it")
	fs.Var(&f.collector.PinLimit, "collector-pin-limit", "how far beyond a category's retention readers may hold it back")
	fs.Var(&f.collector.Interval, "collector-interval", "least time between two looks at what retention has to remove")
	fs.StringVar(&f.collector.Adopt, "collector-adopt", "", "claim in the blob store, as named by the collector's error, that it may replace")
	f.gateway = d.Gateway
	fs.StringVar(&f.gateway.Flight, "flight", "", "address to serve Arrow Flight SQL on, host:port (default: it is not served); queries over HTTP are at --listen, under /v1/query")
	fs.IntVar(&f.gateway.MaxQueries, "max-queries", d.Gateway.MaxQueries, "how many queries over the network run at a time")
	fs.Var(&f.gateway.QueryMemory, "query-memory", "most bytes that such a query holds")
	fs.Var(&f.gateway.MaxTime, "query-time", "how long such a query may run, if it does not follow; 0s = as long as it likes")
	fs.Var(&f.limits.MetadataCache, "metadata-cache", "most bytes that the metadata engine caches")
}

// addBlobs adds the flags that say where payloads are kept.
func (f *serverFlags) addBlobs(cmd *cobra.Command, d app.Config) {
	fs := cmd.Flags()
	fs.StringVar(&f.data, "data", d.Data, "folder of everything that is kept")
	fs.StringVar(&f.blobs, "blobs", d.Blobs.Kind, "where payloads are kept: file or s3")
	fs.StringVar(&f.blobPath, "blob-path", "", "folder of a file store (default: blobs in the data folder)")
	fs.StringVar(&f.s3.Endpoint, "s3-endpoint", "", "URL of the S3 store")
	fs.StringVar(&f.s3.Bucket, "s3-bucket", "", "bucket")
	fs.BoolVar(&f.s3.CreateBucket, "s3-create-bucket", false, "create the bucket when it does not exist")
	fs.StringVar(&f.s3.Prefix, "s3-prefix", "", "prefix of every key")
	fs.StringVar(&f.s3.Region, "s3-region", "", "region of the bucket")
	fs.StringVar(&f.s3.AccessKey, "s3-access-key", "", "access key; better in the environment, SCRIBE_S3_ACCESS_KEY")
	fs.StringVar(&f.s3.SecretKey, "s3-secret-key", "", "secret key; better in the environment, SCRIBE_S3_SECRET_KEY")
}

// apply lays what was given over c.
func (f *serverFlags) apply(cmd *cobra.Command, c *app.Config) error {
	if f.config != "" {
		if err := c.Load(f.config); err != nil {
			return usage(err)
		}
	}
	set := map[string]func() error{
		"listen":           func() error { c.Listen = f.listen; return nil },
		"id":               func() error { c.ID = f.id; return nil },
		"log-level":        func() error { c.Log.Level = f.logLevel; return nil },
		"log-format":       func() error { c.Log.Format = f.logFormat; return nil },
		"pprof":            func() error { c.Pprof = f.pprof; return nil },
		"shutdown-timeout": func() error { c.ShutdownTimeout = f.shutdownTimeout; return nil },
		"write-memory":     func() error { c.Limits.WriteMemory = f.limits.WriteMemory; return nil },
		"data":             func() error { c.Data = f.data; return nil },
		"advertise":        func() error { c.Advertise = f.advertise; return nil },
		"blobs":            func() error { c.Blobs.Kind = f.blobs; return nil },
		"blob-path":        func() error { c.Blobs.Path = f.blobPath; return nil },
		"s3-endpoint":      func() error { c.Blobs.S3.Endpoint = f.s3.Endpoint; return nil },
		"s3-bucket":        func() error { c.Blobs.S3.Bucket = f.s3.Bucket; return nil },
		"s3-create-bucket": func() error { c.Blobs.S3.CreateBucket = f.s3.CreateBucket; return nil },
		"s3-prefix":        func() error { c.Blobs.S3.Prefix = f.s3.Prefix; return nil },
		"s3-region":        func() error { c.Blobs.S3.Region = f.s3.Region; return nil },
		"s3-access-key":    func() error { c.Blobs.S3.AccessKey = f.s3.AccessKey; return nil },
		"s3-secret-key":    func() error { c.Blobs.S3.SecretKey = f.s3.SecretKey; return nil },
		"auto-create":      func() error { c.AutoCreate = f.autoCreate; return nil },
		"flush-floor":      func() error { c.FlushFloor = &f.flushFloor; return nil },
		"lease-ttl":        func() error { c.LeaseTTL = f.leaseTTL; return nil },
		"batch-memory":     func() error { c.Limits.BatchMemory = f.limits.BatchMemory; return nil },
		"read-cache":       func() error { c.Limits.ReadCache = f.limits.ReadCache; return nil },
		"read-memory":      func() error { c.Limits.ReadMemory = f.limits.ReadMemory; return nil },
		"memcached":        func() error { c.ReadProxy.Memcached.Servers = f.memcached; return nil },
		"max-views":        func() error { c.ReadProxy.Views.Most = f.maxViews; return nil },
		"region":           func() error { c.Region = f.region; return nil },
		"regions": func() (err error) {
			c.Regions, err = app.ParseRegions(f.regions)
			return usage(err)
		},
		"metadata-cache":      func() error { c.Limits.MetadataCache = f.limits.MetadataCache; return nil },
		"collector-grace":     func() error { c.Collector.Grace = f.collector.Grace; return nil },
		"collector-linger":    func() error { c.Collector.Linger = f.collector.Linger; return nil },
		"collector-pin-limit": func() error { c.Collector.PinLimit = f.collector.PinLimit; return nil },
		"collector-interval":  func() error { c.Collector.Interval = f.collector.Interval; return nil },
		"collector-adopt":     func() error { c.Collector.Adopt = f.collector.Adopt; return nil },
		"flight":              func() error { c.Gateway.Flight = f.gateway.Flight; return nil },
		"max-queries": func() error {
			c.Gateway.MaxQueries = f.gateway.MaxQueries
			c.Gateway.MaxFollows = min(c.Gateway.MaxFollows, c.Gateway.MaxQueries)
			return nil
		},
		"query-memory": func() error { c.Gateway.QueryMemory = f.gateway.QueryMemory; return nil },
		"query-time":   func() error { c.Gateway.MaxTime = f.gateway.MaxTime; return nil },
		"control":      func() error { c.Control = f.control; return nil },
		"metalog":      func() error { c.Metalog = f.metalog; return nil },
		"upstream":     func() error { c.Upstream = f.upstream; return nil },
		"socket":       func() error { c.Socket = f.socket; return nil },
		"spool":        func() error { c.Spool.Dir = f.spool; return nil },
		"spool-bytes":  func() error { c.Spool.MaxBytes = f.spoolBytes; return nil },
		"roles": func() error {
			roles, err := app.ParseRoles(f.roles)
			c.Roles = roles
			return usage(err)
		},
	}
	var errs []error
	for name, fn := range set {
		if cmd.Flags().Changed(name) {
			errs = append(errs, fn())
		}
	}
	return errors.Join(errs...)
}

func newUp() *cobra.Command {
	var f serverFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run every role in one process on an embedded default",
		Long: `Run every role in one process: payloads on files and metadata logs in Pebble below the data folder, one listening address, no
other service. Prints one line "ready http://HOST:PORT" on standard output when it serves. SIGTERM makes everything that was
accepted durable, then ends it.`,
		Example: `  scribe up
  scribe up --data /var/lib/scribe --listen 0.0.0.0:7420 --flight 0.0.0.0:7424
  SCRIBE_S3_ACCESS_KEY=... SCRIBE_S3_SECRET_KEY=... scribe up --blobs s3 --s3-endpoint http://127.0.0.1:9000 --s3-bucket scribe`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := app.DefaultConfig()
			if err := f.apply(cmd, &c); err != nil {
				return err
			}
			return runServer(cmd.Context(), c, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.add(cmd, app.DefaultConfig())
	f.addStorage(cmd, app.DefaultConfig())
	return cmd
}

func newServe() *cobra.Command {
	var f serverFlags
	d := app.DefaultConfig()
	d.AutoCreate = false
	cmd := &cobra.Command{
		Use:   "serve --roles ROLE,...",
		Short: "Run some roles of a cell that spans processes",
		Long: `Run some roles in this process: controlplane, metalog, batcher, writeproxy, scribed, readstream, readproxy, collector, sequencer, gateway. Roles that
are not here are reached at --control and --metalog, or through the membership that the control plane keeps.
Prints one line "ready http://HOST:PORT" on standard output when it serves.`,
		Example: `  scribe serve --roles controlplane,metalog --data ./meta --listen 127.0.0.1:7421
  scribe serve --roles batcher --control http://127.0.0.1:7421 --metalog http://127.0.0.1:7421 --blob-path ./blobs --data ./b1 --listen 127.0.0.1:7431
  scribe serve --roles readproxy --control http://127.0.0.1:7421 --blob-path ./blobs --data ./r1 --listen 127.0.0.1:7441 --memcached 127.0.0.1:11211
  scribe serve --roles gateway --control http://127.0.0.1:7421 --data ./g1 --listen 127.0.0.1:7451 --flight 127.0.0.1:7454
  scribe serve --config /etc/scribe/writeproxy.yaml
    # another region, and what a read proxy does, in the file:
    region: eu
    regions: [{name: us, read_proxies: "http://10.1.0.1:7420"}]
    read_proxy: {memcached: {servers: ["10.0.0.8:11211"]}, rules: [{match: "audit.*", memcached: never}]}`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := d
			c.Roles = nil
			if err := f.apply(cmd, &c); err != nil {
				return err
			}
			return runServer(cmd.Context(), c, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.add(cmd, d)
	f.addStorage(cmd, d)
	cmd.Flags().StringVar(&f.roles, "roles", "", "roles of this process, separated by commas, or all")
	cmd.Flags().StringVar(&f.control, "control", "", "base URL of the control plane, when it is not here")
	cmd.Flags().StringVar(&f.metalog, "metalog", "", "base URL of the process that serves the metadata logs, when it is not here")
	cmd.Flags().StringVar(&f.upstream, "upstream", "", "where scribed forwards to, when no writeproxy is here")
	return cmd
}

func newAgent() *cobra.Command {
	var (
		f     serverFlags
		drain bool
	)
	d := app.DefaultConfig()
	d.Roles = []app.Role{app.Scribed}
	d.Listen = "127.0.0.1:7410"
	d.Upstream = defaultServer
	d.Spool.Dir = "./scribe-spool"
	d.Limits.WriteMemory = 64 << 20 // the host is there for others, and what does not fit goes to the disk
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the host's daemon, which takes messages from programs of this host and forwards them",
		Long: `Run scribed: programs of this host write to it, with the producer library, over a Unix socket or TCP, by POSTing lines to
/v1/lines/CATEGORY, or through the inputs that --config names (files, syslog, OTLP, lines; see docs/inputs.md). It forwards their messages to a write proxy, with retries.

What it acknowledged as "spooled" is synced to its disk buffer; what it acknowledged as "none" goes there when the cell is slow or
away. Live traffic is forwarded first, a backlog beside it. SIGTERM keeps in the buffer what can't be forwarded in time.

--drain takes nothing new: it forwards what the buffer holds, prints what is left (category, messages, bytes), and ends with exit
code 0 when nothing is, and 6 otherwise.`,
		Example: `  scribe agent --upstream http://scribe.internal:7420 --spool /var/lib/scribe/spool
  scribe agent --upstream http://scribe.internal:7420 --socket /run/scribe.sock --config agent.yaml
    # agent.yaml:
    inputs:
      follow: [{name: nginx, paths: ["/var/log/nginx/*.log"], category: "nginx.{file}"}]
      syslog: [{udp: "127.0.0.1:5514", tcp: {address: "127.0.0.1:5514"}, category: "syslog.{app}"}]
      otlp:   [{listen: {address: "127.0.0.1:4317"}, category: "otel.{service.name}"}]
  scribe agent --upstream http://scribe.internal:7420 --spool /var/lib/scribe/spool --drain --drain-timeout 10m
  scribe produce access access.log --server unix:/run/scribe.sock --ack spooled`,
		Args: cobra.NoArgs,
	}
	timeout := units.Duration(time.Hour)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c := d
		if err := f.apply(cmd, &c); err != nil {
			return err
		}
		if drain {
			return runDrain(cmd.Context(), c, timeout.Std(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		}
		return runServer(cmd.Context(), c, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	f.add(cmd, d)
	f.spoolBytes = d.Spool.MaxBytes
	fs := cmd.Flags()
	fs.StringVar(&f.upstream, "upstream", d.Upstream, "address of the cell to forward to")
	fs.StringVar(&f.socket, "socket", "", "path of a Unix socket to serve on as well")
	fs.StringVar(&f.spool, "spool", d.Spool.Dir, "folder of the disk buffer; \"\" = memory only, and spooled waits for committed")
	fs.Var(&f.spoolBytes, "spool-bytes", "most bytes of the disk buffer")
	fs.BoolVar(&drain, "drain", false, "forward what the disk buffer holds, print what is left, and end")
	fs.Var(&timeout, "drain-timeout", "how long --drain goes on")
	return cmd
}

// runDrain forwards what an agent's buffer holds, and prints what is left.
func runDrain(ctx context.Context, c app.Config, timeout time.Duration, stdout, stderr io.Writer) error {
	if err := c.Validate(); err != nil {
		return usage(fmt.Errorf("bad configuration:\n%w", err))
	}
	c.Listen, c.Socket = "127.0.0.1:0", "" // nobody is to find it
	a, err := app.Start(ctx, c, app.Options{Logger: newLogger(c.Log, stderr), Version: programVersion(), Drain: true})
	if err != nil {
		return err
	}
	drainCtx, cancel := context.WithTimeout(ctx, timeout)
	left := a.Drain(drainCtx)
	cancel()
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.ShutdownTimeout.Std())
	defer cancel()
	err = a.Stop(stopCtx)
	var messages, bytes int64
	for _, b := range left {
		fmt.Fprintf(stdout, "%s\t%d\t%d\n", b.Category, b.Messages, b.Bytes)
		messages += b.Messages
		bytes += b.Bytes
	}
	if len(left) > 0 {
		err = errors.Join(err, &codedError{code: exitPartly, err: fmt.Errorf("%d messages with %d bytes of %d categories are left in %s", messages, bytes, len(left), c.Spool.Dir)})
	}
	return err
}

// runServer runs a process of the cell until ctx ends or it fails.
func runServer(ctx context.Context, c app.Config, stdout, stderr io.Writer) error {
	if err := c.Validate(); err != nil {
		return usage(fmt.Errorf("bad configuration:\n%w", err))
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(c.MemoryLimit())
	}
	logger := newLogger(c.Log, stderr)
	a, err := app.Start(ctx, c, app.Options{Logger: logger, Version: programVersion()})
	switch {
	case err != nil && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		logger.InfoContext(ctx, "told to end before it was ready", "error", err)
		return nil // there is nothing that it had accepted
	case err != nil:
		return err
	}
	fmt.Fprintf(stdout, "ready %s\n", a.URL())
	var failed error
	select {
	case <-ctx.Done():
	case failed = <-a.Failed():
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.ShutdownTimeout.Std())
	defer cancel()
	return errors.Join(failed, a.Stop(stopCtx))
}

func newLogger(c app.LogConfig, w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // validated
	opts := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
