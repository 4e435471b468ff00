package affinity

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
)

// TestFirstOnes: exactly the first n of a key's order are among them, however many there are.
func TestFirstOnes(t *testing.T) {
	var all []uint64
	for i := range 12 {
		all = append(all, HashOf(fmt.Sprintf("batcher-%d", i)))
	}
	for shard := range uint32(50) {
		key := KeyOf(7, shard)
		order := slices.Clone(all)
		slices.SortFunc(order, func(a, b uint64) int { return cmp.Compare(ScoreOf(key, b), ScoreOf(key, a)) })
		for n := range len(all) + 2 {
			for rank, b := range order {
				if got := IsAmong(key, b, all, n); got != (rank < n) {
					t.Fatalf("shard %d: rank %d is among the first %d: %v", shard, rank, n, got)
				}
			}
		}
	}
	first := map[uint64]int{}
	for shard := range uint32(1200) {
		for _, b := range all {
			if IsAmong(KeyOf(7, shard), b, all, 1) {
				first[b]++
			}
		}
	}
	for b, n := range first {
		if n < 50 || n > 150 {
			t.Errorf("batcher %x is first of %d shards of 1200, with 12 batchers", b, n)
		}
	}
}
