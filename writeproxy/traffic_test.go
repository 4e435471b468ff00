package writeproxy

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"scribe/internal/role/affinity"
)

// steady offers a rate for a while, in steps of 50 ms, and returns the least and the largest number of micro-shards seen.
func steady(tr *shardRate, from time.Duration, lasts time.Duration, rate, target float64, most int) (low, high int) {
	const step = 50 * time.Millisecond
	low = math.MaxInt
	for now := from; now < from+lasts; now += step {
		tr.addRun(now, int64(rate*step.Seconds()), 0, microLoad{target, 1}, 1, most)
		low, high = min(low, int(tr.micro)), max(high, int(tr.micro))
	}
	return low, high
}

// TestMicroShardsFollowTraffic: they grow within a second or so and shrink later, stay within their bounds, and do not move when the
// traffic moves little.
func TestMicroShardsFollowTraffic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const target = 1e6
		most := rapid.IntRange(1, 20).Draw(t, "batchers")
		rate := rapid.Float64Range(1, 40).Draw(t, "rate") * target
		tr := &shardRate{}
		steady(tr, 0, 5*time.Second, rate, target, most)
		want := min(int(math.Ceil(rate/target*1.03)), most)
		if got := int(tr.micro); got < min(int(math.Ceil(rate/target*0.99)), most) || got > want {
			t.Fatalf("%d micro-shards after 5 s of %v times the target, at most %d", got, rate/target, most)
		}
		// Traffic that moves a little, or stops for a moment, moves nothing once the slow average knows it.
		steady(tr, 5*time.Second, 120*time.Second, rate, target, most)
		before := int(tr.micro)
		now := 125 * time.Second
		for range 20 {
			wobble := rapid.Float64Range(0.85, 1).Draw(t, "wobble")
			if low, high := steady(tr, now, 2*time.Second, rate*wobble, target, most); low != before || high != before {
				t.Fatalf("%d to %d micro-shards at %v of a traffic that had %d", low, high, wobble, before)
			}
			now += 2 * time.Second
		}
		// What ends is one again.
		tr.addRun(now+10*time.Minute, 1, 0, microLoad{target, 1}, 1, most)
		if tr.micro != 1 {
			t.Fatalf("%d micro-shards without traffic", tr.micro)
		}
	})
}

// TestRuns: a run stays with its micro-shard, each has its turn, and shares are in proportion to weights.
func TestRuns(t *testing.T) {
	tr := &shardRate{micro: 3}
	weights := []float64{1, 0.5, 0.25}
	got := make([]int64, 3)
	switches, last := 0, -1
	const step = 100 << 10
	for range 30_000 {
		at := tr.nextRun(step, func(i int) float64 { return weights[i] })
		got[at] += step
		if at != last {
			switches++
			last = at
		}
	}
	total := float64(got[0] + got[1] + got[2])
	for i, w := range weights {
		if share := float64(got[i]) / total; math.Abs(share-w/1.75) > 0.03 {
			t.Errorf("micro-shard %d of weight %v has %v of the bytes", i, w, share)
		}
	}
	if switches > 30_000/4 {
		t.Errorf("%d switches for %d MiB", switches, 30_000*step>>20)
	}
	tr.micro = 1
	if at := tr.nextRun(1, func(int) float64 { return 1 }); at != 0 {
		t.Errorf("run of micro-shard %d of 1", at)
	}
}

// TestTrafficIsBounded: any number of shards takes bounded memory, and a busy one among them is not forgotten.
func TestTrafficIsBounded(t *testing.T) {
	s := newShardTraffic(microLoad{1 << 20, 1e9})
	one := func(int) float64 { return 1 }
	now := time.Duration(0)
	for i := range uint32(300_000) {
		now += 10 * time.Microsecond
		s.microShard(now, shardRun{key: affinity.KeyOf(i, 1), bytes: 100, most: 4}, 1, one)
		if i%100 == 0 {
			s.microShard(now, shardRun{key: affinity.KeyOf(7, 7), bytes: 64 << 10, most: 4}, 1, one)
		}
	}
	known, split := s.countShards()
	if known > trafficStripes*maxTraffic || split != 1 {
		t.Errorf("%d shards are remembered, %d of them split", known, split)
	}
	if _, divided := s.microShard(now, shardRun{key: affinity.KeyOf(7, 7), bytes: 1, most: 4}, 1, one); !divided {
		t.Error("the busy one was forgotten")
	}
	now += time.Hour
	for i := range uint32(200_000) {
		s.microShard(now, shardRun{key: affinity.KeyOf(i, 2), bytes: 100, most: 4}, 1, one)
		now += time.Second
	}
	if known, _ := s.countShards(); known > trafficStripes*maxTraffic/4 {
		t.Errorf("%d shards are remembered of which nobody writes", known)
	}
}
