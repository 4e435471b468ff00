package group

import (
	"time"
)

// Liveness is what one coordinator has seen of a group's members: a plain state machine that is told what happens and the time, by its own
// clock. A member is silent when neither it has spoken to this coordinator nor another one has written down that it spoke there, for
// as long as its TTL. So coordinators need no common clock, and one that begins gives every member a TTL.
type Liveness struct {
	members map[uint64]*memberSeen
	// written is when this coordinator wrote beats down last.
	written time.Time
}

// NoteKnown tells that a member may be alive, as far as can be said without its group: it is for when the store does not answer.
func (w *Liveness) NoteKnown(epoch uint64, now time.Time) {
	if s := w.members[epoch]; s != nil {
		s.at = now
	}
}

// memberSeen is what a coordinator has seen of a member.
type memberSeen struct {
	beat uint64 // as written down
	at   time.Time
	// written is when the beat was written down, at the latest: others count from there on.
	written time.Time
	// spoken: it has spoken since its beat was written down, and said status.
	spoken bool
	status MemberStatus
	// revoking: since then it has had buckets to give back, and left of them so many.
	revoking time.Time
	left     int
}

// NewLiveness returns a Liveness that has seen nothing.
func NewLiveness() *Liveness { return &Liveness{members: map[uint64]*memberSeen{}} }

// NoteSpoke tells that a member has spoken.
func (w *Liveness) NoteSpoke(epoch uint64, now time.Time, status *MemberStatus) {
	s := w.members[epoch]
	if s == nil {
		s = &memberSeen{}
		w.members[epoch] = s
	}
	s.at, s.spoken = now, true
	if status != nil {
		s.status = *status
	}
}

// LivenessFindings is what is to be done with a group.
type LivenessFindings struct {
	// Silent members are to be removed.
	Silent []uint64
	// Overdue members have not given back buckets in time: those are to be taken away.
	Overdue []uint64
	// Write: beats are to be written down, see [Liveness.WriteBeats].
	Write bool
}

const (
	// beatPart: groups are looked at, and what their members said is written down, this many times in the shortest of their TTLs.
	beatPart = 5
	// leasePart is for how many quarters of its TTL a member may take itself for one.
	leasePart = 3
)

// leaseOf is how long a member may take itself for one after it sent what was answered. A coordinator that it does not speak to may know
// only of a beat that is a quarter of its TTL older, and counts a whole TTL from there on.
func leaseOf(ttl time.Duration) time.Duration { return ttl * leasePart / 4 }

// checkInterval is how often a group must be looked at.
func checkInterval(g *Group) time.Duration {
	least := time.Minute
	for i := range g.Members {
		least = min(least, g.Members[i].TTL)
	}
	return least / beatPart
}

// NeedsStore reports whether a member may not be answered before its beat was written down: others may know of none that is young enough for
// the lease that the answer gives it.
func (w *Liveness) NeedsStore(m *Member, now time.Time) bool {
	s := w.members[m.Epoch]
	return s == nil || now.Sub(s.written) > m.TTL*23/100
}

// Check compares what was seen with the group as it is stored now.
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
			s.beat, s.at = m.Beat, now // when another coordinator wrote that is not known, so written stays
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

// WriteBeats writes into the group what members have said since that was stored last. It returns whose beats these are, for [Liveness.NoteStored].
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

// NoteStored tells that the beats of members are stored as they are in the group, and were not before now. One who has spoken since may be
// written down again, for nothing.
func (w *Liveness) NoteStored(g *Group, epochs []uint64, now time.Time) {
	w.written = now
	for _, epoch := range epochs {
		// The beat of anybody else may be another coordinator's news: that is for Look to find.
		if m, s := g.Member(epoch), w.members[epoch]; m != nil && s != nil {
			s.beat, s.written, s.spoken = m.Beat, now, s.at.After(now)
		}
	}
}

// learnSpeed keeps what is known of the members' speed for when there are none.
func (g *Group) learnSpeed(s *MemberStatus) {
	const least = 20 // of busy: below it a quotient says nothing
	if s.PointersPerKilosecond > 0 {
		g.PointerBytes = movingAverage(g.PointerBytes, s.BytesPerSecond*1000/s.PointersPerKilosecond)
	}
	if s.BusyPermille >= least && s.BytesPerSecond > 0 {
		g.Capacity = movingAverage(g.Capacity, s.BytesPerSecond*1000/uint64(min(s.BusyPermille, 1000)))
	}
}

// movingAverage moves an average an eighth of the way.
func movingAverage(old, now uint64) uint64 {
	if old == 0 {
		return now
	}
	return old - old/8 + now/8
}
