package writeproxy

import (
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/base/config"
	"scribe/internal/role/affinity"
	scribev1 "scribe/proto/scribe/v1"
)

// TestReportCountsEverything: a report has all that was written since the last one, of shards with one log and with one batcher too, while
// any number of trickles comes and goes; and none of those.
func TestReportCountsEverything(t *testing.T) {
	for _, batchers := range []int{1, 4} {
		synctest.Test(t, func(t *testing.T) {
			c := newCell(t, config.Defaults[Config](), batchers)
			frame := makeFrame(t, "once", 3, false, string(make([]byte, 64<<10)), "second")
			c.TrafficReport()
			for range 100 {
				c.write(frame, frame)
				for i := range uint32(2000) { // pushes out what is not busy
					c.traffic.microShard(c.now(), shardRun{key: affinity.KeyOf(1000+i, 0), category: 1000 + i, bytes: 10, most: 4}, 1, func(int) float64 { return 1 })
				}
				<-time.After(100 * time.Millisecond)
			}
			got := c.TrafficReport()
			if len(got) != 1 {
				t.Fatalf("%d shards are reported", len(got))
			}
			want := uint64(200 * len(frame) / 10)
			if r := got[0]; r.GetCategory() != 3 || r.GetShard() != 3 || !r.GetOneLog() || r.GetBytesPerSecond() != want || r.GetMessagesPerSecond() != 40 {
				t.Errorf("reported %v, want %d bytes and 40 messages a second", r, want)
			}
			<-time.After(time.Second)
			if got := c.TrafficReport(); len(got) != 0 {
				t.Errorf("%v is reported of a second without traffic", got)
			}
		})
	}
}

// TestReportIsBounded: it has the busiest, the busiest first.
func TestReportIsBounded(t *testing.T) {
	s := newShardTraffic(microLoad{1 << 20, 1e6})
	for i := range uint32(3000) {
		run := shardRun{key: affinity.KeyOf(i+1, 0), category: i + 1, bytes: 1 << 20, most: 1}
		if i >= 1500 {
			run.bytes, run.messages = 0, int64(2e6+i)
		}
		s.microShard(0, run, 1, nil)
	}
	got := s.takeReport(time.Second, maxReported)
	if len(got) != maxReported || got[0].GetCategory() != 3000 || got[maxReported-1].GetCategory() != 2001 {
		t.Errorf("%d are reported, from %v to %v", len(got), got[0], got[len(got)-1])
	}
}

// TestPlansAreTheLeast: a shard has the micro-shards of its plan from its first frame on, and a shard with one log has one.
func TestPlansAreTheLeast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 5)
		c.deps.Plan = func(category uint32) *scribev1.CategoryPlan {
			return &scribev1.CategoryPlan{Category: category, Shards: []*scribev1.ShardPlan{{Shard: 2, MicroShards: 9}, {Shard: 4, MicroShards: 3}}}
		}
		for category, wants := range map[string]map[uint32]int{"least": {1: 1, 2: 5, 4: 3}, "once": {2: 1}} {
			for shard, want := range wants {
				before := map[*fakeBatcher]int{}
				for _, b := range c.batchers {
					before[b] = b.calls()
				}
				for range 40 {
					c.write(makeFrame(t, category, shard, false, string(make([]byte, 200<<10))))
					<-time.After(time.Second)
				}
				used := 0
				for _, b := range c.batchers {
					if b.calls() > before[b] {
						used++
					}
				}
				if used != want {
					t.Errorf("shard %d of %s is at %d batchers, want %d", shard, category, used, want)
				}
			}
		}
	})
}
