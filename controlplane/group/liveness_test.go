package group

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"scribe/internal/format/bucket"
)

func at(d time.Duration) time.Time { return time.Unix(1000, 0).Add(d) }

func TestSilentMembersGo(t *testing.T) {
	g, w := testGroup(8, 8), NewLiveness()
	a, b := g.Join(testMember("a")), g.Join(testMember("b"))
	if v := w.Check(g, at(0)); len(v.Silent) > 0 {
		t.Fatal("members are silent at the first look")
	}
	w.NoteSpoke(a, at(6*time.Second), &MemberStatus{})
	if v := w.Check(g, at(9*time.Second)); len(v.Silent) > 0 || !v.Write {
		t.Fatalf("%+v after 9 s", v)
	}
	w.NoteStored(g, w.WriteBeats(g), at(9*time.Second))
	if g.Member(a).Beat != 1 || g.Member(b).Beat != 0 {
		t.Fatal("beats are wrong")
	}
	if v := w.Check(g, at(10*time.Second)); !slices.Equal(v.Silent, []uint64{b}) || v.Write {
		t.Fatalf("%+v after 10 s", v)
	}
	g.RemoveMembers(b)
	if v := w.Check(g, at(15*time.Second)); len(v.Silent) > 0 {
		t.Fatal("a is silent before its time")
	}
	g.Member(a).Beat++ // another coordinator has heard it
	if v := w.Check(g, at(16*time.Second)); len(v.Silent) > 0 {
		t.Fatal("a beat that another coordinator wrote does not count")
	}
	if v := w.Check(g, at(26*time.Second)); !slices.Equal(v.Silent, []uint64{a}) {
		t.Fatalf("%+v after 26 s", v)
	}
}

// A member that died after it had spoken to two coordinators expires: neither takes the beat that the other has stored for a word to itself.
func TestDeadMemberOfTwoCoordinators(t *testing.T) {
	g, watches := testGroup(8, 8), []*Liveness{NewLiveness(), NewLiveness()}
	a := g.Join(testMember("a"))
	for _, w := range watches {
		w.NoteSpoke(a, at(0), &MemberStatus{})
	}
	const transaction = 10 * time.Millisecond
	for now := time.Second; now < 40*time.Second; now += time.Second {
		w := watches[now/time.Second%2]
		v := w.Check(g, at(now+transaction))
		if slices.Equal(v.Silent, []uint64{a}) {
			return
		}
		if v.Write {
			w.NoteStored(g, w.WriteBeats(g), at(now))
		}
		if now == time.Second {
			w.NoteSpoke(a, at(now+time.Second/2), &MemberStatus{}) // its last word
		}
	}
	t.Errorf("it has not expired after 40 s, its beat is %d", g.Member(a).Beat)
}

func TestStubbornMembersLoseWhatTheyOwe(t *testing.T) {
	g, w := testGroup(8, 8), NewLiveness()
	a := g.Join(testMember("a"))
	b := g.Join(testMember("b"))
	late := func(now time.Duration) []uint64 {
		w.NoteSpoke(a, at(now), &MemberStatus{})
		w.NoteSpoke(b, at(now), &MemberStatus{})
		return w.Check(g, at(now)).Overdue
	}
	if late(0) != nil || late(50*time.Second) != nil {
		t.Fatal("too early")
	}
	one := bucket.NewSet(8)
	one.Add(g.Assignment(a).Revoked.Slice()[0])
	g.Release(a, g.Generation, one)
	if late(70*time.Second) != nil {
		t.Fatal("a member that gives back buckets is not stubborn")
	}
	if got := late(130 * time.Second); !slices.Equal(got, []uint64{a}) {
		t.Fatalf("%v are stubborn", got)
	}
	g.TakeRevoked(a)
	if n := g.CountRevoking(a); n != 0 || g.Assignment(b).Pending != 0 {
		t.Errorf("%d are still to be given back", n)
	}
}

// simMember is a member as it sees itself.
type simMember struct {
	name       string
	epoch      uint64
	generation uint64
	owns       map[uint32]uint64 // bucket to generation
	release    bucket.Set        // what it has stopped with, and will tell
	until      time.Duration     // its lease
	crashed    bool
}

// Two coordinators, which know of each other only what is stored, and members that speak to either, with answers that get lost, pauses and
// crashes: at no time do two members take a bucket for theirs, and when the faults end everything is shared out.
func TestNobodySharesABucket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const ttl, step = 10 * time.Second, 500 * time.Millisecond
		g := testGroup(16, 16)
		watches := []*Liveness{NewLiveness(), NewLiveness()}
		var members []*simMember
		now := time.Duration(0)
		join := func(name string) {
			m := testMember(name)
			m.TTL, m.RevokeTimeout = ttl, 20*time.Second
			s := &simMember{name: name, epoch: g.Join(m), owns: map[uint32]uint64{}, release: bucket.NewSet(16), until: now + leaseOf(ttl)}
			members = append(members, s)
			watches[rapid.IntRange(0, 1).Draw(t, "coordinator")].NoteSpoke(s.epoch, at(now), nil)
		}
		beat := func(s *simMember, lost bool) {
			if g.Member(s.epoch) == nil {
				if !lost {
					s.crashed = true // it is told, and would join again as another one
				}
				return
			}
			w := watches[rapid.IntRange(0, 1).Draw(t, "coordinator")]
			w.NoteSpoke(s.epoch, at(now), &MemberStatus{})
			if w.NeedsStore(g.Member(s.epoch), at(now)) {
				w.NoteStored(g, w.WriteBeats(g), at(now))
			}
			g.Release(s.epoch, s.generation, s.release)
			if lost {
				return // the request was taken, the answer did not come
			}
			a := g.Assignment(s.epoch)
			owns := map[uint32]uint64{}
			for generation, set := range a.Grants {
				for b := range set.Each() {
					owns[b] = generation
				}
			}
			s.owns, s.generation, s.until = owns, a.Generation, now+leaseOf(ttl)
			s.release = a.Revoked.Clone()
			for b := range a.Revoked.Each() {
				delete(s.owns, b) // it stops, and says so with its next heartbeat
			}
		}
		look := func(w *Liveness) {
			v := w.Check(g, at(now))
			if v.Write {
				w.NoteStored(g, w.WriteBeats(g), at(now))
			}
			g.RemoveMembers(v.Silent...)
			for _, epoch := range v.Overdue {
				g.TakeRevoked(epoch)
			}
		}
		check := func() {
			owner := map[uint32]string{}
			for _, s := range members {
				if s.crashed || now >= s.until {
					continue // dead, or it knows that it may be taken for dead
				}
				for b := range s.owns {
					if other, ok := owner[b]; ok {
						t.Fatalf("at %v %s and %s both read bucket %d", now, other, s.name, b)
					}
					owner[b] = fmt.Sprintf("%s/%d", s.name, s.epoch)
				}
			}
		}
		quiet := rapid.IntRange(20, 120).Draw(t, "steps with faults")
		paused := map[*simMember]time.Duration{}
		// Two seconds between looks, which is a fifth of the TTL, at different times.
		for i := range quiet + 120 {
			now += step
			faults := i < quiet
			if i < 3 || faults && len(members) < 12 && rapid.IntRange(0, 15).Draw(t, "join") == 0 {
				join(fmt.Sprint("m", len(members)))
			}
			for _, s := range members {
				switch {
				case s.crashed || now < paused[s]:
				case faults && rapid.IntRange(0, 60).Draw(t, "crash") == 0:
					s.crashed = true
				case faults && rapid.IntRange(0, 30).Draw(t, "pause") == 0:
					paused[s] = now + time.Duration(rapid.IntRange(1, 30).Draw(t, "for"))*time.Second
				case i%2 == 0:
					beat(s, faults && rapid.IntRange(0, 4).Draw(t, "lost") == 0)
				}
			}
			check()
			for k, w := range watches {
				if i%4 == k {
					look(w)
				}
			}
			check()
		}
		have := bucket.NewSet(16)
		for _, s := range members {
			if !s.crashed && now < s.until {
				for b := range s.owns {
					have.Add(b)
				}
			}
		}
		if len(g.Members) > 0 && have.Len() != 16 {
			t.Fatalf("only %d of 16 buckets are read in the end, by %d members", have.Len(), len(g.Members))
		}
	})
}
