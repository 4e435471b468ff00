package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/base/lifecycle"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// Coordinator implements rpc.GroupService. Make it with NewCoordinator.
type Coordinator struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	metrics *groupMetrics
	seed    maphash.Seed
	// turns are the semaphores that serialise changes of a group, by the hash of its name.
	turns [64]chan struct{}

	calls   lifecycle.Calls
	stopped context.Context
	stop    context.CancelFunc
	worker  sync.WaitGroup
	// wake tells the sweep about an active group that it may not know.
	wake lifecycle.WakeChannel

	mu struct {
		sync.Mutex
		// active has the groups that have, or may have, members.
		active map[string]*activeGroup
	}
}

var _ rpc.GroupService = (*Coordinator)(nil)

// activeGroup is the coordinator's state of a group with members. Coordinator.mu guards it.
type activeGroup struct {
	liveness *Liveness
	// due is the time of the next check; resized that of the last comparison with its category.
	due, resized time.Time
	members      int
}

// NewCoordinator starts a coordinator.
func NewCoordinator(cfg Config, deps Deps) (*Coordinator, error) {
	if err := errors.Join(cfg.Validate(), deps.validate()); err != nil {
		return nil, err
	}
	c := &Coordinator{cfg: cfg, deps: deps, log: deps.Logger, seed: maphash.MakeSeed(), wake: lifecycle.NewWakeChannel()} //nolint:forbidigo // it decides only which groups share a lock
	c.log = cmp.Or(c.log, slog.New(slog.DiscardHandler))
	if c.deps.Now == nil {
		c.deps.Now = time.Now
	}
	for i := range c.turns {
		c.turns[i] = make(chan struct{}, 1)
	}
	c.mu.active = map[string]*activeGroup{}
	m, err := newMetrics(deps.Registerer, c.countActive)
	if err != nil {
		return nil, err
	}
	c.metrics = m
	c.stopped, c.stop = context.WithCancel(context.Background())
	c.worker.Go(c.sweepGroups)
	return c, nil
}

// Close refuses new calls, waits for running calls until ctx ends, and stops. Memberships stay: another coordinator, or the next
// one on the same store, takes them over. Repeating it is harmless.
func (c *Coordinator) Close(ctx context.Context) error {
	c.calls.Drain()
	err := c.calls.Wait(ctx)
	if err != nil {
		err = fmt.Errorf("group: calls still run: %w", err)
	}
	c.stop()
	c.worker.Wait()
	c.metrics.set.Unregister()
	return err
}

// enterCall admits a call. The caller ends it with calls.Leave.
func (c *Coordinator) enterCall() error {
	if !c.calls.Enter() {
		return rpc.RetryErrorf(scribev1.Reason_REASON_SHUTTING_DOWN, time.Second, "the group coordinator is shutting down: use another one")
	}
	return nil
}

// enterGroupCall admits a call that names a group, and checks the name. what describes the call for errors. The caller ends the call
// with leave.
func (c *Coordinator) enterGroupCall(doing, group string) (what string, leave func(), err error) {
	if err := c.enterCall(); err != nil {
		return "", nil, err
	}
	what = fmt.Sprintf("%s %.300q", doing, group)
	if err := checkName(what, group); err != nil {
		c.calls.Leave()
		return "", nil, err
	}
	return what, c.calls.Leave, nil
}

// takeTurn waits for the turn to change a group. The caller ends the turn with done.
func (c *Coordinator) takeTurn(ctx context.Context, name string) (done func(), err error) {
	t := c.turns[maphash.String(c.seed, name)%uint64(len(c.turns))]
	select {
	case t <- struct{}{}:
		return func() { <-t }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for other changes of group %q: %w", name, context.Cause(ctx))
	}
}

// noteSpoke records a sign of life of a member.
func (c *Coordinator) noteSpoke(g *Group, epoch uint64, status *MemberStatus) {
	now := time.Now()
	c.mu.Lock()
	a := c.mu.active[g.Name]
	fresh := a == nil
	if fresh {
		a = &activeGroup{liveness: NewLiveness(), due: now}
		c.mu.active[g.Name] = a
	}
	a.members = len(g.Members)
	a.liveness.NoteSpoke(epoch, now, status)
	c.mu.Unlock()
	if fresh {
		c.wake.WakeUp()
	}
}

// storeBeat stores that a member is alive, if other coordinators may not know it.
func (c *Coordinator) storeBeat(ctx context.Context, what string, g *Group, epoch uint64) (*Group, error) {
	began := time.Now()
	c.mu.Lock()
	m, a := g.Member(epoch), c.mu.active[g.Name]
	stale := m != nil && a != nil && a.liveness.NeedsStore(m, began)
	c.mu.Unlock()
	if !stale {
		return g, nil
	}
	var beats []uint64
	g, err := c.changeGroup(ctx, what, g.Name, func(g *Group) (bool, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		beats = nil
		if a := c.mu.active[g.Name]; a != nil {
			beats = a.liveness.WriteBeats(g)
		}
		return len(beats) > 0, nil
	})
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if a := c.mu.active[g.Name]; a != nil {
			a.liveness.NoteStored(g, beats, began)
		}
	}
	return g, err
}

// noteHeard records a sign of life from a caller that claims to be a member, before the claim is checked: a member must not
// expire because the store does not answer.
func (c *Coordinator) noteHeard(name string, epoch uint64) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.mu.active[name]; a != nil {
		a.liveness.NoteKnown(epoch, now)
	}
}

func (c *Coordinator) countActive() (groups, members float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.mu.active {
		members += float64(a.members)
	}
	return float64(len(c.mu.active)), members
}

// findInterval is the interval at which groups are looked for that other coordinators serve, or have served.
const findInterval = 10 * time.Second

// sweepGroups checks the groups that have members, with one goroutine for all of them.
func (c *Coordinator) sweepGroups() {
	c.findActive()
	timer := time.NewTimer(0)
	defer timer.Stop()
	pins, find := time.Now().Add(c.cfg.PinInterval), time.Now().Add(findInterval)
	for {
		select {
		case <-timer.C:
		case <-c.wake:
		case <-c.stopped.Done():
			return
		}
		now := time.Now()
		for _, name := range c.dueAt(now) {
			c.checkGroup(name)
		}
		if !now.Before(pins) {
			c.holdPins()
			pins = now.Add(c.cfg.PinInterval)
		}
		if c.cfg.Shared && !now.Before(find) {
			if err := c.findActiveOnce(); err != nil && c.stopped.Err() == nil {
				c.log.Warn("active groups of other coordinators not read", "error", err)
			}
			find = now.Add(findInterval)
		}
		timer.Reset(time.Until(c.nextDue(pins)))
	}
}

// findActive finds the groups that had members when the coordinator started.
func (c *Coordinator) findActive() {
	for {
		err := c.findActiveOnce()
		if err == nil || c.stopped.Err() != nil || errors.Is(err, kv.ErrClosed) {
			return
		}
		c.log.Warn("active groups not read", "error", err, "retry_after", time.Second)
		if backoff.Sleep(c.stopped, time.Second) != nil {
			return
		}
	}
}

func (c *Coordinator) findActiveOnce() error {
	ctx, cancel := context.WithTimeout(c.stopped, c.cfg.StoreTimeout)
	defer cancel()
	for e, err := range kv.All(ctx, c.deps.Store, groupPrefix) {
		if err != nil {
			return err
		}
		g, err := c.decodeCounted(e.Key[len(groupPrefix):], e.Value)
		if err != nil {
			c.log.Error("ignoring damaged group", "key", e.Key, "error", err)
			continue
		}
		if len(g.Members) > 0 {
			c.mu.Lock()
			if c.mu.active[g.Name] == nil {
				c.mu.active[g.Name] = &activeGroup{liveness: NewLiveness(), due: time.Now(), members: len(g.Members)}
			}
			c.mu.Unlock()
		}
	}
	return nil
}

// dueAt returns the groups whose check is due.
func (c *Coordinator) dueAt(now time.Time) (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, a := range c.mu.active {
		if !now.Before(a.due) {
			names = append(names, name)
		}
	}
	return names
}

// nextDue returns when the next check is due.
func (c *Coordinator) nextDue(at time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.mu.active {
		if a.due.Before(at) {
			at = a.due
		}
	}
	return at
}

// checkGroup checks one group: it removes members that expired, takes buckets from owners that did not release them, and stores
// beats.
func (c *Coordinator) checkGroup(name string) {
	ctx, cancel := context.WithTimeout(c.stopped, c.cfg.StoreTimeout)
	defer cancel()
	const what = "check group"
	var (
		findings LivenessFindings
		wrote    bool
		beats    []uint64
		began    = time.Now()
	)
	g, err := c.changeGroup(ctx, what, name, func(g *Group) (bool, error) {
		useful := c.usefulBuckets(ctx, g)
		c.mu.Lock()
		defer c.mu.Unlock()
		a := c.mu.active[name]
		if a == nil {
			return false, nil
		}
		findings = a.liveness.Check(g, time.Now())
		wrote = findings.Write || len(findings.Silent)+len(findings.Overdue) > 0
		changed := wrote
		if wrote {
			beats = a.liveness.WriteBeats(g)
		}
		changed = g.RemoveMembers(findings.Silent...) || changed
		for _, epoch := range findings.Overdue {
			changed = g.TakeRevoked(epoch) || changed
		}
		return g.SetUseful(useful) || changed, nil
	})
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.mu.active[name]
	if a == nil {
		return
	}
	if err == nil && wrote {
		a.liveness.NoteStored(g, beats, began)
	}
	switch {
	case rpc.ReasonOf(err) == scribev1.Reason_REASON_UNKNOWN_GROUP, err == nil && len(g.Members) == 0:
		delete(c.mu.active, name)
	case err != nil:
		if c.stopped.Err() == nil {
			c.log.Warn("group check failed", "group", name, "error", err)
		}
		a.due = now.Add(time.Second)
	default:
		a.due, a.members = now.Add(checkInterval(g)), len(g.Members)
	}
	if err == nil {
		c.metrics.expired.Add(float64(len(findings.Silent)))
		c.metrics.taken.Add(float64(len(findings.Overdue)))
		for _, epoch := range findings.Silent {
			c.log.Warn("group member expired: no heartbeat within its TTL", "group", name, "epoch", epoch)
		}
		for _, epoch := range findings.Overdue {
			c.log.Warn("group member lost buckets: not released within its revoke timeout", "group", name, "epoch", epoch)
		}
	}
}

// resizeEvery is the interval at which a group that shares by shards is compared with its category.
const resizeEvery = 10 * time.Second

// usefulBuckets returns how many of a group's buckets can have messages now.
func (c *Coordinator) usefulBuckets(ctx context.Context, g *Group) uint32 {
	now := time.Now()
	c.mu.Lock()
	a := c.mu.active[g.Name]
	due := a != nil && now.Sub(a.resized) >= resizeEvery
	if due {
		a.resized = now
	}
	c.mu.Unlock()
	if !due {
		return g.Useful
	}
	res, err := c.deps.Control.GetCategory(ctx, &scribev1.GetCategoryRequest{Name: g.Category})
	if err != nil || res.GetCategory().GetId() != g.CategoryID {
		return g.Useful
	}
	return usefulIn(g.Scheme, res.GetCategory())
}
