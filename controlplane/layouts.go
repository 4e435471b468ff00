package controlplane

import (
	"slices"

	"scribe/controlplane/request"
	"scribe/internal/format/placement"
	scribev1 "scribe/proto/scribe/v1"
)

// checkShardBy checks how messages find their shards. Categories that are older than the choice have none.
func checkShardBy(v *request.Violations, c *scribev1.Category) {
	switch by := c.GetShardBy(); by {
	case scribev1.ShardBy_SHARD_BY_FIELD:
		if _, err := placement.ParsePath(c.GetShardField()); err != nil {
			v.Add("shard_field", "%v", err)
		}
		return
	case scribev1.ShardBy_SHARD_BY_UNSPECIFIED, scribev1.ShardBy_SHARD_BY_STICKY, scribev1.ShardBy_SHARD_BY_KEY, scribev1.ShardBy_SHARD_BY_EXPLICIT:
	default:
		v.Add("shard_by", "%d is not known", by)
	}
	if c.GetShardField() != "" {
		v.Add("shard_field", "%.100q beside shard_by %s, which uses no field", c.GetShardField(), scribev1.EnumName(c.GetShardBy()))
	}
}

// maxFormerLayouts bounds the layouts that a category remembers.
const maxFormerLayouts = 16

// keepLayout adds the layout of the category before a change to the former ones, if the change replaces it. A layout is never
// removed to make space without saying so, and not when its messages have expired either: an agent may still deliver frames of it.
//
// The rules that place no message by itself are one layout, whatever their number of shards: readers can't rely on any.
func keepLayout(before, after *scribev1.Category) {
	old, now := formerLayout(before), formerLayout(after)
	if sameLayout(old, now) {
		return
	}
	former := slices.DeleteFunc(slices.Clone(before.GetFormerLayouts()), func(l *scribev1.ShardLayout) bool {
		return sameLayout(l, old) || sameLayout(l, now)
	})
	old.Until = after.GetUpdatedAt()
	former = append(former, old)
	if n := len(former) - maxFormerLayouts; n > 0 {
		former, after.LayoutsForgotten = former[n:], true
	}
	after.FormerLayouts = former
}

func formerLayout(c *scribev1.Category) *scribev1.ShardLayout {
	return &scribev1.ShardLayout{By: c.GetShardBy(), Field: c.GetShardField(), Shards: c.GetShards(), Ranges: c.GetRanges()}
}

func sameLayout(a, b *scribev1.ShardLayout) bool {
	if !placesMessages(a.GetBy()) || !placesMessages(b.GetBy()) {
		return placesMessages(a.GetBy()) == placesMessages(b.GetBy())
	}
	return a.GetBy() == b.GetBy() && a.GetField() == b.GetField() && a.GetShards() == b.GetShards() && sameRanges(a.GetRanges(), b.GetRanges())
}

// placesMessages reports whether the shard of a message follows from the message.
func placesMessages(by scribev1.ShardBy) bool {
	return by == scribev1.ShardBy_SHARD_BY_KEY || by == scribev1.ShardBy_SHARD_BY_FIELD
}
