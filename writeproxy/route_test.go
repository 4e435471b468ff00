package writeproxy

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func tableOf(ids ...string) *table {
	var batchers []Batcher
	for _, id := range ids {
		batchers = append(batchers, Batcher{ID: id})
	}
	return newTable(batchers)
}

func names(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("batcher-%d", i))
	}
	return ids
}

// A batcher that joins takes only its own share, and shares are even.
func TestRendezvousMovesLittle(t *testing.T) {
	before, after := tableOf(names(10)...), tableOf(names(11)...)
	const keys = 20_000
	share := make([]int, 11)
	moved := 0
	for k := range uint32(keys) {
		key := routeKey(k, 0, 0)
		a, b := before.preferred(key), after.preferred(key)
		share[b]++
		if a != b {
			moved++
			if b != 10 {
				t.Fatalf("key %d moved from %d to %d", k, a, b)
			}
		}
	}
	for i, n := range share {
		if n < keys/11*8/10 || n > keys/11*12/10 {
			t.Errorf("batcher %d has %d of %d keys", i, n, keys)
		}
	}
	if moved != share[10] {
		t.Errorf("%d keys moved, the new batcher has %d", moved, share[10])
	}
}

func TestFallbackIsAnotherBatcher(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := tableOf(names(rapid.IntRange(0, 12).Draw(t, "batchers"))...)
		key := rapid.Uint64().Draw(t, "key")
		n := rapid.IntRange(0, 5).Draw(t, "fallbacks")
		order := make([]int, len(tab.batchers))
		for i := range order {
			order[i] = i
		}
		slices.SortFunc(order, func(a, b int) int {
			if mix(key, tab.hashes[a]) > mix(key, tab.hashes[b]) {
				return -1
			}
			return 1
		})
		if p := tab.preferred(key); len(order) > 0 && p != order[0] || len(order) == 0 && p != -1 {
			t.Fatalf("preferred %d, the order is %v", p, order)
		}
		candidates := order[min(1, len(order)):min(1+n, len(order))]
		seen := map[int]bool{}
		for attempt := range candidates {
			at := tab.fallback(key, n, attempt)
			if !slices.Contains(candidates, at) || seen[at] {
				t.Fatalf("fallback %d is %d of %v, seen %v", attempt, at, candidates, seen)
			}
			seen[at] = true
		}
		if len(candidates) == 0 && tab.fallback(key, n, 0) != -1 {
			t.Fatal("a fallback out of nothing")
		}
	})
}

func TestTableIsKeptWhileTheSnapshotIs(t *testing.T) {
	snapshot := tableOf("a", "b").batchers
	r := &router{batchers: func() []Batcher { return snapshot }}
	first := r.table()
	if r.table() != first {
		t.Error("made again")
	}
	snapshot = slices.Clone(snapshot)
	if r.table() == first {
		t.Error("an old table was used")
	}
}
