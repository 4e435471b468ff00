package writeproxy

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"scribe/internal/role/affinity"
)

// tableOf returns a table of batchers of these weights.
func tableOf(ids []string, weights []float64) *routeTable {
	batchers := make([]Batcher, len(ids))
	for i, id := range ids {
		batchers[i].ID = id
	}
	return newRouteTable(batchers, make([]*fleetMember, len(ids)), weights)
}

func ones(n int) []float64 { return slices.Repeat([]float64{1}, n) }

func names(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("batcher-%d", i))
	}
	return ids
}

// A batcher that joins takes only its own share, and shares are even.
func TestRendezvousMovesLittle(t *testing.T) {
	before, after := tableOf(names(10), ones(10)), tableOf(names(11), ones(11))
	const keys = 20_000
	share := make([]int, 11)
	moved := 0
	for k := range uint32(keys) {
		key := affinity.KeyOf(k, 0)
		a, b := before.homeOf(key, 0), after.homeOf(key, 0)
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

// Shares are in proportion to weights, and a batcher whose weight falls loses keys to all others in proportion, which exchange none.
func TestWeightedRendezvous(t *testing.T) {
	const keys = 40_000
	for _, weights := range [][]float64{{1, 0.5, 0.25, 1}, {1, 1, 1, 0.125}, {0.5, 0, 1, 1}} {
		even, tab := tableOf(names(4), ones(4)), tableOf(names(4), weights)
		sum := 0.0
		for _, w := range weights {
			sum += w
		}
		share := make([]float64, 4)
		for k := range uint32(keys) {
			key := affinity.KeyOf(k, 3)
			share[tab.homeOf(key, 0)]++
			if at := even.homeOf(key, 0); weights[at] == 1 && tab.homeOf(key, 0) != at {
				t.Fatalf("key %d left a batcher that has its full weight", k)
			}
		}
		for i, w := range weights {
			if want := w / sum * keys; math.Abs(share[i]-want) > 0.06*keys/4 {
				t.Errorf("weights %v: batcher %d has %v of %d keys, want about %.0f", weights, i, share[i], keys, want)
			}
		}
	}
}

// TestOrderOfBatchers: micro-shards have batchers of their own, in an order that is the key's; fallbacks are others, and none that is
// left alone while there is one that is not.
func TestOrderOfBatchers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(0, 12).Draw(t, "batchers")
		weights := rapid.SliceOfN(rapid.SampledFrom([]float64{0, 0.125, 0.5, 1, 1}), size, size).Draw(t, "weights")
		tab := tableOf(names(size), weights)
		key := rapid.Uint64().Draw(t, "key")
		order := make([]int, size)
		for i := range order {
			order[i] = i
		}
		slices.SortFunc(order, func(a, b int) int { return cmp.Compare(tab.scoreOf(key, b), tab.scoreOf(key, a)) })
		for rank, want := range order {
			if at := tab.rankedAt(key, rank); at != want {
				t.Fatalf("rank %d is %d, the order is %v", rank, at, order)
			}
			if rank < tab.usable != (weights[want] > 0) {
				t.Fatalf("rank %d has weight %v, %d are usable", rank, weights[want], tab.usable)
			}
		}
		if size == 0 {
			if tab.homeOf(key, 0) != -1 || tab.fallbackOf(key, "", 3, 0) != -1 {
				t.Fatal("a batcher out of nothing")
			}
			return
		}
		homes := map[int]bool{}
		for micro := range tab.usable {
			homes[tab.homeOf(key, micro)] = true
		}
		if len(homes) != tab.usable {
			t.Fatalf("%d micro-shards are at %v", tab.usable, homes)
		}
		home := order[rapid.IntRange(0, size-1).Draw(t, "home")]
		n := rapid.IntRange(0, 5).Draw(t, "fallbacks")
		candidates := slices.DeleteFunc(slices.Clone(order), func(i int) bool { return i == home })
		if usable := slices.DeleteFunc(slices.Clone(candidates), func(i int) bool { return weights[i] == 0 }); len(usable) > 0 {
			candidates = usable
		}
		candidates = candidates[:min(n, len(candidates))]
		seen := map[int]bool{}
		for attempt := range candidates {
			at := tab.fallbackOf(key, tab.batchers[home].ID, n, attempt)
			if !slices.Contains(candidates, at) || seen[at] {
				t.Fatalf("fallback %d is %d of %v, seen %v", attempt, at, candidates, seen)
			}
			seen[at] = true
		}
		if len(candidates) == 0 && tab.fallbackOf(key, tab.batchers[home].ID, n, 0) != -1 {
			t.Fatal("a fallback out of nothing")
		}
	})
}

// BenchmarkHome is what the choice of a batcher costs a frame.
//
//	go test ./writeproxy -run '^$' -bench Home -count 6
func BenchmarkHome(b *testing.B) {
	for _, n := range []int{3, 30} {
		for name, weight := range map[string]float64{"even": 1, "weighted": 0.5} {
			b.Run(fmt.Sprintf("batchers=%d/%s", n, name), func(b *testing.B) {
				weights := ones(n)
				weights[0] = weight
				tab := tableOf(names(n), weights)
				key := uint32(0)
				for b.Loop() {
					key++
					tab.homeOf(affinity.KeyOf(key, 0), 0)
				}
			})
		}
	}
}
