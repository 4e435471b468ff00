package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// ControlPlane implements rpc.ControlService. Make it with New.
type ControlPlane struct {
	cfg     Config
	deps    Deps
	logger  *slog.Logger
	metrics *metrics
	ids     *ids
	feed    *feed
	members *members
	pins    *pins
	// retirement is of the deleted categories whose logs may not have ended.
	retirement *retirement
	// suggesting limits the search for names like one that does not exist, which looks at all of them: one at a time, and so
	// many a second. Without it errors just suggest nothing.
	suggesting chan struct{}
	suggestive *rate.Limiter

	// closing ends watches; stopped ends the goroutines of this package.
	closing chan struct{}
	stopped context.Context
	stop    context.CancelFunc
	workers sync.WaitGroup

	mu struct {
		sync.Mutex
		closed  bool
		calls   int
		watches int
		// idle is closed when the last call ends after closing.
		idle chan struct{}
	}
}

var _ rpc.ControlService = (*ControlPlane)(nil)

// New starts a control plane. It reads the slots of members, so the store must answer.
func New(cfg Config, deps Deps) (*ControlPlane, error) {
	if deps.Store == nil {
		return nil, errors.Join(errors.New("controlplane: no store"), cfg.Validate())
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	c := &ControlPlane{
		cfg:        cfg,
		deps:       deps,
		logger:     deps.Logger,
		ids:        newIDs(deps.Store, cfg.IDBlock),
		feed:       newFeed(cfg.MaxDeletions),
		suggesting: make(chan struct{}, 1),
		suggestive: rate.NewLimiter(5, 10),
		closing:    make(chan struct{}),
	}
	c.mu.idle = make(chan struct{})
	c.members = newMembers(cfg.MaxSlot)
	c.retirement = newRetirement()
	c.pins = newPins(time.Now())
	m, err := newMetrics(deps.Registerer, counts{
		categories: func() float64 { return float64(c.feed.count()) },
		members:    func() float64 { return float64(c.members.count()) },
		retiring:   func() float64 { return float64(c.retirement.pending()) },
		pinHolders: func() float64 { return float64(c.pins.holders()) },
	})
	if err != nil {
		return nil, err
	}
	c.metrics = m
	c.stopped, c.stop = context.WithCancel(context.Background())
	if err := c.restoreMembers(); err != nil {
		c.stop()
		return nil, fmt.Errorf("controlplane: read the members of before: %w", err)
	}
	c.workers.Go(c.followStore)
	c.workers.Go(c.watchLeases)
	c.workers.Go(c.retireCategories)
	return c, nil
}

// Close refuses new calls, ends watches, waits for running calls until ctx ends, and releases what the control plane holds. The
// members' leases stay: they are for the next control plane on the same store. Repeating it is harmless.
func (c *ControlPlane) Close(ctx context.Context) error {
	c.mu.Lock()
	first := !c.mu.closed
	if first {
		c.mu.closed = true
		close(c.closing)
		if c.mu.calls == 0 {
			close(c.mu.idle)
		}
	}
	c.mu.Unlock()
	var err error
	select {
	case <-c.mu.idle:
		if first {
			err = c.ids.release(ctx)
		}
	case <-ctx.Done():
		err = fmt.Errorf("controlplane: calls still run: %w", ctx.Err())
	}
	c.stop()
	c.workers.Wait()
	return err
}

// begin admits a call; done ends it. Calls are refused once the control plane closes.
func (c *ControlPlane) begin() (done func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil, errClosing()
	}
	c.mu.calls++
	return c.end, nil
}

func (c *ControlPlane) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.calls--
	if c.mu.closed && c.mu.calls == 0 {
		close(c.mu.idle)
	}
}

// beginWatch is begin for a watch.
func (c *ControlPlane) beginWatch(kind string) (done func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil, errClosing()
	}
	if c.mu.watches >= c.cfg.MaxWatches {
		return nil, rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, time.Second,
			"watch %s: %d watches run, which is the limit", kind, c.cfg.MaxWatches)
	}
	c.mu.watches++
	c.mu.calls++
	gauge := c.metrics.watches.WithLabelValues(kind)
	gauge.Inc()
	return func() {
		gauge.Dec()
		c.mu.Lock()
		c.mu.watches--
		c.mu.Unlock()
		c.end()
	}, nil
}

func errClosing() error {
	return rpc.Errorf(scribev1.Reason_REASON_SHUTTING_DOWN, "the control plane is shutting down")
}

// readError gives a failed read of the store its reason. what is what was tried.
func readError(what string, err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w", what, err)
	case errors.Is(err, kv.ErrClosed):
		return rpc.Errorf(scribev1.Reason_REASON_SHUTTING_DOWN, "%s: %w", what, err)
	case errors.Is(err, kv.ErrCorrupt):
		return rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "%s: %w", what, err)
	case errors.Is(err, errNoIDs):
		return rpc.Errorf(scribev1.Reason_REASON_OVERLOADED, "%s: %w", what, err)
	default:
		return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, time.Second, "%s: the store does not answer: %w", what, err)
	}
}

// commitError is readError for a transaction, and reports whether it is certain that nothing was changed.
func commitError(what string, err error) (certain bool, wrapped error) {
	switch {
	case errors.Is(err, kv.ErrClosed), errors.Is(err, kv.ErrCorrupt), errors.Is(err, kv.ErrConflict), errors.Is(err, kv.ErrInvalid):
		return true, readError(what, err)
	default:
		return false, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "%s: it may have been done: %w", what, err)
	}
}

// GetStatus implements rpc.ControlService.
func (c *ControlPlane) GetStatus(_ context.Context, _ *scribev1.GetStatusRequest) (*scribev1.GetStatusResponse, error) {
	done, err := c.begin()
	if err != nil {
		return nil, err
	}
	defer done()
	return &scribev1.GetStatusResponse{
		Version:    c.cfg.Version,
		StartedAt:  c.cfg.StartedAt.UnixMicro(),
		Roles:      append([]scribev1.Role(nil), c.cfg.Roles...),
		Members:    c.members.list(scribev1.Role_ROLE_UNSPECIFIED),
		Categories: uint64(c.feed.count()),

		RetirementsPending: uint64(max(c.retirement.pending(), 0)),
	}, nil
}
