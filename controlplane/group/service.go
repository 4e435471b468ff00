package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/controlplane/request"
	"scribe/internal/format/bucket"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// checkName refuses invalid names of groups.
func checkName(what, name string) error {
	var v request.Violations
	checkNameField(&v, "group", name)
	return v.Err(what)
}

func checkNameField(v *request.Violations, field, name string) {
	if err := record.ValidateName(field+" name", name); err != nil {
		v.Add(field, "%v", err)
	}
}

// JoinGroup implements rpc.GroupService.
func (c *Coordinator) JoinGroup(ctx context.Context, req *scribev1.JoinGroupRequest) (*scribev1.JoinGroupResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	what := fmt.Sprintf("join group %.300q", req.GetGroup())
	member, err := newMember(what, req)
	if err != nil {
		return nil, err
	}
	res, err := c.deps.Control.GetCategory(ctx, &scribev1.GetCategoryRequest{Name: req.GetCategory()})
	if err != nil {
		return nil, err
	}
	cat := res.GetCategory()
	member.JoinedAt = c.deps.Now().UnixMicro()
	epoch := uint64(0)
	join := func(g *Group) (bool, error) {
		if err := checkSuits(what, g, req, cat); err != nil {
			return false, err
		}
		if len(g.Members) >= maxMembers && g.Named(member.Name) == nil {
			return false, rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, member.TTL, "%s: it has %d members, which is the limit", what, len(g.Members))
		}
		epoch = g.Join(member)
		return true, nil
	}
	var g *Group
	for range maxAttempts {
		if g, err = c.changeGroup(ctx, what, req.GetGroup(), join); rpc.ReasonOf(err) != scribev1.Reason_REASON_UNKNOWN_GROUP {
			break
		}
		if g, err = c.createGroup(ctx, what, req, cat, join); !errors.Is(err, kv.ErrConflict) {
			break
		}
		err = errContended(what)
	}
	if err != nil {
		return nil, err
	}
	c.metrics.joins.Inc()
	c.log.Info("group member joined", "group", g.Name, "member", member.Name, "epoch", epoch, "members", len(g.Members), "generation", g.Generation)
	c.noteSpoke(g, epoch, nil)
	return &scribev1.JoinGroupResponse{
		Epoch: epoch, Sharing: scribev1.GroupSharing(g.Scheme.Sharing), Buckets: g.Scheme.Buckets, CategoryId: g.CategoryID,
		Ttl: durationpb.New(member.TTL), Lease: durationpb.New(leaseOf(member.TTL)), Assignment: assignmentOf(g, epoch),
	}, nil
}

// newMember checks the parts of a request to join that do not depend on the group.
func newMember(what string, req *scribev1.JoinGroupRequest) (Member, error) {
	var v request.Violations
	checkNameField(&v, "group", req.GetGroup())
	checkNameField(&v, "category", req.GetCategory())
	if n := len(req.GetMember()); n == 0 || n > maxName {
		v.Add("member", "a name of %d bytes, want 1 to %d", n, maxName)
	}
	if n := len(req.GetDescription()); n > maxDescription {
		v.Add("description", "%d bytes, the limit is %d", n, maxDescription)
	}
	if b := req.GetBuckets(); b > bucket.Max || bits.OnesCount32(b) > 1 {
		v.Add("buckets", "%d, want a power of two up to %d", b, bucket.Max)
	}
	if s := req.GetSharing(); s > scribev1.GroupSharing_GROUP_SHARING_SHARDS || s < 0 {
		v.Add("sharing", "%d is unknown", s)
	}
	m := Member{Name: req.GetMember(), Description: req.GetDescription()}
	m.TTL = v.Duration("ttl", req.GetTtl(), minTTL, maxTTL, defaultTTL)
	m.RevokeTimeout = v.Duration("revoke_timeout", req.GetRevokeTimeout(), minRevoke, maxRevoke, defaultRevoke)
	return m, v.Err(what)
}

// checkSuits refuses a request to join a group that differs from the request's description.
func checkSuits(what string, g *Group, req *scribev1.JoinGroupRequest, cat *scribev1.Category) error {
	switch s := req.GetSharing(); {
	case g.Category != req.GetCategory():
		return rpc.Errorf(scribev1.Reason_REASON_CONFLICT, "%s: it reads category %q, not %q: choose another name for the group", what, g.Category, req.GetCategory())
	case g.CategoryID != cat.GetId():
		return rpc.Errorf(scribev1.Reason_REASON_CONFLICT,
			"%s: category %q was deleted and made again since: reset the group, or delete it", what, g.Category)
	case s != scribev1.GroupSharing_GROUP_SHARING_UNSPECIFIED && bucket.Sharing(s) != g.Scheme.Sharing: //nolint:gosec // it is one of three
		return rpc.Errorf(scribev1.Reason_REASON_CONFLICT, "%s: it shares by %v, which is decided when a group is created: delete it, or choose another name", what, g.Scheme.Sharing)
	case req.GetBuckets() != 0 && req.GetBuckets() != g.Scheme.Buckets:
		return rpc.Errorf(scribev1.Reason_REASON_CONFLICT, "%s: it has %d buckets, which is decided when a group is created: delete it, or choose another name", what, g.Scheme.Buckets)
	}
	return nil
}

// usefulIn returns how many buckets of a scheme can have messages of a category.
func usefulIn(s bucket.Scheme, cat *scribev1.Category) uint32 {
	if s.Sharing == bucket.Shards && !cat.IsSequenced() { // its one log can be in any bucket
		return min(cat.GetShards(), s.Buckets)
	}
	return s.Buckets
}

// createGroup creates a group with its first member. It fails with kv.ErrConflict if a group of that name has been created
// meanwhile.
func (c *Coordinator) createGroup(ctx context.Context, what string, req *scribev1.JoinGroupRequest, cat *scribev1.Category, join func(*Group) (bool, error)) (*Group, error) {
	done, err := c.takeTurn(ctx, req.GetGroup())
	if err != nil {
		return nil, err
	}
	defer done()
	if err := c.checkLimit(ctx, what); err != nil {
		return nil, err
	}
	scheme := bucket.Scheme{Sharing: bucket.Sharing(req.GetSharing()), Buckets: cmp.Or(req.GetBuckets(), defaultBuckets)} //nolint:gosec // it is one of three
	if scheme.Sharing == 0 {
		scheme.Sharing = bucket.Pointers
		if cat.GetShards() > 1 || cat.KeepsOrder() {
			scheme.Sharing = bucket.Shards
		}
	}
	start, err := c.resolveStart(ctx, what, cat, scheme, startAt{req.GetStartAt(), req.GetStartTime(), req.GetCheckpoint()})
	if err != nil {
		return nil, err
	}
	g := New(req.GetGroup(), cat.GetName(), cat.GetId(), scheme, usefulIn(scheme, cat))
	g.CreatedAt = c.deps.Now().UnixMicro()
	g.PositionedAt, g.KnownUntil = g.CreatedAt, start.knownUntil
	if _, err := join(g); err != nil {
		return nil, err
	}
	if err := c.installPositions(ctx, what, g, 0, start.positions, start.times); err != nil {
		return nil, err
	}
	c.log.Info("group created", "group", g.Name, "category", g.Category, "sharing", g.Scheme.Sharing.String(), "buckets", g.Scheme.Buckets, "shards", len(start.positions))
	return g, nil
}

// checkLimit refuses a group above the limit.
func (c *Coordinator) checkLimit(ctx context.Context, what string) error {
	n := 0
	for _, err := range kv.All(ctx, c.deps.Store, groupPrefix) {
		if err != nil {
			return request.ReadError(what, err)
		}
		if n++; n >= c.cfg.MaxGroups {
			return rpc.Errorf(scribev1.Reason_REASON_OVERLOADED, "%s: there are %d groups, which is the limit: delete some", what, n)
		}
	}
	return nil
}

func assignmentOf(g *Group, epoch uint64) *scribev1.GroupAssignment {
	a := g.Assignment(epoch)
	out := &scribev1.GroupAssignment{Generation: a.Generation, Revoked: a.Revoked, Pending: uint32(a.Pending)}
	for _, generation := range slices.Sorted(maps.Keys(a.Grants)) {
		out.Grants = append(out.Grants, &scribev1.GroupGrant{Generation: generation, Buckets: a.Grants[generation]})
	}
	return out
}

// isMember returns an error with the reason if the member does not exist.
func isMember(what string, g *Group, name string, epoch uint64) error {
	if m := g.Member(epoch); m == nil || m.Name != name {
		return rpc.Errorf(scribev1.Reason_REASON_LEASE_EXPIRED,
			"%s: the membership of %.300q with epoch %d has ended: it was silent for too long, left, or was replaced by another of that name; join again", what, name, epoch)
	}
	return nil
}

// HeartbeatGroup implements rpc.GroupService.
func (c *Coordinator) HeartbeatGroup(ctx context.Context, req *scribev1.HeartbeatGroupRequest) (*scribev1.HeartbeatGroupResponse, error) {
	what, leave, err := c.enterGroupCall("heartbeat in group", req.GetGroup())
	if err != nil {
		return nil, err
	}
	defer leave()
	c.noteHeard(req.GetGroup(), req.GetEpoch())
	g, _, err := c.loadGroup(ctx, what, req.GetGroup())
	if err == nil && len(req.GetReleased()) > 0 {
		g, err = c.changeGroup(ctx, what, req.GetGroup(), func(g *Group) (bool, error) {
			set, err := bucket.Parse(req.GetReleased(), g.Scheme.Buckets)
			if err != nil {
				return false, rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: released: %w", what, err)
			}
			return g.Release(req.GetEpoch(), req.GetGeneration(), set), nil
		})
	}
	if err != nil {
		return nil, err
	}
	if err := isMember(what, g, req.GetMember(), req.GetEpoch()); err != nil {
		return nil, err
	}
	c.noteSpoke(g, req.GetEpoch(), statusOf(req))
	if g, err = c.storeBeat(ctx, what, g, req.GetEpoch()); err != nil {
		return nil, err
	}
	if err := isMember(what, g, req.GetMember(), req.GetEpoch()); err != nil {
		return nil, err
	}
	return &scribev1.HeartbeatGroupResponse{Assignment: assignmentOf(g, req.GetEpoch())}, nil
}

func statusOf(req *scribev1.HeartbeatGroupRequest) *MemberStatus {
	s := req.GetStatus()
	const most = 1 << 50 // a petabyte a second; computations with it do not overflow
	return &MemberStatus{
		Generation: req.GetGeneration(), Watermark: max(s.GetWatermark(), 0),
		BytesPerSecond: min(s.GetBytesPerSecond(), most), MessagesPerSecond: min(s.GetMessagesPerSecond(), most),
		PointersPerKilosecond: min(s.GetPointersPerKilosecond(), most), BusyPermille: min(s.GetBusyPermille(), 1000),
	}
}

// GroupPositions implements rpc.GroupService.
func (c *Coordinator) GroupPositions(ctx context.Context, req *scribev1.GroupPositionsRequest) (*scribev1.GroupPositionsResponse, error) {
	what, leave, err := c.enterGroupCall("read positions of group", req.GetGroup())
	if err != nil {
		return nil, err
	}
	defer leave()
	g, _, err := c.loadGroup(ctx, what, req.GetGroup())
	if err != nil {
		return nil, err
	}
	set, err := c.checkOwned(what, g, req.GetMember(), req.GetEpoch(), req.GetGeneration(), req.GetBuckets())
	if err != nil {
		return nil, err
	}
	all, times, err := c.readPositions(ctx, what, g)
	if err != nil {
		return nil, err
	}
	res := &scribev1.GroupPositionsResponse{}
	first := true
	for b := range set.Each() {
		if t := g.timeOf(int(b), times); first || t < res.GetWatermark() {
			res.Watermark, first = t, false
		}
	}
	res.KnownUntil = max(res.GetWatermark(), g.KnownUntil)
	var scratch bucket.Places
	filter := bucket.Filter{Scheme: g.Scheme, Set: set}
	for _, shard := range all.sortedShards() {
		if !filter.HasSome(shard) {
			continue
		}
		p := all[shard]
		scratch = g.Scheme.Expand(&p, scratch)
		p = g.Scheme.Compact(shard, scratch, set)
		res.Positions = append(res.Positions, wirePosition(shard, &p))
	}
	return res, nil
}

func wirePosition(shard record.ShardID, p *bucket.Position) *scribev1.GroupShardPosition {
	out := &scribev1.GroupShardPosition{Shard: uint64(shard), Low: uint64(p.Low)}
	for _, a := range p.Ahead {
		out.Ahead = append(out.Ahead, &scribev1.GroupBucketPosition{Bucket: a.Bucket, Lsn: uint64(a.LSN), Skip: a.Skip})
	}
	return out
}

// checkOwned checks that the buckets of a request belong to its member, in the generation that the member knows.
func (c *Coordinator) checkOwned(what string, g *Group, member string, epoch, generation uint64, buckets []byte) (bucket.Set, error) {
	set, err := bucket.Parse(buckets, g.Scheme.Buckets)
	if err != nil {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: buckets: %w", what, err)
	}
	if err := isMember(what, g, member, epoch); err != nil {
		return nil, err
	}
	if err := g.CheckOwner(epoch, generation, set); err != nil {
		return nil, rpc.Errorf(scribev1.Reason_REASON_STALE_GENERATION, "%s: %w; the group is in generation %d", what, err, g.Generation)
	}
	return set, nil
}

// CommitGroup implements rpc.GroupService.
func (c *Coordinator) CommitGroup(ctx context.Context, req *scribev1.CommitGroupRequest) (*scribev1.CommitGroupResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	err := c.commitOnce(ctx, req)
	switch rpc.ReasonOf(err) {
	case scribev1.Reason_REASON_LEASE_EXPIRED, scribev1.Reason_REASON_STALE_GENERATION:
		c.metrics.commits.WithLabelValues(commitFenced).Inc()
		c.log.Warn("group commit refused: another member owns the buckets", "group", req.GetGroup(), "member", req.GetMember(), "epoch", req.GetEpoch(), "error", err)
	default:
		result := commitDone
		if err != nil {
			result = commitFailed
		}
		c.metrics.commits.WithLabelValues(result).Inc()
	}
	if err != nil {
		return nil, err
	}
	return &scribev1.CommitGroupResponse{}, nil
}

func (c *Coordinator) commitOnce(ctx context.Context, req *scribev1.CommitGroupRequest) error {
	what := fmt.Sprintf("commit in group %.300q", req.GetGroup())
	if err := checkName(what, req.GetGroup()); err != nil {
		return err
	}
	return c.retryConflicts(ctx, what, req.GetGroup(), func(g *Group, revision uint64) error {
		set, err := c.checkOwned(what, g, req.GetMember(), req.GetEpoch(), req.GetGeneration(), req.GetBuckets())
		if err != nil {
			return err
		}
		k, err := newCommit(what, g, set, req)
		if err != nil {
			return err
		}
		return c.storeCommit(ctx, g, revision, k)
	})
}

// newCommit checks the positions of a commit.
func newCommit(what string, g *Group, set bucket.Set, req *scribev1.CommitGroupRequest) (*positionCommit, error) {
	var v request.Violations
	if n := len(req.GetPositions()); n > maxPositions {
		v.Add("positions", "%d shards, the limit is %d: commit them in several requests", n, maxPositions)
		return nil, v.Err(what)
	}
	k := &positionCommit{set: set, shards: make(map[record.ShardID]*bucket.Position, len(req.GetPositions())), watermark: req.GetWatermark()}
	if k.watermark < 0 {
		v.Add("watermark", "%d is before 1970", k.watermark)
	}
	ahead := 0
	for _, p := range req.GetPositions() {
		shard := record.ShardID(p.GetShard())
		pos, err := parsePosition(g, set, p)
		if _, twice := k.shards[shard]; err == nil && twice {
			err = errors.New("is listed twice")
		}
		if err != nil {
			v.Add("positions", "shard %v: %v", shard, err)
			break
		}
		if ahead += len(pos.Ahead); ahead > maxAhead {
			v.Add("positions", "more than %d buckets are ahead: commit them in several requests", maxAhead)
			break
		}
		k.shards[shard] = pos
	}
	return k, v.Err(what)
}

func parsePosition(g *Group, set bucket.Set, p *scribev1.GroupShardPosition) (*bucket.Position, error) {
	shard := record.ShardID(p.GetShard())
	if shard.Category() != g.CategoryID {
		return nil, fmt.Errorf("is of category %d, the group reads %d", shard.Category(), g.CategoryID)
	}
	if p.GetLow() < uint64(record.FirstLSN) {
		return nil, fmt.Errorf("LSN %d, the first is %d", p.GetLow(), record.FirstLSN)
	}
	pos := &bucket.Position{Low: record.LSN(p.GetLow()), Ahead: make([]bucket.Ahead, 0, min(len(p.GetAhead()), bucket.Max))}
	for i, a := range p.GetAhead() {
		at := bucket.Ahead{Bucket: a.GetBucket(), Place: bucket.Place{LSN: record.LSN(a.GetLsn()), Skip: a.GetSkip()}}
		switch {
		case !set.Has(at.Bucket):
			return nil, fmt.Errorf("bucket %d is ahead, and not one of those that are committed", at.Bucket)
		case i > 0 && at.Bucket <= pos.Ahead[i-1].Bucket:
			return nil, fmt.Errorf("bucket %d follows %d: they are sorted, each at most once", at.Bucket, pos.Ahead[i-1].Bucket)
		case at.LSN < pos.Low:
			return nil, fmt.Errorf("bucket %d is ahead at LSN %d, the others are at %d", at.Bucket, at.LSN, pos.Low)
		case at.Skip > 0 && g.Scheme.Of(shard, at.LSN) != at.Bucket:
			return nil, fmt.Errorf("bucket %d is in the middle of LSN %d, which is in bucket %d", at.Bucket, at.LSN, g.Scheme.Of(shard, at.LSN))
		}
		pos.Ahead = append(pos.Ahead, at)
	}
	return pos, nil
}

// LeaveGroup implements rpc.GroupService.
func (c *Coordinator) LeaveGroup(ctx context.Context, req *scribev1.LeaveGroupRequest) (*scribev1.LeaveGroupResponse, error) {
	what, leave, err := c.enterGroupCall("leave group", req.GetGroup())
	if err != nil {
		return nil, err
	}
	defer leave()
	left := false
	g, err := c.changeGroup(ctx, what, req.GetGroup(), func(g *Group) (bool, error) {
		m := g.Member(req.GetEpoch())
		left = m != nil && m.Name == req.GetMember() && g.RemoveMembers(req.GetEpoch())
		return left, nil
	})
	switch {
	case rpc.ReasonOf(err) == scribev1.Reason_REASON_UNKNOWN_GROUP:
	case err != nil:
		return nil, err
	case left:
		c.metrics.leaves.Inc()
		c.log.Info("group member left", "group", g.Name, "member", req.GetMember(), "epoch", req.GetEpoch(), "members", len(g.Members), "generation", g.Generation)
	}
	return &scribev1.LeaveGroupResponse{}, nil
}
