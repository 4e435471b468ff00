package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"scribe/console"
	"scribe/internal/cell/audit"
	"scribe/internal/cell/enforce"
	"scribe/internal/role/traffic"
	"scribe/internal/transport/rpc"
	"scribe/internal/transport/rpc/memhttp"
	"scribe/internal/transport/tlsfiles"
	scribev1 "scribe/proto/scribe/v1"
)

// Wiring is how roles of one process call each other.
type Wiring int

const (
	// Direct calls the role's object.
	Direct Wiring = iota
	// InMemory uses HTTP without a network, as across processes. It is for tests.
	InMemory
)

// Options are the parameters of a process besides its configuration.
type Options struct {
	// Logger gets all logs. Required.
	Logger *slog.Logger
	// Version of the program, for status.
	Version string
	// Wiring between the roles of the process.
	Wiring Wiring
	// Host is the machine.
	Host Host
	// Step is called before each durable step by which metadata moves to nodes or back. Its error ends that there, as a crash would. Nil for none.
	Step func(name string) error
	// Drain accepts no new messages from producers and inputs: the process only forwards the agent's backlog.
	Drain bool
}

// App is a running process. Its methods are safe for concurrent use.
type App struct {
	cfg     Config
	log     *slog.Logger
	opts    Options
	started time.Time
	id      string
	// incarnation tells this start of the process from others with its id.
	incarnation string
	url         string

	registry  *prometheus.Registry
	tls       *tlsfiles.Files // nil if the configuration names none
	guard     *accessGuard
	trail     *audit.Trail // nil where nobody is asked who it is
	own       ownAnswers
	bounds    *rpc.Bounds  // what callers may hold of the process
	mux       *guardedMux
	bounded   http.Handler     // mux behind bounds, once callers are known, also by their tokens
	loopMux   *http.ServeMux   // services for roles of this process; nil with Direct wiring
	console   *console.Handler // nil without one
	server    *rpc.Server
	transport *rpc.Transport // to other processes
	// enforcer decides who may do what here; nil in an agent alone. entrance is the mux behind it, once it knows.
	enforcer *enforce.Enforcer
	entrance atomic.Pointer[http.Handler]
	ready    atomic.Bool
	slot     atomic.Uint32 // writer slot of this member; 0 while it has none
	store    storeIdentity

	parts sharedParts
	// detaching means that the process takes the metadata of a cell of nodes along, and serves nothing.
	detaching bool
	// dismissed means that nothing can be made durable here any more, so that stopping need not wait for anything.
	dismissed atomic.Bool

	// failed gets the first fatal failure of the process; ended is closed when Stop begins.
	failed chan error
	ended  chan struct{}
	// readinessChecks return errors while the process runs but cannot do its work.
	readinessChecks []func() error
	health          healthBook
	// traffic counts what write proxy and read proxy move, by category.
	traffic *traffic.Counter

	stopping sync.Once
	stopped  error
	// stops stop the started parts, in reverse order.
	stops []stopStep
	// shared is how many of them, the first ones, are of parts that roles share: none of those drains.
	shared int
	// leads are what other processes can lead in place of this one; they are handed over in reverse order.
	leads []leadStep
}

// stopStep stops one part of the process.
type stopStep struct {
	name string
	fn   func(context.Context) error
}

// Start runs the roles of a configuration. It returns when the process serves and is a member of its cell. It may wait for the control plane
// of another process until ctx ends. An invalid configuration is an error.
func Start(ctx context.Context, cfg Config, opts Options) (_ *App, err error) {
	a, err := newApp(cfg, opts)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.stopNow(ctx))
		}
	}()
	if err := a.startProcess(ctx); err != nil {
		return nil, err
	}
	for _, m := range modules {
		if m.name == firstRole {
			a.shared = len(a.stops)
		}
		if !m.wanted(&a.cfg) {
			continue
		}
		if err := m.start(a, ctx); err != nil {
			return nil, fmt.Errorf("start %s: %w", m.name, err)
		}
	}
	a.ready.Store(true)
	if a.cfg.isOpen() {
		a.log.Warn("insecure: everybody who reaches this process may read, write and delete everything", "listen", a.cfg.Listen, "flight", a.cfg.Flight)
	}
	a.log.Info("ready", "url", a.url, "roles", a.cfg.Roles, "id", a.id, "after", time.Since(a.started))
	return a, nil
}

// newApp returns a process that has not begun.
func newApp(cfg Config, opts Options) (*App, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	opts.Host = opts.Host.withDefaults()
	if opts.Step == nil {
		opts.Step = func(string) error { return nil }
	}
	a := &App{
		cfg: cfg.asSecure().asNode(), opts: opts, log: opts.Logger, started: time.Now(), registry: prometheus.NewRegistry(),
		failed: make(chan error, 1), ended: make(chan struct{}),
	}
	a.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	var err error
	if a.bounds, err = a.newBounds(); err != nil {
		return nil, err
	}
	if a.cfg.audits() {
		if a.trail, err = audit.New(opts.Host.Now, opts.Host.Random.Named("audit"), a.log, a.registry); err != nil {
			return nil, err
		}
	}
	if a.guard, err = newAccessGuard(a.cfg.enforcesAccess(), a.trail, a.registry); err != nil {
		return nil, err
	}
	a.mux = &guardedMux{http.NewServeMux(), a.guard}
	a.bounded = a.bounds.BoundRequests(a.mux)
	a.traffic, err = traffic.NewCounter(a.registry)
	return a, err
}

// stopNow stops a process also when ctx has ended.
func (a *App) stopNow(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cfg.ShutdownTimeout)
	defer cancel()
	return a.Stop(ctx)
}

// startProcess takes the data folder, and listens.
func (a *App) startProcess(ctx context.Context) (err error) {
	if a.cfg.needsData() {
		release, err := lockData(a.opts.Host.FS, a.cfg.Data)
		if err != nil {
			return err
		}
		a.onStop("data folder", func(context.Context) error { return release() })
		if err := a.checkFolderUse(); err != nil {
			return err
		}
	}
	if a.cfg.Secure { // with the folder locked: two first starts at once would each make an authority
		if err := a.cfg.makeSecure(a.opts.Host.Now(), a.log); err != nil {
			return err
		}
	}
	if err := a.openTLS(); err != nil {
		return err
	}
	if a.id, err = memberID(a.opts.Host, &a.cfg); err != nil {
		return fmt.Errorf("member id: %w", err)
	}
	a.incarnation = a.opts.Host.Random.Named("incarnation").Text()
	return a.startListening(ctx)
}

// URL is the base URL that the process serves at.
func (a *App) URL() string { return a.url }

// Failed yields an error after a fatal failure; the caller should then stop the process.
func (a *App) Failed() <-chan error { return a.failed }

// watchFailure reports a fatal failure of a dependency to Failed. happened is closed, or yields a value, at that failure.
func watchFailure[T any](a *App, happened <-chan T, why func(T) error) {
	done := make(chan struct{})
	a.onStop("watch", func(context.Context) error { <-done; return nil })
	go func() {
		defer close(done)
		select {
		case v := <-happened:
			select {
			case a.failed <- why(v):
			default: // the first failure is the one that ends the process
			}
		case <-a.ended:
		}
	}()
}

// Stop stops the process without losing data: it becomes not ready, hands over what it leads, drains accepted messages, ends streams with a
// notice, then releases its resources. It returns all errors, including work that remained when ctx ended. Repeated calls return the same error.
func (a *App) Stop(ctx context.Context) error {
	a.stopping.Do(func() {
		served := a.ready.Swap(false)
		if served && !a.dismissed.Load() {
			a.standAside(ctx)
		}
		ctx, cancel := a.limitStop(ctx)
		defer cancel()
		close(a.ended)
		draining, drained := reserveTime(ctx)
		defer drained()
		var errs []error
		for i, s := range slices.Backward(a.stops) {
			within := ctx
			if i >= a.shared {
				within = draining
			}
			begin := time.Now()
			if err := s.fn(within); err != nil {
				errs = append(errs, fmt.Errorf("stop %s: %w", s.name, err))
			}
			a.logStep("stop", s.name, time.Since(begin))
		}
		a.stopped = errors.Join(errs...)
		switch {
		case a.stopped != nil:
			a.log.Warn("stopped with errors", "error", a.stopped)
		case served:
			a.log.Info("stopped")
		}
	})
	return a.stopped
}

// reservedTime is what the parts that only end goroutines, which stop last, have left of a stop whose drains take all of their time: they need a moment
// each, and their errors would hide which drain it was.
const reservedTime = 2 * time.Second

// reserveTime returns a context for drains, which ends a moment before ctx does.
func reserveTime(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, deadline.Add(-min(reservedTime, time.Until(deadline)/4)), context.DeadlineExceeded)
}

// slowStep is the time from which on operators are told which step of a stop it is that takes long.
const slowStep = 3 * time.Second

func (a *App) logStep(step, part string, took time.Duration) {
	level := slog.LevelDebug
	if took >= slowStep {
		level = slog.LevelWarn
	}
	a.log.Log(context.Background(), level, "step of the stop ended", "step", step, "part", part, "took", took)
}

func (a *App) onStop(name string, fn func(context.Context) error) {
	a.stops = append(a.stops, stopStep{name, fn})
}

// startListening starts to serve. Roles add their services to the mux as they start.
func (a *App) startListening(ctx context.Context) error {
	l, err := a.listenTCP(ctx, "--listen", a.cfg.Listen)
	if err != nil {
		return err
	}
	a.url = schemeOf(a.cfg.servesTLS()) + callableAddress(l.Addr())
	if err := a.checkOwnName(); err != nil {
		return errors.Join(err, l.Close())
	}
	a.mux.HandleFunc("GET /livez", a.serveLivez)
	a.mux.HandleFunc("GET /readyz", a.serveReadyz)
	a.mux.HandleFunc("/", a.serveUnknownPath)
	if a.cfg.Console {
		if a.console, err = console.New(); err != nil {
			return errors.Join(err, l.Close())
		}
		a.mux.Handle(console.Pattern, a.console)
	}
	a.mux.Handle("GET /metrics", promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{Registry: a.registry}))
	if a.cfg.Pprof {
		a.mux.HandleFunc("/debug/pprof/", pprof.Index)
		a.mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		a.mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		a.mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	a.server = rpc.NewServer(a, a.log)
	a.transport = rpc.NewTransport(a.opts.Host.Dial, rpc.WithTLS(a.tls))
	a.onStop("connections", func(context.Context) error { a.transport.Close(); return nil })
	a.onStop("server", a.server.Close)
	if a.cfg.servesTLS() {
		a.server.ServeTLS(l, a.tls)
	} else {
		a.server.Serve(l)
	}
	watchFailure(a, a.server.Failed(), func(err error) error { return err })
	if a.cfg.Socket != "" {
		ul, err := listenUnix(ctx, a.cfg.Socket)
		if err != nil {
			return err
		}
		a.server.Serve(ul)
	}
	if a.opts.Wiring == InMemory {
		l := memhttp.Listen()
		a.loopMux, a.parts.loopback = http.NewServeMux(), rpc.NewTransport(l.Dial)
		server := rpc.NewServer(a.loopMux, a.log)
		a.onStop("in-memory connections", func(ctx context.Context) error { a.parts.loopback.Close(); return server.Close(ctx) })
		server.Serve(l)
	}
	return nil
}

// serveUnknownPath answers requests for unknown paths, and shows the console at the root. While roles start, the service may still appear, so the answer is to retry: a caller
// that is told that the service does not exist would give up on a server that is restarting.
func (a *App) serveUnknownPath(w http.ResponseWriter, r *http.Request) {
	if a.console != nil && r.URL.Path == "/" && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		a.console.ServeHTTP(w, r)
		return
	}
	if a.ready.Load() {
		if other := a.allowedMethod(r); other != "" {
			w.Header().Set("Allow", other)
			http.Error(w, fmt.Sprintf("%s is not served here, %s is", r.Method, other), http.StatusMethodNotAllowed)
			return
		}
		http.NotFound(w, r)
		return
	}
	serveStarting(w)
}

func serveStarting(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, "the process is starting or stopping: try again", http.StatusServiceUnavailable)
}

// allowedMethod returns the method that is served at the path of r, or "".
func (a *App) allowedMethod(r *http.Request) string {
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := a.mux.Handler(other); pattern != "/" {
			return method
		}
	}
	return ""
}

// advertisedURL returns the URL for other processes.
func (a *App) advertisedURL() string {
	if a.cfg.Advertise != "" {
		return a.cfg.Advertise
	}
	return a.url
}

// callableAddress replaces the wildcard address by the loopback address, which can be called on this machine.
func callableAddress(addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

func (a *App) protoRoles() []scribev1.Role {
	roles := make([]scribev1.Role, 0, len(a.cfg.Roles))
	for _, r := range AllRoles {
		if a.cfg.Has(r) {
			roles = append(roles, protoRoles[r])
		}
	}
	return roles
}
