package group

import (
	"cmp"
	"math/bits"
	"slices"
)

// balance chooses the target of each bucket, so that the numbers of buckets per member differ by at most one and as few buckets
// as possible move. Buckets without an owner go to their targets at once. The caller has raised the generation.
func (g *Group) balance() {
	if len(g.Members) == 0 {
		clear(g.Buckets)
		return
	}
	g.shareBuckets(0, int(g.Useful))
	g.shareBuckets(int(g.Useful), len(g.Buckets))
	for i := range g.Buckets {
		if b := &g.Buckets[i]; b.Owner == 0 {
			b.Owner, b.Granted = b.Target, g.Generation
		}
	}
}

// shareBuckets shares the buckets [from, to) among all members.
func (g *Group) shareBuckets(from, to int) {
	held := make(map[uint64][]int, len(g.Members)) // by member: the buckets whose target it is
	alive := func(epoch uint64) bool { return g.Member(epoch) != nil }
	var free []int
	for i := from; i < to; i++ {
		b := &g.Buckets[i]
		if b.Owner != 0 && !alive(b.Owner) {
			b.Owner, b.Granted = 0, 0
		}
		switch {
		case alive(b.Target):
		case b.Owner != 0:
			b.Target = b.Owner // the target is gone
		default:
			b.Target = 0
			free = append(free, i)
			continue
		}
		held[b.Target] = append(held[b.Target], i)
	}
	quotas := g.fairShares(to-from, held)
	for epoch, buckets := range held {
		over := len(buckets) - quotas[epoch]
		if over <= 0 {
			continue
		}
		// First give up the buckets that it does not own yet: they move in any case.
		rank := func(i int) uint64 {
			if g.Buckets[i].Owner == epoch {
				return 1<<32 + uint64(mixBits(i))
			}
			return uint64(mixBits(i))
		}
		slices.SortFunc(buckets, func(a, b int) int { return cmp.Compare(rank(a), rank(b)) })
		free = append(free, buckets[:over]...)
		held[epoch] = buckets[over:]
	}
	slices.SortFunc(free, func(a, b int) int { return cmp.Compare(mixBits(a), mixBits(b)) })
	free = slices.DeleteFunc(free, func(i int) bool { // a bucket stays with its owner, if the owner's share allows
		owner := g.Buckets[i].Owner
		if owner == 0 || len(held[owner]) >= quotas[owner] {
			return false
		}
		g.Buckets[i].Target = owner
		held[owner] = append(held[owner], i)
		return true
	})
	for _, m := range g.Members {
		n := quotas[m.Epoch] - len(held[m.Epoch])
		for _, i := range free[:n] {
			g.Buckets[i].Target = m.Epoch
		}
		free = free[n:]
	}
}

// fairShares returns how many of n buckets each member gets. Members that hold the most get the remainder.
func (g *Group) fairShares(n int, held map[uint64][]int) map[uint64]int {
	order := make([]uint64, len(g.Members))
	for i, m := range g.Members {
		order[i] = m.Epoch
	}
	slices.SortStableFunc(order, func(a, b uint64) int { return cmp.Compare(len(held[b]), len(held[a])) })
	quotas := make(map[uint64]int, len(order))
	for i, epoch := range order {
		quotas[epoch] = n / len(order)
		if i < n%len(order) {
			quotas[epoch]++
		}
	}
	return quotas
}

// mixBits scatters related buckets: those whose numbers have something in common should not meet in one member.
func mixBits(bucket int) uint32 { return bits.Reverse32(uint32(bucket) * 0x9e3779b1) }
