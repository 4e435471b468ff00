package provision

import (
	"testing"
	"time"
)

// TestSplitterReplay: traffic by key of eight times what one batcher should have, over a category that begins with one shard, splits it until
// each has less; a burst splits nothing; and nothing is split while the category rests.
func TestSplitterReplay(t *testing.T) {
	s := NewSplitter(Settings{MicroShardBytes: testTarget, MicroShardMessages: 1e9})
	shards, last := 1, -SplitPause
	for at := testStep; at < 5*time.Hour; at += testStep {
		total := 6.6 * testTarget
		if at < time.Minute {
			total = 40 * testTarget
		}
		if at > time.Minute && at < time.Hour {
			total = 0.6 * testTarget
		}
		traffic := map[ShardID]Rate{}
		for i := range shards {
			traffic[ShardID{9, uint32(i)}] = Rate{Bytes: total / float64(shards)}
		}
		traffic[ShardID{2, 0}] = Rate{Messages: 1e6}
		for _, id := range s.Step(at, traffic) {
			if id.Category != 9 || int(id.Shard) >= shards {
				t.Fatalf("%v is to be split at %v", id, at)
			}
			if at-last < SplitPause {
				t.Fatalf("shards are split %v after one another", at-last)
			}
			shards, last = shards+1, at
			s.Rest(at, 9)
		}
		if at < time.Hour+time.Minute && shards > 1 {
			t.Fatalf("a burst of a minute has split a shard: %d at %v", shards, at)
		}
	}
	if shards != 7 {
		t.Errorf("%d shards for 6.6 times the traffic of one", shards)
	}
	s.Step(10*time.Hour, nil)
	if n := len(s.shards); n != 0 {
		t.Errorf("%d shards are remembered that have no traffic", n)
	}
}
