package batcher

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// boundCategory makes a category of cells one whose logical shards have one log each.
func boundCategory(cells ...*cell) {
	for _, c := range cells {
		c.catalog["bound"] = &scribev1.Category{
			Name: "bound", Id: 9, Shards: 4, Retention: durationpb.New(72 * time.Hour), Delivery: scribev1.Delivery_DELIVERY_AT_LEAST_ONCE,
			Repeatable: scribev1.Repeatability_REPEATABILITY_BOUND,
		}
	}
}

// What is written to a logical shard of a repeatable category is in one log, in the order in which it was written, whichever batcher
// it went to and whatever slot that had. No sequences are stored with it.
func TestBoundShardHasOneLog(t *testing.T) {
	a := newCell(t, testConfig(), nil, nil)
	b := newCell(t, testConfig(), a.log.Log, a.store.Store)
	boundCategory(a, b)
	bound0 := record.MakeShardID(9, 0, 0)
	b.slot.Store(8)
	var want []string
	for i := range 12 {
		c := a
		if i/3%2 == 1 { // the logical shard goes from one batcher to the other and back
			c = b
		}
		text := fmt.Sprint(i)
		want = append(want, text)
		// A repetition is stored again: its sequence is nobody's business.
		for range 1 + i%2 {
			r := c.commit(makeFrame(t, "bound", 0, &sequence{1, 1, uint64(i)}, text))
			if record.ShardID(r[0].GetShard()) != bound0 || r[0].GetDuplicate() {
				t.Fatalf("frame %d: %v", i, r[0])
			}
		}
		if i%2 == 1 {
			want = append(want, text)
		}
		if i == 6 {
			a.slot.Store(0) // a batcher without a slot serves what needs none
			b.slot.Store(17)
		}
	}
	a.mustBe(bound0, want...)
	entries, err := a.log.Log.Read(t.Context(), bound0, 1, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if p, err := pointer.Decode(e.Data); err != nil || len(p.Sequences) > 0 {
			t.Errorf("LSN %d: %v, sequences %v", e.LSN, err, p.Sequences)
		}
	}
	states, err := a.log.Shards(t.Context(), 9)
	if err != nil || len(states) != 1 {
		t.Errorf("logs %v, %v", states, err)
	}
}
