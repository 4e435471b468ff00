package readstream

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// Streams of very different weights that all begin on one server end up spread evenly, few at a time, and then stay where they are.
func TestRebalanceConverges(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			servers := make([][]streamShare, 2+random.IntN(6))
			var total, heaviest float64
			for range 400 {
				load := 0.2 + 2*math.Pow(random.Float64(), 8)*40
				servers[0] = append(servers[0], streamShare{load: load, age: time.Hour})
				total += load
				heaviest = max(heaviest, load)
			}
			load := func(i int) (sum float64) {
				for _, s := range servers[i] {
					sum += s.load
				}
				return min(sum, maxLoad)
			}
			const rounds, calm = 100, 20
			moved := 0
			for round := range rounds {
				for i := range servers {
					var peers []uint32
					for k := range servers {
						if k != i {
							peers = append(peers, uint32(load(k)))
						}
					}
					before := len(servers[i])
					away := chooseEvictions(load(i), peers, servers[i], time.Minute)
					if len(away) > max(before/evictedPart, 1) {
						t.Fatalf("%d of %d streams are sent away at a time", len(away), before)
					}
					for _, s := range away {
						// A consumer takes the less loaded one of two servers.
						to := random.IntN(len(servers))
						if other := random.IntN(len(servers)); load(other) < load(to) {
							to = other
						}
						for k, x := range servers[i] {
							if x == s {
								servers[i] = append(servers[i][:k], servers[i][k+1:]...)
								break
							}
						}
						servers[to] = append(servers[to], s)
						if moved++; round >= rounds-calm {
							t.Errorf("a stream of load %.1f moves in round %d", s.load, round)
						}
					}
				}
			}
			mean := total / float64(len(servers))
			for i := range servers {
				if over := load(i) - mean; over > max(evenMargin, evenPart*mean)+heaviest && mean < maxLoad {
					t.Errorf("server %d has a load of %.0f, the mean is %.0f", i, load(i), mean)
				}
			}
			if moved > 4*400 {
				t.Errorf("%d moves of 400 streams", moved)
			}
		})
	}
}

func TestRebalanceLeavesAlone(t *testing.T) {
	old := func(loads ...float64) (out []streamShare) {
		for _, l := range loads {
			out = append(out, streamShare{load: l, age: time.Hour})
		}
		return out
	}
	for name, c := range map[string]struct {
		own     float64
		peers   []uint32
		streams []streamShare
	}{
		"alone":                           {900, nil, old(450, 450)},
		"hardly loaded":                   {idleLoad - 1, []uint32{0}, old(20, 20)},
		"even":                            {500, []uint32{450, 470}, old(250, 250)},
		"one stream that would only move": {600, []uint32{0}, old(600)},
		"young":                           {600, []uint32{0}, []streamShare{{load: 100, age: time.Second}, {load: 100, age: time.Second}}},
	} {
		if away := chooseEvictions(c.own, c.peers, c.streams, time.Minute); len(away) > 0 {
			t.Errorf("%s: %+v are sent away", name, away)
		}
	}
}

// A loaded server sends streams away with their positions, and what goes on elsewhere misses and repeats nothing.
func TestLoadedServerEvicts(t *testing.T) {
	h := newHarness(t, func(c *Config) {
		c.MaxStreams, c.PointersPerSecond, c.BalanceEvery, c.MinStreamAge = 10, 1e9, time.Millisecond, 0
	})
	h.write(1, shardID(0, 1), shardID(1, 1))
	streams := make([]*client, 5)
	for i := range streams {
		streams[i], _ = h.open(earliest, plenty)
		streams[i].entries(2)
	}
	if l := h.server.Load(); l < 500 || l > 510 {
		t.Errorf("load %d of 5 streams where 10 may be", l)
	}
	h.peers.Store(&[]uint32{0}) // the server learns of one that is idle
	var resume []*scribev1.ShardPosition
	for resume == nil {
		for _, c := range streams {
			select {
			case r := <-c.out:
				c.check(r)
				if e := r.GetEvicted(); e != nil {
					resume = e.GetResume()
					if e.GetReason() != scribev1.Reason_REASON_OVERLOADED || len(resume) != 2 {
						t.Fatalf("evicted: %v", e)
					}
				}
			case <-time.After(time.Millisecond):
			}
		}
	}
	h.peers.Store(nil) // or the one that comes back may be sent away first
	h.write(1, shardID(0, 1))
	again, o := h.open(resumeAt(resume), plenty)
	again.entries(1)
	if again.at[uint64(shardID(0, 1))] != 3 || again.at[uint64(shardID(1, 1))] != 2 {
		t.Errorf("began with %v, went on to %v", o.GetShards(), again.at)
	}
}

// A stream that was just opened counts like the others, before it is known what it takes.
func TestLoadOfNewStreams(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.MaxStreams, c.PointersPerSecond, c.BalanceEvery = 1_000_000, 1000, time.Hour })
	h.create(shardID(0, 1))
	load := func(want uint32) {
		t.Helper()
		if l := h.server.Load(); l != want {
			t.Errorf("load %d, want %d", l, want)
		}
	}
	open := func() {
		c, _ := h.open(latest)
		c.heartbeat()
	}
	open()
	open()
	load(0) // nothing is known of any
	h.server.mu.Lock()
	h.server.mu.rate, h.server.mu.measured = 200, 2
	h.server.mu.Unlock()
	load(200)
	open()
	load(300)
	own, shares := h.server.measureLoad(time.Now(), time.Minute)
	if own > 1 || len(shares) != 3 {
		t.Errorf("load %v of %d streams that send nothing", own, len(shares))
	}
	load(0)
}

// Streams that are sent away again and again bring, over all their lives, every pointer once.
func TestMaxStreamAge(t *testing.T) {
	bubble(t, streamsThatAge, func(c *Config) { c.MaxStreamAge = time.Millisecond })
}

func streamsThatAge(t *testing.T, h *harness) {
	t.Helper()
	all := shards(5)
	h.write(1, all...)
	const lives, writes = 20, 5
	got := map[record.ShardID]uint64{}
	next := []option{earliest}
	for range lives {
		c, _ := h.open(append(next, plenty, withWindow(time.Second))...)
		for range writes {
			h.write(1, all...)
		}
		r := c.until(func(r *scribev1.StreamResponse) bool { return r.GetEvicted() != nil }).GetEvicted()
		for _, e := range c.got {
			shard := record.ShardID(e.GetShard())
			if got[shard]++; e.GetLsn() != got[shard] {
				t.Fatalf("shard %v: LSN %d, want %d", shard, e.GetLsn(), got[shard])
			}
		}
		next = []option{resumeAt(r.GetResume())}
	}
	for _, shard := range all { // a heartbeat passes before a stream is sent away
		if n := got[shard]; n < 1+(lives-1)*writes {
			t.Errorf("shard %v: %d pointers", shard, n)
		}
	}
}
