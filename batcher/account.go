package batcher

import (
	"time"
)

// What bookkeeping is charged for in bytes, beside the frames' own bytes: the structures of a flush, of its blob's footer and of the
// answer. A span may be all there is of its payload, its shard and its category.
const (
	frameOverhead = 200
	spanOverhead  = 1000
)

// bookkeepingBytes is the charge for bookkeeping.
func bookkeepingBytes(pieces, frames int) int64 {
	return int64(pieces)*spanOverhead + int64(frames)*frameOverhead
}

// Bounds of the hints for those that are refused, and how long the speed is measured at once.
const (
	minHint     = 20 * time.Millisecond
	maxHint     = 5 * time.Second
	minInterval = 50 * time.Millisecond
)

// classShare is Config.Share of a retention class, in multiples of that of a category.
const classShare = 2

// memoryAccount is the account of the memory: how much is used, and how fast it becomes free.
type memoryAccount struct {
	limit int64
	share float64

	used int64 // bytes charged, at most limit but for rounding
	peak int64

	rate  float64   // bytes that become free in a second, a moving average
	freed int64     // since the time below
	since time.Time // when nothing is used this is not counted
}

// reserveBytes charges n bytes, or refuses. When n is negative it gives them back that were not used.
func (r *memoryAccount) reserveBytes(now time.Time, n int64) bool {
	if n > 0 && r.used+n > r.limit {
		return false
	}
	if r.used == 0 {
		r.since, r.freed = now, 0
	}
	r.used += n
	r.peak = max(r.peak, r.used)
	return true
}

// cancelBytes undoes reserve: nothing came of it.
func (r *memoryAccount) cancelBytes(n int64) { r.used -= n }

// releaseBytes gives n bytes back that are free now.
func (r *memoryAccount) releaseBytes(n int64) {
	r.used -= n
	r.freed += n
}

// measureRate looks at how much has become free since the last time.
func (r *memoryAccount) measureRate(now time.Time) {
	took := now.Sub(r.since)
	if took < minInterval {
		return
	}
	rate := float64(r.freed) / took.Seconds()
	if r.rate == 0 {
		r.rate = rate
	}
	r.rate += (rate - r.rate) / 4
	r.since, r.freed = now, 0
}

// retryHint is when excess bytes will have become free, more or less: what those are told that are refused.
func (r *memoryAccount) retryHint(now time.Time, excess int64) time.Duration {
	// What has not been measured yet counts when it is slower: a stall must show before it ends.
	rate, waited := r.rate, now.Sub(r.since)
	if waited >= minInterval {
		if fresh := float64(r.freed) / waited.Seconds(); rate == 0 || fresh < rate && waited > time.Second {
			rate = fresh
		}
	}
	if rate <= 0 {
		return min(max(waited, minHint), maxHint)
	}
	return time.Duration(min(max(float64(max(excess, 1))/rate*float64(time.Second), float64(minHint)), float64(maxHint)))
}

// fullness is how much of the memory is used: 0 nothing, 1000 all.
func (r *memoryAccount) fullness() uint32 {
	return uint32(min(max(r.used, 0)*1000/r.limit, 1000))
}

// allowsShare reports whether someone who holds so much may have n bytes more, which are charged already, at that share. excess is what
// would have to become free before.
//
// Everyone may hold a multiple of what is free. So the memory is never full, and who comes later finds room however much the
// others bring.
func (r *memoryAccount) allowsShare(held, n int64, share float64) (ok bool, excess int64) {
	over := float64(held+n) - share*float64(r.limit-r.used)
	return over <= 0, int64(over / (1 + share))
}

// categoryLimit is how much one category may hold when nobody else holds anything.
func (r *memoryAccount) categoryLimit() int64 {
	return int64(float64(r.limit) * r.share / (1 + r.share))
}
