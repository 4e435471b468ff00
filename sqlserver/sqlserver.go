package sqlserver

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"scribe/internal/base/lifecycle"
)

// Server answers queries. Its methods are safe for concurrent use.
type Server struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	now     func() time.Time
	metrics *roleMetrics
	calls   lifecycle.Calls // the admitted queries
	// open, tail and tables are openQuery, openTail and listTables, except in tests.
	open   func(ctx context.Context, req *Request) (rowSource, error)
	tail   func(req *tailRequest, pause func()) (messageSource, error)
	tables func(ctx context.Context) []tableInfo

	mu struct {
		sync.Mutex
		running map[*runningQuery]struct{}
		tails   map[*runningTail]struct{}
		follows int
		flights map[*grpc.Server]struct{}
	}
	serving sync.WaitGroup // Flight servers
}

// Causes that end queries, other than their clients.
var (
	errTimeout = errors.New("the query took longer than it may")
	errClosing = errors.New("the server is shutting down")
)

// New returns a server.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Categories == nil {
		return nil, errors.New("sqlserver: Deps.Categories is missing")
	}
	g := &Server{cfg: cfg, deps: deps, log: deps.Logger, now: deps.Now}
	g.open, g.tail, g.tables = g.openQuery, g.openTail, g.listTables
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	if g.now == nil {
		g.now = time.Now
	}
	g.mu.running, g.mu.tails = make(map[*runningQuery]struct{}), make(map[*runningTail]struct{})
	g.mu.flights = make(map[*grpc.Server]struct{})
	count := func(of func() int) func() float64 {
		return func() float64 {
			g.mu.Lock()
			defer g.mu.Unlock()
			return float64(of())
		}
	}
	var err error
	g.metrics, err = newMetrics(deps.Registerer, count(func() int { return len(g.mu.running) }), count(func() int { return g.mu.follows }),
		count(func() int { return len(g.mu.tails) }))
	return g, err
}

// Close refuses new queries and tails, ends tails and following queries at once and the others after [Config.DrainTimeout] or when ctx ends, and
// waits until all have ended. It can be called again.
func (g *Server) Close(ctx context.Context) error {
	return g.calls.Close(ctx, func() error {
		g.cancelWhere(func(q *runningQuery) bool { return q.req.Follow })
		g.cancelTails()
		draining, cancel := context.WithTimeout(ctx, g.cfg.DrainTimeout)
		_ = g.calls.Wait(draining) // the rest are ended below
		cancel()
		g.cancelWhere(func(*runningQuery) bool { return true })
		g.mu.Lock()
		flights := slices.Collect(maps.Keys(g.mu.flights))
		g.mu.Unlock()
		for _, s := range flights {
			s.Stop()
		}
		g.serving.Wait()
		if err := g.calls.Wait(ctx); err != nil {
			return err
		}
		g.metrics.Unregister()
		return nil
	})
}

func (g *Server) cancelWhere(which func(*runningQuery) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for q := range g.mu.running {
		if which(q) {
			q.cancel(errClosing)
		}
	}
}

func (g *Server) cancelTails() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for t := range g.mu.tails {
		t.cancel(errClosing)
	}
}

// refuseUntil returns an error that says when to try again, jittered, so that those refused together do not return together.
func (g *Server) refuseUntil(k Kind, after time.Duration, format string, args ...any) error {
	err := errorf(k, format, args...)
	err.RetryAfter = after + g.deps.Random.Duration(after)
	return err
}

// admitTail admits a tail, or returns why it is refused.
func (g *Server) admitTail(t *runningTail) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.tailsOf(t.caller) >= g.callerTails():
		return g.refuseUntil(KindBusy, 10*time.Second, "%d tails of %s are running, the limit for one caller: a quarter of max_tails (%d)",
			g.callerTails(), t.caller, g.cfg.MaxTails)
	case len(g.mu.tails) >= g.cfg.MaxTails:
		return g.refuseUntil(KindBusy, 10*time.Second, "%d tails are running, the limit of this process", len(g.mu.tails))
	case !g.calls.Enter():
		return g.refuseUntil(KindUnavailable, time.Second, "%v", errClosing)
	}
	g.mu.tails[t] = struct{}{}
	return nil
}

// callerTails is how many tails of one caller run at most, so that nobody takes the places of all others.
func (g *Server) callerTails() int { return max(g.cfg.MaxTails/4, min(g.cfg.MaxTails, 1)) }

// tailsOf counts the tails of a caller; "" is one without a bound. The caller holds g.mu.
func (g *Server) tailsOf(caller string) (n int) {
	for t := range g.mu.tails {
		if caller != "" && t.caller == caller {
			n++
		}
	}
	return n
}

// Load returns how busy the server is, 0 (idle) to 1000 (refusing): the used part of its limits of queries and tails.
func (g *Server) Load() uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	queries := float64(len(g.mu.running)) / float64(max(g.cfg.MaxQueries, 1))
	tails := float64(len(g.mu.tails)) / float64(max(g.cfg.MaxTails, 1))
	return uint32(1000 * min(max(queries, tails), 1))
}

func (g *Server) releaseTail(t *runningTail) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.mu.tails, t)
	g.calls.Leave()
}

// admitQuery admits a query, or returns why it is refused.
func (g *Server) admitQuery(q *runningQuery) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	later := g.refuseUntil
	switch {
	case len(g.mu.running) >= g.cfg.MaxQueries:
		return later(KindBusy, time.Second, "%d queries are running, the limit of this process", len(g.mu.running))
	case q.req.Follow && g.mu.follows >= g.cfg.MaxFollows:
		return later(KindBusy, 10*time.Second, "%d following queries are running, the limit of this process", g.mu.follows)
	case !g.calls.Enter():
		return later(KindUnavailable, time.Second, "%v", errClosing)
	}
	g.mu.running[q] = struct{}{}
	if q.req.Follow {
		g.mu.follows++
	}
	return nil
}

func (g *Server) releaseQuery(q *runningQuery) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.mu.running[q]; !ok {
		return // it was not admitted
	}
	delete(g.mu.running, q)
	if q.req.Follow {
		g.mu.follows--
	}
	g.calls.Leave()
}
