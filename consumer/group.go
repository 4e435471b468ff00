package consumer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/base/lifecycle"
	"scribe/internal/format/bucket"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Errors of groups that callers branch on, with [errors.Is].
var (
	// ErrFenced means that messages yielded to this member no longer belong to it: its membership expired, it exceeded the revoke
	// timeout, or the group was reset. They were not committed, and are delivered again elsewhere. The member continues with its
	// other buckets.
	ErrFenced = errors.New("consumer: messages were given to another member of the group")
	// ErrGroupDeleted means that the group was deleted while this member was in it.
	ErrGroupDeleted = errors.New("consumer: the group was deleted")
	// ErrCategoryReplaced means that the category was deleted and created again: the group's positions are of the old one. Reset
	// the group.
	ErrCategoryReplaced = errors.New("consumer: the category was deleted and made again: reset the group")
	// ErrNotSupported means that no service coordinates groups.
	ErrNotSupported = errors.New("consumer: no service for groups: give one with WithGroupService")
)

// Group is a member of a consumer group: it reads a part of a category, and commits its positions. The parts are buckets of
// pointers, which are reassigned as members join and leave. One iteration runs at a time; the other methods may be called
// concurrently from any goroutine.
type Group struct {
	c    *Consumer
	name string
	cfg  groupConfig
	svc  GroupService
	turn *loopTurn

	meter rateMeter // guarded by c.mu
	// Guarded by c.mu.
	changed chan struct{}    // closed when the consumer's share or a field below changes
	want    memberAssignment // the coordinator's last assignment
	granted []uint64         // generation of each bucket that is held or being given back
	// releasing are buckets being given back; taken is the last generation that was taken in completely.
	releasing bucket.Set
	taken     uint64
	fresh     bool  // buckets of want are still to be taken in
	missed    bool  // delivered messages were taken away before they were committed
	committed int64 // everything persisted before it is committed, Unix microseconds; 0 = unknown
	epoch     uint64
	joined    bool
	fatal     error

	// until is when the lease ends, in nanoseconds since born. It is checked before every message: a process that was suspended
	// must notice the end of its lease before it continues.
	born  time.Time
	until atomic.Int64
	// held: the iteration has the turn. Only the iteration uses it.
	held bool
	// saving serializes commits, and guards against a commit while its buckets leave the committable set.
	saving chan struct{}
	// beat requests a heartbeat, look wakes the worker.
	beat, look lifecycle.WakeChannel

	// life is that of the membership. Its mutex guards started and closed.
	life struct {
		sync.Mutex
		started, closed bool
		ctx             context.Context //nolint:containedctx // of the member's goroutines
		cancel          context.CancelCauseFunc
		work            sync.WaitGroup
	}
}

// NewGroup returns a member of a group that reads a category from the cell at a URL; "" means [DefaultServer]. The group is
// created when its first member joins: only then [WithStart] says where it begins. The member joins with its first iteration, or
// with [Group.Join]. The error reports every invalid option.
func NewGroup(server, category, group string, opts ...Option) (*Group, error) {
	defaults := func(c *consumerOptions) { c.member, c.group = true, defaultGroupConfig(group) }
	setNames := func(c *consumerOptions) {
		if c.group.member == "" {
			c.group.member = memberName(c.random)
		}
		if c.name == "" {
			c.name = group + "/" + c.group.member
			c.name = c.name[:min(len(c.name), 255)]
		}
	}
	c, err := New(server, category, slices.Concat([]Option{defaults}, opts, []Option{setNames})...)
	if err != nil {
		return nil, err
	}
	g := &Group{
		c: c, name: group, cfg: c.cfg.group, svc: c.groups, turn: newTurn(), changed: make(chan struct{}),
		born: time.Now(), saving: make(chan struct{}, 1), beat: lifecycle.NewWakeChannel(), look: lifecycle.NewWakeChannel(),
	}
	if g.svc == nil {
		_ = c.Close()
		return nil, ErrNotSupported
	}
	c.group, c.mu.share = g, nil
	g.until.Store(math.MaxInt64)                                              // no buckets yet, so none can be lost
	g.life.ctx, g.life.cancel = context.WithCancelCause(context.Background()) //nolint:fatcontext // not nested: one for each member
	return g, nil
}

// Name returns the group's name.
func (g *Group) Name() string { return g.name }

// Member returns the member's name in the group.
func (g *Group) Member() string { return g.cfg.member }

// startMembership starts the member's goroutines, once.
func (g *Group) startMembership() error {
	g.life.Lock()
	defer g.life.Unlock()
	switch {
	case g.life.closed:
		return ErrClosed
	case g.life.started:
		return nil
	}
	g.life.started = true
	g.c.mu.Lock()
	g.meter.startWaiting(time.Now())
	g.c.mu.Unlock()
	g.life.work.Go(func() { g.keepMembership(g.life.ctx) })
	g.life.work.Go(func() { g.runWorker(g.life.ctx) })
	return nil
}

// Join starts the membership and waits until the member has its first buckets, or knows that it gets none for now. It returns the
// error that ended the membership, or ctx's.
func (g *Group) Join(ctx context.Context) error {
	if err := g.startMembership(); err != nil {
		return err
	}
	for {
		g.c.mu.Lock()
		changed, ready, fatal := g.changed, g.joined && !g.fresh, g.fatal
		g.c.mu.Unlock()
		switch {
		case fatal != nil:
			return fatal
		case ready:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-g.life.ctx.Done():
			return ErrClosed
		}
	}
}

// Records yields the messages of the member's buckets as [Consumer.Records] does. Buckets change between two messages, also in
// the middle of a payload. After buckets arrive from another member, messages may be older than previously yielded ones, whatever
// the window. The messages of each logical shard stay in order if the group shares by shards.
func (g *Group) Records(ctx context.Context) iter.Seq2[Record, error] { return g.c.Records(ctx) }

// enterIteration prepares an iteration: it joins the group if necessary. Without a group it does nothing.
func (g *Group) enterIteration() error {
	if g == nil {
		return nil
	}
	if err := g.startMembership(); err != nil {
		return err
	}
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	return g.fatal
}

// goOn runs between two messages of a payload. It lets the worker take its turn, and returns false when the rest of the payload
// no longer belongs to the member, or the iteration is over.
func (g *Group) goOn(ctx context.Context, it *streamItem) bool {
	if !g.turn.stop.Load() && !g.leaseExpired() {
		return true
	}
	g.restTurn()
	if g.workTurn(ctx) != nil {
		return false
	}
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	return g.c.mu.share.claims(it)
}

// mayGoOn returns goOn for an item, which it marks as gone; nil without a group.
func (g *Group) mayGoOn(ctx context.Context, it *streamItem) func() bool {
	if g == nil {
		return nil
	}
	return func() bool {
		it.gone = !g.goOn(ctx, it)
		return !it.gone
	}
}

// restTurn gives up the turn: the loop is not handling a message.
func (g *Group) restTurn() {
	if g == nil || !g.held {
		return
	}
	g.held = false
	g.c.mu.Lock()
	g.meter.noteWaiting(time.Now())
	g.c.mu.Unlock()
	g.turn.giveTurn()
}

// workTurn takes the turn again.
func (g *Group) workTurn(ctx context.Context) error {
	if g == nil {
		return nil
	}
	for {
		if err := g.turn.takeTurn(ctx, false); err != nil {
			return err
		}
		if !g.leaseExpired() {
			break
		}
		g.turn.giveTurn()
		g.c.cfg.logger.Warn("coordinator unreachable: pausing, since other members may take the buckets", "group", g.name)
		g.turn.setBlocked(true) // until a heartbeat is answered
		g.beat.WakeUp()
	}
	g.held = true
	g.c.mu.Lock()
	g.meter.noteWorking(time.Now())
	g.c.mu.Unlock()
	return nil
}

// extendLease sets the end of the member's lease: the given duration after from.
func (g *Group) extendLease(from time.Time, lease time.Duration) {
	g.until.Store(int64(from.Add(lease).Sub(g.born)))
}

// leaseExpired reports whether the lease has ended: other members may own the member's buckets.
func (g *Group) leaseExpired() bool { return int64(time.Since(g.born)) >= g.until.Load() }

// hasSettled reports whether the member has exactly the buckets assigned to it, as a consumer in no group always has. The
// consumer's mutex is held.
func (g *Group) hasSettled() bool {
	return g == nil || g.joined && !g.fresh && g.want.pending == 0 && g.want.revoked.Empty()
}

// Commit stores the positions of the yielded messages in the group: no member receives these messages again. The message that the
// loop is handling counts as yielded, so commit after handling it. Commit returns when the positions are durable, and retries
// while servers are unavailable, until ctx ends. ErrFenced means that a part was not committed, because another member owns it by
// now; the rest was committed, unless there was nothing else.
func (g *Group) Commit(ctx context.Context) error { return g.commitDelivered(ctx, true) }

// Watermark is like [Consumer.Watermark], for the member's buckets.
func (g *Group) Watermark() time.Time { return g.c.Watermark() }

// Lag is like [Consumer.Lag].
func (g *Group) Lag() time.Duration { return g.c.Lag() }

// Buffered is like [Consumer.Buffered].
func (g *Group) Buffered() int { return g.c.Buffered() }

// Stats is like [Consumer.Stats].
func (g *Group) Stats() Stats { return g.c.Stats() }

// Assigned returns the buckets that the member reads now, with their generation.
func (g *Group) Assigned() Rebalance {
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	r := Rebalance{Generation: g.taken}
	if g.c.mu.share != nil {
		r.Buckets = g.c.mu.share.owned.Slice()
	}
	return r
}

// leaveTimeout bounds the commit and the leave request in Close. If they fail, other members wait for the TTL.
const leaveTimeout = 5 * time.Second

// Close leaves the group. With auto-commit it first commits the messages that the loop has finished; then the member's buckets go
// to others at once. A running iteration yields [ErrClosed] at its next step. The error is of the last commit, or of leaving; the
// member's goroutines have ended in any case. Repeated calls are harmless.
func (g *Group) Close() error {
	g.life.Lock()
	first := !g.life.closed
	g.life.closed = true
	started := g.life.started
	g.life.Unlock()
	g.c.mu.Lock()
	g.c.mu.closed = true
	s := g.c.mu.session
	g.c.mu.Unlock()
	if s != nil {
		s.haltWith(ErrClosed)
	}
	var err error
	if first && started {
		ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		defer cancel()
		if g.cfg.autoCommit > 0 {
			if err = g.commitDelivered(ctx, false); errors.Is(err, ErrFenced) {
				err = nil // another member redelivers them
			}
		}
		g.life.cancel(ErrClosed)
		g.life.work.Wait()
		err = errors.Join(err, g.leaveGroup(ctx))
	}
	g.life.cancel(ErrClosed)
	g.life.work.Wait()
	return errors.Join(err, g.c.Close())
}

// leaveGroup ends the membership at the coordinator.
func (g *Group) leaveGroup(ctx context.Context) error {
	g.c.mu.Lock()
	epoch, joined := g.epoch, g.joined
	g.joined = false
	g.c.mu.Unlock()
	if !joined {
		return nil
	}
	_, err := g.svc.LeaveGroup(ctx, &scribev1.LeaveGroupRequest{Group: g.name, Member: g.cfg.member, Epoch: epoch})
	if err != nil {
		return fmt.Errorf("consumer: leave group %q: %w", g.name, err)
	}
	return nil
}

// commitDelivered commits the delivered positions. looked includes the message that the loop is handling.
func (g *Group) commitDelivered(ctx context.Context, looked bool) error {
	select {
	case g.saving <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-g.saving }()
	c := g.c
	c.mu.Lock()
	if looked {
		c.advancePosition()
	}
	missed := g.missed
	g.missed = false
	if g.c.mu.share == nil {
		c.mu.Unlock()
		return fencedIf(missed)
	}
	positions, held := g.c.mu.share.unsavedPositions()
	req := &scribev1.CommitGroupRequest{
		Group: g.name, Member: g.cfg.member, Epoch: g.epoch, Generation: g.taken, Buckets: held, Watermark: c.mu.reached,
	}
	draining, version := g.c.mu.share.draining.Clone(), g.c.mu.share.version
	c.mu.Unlock()
	var err error
	if len(positions) > 0 {
		err = g.sendCommit(ctx, req, positions)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		// The next commit covers what remains of it; after ErrFenced, once the remaining buckets are known.
		g.c.mu.share.putBack(positions)
		if errors.Is(err, ErrFenced) {
			g.beat.WakeUp()
		} else {
			g.missed = g.missed || missed
		}
		return err
	}
	if version == g.c.mu.share.version { // otherwise time went back to the positions of new buckets
		g.committed = max(g.committed, req.GetWatermark())
	}
	g.letGo(draining)
	return fencedIf(missed)
}

func fencedIf(missed bool) error {
	if missed {
		return fmt.Errorf("%w: some of what was yielded since the last commit", ErrFenced)
	}
	return nil
}

// Limits of one commit request.
const (
	commitShards = 10_000
	commitAhead  = 100_000
)

// sendCommit sends a commit, split into several requests when it is large.
func (g *Group) sendCommit(ctx context.Context, req *scribev1.CommitGroupRequest, positions []*scribev1.GroupShardPosition) error {
	watermark := req.GetWatermark()
	for len(positions) > 0 {
		n, ahead := 0, 0
		for n < len(positions) && n < commitShards && (n == 0 || ahead+len(positions[n].GetAhead()) <= commitAhead) {
			ahead += len(positions[n].GetAhead())
			n++
		}
		req.Positions, positions = positions[:n], positions[n:]
		if req.Watermark = 0; len(positions) == 0 {
			req.Watermark = watermark
		}
		if err := g.sendCommitPart(ctx, req); err != nil {
			return err
		}
	}
	return nil
}

func (g *Group) sendCommitPart(ctx context.Context, req *scribev1.CommitGroupRequest) error {
	for failures := 1; ; failures++ {
		rctx, cancel := context.WithTimeout(ctx, g.c.cfg.requestTimeout)
		_, err := g.svc.CommitGroup(rctx, req)
		cancel()
		if err == nil {
			return nil
		}
		switch rpc.ReasonOf(err) {
		case scribev1.Reason_REASON_LEASE_EXPIRED, scribev1.Reason_REASON_STALE_GENERATION:
			return fmt.Errorf("%w: %w", ErrFenced, err)
		case scribev1.Reason_REASON_UNKNOWN_GROUP:
			return fmt.Errorf("%w: %w", ErrGroupDeleted, err)
		default:
		}
		if cause := g.c.cfg.permanentError(err); cause != nil {
			return &ServerError{Doing: fmt.Sprintf("committing in group %q", g.name), named: true, cause: cause, Detail: err}
		}
		if ctx.Err() == nil {
			g.c.cfg.logger.Warn("commit failed, retrying", "group", g.name, "failures", failures, "error", err)
		}
		if backoff.Sleep(ctx, g.c.cfg.pause(failures, err)) != nil {
			return fmt.Errorf("consumer: commit in group %q: %w: %w", g.name, context.Cause(ctx), err)
		}
	}
}
