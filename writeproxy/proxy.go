package writeproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"scribe/internal/base/backoff"
	"scribe/internal/base/balance"
	"scribe/internal/base/buffers"
	"scribe/internal/base/entropy"
	"scribe/internal/base/lifecycle"
	"scribe/internal/role/admission"
	"scribe/internal/role/budget"
	"scribe/internal/role/quota"
	"scribe/internal/role/request"
	"scribe/internal/role/shedding"
	"scribe/internal/role/traffic"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Creator creates categories. It is a part of rpc.ControlService.
type Creator interface {
	CreateCategory(ctx context.Context, req *scribev1.CreateCategoryRequest) (*scribev1.CreateCategoryResponse, error)
}

// Deps are the dependencies of a write proxy. They outlive it.
type Deps struct {
	// Categories is the watched copy of the categories. Returned categories are immutable.
	Categories request.Catalog
	// Creator is needed with Config.AutoCreate and with Own.
	Creator Creator
	// Own returns what a category of the cell itself, which does not exist yet, is to be (record.IsOwnCategory): the proxy may change it. The error is
	// ErrNoOwnCategory if the cell does not keep it, or says why that is not known now. Nil means that it keeps none.
	Own func(ctx context.Context, name string) (*scribev1.Category, error)
	// Batchers returns an immutable snapshot of the known batchers. It returns the same slice while nothing changes.
	Batchers func() []Batcher
	// Tenants returns the quotas of tenants; nil means that there are none.
	Tenants func() *quota.Tenants
	// Proxies returns the number of write proxies in the cell, including this one: they share each quota. Nil or a
	// number below 1 means one. It is called often.
	Proxies func() int
	// Traffic counts what is written by category; nil = it is not counted.
	Traffic *traffic.Counter
	// Plan returns the plan of a category's micro-shards, nil if it has none: they are the least that the category's shards have. Nil means
	// that there are no plans.
	Plan func(category uint32) *scribev1.CategoryPlan
	// Logger defaults to none.
	Logger *slog.Logger
	// Registerer registers the metrics, until Close; nil means no metrics.
	Registerer prometheus.Registerer
	// Clock provides the time of messages without one; it defaults to time.Now. Timers always use package time.
	Clock func() time.Time
	// Random draws jitter; nil means the machine's randomness.
	Random *entropy.Source
}

// Proxy is an rpc.WriteService. It is safe for concurrent use.
type Proxy struct {
	cfg     Config
	deps    Deps
	fleet   *batcherFleet
	quotas  *quota.Registry
	shedder shedding.Shedder
	gate    *admission.Gate
	traffic *shardTraffic
	flights producerFlights
	retries *backoff.Budget // bounds retries
	ledger  *frameLedger
	metrics *proxyMetrics
	// categories finds the categories of requests, and creates them if configured.
	categories *request.Categories
	// bodies bounds admitted requests that are being read, writes those in Write and Publish.
	bodies, writes *budget.Budget
	creating       singleflight.Group
	copies         buffers.Pool
	sticky         atomic.Uint32 // counts frames for which the proxy chooses a shard, one after the other
	started        time.Time
	reported       time.Duration // when TrafficReport began its counts
	lastReport     []*scribev1.ShardTraffic

	// ctx is canceled when Close stops waiting for requests.
	ctx    context.Context //nolint:containedctx // ends running requests from outside
	cancel context.CancelCauseFunc
	calls  lifecycle.Calls
	probes sync.WaitGroup
}

// maxSavedRetries bounds the retries that the budget accumulates: enough for a batcher's restart at light load.
const maxSavedRetries = 100

var _ rpc.WriteService = (*Proxy)(nil)

// New returns a write proxy.
func New(cfg Config, deps Deps) (*Proxy, error) {
	violations := []error{cfg.Validate()}
	need := func(what string, given bool) {
		if !given {
			violations = append(violations, fmt.Errorf("writeproxy: Deps.%s", what))
		}
	}
	need("Categories is needed", deps.Categories != nil)
	need("Batchers is needed", deps.Batchers != nil)
	need("Creator is needed to create categories", deps.Creator != nil || !cfg.AutoCreate && deps.Own == nil)
	if err := errors.Join(violations...); err != nil {
		return nil, err
	}
	deps.Logger = cmp.Or(deps.Logger, slog.New(slog.DiscardHandler))
	if deps.Clock == nil {
		deps.Clock = time.Now
	}
	if deps.Tenants == nil {
		deps.Tenants = func() *quota.Tenants { return nil }
	}
	if deps.Plan == nil {
		deps.Plan = func(uint32) *scribev1.CategoryPlan { return nil }
	}
	p := &Proxy{
		cfg:     cfg,
		deps:    deps,
		traffic: newShardTraffic(microLoad{float64(cfg.MicroShardBytes), float64(cfg.MicroShardMessages)}),
		retries: backoff.NewBudget(cfg.RetryRatio, maxSavedRetries),
		ledger:  newLedger(),
		bodies:  budget.New("bodies that the write proxy reads", cfg.MemoryBytes/2),
		writes:  budget.New("requests that the write proxy carries out", cfg.MemoryBytes/2),
		started: time.Now(),
	}
	p.categories = &request.Categories{Catalog: deps.Categories, Create: p.resolveOrCreate, RetryAfter: cfg.RetryBase}
	p.quotas = quota.NewRegistry(p.now, deps.Proxies, int64(cfg.ThrottleShare*float64(p.writes.Limit())))
	p.gate = newGate(&p.cfg, p.started)
	random := deps.Random.Named("balance")
	p.fleet = &batcherFleet{batchers: deps.Batchers, now: p.now, stall: cfg.StallAfter, random: random, warmUp: balance.DrawWarmUp(random), probe: p.sendProbe}
	p.metrics = newMetrics(p)
	if err := p.metrics.set.Register(deps.Registerer); err != nil {
		return nil, err
	}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	return p, nil
}

// Quotas returns the quotas that the proxy enforces, for who reports what they want.
func (p *Proxy) Quotas() *quota.Registry { return p.quotas }

// Load returns how busy the proxy is, 0 (idle) to 1000 (refusing): the used part of its memory. What passes quickly takes little of it.
func (p *Proxy) Load() uint32 {
	return uint32(1000 * max(p.bodies.UsedPart(), p.writes.UsedPart()))
}

// now returns the time of the state machines: the time since the start.
func (p *Proxy) now() time.Duration { return time.Since(p.started) }

// Admit charges a request's announced length of n bytes before its body is read. It fails with REASON_OVERLOADED and a retry
// hint, or with REASON_TOO_LARGE. The caller calls release once the request is answered.
func (p *Proxy) Admit(n int64) (release func(), err error) {
	if p.calls.Closed() {
		return nil, errShutDown()
	}
	release, err = p.bodies.Admit(n)
	if err != nil {
		p.metrics.refused.WithLabelValues(rpc.ReasonLabel(rpc.ReasonOf(err))).Inc()
	}
	return release, err
}

func errShutDown() error {
	return rpc.Errorf(scribev1.Reason_REASON_SHUTTING_DOWN, "the write proxy is shutting down: send to another one")
}

var errClosed = errors.New("writeproxy: closed before the request was answered")

// Close refuses new requests and those that wait for a quota, and waits for the running ones. If ctx ends first, it cancels them,
// with an unknown outcome, and the error has their number. Repeated calls wait for the first one and return its error.
func (p *Proxy) Close(ctx context.Context) error {
	return p.calls.Close(ctx, func() error {
		err := p.calls.Wait(ctx)
		if err != nil {
			err = fmt.Errorf("writeproxy: %d requests were ended before they were answered: %w", p.calls.Running(), err)
			p.cancel(errClosed)
			_ = p.calls.Wait(context.WithoutCancel(ctx)) // a batcher's call returns when its context ends
		}
		p.cancel(nil)
		p.probes.Wait()
		p.metrics.set.Unregister()
		return err
	})
}

// beginCall registers a running request. The context that it returns ends before the caller's deadline, and when Close cancels
// requests.
func (p *Proxy) beginCall(ctx context.Context) (_ context.Context, end func(), err error) {
	if !p.calls.Enter() {
		return nil, nil, errShutDown()
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(p.cfg.Timeout)
	} else {
		deadline = request.AnswerBy(deadline, p.cfg.HopMargin)
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	stop := context.AfterFunc(p.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
		p.calls.Leave()
	}, nil
}
