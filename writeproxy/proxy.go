package writeproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"scribe/internal/buffers"
	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Categories is the view of categories.
type Categories interface {
	// Lookup returns a category from the local view. Callers do not change it.
	Lookup(name string) (*scribev1.Category, bool)
	// Resolve asks the control plane. Its error has REASON_UNKNOWN_CATEGORY when there is none.
	Resolve(ctx context.Context, name string) (*scribev1.Category, error)
}

// Creator is what creates categories: a part of rpc.ControlService.
type Creator interface {
	CreateCategory(ctx context.Context, req *scribev1.CreateCategoryRequest) (*scribev1.CreateCategoryResponse, error)
}

// Deps are what a write proxy works with. They outlive it.
type Deps struct {
	Categories Categories
	// Creator is needed with Config.AutoCreate.
	Creator Creator
	// Batchers returns those that are known at present: an immutable snapshot, and the same one while nothing changes.
	Batchers func() []Batcher
	// Logger defaults to none.
	Logger *slog.Logger
	// Registerer gets the metrics; nil keeps none. Close unregisters them.
	Registerer prometheus.Registerer
	// Clock gives messages without a time theirs; it defaults to time.Now. Timers always run by package time.
	Clock func() time.Time
}

// Proxy is an rpc.WriteService. It is safe for concurrent use.
type Proxy struct {
	cfg     Config
	deps    Deps
	router  *router
	retries *retries
	metrics *metrics
	// bodies are requests that are admitted and being read, writes those in Write and Publish.
	bodies, writes memory
	creating       singleflight.Group
	copies         buffers.Pool

	// ctx ends when Close loses its patience.
	ctx    context.Context //nolint:containedctx // ends running requests from outside
	cancel context.CancelCauseFunc
	ended  chan struct{}

	mu struct {
		sync.Mutex
		closed  bool
		running int
		idle    chan struct{} // closed when closed and running is 0
		counts  counts
	}
}

var _ rpc.WriteService = (*Proxy)(nil)

// New returns a write proxy.
func New(cfg Config, deps Deps) (*Proxy, error) {
	faults := []error{cfg.Validate()}
	if deps.Categories == nil {
		faults = append(faults, errors.New("writeproxy: Deps.Categories is needed"))
	}
	if deps.Batchers == nil {
		faults = append(faults, errors.New("writeproxy: Deps.Batchers is needed"))
	}
	if cfg.AutoCreate && deps.Creator == nil {
		faults = append(faults, errors.New("writeproxy: Deps.Creator is needed to create categories"))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = time.Now
	}
	p := &Proxy{
		cfg:     cfg,
		deps:    deps,
		router:  &router{batchers: deps.Batchers},
		retries: newRetries(cfg.RetryRatio),
		ended:   make(chan struct{}),
	}
	p.bodies.limit, p.writes.limit = cfg.MemoryBytes/2, cfg.MemoryBytes/2
	p.mu.idle = make(chan struct{})
	p.mu.counts.failed = make(map[scribev1.Reason]amount)
	p.metrics = newMetrics(p)
	if err := p.metrics.register(deps.Registerer); err != nil {
		return nil, err
	}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	return p, nil
}

// Admit charges a request's announced length before its body is read; it refuses with REASON_OVERLOADED and a hint, or with
// REASON_TOO_LARGE. release is to be called once the request is answered.
func (p *Proxy) Admit(n int64) (release func(), err error) {
	p.mu.Lock()
	closed := p.mu.closed
	p.mu.Unlock()
	if closed {
		return nil, errShutDown()
	}
	release, err = p.bodies.take(n)
	if err != nil {
		p.metrics.refused.WithLabelValues(reasonLabel(rpc.ReasonOf(err))).Inc()
	}
	return release, err
}

func errShutDown() error {
	return rpc.Errorf(scribev1.Reason_REASON_SHUTTING_DOWN, "the write proxy is shutting down: send to another one")
}

var errClosed = errors.New("writeproxy: closed before the request was answered")

// Close refuses new requests and waits for the running ones. When ctx ends first, they are ended with an unknown outcome and the
// error says how many they were. Calling it again waits for the first call.
func (p *Proxy) Close(ctx context.Context) error {
	p.mu.Lock()
	again := p.mu.closed
	p.mu.closed = true
	if !again && p.mu.running == 0 {
		close(p.mu.idle)
	}
	p.mu.Unlock()
	if again {
		select {
		case <-p.ended:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	var err error
	select {
	case <-p.mu.idle:
	case <-ctx.Done():
		p.mu.Lock()
		err = fmt.Errorf("writeproxy: %d requests were ended before they were answered: %w", p.mu.running, context.Cause(ctx))
		p.mu.Unlock()
		p.cancel(errClosed)
		<-p.mu.idle // a batcher answers when its context ends
	}
	p.cancel(nil)
	p.metrics.unregister(p.deps.Registerer)
	close(p.ended)
	return err
}

// begin registers a running request and gives it a context that ends before the caller's, and with the proxy.
func (p *Proxy) begin(ctx context.Context) (_ context.Context, end func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return nil, nil, errShutDown()
	}
	p.mu.running++
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(p.cfg.Timeout)
	} else {
		deadline = deadline.Add(-min(p.cfg.HopMargin, max(time.Until(deadline), 0)/10))
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	stop := context.AfterFunc(p.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.mu.running--
		if p.mu.closed && p.mu.running == 0 {
			close(p.mu.idle)
		}
	}, nil
}
