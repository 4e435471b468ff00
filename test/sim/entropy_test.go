package sim

import (
	"slices"
	"strings"
	"testing"
	"time"

	"scribe/internal/testkit/testsize"
)

// What a process draws follows from the seed alone, and not from what others draw: two runs of a seed have the same blobs and the same
// producers, though one of the processes has less to do in the second one.
func TestEntropy(t *testing.T) {
	if testsize.Test(false, false, true) {
		t.Skip("TestSeeds has its races")
	}
	p := plan{
		Seed: 7, Length: time.Minute, Quiet: time.Minute, Processes: layouts["nodes"],
		Categories: []categoryPlan{{Name: "a", Delivery: "exactly_once", Order: "none", Shards: 4}},
	}
	for shard, via := range []string{"node1", "node2", "agent1"} {
		p.Writers = append(p.Writers, writerPlan{
			Name: "writer-" + via, Category: "a", Shard: uint32(shard), Level: "committed", Kind: "single", Via: via, //nolint:gosec // below 3
			Patient: true, Pace: 500 * time.Millisecond, Size: 500,
		})
	}
	draw := func(p plan) map[string][]string {
		r, err := runPlan(t.Context(), t.TempDir(), p)
		if why := r.failure(err); why != "" {
			t.Fatal(why)
		}
		return r.Drawn
	}
	first := draw(p)
	p.Writers[0].Pace *= 3
	again := draw(p)
	p.Seed++
	other := draw(p)
	blobs := 0
	for who, drawn := range first {
		// The store sees blobs in another order than that in which they were named, and their number differs.
		for _, x := range drawn[:(min(len(drawn), len(again[who]))+1)/2] {
			if !slices.Contains(again[who], x) {
				t.Errorf("%s drew %s in one run, and not in another: %v, %v", who, x, drawn, again[who])
				break
			}
			if slices.Contains(other[who], x) {
				t.Errorf("%s drew %s with another seed as well", who, x)
			}
		}
		if strings.Contains(who, " life ") {
			blobs += len(drawn)
		}
	}
	if blobs < 10 || len(first) < len(p.Writers)+1 {
		t.Errorf("%d blobs of %d processes and writers prove nothing", blobs, len(first))
	}
}
