package readstream

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	scribev1 "scribe/proto/scribe/v1"
)

// TestNeeds: what streams have not handed out is needed, and what was sent and not paid back, that of the slowest one of a category.
func TestNeeds(t *testing.T) {
	h := newHarness(t)
	shard := shardID(0, 1)
	for range 20 {
		h.write(1000, shard)
	}
	entries, err := h.engine.Read(t.Context(), shard, 1, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	need := func(what string, after, upTo int64) {
		t.Helper()
		if from := h.server.Needs()[testCategoryID]; from <= after || from > upTo {
			t.Errorf("%s: needed from %d, want %d to %d", what, from, after+1, upTo)
		}
	}
	if needs := h.server.Needs(); len(needs) != 0 {
		t.Errorf("without streams: %v", needs)
	}
	slow, _ := h.open(earliest)
	slow.heartbeat()
	fast, _ := h.open(earliest, withCredits(100, 1_000_000))
	fast.entries(20)
	fast.credit(20, 20_000) // it has what they stand for
	fast.heartbeat()
	need("nothing was sent", 0, entries[0].Time)
	slow.credit(5, 1_000_000)
	slow.entries(5)
	slow.heartbeat()
	need("sent, and not paid back", 0, entries[0].Time)
	slow.credit(5, 1_000_000)
	slow.entries(10)
	slow.heartbeat()
	need("five are paid back, and five are not", entries[0].Time, entries[5].Time)
	slow.close()
	fast.close()
	h.close()
	if needs := h.server.Needs(); len(needs) != 0 {
		t.Errorf("after the end: %v", needs)
	}
	h.restart()
}

// What is remembered of pointers that were sent is never younger than the oldest of them, and exact while they are few.
func TestOwed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var o sentRuns
		var sent []int64
		paid := 0
		exact := true
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "send") {
				n, at := rapid.IntRange(1, 5).Draw(t, "n"), rapid.Int64Range(1, 100).Draw(t, "time")
				exact = exact && len(o.runs) < maxRuns
				o.noteSent(n, at)
				for range n {
					sent = append(sent, at)
				}
			} else {
				n := rapid.IntRange(0, 10).Draw(t, "back")
				o.noteReturned(uint32(n))
				paid = min(paid+n, len(sent))
			}
			want := int64(math.MaxInt64)
			for _, at := range sent[paid:] {
				want = min(want, at)
			}
			if got := o.oldestTime(); got > want || exact && got != want {
				t.Fatalf("the oldest is of %d, want %d", got, want)
			}
			if paid == len(sent) && o.oldestTime() != math.MaxInt64 || len(o.runs) > maxRuns {
				t.Fatalf("%d runs, %d of %d are paid back", len(o.runs), paid, len(sent))
			}
		}
	})
}

// What retention takes between sending and fetching is a gap for who reads on from there, and so is what it takes of a shard that the
// reader has not heard of.
func TestTrimmedUnderAReader(t *testing.T) {
	h := newHarness(t)
	known, unknown := shardID(0, 1), shardID(1, 1)
	for range 10 {
		h.write(1, known)
	}
	c, _ := h.open(earliest, withCredits(3, 1000))
	c.entries(3) // sent; say that the client dies before it has fetched them
	at := []*scribev1.ShardPosition{{Shard: uint64(known), Lsn: 1}}
	for range 4 {
		h.write(1, unknown)
	}
	if err := h.engine.Trim(t.Context(), known, 5); err != nil {
		t.Fatal(err)
	}
	if err := h.engine.Trim(t.Context(), unknown, 3); err != nil {
		t.Fatal(err)
	}
	again, _ := h.open(resumeAt(at), plenty)
	gaps := map[uint64][2]uint64{}
	for len(again.got) < 6+2 || len(gaps) < 2 {
		if g := again.next().GetGap(); g != nil {
			gaps[g.GetShard()] = [2]uint64{g.GetFrom(), g.GetTo()}
			if g.GetReason() != scribev1.Reason_REASON_TRIMMED {
				t.Errorf("gap %v", g)
			}
		}
	}
	if gaps[uint64(known)] != [2]uint64{1, 5} || gaps[uint64(unknown)] != [2]uint64{1, 3} {
		t.Errorf("gaps %v", gaps)
	}
	// Who begins at what is there misses nothing.
	fresh, _ := h.open(earliest, plenty)
	fresh.entries(6 + 2)
}
