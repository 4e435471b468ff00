package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/base/backoff"
	"scribe/internal/format/bucket"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Two goroutines keep a membership. The first speaks to the coordinator: it joins, sends heartbeats, records the assignment, and
// tracks the lease. The second, the worker, applies the assignment: it stops reading buckets that are to be given back, commits
// them, and takes in new ones. It does whatever affects messages while it has the turn, between two messages; so a heartbeat
// never waits for the caller.

// memberAssignment is the coordinator's assignment for a member.
type memberAssignment struct {
	generation uint64
	grants     []uint64 // generation of each bucket; 0 = not assigned to the member
	revoked    bucket.Set
	pending    uint32
}

func parseAssignment(a *scribev1.GroupAssignment, buckets uint32) (memberAssignment, error) {
	out := memberAssignment{generation: a.GetGeneration(), grants: make([]uint64, buckets), pending: a.GetPending()}
	for _, g := range a.GetGrants() {
		set, err := bucket.Parse(g.GetBuckets(), buckets)
		if err != nil || g.GetGeneration() == 0 {
			return out, fmt.Errorf("%w: a grant of generation %d: %w", ErrProtocol, g.GetGeneration(), err)
		}
		for b := range set.Each() {
			out.grants[b] = g.GetGeneration()
		}
	}
	var err error
	if out.revoked, err = bucket.Parse(a.GetRevoked(), buckets); err != nil {
		return out, fmt.Errorf("%w: revoked buckets: %w", ErrProtocol, err)
	}
	return out, nil
}

// announceChange wakes the goroutines that wait for changes. The consumer's mutex is held.
func (g *Group) announceChange() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// keepMembership keeps the membership until ctx ends or an error is permanent.
func (g *Group) keepMembership(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
		lease, err := g.joinGroup(ctx)
		if err == nil {
			failures = 0
			err = g.sendHeartbeats(ctx, lease)
		}
		if ctx.Err() != nil {
			return
		}
		if end := g.endingError(err); end != nil {
			g.failGroup(end)
			return
		}
		failures++
		pause := g.c.cfg.pause(failures, err)
		g.c.cfg.logger.Warn("not a member of the group, joining again", "group", g.name, "pause", pause, "error", err)
		_ = backoff.Sleep(ctx, pause) // the loop checks ctx
	}
}

// endingError returns the error that ends the membership, nil for a transient one.
func (g *Group) endingError(err error) error {
	cause := g.c.cfg.permanentError(err)
	switch reason := rpc.ReasonOf(err); {
	case reason == scribev1.Reason_REASON_UNKNOWN_GROUP:
		return fmt.Errorf("%w: %w", ErrGroupDeleted, err)
	case reason == scribev1.Reason_REASON_CONFLICT:
		cause = ErrRefused
	case errors.Is(err, ErrProtocol), errors.Is(err, ErrRefused):
		return err
	}
	if cause != nil {
		return &ServerError{Doing: fmt.Sprintf("joining group %q", g.name), named: true, cause: cause, Detail: err}
	}
	return nil
}

// failGroup ends the running iteration and all later ones.
func (g *Group) failGroup(err error) {
	g.c.mu.Lock()
	g.fatal = err
	s := g.c.mu.session
	g.announceChange()
	g.c.mu.Unlock()
	if s != nil {
		s.cancel(err)
	}
}

// joinGroup joins the group.
func (g *Group) joinGroup(ctx context.Context) (lease time.Duration, err error) {
	req := &scribev1.JoinGroupRequest{
		Group: g.name, Category: g.c.category, Member: g.cfg.member, Ttl: durationpb.New(g.cfg.ttl), RevokeTimeout: durationpb.New(g.cfg.revokeTimeout),
		Sharing: scribev1.GroupSharing(g.cfg.sharing), Buckets: g.cfg.buckets, Description: g.cfg.description,
		StartAt: g.c.cfg.start.kind, StartTime: g.c.cfg.start.time,
	}
	if cp := g.c.cfg.start.from; cp != nil {
		req.Checkpoint = cp.String()
	}
	rctx, cancel := context.WithTimeout(ctx, g.c.cfg.requestTimeout)
	defer cancel()
	sent := time.Now()
	res, err := g.svc.JoinGroup(rctx, req)
	if err != nil {
		return 0, err
	}
	scheme := bucket.Scheme{Sharing: bucket.Sharing(res.GetSharing()), Buckets: res.GetBuckets()} //nolint:gosec // an unknown one is refused next
	if err := scheme.Validate(); err != nil {
		return 0, fmt.Errorf("%w: the group is shared in a way that this build does not know: %w", ErrRefused, err)
	}
	a, err := parseAssignment(res.GetAssignment(), scheme.Buckets)
	if err != nil {
		return 0, err
	}
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	if g.c.mu.share == nil || g.c.mu.share.scheme != scheme || g.c.mu.share.categoryID != res.GetCategoryId() {
		before := g.c.mu.share
		g.c.mu.share = newShare(scheme, res.GetCategoryId())
		if before != nil {
			g.c.mu.share.version = before.version + 1 // invalidates what streams opened before still bring
		}
		g.c.mu.share.rewindToDelivered(g.c.cfg.untilEnd)
		g.granted, g.releasing = make([]uint64, scheme.Buckets), bucket.NewSet(scheme.Buckets)
	}
	g.epoch, g.joined = res.GetEpoch(), true
	g.setWanted(a)
	g.c.cfg.logger.Info("joined the group", "group", g.name, "member", g.cfg.member, "epoch", g.epoch, "generation", a.generation)
	lease = max(res.GetLease().AsDuration(), 100*time.Millisecond)
	g.extendLease(sent, lease)
	return lease, nil
}

// setWanted records a new assignment. The consumer's mutex is held.
func (g *Group) setWanted(a memberAssignment) {
	g.want = a
	g.fresh = true // until the worker has applied it
	g.announceChange()
	g.look.WakeUp()
}

// sendHeartbeats sends heartbeats until the membership ends.
func (g *Group) sendHeartbeats(ctx context.Context, lease time.Duration) error {
	g.turn.setBlocked(false)
	interval := lease / 5
	timer := time.NewTimer(interval)
	defer timer.Stop()
	for failures := 0; ; {
		select {
		case <-timer.C:
		case <-g.beat:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		sent := time.Now()
		rctx, cancel := context.WithTimeout(ctx, max(lease/3, time.Second))
		waits, err := g.sendHeartbeat(rctx)
		cancel()
		next := interval
		switch reason := rpc.ReasonOf(err); {
		case err == nil:
			failures = 0
			g.extendLease(sent, lease)
			g.turn.setBlocked(false)
			if waits {
				next = interval / 4
			}
		case reason == scribev1.Reason_REASON_LEASE_EXPIRED, reason == scribev1.Reason_REASON_UNKNOWN_GROUP:
			g.noteExpelled()
			return err
		case errors.Is(err, ErrProtocol):
			return err
		default:
			failures++
			g.c.cfg.logger.Warn("heartbeat failed", "group", g.name, "failures", failures, "error", err)
			next = min(g.c.cfg.pause(failures, nil), interval)
		}
		timer.Reset(next)
	}
}

// sendHeartbeat sends a heartbeat and records the answer. waits reports that others still have to give buckets back to the member.
func (g *Group) sendHeartbeat(ctx context.Context) (waits bool, err error) {
	g.c.mu.Lock()
	req := &scribev1.HeartbeatGroupRequest{Group: g.name, Member: g.cfg.member, Epoch: g.epoch, Generation: g.taken, Status: g.memberStatus(time.Now())}
	if !g.releasing.Empty() {
		req.Released = g.releasing.Clone()
		// All buckets given back were granted by then, whether they were taken in or not.
		req.Generation = g.want.generation
	}
	if req.GetGeneration() != g.taken {
		req.Status.Watermark = 0 // it would count for all buckets of that generation
	}
	buckets := g.c.mu.share.scheme.Buckets
	g.c.mu.Unlock()
	res, err := g.svc.HeartbeatGroup(ctx, req)
	if err != nil {
		return false, err
	}
	a, err := parseAssignment(res.GetAssignment(), buckets)
	if err != nil {
		return false, err
	}
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	if a.generation != g.want.generation || a.pending != g.want.pending {
		g.setWanted(a)
	}
	return a.pending > 0, nil
}

// memberStatus returns the status that the member reports. The consumer's mutex is held.
func (g *Group) memberStatus(now time.Time) *scribev1.GroupMemberStatus {
	r := g.meter.readRates(now, g.c.stats.records.Load())
	s := &scribev1.GroupMemberStatus{
		Watermark: g.committed, BytesPerSecond: uint64(r[meterBytes]), MessagesPerSecond: uint64(r[meterMessages]),
		PointersPerKilosecond: uint64(r[meterPointers] * 1000), BusyPermille: uint32((1 - min(max(r[meterIdle], 0), 1)) * 1000),
	}
	// A member without uncommitted messages has progressed as far as its stream.
	if !g.fresh && g.c.mu.share.isCommitted() && g.c.current == nil {
		s.Watermark = max(s.GetWatermark(), g.c.mu.reached)
	}
	return s
}

// noteExpelled records the end of the membership: the member has no buckets.
func (g *Group) noteExpelled() {
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	g.joined = false
	g.c.advancePosition()
	g.missed = g.c.mu.share.dropBuckets(g.c.mu.share.heldBuckets()) || g.missed
	g.setWanted(memberAssignment{grants: make([]uint64, g.c.mu.share.scheme.Buckets), revoked: bucket.NewSet(g.c.mu.share.scheme.Buckets)})
}

// runWorker applies assignments, and commits periodically.
func (g *Group) runWorker(ctx context.Context) {
	var tick <-chan time.Time
	if every := g.cfg.autoCommit; every > 0 {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-g.look:
		case <-tick:
			g.autoCommit(ctx)
			continue
		case <-ctx.Done():
			return
		}
		for failures := 1; !g.reconcileBuckets(ctx); failures++ {
			if backoff.Sleep(ctx, g.c.cfg.pause(failures, nil)) != nil {
				return
			}
		}
	}
}

// autoCommit commits the messages that the loop has finished.
func (g *Group) autoCommit(ctx context.Context) {
	if !g.betweenMessages(ctx, func() {
		g.c.mu.Lock()
		g.c.advancePosition()
		g.c.mu.Unlock()
	}) {
		return
	}
	if err := g.commitDelivered(ctx, false); err != nil && ctx.Err() == nil {
		g.c.cfg.logger.Warn("auto-commit failed", "group", g.name, "error", err)
	}
}

// betweenMessages runs fn while the loop is not handling a message.
func (g *Group) betweenMessages(ctx context.Context, fn func()) bool {
	g.turn.setWanted(true)
	err := g.turn.takeTurn(ctx, true)
	if err == nil {
		fn()
		g.turn.giveTurn()
	}
	g.turn.setWanted(false)
	return err == nil
}

// bucketChanges is the difference between the member's buckets and its assignment.
type bucketChanges struct {
	generation           uint64
	grants               []uint64
	lost, revoked, fresh bucket.Set
	kept                 bucket.Set // were to be given back, and no longer are
	nothing              bool
}

// compareBuckets returns the changes to make. The consumer's mutex is held.
func (g *Group) compareBuckets() bucketChanges {
	n := g.c.mu.share.scheme.Buckets
	d := bucketChanges{
		generation: g.want.generation, grants: g.want.grants,
		lost: bucket.NewSet(n), revoked: bucket.NewSet(n), fresh: bucket.NewSet(n), kept: bucket.NewSet(n),
	}
	for b := range n {
		want, have := g.want.grants[b], g.granted[b]
		if have != 0 && want != have {
			if g.releasing.Has(b) {
				g.releasing.Remove(b)
			} else {
				d.lost.Add(b)
			}
			g.granted[b], have = 0, 0
		}
		switch revoked := g.want.revoked.Has(b); {
		case want == 0 || g.releasing.Has(b):
		case have == 0 && revoked: // its reading has not begun
			g.granted[b] = want
			g.releasing.Add(b)
			g.beat.WakeUp()
		case have == 0:
			d.fresh.Add(b)
		case revoked && g.c.mu.share.owned.Has(b):
			d.revoked.Add(b)
		case !revoked && g.c.mu.share.draining.Has(b):
			d.kept.Add(b)
		}
	}
	d.nothing = d.lost.Empty() && d.revoked.Empty() && d.fresh.Empty() && d.kept.Empty()
	return d
}

// reconcileBuckets applies the assignment to the member's buckets. It is false when it has to be repeated.
func (g *Group) reconcileBuckets(ctx context.Context) bool {
	g.c.mu.Lock()
	if g.c.mu.share == nil {
		g.c.mu.Unlock()
		return true
	}
	d := g.compareBuckets()
	if d.nothing {
		g.noteTaken(d.generation)
	}
	g.c.mu.Unlock()
	if d.nothing {
		return true
	}
	if !d.lost.Empty() || !d.revoked.Empty() || !d.kept.Empty() {
		if !g.betweenMessages(ctx, func() { g.stopReading(&d) }) {
			return true
		}
		if !g.releaseBuckets(ctx, &d) {
			return true
		}
	}
	if !d.fresh.Empty() {
		return g.takeIn(ctx, &d)
	}
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	g.noteTaken(d.generation)
	return true
}

// noteTaken records that a generation was taken in. The consumer's mutex is held.
func (g *Group) noteTaken(generation uint64) {
	g.taken = generation
	if g.want.generation == generation { // otherwise the worker was woken for a newer one
		g.fresh = false
	}
	g.announceChange()
}

// stopReading runs between two messages: from then on buckets are not read.
func (g *Group) stopReading(d *bucketChanges) {
	c := g.c
	c.mu.Lock()
	c.advancePosition()
	told := !d.lost.Empty()
	if told {
		g.missed = g.c.mu.share.dropBuckets(d.lost) || g.missed
	}
	if !d.kept.Empty() {
		g.c.mu.share.resumeBuckets(d.kept)
		c.mu.watermark, c.mu.reached = min(c.mu.watermark, g.committed), min(c.mu.reached, g.committed)
	}
	c.mu.Unlock()
	if fn := g.cfg.onRevoked; fn != nil && told {
		fn(Rebalance{Generation: d.generation, Buckets: d.lost.Slice(), Lost: true})
	}
	if fn := g.cfg.onRevoked; fn != nil && !d.revoked.Empty() {
		fn(Rebalance{Generation: d.generation, Buckets: d.revoked.Slice()})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	g.c.mu.share.drainBuckets(d.revoked)
	g.reopenStream()
}

// reopenStream reopens the stream for the member's current buckets. The consumer's mutex is held.
func (g *Group) reopenStream() {
	g.c.reopenStream()
	g.announceChange()
}

// releaseBuckets gives revoked buckets back once they are committed, or once the options require no further commit. It is false
// when ctx has ended.
func (g *Group) releaseBuckets(ctx context.Context, d *bucketChanges) bool {
	if d.revoked.Empty() {
		return true
	}
	if g.cfg.autoCommit > 0 {
		// The commit is retried until it succeeds or the buckets are taken away.
		if err := g.commitDelivered(ctx, false); err != nil && !errors.Is(err, ErrFenced) {
			g.c.cfg.logger.Warn("giving buckets back with uncommitted messages", "group", g.name, "error", err)
		}
	}
	// While buckets are given back, no commit that may contain them runs.
	select {
	case g.saving <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-g.saving }()
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	if g.cfg.autoCommit > 0 || g.cfg.onRevoked != nil || g.c.mu.share.isCommitted() {
		g.letGo(d.revoked)
	}
	return true
}

// letGo gives draining buckets back. The consumer's mutex and saving are held.
func (g *Group) letGo(set bucket.Set) {
	gone := set.Clone()
	for b := range set.Each() {
		if !g.c.mu.share.draining.Has(b) {
			gone.Remove(b)
		}
	}
	if gone.Empty() {
		return
	}
	g.c.mu.share.dropBuckets(gone)
	g.releasing.AddAll(gone)
	g.beat.WakeUp()
}

// takeIn takes in new buckets. It is false when it has to be repeated.
func (g *Group) takeIn(ctx context.Context, d *bucketChanges) bool {
	g.c.mu.Lock()
	req := &scribev1.GroupPositionsRequest{Group: g.name, Member: g.cfg.member, Epoch: g.epoch, Generation: d.generation, Buckets: d.fresh}
	g.c.mu.Unlock()
	rctx, cancel := context.WithTimeout(ctx, g.c.cfg.requestTimeout)
	defer cancel()
	res, err := g.svc.GroupPositions(rctx, req)
	if err != nil {
		if ctx.Err() != nil {
			return true
		}
		g.c.cfg.logger.Warn("reading the positions of assigned buckets failed", "group", g.name, "error", err)
		g.beat.WakeUp() // the membership may have changed
		return false
	}
	ok := true
	done := g.betweenMessages(ctx, func() {
		g.c.mu.Lock()
		if g.epoch != req.GetEpoch() || !g.joined {
			ok = false
			g.c.mu.Unlock()
			return
		}
		g.c.advancePosition()
		err = g.c.mu.share.installBuckets(d.fresh, res.GetPositions())
		for b := range d.fresh.Each() {
			g.granted[b] = d.grants[b]
		}
		// Time goes back to the positions of the new buckets.
		g.committed = min(g.committed, res.GetWatermark())
		g.c.mu.watermark, g.c.mu.reached = min(g.c.mu.watermark, res.GetWatermark()), min(g.c.mu.reached, res.GetWatermark())
		g.c.mu.known = min(g.c.mu.known, res.GetKnownUntil())
		if g.c.mu.share.owned.Len() == d.fresh.Len() { // the member had none
			g.committed, g.c.mu.watermark, g.c.mu.reached = res.GetWatermark(), res.GetWatermark(), res.GetWatermark()
			g.c.mu.known = res.GetKnownUntil()
		}
		g.noteTaken(d.generation)
		g.c.mu.Unlock()
		if fn := g.cfg.onAssigned; fn != nil && err == nil {
			fn(Rebalance{Generation: d.generation, Buckets: d.fresh.Slice()})
		}
		g.c.mu.Lock()
		defer g.c.mu.Unlock()
		g.reopenStream()
	})
	if err != nil {
		g.failGroup(err)
	}
	return !done || ok
}
