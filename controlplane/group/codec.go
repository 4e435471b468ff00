package group

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"scribe/internal/format/bucket"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// Keys of the store (docs/format/group.md).
const (
	groupPrefix    = "group/"          // then the name
	positionPrefix = "group-position/" // then the name, '/', which set in hexadecimal, '/', and a chunk or timesKey
	timesKey       = "times"
)

func groupKey(name string) string { return groupPrefix + name }

func positionsPrefix(name string) string { return positionPrefix + name + "/" }

func positionsOf(name string, set uint64) string {
	return fmt.Sprintf("%s%016x/", positionsPrefix(name), set)
}

// chunks is the number of values that a group's positions are spread over, so that a commit writes little and no value grows too
// large.
const chunks = 64

// chunkOf returns the chunk of a shard's position. The numbers are persisted: they are how positions are found.
func chunkOf(shard record.ShardID) uint32 {
	return (uint32(shard.Logical())*31 + uint32(shard.Writer())) % chunks
}

func chunkKey(name string, set uint64, chunk uint32) string {
	return fmt.Sprintf("%s%02x", positionsOf(name, set), chunk)
}

// storedVersion is the version of the stored form. A newer version is refused.
const storedVersion = 1

// Bounds of the stored form beside those of the protocol.
const (
	// maxMembers bounds the members of a group. Members in excess of the buckets get none until another member leaves.
	maxMembers = 1024
	// maxName and maxDescription are limits of texts in bytes.
	maxName        = 255
	maxDescription = 255
)

func damagedError(name, format string, args ...any) error {
	return fmt.Errorf("%w: group %q: %w", kv.ErrCorrupt, name, fmt.Errorf(format, args...))
}

// encodeGroup returns the stored form of a group.
func encodeGroup(g *Group) ([]byte, error) {
	s := &scribev1.StoredGroup{
		Version: storedVersion, Name: g.Name, Category: g.Category, CategoryId: g.CategoryID,
		Sharing: uint32(g.Scheme.Sharing), Buckets: g.Scheme.Buckets, Useful: g.Useful,
		Generation: g.Generation, LastEpoch: g.LastEpoch, Positions: g.Positions,
		CreatedAt: g.CreatedAt, PositionedAt: g.PositionedAt, PointerBytes: g.PointerBytes, MemberCapacity: g.Capacity,
		KnownUntil: g.KnownUntil,
	}
	number := map[uint64]uint32{}
	for i := range g.Members {
		m := &g.Members[i]
		number[m.Epoch] = uint32(i) + 1
		s.Members = append(s.Members, &scribev1.StoredGroupMember{
			Epoch: m.Epoch, Name: m.Name, Description: m.Description,
			TtlUs: m.TTL.Microseconds(), RevokeTimeoutUs: m.RevokeTimeout.Microseconds(), JoinedAt: m.JoinedAt, Beat: m.Beat,
			Generation: m.Status.Generation, Watermark: m.Status.Watermark, BytesPerSecond: m.Status.BytesPerSecond,
			MessagesPerSecond: m.Status.MessagesPerSecond, PointersPerKilosecond: m.Status.PointersPerKilosecond, BusyPermille: m.Status.BusyPermille,
		})
	}
	if len(g.Members) > 0 {
		for _, b := range g.Buckets {
			s.Owners = append(s.Owners, number[b.Owner])
			s.Targets = append(s.Targets, number[b.Target])
			s.Granted = append(s.Granted, g.Generation-b.Granted)
		}
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(s)
}

// decodeGroup decodes a stored group.
func decodeGroup(name string, value []byte) (*Group, error) {
	s := new(scribev1.StoredGroup)
	if err := proto.Unmarshal(value, s); err != nil {
		return nil, damagedError(name, "%w", err)
	}
	scheme := bucket.Scheme{Sharing: bucket.Sharing(min(s.GetSharing(), math.MaxUint8)), Buckets: s.GetBuckets()}
	switch err := scheme.Validate(); {
	case s.GetVersion() != storedVersion:
		return nil, damagedError(name, "version %d, this program knows version %d", s.GetVersion(), storedVersion)
	case err != nil:
		return nil, damagedError(name, "%w", err)
	case s.GetName() != name || record.ValidateCategory(name) != nil || record.ValidateCategory(s.GetCategory()) != nil || s.GetCategoryId() == 0:
		return nil, damagedError(name, "group %q of category %q with id %d", s.GetName(), s.GetCategory(), s.GetCategoryId())
	case s.GetUseful() > s.GetBuckets() || len(s.GetMembers()) > maxMembers:
		return nil, damagedError(name, "%d useful buckets of %d, %d members", s.GetUseful(), s.GetBuckets(), len(s.GetMembers()))
	}
	g := New(name, s.GetCategory(), s.GetCategoryId(), scheme, s.GetUseful())
	g.Generation, g.LastEpoch, g.Positions = s.GetGeneration(), s.GetLastEpoch(), s.GetPositions()
	g.CreatedAt, g.PositionedAt, g.PointerBytes, g.Capacity = s.GetCreatedAt(), s.GetPositionedAt(), s.GetPointerBytes(), s.GetMemberCapacity()
	g.KnownUntil = s.GetKnownUntil()
	if err := g.decodeMembers(s.GetMembers()); err != nil {
		return nil, damagedError(name, "%w", err)
	}
	if err := g.decodeBuckets(s); err != nil {
		return nil, damagedError(name, "%w", err)
	}
	return g, nil
}

func (g *Group) decodeMembers(members []*scribev1.StoredGroupMember) error {
	for i, m := range members {
		ttl, revoke := time.Duration(m.GetTtlUs())*time.Microsecond, time.Duration(m.GetRevokeTimeoutUs())*time.Microsecond
		switch {
		case m.GetEpoch() == 0 || m.GetEpoch() > g.LastEpoch || i > 0 && m.GetEpoch() <= members[i-1].GetEpoch():
			return fmt.Errorf("member %d has epoch %d", i, m.GetEpoch())
		case m.GetName() == "" || len(m.GetName()) > maxName || g.Named(m.GetName()) != nil:
			return fmt.Errorf("member %d has the name %.300q", i, m.GetName())
		case m.GetTtlUs() < minTTL.Microseconds() || m.GetTtlUs() > maxTTL.Microseconds() ||
			m.GetRevokeTimeoutUs() < minRevoke.Microseconds() || m.GetRevokeTimeoutUs() > maxRevoke.Microseconds():
			return fmt.Errorf("member %d has a TTL of %v and %v to give back buckets", i, ttl, revoke)
		}
		g.Members = append(g.Members, Member{
			Epoch: m.GetEpoch(), Name: m.GetName(), Description: m.GetDescription(), TTL: ttl, RevokeTimeout: revoke, JoinedAt: m.GetJoinedAt(), Beat: m.GetBeat(),
			Status: MemberStatus{
				Generation: m.GetGeneration(), Watermark: m.GetWatermark(), BytesPerSecond: m.GetBytesPerSecond(),
				MessagesPerSecond: m.GetMessagesPerSecond(), PointersPerKilosecond: m.GetPointersPerKilosecond(), BusyPermille: m.GetBusyPermille(),
			},
		})
	}
	return nil
}

func (g *Group) decodeBuckets(s *scribev1.StoredGroup) error {
	owners, targets, granted := s.GetOwners(), s.GetTargets(), s.GetGranted()
	if len(g.Members) == 0 {
		if len(owners)+len(targets)+len(granted) > 0 {
			return errors.New("buckets have owners, and there are no members")
		}
		return nil
	}
	n := len(g.Buckets)
	if len(owners) != n || len(targets) != n || len(granted) != n {
		return fmt.Errorf("%d owners, %d targets and %d grants of %d buckets", len(owners), len(targets), len(granted), n)
	}
	epoch := func(number uint32) uint64 { return g.Members[number-1].Epoch }
	for i := range g.Buckets {
		// Every method of Group leaves each bucket with an owner and a target as long as there are members.
		if most := uint32(len(g.Members)); owners[i] == 0 || owners[i] > most || targets[i] == 0 || targets[i] > most || granted[i] > g.Generation {
			return fmt.Errorf("bucket %d is owned by %d, to be by %d, since %d generations", i, owners[i], targets[i], granted[i])
		}
		g.Buckets[i] = BucketOwner{Owner: epoch(owners[i]), Target: epoch(targets[i]), Granted: g.Generation - granted[i]}
	}
	return nil
}

// positionMap has the positions of one chunk, or of a whole group, by shard.
type positionMap map[record.ShardID]bucket.Position

// encodePositions returns the stored form of positions.
func encodePositions(p positionMap) ([]byte, error) {
	s := &scribev1.StoredGroupPositions{Version: storedVersion}
	last, skips := uint32(0), false
	for _, shard := range p.sortedShards() {
		at := p[shard]
		local := uint32(shard)
		s.Shards = append(s.Shards, local-last)
		last = local
		s.Low = append(s.Low, uint64(at.Low))
		s.Ahead = append(s.Ahead, uint32(len(at.Ahead)))
		before := uint32(0)
		for _, a := range at.Ahead {
			s.Buckets = append(s.Buckets, a.Bucket-before)
			before = a.Bucket
			s.Lsns = append(s.Lsns, uint64(a.LSN-at.Low))
			s.Skips = append(s.Skips, a.Skip)
			skips = skips || a.Skip > 0
		}
	}
	if !skips {
		s.Skips = nil
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(s)
}

func (p positionMap) sortedShards() []record.ShardID { return slices.Sorted(maps.Keys(p)) }

// decodePositions decodes stored positions of a group into p.
func decodePositions(g *Group, value []byte, p positionMap) error {
	s := new(scribev1.StoredGroupPositions)
	if err := proto.Unmarshal(value, s); err != nil {
		return damagedError(g.Name, "positions: %w", err)
	}
	low, ahead, buckets, lsns, skips := s.GetLow(), s.GetAhead(), s.GetBuckets(), s.GetLsns(), s.GetSkips()
	switch {
	case s.GetVersion() != storedVersion:
		return damagedError(g.Name, "positions of version %d, this program knows version %d", s.GetVersion(), storedVersion)
	case len(low) != len(s.GetShards()) || len(ahead) != len(low) || len(lsns) != len(buckets) || len(skips) != 0 && len(skips) != len(lsns):
		return damagedError(g.Name, "positions: columns of different lengths")
	}
	local, at := uint64(0), 0
	for i, d := range s.GetShards() {
		if local += uint64(d); local > math.MaxUint32 || i > 0 && d == 0 || low[i] < uint64(record.FirstLSN) {
			return damagedError(g.Name, "positions: shard %d at LSN %d", local, low[i])
		}
		n := int(ahead[i])
		if n > len(buckets)-at || n > len(g.Buckets) {
			return damagedError(g.Name, "positions: %d buckets ahead in one shard", n)
		}
		pos := bucket.Position{Low: record.LSN(low[i])}
		if n > 0 {
			pos.Ahead = make([]bucket.Ahead, n)
		}
		b := uint64(0)
		for j := range pos.Ahead {
			if b += uint64(buckets[at]); b >= uint64(len(g.Buckets)) || j > 0 && buckets[at] == 0 || lsns[at] > math.MaxUint64-low[i] {
				return damagedError(g.Name, "positions: bucket %d is %d ahead of LSN %d", b, lsns[at], low[i])
			}
			pos.Ahead[j] = bucket.Ahead{Bucket: uint32(b), Place: bucket.Place{LSN: record.LSN(low[i] + lsns[at])}}
			if len(skips) > 0 {
				pos.Ahead[j].Skip = skips[at]
			}
			at++
		}
		p[record.MakeShardID(g.CategoryID, uint16(local>>16), uint16(local))] = pos
	}
	if at != len(buckets) {
		return damagedError(g.Name, "positions: %d buckets ahead belong to no shard", len(buckets)-at)
	}
	return nil
}

func encodeTimes(times []int64) ([]byte, error) {
	s := &scribev1.StoredGroupTimes{Version: storedVersion, Times: make([]int64, len(times))}
	last := int64(0)
	for i, t := range times {
		s.Times[i] = t - last
		last = t
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(s)
}

// decodeTimes decodes a time for each bucket of a group.
func decodeTimes(g *Group, value []byte) ([]int64, error) {
	s := new(scribev1.StoredGroupTimes)
	if err := proto.Unmarshal(value, s); err != nil {
		return nil, damagedError(g.Name, "times: %w", err)
	}
	if s.GetVersion() != storedVersion || len(s.GetTimes()) != len(g.Buckets) {
		return nil, damagedError(g.Name, "%d times of %d buckets, version %d", len(s.GetTimes()), len(g.Buckets), s.GetVersion())
	}
	out := make([]int64, len(s.GetTimes()))
	last := int64(0)
	for i, d := range s.GetTimes() {
		last += d
		if last < 0 {
			return nil, damagedError(g.Name, "bucket %d has come to %d", i, last)
		}
		out[i] = last
	}
	return out, nil
}
