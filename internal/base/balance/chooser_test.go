package balance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"scribe/internal/base/entropy"
)

func reportsOf(n int, load uint32) (reports []Report, ids []string) {
	for i := range n {
		id := fmt.Sprint("instance-", i)
		reports, ids = append(reports, Report{ID: id, Load: load, Known: true}), append(ids, id)
	}
	return reports, ids
}

// choose returns how often each of some instances was chosen in n calls.
func choose(c *Chooser, now time.Duration, ids []string, n int) map[string]int {
	got := make(map[string]int)
	for range n {
		order := slices.Clone(ids)
		c.Order(now, order)
		c.Choose(now, order[0])
		got[order[0]]++
	}
	return got
}

// TestTurns: equal instances take turns, exactly, and callers do not begin with the same one.
func TestTurns(t *testing.T) {
	reports, ids := reportsOf(7, 300)
	first := make(map[string]int)
	for caller := range 70 {
		c := NewChooser(entropy.NewSeeded(uint64(caller), ""))
		c.SetInstances(0, reports)
		for id, n := range choose(c, 0, ids, 1) {
			first[id] += n
		}
		for id, n := range choose(c, 0, ids, 69) {
			if n < 9 || n > 10 {
				t.Fatalf("%s got %d of 69 calls", id, n)
			}
		}
	}
	if len(first) != len(ids) {
		t.Errorf("70 callers began with %v", first)
	}
}

// TestSubset: a caller uses few of many instances, and the callers together all of them evenly.
func TestSubset(t *testing.T) {
	reports, ids := reportsOf(50, 0)
	all := make(map[string]int)
	for caller := range 500 {
		c := NewChooser(entropy.NewSeeded(uint64(caller), ""))
		c.SetInstances(0, reports)
		got := choose(c, 0, ids, 40)
		if len(got) != subset {
			t.Fatalf("a caller uses %d instances", len(got))
		}
		for id, n := range got {
			all[id] += n
		}
	}
	for _, id := range ids {
		if n := all[id]; n < 200 || n > 600 {
			t.Errorf("%s got %d of 20,000 calls", id, n)
		}
	}
}

// TestLoadedGetLess: rare calls avoid an instance that is clearly more loaded, at once; no other one gets more than its part of what that one loses.
func TestLoadedGetLess(t *testing.T) {
	reports, ids := reportsOf(8, 100)
	reports[0].Load, reports[1].Load = 900, 0
	c := NewChooser(entropy.NewSeeded(1, ""))
	c.SetInstances(0, reports)
	got := choose(c, 0, ids, 70)
	if got[ids[0]] > 0 {
		t.Errorf("the loaded one got %d of 70 calls", got[ids[0]])
	}
	for _, id := range ids[1:] {
		if got[id] != 10 {
			t.Errorf("%s got %d of 70 calls", id, got[id])
		}
	}
	order := slices.Clone(ids[:4])
	c.AvoidLoaded(0, order)
	if !slices.Equal(order, []string{ids[1], ids[2], ids[3], ids[0]}) {
		t.Errorf("in the order %v", order)
	}
}

// TestReturned: an instance that was not available does not get all the calls that it missed when it is there again.
func TestReturned(t *testing.T) {
	reports, ids := reportsOf(4, 0)
	c := NewChooser(entropy.NewSeeded(1, ""))
	c.SetInstances(0, reports)
	choose(c, 0, ids, 40)
	choose(c, 0, ids[1:], 300)
	if n := choose(c, 0, ids, 40)[ids[0]]; n < 9 || n > 12 {
		t.Errorf("it got %d of the next 40 calls", n)
	}
	// Nor does one that is new, when it has warmed up.
	reports = append(reports, Report{ID: "new", Known: true, Start: 5})
	ids = append(ids, "new")
	c.SetInstances(time.Second, reports)
	if n := choose(c, time.Second, ids, 66)["new"]; n < 1 || n > 4 {
		t.Errorf("a new one got %d of 66 calls", n)
	}
	calls := 0
	for now := 2 * time.Second; now < 60*time.Second; now += 250 * time.Millisecond {
		n := choose(c, now, ids, 10)["new"]
		if n > 4 {
			t.Errorf("after %v the new one got %d of 10 calls", now, n)
		}
		calls += n
	}
	if calls < 200 {
		t.Errorf("the new one got %d of 2,320 calls", calls)
	}
}

// TestReturnedToOne: nor do two instances of which one was away, or is new, share less evenly than three.
func TestReturnedToOne(t *testing.T) {
	reports, ids := reportsOf(2, 0)
	c := NewChooser(entropy.NewSeeded(1, ""))
	c.SetInstances(0, reports)
	choose(c, 0, ids, 40)
	choose(c, 0, ids[:1], 300)
	if n := choose(c, 0, ids, 40)[ids[1]]; n < 18 || n > 22 {
		t.Errorf("it got %d of the next 40 calls", n)
	}
	c = NewChooser(entropy.NewSeeded(1, ""))
	c.SetInstances(0, reports[:1])
	choose(c, 0, ids[:1], 300)
	reports[1].Start = 7
	c.SetInstances(time.Second, reports)
	if n := choose(c, time.Second, ids, 45)[ids[1]]; n < 3 || n > 7 {
		t.Errorf("a new one got %d of 45 calls", n)
	}
}

// TestFailingIsNotTheNorm: of two, and of four, instances those that are avoided or fail do not make the others look busy.
func TestFailingIsNotTheNorm(t *testing.T) {
	for i, n := range []int{2, 4, 2, 4} {
		fail := i < 2 // or they send calls away
		reports, ids := reportsOf(n, 700)
		c := NewChooser(entropy.NewSeeded(1, ""))
		for i := range n / 2 {
			reports[i].Load = 5
		}
		for now := time.Duration(0); now < 60*time.Second; now += 250 * time.Millisecond {
			if now%(5*time.Second) == 0 {
				c.SetInstances(now, reports)
			}
			for i := range n / 2 {
				if now%(3*time.Second) == 0 {
					if fail {
						c.NoteOutcome(now, ids[i], false)
					}
					c.NoteAvoided(ids[i], now+3*time.Second)
				}
			}
			c.Order(now, slices.Clone(ids[n/2:]))
			for _, id := range ids[n/2:] {
				if c.NoteOutcome(now, id, true); c.Weight(id) != 1 {
					t.Fatalf("%d instances: after %v the weight of one that works is %v", n, now, c.Weight(id))
				}
			}
		}
	}
}

// TestStartTogether: to no caller instances that started together are unequal.
func TestStartTogether(t *testing.T) {
	for caller := range 20 {
		reports, ids := reportsOf(5, 0)
		c := NewChooser(entropy.NewSeeded(uint64(caller), ""))
		for i := range reports {
			reports[i].Start, reports[i].Age = int64(i+1), 4*time.Second
		}
		c.SetInstances(0, reports)
		for now := time.Duration(0); now < 40*time.Second; now += time.Second {
			c.Order(now, slices.Clone(ids))
			for _, id := range ids {
				if c.Weight(id) != 1 {
					t.Fatalf("caller %d: weight %v after %v", caller, c.Weight(id), now)
				}
			}
		}
	}
}

// TestChoicesFade: what a caller chose long ago does not count.
func TestChoicesFade(t *testing.T) {
	reports, ids := reportsOf(2, 0)
	c := NewChooser(entropy.NewSeeded(1, ""))
	c.SetInstances(0, reports)
	for range 30 {
		c.Choose(0, ids[0])
	}
	if got := choose(c, 0, ids, 10); got[ids[0]] != 0 {
		t.Errorf("%d of 10 calls go to the one that has 30", got[ids[0]])
	}
	if got := choose(c, 10*time.Minute, ids, 10); got[ids[0]] != 5 {
		t.Errorf("%d of 10 calls go to the one that had 30", got[ids[0]])
	}
	if c.Weight("nobody") != 1 {
		t.Error("an unknown instance has a weight")
	}
}

// BenchmarkOrder is what the choice of an instance costs a call.
//
//	go test ./internal/base/balance -run '^$' -bench Order -count 6
func BenchmarkOrder(b *testing.B) {
	for _, n := range []int{3, 100} {
		b.Run(fmt.Sprintf("instances=%d", n), func(b *testing.B) {
			reports, ids := reportsOf(n, 0)
			c := NewChooser(entropy.NewSeeded(1, ""))
			c.SetInstances(0, reports)
			b.ReportAllocs()
			for b.Loop() {
				c.Order(0, ids)
				c.Choose(0, ids[0])
			}
		})
	}
}
