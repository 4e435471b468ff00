// Package affinity has the order of the batchers that each logical shard has: write proxies send a shard's micro-shards to the first of
// them, and these open its logs before its records come.
package affinity

import (
	"github.com/cespare/xxhash/v2"

	"scribe/internal/base/rendezvous"
)

// KeyOf returns the routing key of frames: a hash of the category and the logical shard.
func KeyOf(category, shard uint32) uint64 {
	return rendezvous.WeightOf(uint64(category)<<32|uint64(shard), 0)
}

// HashOf returns the hash of a batcher's id.
func HashOf(batcher string) uint64 { return xxhash.Sum64String(batcher) }

// ScoreOf returns the rank of a batcher, given by the hash of its id, in a key's order: between 0 and 1, higher comes first.
func ScoreOf(key, batcher uint64) float64 {
	return (float64(rendezvous.WeightOf(key, batcher)>>11) + 0.5) / (1 << 53)
}

// IsAmong reports whether a batcher is among the first n of a key's order. all are the hashes of the batchers.
func IsAmong(key, batcher uint64, all []uint64, n int) bool {
	own := ScoreOf(key, batcher)
	for _, other := range all {
		if ScoreOf(key, other) > own {
			n--
		}
		if n <= 0 {
			return false
		}
	}
	return n > 0
}
