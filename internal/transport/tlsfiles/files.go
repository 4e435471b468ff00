package tlsfiles

import (
	"context"
	"crypto/tls"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/base/logthrottle"
)

// checkInterval is the least time between two looks at the files.
const checkInterval = time.Second

// Deps are what files are opened with.
type Deps struct {
	// Logger gets what changed, and what can't be used. Nil logs nothing.
	Logger *slog.Logger
	// Now is the wall clock; nil = the system's.
	Now func() time.Time
}

// Files are the files of a configuration, kept current. It starts no goroutine: handshakes look. It is safe for concurrent use.
type Files struct {
	cfg     Config
	log     *slog.Logger
	now     func() time.Time
	current atomic.Pointer[material]
	// looked is when the files were looked at, in Unix nanoseconds. Whoever moves it forward looks; the others use what there is.
	looked    atomic.Int64
	reloads   atomic.Uint64
	failures  atomic.Uint64
	reloading struct {
		sync.Mutex
		throttle logthrottle.Throttle
	}
}

// Open reads the files. Its error says what is wrong with which of them.
func Open(cfg Config, deps Deps) (*Files, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	f := &Files{cfg: cfg, log: deps.Logger, now: deps.Now}
	if f.log == nil {
		f.log = slog.New(slog.DiscardHandler)
	}
	if f.now == nil {
		f.now = time.Now
	}
	read, err := readFiles(&cfg)
	if err != nil {
		return nil, err
	}
	now := f.now()
	m, err := read.parse(&cfg, 1, now)
	if err != nil {
		return nil, err
	}
	f.current.Store(m)
	f.looked.Store(now.UnixNano())
	return f, nil
}

// Config returns what the files were opened with.
func (f *Files) Config() Config { return f.cfg }

// AsksClients reports whether clients are asked for certificates.
func (f *Files) AsksClients() bool { return f.cfg.ClientCA != "" }

// latest returns what the files hold, as of a second ago at most.
func (f *Files) latest() *material {
	now, looked := f.now(), f.looked.Load()
	since := time.Duration(now.UnixNano() - looked)
	// A clock that was set back does not keep the files from being looked at.
	if since >= 0 && since < checkInterval || !f.looked.CompareAndSwap(looked, now.UnixNano()) {
		return f.current.Load()
	}
	f.reloading.Lock()
	defer f.reloading.Unlock()
	return f.reload(now)
}

// reload looks at the files. What can't be used leaves what there was. The lock is held: only those who look wait for it.
func (f *Files) reload(now time.Time) *material {
	known, ctx := f.current.Load(), context.Background()
	read, err := readFiles(&f.cfg)
	if err == nil && read.equal(&known.contents) {
		f.reloading.throttle.Recovered(ctx, f.log, "TLS files are as before again", "cert", f.cfg.Cert, "ca", f.cfg.CA, "client_ca", f.cfg.ClientCA)
		return known
	}
	var m *material
	if err == nil {
		m, err = read.parse(&f.cfg, known.generation+1, now)
	}
	if err != nil {
		f.failures.Add(1)
		f.reloading.throttle.Failed(ctx, f.log, "new TLS files can't be used: going on with the former ones", "error", err)
		return known
	}
	f.reloading.throttle.Recovered(ctx, f.log, "TLS files can be used again")
	f.current.Store(m)
	f.reloads.Add(1)
	f.log.InfoContext(ctx, "TLS files changed", "cert", f.cfg.Cert, "ca", f.cfg.CA, "client_ca", f.cfg.ClientCA, "expires", m.notAfter())
	return m
}

// notAfter is when the process's certificate expires; zero without one.
func (m *material) notAfter() (at time.Time) {
	if m.pair != nil {
		at = m.pair.Leaf.NotAfter
	}
	return at
}

// Stats are counts since the start.
type Stats struct {
	// Reloads counts changes that were taken over, Failures looks at files that could not be used.
	Reloads, Failures uint64
	// NotAfter is when the process's certificate expires; zero without one.
	NotAfter time.Time
}

// Stats returns the counts. It looks at the files.
func (f *Files) Stats() Stats {
	m := f.latest()
	return Stats{Reloads: f.reloads.Load(), Failures: f.failures.Load(), NotAfter: m.notAfter()}
}

// CheckName reports that the process's own certificate is not for a host at which others reach it.
func (f *Files) CheckName(host string) error {
	if pair := f.latest().pair; pair != nil {
		return pair.Leaf.VerifyHostname(host)
	}
	return nil
}

// ServerConfig returns the configuration for a listener. The process must have a certificate.
func (f *Files) ServerConfig() *tls.Config {
	c := f.latest().serverConfig()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.latest().server, nil }
	return c
}
