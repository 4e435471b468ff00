// Package layouts reads from a category how its messages find their logical shards, now and formerly (package placement).
package layouts

import (
	"slices"

	lru "github.com/hashicorp/golang-lru/v2"

	"scribe/internal/format/placement"
	scribev1 "scribe/proto/scribe/v1"
)

// layoutKey is what a layout follows from.
type layoutKey struct {
	by     scribev1.ShardBy
	field  string
	shards uint32
	// ranges is the first of the ranges, which stands for all: categories are not changed. The key keeps it, so no other is at its address.
	ranges *scribev1.ShardRange
}

// cachedLayouts bounds the layouts that are kept ready.
const cachedLayouts = 4096

// known are layouts that were asked for, since making one costs more than the check of a frame.
var known = func() *lru.Cache[layoutKey, *placement.Layout] {
	c, err := lru.New[layoutKey, *placement.Layout](cachedLayouts)
	if err != nil {
		panic(err) // the size is not positive
	}
	return c
}()

// rangedRule is what a category and a former layout say of a layout.
type rangedRule interface {
	GetShards() uint32
	GetRanges() []*scribev1.ShardRange
}

// layoutOf returns the layout of a rule; nil if it places no message by itself, or is of a newer program.
func layoutOf(by scribev1.ShardBy, field string, of rangedRule) *placement.Layout {
	kind := placement.ByKey
	switch by {
	case scribev1.ShardBy_SHARD_BY_KEY:
		field = ""
	case scribev1.ShardBy_SHARD_BY_FIELD:
		kind = placement.ByField
	default:
		return nil
	}
	k := layoutKey{by: by, field: field, shards: max(of.GetShards(), 1)}
	if r := of.GetRanges(); len(r) > 0 {
		k.ranges = r[0]
	}
	if l, ok := known.Get(k); ok {
		return l
	}
	l, err := placement.NewRangedLayout(kind, field, k.shards, RangesOf(of.GetRanges()))
	if err != nil {
		return nil
	}
	known.Add(k, l)
	return l
}

// Current returns the layout by which messages of the category are placed now; nil if their writers choose, or it is sticky.
func Current(c *scribev1.Category) *placement.Layout {
	return layoutOf(c.GetShardBy(), c.GetShardField(), c)
}

// RangesOf returns ranges as a layout has them.
func RangesOf(list []*scribev1.ShardRange) []placement.Range {
	ranges := make([]placement.Range, 0, len(list))
	for _, r := range list {
		ranges = append(ranges, placement.Range{Shard: r.GetShard(), From: r.GetFrom()})
	}
	return ranges
}

// Accepts reports whether a frame with the tag may be stored in the category: whether its shard follows from a layout that the
// category has or had, as readers expect.
func Accepts(c *scribev1.Category, tag uint32) bool {
	switch current := Current(c); {
	case tag == placement.Unplaced:
		return false
	case current == nil || tag == current.Tag():
		return true
	}
	for _, f := range c.GetFormerLayouts() {
		l := layoutOf(f.GetBy(), f.GetField(), f)
		if l == nil && tag == 0 || l != nil && tag == l.Tag() {
			return true
		}
	}
	return false
}

// ShardsOf returns the logical shards that may hold messages with a value, ascending. is reports whether the value is one of what a
// layout places by. ok is false if messages with the value may be in any shard.
func ShardsOf(c *scribev1.Category, value []byte, is func(*placement.Layout) bool) (shards []uint32, ok bool) {
	current := Current(c)
	if current == nil || c.GetLayoutsForgotten() || !is(current) {
		return nil, false
	}
	shards = append(shards, current.ShardOf(value))
	for _, f := range c.GetFormerLayouts() {
		l := layoutOf(f.GetBy(), f.GetField(), f)
		if l == nil || !is(l) {
			return nil, false
		}
		shards = append(shards, l.ShardOf(value))
	}
	slices.Sort(shards)
	return slices.Compact(shards), true
}
