package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"scribe/internal/base/config"
	"scribe/internal/transport/discovery"
	"scribe/internal/transport/rpc"
	"scribe/producer"
	"scribe/scribed"
	"scribe/scribed/inputs"
	"scribe/scribed/inputs/follow"
	"scribe/scribed/inputs/lines"
	"scribe/scribed/inputs/otlp"
	"scribe/scribed/inputs/syslog"
)

// InputsConfig are the agent's sources beside the producer library.
type InputsConfig struct {
	Follow []follow.Config `yaml:"follow"`
	Syslog []syslog.Config `yaml:"syslog"`
	OTLP   []otlp.Config   `yaml:"otlp"`
	Lines  []lines.Config  `yaml:"lines"`
}

// spoolDir is the folder of the disk buffer: the configured one, or one in the data folder of a process that has one; empty = none.
func (c *Config) spoolDir() string {
	if c.Scribed.Spool.Dir == "" && c.needsData() {
		return filepath.Join(c.Data, "spool")
	}
	return c.Scribed.Spool.Dir
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

// scribedConfig is what the role is made with. What it sends at once, and what the spool keeps in memory, follows from its memory.
func (c *Config) scribedConfig() scribed.Config {
	s := c.Scribed
	s.BatchBytes = int(min(int64(s.BatchBytes), s.MemoryBytes/16))
	s.CountDelivery = c.Delivery
	dir := c.spoolDir()
	if dir == "" {
		s.Spool, s.DeadLetter = nil, nil
		return s
	}
	disk, letters := *s.Spool, *s.DeadLetter
	disk.UnsyncedBytes, disk.IndexBytes = min(disk.UnsyncedBytes, s.MemoryBytes/4), min(disk.IndexBytes, s.MemoryBytes/8)
	disk.Dir, letters.Dir = dir, filepath.Join(dir, "deadletters")
	s.Spool, s.DeadLetter = &disk, &letters
	if letters.MaxBytes == 0 {
		s.DeadLetter = nil
	}
	return s
}

func (c *Config) checkInputs(v *config.Violations) {
	v.Join("Inputs", config.Check("inputs", &c.Inputs, nil).Err())
	// Names tell inputs of a kind apart, in metrics and in positions.
	taken := map[string]bool{"Lines/" + agentLines: true}
	for _, of := range []struct {
		kind  string
		names []string
	}{
		{"Follow", namesOf(c.Inputs.Follow, func(f follow.Config) string { return f.Name })},
		{"Syslog", namesOf(c.Inputs.Syslog, func(s syslog.Config) string { return s.Name })},
		{"OTLP", namesOf(c.Inputs.OTLP, func(o otlp.Config) string { return o.Name })},
		{"Lines", namesOf(c.Inputs.Lines, func(l lines.Config) string { return l.Name })},
	} {
		for i, name := range of.names {
			if taken[of.kind+"/"+name] {
				v.Add(fmt.Sprintf("Inputs.%s[%d].Name", of.kind, i), "%q is the name of another input", name)
			}
			taken[of.kind+"/"+name] = true
		}
	}
	if len(c.Inputs.Follow) > 0 && c.inputsDir() == "" {
		v.Add("Inputs.Follow", "positions need a folder: configure spool.dir")
	}
}

func namesOf[C any](inputs []C, nameOf func(C) string) (names []string) {
	for _, c := range inputs {
		names = append(names, nameOf(c))
	}
	return names
}

func (a *App) startScribed(context.Context) error {
	upstream := a.parts.write
	switch {
	case upstream == nil:
		a.greetUpstream()
		upstream = discovery.New(a.transport, a.cfg.Upstream, a.opts.Host.Random.Named("upstream")).Write()
	case a.overLoopback():
		(&rpc.Services{Logger: a.log, Write: a.parts.writeProxy, Admit: a.parts.writeProxy.Admit}).Register(a.loopMux)
		upstream = rpc.NewWriteClient(a.parts.loopback, loopbackURL)
	}
	agent, err := scribed.New(a.cfg.scribedConfig(), scribed.Deps{
		Upstream: upstream, Host: a.opts.Host.Name, Agent: a.id, InCell: a.cfg.Has(WriteProxy), Random: a.opts.Host.Random.Named("agent"), FS: a.opts.Host.FS, Clock: a.opts.Host.Now, Logger: a.log, Registerer: a.registry,
	})
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
	opts := []producer.Option{
		producer.WithService(a.parts.agent), producer.WithCategories(a.parts.control), producer.WithAck(producer.AckSpooled),
		producer.WithDeliveryTimeout(0), producer.WithLogger(a.log), producer.WithRandom(a.opts.Host.Random.Named("inputs")), producer.WithHost(a.opts.Host.Name),
	}
	if a.cfg.Delivery { // what does not come to the agent, which counts the rest
		opts = append(opts, producer.WithDeliveryReports(reportLosses))
	}
	p, err := producer.New("", opts...)
	if err != nil {
		return err
	}
	a.onStop("inputs' producer", p.Close)
	own := lines.DefaultConfig()
	own.Name = agentLines
	h, err := lines.NewHandler(own, p, inputs.Deps{Clock: a.opts.Host.Now, Logger: a.log, Registerer: a.registry})
	if err != nil {
		return err
	}
	a.onStop("lines", func(context.Context) error { h.Close(); return nil })
	a.mux.Handle(lines.Pattern, a.protectCategory(h))
	list, err := a.newInputs()
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
		watchFailure(a, ended, func(err error) error { return fmt.Errorf("input %w", err) })
	}
	return nil
}

// hostName is the name of the real machine.
func hostName() string {
	host, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return host
}

func (a *App) newInputs() (list []inputs.Input, err error) {
	add := func(in inputs.Input, err error) error {
		if err == nil {
			list = append(list, in)
		}
		return err
	}
	deps := inputs.Deps{Host: a.opts.Host.Name, StateDir: a.cfg.inputsDir(), Clock: a.opts.Host.Now, Logger: a.log, Registerer: a.registry}
	var errs []error
	for _, c := range a.cfg.Inputs.Follow {
		errs = append(errs, add(follow.New(c, deps)))
	}
	for _, c := range a.cfg.Inputs.Syslog {
		errs = append(errs, add(syslog.New(c, deps)))
	}
	for _, c := range a.cfg.Inputs.OTLP {
		errs = append(errs, add(otlp.New(c, deps)))
	}
	for _, c := range a.cfg.Inputs.Lines {
		errs = append(errs, add(lines.New(c, deps)))
	}
	return list, errors.Join(errs...)
}
