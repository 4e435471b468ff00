package sqlserver

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// Gateway answers queries. Its methods are safe for concurrent use.
type Gateway struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	now     func() time.Time
	metrics *metrics

	mu struct {
		sync.Mutex
		closed  bool
		running map[*query]struct{}
		follows int
		flights map[*grpc.Server]struct{}
		// idle is closed when nothing runs any more; made by Close.
		idle chan struct{}
	}
	serving sync.WaitGroup // Flight servers
}

// Causes that end queries, beside their clients.
var (
	errTimeout = errors.New("the query took longer than it may")
	errClosing = errors.New("the gateway is shutting down")
)

// New returns a gateway.
func New(cfg Config, deps Deps) (*Gateway, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Runner == nil {
		return nil, errors.New("gateway: Deps.Runner is missing")
	}
	g := &Gateway{cfg: cfg, deps: deps, log: deps.Logger, now: deps.Now}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	if g.now == nil {
		g.now = time.Now
	}
	g.mu.running = make(map[*query]struct{})
	g.mu.flights = make(map[*grpc.Server]struct{})
	count := func(of func() int) func() float64 {
		return func() float64 {
			g.mu.Lock()
			defer g.mu.Unlock()
			return float64(of())
		}
	}
	var err error
	g.metrics, err = newMetrics(deps.Registerer, count(func() int { return len(g.mu.running) }), count(func() int { return g.mu.follows }))
	return g, err
}

// Close refuses new queries, ends those that follow at once and the others after [Config.DrainTimeout] or when ctx ends, and waits for
// them. It can be called again.
func (g *Gateway) Close(ctx context.Context) error {
	g.mu.Lock()
	first := !g.mu.closed
	g.mu.closed = true
	if first {
		g.mu.idle = make(chan struct{})
		if len(g.mu.running) == 0 {
			close(g.mu.idle)
		}
	}
	idle := g.mu.idle
	g.mu.Unlock()
	g.interrupt(func(q *query) bool { return q.req.Follow })
	drained := time.NewTimer(g.cfg.DrainTimeout)
	defer drained.Stop()
	select {
	case <-idle:
	case <-drained.C:
	case <-ctx.Done():
	}
	g.interrupt(func(*query) bool { return true })
	g.mu.Lock()
	flights := make([]*grpc.Server, 0, len(g.mu.flights))
	for s := range g.mu.flights {
		flights = append(flights, s)
	}
	g.mu.Unlock()
	for _, s := range flights {
		s.Stop()
	}
	g.serving.Wait()
	select {
	case <-idle:
	case <-ctx.Done():
		return ctx.Err()
	}
	if first {
		g.metrics.close()
	}
	return nil
}

func (g *Gateway) interrupt(which func(*query) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for q := range g.mu.running {
		if which(q) {
			q.cancel(errClosing)
		}
	}
}

// admit gives a query its slot, or says why it gets none.
func (g *Gateway) admit(q *query) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	later := func(k Kind, after time.Duration, format string, args ...any) error {
		err := errorf(k, format, args...)
		err.RetryAfter = after + rand.N(after) // those that were refused together do not come back together
		return err
	}
	switch {
	case g.mu.closed:
		return later(KindUnavailable, time.Second, "%v", errClosing)
	case len(g.mu.running) >= g.cfg.MaxQueries:
		return later(KindBusy, time.Second, "%d queries are running, which is as many as this process takes", len(g.mu.running))
	case q.req.Follow && g.mu.follows >= g.cfg.MaxFollows:
		return later(KindBusy, 10*time.Second, "%d queries are following, which is as many as this process takes", g.mu.follows)
	}
	g.mu.running[q] = struct{}{}
	if q.req.Follow {
		g.mu.follows++
	}
	return nil
}

func (g *Gateway) release(q *query) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.mu.running[q]; !ok {
		return // it was not admitted
	}
	delete(g.mu.running, q)
	if q.req.Follow {
		g.mu.follows--
	}
	if g.mu.closed && len(g.mu.running) == 0 {
		close(g.mu.idle)
	}
}
