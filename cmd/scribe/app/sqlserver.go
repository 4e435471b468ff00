package app

import (
	"context"

	"scribe/internal/base/config"
	"scribe/sqlserver"
)

// checkFlight checks the address of Flight SQL, which the role knows nothing of.
func (c *Config) checkFlight(v *config.Violations) {
	switch {
	case c.Flight == "":
	case !c.Has(SQLServer):
		v.Add("Flight", "the process has no sqlserver role")
	case !isAddress(c.Flight):
		v.Add("Flight", "invalid value %q: want host:port", c.Flight)
	}
}

func (a *App) startSQLServer(ctx context.Context) error {
	g, err := sqlserver.New(a.cfg.SQLServer, sqlserver.Deps{
		Server: a.controlURL(), Categories: a.parts.catalog, Version: a.opts.Version, Logger: a.log, Registerer: a.registry,
	})
	if err != nil {
		return err
	}
	a.onStop("SQL server", g.Close)
	a.mux.Handle(sqlserver.Path, g)
	if a.cfg.Flight == "" {
		return nil
	}
	l, err := listenTCP(ctx, "--flight", a.cfg.Flight)
	if err != nil {
		return err
	}
	failed, err := g.ServeFlight(l)
	if err != nil {
		return err
	}
	watchFailure(a, failed, func(err error) error { return err })
	a.log.Info("serving Flight SQL", "url", "grpc://"+callableAddress(l.Addr()))
	return nil
}
