package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"scribe/internal/base/backoff"
	"scribe/internal/base/logthrottle"
)

// Keeper is the role. It is safe for concurrent use.
type Keeper struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	metrics *keeperMetrics

	storeRequests, logRequests, deleteBytes, removals *rate.Limiter

	life  context.Context //nolint:containedctx // the role's; no call waits for it
	end   context.CancelFunc
	ended chan struct{}

	mu struct {
		sync.Mutex
		leads  bool
		halted error
		// throttles are by step. A step's recovery is not logged: its next failure is, if a minute has passed since the last warning.
		throttles map[string]*logthrottle.Throttle
	}
}

// New starts a keeper, which waits for the lease and works while it holds it, until Close.
func New(cfg Config, deps Deps) (*Keeper, error) {
	c, err := prepare(cfg, deps)
	if err != nil {
		return nil, err
	}
	go c.runTerms()
	return c, nil
}

// prepare is New without starting the goroutine.
func prepare(cfg Config, deps Deps) (*Keeper, error) {
	if err := errors.Join(cfg.Validate(), deps.validate()); err != nil {
		return nil, err
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	limit := rate.Inf
	if cfg.DeleteBytes > 0 {
		limit = rate.Limit(cfg.DeleteBytes)
	}
	c := &Keeper{
		cfg: cfg, deps: deps, log: deps.Logger, ended: make(chan struct{}),
		storeRequests: rate.NewLimiter(rate.Limit(cfg.StoreRequests), max(1, int(cfg.StoreRequests/4))),
		logRequests:   rate.NewLimiter(rate.Limit(cfg.LogRequests), max(1, int(cfg.LogRequests/4))),
		deleteBytes:   rate.NewLimiter(limit, max(1, int(min(cfg.DeleteBytes, 1<<30)))),
		removals:      rate.NewLimiter(rate.Limit(cfg.LogRemovals), removalBurst),
	}
	c.mu.throttles = map[string]*logthrottle.Throttle{}
	var err error
	if c.metrics, err = newKeeperMetrics(deps.Registerer, c); err != nil {
		return nil, err
	}
	c.life, c.end = context.WithCancel(context.Background())
	return c, nil
}

// Close stops the keeper and releases the lease, so that another keeper takes over at once and continues its work. Close may be
// repeated. It fails when ctx ends first.
func (c *Keeper) Close(ctx context.Context) error {
	c.end()
	select {
	case <-c.ended:
	case <-ctx.Done():
		return fmt.Errorf("retention: close: a step is still running: %w", context.Cause(ctx))
	}
	c.metrics.Unregister()
	return nil
}

// Halted returns a *HaltedError while the keeper leads but deletes nothing; else nil.
func (c *Keeper) Halted() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.halted
}

// Leads reports whether this keeper is the leading one.
func (c *Keeper) Leads() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.leads
}

func (c *Keeper) setStatus(leads bool, halted error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.leads, c.mu.halted = leads, halted
}

// releaseTimeout bounds the release of the lease. It expires by itself, and a process that stops has accepted messages to drain yet.
const releaseTimeout = 2 * time.Second

// runTerms waits for the lease and leads, in turn.
func (c *Keeper) runTerms() {
	defer close(c.ended)
	for c.life.Err() == nil {
		t := c.awaitLease(c.life)
		if t == nil {
			return
		}
		c.log.Info("retention is now leading", "cell", t.cellName(), "epoch", t.epoch)
		c.setStatus(true, nil)
		err := t.leadTerm(c.life)
		c.setStatus(false, nil)
		if c.life.Err() == nil {
			c.log.Warn("retention stopped leading", "error", err)
			continue
		}
		// ctx has ended; the release gets a context of its own, so that the other keepers need not wait for the lease to expire.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.life), min(c.cfg.LeaseTTL, releaseTimeout))
		if err := t.releaseLease(ctx); err != nil {
			c.log.Warn("failed to release the lease: another keeper leads once it has expired", "error", err)
		}
		cancel()
	}
}

// leadTerm renews the lease and works until ctx ends or the lease is lost.
func (t *leaseTerm) leadTerm(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return t.renewLease(ctx) })
	group.Go(func() error { return t.collectUntilLost(ctx) })
	return group.Wait()
}

// collectUntilLost trims logs and deletes blobs until ctx ends, or until the metadata engine's boundary moves backward. Other errors are
// retried in the next round.
func (t *leaseTerm) collectUntilLost(ctx context.Context) error {
	boundary, ok := t.awaitClaims(ctx)
	if !ok {
		return nil
	}
	logs, blobs := newLogTrimmer(t), newBlobSweeper(t, boundary)
	defer blobs.stopListing()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return t.c.repeatRounds(ctx, "logs", logs.runRound) })
	group.Go(func() error { return t.c.repeatRounds(ctx, "blobs", blobs.runRound) })
	return group.Wait()
}

// awaitClaims waits until the claims in the blob store allow this cell to delete blobs, and returns the engine's boundary. It reports
// false when ctx ended.
func (t *leaseTerm) awaitClaims(ctx context.Context) (boundary int64, ok bool) {
	for {
		boundary, err := t.c.deps.Log.AdvanceBoundary(ctx, 0)
		if err == nil {
			err = t.checkStoreClaims(ctx, boundary)
		}
		if err == nil {
			t.c.setStatus(true, nil)
			return boundary, true
		}
		if halted, ok := errors.AsType[*HaltedError](err); ok {
			t.c.setStatus(true, halted)
		}
		if ctx.Err() == nil {
			t.c.reportFailure("claim", err)
		}
		if backoff.Sleep(ctx, time.Minute) != nil {
			return 0, false
		}
	}
}

// repeatRounds runs a round at every interval, and again at once while rounds report more work.
func (c *Keeper) repeatRounds(ctx context.Context, what string, round func(context.Context) (more bool, err error)) error {
	for {
		more, err := round(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // ctx ended the round
		case errors.Is(err, errRestored):
			return err
		case err != nil:
			c.reportFailure(what, err)
		}
		if more && err == nil {
			continue
		}
		if err := backoff.Sleep(ctx, backoff.Jitter(c.deps.Random, c.cfg.Interval, 0.2)); err != nil {
			return nil //nolint:nilerr // ctx ended the pause
		}
	}
}

// reportFailure counts and logs a failure that is retried.
func (c *Keeper) reportFailure(step string, err error) {
	c.metrics.failures.WithLabelValues(step).Inc()
	c.mu.Lock()
	defer c.mu.Unlock()
	throttle := c.mu.throttles[step]
	if throttle == nil {
		throttle = new(logthrottle.Throttle)
		c.mu.throttles[step] = throttle
	}
	throttle.Failed(c.life, c.log, "retention step failed, retrying", "step", step, "error", err)
}

// waitForStore waits until the rate limit admits so many requests to the blob store, waitForLog one to the metadata engine.
func (c *Keeper) waitForStore(ctx context.Context, requests int) error {
	c.metrics.requests.Add(float64(requests))
	for range requests {
		if err := c.storeRequests.Wait(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (c *Keeper) waitForLog(ctx context.Context) error {
	if err := c.logRequests.Wait(ctx); err != nil {
		return err
	}
	return ctx.Err()
}

// waitForDelete waits until n bytes may be deleted. It takes a blob that is larger than the burst in parts.
func (c *Keeper) waitForDelete(ctx context.Context, n int64) error {
	for n > 0 {
		part := min(n, int64(c.deleteBytes.Burst()))
		if err := c.deleteBytes.WaitN(ctx, int(part)); err != nil {
			return err
		}
		n -= part
	}
	return ctx.Err()
}

// readTime returns the time that decides what has expired, in Unix microseconds: the earlier of the engine's clock and the wall clock.
// So one clock that is ahead deletes nothing early.
func (c *Keeper) readTime(ctx context.Context) (int64, error) {
	st, err := c.leaseState(ctx)
	if err != nil {
		return 0, err
	}
	return min(st.Watermark, c.deps.Now().UnixMicro()), nil
}
