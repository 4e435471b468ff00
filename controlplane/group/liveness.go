package group

import (
	"time"
)

// Liveness is one coordinator's view of which members are alive: a plain state machine whose methods take events and the time of
// its own clock. A member is silent when, for its TTL, it has neither spoken to this coordinator nor another coordinator has
// stored a beat of it. So coordinators need no common clock, and a new coordinator gives every member a whole TTL.
type Liveness struct {
	members map[uint64]*memberSeen
	// written is when this coordinator last stored beats.
	written time.Time
}

// NoteKnown records that a member may be alive. It is for when the group can't be read because the store does not answer.
func (w *Liveness) NoteKnown(epoch uint64, now time.Time) {
	if s := w.members[epoch]; s != nil {
		s.at = now
	}
}

// memberSeen is a coordinator's view of a member.
type memberSeen struct {
	beat uint64 // as stored
	at   time.Time
	// written is when the beat was stored, at the latest: other coordinators count from there.
	written time.Time
	// spoken says that the member has spoken to this coordinator since its beat was stored, and sent status; spoke is when it last did. A
	// beat that another coordinator stored is no reason to store one: two that did so in turn would keep a dead member alive for ever.
	spoken bool
	spoke  time.Time
	status MemberStatus
	// revoking is since when it has had buckets to release, and left how many remain.
	revoking time.Time
	left     int
}

// NewLiveness returns a Liveness without members.
func NewLiveness() *Liveness { return &Liveness{members: map[uint64]*memberSeen{}} }

// NoteSpoke records that a member has spoken.
func (w *Liveness) NoteSpoke(epoch uint64, now time.Time, status *MemberStatus) {
	s := w.members[epoch]
	if s == nil {
		s = &memberSeen{}
		w.members[epoch] = s
	}
	s.at, s.spoke, s.spoken = now, now, true
	if status != nil {
		s.status = *status
	}
}

// LivenessFindings are the actions that a group needs.
type LivenessFindings struct {
	// Silent members have to be removed.
	Silent []uint64
	// Overdue members have not released revoked buckets in time; the buckets have to be taken away.
	Overdue []uint64
	// Write says that beats have to be stored, see [Liveness.WriteBeats].
	Write bool
}

const (
	// beatPart is how many times in the shortest TTL of its members a group is checked, and the members' beats are stored.
	beatPart = 5
	// leasePart is the number of quarters of its TTL for which a member may take its membership for valid.
	leasePart = 3
)

// leaseOf returns how long a member may take its membership for valid, from when it sent the answered request. Another
// coordinator may know only a beat that is a quarter of the TTL older, and counts a whole TTL from there.
func leaseOf(ttl time.Duration) time.Duration { return ttl * leasePart / 4 }

// checkInterval returns the interval at which a group must be checked.
func checkInterval(g *Group) time.Duration {
	least := time.Minute
	for i := range g.Members {
		least = min(least, g.Members[i].TTL)
	}
	return least / beatPart
}

// NeedsStore reports whether a member's beat must be stored before the member is answered: other coordinators may not know a beat
// that is young enough for the lease that the answer grants.
func (w *Liveness) NeedsStore(m *Member, now time.Time) bool {
	s := w.members[m.Epoch]
	return s == nil || now.Sub(s.written) > m.TTL*23/100
}

// Check compares this view with the group as it is stored now.
func (w *Liveness) Check(g *Group, now time.Time) LivenessFindings {
	var v LivenessFindings
	for epoch := range w.members {
		if g.Member(epoch) == nil {
			delete(w.members, epoch)
		}
	}
	for i := range g.Members {
		m := &g.Members[i]
		s := w.members[m.Epoch]
		if s == nil {
			s = &memberSeen{beat: m.Beat, at: now}
			w.members[m.Epoch] = s
		}
		if s.beat != m.Beat {
			s.beat, s.at = m.Beat, now // when another coordinator stored it is not known, so written stays
		}
		left := g.CountRevoking(m.Epoch)
		if left == 0 || left != s.left {
			s.revoking = now
		}
		s.left = left
		switch {
		case now.Sub(s.at) >= m.TTL:
			v.Silent = append(v.Silent, m.Epoch)
		case left > 0 && now.Sub(s.revoking) >= m.RevokeTimeout:
			v.Overdue = append(v.Overdue, m.Epoch)
		}
		v.Write = v.Write || s.spoken
	}
	if now.Sub(w.written) < checkInterval(g)/2 {
		v.Write = false
	}
	return v
}

// WriteBeats updates the group with the members' signs of life since they were last stored. It returns the epochs of these
// members, for [Liveness.NoteStored].
func (w *Liveness) WriteBeats(g *Group) (epochs []uint64) {
	for i := range g.Members {
		m := &g.Members[i]
		s := w.members[m.Epoch]
		if s == nil || !s.spoken {
			continue
		}
		m.Beat++
		m.Status = s.status
		g.learnSpeed(&s.status)
		epochs = append(epochs, m.Epoch)
	}
	return epochs
}

// NoteStored records that the beats of members are stored as they are in the group, and were not before now. The beat of a member
// that has spoken since may be stored once more, which is harmless.
func (w *Liveness) NoteStored(g *Group, epochs []uint64, now time.Time) {
	w.written = now
	for _, epoch := range epochs {
		// The beat of any other member may come from another coordinator: Check finds that out.
		if m, s := g.Member(epoch), w.members[epoch]; m != nil && s != nil {
			s.beat, s.written, s.spoken = m.Beat, now, s.spoke.After(now)
		}
	}
}

// learnSpeed keeps the members' speed for times when there are no members.
func (g *Group) learnSpeed(s *MemberStatus) {
	const least = 20 // of busy: below it the quotient is too inaccurate
	if s.PointersPerKilosecond > 0 {
		g.PointerBytes = movingAverage(g.PointerBytes, s.BytesPerSecond*1000/s.PointersPerKilosecond)
	}
	if s.BusyPermille >= least && s.BytesPerSecond > 0 {
		g.Capacity = movingAverage(g.Capacity, s.BytesPerSecond*1000/uint64(min(s.BusyPermille, 1000)))
	}
}

// movingAverage moves an average an eighth of the way to now.
func movingAverage(old, now uint64) uint64 {
	if old == 0 {
		return now
	}
	return old - old/8 + now/8
}
