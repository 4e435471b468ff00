package group

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"scribe/internal/format/bucket"
)

func testGroup(buckets, useful uint32) *Group {
	return New("readers", "web.access", 7, bucket.Scheme{Sharing: bucket.Pointers, Buckets: buckets}, useful)
}

func testMember(name string) Member {
	return Member{Name: name, TTL: 10 * time.Second, RevokeTimeout: time.Minute}
}

// settle has everybody give back what it is to, as long as there is something.
func settle(t rapid.TB, g *Group) {
	t.Helper()
	for range 10 {
		done := true
		for _, m := range slices.Clone(g.Members) {
			if a := g.Assignment(m.Epoch); !a.Revoked.Empty() {
				done = false
				if !g.Release(m.Epoch, g.Generation, a.Revoked) {
					t.Fatal("nothing was released")
				}
			}
		}
		if done {
			return
		}
	}
	t.Fatal("the group does not settle")
}

// checkGroup is what holds after every change.
func checkGroup(t *rapid.T, g *Group) {
	t.Helper()
	if len(g.Members) == 0 {
		for i, b := range g.Buckets {
			if b != (BucketOwner{}) {
				t.Fatalf("bucket %d is %+v, and there are no members", i, b)
			}
		}
		return
	}
	for _, class := range [][2]int{{0, int(g.Useful)}, {int(g.Useful), len(g.Buckets)}} {
		count := map[uint64]int{}
		for i := class[0]; i < class[1]; i++ {
			b := g.Buckets[i]
			if g.Member(b.Owner) == nil || g.Member(b.Target) == nil || b.Granted == 0 || b.Granted > g.Generation {
				t.Fatalf("bucket %d is %+v in generation %d", i, b, g.Generation)
			}
			count[b.Target]++
		}
		least, most := class[1]-class[0], 0
		for _, m := range g.Members {
			least, most = min(least, count[m.Epoch]), max(most, count[m.Epoch])
		}
		if most > least+1 {
			t.Fatalf("of buckets %d to %d one member is to have %d, another %d", class[0], class[1], most, least)
		}
	}
}

// Whatever happens, every bucket has one owner, who keeps it until it has given it back or is gone, and in the end everybody has its share.
func TestGroupStateMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		buckets := uint32(1) << rapid.IntRange(0, 6).Draw(t, "log of buckets")
		g := testGroup(buckets, rapid.Uint32Range(0, buckets).Draw(t, "useful"))
		anyone := func(t *rapid.T) uint64 {
			if len(g.Members) == 0 {
				t.Skip("nobody is there")
			}
			return rapid.SampledFrom(g.Members).Draw(t, "member").Epoch
		}
		var before []BucketOwner
		generation := uint64(0)
		released := bucket.NewSet(buckets) // by the last action
		restarted := false
		t.Repeat(map[string]func(*rapid.T){
			"join": func(t *rapid.T) {
				if len(g.Members) < 12 {
					g.Join(testMember(fmt.Sprintf("m%d", rapid.IntRange(0, 15).Draw(t, "name"))))
				}
			},
			"remove": func(t *rapid.T) { g.RemoveMembers(anyone(t)) },
			"release": func(t *rapid.T) {
				epoch, set := anyone(t), bucket.NewSet(buckets)
				for i, b := range g.Buckets {
					if b.Owner == epoch && (b.Target != epoch || rapid.IntRange(0, 9).Draw(t, "give up") == 0) && rapid.Bool().Draw(t, "now") {
						set.Add(uint32(i))
						released.Add(uint32(i))
					}
				}
				g.Release(epoch, g.Generation, set)
			},
			"take": func(t *rapid.T) {
				epoch := anyone(t)
				for i, b := range g.Buckets {
					if b.Owner == epoch && b.Target != epoch {
						released.Add(uint32(i))
					}
				}
				g.TakeRevoked(epoch)
			},
			"resize": func(t *rapid.T) { g.SetUseful(rapid.Uint32Range(0, buckets).Draw(t, "useful")) },
			"restart": func(*rapid.T) {
				g.RegrantAll()
				restarted = true
			},
			"": func(t *rapid.T) {
				checkGroup(t, g)
				changed := false
				for i, b := range before {
					now := g.Buckets[i]
					changed = changed || now != b
					switch {
					case now.Owner == b.Owner && now.Granted != b.Granted && !restarted && !released.Has(uint32(i)):
						t.Fatalf("bucket %d was granted again to its owner", i)
					case now.Owner != b.Owner && g.Member(b.Owner) != nil && !released.Has(uint32(i)):
						t.Fatalf("bucket %d went from %d, which is there and has not given it back, to %d", i, b.Owner, now.Owner)
					case now.Owner != b.Owner && now.Owner != 0 && now.Granted != g.Generation:
						t.Fatalf("bucket %d became %d's in generation %d, now it is %d", i, now.Owner, now.Granted, g.Generation)
					}
				}
				if changed && g.Generation == generation {
					t.Fatal("something changed, and the generation did not")
				}
				before, generation = slices.Clone(g.Buckets), g.Generation
				released, restarted = bucket.NewSet(buckets), false
			},
		})
		if len(g.Members) == 0 {
			return
		}
		settle(t, g)
		for i, b := range g.Buckets {
			if b.Owner != b.Target {
				t.Fatalf("bucket %d is %+v in a settled group", i, b)
			}
		}
	})
}

// A member that comes takes its share and nothing else moves; one that goes leaves its share and nothing else moves.
func TestMovesAreMinimal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := testGroup(256, 256)
		n := rapid.IntRange(1, 20).Draw(t, "members")
		for i := range n {
			g.Join(testMember(fmt.Sprint(i)))
			settle(t, g)
		}
		moved := func(before []BucketOwner) (moves int) {
			for i, b := range g.Buckets {
				if b.Owner != before[i].Owner {
					moves++
				}
			}
			return moves
		}
		before := slices.Clone(g.Buckets)
		g.Join(testMember("new"))
		if m := moved(before); m != 0 {
			t.Fatalf("%d buckets moved at once, from members that have not given them back", m)
		}
		settle(t, g)
		if m, most := moved(before), 256/(n+1)+1; m > most {
			t.Fatalf("%d buckets moved when a member came to %d, want %d at most", m, n, most)
		}
		before = slices.Clone(g.Buckets)
		gone := rapid.SampledFrom(g.Members).Draw(t, "gone").Epoch
		had := 0
		for _, b := range before {
			if b.Owner == gone {
				had++
			}
		}
		g.RemoveMembers(gone)
		if m := moved(before); m != had {
			t.Fatalf("%d buckets moved when a member with %d went", m, had)
		}
		settle(t, g)
		if m := moved(before); m != had {
			t.Fatalf("%d buckets moved in the end when a member with %d went", m, had)
		}
	})
}

// A member that was started again under its name has at once what it had.
func TestRejoinKeepsBuckets(t *testing.T) {
	g := testGroup(64, 64)
	first := g.Join(testMember("a"))
	g.Join(testMember("b"))
	settle(t, g)
	before := g.Assignment(first)
	again := g.Join(testMember("a"))
	after := g.Assignment(again)
	old, now := bucket.NewSet(64), bucket.NewSet(64)
	for _, s := range before.Grants {
		old.AddAll(s)
	}
	for _, s := range after.Grants {
		now.AddAll(s)
	}
	if !slices.Equal(old, now) || len(after.Grants) != 1 || after.Grants[g.Generation] == nil {
		t.Errorf("had %v, has %v", old.Slice(), now.Slice())
	}
	if err := g.CheckOwner(first, g.Generation, old); err == nil {
		t.Error("the membership of before owns something still")
	}
}

// What was granted after the generation that a member knows is not its own as far as it may say.
func TestOwnsByGeneration(t *testing.T) {
	g := testGroup(16, 16)
	a := g.Join(testMember("a"))
	known := g.Generation
	all := bucket.All(16)
	if err := g.CheckOwner(a, known, all); err != nil {
		t.Fatal(err)
	}
	one := bucket.NewSet(16)
	one.Add(3)
	if !g.Release(a, known, one) {
		t.Fatal("not released")
	}
	// There is nobody else: it comes back, as another grant.
	if err := g.CheckOwner(a, known, one); err == nil {
		t.Error("a commit of before the release would be taken")
	}
	if err := g.CheckOwner(a, g.Generation, all); err != nil {
		t.Error(err)
	}
	if g.Release(a, known, one) {
		t.Error("a release of before the grant was taken")
	}
}

// The buckets that have messages are shared out by themselves: all members get some as long as there are enough.
func TestUsefulBucketsAreSharedApart(t *testing.T) {
	g := testGroup(256, 10)
	for i := range 5 {
		g.Join(testMember(fmt.Sprint(i)))
	}
	settle(t, g)
	count := map[uint64]int{}
	for _, b := range g.Buckets[:10] {
		count[b.Owner]++
	}
	for _, m := range g.Members {
		if count[m.Epoch] != 2 {
			t.Errorf("member %s has %d buckets with messages, want 2", m.Name, count[m.Epoch])
		}
	}
}
