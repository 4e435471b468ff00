package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"scribe/cmd/scribe/app"
	"scribe/internal/base/config"
	"scribe/internal/base/units"
	"scribe/internal/transport/rpc"
)

// serverFlags are the flags of commands that use the configuration of a process. Only given flags override the configuration file.
type serverFlags struct {
	config   string
	defaults app.Config
	// values holds the values of the flags. It shares no memory with the configuration that the flags override.
	values app.Config
}

// addFlags adds the flags of the settings for a command: up, serve, agent, blobs for commands that only read blobs, or far for the benchmark
// of a store that is far away. d has their defaults.
func (f *serverFlags) addFlags(cmd *cobra.Command, command string, d app.Config, also ...string) {
	f.defaults, f.values = d, app.DefaultConfig()
	defaults := settingsByField(&d)
	for s := range config.Settings(&f.values) {
		name, ok := s.Flag(command)
		for _, other := range also {
			if !ok {
				name, ok = s.Flag(other)
			}
		}
		if !ok {
			continue
		}
		s.Copy(defaults[s.Field])
		if same := cmd.Flags().Lookup(name); same != nil {
			shared := same.Value.(*flagValue) //nolint:forcetypeassert // all are
			shared.settings = append(shared.settings, s)
			same.Usage = cmp.Or(same.Usage, s.Help())
			continue
		}
		flag := cmd.Flags().VarPF(&flagValue{settings: []config.Setting{s}}, name, "", s.Help())
		if s.Type() == "bool" {
			flag.NoOptDefVal = "true"
		}
	}
	if command != "blobs" && command != "far" {
		cmd.Flags().StringVar(&f.config, "config", "", "YAML configuration file; flags and environment variables override it")
	}
}

// configure returns the defaults with the configuration file and the given flags over them.
func (f *serverFlags) configure(cmd *cobra.Command) (app.Config, error) {
	c := f.defaults
	err := f.apply(cmd, &c)
	return c, err
}

// apply overrides c with the configuration file and then with the given flags.
func (f *serverFlags) apply(cmd *cobra.Command, c *app.Config) error {
	if err := checkRenamedVariables(cmd.Flags()); err != nil {
		return usageError(err)
	}
	if f.config != "" {
		if err := c.Load(f.config); err != nil {
			return usageError(err)
		}
	}
	settings := settingsByField(c)
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if v, ok := flag.Value.(*flagValue); ok && flag.Changed {
			for _, s := range v.settings {
				settings[s.Field].Copy(s)
			}
		}
	})
	if flag := cmd.Flags().Lookup("max-queries"); flag != nil && flag.Changed {
		c.SQLServer.MaxFollows = min(c.SQLServer.MaxFollows, c.SQLServer.MaxQueries)
	}
	return nil
}

// checkRenamedVariables refuses environment variables of flags that have other names now: they would have no effect. Variables that
// only look alike are not for this program: Kubernetes sets SCRIBE_GATEWAY_PORT if there is a service scribe-gateway.
func checkRenamedVariables(flags *pflag.FlagSet) error {
	var errs []error
	flags.VisitAll(func(flag *pflag.Flag) {
		for old, current := range app.Renamed {
			rest, ok := strings.CutPrefix(flag.Name, current+"-")
			if name := variableOf(old + "-" + rest); ok && os.Getenv(name) != "" {
				errs = append(errs, fmt.Errorf("environment variable %s is called %s now", name, variableOf(flag.Name)))
			}
		}
	})
	return errors.Join(errs...)
}

func settingsByField(c *app.Config) map[string]config.Setting {
	settings := map[string]config.Setting{}
	for s := range config.Settings(c) {
		settings[s.Field] = s
	}
	return settings
}

// flagValue is the value of a flag, which may set several settings together.
type flagValue struct {
	settings []config.Setting
	isSet    bool
}

// String implements pflag.Value.
func (v *flagValue) String() string {
	if len(v.settings) == 0 {
		return ""
	}
	return v.settings[0].String()
}

// Type implements pflag.Value.
func (v *flagValue) Type() string { return v.settings[0].Type() }

// Set implements pflag.Value. A list that is given twice gets the items of both.
func (v *flagValue) Set(text string) error {
	if v.isSet && v.Type() == "strings" {
		text = v.String() + "," + text
	}
	for _, s := range v.settings {
		if err := s.Set(text); err != nil {
			return err
		}
	}
	v.isSet = true
	return nil
}

func newUp() *cobra.Command {
	var f serverFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run every role in one process, alone or as a node of a cell",
		Long: `Run every role in one process. Payloads are files and metadata logs are in Pebble, both in the data folder. There is one listening
address, and no other service is needed. When the process is ready, it prints the line "ready http://HOST:PORT" on standard output.
On SIGTERM it makes everything that it accepted durable, then exits.

With --secure it serves with TLS and lets in only who may (docs/security.md): at its first start it makes an authority, its certificate and an administrator's token, and it
writes what the administrator exports to the file secure/admin.env in --data, before it is ready. A node finds authority and certificate in secure: "scribe cert nodes" makes them.

Without authentication it serves this host alone, unless --insecure lets everybody who reaches --listen do everything.

With --node and --cluster the process is one of one, three or five nodes, which replicate the metadata: the cell works while more than half of
them are up. A node listens at its address in --cluster (unless --listen says otherwise); its etcd serves clients at the next port and the other
nodes at the one after that. Payloads are on S3, or in a folder that all nodes share. A node that lost its data says which command replaces it.

With --adopt a new cell of nodes begins with what --data has of a cell of one process (or what "scribe recover" made): logs, categories, groups, checkpoints and
sequences go on where they are. Give it at that one node; the others begin with empty folders. From then on the folder starts only as the node's;
"scribe node detach" is the way back. "scribe node export" beforehand makes the pause short.`,
		Example: `  scribe up
  scribe up --data /var/lib/scribe --listen 0.0.0.0:7420 --flight 0.0.0.0:7424 --secure
  scribe up --secure                          # in another terminal: . ./scribe-data/secure/admin.env
  SCRIBE_S3_ACCESS_KEY=... SCRIBE_S3_SECRET_KEY=... scribe up --blobs s3 --s3-endpoint http://127.0.0.1:9000 --s3-bucket scribe
  scribe up --node n1 --cluster n1=10.0.0.1:7420,n2=10.0.0.2:7420,n3=10.0.0.3:7420 --data /var/lib/scribe --blob-path /mnt/shared/blobs --insecure
  scribe up --node n1 --cluster n1=10.0.0.1:7420,n2=10.0.0.2:7420,n3=10.0.0.3:7420 --data /var/lib/scribe --blob-path /mnt/shared/blobs --secure
  scribe up --node n1 --cluster n1=10.0.0.1:7420,n2=10.0.0.2:7420,n3=10.0.0.3:7420 --data /var/lib/scribe --blob-path /mnt/shared/blobs --adopt`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.runServer(cmd) },
	}
	f.addFlags(cmd, "up", app.DefaultConfig())
	return cmd
}

// serveConfig are the defaults of a process of a cell that consists of several.
func serveConfig() app.Config {
	d := app.DefaultConfig()
	d.WriteProxy.AutoCreate, d.Roles = false, nil
	return d
}

func newServe() *cobra.Command {
	var f serverFlags
	cmd := &cobra.Command{
		Use:   "serve --roles ROLE,...",
		Short: "Run some roles of a cell that consists of several processes",
		Long: `Run some roles in this process: controlplane, metalog, batcher, writeproxy, scribed, readstream, readproxy, retention, sequencer, sqlserver.
The process reaches other roles at --control and --metalog, or through the member list of the control plane.
When it is ready, it prints the line "ready http://HOST:PORT" on standard output.

With --etcd, processes of the roles controlplane and metalog keep their metadata in an etcd that others run, and take over from each other. With --adopt as well, a
new cell in that etcd begins with what --data has of a cell of one process (or what "scribe recover" made): give it at one process, which has both roles. From then
on the folder starts only with --etcd; "scribe node detach" is the way back. "scribe node export" beforehand makes the pause short.`,
		Example: `  scribe serve --roles controlplane,metalog --data ./meta --listen 127.0.0.1:7421
  scribe serve --roles batcher --control http://127.0.0.1:7421 --metalog http://127.0.0.1:7421 --blob-path ./blobs --data ./b1 --listen 127.0.0.1:7431
  scribe serve --roles readproxy --control http://127.0.0.1:7421 --blob-path ./blobs --data ./r1 --listen 127.0.0.1:7441 --memcached 127.0.0.1:11211
  scribe serve --roles controlplane,metalog --etcd http://127.0.0.1:2379 --blob-path ./blobs --data ./meta --listen 127.0.0.1:7421
  scribe serve --roles controlplane,metalog --etcd http://127.0.0.1:2379 --blob-path ./blobs --data ./scribe-data --listen 127.0.0.1:7421 --adopt
  scribe serve --roles sqlserver --control http://127.0.0.1:7421 --data ./g1 --listen 127.0.0.1:7451 --flight 127.0.0.1:7454
  scribe serve --config /etc/scribe/writeproxy.yaml
    # another region, and settings of a read proxy, in the file:
    region: eu
    regions: [{name: us, read_proxies: "http://10.1.0.1:7420"}]
    read_proxy: {memcached: {servers: ["10.0.0.8:11211"]}, rules: [{match: "audit.*", memcached: never}]}`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.runServer(cmd) },
	}
	f.addFlags(cmd, "serve", serveConfig())
	return cmd
}

// agentConfig are the defaults of an agent.
func agentConfig() app.Config {
	d := app.DefaultConfig()
	d.Roles = []app.Role{app.Scribed}
	d.Listen = "127.0.0.1:7410"
	d.Upstream = defaultServer
	d.Scribed.Spool.Dir = "./scribe-spool"
	d.Scribed.MemoryBytes, d.WriteProxy.MemoryBytes = 64<<20, 64<<20 // the host has other programs, and messages that do not fit go to the spool
	return d
}

func newAgent() *cobra.Command {
	var (
		f     serverFlags
		drain bool
	)
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the host's agent, which accepts messages from programs on this host and forwards them",
		Long: `Run scribed, the host's agent. Programs on this host write to it with the producer library (over a Unix socket or TCP), by POSTing lines
to /v1/lines/CATEGORY, or through the inputs in the --config file (files, syslog, OTLP, lines; see docs/inputs.md). The agent forwards
their messages to a write proxy, with retries.

Messages acknowledged as "spooled" are synced to the spool, a disk buffer. Messages acknowledged as "none" are written there when the
cell is slow or unavailable. Live traffic has priority over the backlog. On SIGTERM, messages that can't be forwarded in time stay in the
spool.

With --encryption-key-file everything of messages that the agent keeps on disk is encrypted: the spool and dead letters. Give each host a key file of its own; without
it an agent does not start while encrypted messages wait, and --drain with it is the way to turn it off again.

With --drain the agent accepts no new messages. It forwards the backlog, prints what remains (category, messages, bytes), and exits with
code 0 if nothing remains, and 6 otherwise.`,
		Example: `  scribe agent --upstream http://scribe.internal:7420 --spool /var/lib/scribe/spool
  scribe agent --upstream http://scribe.internal:7420 --socket /run/scribe.sock --config agent.yaml
    # agent.yaml:
    inputs:
      follow: [{name: nginx, paths: ["/var/log/nginx/*.log"], category: "nginx.{file}"}]
      syslog: [{udp: "127.0.0.1:5514", tcp: {address: "127.0.0.1:5514"}, category: "syslog.{app}"}]
      otlp:   [{listen: {address: "127.0.0.1:4317"}, category: "otel.{service.name}"}]
  umask 077; scribe key new 2026-11 > keys.txt; scribe agent --upstream http://scribe.internal:7420 --spool /var/lib/scribe/spool --encryption-key-file keys.txt
  scribe agent --upstream http://scribe.internal:7420 --spool /var/lib/scribe/spool --drain --drain-timeout 10m
  scribe produce access access.log --server unix:/run/scribe.sock --ack spooled`,
		Args: cobra.NoArgs,
	}
	timeout := units.Duration(time.Hour)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if drain {
			return f.runDrain(cmd, timeout.Std())
		}
		return f.runServer(cmd)
	}
	f.addFlags(cmd, "agent", agentConfig())
	fs := cmd.Flags()
	fs.BoolVar(&drain, "drain", false, "forward the backlog in the spool, print what remains, and exit")
	fs.Var(&timeout, "drain-timeout", "time limit of --drain")
	return cmd
}

// configureServer is configure for a process that is about to start.
func (f *serverFlags) configureServer(cmd *cobra.Command) (app.Config, error) {
	c, err := f.configure(cmd)
	if err != nil {
		return c, err
	}
	if err := c.Validate(); err != nil {
		return c, usageError(fmt.Errorf("bad configuration:\n%w", err))
	}
	return c, nil
}

// startApp starts a process of a cell whose log goes to stderr. stop may take the configured time, also when ctx has ended.
func startApp(ctx context.Context, c app.Config, o app.Options, stderr io.Writer) (a *app.App, stop func() error, err error) {
	o.Logger, o.Version = newLogger(c.Log, stderr), programVersion()
	a, err = app.Start(ctx, c, o)
	return a, func() error {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.ShutdownTimeout)
		defer cancel()
		return a.Stop(stopCtx)
	}, err
}

// withApp runs fn with the address of a cell in this process.
func withApp(ctx context.Context, c app.Config, stderr io.Writer, fn func(url string) error) (err error) {
	c.Listen = "127.0.0.1:0"
	a, stop, err := startApp(ctx, c, app.Options{}, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	rpc.Default().SetToken(a.OwnToken()) // whoever has the folder is a member, also of a closed cell
	return fn(a.URL())
}

// runDrain forwards the backlog of an agent's spool, and prints what remains.
func (f *serverFlags) runDrain(cmd *cobra.Command, timeout time.Duration) error {
	c, err := f.configureServer(cmd)
	if err != nil {
		return err
	}
	c.Listen, c.Socket = "127.0.0.1:0", "" // producers must not find it
	a, stop, err := startApp(cmd.Context(), c, app.Options{Drain: true}, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	drainCtx, cancel := context.WithTimeout(cmd.Context(), timeout)
	left := a.Drain(drainCtx)
	cancel()
	err = stop()
	var messages, bytes int64
	for _, b := range left {
		fmt.Fprintf(cmd.OutOrStdout(), "%s\t%d\t%d\n", b.Category, b.Messages, b.Bytes)
		messages += b.Messages
		bytes += b.Bytes
	}
	if len(left) > 0 {
		err = errors.Join(err, &codedError{code: exitPartly, err: fmt.Errorf("%d messages (%d bytes) of %d categories remain in %s; run it again to forward them", messages, bytes, len(left), c.Scribed.Spool.Dir)})
	}
	return err
}

// runServer runs a process of the cell until the command's context ends or it fails.
func (f *serverFlags) runServer(cmd *cobra.Command) error {
	c, err := f.configureServer(cmd)
	if err != nil {
		return err
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(c.MemoryLimit())
	}
	ctx := cmd.Context()
	a, stop, err := startApp(ctx, c, app.Options{}, cmd.ErrOrStderr())
	switch {
	case err != nil && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		newLogger(c.Log, cmd.ErrOrStderr()).InfoContext(ctx, "stopped before it was ready", "error", err)
		return nil // it had accepted nothing
	case err != nil:
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "ready %s\n", a.URL())
	var failed error
	select {
	case <-ctx.Done():
	case failed = <-a.Failed():
	}
	return errors.Join(failed, stop())
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
