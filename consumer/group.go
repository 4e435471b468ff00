package consumer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/format/bucket"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Errors of groups that callers branch on, with [errors.Is].
var (
	// ErrFenced means that messages which this member was given are not its own any more: it was silent for too long, or held on to
	// them for too long, or the group was reset. They were not committed, and come again elsewhere. The member goes on with what it has.
	ErrFenced = errors.New("consumer: messages were given to another member of the group")
	// ErrGroupDeleted means that the group was deleted while this member was in it.
	ErrGroupDeleted = errors.New("consumer: the group was deleted")
	// ErrCategoryReplaced means that the category was deleted and made again: what the group knows is of another one. Reset the group.
	ErrCategoryReplaced = errors.New("consumer: the category was deleted and made again: reset the group")
	// ErrNotSupported means that there is nobody to coordinate the group.
	ErrNotSupported = errors.New("consumer: no service for groups: give one with WithGroupService")
)

// Group is a member of a consumer group: it reads a part of a category, and commits how far it is. The parts, buckets of pointers, follow
// the members as they come and go. One iteration runs at a time; the other methods may be called from any goroutine meanwhile.
type Group struct {
	c    *Consumer
	name string
	cfg  groupConfig
	svc  GroupService
	turn *loopTurn

	meter rateMeter // guarded by c.mu
	// Guarded by c.mu.
	share   *memberShare
	changed chan struct{}    // closed when there is something new of what follows, or of share
	reopen  func()           // ends the stream that runs, for one with other buckets
	want    memberAssignment // what the coordinator has said last
	granted []uint64         // of the buckets that are held or being given back: their generation
	// releasing are buckets that are given back; taken is the generation that was taken in whole.
	releasing bucket.Set
	taken     uint64
	fresh     bool  // buckets of want are not taken in yet
	missed    bool  // something was taken away that was delivered and not committed
	committed int64 // everything persisted before is committed, Unix microseconds; 0 = unknown
	epoch     uint64
	joined    bool
	fatal     error

	// born is when time begins for until, which is when the lease ends, in nanoseconds. It is looked at before every message: a process that
	// was stopped for a while must notice before it goes on.
	born  time.Time
	until atomic.Int64
	// held says that the iteration has the turn; it alone looks at it.
	held bool
	// saving is taken by commits, and when buckets leave the set that a commit may be of.
	saving chan struct{}
	// beat asks for a heartbeat, look for the worker. Of capacity 1.
	beat, look chan struct{}

	life memberLife
}

// memberLife is that of a membership. The mutex guards the first two.
type memberLife struct {
	sync.Mutex
	started, closed bool
	ctx             context.Context //nolint:containedctx // of the member's goroutines
	cancel          context.CancelCauseFunc
	work            sync.WaitGroup
}

func (l *memberLife) beginLife() { l.ctx, l.cancel = context.WithCancelCause(context.Background()) }

// NewGroup returns a member of a group that reads a category from the cell at a URL; "" stands for [DefaultServer]. The group is created
// when its first member joins: [WithStart] says where it begins then, and means nothing later. It joins with the first iteration, or
// with [Group.Join]. The error reports every option that is not valid.
func NewGroup(server, category, group string, opts ...Option) (*Group, error) {
	defaults := option(func(c *options) { c.group = defaultGroupConfig() })
	var invalid []error
	validate := option(func(c *options) {
		if err := record.ValidateName("group name", group); err != nil {
			invalid = append(invalid, fmt.Errorf("consumer: %w", err))
		}
		c.validateGroup(func(ok bool, format string, args ...any) {
			if !ok {
				invalid = append(invalid, fmt.Errorf("consumer: "+format, args...))
			}
		})
		if c.group.member == "" {
			c.group.member = memberName()
		}
		if c.name == "" {
			c.name = group + "/" + c.group.member
			c.name = c.name[:min(len(c.name), 255)]
		}
	})
	c, err := New(server, category, append(append([]Option{defaults}, opts...), validate)...)
	if err = errors.Join(append(invalid, err)...); err != nil {
		if c != nil {
			_ = c.Close()
		}
		return nil, err
	}
	g := &Group{
		c: c, name: group, cfg: c.cfg.group, svc: c.groups, turn: newTurn(), changed: make(chan struct{}),
		born: time.Now(), saving: make(chan struct{}, 1), beat: make(chan struct{}, 1), look: make(chan struct{}, 1),
	}
	if g.svc == nil {
		_ = c.Close()
		return nil, ErrNotSupported
	}
	c.group = g
	g.until.Store(math.MaxInt64) // there is nothing that others could have
	g.life.beginLife()
	return g, nil
}

// Name is the group's, Member this member's.
func (g *Group) Name() string { return g.name }

// Member is the member's name in the group.
func (g *Group) Member() string { return g.cfg.member }

// startMembership begins the membership.
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

// Join begins the membership and waits until the member has its first buckets, or is known to get none for now.
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

// Records yields the messages of the member's buckets as [Consumer.Records] does. Buckets come and go between two messages, also in the
// middle of a payload. After buckets came from another member, messages may be older than ones that were yielded before, whatever the window; the
// messages of each logical shard stay in order where the group shares by shards.
func (g *Group) Records(ctx context.Context) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		refuse := func(err error) bool { return yield(Record{}, err) }
		if err := g.enterIteration(); err != nil {
			refuse(err)
			return
		}
		g.c.runIteration(ctx, refuse, func(it *streamItem) bool {
			gone := false
			return g.c.deliverRecords(it, func(r Record, err error) bool {
				if !yield(r, err) {
					return false
				}
				gone = !g.goOn(ctx, it)
				return !gone
			}, refuse) || gone
		})
	}
}

// enterIteration is before an iteration.
func (g *Group) enterIteration() error {
	if err := g.startMembership(); err != nil {
		return err
	}
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	return g.fatal
}

// goOn is between two messages of a payload: it lets the worker do what it wants to, and is false when the rest is not the member's any
// more, or the iteration is over.
func (g *Group) goOn(ctx context.Context, it *streamItem) bool {
	if !g.turn.stop.Load() && !g.leaseExpired() {
		return true
	}
	g.restTurn()
	return g.workTurn(ctx) == nil && g.c.stillTakes(it)
}

// restTurn gives the turn up: no message is being looked at.
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
		g.turn.setBlocked(true) // until a heartbeat was answered
		wakeWaiter(g.beat)
	}
	g.held = true
	g.c.mu.Lock()
	g.meter.noteWorking(time.Now())
	g.c.mu.Unlock()
	return nil
}

// extendLease notes that the member may take itself for one for so long from a time on.
func (g *Group) extendLease(from time.Time, lease time.Duration) {
	g.until.Store(int64(from.Add(lease).Sub(g.born)))
}

// leaseExpired reports whether the lease is over: others may have the member's buckets.
func (g *Group) leaseExpired() bool { return int64(time.Since(g.born)) >= g.until.Load() }

// hasSettled reports whether the member has all buckets that it is to have. The consumer's mutex is held.
func (g *Group) hasSettled() bool {
	return g.joined && !g.fresh && g.want.pending == 0 && g.want.revoked.Empty()
}

// Commit makes what was yielded the group's: no member is given it again. The message that the loop looks at counts as yielded, so a
// loop commits when it has dealt with it. It waits until that is durable, and tries again while servers are away, until ctx ends. ErrFenced
// means that a part was not committed, since it is another member's by now; the rest was, unless there was nothing else.
func (g *Group) Commit(ctx context.Context) error { return g.commitDelivered(ctx, true) }

// Watermark is as [Consumer.Watermark], for the member's buckets.
func (g *Group) Watermark() time.Time { return g.c.Watermark() }

// Lag is as [Consumer.Lag].
func (g *Group) Lag() time.Duration { return g.c.Lag() }

// Buffered is as [Consumer.Buffered].
func (g *Group) Buffered() int { return g.c.Buffered() }

// Stats is as [Consumer.Stats].
func (g *Group) Stats() Stats { return g.c.Stats() }

// Assigned are the buckets that the member reads now, with the generation that they are of.
func (g *Group) Assigned() Rebalance {
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	r := Rebalance{Generation: g.taken}
	if g.share != nil {
		r.Buckets = g.share.owned.Slice()
	}
	return r
}

// leaveTimeout bounds what Close does for the others: they wait for the TTL when it is not enough.
const leaveTimeout = 5 * time.Second

// Close leaves the group: with auto-commit it commits what the loop has come back from, then the member's buckets go to others at once. An
// iteration that runs yields [ErrClosed] at its next step. The error is of the last commit, or of leaving; the goroutines of the member
// have ended in any case. Repeating it is harmless.
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
				err = nil // the others have it
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

// leaveGroup ends the membership.
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

// commitDelivered stores what was delivered. looked says that the message which the loop looks at is part of it.
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
	if g.share == nil {
		c.mu.Unlock()
		return fencedIf(missed)
	}
	positions, held := g.share.unsavedPositions()
	req := &scribev1.CommitGroupRequest{
		Group: g.name, Member: g.cfg.member, Epoch: g.epoch, Generation: g.taken, Buckets: held, Watermark: c.mu.watermark,
	}
	draining, version := g.share.draining.Clone(), g.share.version
	c.mu.Unlock()
	var err error
	if len(positions) > 0 {
		err = g.sendCommit(ctx, req, positions)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		if version == g.share.version { // else time has gone back to where new buckets are
			g.committed = max(g.committed, req.GetWatermark())
		}
		g.letGo(draining)
		return fencedIf(missed)
	case errors.Is(err, ErrFenced):
		// What is left of it is for the next commit, once it is known what that is.
		g.share.putBack(positions)
		wakeWaiter(g.beat)
		return err
	default:
		g.share.putBack(positions)
		g.missed = g.missed || missed
		return err
	}
}

func fencedIf(missed bool) error {
	if missed {
		return fmt.Errorf("%w: some of what was yielded since the last commit", ErrFenced)
	}
	return nil
}

// Parts of a commit, within what a request may hold.
const (
	commitShards = 10_000
	commitAhead  = 100_000
)

// sendCommit sends a commit, in parts when it is large.
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
		if cause := permanentError(err); cause != nil {
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
