package controlplane

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"scribe/internal/base/balance"
	scribev1 "scribe/proto/scribe/v1"
)

// memberRegistry is the membership as a plain state machine: its methods take requests and the time, and return the results.
// Times are only compared with each other, so any clock that does not go back will do.
type memberRegistry struct {
	slots  *slotTable
	leases map[string]*memberLease
}

// memberLease is the lease of a live member.
type memberLease struct {
	member *scribev1.Member
	// announced is the member as watches were last woken for.
	announced *scribev1.Member
	ttl       time.Duration
	deadline  time.Time
	// restored says that the lease is known from the control store alone: its holder has not spoken since. A store that was set back may name a
	// start of the program that is long gone.
	restored bool
}

func newRegistry(maxSlot uint32) *memberRegistry {
	return &memberRegistry{slots: newSlots(maxSlot), leases: make(map[string]*memberLease)}
}

// restoreMember restores a stored member: one whose lease may still be live, or one whose lease had expired and whose slot others
// may get from usable on.
func (r *memberRegistry) restoreMember(m *scribev1.Member, ttl time.Duration, now, usable time.Time) {
	if _, ok := r.slots.byID[m.GetId()]; ok {
		return // an id has one slot
	}
	r.slots.assignSlot(m.GetSlot(), m.GetId())
	if !usable.IsZero() {
		r.slots.expireSlot(m.GetId(), usable)
		return
	}
	r.leases[m.GetId()] = &memberLease{member: m, ttl: ttl, deadline: now.Add(ttl), restored: true}
}

// reserveSlot gives an id a slot before its lease begins, so that the slot can be stored first. If there is none it returns 0,
// and the time when one may become free.
func (r *memberRegistry) reserveSlot(id string, now time.Time) (slot uint32, free time.Time) {
	slot, free = r.slots.takeSlot(id, now)
	if slot == 0 {
		for _, l := range r.leases {
			if t := l.deadline.Add(l.ttl); free.IsZero() || t.Before(free) {
				free = t
			}
		}
	}
	return slot, free
}

// abandonSlot ends a reservation with an unknown outcome: it may be stored, so the slot is kept for the id for as long as the
// lease would have been.
func (r *memberRegistry) abandonSlot(id string, ttl time.Duration, now time.Time) {
	if r.leases[id] == nil {
		r.slots.expireSlot(id, now.Add(2*ttl))
	}
}

// beginLease begins or replaces the lease of a member that has a slot.
func (r *memberRegistry) beginLease(m *scribev1.Member, ttl time.Duration, now time.Time) {
	r.slots.takeSlot(m.GetId(), now) // an earlier lease may have expired since the slot was reserved
	r.leases[m.GetId()] = &memberLease{member: m, ttl: ttl, deadline: now.Add(ttl)}
}

// loadChange is what a heartbeat changed of a member's loads.
type loadChange int

const (
	sameLoad loadChange = iota
	// slightChange: by no more than noise since the loads were announced. It goes with the next list that is sent anyway.
	slightChange
	// clearChange has to be announced.
	clearChange
)

// renewLease renews a lease with the loads in a heartbeat. ok is false if there is none.
func (r *memberRegistry) renewLease(req *scribev1.HeartbeatRequest, now time.Time) (change loadChange, ok bool) {
	l := r.leases[req.GetId()]
	if l == nil || !now.Before(l.deadline) {
		return sameLoad, false
	}
	l.deadline, l.restored = now.Add(l.ttl), false
	if l.member.GetLoad() == req.GetLoad() && slices.EqualFunc(l.member.GetLoads(), req.GetLoads(), equalLoads) {
		return sameLoad, true
	}
	m := proto.CloneOf(l.member) // lists that were handed out share the old message
	m.Load, m.Loads = req.GetLoad(), req.GetLoads()
	l.member = m
	if l.announced == nil || loadsDiffer(l.announced, m) {
		return clearChange, true
	}
	return slightChange, true
}

func equalLoads(a, b *scribev1.RoleLoad) bool {
	return a.GetRole() == b.GetRole() && a.GetLoad() == b.GetLoad()
}

// loadsDiffer reports whether any load of a member differs from the announced one by more than noise.
func loadsDiffer(announced, m *scribev1.Member) bool {
	if balance.Differs(announced.GetLoad(), m.GetLoad()) || len(announced.GetLoads()) != len(m.GetLoads()) {
		return true
	}
	for i, l := range m.GetLoads() {
		if before := announced.GetLoads()[i]; before.GetRole() != l.GetRole() || balance.Differs(before.GetLoad(), l.GetLoad()) {
			return true
		}
	}
	return false
}

// markAnnounced notes that the present loads are announced.
func (r *memberRegistry) markAnnounced() {
	for _, l := range r.leases {
		l.announced = l.member
	}
}

// extendLeases lets every lease last for one TTL at least.
func (r *memberRegistry) extendLeases(now time.Time) {
	for _, l := range r.leases {
		if at := now.Add(l.ttl); l.deadline.Before(at) {
			l.deadline = at
		}
	}
}

// endLease ends a lease, live or expired, and frees the slot at once. It returns the slot, 0 if there was none.
func (r *memberRegistry) endLease(id string) uint32 {
	delete(r.leases, id)
	return r.slots.freeSlot(id)
}

// expireLeases ends the leases that are due. It returns them ordered by member id, and when the next lease expires; zero for
// never.
func (r *memberRegistry) expireLeases(now time.Time) (expired []*memberLease, next time.Time) {
	for id, l := range r.leases {
		if now.Before(l.deadline) {
			if next.IsZero() || l.deadline.Before(next) {
				next = l.deadline
			}
			continue
		}
		delete(r.leases, id)
		r.slots.expireSlot(id, l.deadline.Add(l.ttl))
		expired = append(expired, l)
	}
	slices.SortFunc(expired, func(a, b *memberLease) int { return cmp.Compare(a.member.GetId(), b.member.GetId()) })
	return expired, next
}

// listMembers returns the members by id. The slice is new; the members are shared and must not be changed.
func (r *memberRegistry) listMembers() []*scribev1.Member {
	list := make([]*scribev1.Member, 0, len(r.leases))
	for _, l := range r.leases {
		list = append(list, l.member)
	}
	slices.SortFunc(list, func(a, b *scribev1.Member) int { return cmp.Compare(a.GetId(), b.GetId()) })
	return list
}
