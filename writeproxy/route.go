package writeproxy

import (
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"scribe/internal/rpc"
)

// Batcher is one that frames can be sent to.
type Batcher struct {
	// ID names it. Which frames it gets depends on it, so it should outlive a restart.
	ID string
	// Load is how full it says it is: 0 idle, 1000 refusing. It is not used yet.
	Load uint32
	// Service is the batcher itself, or a client.
	Service rpc.BatchService
}

// routeKey is what decides about a frame's batcher: the category, the logical shard and the slice of its traffic.
func routeKey(category, shard, micro uint32) uint64 {
	return mix(uint64(category)<<32|uint64(shard)<<16|uint64(micro), 0)
}

// mix is the finalizer of SplitMix64 over a and b.
func mix(a, b uint64) uint64 {
	h := a*0x9e3779b97f4a7c15 ^ b
	h ^= h >> 30
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 27
	h *= 0x94d049bb133111eb
	return h ^ h>>31
}

// table is a snapshot of batchers with the hashes of their ids.
type table struct {
	batchers []Batcher
	hashes   []uint64
}

func newTable(batchers []Batcher) *table {
	t := &table{batchers: batchers, hashes: make([]uint64, len(batchers))}
	for i := range batchers {
		t.hashes[i] = xxhash.Sum64String(batchers[i].ID)
	}
	return t
}

// of reports whether the table was made from this snapshot. Snapshots do not change, so their place in memory tells.
func (t *table) of(batchers []Batcher) bool {
	return len(t.batchers) == len(batchers) && (len(batchers) == 0 || &t.batchers[0] == &batchers[0])
}

// preferred returns the batcher that a key belongs to: the one with the highest rendezvous weight (Thaler and Ravishankar, 1996),
// so that a batcher that joins or leaves moves only its own share. It returns -1 when there is none.
func (t *table) preferred(key uint64) int {
	best, weight := -1, uint64(0)
	for i, h := range t.hashes {
		if w := mix(key, h); best < 0 || w > weight {
			best, weight = i, w
		}
	}
	return best
}

// fallback returns a batcher for a key whose batcher does not take it: one of the n that follow in the key's order, chosen by a
// hash salted with the attempt. So the overflow of a key goes to the same few batchers, wherever it comes from, and the overflow
// of a batcher is spread over all. It returns -1 when there is no other.
func (t *table) fallback(key uint64, n, attempt int) int {
	n = min(n, len(t.batchers)-1)
	if n <= 0 {
		return -1
	}
	rank := 1 + (int(mix(key, 0x5ca1ab1e)%uint64(n))+attempt)%n // another one at each attempt, until all have been tried
	return t.ranked(key, rank)
}

// ranked returns the batcher at a place in the key's order, from 0. Ranks are small, so selection is cheaper than sorting.
func (t *table) ranked(key uint64, rank int) int {
	last := ^uint64(0)
	at := -1
	for ; rank >= 0; rank-- {
		best, weight := -1, uint64(0)
		for i, h := range t.hashes {
			if w := mix(key, h); (w < last || at < 0) && (best < 0 || w > weight) {
				best, weight = i, w
			}
		}
		at, last = best, weight
	}
	return at
}

// router keeps the table of the newest snapshot.
type router struct {
	batchers func() []Batcher
	latest   atomic.Pointer[table]
}

func (r *router) table() *table {
	now := r.batchers()
	if t := r.latest.Load(); t != nil && t.of(now) {
		return t
	}
	t := newTable(now)
	r.latest.Store(t)
	return t
}
