package group

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"scribe/internal/format/bucket"
)

// Group is the state of a consumer group without its positions: a plain state machine. Every method that changes it leaves it
// balanced. It has no clock: [Liveness] finds the members that expired.
//
// Each bucket has at most one owner. The owner of a revoked bucket keeps it until it releases it or is removed; only then does
// the bucket go to its target. So two members never own a bucket at a time, and the generation in which a bucket was granted
// tells commits of an earlier ownership from those of the current one.
type Group struct {
	Name       string
	Category   string
	CategoryID uint32
	Scheme     bucket.Scheme
	// Useful is the number of buckets that can have messages. The buckets from Useful on are shared out separately, so that each
	// member gets its part of the useful ones.
	Useful uint32
	// Generation grows with every change of the assignment.
	Generation uint64
	// LastEpoch is the epoch of the newest membership.
	LastEpoch uint64
	// Positions is the number of the current set of positions.
	Positions uint64
	Members   []Member // by epoch
	Buckets   []BucketOwner
	// CreatedAt and PositionedAt are Unix microseconds.
	CreatedAt, PositionedAt int64
	// KnownUntil is the engine's time at which positions were set, Unix microseconds, 0 = unknown: of shards that had no position then nothing
	// persisted before is owed to the group.
	KnownUntil int64
	// PointerBytes and Capacity are averages over what members have read: decoded bytes of a pointer, and the bytes a second of
	// one member that is busy all the time. 0 = unknown.
	PointerBytes, Capacity uint64
}

// Member is a membership.
type Member struct {
	Epoch         uint64
	Name          string
	Description   string
	TTL           time.Duration
	RevokeTimeout time.Duration
	JoinedAt      int64 // Unix microseconds
	// Beat grows as long as the member lives.
	Beat uint64
	// Status is the member's latest report.
	Status MemberStatus
}

// MemberStatus is a member's report about itself.
type MemberStatus struct {
	// Generation is the newest one that the member knew. The report is about its buckets in that generation.
	Generation uint64
	// Watermark is the persisted time below which the member has committed all messages of its buckets, Unix microseconds; 0 =
	// unknown.
	Watermark int64
	// Rates over about the last minute.
	BytesPerSecond, MessagesPerSecond, PointersPerKilosecond uint64
	// BusyPermille is the part of its time in which the member was busy.
	BusyPermille uint32
}

// BucketOwner is the assignment of a bucket. Members are named by their epochs; 0 is nobody.
type BucketOwner struct {
	Owner uint64
	// Granted is the generation in which the owner got the bucket.
	Granted uint64
	// Target is the member that the bucket is assigned to. If it differs from the owner, the owner has to release the bucket.
	Target uint64
}

// New returns a group without members.
func New(name, category string, id uint32, scheme bucket.Scheme, useful uint32) *Group {
	return &Group{
		Name: name, Category: category, CategoryID: id, Scheme: scheme,
		Useful: min(useful, scheme.Buckets), Buckets: make([]BucketOwner, scheme.Buckets),
	}
}

// Member returns the membership with an epoch, or nil if there is none.
func (g *Group) Member(epoch uint64) *Member {
	i, ok := slices.BinarySearchFunc(g.Members, epoch, func(m Member, e uint64) int { return cmp.Compare(m.Epoch, e) })
	if !ok || epoch == 0 {
		return nil
	}
	return &g.Members[i]
}

// Named returns the membership of a name, or nil if there is none.
func (g *Group) Named(name string) *Member {
	i := slices.IndexFunc(g.Members, func(m Member) bool { return m.Name == name })
	if i < 0 {
		return nil
	}
	return &g.Members[i]
}

// Join makes m a member and returns its epoch. An earlier membership of the same name ends, and the new one gets its buckets as
// far as its share allows: a restarted process continues with the buckets it had.
func (g *Group) Join(m Member) uint64 {
	g.LastEpoch++
	m.Epoch = g.LastEpoch
	before := g.Named(m.Name)
	g.Generation++
	if before != nil {
		old := before.Epoch
		g.dropMember(old)
		for i := range g.Buckets {
			b := &g.Buckets[i]
			if b.Owner == old {
				b.Owner, b.Granted = m.Epoch, g.Generation
			}
			if b.Target == old {
				b.Target = m.Epoch
			}
		}
	}
	g.Members = append(g.Members, m)
	g.balance()
	return m.Epoch
}

// dropMember removes a membership from the list.
func (g *Group) dropMember(epoch uint64) {
	g.Members = slices.DeleteFunc(g.Members, func(m Member) bool { return m.Epoch == epoch })
}

// RemoveMembers ends memberships and reassigns their buckets. It reports whether any of them existed.
func (g *Group) RemoveMembers(epochs ...uint64) bool {
	n := len(g.Members)
	for _, e := range epochs {
		g.dropMember(e)
	}
	if len(g.Members) == n {
		return false
	}
	g.Generation++
	g.balance()
	return true
}

// Release takes back buckets from a member: those in set that it owns since generation or earlier. It reports whether there were
// any. A bucket whose target is the member is granted to it again, in a new generation.
func (g *Group) Release(epoch, generation uint64, set bucket.Set) bool {
	if g.Member(epoch) == nil {
		return false
	}
	return g.freeBuckets(func(i uint32, b *BucketOwner) bool {
		return b.Owner == epoch && b.Granted <= generation && set.Has(i)
	})
}

// TakeRevoked takes away the revoked buckets that a member did not release. From now on its commits to them are refused.
func (g *Group) TakeRevoked(epoch uint64) bool {
	return g.freeBuckets(func(_ uint32, b *BucketOwner) bool { return b.Owner == epoch && b.Target != epoch })
}

// freeBuckets ends the ownership of buckets; they then go to their targets.
func (g *Group) freeBuckets(which func(uint32, *BucketOwner) bool) bool {
	found := false
	for i := range g.Buckets {
		if b := &g.Buckets[i]; b.Owner != 0 && which(uint32(i), b) {
			b.Owner, b.Granted, found = 0, 0, true
		}
	}
	if found {
		g.Generation++
		g.balance()
	}
	return found
}

// SetUseful sets the number of buckets that can have messages.
func (g *Group) SetUseful(useful uint32) bool {
	useful = min(useful, g.Scheme.Buckets)
	if g.Useful == useful {
		return false
	}
	g.Useful = useful
	g.Generation++
	g.balance()
	return true
}

// RegrantAll grants every bucket to its owner anew: their positions were changed, so commits from before must be refused.
func (g *Group) RegrantAll() {
	g.Generation++
	for i := range g.Buckets {
		if b := &g.Buckets[i]; b.Owner != 0 {
			b.Granted = g.Generation
		}
	}
}

// Assignment is the buckets of a member.
type Assignment struct {
	Generation uint64
	// Grants are its buckets by the generation in which they were granted.
	Grants map[uint64]bucket.Set
	// Revoked are the buckets among them that it has to release.
	Revoked bucket.Set
	// Pending is how many more buckets it gets once others have released them.
	Pending int
}

// Assignment returns the buckets of a member.
func (g *Group) Assignment(epoch uint64) Assignment {
	a := Assignment{Generation: g.Generation, Grants: map[uint64]bucket.Set{}, Revoked: bucket.NewSet(g.Scheme.Buckets)}
	for i, b := range g.Buckets {
		switch {
		case b.Owner == epoch:
			set := a.Grants[b.Granted]
			if set == nil {
				set = bucket.NewSet(g.Scheme.Buckets)
				a.Grants[b.Granted] = set
			}
			set.Add(uint32(i))
			if b.Target != epoch {
				a.Revoked.Add(uint32(i))
			}
		case b.Target == epoch:
			a.Pending++
		}
	}
	return a
}

// CheckOwner returns an error, which names the first offending bucket, unless a member owns all buckets of set since generation
// or earlier.
func (g *Group) CheckOwner(epoch, generation uint64, set bucket.Set) error {
	for i := range set.Each() {
		switch b := g.Buckets[i]; {
		case b.Owner != epoch:
			return fmt.Errorf("bucket %d belongs to another member", i)
		case b.Granted > generation:
			return fmt.Errorf("bucket %d was granted in generation %d, after generation %d, which the member knows", i, b.Granted, generation)
		}
	}
	return nil
}

// CountRevoking returns how many buckets a member has to release.
func (g *Group) CountRevoking(epoch uint64) int {
	n := 0
	for _, b := range g.Buckets {
		if b.Owner == epoch && b.Target != epoch {
			n++
		}
	}
	return n
}
