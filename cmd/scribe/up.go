package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"scribe/internal/app"
	"scribe/internal/units"
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
		"metadata-cache":   func() error { c.Limits.MetadataCache = f.limits.MetadataCache; return nil },
		"control":          func() error { c.Control = f.control; return nil },
		"metalog":          func() error { c.Metalog = f.metalog; return nil },
		"upstream":         func() error { c.Upstream = f.upstream; return nil },
		"socket":           func() error { c.Socket = f.socket; return nil },
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
  scribe up --data /var/lib/scribe --listen 0.0.0.0:7420
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
		Long: `Run some roles in this process: controlplane, metalog, batcher, writeproxy, scribed, readstream, readproxy. Roles that are not
here are reached at --control and --metalog, or through the membership that the control plane keeps.
Prints one line "ready http://HOST:PORT" on standard output when it serves.`,
		Example: `  scribe serve --roles controlplane,metalog --data ./meta --listen 127.0.0.1:7421
  scribe serve --roles batcher --control http://127.0.0.1:7421 --metalog http://127.0.0.1:7421 --blob-path ./blobs --data ./b1 --listen 127.0.0.1:7431
  scribe serve --config /etc/scribe/writeproxy.yaml`,
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
	var f serverFlags
	d := app.DefaultConfig()
	d.Roles = []app.Role{app.Scribed}
	d.Listen = "127.0.0.1:7410"
	d.Upstream = defaultServer
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the host's daemon, which takes messages from producers of this host and forwards them",
		Long: `Run scribed: producers of this host write to it, and it forwards their messages to a write proxy in the order of each category,
with retries. It buffers in memory only: what it acknowledged as "none" is lost with the process, and a write that asks for
"spooled" or "committed" is acknowledged when it is committed. SIGTERM forwards what is buffered before it ends.`,
		Example: `  scribe agent --upstream http://scribe.internal:7420
  scribe agent --upstream http://scribe.internal:7420 --socket /run/scribe.sock
  scribe produce access access.log --server unix:/run/scribe.sock`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := d
			if err := f.apply(cmd, &c); err != nil {
				return err
			}
			return runServer(cmd.Context(), c, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.add(cmd, d)
	cmd.Flags().StringVar(&f.upstream, "upstream", d.Upstream, "address of the cell to forward to")
	cmd.Flags().StringVar(&f.socket, "socket", "", "path of a Unix socket to serve on as well")
	return cmd
}

// runServer runs a process of the cell until ctx ends or it fails.
func runServer(ctx context.Context, c app.Config, stdout, stderr io.Writer) error {
	if err := c.Validate(); err != nil {
		return usage(fmt.Errorf("bad configuration:\n%w", err))
	}
	a, err := app.Start(ctx, c, app.Options{Logger: newLogger(c.Log, stderr), Version: programVersion()})
	if err != nil {
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
