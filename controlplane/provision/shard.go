package provision

import (
	"math"
	"time"
)

const (
	// spare is by how much more than the present traffic logs are open for. Write proxies divide a shard further within a second, long
	// before the next plan.
	spare = 2
	// trendMemory is the time constant of the average from which the trend follows; the traffic is expected to go on like that for
	// trendAhead.
	trendMemory = 30 * time.Second
	trendAhead  = time.Minute
	// holdSlots minutes of peaks are remembered: nothing shrinks earlier.
	holdSlots = 15
	// shrinkShare is how full what is left after shrinking would be at the remembered peak. The gap to growth is the hysteresis.
	shrinkShare = 0.7
	// historySpare is by how much more than the traffic of the same hour of another day logs are open for.
	historySpare = 1.25
	// shareMemory is the weight of the last hour in a shard's share of its category.
	shareMemory = 0.5
	// leastShare is the share below which a shard is forgotten that has no traffic.
	leastShare = 1e-4
)

// shardTrack is the planner's state of one logical shard. Loads are in micro-shards: 1 is what one batcher takes of a shard.
type shardTrack struct {
	rate Rate // of the present step
	load float64
	slow float64       // average of load over trendMemory
	at   time.Duration // of the last step
	// peaks has, for each of the last minutes, the most that was to be ready for, by minute modulo holdSlots; minute is the newest.
	peaks  [holdSlots]float32
	minute int64
	// sum is the load of the present hour, added up over its steps. share is the part of the category's load, from earlier hours.
	sum, share float64
	// micro and logs are the plan; 0 is no plan.
	micro, logs int
}

// observe takes the load of a step, and plans for it. historic is the load to be ready for by the history.
func (t *shardTrack) observe(at time.Duration, load, historic float64) {
	if t.at == 0 {
		t.slow = load
	}
	trend := max(load-t.slow, 0) / trendMemory.Seconds()
	t.slow += (load - t.slow) * (1 - math.Exp(-max(at-t.at, 0).Seconds()/trendMemory.Seconds()))
	t.at, t.load = at, load
	t.sum += load
	ready := max(spare*load, load+trend*trendAhead.Seconds())
	t.hold(int64(at/time.Minute), ready)
	peak := t.peak()
	historic *= historySpare

	if up := roundUp(max(ready, historic)); up > t.logs {
		t.logs = up
	} else if down := roundUp(max(peak/shrinkShare, historic)); down < t.logs {
		t.logs = down
	}
	if up := wholeShards(t.slow); up > t.micro {
		t.micro = up
	} else if down := wholeShards(peak / spare / shrinkShare); down < t.micro {
		t.micro = down
	}
	t.logs = max(t.logs, t.micro)
	if t.logs > 0 {
		t.micro = max(t.micro, 1)
	}
}

// restore takes over the plan that an earlier planner made. It holds as if its traffic had just been seen.
func (t *shardTrack) restore(at time.Duration, micro, logs int) {
	t.micro, t.logs = micro, logs
	t.hold(int64(at/time.Minute), shrinkShare*float64(max(logs, spare*micro)))
}

// hold notes what was to be ready for in a minute.
func (t *shardTrack) hold(minute int64, ready float64) {
	for t.minute < minute {
		t.minute = max(t.minute+1, minute-holdSlots+1)
		t.peaks[t.minute%holdSlots] = 0
	}
	slot := &t.peaks[t.minute%holdSlots]
	*slot = max(*slot, float32(ready))
}

// peak returns the largest of the remembered minutes.
func (t *shardTrack) peak() (most float64) {
	for _, p := range t.peaks {
		most = max(most, float64(p))
	}
	return most
}

// isIdle reports whether nothing is planned for the shard and its share is small.
func (t *shardTrack) isIdle() bool { return t.logs == 0 && t.sum == 0 && t.share < leastShare }

// leastLoad is the load below which nothing is planned. Averages never end, and what is reported is larger.
const leastLoad = 1.0 / 1024

// wholeShards returns the number of micro-shards for a load, at most maxLogs. A thousandth more than a whole number is that number.
func wholeShards(load float64) int {
	if load < leastLoad {
		return 0
	}
	return int(math.Ceil(min(max(load-0.001*min(load, 1), 0), maxLogs)))
}

// roundUp is wholeShards in steps of a third to a half, so that plans change seldom: 1, 2, 3, 4, 6, 8, 12, 16 and so on.
func roundUp(load float64) int {
	n := wholeShards(load)
	for step := 4; n > 4; step *= 2 {
		switch {
		case n <= step*3/2:
			return step * 3 / 2
		case n <= 2*step:
			return 2 * step
		}
	}
	return n
}
