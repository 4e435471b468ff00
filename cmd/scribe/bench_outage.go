package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/cmd/scribe/bench"
	"scribe/internal/base/units"
	"scribe/internal/testkit/loopback"
)

// How the backend of bench outage is away.
const (
	backendRefuses = "refuses"
	backendHangs   = "hangs"
)

func newBenchOutage() *cobra.Command {
	var (
		o = bench.OutageOptions{
			BytesPerSecond: 10_000_000, Normal: 15 * second, Outage: 30 * second, Every: units.Duration(10 * time.Millisecond),
		}
		backend  = backendRefuses
		workload = "access-log"
		profile  string
		asJSON   bool
	)
	cmd := &cobra.Command{
		Use:   "outage",
		Short: "Latency of a host's writers during an outage of the cell, and while the agent forwards the backlog",
		Long: `Run a cell and a host's agent with a spool in this process, write through the agent continuously, and make the cell unavailable for a while:
connections are refused, or they hang. The latency of small writes at each acknowledgement level is measured before, during and after the
outage. At the end all messages are read back and counted.`,
		Example: `  scribe bench outage
  scribe bench outage --backend hangs --outage 60s
  scribe bench outage --rate 2MB --normal 5s --outage 5s --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.BytesPerSecond == 0 || o.Normal < second || o.Outage < second || o.Every <= 0 {
				return usageError(errors.New("--rate and --every must be above zero, --normal and --outage a second or more"))
			}
			if err := checkChoice("--backend", backend, backendRefuses, backendHangs); err != nil {
				return err
			}
			if o.Workload, err = bench.NewWorkload(workload); err != nil {
				return usageError(err)
			}
			stop, err := startProfile(profile)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, stop()) }()
			return withOutageFleet(cmd, backend, o, func(o bench.OutageOptions) error {
				r, err := bench.Outage(cmd.Context(), o)
				if err != nil {
					return err
				}
				return printReport(cmd.OutOrStdout(), asJSON, &r)
			})
		},
	}
	fs := cmd.Flags()
	fs.Var(&o.BytesPerSecond, "rate", "payload bytes per second to write, half acknowledged as none, half as spooled")
	fs.Var(&o.Normal, "normal", "how long to measure before the outage")
	fs.Var(&o.Outage, "outage", "length of the outage")
	fs.StringVar(&backend, "backend", backend, "what the cell does during the outage: refuses (connections) or hangs")
	fs.Var(&o.Every, "every", "pause between two writes whose latency is measured")
	fs.StringVar(&workload, "workload", workload, "messages: 100b, access-log, 10kb")
	fs.StringVar(&profile, "cpuprofile", "", "write a CPU profile of the run to this file")
	fs.BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

// withOutageFleet runs fn with a cell that can be taken away and an agent in front of it, in this process and in a temporary folder.
func withOutageFleet(cmd *cobra.Command, backend string, o bench.OutageOptions, fn func(bench.OutageOptions) error) (err error) {
	dir, err := os.MkdirTemp("", "scribe-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c := app.DefaultConfig()
	c.Data, c.Log.Level = filepath.Join(dir, "cell"), "error"
	// It comes back where it was, and nobody else may be there meanwhile.
	listen, release, err := loopback.Reserve()
	if err != nil {
		return err
	}
	defer release()
	c.Listen = listen
	cell, stopCell, err := startApp(cmd.Context(), c, app.Options{}, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopCell()) }()
	o.Cell = cell.URL()
	o.Down = func(context.Context) error { return stopCell() }
	o.Up = func(ctx context.Context) error {
		_, stop, err := startApp(ctx, c, app.Options{}, cmd.ErrOrStderr())
		if err == nil {
			stopCell = stop
		}
		return err
	}
	upstream, pass := o.Cell, func() {}
	if backend == backendHangs {
		relay, err := bench.NewRelay(cmd.Context(), strings.TrimPrefix(o.Cell, "http://"))
		if err != nil {
			return err
		}
		defer func() { _ = relay.Close() }()
		o.Down = func(context.Context) error { relay.Hang(); return nil }
		o.Up = func(context.Context) error { relay.Pass(); return nil }
		upstream, pass = "http://"+relay.Addr(), relay.Pass
	}
	a := app.DefaultConfig()
	a.Roles, a.Upstream, a.Log.Level = []app.Role{app.Scribed}, upstream, "error"
	a.Scribed.Spool.Dir = filepath.Join(dir, "spool")
	return withApp(cmd.Context(), a, cmd.ErrOrStderr(), func(agent string) error {
		o.Agent = agent
		defer pass() // what the agent still holds may leave
		return fn(o)
	})
}
