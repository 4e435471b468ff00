package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
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
		rate     units.Bytes = 10_000_000
		normal               = units.Duration(15 * time.Second)
		length               = units.Duration(30 * time.Second)
		every                = units.Duration(10 * time.Millisecond)
		backend              = backendRefuses
		workload             = "access-log"
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
			if rate == 0 || normal < units.Duration(time.Second) || length < units.Duration(time.Second) || every <= 0 {
				return usageError(errors.New("--rate and --every must be above zero, --normal and --outage a second or more"))
			}
			if backend != backendRefuses && backend != backendHangs {
				return usageError(fmt.Errorf("invalid value %q for --backend: want %s or %s", backend, backendRefuses, backendHangs))
			}
			o := bench.OutageOptions{BytesPerSecond: float64(rate), Normal: normal.Std(), Outage: length.Std(), Every: every.Std()}
			if o.Workload, err = bench.NewWorkload(workload); err != nil {
				return usageError(err)
			}
			f, err := startOutageFleet(cmd, backend)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, f.stopAll()) }()
			if profile != "" {
				stop, perr := startProfile(profile)
				if perr != nil {
					return perr
				}
				defer func() { err = errors.Join(err, stop()) }()
			}
			o.Agent, o.Cell, o.Down, o.Up = f.agent.URL(), f.cell.URL(), f.takeDown, f.bringUp
			r, err := bench.Outage(cmd.Context(), o)
			if err != nil {
				return err
			}
			return printReports(cmd.OutOrStdout(), asJSON, []bench.OutageReport{r}, func(w io.Writer, rs []bench.OutageReport) error { return rs[0].Print(w) })
		},
	}
	fs := cmd.Flags()
	fs.Var(&rate, "rate", "payload bytes per second to write, half acknowledged as none, half as spooled")
	fs.Var(&normal, "normal", "how long to measure before the outage")
	fs.Var(&length, "outage", "length of the outage")
	fs.StringVar(&backend, "backend", backend, "what the cell does during the outage: refuses (connections) or hangs")
	fs.Var(&every, "every", "pause between two writes whose latency is measured")
	fs.StringVar(&workload, "workload", workload, "messages: 100b, access-log, 10kb")
	fs.StringVar(&profile, "cpuprofile", "", "write a CPU profile of the run to this file")
	fs.BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

// outageFleet is a cell that can be taken away and an agent in front of it, in this process and in a temporary folder.
type outageFleet struct {
	cmd    *cobra.Command
	dir    string
	config app.Config // of the cell
	cell   *app.App   // nil while it is away
	agent  *app.App
	relay  *bench.Relay // between the two; nil when the cell refuses
	// release gives the cell's address up.
	release func()
}

// startOutageFleet starts one. stop ends it.
func startOutageFleet(cmd *cobra.Command, backend string) (_ *outageFleet, err error) {
	f := &outageFleet{cmd: cmd, config: app.DefaultConfig()}
	if f.dir, err = os.MkdirTemp("", "scribe-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.stopAll())
		}
	}()
	f.config.Data, f.config.Log.Level = filepath.Join(f.dir, "cell"), "error"
	// It comes back where it was, and nobody else may be there meanwhile.
	if f.config.Listen, f.release, err = loopback.Reserve(); err != nil {
		return nil, err
	}
	if err := f.startCell(cmd.Context()); err != nil {
		return nil, err
	}
	u, err := url.Parse(f.cell.URL())
	if err != nil {
		return nil, err
	}
	if backend == backendHangs {
		if f.relay, err = bench.NewRelay(cmd.Context(), u.Host); err != nil {
			return nil, err
		}
		u.Host = f.relay.Addr()
	}
	c := app.DefaultConfig()
	c.Roles, c.Listen, c.Upstream, c.Log.Level = []app.Role{app.Scribed}, "127.0.0.1:0", u.String(), "error"
	c.Scribed.Spool.Dir = filepath.Join(f.dir, "spool")
	f.agent, err = app.Start(cmd.Context(), c, app.Options{Logger: newLogger(c.Log, cmd.ErrOrStderr()), Version: programVersion()})
	return f, err
}

func (f *outageFleet) startCell(ctx context.Context) (err error) {
	f.cell, err = app.Start(ctx, f.config, app.Options{Logger: newLogger(f.config.Log, f.cmd.ErrOrStderr()), Version: programVersion()})
	return err
}

// takeDown takes the cell away, up brings it back.
func (f *outageFleet) takeDown(ctx context.Context) error {
	if f.relay != nil {
		f.relay.Hang()
		return nil
	}
	return f.stopApp(ctx, &f.cell)
}

func (f *outageFleet) bringUp(ctx context.Context) error {
	if f.relay != nil {
		f.relay.Pass()
		return nil
	}
	return f.startCell(ctx)
}

func (f *outageFleet) stopApp(ctx context.Context, a **app.App) error {
	if *a == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.config.ShutdownTimeout)
	defer cancel()
	err := (*a).Stop(ctx)
	*a = nil
	return err
}

// stopAll ends everything, whatever of it runs.
func (f *outageFleet) stopAll() error {
	var errs []error
	if f.relay != nil {
		f.relay.Pass() // what the agent still holds may leave
	}
	errs = append(errs, f.stopApp(f.cmd.Context(), &f.agent))
	if f.relay != nil {
		errs = append(errs, f.relay.Close())
	}
	errs = append(errs, f.stopApp(f.cmd.Context(), &f.cell), os.RemoveAll(f.dir))
	if f.release != nil {
		f.release()
	}
	return errors.Join(errs...)
}
