package group

import (
	"fmt"
	"slices"
	"time"

	"scribe/internal/format/bucket"
)

// Group is the state of a consumer group, but for its positions: a plain state machine. Every method that changes it leaves it
// balanced. It has no clock: [Liveness] says which members expired.
//
// Each bucket has one owner at most. An owner that is to lose a bucket keeps it until it has given it back, or is removed; only then
// does the bucket become its target's. So two members never own a bucket at a time, and the generation in which it became somebody's
// tells a commit of before from one of now.
type Group struct {
	Name       string
	Category   string
	CategoryID uint32
	Scheme     bucket.Scheme
	// Useful is how many buckets can have messages: those from it on are shared out too, but apart, so that each member gets its part of
	// those that count.
	Useful uint32
	// Generation grows with every change of who has what.
	Generation uint64
	// LastEpoch is the newest membership's.
	LastEpoch uint64
	// Positions names the set of positions that counts.
	Positions uint64
	Members   []Member // by epoch
	Buckets   []BucketOwner
	// CreatedAt and PositionedAt are Unix microseconds.
	CreatedAt, PositionedAt int64
	// PointerBytes and Capacity are averages of what members have read: decoded bytes of a pointer, and bytes a second that one member takes
	// when it is busy all the time. 0 = unknown.
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
	// Status is what the member said of itself.
	Status MemberStatus
}

// MemberStatus is what a member says of itself.
type MemberStatus struct {
	// Generation is the one that the member knew. What it says of its buckets is of those that it had then.
	Generation uint64
	// Watermark: it has committed all messages of its buckets persisted before, Unix microseconds; 0 = unknown.
	Watermark int64
	// Rates of the last minute or so.
	BytesPerSecond, MessagesPerSecond, PointersPerKilosecond uint64
	// BusyPermille is the part of its time in which the member had something to do.
	BusyPermille uint32
}

// BucketOwner is who has a bucket. Members are named by their epochs; 0 is nobody.
type BucketOwner struct {
	Owner uint64
	// Granted is the generation in which it became the owner's.
	Granted uint64
	// Target is who shall have it. While it is another one than the owner, the owner is to give it back.
	Target uint64
}

// New returns a group without members.
func New(name, category string, id uint32, scheme bucket.Scheme, useful uint32) *Group {
	return &Group{
		Name: name, Category: category, CategoryID: id, Scheme: scheme,
		Useful: min(useful, scheme.Buckets), Buckets: make([]BucketOwner, scheme.Buckets),
	}
}

// Member returns a membership, nil when there is none of that epoch.
func (g *Group) Member(epoch uint64) *Member {
	i, ok := slices.BinarySearchFunc(g.Members, epoch, func(m Member, e uint64) int {
		switch {
		case m.Epoch < e:
			return -1
		case m.Epoch > e:
			return 1
		default:
			return 0
		}
	})
	if !ok || epoch == 0 {
		return nil
	}
	return &g.Members[i]
}

// Named returns the membership of a name, nil when there is none.
func (g *Group) Named(name string) *Member {
	for i := range g.Members {
		if g.Members[i].Name == name {
			return &g.Members[i]
		}
	}
	return nil
}

// Join makes m a member and returns its epoch. The membership of its name that there was ends, and its buckets become the new one's as
// far as they are its share: a process that was started again goes on where it was.
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

// dropMember takes a membership off the list.
func (g *Group) dropMember(epoch uint64) {
	g.Members = slices.DeleteFunc(g.Members, func(m Member) bool { return m.Epoch == epoch })
}

// RemoveMembers ends memberships: what they own becomes the others'. It reports whether there was one.
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

// Release takes back buckets that a member gives up, those of them that it owns in the generation that it knows. It reports whether
// there were any. A bucket that the member should have kept comes back to it, in a new generation.
func (g *Group) Release(epoch, generation uint64, set bucket.Set) bool {
	if g.Member(epoch) == nil {
		return false
	}
	return g.freeBuckets(func(i uint32, b *BucketOwner) bool {
		return b.Owner == epoch && b.Granted <= generation && set.Has(i)
	})
}

// TakeRevoked takes away the buckets that a member was to give back and did not. What it commits of them from now on is refused.
func (g *Group) TakeRevoked(epoch uint64) bool {
	return g.freeBuckets(func(_ uint32, b *BucketOwner) bool { return b.Owner == epoch && b.Target != epoch })
}

// freeBuckets makes buckets nobody's, and then their targets'.
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

// SetUseful tells how many buckets can have messages.
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

// RegrantAll grants every bucket anew to who has it: positions were changed under their owners, and what these commit of before is refused.
func (g *Group) RegrantAll() {
	g.Generation++
	for i := range g.Buckets {
		if b := &g.Buckets[i]; b.Owner != 0 {
			b.Granted = g.Generation
		}
	}
}

// Assignment is what a member has.
type Assignment struct {
	Generation uint64
	// Grants are its buckets by the generation in which they became its own.
	Grants map[uint64]bucket.Set
	// Revoked are those of them that it is to give back.
	Revoked bucket.Set
	// Pending is how many more it will have once others have given them back.
	Pending int
}

// Assignment returns what a member has.
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

// CheckOwner reports an error, with the first bucket that is not so, unless a member owns buckets since the generation that it names or earlier.
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

// CountRevoking reports whether a member has buckets to give back, and how many.
func (g *Group) CountRevoking(epoch uint64) int {
	n := 0
	for _, b := range g.Buckets {
		if b.Owner == epoch && b.Target != epoch {
			n++
		}
	}
	return n
}
