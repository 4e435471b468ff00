package batcher

import (
	"fmt"
	"slices"
	"testing"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

var once0 = record.MakeShardID(4, 0, 0)

// run is a frame of an exactly_once category: its messages are the numbers of their sequences.
func (c *cell) run(producer uint64, epoch uint32, first, last uint64) []byte {
	var messages []string
	for i := first; i <= last; i++ {
		messages = append(messages, fmt.Sprintf("%d.%d.%d", producer, epoch, i))
	}
	return makeFrame(c.t, "once", 0, &sequence{producer: producer, epoch: epoch, first: first}, messages...)
}

func TestDuplicatesAreAcknowledgedAndNotStored(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	f := c.run(1, 0, 1, 2)
	c.commit(f)
	r := c.commit(f)
	if !r[0].GetDuplicate() || record.ShardID(r[0].GetShard()) != once0 {
		t.Errorf("result %v", r[0])
	}
	// In one flush with others, and twice in it.
	other := makeFrame(t, "alpha", 0, nil, "x")
	next := c.run(1, 0, 3, 3)
	results := c.commit(f, other, next, next, c.run(2, 0, 7, 7))
	got := make([]bool, len(results))
	for i, r := range results {
		got[i] = r.GetDuplicate()
	}
	if !slices.Equal(got, []bool{true, false, false, true, false}) {
		t.Errorf("duplicates %v", got)
	}
	c.mustBe(once0, "1.0.1", "1.0.2", "1.0.3", "2.0.7")
	c.verify()
}

func TestSequenceRefusals(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	c.commit(c.run(1, 1, 1, 10))
	for _, tc := range []struct {
		name   string
		frame  []byte
		reason scribev1.Reason
		kind   scribev1.Reason
	}{
		{"gap", c.run(1, 1, 12, 13), scribev1.Reason_REASON_OUT_OF_SEQUENCE, scribev1.Reason_REASON_OUT_OF_SEQUENCE},
		{"stale epoch", c.run(1, 0, 11, 11), scribev1.Reason_REASON_STALE_PRODUCER, scribev1.Reason_REASON_STALE_PRODUCER},
		{"partly stored", c.run(1, 1, 9, 12), scribev1.Reason_REASON_INVALID, scribev1.Reason_REASON_DUPLICATE},
	} {
		t.Run(tc.name, func(t *testing.T) {
			results := c.submit(committed, makeFrame(t, "alpha", 0, nil, tc.name), tc.frame, makeFrame(t, "once", 1, nil, tc.name))
			if got := reasons(results); !slices.Equal(got, []scribev1.Reason{0, tc.reason, 0}) {
				t.Fatalf("reasons %v", got)
			}
			conflicts := results[1].GetError().GetConflicts()
			if len(conflicts) != 1 || conflicts[0].GetReason() != tc.kind || conflicts[0].GetProducer() != 1 ||
				conflicts[0].GetEpoch() != 1 || conflicts[0].GetNextSequence() != 11 || record.ShardID(conflicts[0].GetShard()) != once0 {
				t.Errorf("conflicts %v", conflicts)
			}
		})
	}
	c.mustBe(alpha0, "gap", "stale epoch", "partly stored")
	// A new epoch may begin anywhere.
	c.commit(c.run(1, 2, 100, 100))
	if len(c.frames(once0)) != 2 {
		t.Error("the new epoch was not stored")
	}
	c.verify()
}

// Frames that are refused in the middle of a payload leave the others where they are: the payload becomes several.
func TestRefusedFramesInAPayload(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	c.commit(c.run(1, 0, 1, 2), c.run(2, 0, 1, 1))
	frames := [][]byte{
		c.run(1, 0, 1, 2), // stored
		c.run(3, 0, 1, 1), // kept
		c.run(3, 0, 2, 2), // kept
		c.run(2, 0, 5, 5), // gap
		c.run(1, 0, 3, 3), // kept
		c.run(1, 0, 3, 3), // repeated
		c.run(2, 0, 2, 2), // kept
		c.run(2, 0, 3, 3), // kept
		makeFrame(t, "once", 0, nil, "unsequenced"),
	}
	results := c.submit(committed, frames...)
	want := []string{"dup", "4/0/0/2", "4/0/0/2", "REASON_OUT_OF_SEQUENCE", "4/0/0/3", "dup", "4/0/0/4", "4/0/0/4", "4/0/0/4"}
	for i, r := range results {
		got := placeOf(r)
		switch {
		case r.GetError() != nil:
			got = r.GetError().GetReason().String()
		case r.GetDuplicate():
			got = "dup"
		default:
			c.mustHold(r, frames[i])
		}
		if got != want[i] {
			t.Errorf("frame %d: %s, want %s", i, got, want[i])
		}
	}
	c.mustBe(once0, "1.0.1", "1.0.2", "2.0.1", "3.0.1", "3.0.2", "1.0.3", "2.0.2", "2.0.3", "unsequenced")
	if n := len(c.frames(once0)); n != 8 {
		t.Errorf("%d frames", n)
	}
	// The engine knows the sequences.
	states, err := c.log.Sequences(t.Context(), once0, []uint64{1, 2, 3})
	if err != nil || states[0].Next != 4 || states[1].Next != 4 || states[2].Next != 3 {
		t.Errorf("producers %v, %v", states, err)
	}
	c.verify()
}

// The only frame of a flush is a duplicate: nothing is left to append.
func TestNothingLeft(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	f := c.run(1, 0, 1, 1)
	c.commit(f)
	appends := c.log.appends.count()
	if r := c.commit(f); !r[0].GetDuplicate() {
		t.Errorf("result %v", r[0])
	}
	if n := c.log.appends.count() - appends; n != 0 {
		t.Errorf("%d appends", n)
	}
	if n := len(c.blobs()); n != 1 {
		t.Errorf("%d blobs", n)
	}
	c.mustOrphan(0)
	c.verify()

	// A batcher that did not write them uploads them once and learns.
	other := newCell(t, testConfig(), c.log.Log, c.store.Store)
	for range 3 {
		if r := other.commit(f); !r[0].GetDuplicate() {
			t.Errorf("result %v", r[0])
		}
	}
	if n := other.log.appends.count(); n != 1 {
		t.Errorf("%d appends", n)
	}
	other.mustOrphan(1)
	other.verify()
}

// A frame that repeats one of its own flush is acknowledged only if that one is stored.
func TestRepeatedFrameSharesTheFate(t *testing.T) {
	cfg := testConfig()
	cfg.PutAttempts = 1
	c := newCell(t, cfg, nil, nil)
	stored := c.run(1, 0, 1, 1)
	c.commit(stored)
	f := c.run(2, 0, 1, 1)
	c.store.puts.plan(step{}, step{err: errInjected}) // the second one is without the repetition
	results := c.submit(committed, f, f, stored)
	if got := reasons(results); !slices.Equal(got, []scribev1.Reason{scribev1.Reason_REASON_NO_BACKEND, scribev1.Reason_REASON_NO_BACKEND, 0}) {
		t.Errorf("reasons %v", got)
	}
	if !results[2].GetDuplicate() {
		t.Error("what is stored is no duplicate")
	}
	c.mustBe(once0, "1.0.1")
	c.verify()
}

// The answer of an append is lost, and its repetition is refused for its sequences, which the first attempt stored.
func TestLostAnswerIsNoDuplicate(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	c.log.appends.plan(step{err: errInjected, after: true})
	if r := c.commit(c.run(1, 0, 1, 1)); r[0].GetDuplicate() || r[0].GetLsn() != 1 {
		t.Errorf("result %v", r[0])
	}
	c.mustBe(once0, "1.0.1")
	c.verify()
}

// More conflicts than an answer of the engine lists.
func TestManyDuplicates(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	var frames [][]byte
	for p := range 2500 {
		frames = append(frames, makeFrame(t, "once", uint32(p%4), &sequence{producer: uint64(p + 1)}, "x"))
	}
	c.commit(frames...)
	again := c.commit(append(slices.Clone(frames), makeFrame(t, "once", 0, &sequence{producer: 9999}, "new"))...)
	for i, r := range again {
		if r.GetDuplicate() != (i < len(frames)) {
			t.Fatalf("frame %d: %v", i, r)
		}
	}
	total := 0
	for shard := range uint16(4) {
		total += len(c.frames(record.MakeShardID(4, shard, 0)))
	}
	if total != len(frames)+1 {
		t.Errorf("%d frames are stored", total)
	}
	c.verify()
}
