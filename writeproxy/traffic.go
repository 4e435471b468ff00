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

// microLoad is what one micro-shard takes, or gets, a second.
type microLoad struct{ bytes, messages float64 }

// shardRate is the traffic of one (category, logical shard), with the number of its micro-shards and the turn among them. It is a
// plain state machine.
type shardRate struct {
	category, shard uint32
	oneLog          bool
	quick, slow     microLoad     // averages
	at              time.Duration // of what was counted last
	micro           uint16        // micro-shards, at least 1
	turn            uint16        // micro-shard that the present run goes to
	left            int64         // bytes of the run
	// bytes and messages are what was counted since the last report.
	bytes, messages int64
}

// addRun counts a run of frames and decides again how many micro-shards there are: as many as it takes for each to get at most the
// target, at least least and at most most. It grows at once, and shrinks when what is left would be comfortable for a while.
func (t *shardRate) addRun(now time.Duration, bytes, messages int64, target microLoad, least, most int) {
	t.quick, t.slow = t.ratesAt(now)
	t.quick.bytes += float64(bytes) / quickMemory.Seconds()
	t.slow.bytes += float64(bytes) / slowMemory.Seconds()
	t.quick.messages += float64(messages) / quickMemory.Seconds()
	t.slow.messages += float64(messages) / slowMemory.Seconds()
	t.bytes += bytes
	t.messages += messages
	t.at = max(t.at, now)
	quick, slow := target.countFor(t.quick), target.countFor(t.slow)
	limit := float64(min(max(most, 1), math.MaxUint16))
	micro := max(float64(t.micro), 1)
	if need := math.Ceil(quick); need > micro {
		micro = need
	} else if rest := math.Ceil(max(slow, quick) / shrinkShare); rest < micro {
		micro = max(rest, 1)
	}
	t.micro = uint16(min(max(micro, float64(least)), limit))
}

// countFor returns how many micro-shards of this load a load is, with a fraction.
func (l microLoad) countFor(load microLoad) float64 {
	return max(load.bytes/l.bytes, load.messages/l.messages)
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
func (t *shardRate) ratesAt(now time.Duration) (quick, slow microLoad) {
	passed := max(now-t.at, 0).Seconds()
	q, s := math.Exp(-passed/quickMemory.Seconds()), math.Exp(-passed/slowMemory.Seconds())
	return microLoad{t.quick.bytes * q, t.quick.messages * q}, microLoad{t.slow.bytes * s, t.slow.messages * s}
}

const (
	trafficStripes = 64
	// maxTraffic bounds the shards of a stripe that are remembered: 65,536 in all, about 10 MB. What is not remembered has one
	// micro-shard, as nearly all have; the busiest are kept.
	maxTraffic = 1024
	// Shards without traffic for idleTime and with a slow average below idleTraffic, in bytes a second, are evicted.
	idleTraffic = 1 << 10
	idleTime    = 10 * time.Second
)

// shardTraffic tracks the traffic of all shards. Shards share locks, by key. One is taken for each run of frames of a shard, none for
// a frame or a message.
type shardTraffic struct {
	target  microLoad // of a micro-shard
	stripes [trafficStripes]trafficStripe
}

type trafficStripe struct {
	sync.Mutex
	byKey map[uint64]*shardRate
}

func newShardTraffic(target microLoad) *shardTraffic {
	s := &shardTraffic{target: target}
	for i := range s.stripes {
		s.stripes[i].byKey = make(map[uint64]*shardRate)
	}
	return s
}

// shardRun is a run of frames of one logical shard.
type shardRun struct {
	key             uint64
	category, shard uint32
	oneLog          bool
	bytes, messages int64
	// least and most bound the micro-shards of the shard.
	least, most int
}

// microShard counts a run, and returns the micro-shard that it goes to. scale is by how much more the cell sees of a shard than this
// proxy, roughly; share is how much of a run each micro-shard gets. split says that the shard has several.
func (s *shardTraffic) microShard(now time.Duration, run shardRun, scale float64, share func(micro int) float64) (micro int, split bool) {
	stripe := &s.stripes[run.key%trafficStripes]
	stripe.Lock()
	defer stripe.Unlock()
	t := stripe.byKey[run.key]
	if t == nil {
		stripe.makeSpace(now)
		t = &shardRate{at: now, category: run.category, shard: run.shard}
		stripe.byKey[run.key] = t
	}
	t.oneLog = run.oneLog
	t.addRun(now, run.bytes, run.messages, microLoad{s.target.bytes / scale, s.target.messages / scale}, run.least, run.most)
	if t.micro <= 1 {
		return 0, false
	}
	return t.nextRun(run.bytes, share), true
}

// makeSpace makes space for one more: of a few that map iteration picks at random, the idle ones go, and if the stripe is full the least
// busy one.
func (s *trafficStripe) makeSpace(now time.Duration) {
	var least uint64
	rate, looks := math.Inf(1), 4
	for key, t := range s.byKey {
		_, slow := t.ratesAt(now)
		if slow.bytes < rate {
			least, rate = key, slow.bytes
		}
		if now-t.at > idleTime && slow.bytes < idleTraffic {
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
