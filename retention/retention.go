package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"scribe/internal/base/logthrottle"
)

// Keeper is the role. It is safe for concurrent use.
type Keeper struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	metrics *metrics

	requests, records, bytes *rate.Limiter

	life  context.Context //nolint:containedctx // of the role, which no call waits for
	end   context.CancelFunc
	ended chan struct{}

	mu struct {
		sync.Mutex
		leads  bool
		halted error
		err    error // of the release
		// complaints are by step. A step does not say that it works again: its next failure is told if the last one was a while ago.
		complaints map[string]*logthrottle.Throttle
	}
}

// New starts a keeper, which campaigns for the lease and collects while it has it, until Close.
func New(cfg Config, deps Deps) (*Keeper, error) {
	c, err := prepare(cfg, deps)
	if err != nil {
		return nil, err
	}
	go c.runTerms()
	return c, nil
}

// prepare is New without starting anything.
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
		requests: rate.NewLimiter(rate.Limit(cfg.StoreRequests), max(1, int(cfg.StoreRequests/4))),
		records:  rate.NewLimiter(rate.Limit(cfg.LogRequests), max(1, int(cfg.LogRequests/4))),
		bytes:    rate.NewLimiter(limit, max(1, int(min(cfg.DeleteBytes, 1<<30)))),
	}
	var err error
	if c.metrics, err = newMetrics(deps.Registerer, c); err != nil {
		return nil, err
	}
	c.life, c.end = context.WithCancel(context.Background())
	return c, nil
}

// Close ends the keeper, and gives the lease back so that another one need not wait for it. What it was doing is done by the next.
// Repeating it is harmless.
func (c *Keeper) Close(ctx context.Context) error {
	c.end()
	select {
	case <-c.ended:
	case <-ctx.Done():
		return fmt.Errorf("retention: a step still runs: %w", context.Cause(ctx))
	}
	c.metrics.close()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.err
}

// Halted returns why the keeper, which leads, collects nothing, as a *HaltedError; nil when it does, or does not lead.
func (c *Keeper) Halted() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.halted
}

// Leads reports whether this keeper is the one that works.
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

// runTerms campaigns and leads, in turn.
func (c *Keeper) runTerms() {
	defer close(c.ended)
	for c.life.Err() == nil {
		t := c.awaitLease(c.life)
		if t == nil {
			return
		}
		c.log.Info("retention leads", "cell", t.cellName(), "epoch", t.epoch)
		c.setStatus(true, nil)
		err := t.leadTerm(c.life)
		c.setStatus(false, nil)
		if c.life.Err() == nil {
			c.log.Warn("retention does not lead any more", "error", err)
			continue
		}
		// What ended it must not keep the others waiting.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.life), c.cfg.LeaseTTL)
		err = t.releaseLease(ctx)
		cancel()
		c.mu.Lock()
		c.mu.err = err
		c.mu.Unlock()
	}
}

// leadTerm works until ctx ends or the lease is lost.
func (t *leaseTerm) leadTerm(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	t.ctx = ctx
	group.Go(func() error { return t.renewLease(ctx) })
	group.Go(func() error { return t.collectUntilLost(ctx) })
	return group.Wait()
}

// collectUntilLost collects. An error of a store is met again in the next round. It ends when ctx does, and when the metadata engine turns out to have
// lost what it knew.
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

// awaitClaims waits until the claims in the blob store allow this cell to collect, and returns the engine's boundary. It reports false when
// ctx ended.
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
		if !t.c.sleep(ctx, time.Minute) {
			return 0, false
		}
	}
}

// repeatRounds runs a round at every interval, and at once again as long as a round says that there is more to do.
func (c *Keeper) repeatRounds(ctx context.Context, what string, round func(context.Context) (more bool, err error)) error {
	for {
		more, err := round(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // an orderly end
		case errors.Is(err, errRestored):
			return err
		case err != nil:
			c.reportFailure(what, err)
		}
		if more && err == nil {
			continue
		}
		if !c.sleep(ctx, c.jitter(c.cfg.Interval)) {
			return nil
		}
	}
}

// reportFailure tells of a failure that is tried again.
func (c *Keeper) reportFailure(step string, err error) {
	c.metrics.failures.WithLabelValues(step).Inc()
	c.mu.Lock()
	if c.mu.complaints[step] == nil {
		if c.mu.complaints == nil {
			c.mu.complaints = make(map[string]*logthrottle.Throttle)
		}
		c.mu.complaints[step] = new(logthrottle.Throttle)
	}
	defer c.mu.Unlock()
	c.mu.complaints[step].Failed(c.life, c.log, "a step of the keeper failed, it is tried again", "step", step, "error", err)
}

// jitter changes a pause by up to a fifth, so that keepers, and loops of one, do not run in step.
func (c *Keeper) jitter(d time.Duration) time.Duration {
	return d - d/5 + rand.N(2*d/5+1)
}

// sleep waits; it reports false when ctx ended.
func (c *Keeper) sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// waitForStore waits for its turn to make a request to the blob store, index to the metadata engine.
func (c *Keeper) waitForStore(ctx context.Context) error { return c.storeN(ctx, 1) }

func (c *Keeper) storeN(ctx context.Context, n int) error {
	c.metrics.requests.Add(float64(n))
	for range n {
		if err := c.requests.Wait(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (c *Keeper) waitForLog(ctx context.Context) error {
	if err := c.records.Wait(ctx); err != nil {
		return err
	}
	return ctx.Err()
}

// waitForDelete waits until so many bytes may be deleted. A blob that is larger than what a second allows is paid for in parts.
func (c *Keeper) waitForDelete(ctx context.Context, n int64) error {
	for n > 0 {
		part := min(n, int64(c.bytes.Burst()))
		if err := c.bytes.WaitN(ctx, int(part)); err != nil {
			return err
		}
		n -= part
	}
	return ctx.Err()
}

// readTime is the time that decides what has expired: the engine's, or the wall clock's when that is behind. A clock that is wrong alone
// takes nothing early.
func (c *Keeper) readTime(ctx context.Context) (int64, error) {
	st, err := c.leaseState(ctx)
	if err != nil {
		return 0, err
	}
	return min(st.Watermark, c.deps.Now().UnixMicro()), nil
}
