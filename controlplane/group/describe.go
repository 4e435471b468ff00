package group

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/bucket"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// DescribeGroup implements rpc.GroupService. If the metadata engine does not answer, the response lacks only the lag.
func (c *Coordinator) DescribeGroup(ctx context.Context, req *scribev1.DescribeGroupRequest) (*scribev1.DescribeGroupResponse, error) {
	what, leave, err := c.enterGroupCall("describe group", req.GetGroup())
	if err != nil {
		return nil, err
	}
	defer leave()
	g, _, err := c.loadGroup(ctx, what, req.GetGroup())
	if err != nil {
		return nil, err
	}
	all, times, err := c.readPositions(ctx, what, g)
	if err != nil {
		return nil, err
	}
	r := &groupReport{g: g, times: times, now: c.deps.Now().UnixMicro(), left: make([]uint64, len(g.Buckets)), most: int(max(g.Useful, 1))}
	if err := c.measureLag(ctx, what, r, all); err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		r.incomplete = err.Error()
	}
	return r.toResponse(req.GetBrief()), nil
}

// measureLag measures a group's lag and the traffic of its category.
func (c *Coordinator) measureLag(ctx context.Context, what string, r *groupReport, all positionMap) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.LogTimeout)
	defer cancel()
	res, err := c.deps.Control.GetCategory(ctx, &scribev1.GetCategoryRequest{Name: r.g.Category})
	if err != nil {
		return err
	}
	states, err := c.listLogs(ctx, what, r.g.CategoryID, res.GetCategory().IsSequenced())
	if err != nil {
		return err
	}
	if res.GetCategory().IsSequenced() && r.g.Scheme.Sharing == bucket.Shards {
		r.most = 1 // it has one log
	}
	r.countWaiting(states, all)
	recent := positionMap{}
	window := c.cfg.TrafficWindow
	if err := c.seekTime(ctx, what, states, c.deps.Now().Add(-window).UnixMicro(), recent); err != nil {
		return err
	}
	written := uint64(0)
	for _, v := range states {
		if from := recent[v.Shard].Low; from < v.NextLSN {
			written += uint64(v.NextLSN - from)
		}
	}
	r.traffic = written * 1000 / uint64(window/time.Second)
	return nil
}

// groupReport computes the description of a group, without I/O.
type groupReport struct {
	g          *Group
	times      []int64
	now        int64
	left       []uint64 // pending pointers, by bucket
	shards     []*scribev1.GroupShard
	traffic    uint64 // pointers in 1000 s
	measured   bool
	incomplete string
	most       int // members that can have something to do
}

// countWaiting compares positions with the tails of shards.
func (r *groupReport) countWaiting(states []metalog.State, all positionMap) {
	slices.SortFunc(states, func(a, b metalog.State) int { return cmp.Compare(a.Shard, b.Shard) })
	var scratch bucket.Places
	for _, v := range states {
		p := all[v.Shard]
		scratch = r.g.Scheme.Expand(&p, scratch)
		sum := uint64(0)
		for b, at := range scratch {
			// Trimmed records are not pending any more.
			n := r.g.Scheme.Count(v.Shard, uint32(b), max(at.LSN, v.FirstLSN), v.NextLSN)
			r.left[b] += n
			sum += n
		}
		r.shards = append(r.shards, &scribev1.GroupShard{
			Shard: uint64(v.Shard), Low: uint64(max(p.Low, record.FirstLSN)), NextLsn: uint64(v.NextLSN), Lag: r.lagOf(sum, 0),
		})
	}
	r.measured = true
}

// lagOf returns the lag of a number of pointers, the oldest of which was persisted at or after since; 0 = unknown.
func (r *groupReport) lagOf(pointers uint64, since int64) *scribev1.GroupLag {
	l := &scribev1.GroupLag{Pointers: pointers, Bytes: pointers * r.g.PointerBytes}
	if pointers > 0 && since > 0 {
		l.Time = durationpb.New(time.Duration(max(r.now-since, 0)) * time.Microsecond)
	}
	return l
}

func (r *groupReport) toResponse(brief bool) *scribev1.DescribeGroupResponse {
	g := r.g
	res := &scribev1.DescribeGroupResponse{
		Group: wireGroup(g), Incomplete: r.incomplete,
		TrafficPointersPerKilosecond: r.traffic, TrafficBytesPerSecond: r.traffic * g.PointerBytes / 1000,
	}
	byEpoch := map[uint64]*scribev1.GroupMember{}
	for i := range g.Members {
		m := &g.Members[i]
		w := &scribev1.GroupMember{
			Member: m.Name, Epoch: m.Epoch, Description: m.Description, JoinedAt: m.JoinedAt, Ttl: durationpb.New(m.TTL),
			Status: &scribev1.GroupMemberStatus{
				Watermark: m.Status.Watermark, BytesPerSecond: m.Status.BytesPerSecond, MessagesPerSecond: m.Status.MessagesPerSecond,
				PointersPerKilosecond: m.Status.PointersPerKilosecond, BusyPermille: m.Status.BusyPermille,
			},
		}
		byEpoch[m.Epoch] = w
		res.Members = append(res.Members, w)
	}
	slices.SortFunc(res.GetMembers(), func(a, b *scribev1.GroupMember) int { return strings.Compare(a.GetMember(), b.GetMember()) })
	sums := map[uint64]*lagSum{}
	var total lagSum
	for i, b := range g.Buckets {
		at := g.timeOf(i, r.times)
		s := sums[b.Owner]
		if s == nil {
			s = &lagSum{}
			sums[b.Owner] = s
		}
		s.addLag(r.left[i], at)
		total.addLag(r.left[i], at)
		owner, target := byEpoch[b.Owner], byEpoch[b.Target]
		if owner != nil {
			owner.Buckets++
		}
		w := &scribev1.GroupBucket{Bucket: uint32(i), Member: owner.GetMember(), Generation: b.Granted, Lag: r.lagOf(r.left[i], at)}
		if b.Owner != b.Target {
			w.Next = target.GetMember()
			owner.Revoked++
			target.Pending++
		}
		if !brief {
			res.Buckets = append(res.Buckets, w)
		}
	}
	for epoch, m := range byEpoch {
		if s := sums[epoch]; s != nil {
			m.Lag = r.lagOf(s.pointers, s.since)
		}
	}
	res.Lag = r.lagOf(total.pointers, total.since)
	if !brief {
		res.Shards = r.shards
	}
	if r.measured {
		need := groupSizing{
			members: len(g.Members), capacity: g.Capacity, traffic: res.GetTrafficBytesPerSecond(), lag: res.GetLag().GetBytes(), most: r.most,
		}
		n, why := need.recommendMembers()
		res.RecommendedMembers, res.Recommendation = uint32(n), why
	} else {
		res.Recommendation = "traffic and lag are unknown: the metadata engine is unavailable"
	}
	return res
}

// lagSum is a number of pending pointers, and the time of the oldest.
type lagSum struct {
	pointers uint64
	since    int64
}

func (s *lagSum) addLag(pointers uint64, since int64) {
	if pointers == 0 {
		return
	}
	if s.pointers == 0 || since < s.since {
		s.since = since
	}
	s.pointers += pointers
}
