package controlplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/controlplane/request"
	"scribe/internal/base/lifecycle"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// ControlPlane implements rpc.ControlService. Make it with New.
type ControlPlane struct {
	cfg     Config
	deps    Deps
	logger  *slog.Logger
	metrics *roleMetrics
	ids     *idAllocator
	feed    *categoryFeed
	// accessFeed has the records of who may do what.
	accessFeed *categoryFeed
	members    *memberDriver
	pins       *pinTable
	store      cellStore
	quotas     *quotaDriver
	tenants    *tenantQuotas
	// plans has the plans of categories, by id, as the store has them; traffic what write proxies report.
	plans   *categoryFeed
	traffic *trafficTable
	// leadership says whether this instance serves members and pins itself.
	leadership *leadership
	forwarder  forwarder
	// elected is closed when the election has ended here.
	elected chan struct{}
	// retireSchedule schedules the deleted categories that may not be retired yet.
	retireSchedule *retireSchedule
	// suggesting limits the search for similar names, which reads all of them: one search at a time, and a bounded rate. An error
	// that gets no search has no suggestions.
	suggesting sync.Mutex
	suggestive *rate.Limiter

	// calls includes watches, which end when it drains.
	calls   lifecycle.Calls
	watches atomic.Int64
	// stopped is the context of the goroutines of this package.
	stopped context.Context
	stop    context.CancelFunc
	workers sync.WaitGroup
}

var _ rpc.ControlService = (*ControlPlane)(nil)

// New starts a control plane. It reads the slots of members, so it needs a store that answers.
func New(cfg Config, deps Deps) (*ControlPlane, error) {
	if deps.Store == nil {
		return nil, errors.Join(errors.New("controlplane: missing store"), cfg.Validate())
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Shared && deps.Peer == nil {
		return nil, errors.New("controlplane: missing clients for the control planes that share the store")
	}
	deps.Logger = cmp.Or(deps.Logger, slog.New(slog.DiscardHandler))
	if deps.Now == nil {
		deps.Now = time.Now
	}
	c := &ControlPlane{
		cfg:        cfg,
		deps:       deps,
		logger:     deps.Logger,
		ids:        newIDs(deps.Store, cfg.IDBlock),
		feed:       newFeed(cfg.MaxDeletions),
		accessFeed: newFeed(cfg.MaxDeletions),
		suggestive: rate.NewLimiter(5, 10),
		members:    newMembers(cfg.MaxSlot),
		pins:       newPins(time.Now()),
		quotas:     newQuotas(time.Now()),
		tenants:    newTenantQuotas(),
		plans:      newFeed(cfg.MaxDeletions),
		traffic:    newTrafficTable(),
		leadership: newLeadership(),
		elected:    make(chan struct{}),

		retireSchedule: newRetireSchedule(deps.Random),
	}
	var err error
	if c.metrics, err = newMetrics(deps.Registerer, c); err != nil {
		return nil, err
	}
	c.stopped, c.stop = context.WithCancel(context.Background())
	if err := c.begin(); err != nil {
		c.stop()
		return nil, err
	}
	c.workers.Go(func() {
		c.followStore(storeFollower{prefix: categoryPrefix, feed: c.feed, keep: c.isReadable})
	})
	c.workers.Go(func() {
		// Damaged records are kept: they deny what they allowed before.
		c.followStore(storeFollower{prefix: accessPrefix, feed: c.accessFeed, keep: func(string, []byte) bool { return true }})
	})
	c.workers.Go(c.tendAccess)
	c.workers.Go(c.watchLeases)
	c.workers.Go(c.retireCategories)
	c.workers.Go(c.followPlans)
	c.workers.Go(c.followTenantQuotas)
	c.workers.Go(c.planShards)
	return c, nil
}

// begin restores the members, or starts the election that decides who does.
func (c *ControlPlane) begin() error {
	ctx, cancel := context.WithTimeout(c.stopped, storeTimeout)
	defer cancel()
	if err := c.loadTenantQuotas(ctx); err != nil {
		return err
	}
	if !c.cfg.Shared {
		r, err := c.loadMembers(ctx)
		if err != nil {
			return fmt.Errorf("controlplane: read stored members: %w", err)
		}
		c.members.replaceRegistry(r)
		c.leadership.leadAlone()
		close(c.elected)
		return nil
	}
	if _, err := c.readLeader(ctx); err != nil {
		return fmt.Errorf("controlplane: read who leads: %w", err)
	}
	c.workers.Go(func() {
		defer close(c.elected)
		c.runElection()
	})
	c.workers.Go(c.followTerm)
	c.workers.Go(c.followRetiring)
	return nil
}

// Close refuses new calls, hands over if it leads, ends watches, waits for running calls until ctx ends, and releases the control plane's resources. The
// members' leases stay for the next control plane on the same store. Repeating it is harmless.
func (c *ControlPlane) Close(ctx context.Context) error {
	first := c.calls.Drain()
	select {
	case <-c.elected: // handed over, so that the others need not wait for the calls that run here
	case <-ctx.Done():
	}
	err := c.calls.Wait(ctx)
	switch {
	case err != nil:
		err = fmt.Errorf("controlplane: calls still run: %w", err)
	case first:
		err = c.ids.releaseBlock(ctx)
	}
	c.stop()
	c.workers.Wait()
	return err
}

// enterCall admits a call. The caller ends it with calls.Leave.
func (c *ControlPlane) enterCall() error {
	if !c.calls.Enter() {
		return errClosing()
	}
	return nil
}

// enterWatch admits a watch, and returns its longest silence. The caller ends it with leave.
func (c *ControlPlane) enterWatch(kind string, silence *durationpb.Duration) (heartbeat time.Duration, leave func(), err error) {
	var v request.Violations
	heartbeat = v.Duration("heartbeat", silence, minHeartbeat, 24*time.Hour, defaultHeartbeat)
	if err := v.Err("watch"); err != nil {
		return 0, nil, err
	}
	if err := c.enterCall(); err != nil {
		return 0, nil, err
	}
	if c.watches.Add(1) > int64(c.cfg.MaxWatches) {
		c.watches.Add(-1)
		c.calls.Leave()
		return 0, nil, rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, time.Second,
			"watch %s: %d watches run, which is the limit", kind, c.cfg.MaxWatches)
	}
	gauge := c.metrics.watches.WithLabelValues(kind)
	gauge.Inc()
	return heartbeat, func() {
		gauge.Dec()
		c.watches.Add(-1)
		c.calls.Leave()
	}, nil
}

func errClosing() error {
	return rpc.Errorf(scribev1.Reason_REASON_SHUTTING_DOWN, "the control plane is shutting down")
}

// commitError wraps the error of a failed transaction with its reason, and reports whether the transaction certainly changed
// nothing.
func commitError(what string, err error) (certain bool, wrapped error) {
	switch {
	case errors.Is(err, kv.ErrClosed), errors.Is(err, kv.ErrCorrupt), errors.Is(err, kv.ErrConflict), errors.Is(err, kv.ErrInvalid):
		return true, request.ReadError(what, err)
	default:
		return false, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "%s: outcome unknown: %w", what, err)
	}
}

// GetStatus implements rpc.ControlService.
func (c *ControlPlane) GetStatus(ctx context.Context, _ *scribev1.GetStatusRequest) (*scribev1.GetStatusResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	members, err := c.ListMembers(ctx, &scribev1.ListMembersRequest{})
	if err != nil && !c.cfg.Shared { // else it still tells what it knows without the leader
		return nil, err
	}
	return &scribev1.GetStatusResponse{
		Version:    c.cfg.Version,
		StartedAt:  c.cfg.StartedAt.UnixMicro(),
		Roles:      slices.Clone(c.cfg.Roles),
		Members:    members.GetMembers(),
		MembersAt:  c.deps.Now().UnixMicro(),
		Categories: uint64(c.feed.countLive()),

		RetirementsPending: uint64(max(c.retireSchedule.countPending(), 0)),
		Leadership:         c.describeLeadership(),
	}, nil
}
