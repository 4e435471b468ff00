package writeproxy

import (
	"math"
	"sync"
	"time"
)

const (
	// quickMemory and slowMemory are the time constants of the two averages of a shard's traffic: the quick one lets it grow, the
	// slow one lets it shrink.
	quickMemory = time.Second
	slowMemory  = 30 * time.Second
	// shrinkShare bounds the utilisation of micro-shards after one of them is removed. The gap to growth is the hysteresis.
	shrinkShare = 0.7
	// runBytes is the number of bytes that go to one micro-shard before the next one's turn.
	runBytes = 1 << 20
)

// shardRate is the traffic of one (category, logical shard), with the number of its micro-shards and the turn among them. It is a
// plain state machine.
type shardRate struct {
	quick, slow float64       // bytes a second
	at          time.Duration // of what was counted last
	micro       uint16        // micro-shards, at least 1
	turn        uint16        // micro-shard that the present run goes to
	left        int64         // bytes of the run
}

// addBytes counts n bytes and decides again how many micro-shards there are: one per target bytes a second, at most most. It grows at
// once, and shrinks when what is left would be comfortable for a while.
func (t *shardRate) addBytes(now time.Duration, n int64, target float64, most int) {
	t.quick, t.slow = t.ratesAt(now)
	t.quick += float64(n) / quickMemory.Seconds()
	t.slow += float64(n) / slowMemory.Seconds()
	t.at = max(t.at, now)
	limit := float64(min(max(most, 1), math.MaxUint16))
	micro := max(float64(t.micro), 1)
	if need := math.Ceil(t.quick / target); need > micro {
		micro = need
	} else if rest := math.Ceil(max(t.slow, t.quick) / (target * shrinkShare)); rest < micro {
		micro = max(rest, 1)
	}
	t.micro = uint16(min(micro, limit))
}

// nextRun returns the micro-shard that n bytes go to which must stay together. share is how much of a full run a micro-shard gets.
func (t *shardRate) nextRun(n int64, share func(micro int) float64) int {
	if t.turn >= t.micro || t.left <= 0 {
		t.turn = (t.turn + 1) % max(t.micro, 1)
		t.left = int64(runBytes * share(int(t.turn)))
	}
	t.left -= n
	return int(t.turn)
}

// ratesAt returns the averages at a time.
func (t *shardRate) ratesAt(now time.Duration) (quick, slow float64) {
	passed := max(now-t.at, 0).Seconds()
	return t.quick * math.Exp(-passed/quickMemory.Seconds()), t.slow * math.Exp(-passed/slowMemory.Seconds())
}

const (
	trafficStripes = 64
	// maxTraffic bounds the shards of a stripe that are remembered: 65,536 in all, about 6 MB. What is not remembered has one
	// micro-shard, as nearly all have; the busiest are kept.
	maxTraffic = 1024
	// Shards without traffic for idleTime and with a slow average below idleTraffic, in bytes a second, are evicted.
	idleTraffic = 1 << 10
	idleTime    = 10 * time.Second
)

// shardTraffic tracks the traffic of all shards. Shards share locks, by key.
type shardTraffic struct {
	target  float64 // bytes a second of a micro-shard
	stripes [trafficStripes]trafficStripe
}

type trafficStripe struct {
	sync.Mutex
	byKey map[uint64]*shardRate
}

func newShardTraffic(target int64) *shardTraffic {
	s := &shardTraffic{target: float64(target)}
	for i := range s.stripes {
		s.stripes[i].byKey = make(map[uint64]*shardRate)
	}
	return s
}

// microShard returns the micro-shard that n bytes of a shard go to, of at most most. scale is by how much more the cell sees of a shard
// than this proxy, roughly; share is how much of a run each micro-shard gets. split says that the shard has
// several.
func (s *shardTraffic) microShard(now time.Duration, key uint64, n int64, most int, scale float64, share func(micro int) float64) (micro int, split bool) {
	stripe := &s.stripes[key%trafficStripes]
	stripe.Lock()
	defer stripe.Unlock()
	t := stripe.byKey[key]
	if t == nil {
		stripe.makeSpace(now)
		t = &shardRate{at: now}
		stripe.byKey[key] = t
	}
	t.addBytes(now, n, s.target/scale, most)
	if t.micro <= 1 {
		return 0, false
	}
	return t.nextRun(n, share), true
}

// makeSpace makes space for one more: of a few that map iteration picks at random, the idle ones go, and if the stripe is full the least
// busy one.
func (s *trafficStripe) makeSpace(now time.Duration) {
	var least uint64
	rate, looks := math.Inf(1), 4
	for key, t := range s.byKey {
		_, slow := t.ratesAt(now)
		if slow < rate {
			least, rate = key, slow
		}
		if now-t.at > idleTime && slow < idleTraffic {
			delete(s.byKey, key)
		}
		if looks--; looks == 0 {
			break
		}
	}
	if len(s.byKey) >= maxTraffic {
		delete(s.byKey, least)
	}
}

// countShards returns how many shards are remembered, and how many of them have several micro-shards.
func (s *shardTraffic) countShards() (known, split int) {
	for i := range s.stripes {
		stripe := &s.stripes[i]
		stripe.Lock()
		known += len(stripe.byKey)
		for _, t := range stripe.byKey {
			if t.micro > 1 {
				split++
			}
		}
		stripe.Unlock()
	}
	return known, split
}
