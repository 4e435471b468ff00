package app

import (
	"context"
	"errors"
	"fmt"
	"net"

	"scribe/internal/base/units"
	"scribe/sqlserver"
)

// GatewayConfig bounds what queries over the network take; see sqlserver.Config, whose fields have the same names.
type GatewayConfig struct {
	// Flight is the TCP address of Arrow Flight SQL, host:port; empty = it is not served. HTTP is on the process's own address.
	Flight string `yaml:"flight"`
	// MaxQueries is how many queries run at a time, MaxFollows how many of them may be ones that follow.
	MaxQueries int `yaml:"max_queries"`
	MaxFollows int `yaml:"max_follows"`
	// QueryMemory is what a query may hold.
	QueryMemory units.Bytes `yaml:"query_memory"`
	// MaxRows is the most rows of an answer; 0 = no bound.
	MaxRows int64 `yaml:"max_rows"`
	// MaxTime is how long a query runs, MaxFollowTime how long one that follows; 0 = no bound.
	MaxTime       units.Duration `yaml:"max_time"`
	MaxFollowTime units.Duration `yaml:"max_follow_time"`
	// Heartbeat is the longest silence of an answer that follows.
	Heartbeat units.Duration `yaml:"heartbeat"`
	// StallTimeout is how long a client may take nothing of what is written to it.
	StallTimeout units.Duration `yaml:"stall_timeout"`
}

func defaultGateway() GatewayConfig {
	d := sqlserver.DefaultConfig()
	return GatewayConfig{
		MaxQueries: d.MaxQueries, MaxFollows: d.MaxFollows, QueryMemory: units.Bytes(d.QueryMemory), MaxRows: d.MaxRows,
		MaxTime: units.Duration(d.MaxTime), MaxFollowTime: units.Duration(d.MaxFollowTime),
		Heartbeat: units.Duration(d.Heartbeat), StallTimeout: units.Duration(d.StallTimeout),
	}
}

// role is what the role is made with.
func (c *GatewayConfig) role() sqlserver.Config {
	cfg := sqlserver.DefaultConfig()
	cfg.MaxQueries, cfg.MaxFollows, cfg.QueryMemory, cfg.MaxRows = c.MaxQueries, c.MaxFollows, int64(c.QueryMemory), c.MaxRows
	cfg.MaxTime, cfg.MaxFollowTime = c.MaxTime.Std(), c.MaxFollowTime.Std()
	cfg.Heartbeat, cfg.StallTimeout = c.Heartbeat.Std(), c.StallTimeout.Std()
	return cfg
}

// flightFault is what is wrong with the address of Flight SQL, which the role knows nothing of.
func (c *Config) flightFault() error {
	switch _, port, err := net.SplitHostPort(c.Gateway.Flight); {
	case c.Gateway.Flight == "":
		return nil
	case !c.Has(Gateway):
		return errors.New("gateway.flight: the process has no gateway role")
	case err != nil || port == "":
		return fmt.Errorf("gateway.flight: %q is not an address of the form host:port", c.Gateway.Flight)
	}
	return nil
}

func (a *App) startGateway(ctx context.Context) error {
	g, err := sqlserver.New(a.cfg.Gateway.role(), sqlserver.Deps{
		Server: a.controlURL(), Categories: a.parts.catalog, Version: a.opts.Version, Logger: a.log, Registerer: a.registry,
	})
	if err != nil {
		return err
	}
	a.onStop("gateway", g.Close)
	a.mux.Handle(sqlserver.Path, g)
	if a.cfg.Gateway.Flight == "" {
		return nil
	}
	l, err := listenTCP(ctx, "--flight", a.cfg.Gateway.Flight)
	if err != nil {
		return err
	}
	failed, err := g.ServeFlight(l)
	if err != nil {
		return err
	}
	watch(a, failed, func(err error) error { return err })
	a.log.Info("serving Flight SQL", "url", "grpc://"+reachable(l.Addr()))
	return nil
}
