package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"scribe/internal/base/units"
	"scribe/internal/transport/discovery"
	"scribe/internal/transport/rpc"
	"scribe/producer"
	"scribe/scribed"
	"scribe/scribed/deadletter"
	"scribe/scribed/inputs"
	"scribe/scribed/inputs/follow"
	"scribe/scribed/inputs/lines"
	"scribe/scribed/inputs/otlp"
	"scribe/scribed/inputs/syslog"
	"scribe/scribed/spool"
)

// SpoolConfig is the agent's disk buffer.
type SpoolConfig struct {
	// Dir is its folder; empty = spool in the data folder of a process that has one, else no disk buffer.
	Dir string `yaml:"dir"`
	// MaxBytes bounds it. Ballast comes on top: a file that is given up when the disk is full.
	MaxBytes units.Bytes `yaml:"max_bytes"`
	Segment  units.Bytes `yaml:"segment"`
	Ballast  units.Bytes `yaml:"ballast"`
	// Backfill bounds how fast a backlog is forwarded, in bytes a second; 0 = by what live traffic leaves.
	Backfill units.Bytes `yaml:"backfill"`
	// DeadLetters bounds the folder of what the cell refuses for good and nobody waits for; 0 = it is dropped and counted.
	DeadLetters units.Bytes `yaml:"dead_letters"`
	// Categories are rules; the first whose pattern matches a category's name holds.
	Categories []SpoolRule `yaml:"categories"`
}

// SpoolRule is what the agent does for some categories.
type SpoolRule struct {
	// Match is a glob over the category's name, such as "audit.*".
	Match string `yaml:"match"`
	// WhenFull is reject, block, drop_oldest or drop_newest.
	WhenFull scribed.WhenFull `yaml:"when_full"`
	// MaxBytes and MaxAge bound what each of them may have in the buffer; 0 = no bound of their own.
	MaxBytes units.Bytes    `yaml:"max_bytes"`
	MaxAge   units.Duration `yaml:"max_age"`
	// Strict forwards what is buffered before what is new.
	Strict bool `yaml:"strict"`
}

// InputsConfig are the agent's sources beside the producer library.
type InputsConfig struct {
	Follow []follow.Config `yaml:"follow"`
	Syslog []syslog.Config `yaml:"syslog"`
	OTLP   []otlp.Config   `yaml:"otlp"`
	Lines  []lines.Config  `yaml:"lines"`
}

// spoolDir is the folder of the disk buffer; empty = none.
func (c *Config) spoolDir() string {
	if c.Spool.Dir == "" && c.needsData() {
		return filepath.Join(c.Data, "spool")
	}
	return c.Spool.Dir
}

// inputsDir is where inputs keep positions.
func (c *Config) inputsDir() string {
	if dir := c.spoolDir(); dir != "" {
		return filepath.Join(dir, "inputs")
	}
	return ""
}

// reportLosses is how often an agent tells readers what it had to drop.
const reportLosses = 5 * time.Second

// scribed is the configuration of the agent's core.
func (c *Config) scribed() scribed.Config {
	s := scribed.DefaultConfig()
	s.MemoryBytes = int64(c.Limits.WriteMemory)
	s.BatchBytes = int(min(int64(s.BatchBytes), s.MemoryBytes/16))
	s.BackfillBytesPerSecond = int64(c.Spool.Backfill)
	s.ReportLosses = reportLosses
	for _, r := range c.Spool.Categories {
		s.Rules = append(s.Rules, scribed.Rule{
			Pattern: r.Match, WhenFull: r.WhenFull, MaxBytes: int64(r.MaxBytes), MaxAge: r.MaxAge.Std(), Strict: r.Strict,
		})
	}
	dir := c.spoolDir()
	if dir == "" {
		return s
	}
	sp := spool.DefaultConfig()
	// What the spool keeps in memory follows from what the agent may.
	sp.UnsyncedBytes = min(sp.UnsyncedBytes, s.MemoryBytes/4)
	sp.IndexBytes = min(sp.IndexBytes, s.MemoryBytes/8)
	sp.Dir, sp.MaxBytes, sp.SegmentBytes, sp.BallastBytes = dir, int64(c.Spool.MaxBytes), int64(c.Spool.Segment), int64(c.Spool.Ballast)
	s.Spool = &sp
	if c.Spool.DeadLetters > 0 {
		dl := deadletter.DefaultConfig()
		dl.Dir, dl.MaxBytes = filepath.Join(dir, "deadletters"), int64(c.Spool.DeadLetters)
		s.DeadLetter = &dl
	}
	return s
}

// inputFaults are those of the agent's inputs.
func (c *Config) inputFaults() (faults []error) {
	if !c.Has(Scribed) {
		return nil
	}
	// Names tell inputs of a kind apart, in metrics and in positions.
	names := map[string]string{"lines " + agentLines: "the lines of the agent's own address"}
	input := func(kind string, i int, name string, check func(field string) []error) {
		field := fmt.Sprintf("inputs.%s[%d]", kind, i)
		faults = append(faults, check(field)...)
		if by := names[kind+" "+name]; by != "" {
			faults = append(faults, fmt.Errorf("%s.name: %q is that of %s already", field, name, by))
			return
		}
		names[kind+" "+name] = field
	}
	for i := range c.Inputs.Follow {
		input("follow", i, c.Inputs.Follow[i].Name, c.Inputs.Follow[i].Faults)
	}
	for i := range c.Inputs.Syslog {
		input("syslog", i, c.Inputs.Syslog[i].Name, c.Inputs.Syslog[i].Faults)
	}
	for i := range c.Inputs.OTLP {
		input("otlp", i, c.Inputs.OTLP[i].Name, c.Inputs.OTLP[i].Faults)
	}
	for i := range c.Inputs.Lines {
		input("lines", i, c.Inputs.Lines[i].Name, c.Inputs.Lines[i].Faults)
	}
	if len(c.Inputs.Follow) > 0 && c.inputsDir() == "" {
		faults = append(faults, errors.New("inputs.follow: positions need a folder: configure spool.dir"))
	}
	return faults
}

func (a *App) startScribed(context.Context) error {
	upstream := a.parts.write
	switch {
	case upstream == nil:
		upstream = discovery.New(a.transport, a.cfg.Upstream).Write()
	case a.overLoopback():
		(&rpc.Services{Logger: a.log, Write: a.parts.writeProxy, Admit: a.parts.writeProxy.Admit}).Register(a.loopMux)
		upstream = rpc.NewWriteClient(a.parts.loopback, loopbackURL)
	}
	agent, err := scribed.New(a.cfg.scribed(), scribed.Deps{Upstream: upstream, Logger: a.log, Registerer: a.registry})
	if err != nil {
		return err
	}
	a.onStop("scribed", agent.Close)
	a.parts.agent = agent
	return nil
}

// Drain forwards what the agent holds until nothing is left or ctx ends, and returns what is left.
func (a *App) Drain(ctx context.Context) []scribed.Backlog { return a.parts.agent.Drain(ctx) }

// agentLines is the name of the input of lines on the agent's own address.
const agentLines = "agent"

// startInputs begins to read from the host's other sources, when the agent takes messages.
func (a *App) startInputs(ctx context.Context) error {
	if a.opts.Drain {
		return nil
	}
	p, err := producer.New("", producer.WithService(a.parts.agent), producer.WithAck(producer.AckSpooled),
		producer.WithDeliveryTimeout(0), producer.WithLogger(a.log))
	if err != nil {
		return err
	}
	a.onStop("inputs' producer", p.Close)
	own := lines.DefaultConfig()
	own.Name = agentLines
	h, err := lines.NewHandler(own, p, lines.Deps{Logger: a.log, Registerer: a.registry})
	if err != nil {
		return err
	}
	a.onStop("lines", func(context.Context) error { h.Close(); return nil })
	a.mux.Handle(lines.Pattern, h)
	list, err := a.inputs()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	a.onStop("inputs", func(context.Context) error {
		cancel()
		running.Wait()
		return nil
	})
	for _, in := range list {
		open, ended := make(chan struct{}), make(chan error, 1)
		running.Go(func() {
			if err := in.Run(ctx, p, func() { close(open) }); err != nil {
				ended <- err
			}
		})
		// Who reads that the process is ready may send to its inputs.
		select {
		case <-open:
		case err := <-ended:
			return err
		}
		watch(a, ended, func(err error) error { return fmt.Errorf("input %w", err) })
	}
	return nil
}

func (a *App) inputs() (list []inputs.Input, err error) {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	add := func(in inputs.Input, err error) error {
		if err == nil {
			list = append(list, in)
		}
		return err
	}
	var errs []error
	for _, c := range a.cfg.Inputs.Follow {
		errs = append(errs, add(follow.New(c, follow.Deps{StateDir: a.cfg.inputsDir(), Host: host, Logger: a.log, Registerer: a.registry})))
	}
	for _, c := range a.cfg.Inputs.Syslog {
		errs = append(errs, add(syslog.New(c, syslog.Deps{Host: host, Logger: a.log, Registerer: a.registry})))
	}
	for _, c := range a.cfg.Inputs.OTLP {
		errs = append(errs, add(otlp.New(c, otlp.Deps{Logger: a.log, Registerer: a.registry})))
	}
	for _, c := range a.cfg.Inputs.Lines {
		errs = append(errs, add(lines.New(c, lines.Deps{Logger: a.log, Registerer: a.registry})))
	}
	return list, errors.Join(errs...)
}
