package app

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	"scribe/internal/transport/tlsfiles"
	"scribe/sqlserver"
	"scribe/storage/etcd/member"
)

// servesTLS reports whether the process serves with TLS.
func (c *Config) servesTLS() bool { return c.TLS.Serves() && !c.PlainListen }

// schemeOf begins the URL of a process that serves with TLS, or without.
func schemeOf(secure bool) string {
	if secure {
		return "https://"
	}
	return "http://"
}

// enforcesAccess reports whether callers must prove who they are, and may call only what the access table says.
func (c *Config) enforcesAccess() bool { return c.servesTLS() && c.TLS.ClientCA != "" }

// checkTLS checks what names the files of TLS. What they hold is looked at when they are opened.
func (c *Config) checkTLS(v *config.Violations) {
	c.TLS.Violations(func(field, text string) { v.Add("TLS."+field, "%s", text) })
	if !c.PlainListen {
		return
	}
	if !isLoopback(c.Listen) {
		v.Add("PlainListen", "%s is reached from other hosts: want a loopback address for --listen", c.Listen)
	}
	if c.Secure || c.Flight != "" {
		v.Add("PlainListen", "it is for agents alone: want none beside secure and sqlserver.flight")
	}
	if c.TLS.ClientCA != "" {
		v.Add("PlainListen", "there are no clients' certificates without TLS: want either plain_listen or tls_client_ca")
	}
}

// isLoopback reports whether only the host itself reaches an address.
func isLoopback(address string) bool {
	host, _, _ := net.SplitHostPort(address) // validated
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// isOpen reports whether other hosts reach the process, and need not prove who they are.
func (c *Config) isOpen() bool {
	return !c.Secure && !c.enforcesAccess() && (!isLoopback(c.Listen) || isAddress(c.Flight) && !isLoopback(c.Flight))
}

// checkOpen refuses to serve everybody unless that is wanted.
func (c *Config) checkOpen(v *config.Violations) {
	placed := c.asNode()
	if !isAddress(placed.Listen) || c.Insecure || !placed.isOpen() {
		return
	}
	address, field := placed.Listen, "Listen"
	if isLoopback(address) {
		address, field = c.Flight, "Flight"
	}
	want := "certificates (scribe cert) with --tls-client-ca, a loopback address, or --insecure"
	switch {
	case !c.Has(ControlPlane) || c.Control != "":
	case c.Node != "":
		want = "--secure with what scribe cert nodes makes, " + want
	default:
		want = "--secure, " + want
	}
	v.Add(field, "%s is reached from other hosts, and nothing proves who calls: everybody there could read, write and delete everything. Want %s", address, want)
}

// openTLS reads the files of the configuration, if it names any.
func (a *App) openTLS() (err error) {
	if a.cfg.TLS.IsEmpty() && a.cfg.TLS.ServerName == "" {
		return nil
	}
	if a.tls, err = tlsfiles.Open(a.cfg.TLS, tlsfiles.Deps{Logger: a.log, Now: a.opts.Host.Now}); err != nil {
		return fmt.Errorf("TLS: %w", err)
	}
	gauge := func(name, help string, of func(tlsfiles.Stats) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "scribe", Subsystem: "tls", Name: name, Help: help}, func() float64 { return of(a.tls.Stats()) })
	}
	counter := func(name, help string, of func(tlsfiles.Stats) uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "scribe", Subsystem: "tls", Name: name, Help: help}, func() float64 { return float64(of(a.tls.Stats())) })
	}
	collectors := []prometheus.Collector{
		counter("reloads_total", "Changes of the TLS files that were taken over.", func(s tlsfiles.Stats) uint64 { return s.Reloads }),
		counter("reload_failures_total", "Looks at changed TLS files that could not be used; the former ones are used on.", func(s tlsfiles.Stats) uint64 { return s.Failures }),
	}
	if a.cfg.TLS.Serves() {
		collectors = append(collectors, gauge("certificate_expiry_seconds", "When the process's certificate expires, in Unix seconds.",
			func(s tlsfiles.Stats) float64 { return float64(s.NotAfter.Unix()) }))
	}
	for _, c := range collectors {
		err = errors.Join(err, a.registry.Register(c))
	}
	return err
}

// checkOwnName reports that the process's certificate is not for the name under which others call the process: each of them would refuse it.
func (a *App) checkOwnName() error {
	if !a.cfg.servesTLS() {
		return nil
	}
	u, err := url.Parse(a.advertisedURL())
	if err != nil {
		return err
	}
	if u.Scheme != "https" {
		return fmt.Errorf("the process serves with TLS, and --advertise says %s: want https://", a.advertisedURL())
	}
	host := u.Hostname()
	if a.cfg.TLS.ServerName != "" {
		host = a.cfg.TLS.ServerName
	}
	if err := a.tls.CheckName(host); err != nil {
		return fmt.Errorf("the certificate in %s is not for %s, where others reach this process: name an address that it is for with --advertise, or what others expect with --tls-server-name: %w",
			a.cfg.TLS.Cert, host, err)
	}
	return nil
}

// flightSecurity is how Flight is served: as everything else is.
func (a *App) flightSecurity() sqlserver.FlightSecurity {
	s := sqlserver.FlightSecurity{Check: a.guard.checkFlight(a.tls, a.enforcer.WithCaller)}
	if a.cfg.servesTLS() {
		s.TLS = a.tls.ServerConfig()
	}
	return s
}

// flightScheme begins the URL of Flight.
func (a *App) flightScheme() string {
	if a.cfg.servesTLS() {
		return "grpc+tls://"
	}
	return "grpc://"
}

// memberTLS are the files with which a node's member of etcd serves; nil without TLS.
func (a *App) memberTLS() *member.TLS {
	if !a.cfg.servesTLS() {
		return nil
	}
	return &member.TLS{Cert: a.cfg.TLS.Cert, Key: a.cfg.TLS.Key, CA: a.cfg.TLS.ClientCA, ServerName: a.cfg.TLS.ServerName, Client: a.etcdTLS()}
}

// etcdTLS is how a node connects to the etcd of nodes; nil without TLS.
func (a *App) etcdTLS() *tls.Config {
	if !a.cfg.servesTLS() {
		return nil
	}
	return a.tls.ClientConfig()
}

// externalEtcdTLS is how the process connects to an etcd that others run; nil for the machine's authorities and no certificate.
func (a *App) externalEtcdTLS() (*tls.Config, error) {
	e := &a.cfg.Etcd
	if e.CA == "" && e.Cert == "" {
		return nil, nil
	}
	files, err := tlsfiles.Open(tlsfiles.Config{Cert: e.Cert, Key: e.Key, CA: e.CA}, tlsfiles.Deps{Logger: a.log, Now: a.opts.Host.Now})
	if err != nil {
		return nil, fmt.Errorf("--etcd-ca, --etcd-cert and --etcd-key: %w", err)
	}
	cfg := files.ClientConfig()
	cfg.MinVersion = tls.VersionTLS12 // it may be older than TLS 1.3
	return cfg, nil
}
