package consumer_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/bucket"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// groupCell is a coordinator in memory, of one group: it gives each member every n-th bucket, asks buckets back before it grants them to
// others, and refuses commits of those who do not own them.
type groupCell struct {
	scheme bucket.Scheme

	mu         sync.Mutex
	down       error  // of every call
	cut        string // whose calls do not arrive
	generation uint64
	epochs     uint64
	members    []*fakeMember
	owner      map[uint32]*fakeMember
	granted    map[uint32]uint64
	target     map[uint32]*fakeMember
	places     map[record.ShardID]bucket.Places
	commits    int
	refused    int
	joins      []*scribev1.JoinGroupRequest
}

type fakeMember struct {
	name  string
	epoch uint64
}

const fakeTTL = 10 * time.Second

func newGroupCell(sharing bucket.Sharing) *groupCell {
	return &groupCell{
		scheme: bucket.Scheme{Sharing: sharing, Buckets: 16}, owner: map[uint32]*fakeMember{}, granted: map[uint32]uint64{}, target: map[uint32]*fakeMember{},
		places: map[record.ShardID]bucket.Places{},
	}
}

func (g *groupCell) set(down error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.down = down
}

// balance is called with the mutex.
func (g *groupCell) balance() {
	g.generation++
	for b := range g.scheme.Buckets {
		if len(g.members) == 0 {
			g.owner[b], g.target[b] = nil, nil
			continue
		}
		g.target[b] = g.members[int(b)%len(g.members)]
		if !slices.Contains(g.members, g.owner[b]) {
			g.owner[b] = nil
		}
		if g.owner[b] == nil {
			g.owner[b], g.granted[b] = g.target[b], g.generation
		}
	}
}

func (g *groupCell) member(name string, epoch uint64) *fakeMember {
	for _, m := range g.members {
		if m.name == name && m.epoch == epoch {
			return m
		}
	}
	return nil
}

// expel ends a membership.
func (g *groupCell) expel(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.members = slices.DeleteFunc(g.members, func(m *fakeMember) bool { return m.name == name })
	g.balance()
}

// reset puts the group back to the beginning, under its members.
func (g *groupCell) reset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.places)
	g.generation++
	for b := range g.scheme.Buckets {
		g.granted[b] = g.generation
	}
}

// cutOff keeps a member's calls from arriving, or lets them.
func (g *groupCell) cutOff(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cut = name
}

func (g *groupCell) assignment(m *fakeMember) *scribev1.GroupAssignment {
	a := &scribev1.GroupAssignment{Generation: g.generation, Revoked: bucket.NewSet(g.scheme.Buckets)}
	for b := range g.scheme.Buckets {
		switch {
		case g.owner[b] == m:
			set := bucket.NewSet(g.scheme.Buckets)
			set.Add(b)
			a.Grants = append(a.Grants, &scribev1.GroupGrant{Generation: g.granted[b], Buckets: set})
			if g.target[b] != m {
				bucket.Set(a.GetRevoked()).Add(b)
			}
		case g.target[b] == m:
			a.Pending++
		}
	}
	return a
}

func (g *groupCell) JoinGroup(_ context.Context, req *scribev1.JoinGroupRequest) (*scribev1.JoinGroupResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.down != nil {
		return nil, g.down
	}
	g.joins = append(g.joins, req)
	g.epochs++
	m := &fakeMember{req.GetMember(), g.epochs}
	g.members = append(slices.DeleteFunc(g.members, func(m *fakeMember) bool { return m.name == req.GetMember() }), m)
	g.balance()
	return &scribev1.JoinGroupResponse{
		Epoch: m.epoch, Sharing: scribev1.GroupSharing(g.scheme.Sharing), Buckets: g.scheme.Buckets, CategoryId: categoryID,
		Ttl: durationpb.New(fakeTTL), Lease: durationpb.New(fakeTTL * 3 / 4), Assignment: g.assignment(m),
	}, nil
}

func (g *groupCell) ask(name string, epoch uint64) (*fakeMember, error) {
	switch m := g.member(name, epoch); {
	case g.down != nil:
		return nil, g.down
	case g.cut == name:
		return nil, rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, 0, "cut off")
	case m != nil:
		return m, nil
	}
	return nil, rpc.Errorf(scribev1.Reason_REASON_LEASE_EXPIRED, "join again")
}

func (g *groupCell) HeartbeatGroup(_ context.Context, req *scribev1.HeartbeatGroupRequest) (*scribev1.HeartbeatGroupResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m, err := g.ask(req.GetMember(), req.GetEpoch())
	if err != nil {
		return nil, err
	}
	freed := false
	for b := range bucket.Set(req.GetReleased()).Each() {
		if g.owner[b] == m && g.granted[b] <= req.GetGeneration() {
			g.owner[b], freed = nil, true
		}
	}
	if freed {
		g.balance()
	}
	return &scribev1.HeartbeatGroupResponse{Assignment: g.assignment(m)}, nil
}

func (g *groupCell) owns(m *fakeMember, generation uint64, set bucket.Set) error {
	for b := range set.Each() {
		if g.owner[b] != m || g.granted[b] > generation {
			g.refused++
			return rpc.Errorf(scribev1.Reason_REASON_STALE_GENERATION, "bucket %d is another's", b)
		}
	}
	return nil
}

func (g *groupCell) GroupPositions(_ context.Context, req *scribev1.GroupPositionsRequest) (*scribev1.GroupPositionsResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m, err := g.ask(req.GetMember(), req.GetEpoch())
	if err == nil {
		err = g.owns(m, req.GetGeneration(), req.GetBuckets())
	}
	if err != nil {
		return nil, err
	}
	res := &scribev1.GroupPositionsResponse{}
	for shard, places := range g.places {
		p := g.scheme.Compact(shard, places, req.GetBuckets())
		out := &scribev1.GroupShardPosition{Shard: uint64(shard), Low: uint64(p.Low)}
		for _, a := range p.Ahead {
			out.Ahead = append(out.Ahead, &scribev1.GroupBucketPosition{Bucket: a.Bucket, Lsn: uint64(a.LSN), Skip: a.Skip})
		}
		res.Positions = append(res.Positions, out)
	}
	return res, nil
}

func (g *groupCell) CommitGroup(_ context.Context, req *scribev1.CommitGroupRequest) (*scribev1.CommitGroupResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m, err := g.ask(req.GetMember(), req.GetEpoch())
	if err == nil {
		err = g.owns(m, req.GetGeneration(), req.GetBuckets())
	}
	if err != nil {
		return nil, err
	}
	g.commits++
	for _, p := range req.GetPositions() {
		shard := record.ShardID(p.GetShard())
		if g.places[shard] == nil {
			g.places[shard] = g.scheme.Expand(&bucket.Position{}, nil)
		}
		pos := bucket.Position{Low: record.LSN(p.GetLow())}
		for _, a := range p.GetAhead() {
			pos.Ahead = append(pos.Ahead, bucket.Ahead{Bucket: a.GetBucket(), Place: bucket.Place{LSN: record.LSN(a.GetLsn()), Skip: a.GetSkip()}})
		}
		for b := range bucket.Set(req.GetBuckets()).Each() {
			if at := pos.At(b); g.places[shard][b].Before(at) {
				g.places[shard][b] = at
			}
		}
	}
	return &scribev1.CommitGroupResponse{}, nil
}

func (g *groupCell) LeaveGroup(_ context.Context, req *scribev1.LeaveGroupRequest) (*scribev1.LeaveGroupResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.down != nil {
		return nil, g.down
	}
	if m := g.member(req.GetMember(), req.GetEpoch()); m != nil {
		g.members = slices.DeleteFunc(g.members, func(o *fakeMember) bool { return o == m })
		g.balance()
	}
	return &scribev1.LeaveGroupResponse{}, nil
}

// left is how many pointers of a shard are not committed, of those that there are.
func (g *groupCell) left(t testing.TB, shard record.ShardID, tail record.LSN) (n uint64) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	places := g.places[shard]
	for b := range g.scheme.Buckets {
		at := bucket.Place{LSN: 1}
		if places != nil {
			at = places[b]
		}
		n += g.scheme.Count(shard, b, at.LSN, tail)
	}
	return n
}
