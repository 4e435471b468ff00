package quotashare

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"scribe/internal/role/quota"
)

const lease = 5 * time.Second

// take reports demands of one category and returns the share that is leased, 0 for none.
func take(d *Divider, now time.Duration, member string, wanted, passed float64, s Sharers) float64 {
	for _, l := range d.TakeReport(now, Report{Member: member, Demands: []Demand{{quota.Key{Category: 7}, wanted, passed}}}, s) {
		return l.Wanted
	}
	return 0
}

func wantShare(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 0.001 {
		t.Errorf("%s: share %.3f, want %.3f", what, got, want)
	}
}

// TestDivide: who wants little leaves the rest to the others, and nobody needs a lease for the equal share.
func TestDivide(t *testing.T) {
	d, four := New(lease), Sharers{All: 4}
	at := time.Second
	wantShare(t, "the only one that wants anything", take(d, at, "a", 10, 0, four), 1)
	at += divideEvery
	wantShare(t, "b, that wants less than an equal share", take(d, at, "b", 0.1, 0, four), 0)
	at += divideEvery
	wantShare(t, "what b leaves", take(d, at, "a", 10, divideEvery.Seconds()*2, four), 0.9)
	at += divideEvery
	wantShare(t, "the larger of two", take(d, at, "b", 0.3, divideEvery.Seconds(), four), 0.3)
	at += divideEvery
	wantShare(t, "a, with what b leaves", take(d, at, "a", 10, divideEvery.Seconds(), four), 0.7)
	for _, m := range []string{"b", "c", "d"} {
		at += divideEvery
		share := take(d, at, m, 10, divideEvery.Seconds(), four)
		wantShare(t, "one more that wants all: "+m, share, map[string]float64{"b": 0.5, "c": 1.0 / 3}[m])
	}
}

// TestNothingIsLeft: what nobody wants is added to the shares in proportion, so that traffic can grow.
func TestNothingIsLeft(t *testing.T) {
	d, s := New(lease), Sharers{All: 10}
	take(d, time.Second, "b", 0.2, 0, s)
	wantShare(t, "the first", take(d, time.Second+divideEvery, "a", 0.3, divideEvery.Seconds(), s), 0.6)
}

// TestOthersAreReservedFor: processes that never report, and those whose report was cut, keep what they may use.
func TestOthersAreReservedFor(t *testing.T) {
	d := New(lease)
	wantShare(t, "beside two mute ones", take(d, time.Second, "a", 10, 0, Sharers{All: 4, Mute: 2}), 0.5)
	d.Restart()
	d.TakeReport(time.Second, Report{Member: "busy", Demands: []Demand{{quota.Key{Category: 8}, 5, 0}, {quota.Key{Category: 9}, 0.2, 0}}, Cut: true}, Sharers{All: 4})
	wantShare(t, "beside one whose smallest demand is a fifth", take(d, time.Second, "a", 10, 0, Sharers{All: 4}), 0.8)
	if n, _ := d.CountDivided(); n != 3 {
		t.Errorf("%d categories are divided", n)
	}
}

// TestGivesBack: a report that does not name a category gives its share back at once, and so does silence for as long as a lease.
func TestGivesBack(t *testing.T) {
	d, four := New(lease), Sharers{All: 4}
	at := time.Second
	take(d, at, "a", 10, 0, four)
	at += divideEvery
	wantShare(t, "beside a", take(d, at, "b", 10, divideEvery.Seconds(), four), 0.5)
	d.TakeReport(at, Report{Member: "a"}, four)
	at += divideEvery
	wantShare(t, "after a", take(d, at, "b", 10, divideEvery.Seconds(), four), 1)
	take(d, at, "a", 10, 0, four) // and is silent from now on
	for range 6 {
		at += time.Second
		take(d, at, "b", 10, 1, four)
	}
	at += time.Second
	wantShare(t, "after a's lease", take(d, at, "b", 10, 1, four), 1)
	d.TakeReport(at, Report{Member: "b"}, four)
	if n, _ := d.CountDivided(); n != 0 || len(d.reporters) != 0 || d.claims != 0 {
		t.Errorf("%d categories, %d processes, %d claims are left", n, len(d.reporters), d.claims)
	}
}

// TestDividesOnceAnInterval: a division costs as much as there are processes, so it is not made for each of their reports.
func TestDividesOnceAnInterval(t *testing.T) {
	d := New(lease)
	const processes = 100
	for round := range 10 {
		for i := range processes {
			at := time.Second + time.Duration(round)*divideEvery + time.Duration(i)*divideEvery/processes
			take(d, at, fmt.Sprint(i), 1, 0, Sharers{All: processes})
		}
	}
	if _, n := d.CountDivided(); n != 10 {
		t.Errorf("%d divisions in ten intervals", n)
	}
}

// TestMakesUpFor: what passed too much lowers the level, what did not pass raises it, both within bounds, and only what somebody missed.
func TestMakesUpFor(t *testing.T) {
	d, s := New(lease), Sharers{All: 10}
	at := time.Second
	take(d, at, "a", 10, 0, s)
	at += time.Second
	wantShare(t, "after too much", take(d, at, "a", 10, 1.1, s), 0.9)
	at += time.Second
	wantShare(t, "after much too much", take(d, at, "a", 10, 3, s), 1-maxCorrection)
	for range 10 {
		at += time.Second
		take(d, at, "a", 10, 0.5, s)
	}
	wantShare(t, "after too little", take(d, at, "a", 10, 0, s), 1+maxCorrection)
	at += time.Second
	take(d, at, "a", 0.5, 0.5, s)
	at += time.Second
	wantShare(t, "when nobody had missed it", take(d, at, "a", 10, 1, s), 1)
}

// TestSharesFitIn: whatever is wanted, what is used of the shares is at most the quota, and all of it if so much is wanted. Who gets less
// than it wants has the largest share.
func TestSharesFitIn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wanted := rapid.SliceOfN(rapid.Float64Range(0, 3), 1, 12).Draw(t, "wanted")
		silent := rapid.IntRange(0, 4).Draw(t, "silent")
		equal := 1 / float64(len(wanted)+silent)
		div := &division{claims: map[string]*claim{}}
		for i, w := range wanted {
			div.claims[fmt.Sprint(i)] = &claim{wanted: w}
		}
		div.divide(time.Second, equal, 0)
		used, total, largest := 0.0, 0.0, 0.0
		for _, c := range div.claims {
			used += min(c.share, c.wanted)
			total += c.wanted
			largest = max(largest, c.share)
		}
		if math.Abs(used-min(total, 1)) > 1e-9 {
			t.Fatalf("%v of the quota are used of %v that are wanted", used, total)
		}
		for _, c := range div.claims {
			if c.share < equal || c.share < c.wanted-1e-9 && c.share < largest-1e-9 {
				t.Fatalf("%v of %v, equal %v, largest %v", c.share, c.wanted, equal, largest)
			}
		}
	})
}
