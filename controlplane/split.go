package controlplane

import (
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	"scribe/controlplane/request"
	"scribe/internal/format/placement"
	"scribe/internal/transport/layouts"
	scribev1 "scribe/proto/scribe/v1"
)

// maxLineage bounds the splits and merges of a category.
const maxLineage = 128

// checkDivision checks a request to split or to merge shards: it stands alone, since nothing else may happen to the layout at once, and
// names the revision that the caller has seen. A request whose answer was lost is then refused when it is repeated, not carried out twice.
func checkDivision(v *request.Violations, req *scribev1.UpdateCategoryRequest) {
	if req.SplitShard == nil && len(req.GetMergeShards()) == 0 {
		return
	}
	alone := &scribev1.UpdateCategoryRequest{Name: req.GetName(), Revision: req.GetRevision(), SplitShard: req.SplitShard, MergeShards: req.GetMergeShards()}
	switch {
	case req.SplitShard != nil && len(req.GetMergeShards()) > 0, !proto.Equal(req, alone):
		v.Add("split_shard", "a split or a merge of shards is one change: ask for any other with another request")
	case req.GetRevision() == 0:
		v.Add("revision", "is not given: a split or a merge needs the revision of the category that it is meant for")
	case req.SplitShard == nil && len(req.GetMergeShards()) != 2:
		v.Add("merge_shards", "%d shards, want 2: the one that has all their messages from then on, and the other", len(req.GetMergeShards()))
	}
}

// divideShards splits or merges shards of a category as a request says, in a copy that is to replace before. It adds a violation if that
// can't be done.
func divideShards(v *request.Violations, before, after *scribev1.Category, req *scribev1.UpdateCategoryRequest) {
	if req.SplitShard == nil && len(req.GetMergeShards()) == 0 {
		if before.IsSplit() && !sameLayout(formerLayout(before), formerLayout(after)) {
			v.Add("shards", "shards of the category were split: its rule and its number of shards stay (%s, %d): split more shards", scribev1.EnumName(before.GetShardBy()), before.GetShards())
		}
		return
	}
	switch {
	case !placesMessages(before.GetShardBy()):
		v.Add("split_shard", "the category places messages by %s: only shards of one by key or field have hashes that can be divided", scribev1.EnumName(before.GetShardBy()))
		return
	case before.GetShards() > placement.MaxRanges:
		v.Add("split_shard", "the category has %d shards: shards of one with up to %d can be split", before.GetShards(), placement.MaxRanges)
		return
	case len(before.GetLineage()) >= maxLineage:
		v.Add("split_shard", "shards of the category were split and merged %d times, which is the limit", maxLineage)
		return
	}
	list := layouts.RangesOf(before.GetRanges())
	if len(list) == 0 {
		list = placement.EqualRanges(before.GetShards())
	}
	ranges := make([]*scribev1.ShardRange, 0, len(list)+1)
	for _, r := range list { // messages of their own: others know a layout by them
		ranges = append(ranges, &scribev1.ShardRange{Shard: r.Shard, From: r.From})
	}
	var (
		entry *scribev1.ShardLineage
		err   error
	)
	if req.SplitShard != nil {
		after.Ranges, entry, err = splitRange(before, ranges, req.GetSplitShard())
	} else {
		after.Ranges, entry, err = mergeRanges(ranges, req.GetMergeShards()[0], req.GetMergeShards()[1])
	}
	if err != nil {
		v.Add("split_shard", "%v", err)
		return
	}
	if isEqual(after.GetRanges(), before.GetShards()) {
		after.Ranges = nil // the layout of before the first split, under its own tag
	}
	after.Lineage = append(slices.Clone(before.GetLineage()), entry)
}

// rangeOf returns the index of a shard's range.
func rangeOf(ranges []*scribev1.ShardRange, shard uint32) (int, error) {
	at := slices.IndexFunc(ranges, func(r *scribev1.ShardRange) bool { return r.GetShard() == shard })
	if at < 0 {
		return 0, fmt.Errorf("shard %d has no hashes: \"scribe category shards\" lists those that have", shard)
	}
	return at, nil
}

// splitRange gives the upper half of a shard's hashes to a new shard.
func splitRange(c *scribev1.Category, ranges []*scribev1.ShardRange, shard uint32) ([]*scribev1.ShardRange, *scribev1.ShardLineage, error) {
	at, err := rangeOf(ranges, shard)
	if err != nil {
		return nil, nil, err
	}
	if len(ranges) >= placement.MaxRanges {
		return nil, nil, fmt.Errorf("the category has %d ranges of hashes, which is the limit", len(ranges))
	}
	end := uint64(math.MaxUint64)
	if at+1 < len(ranges) {
		end = ranges[at+1].GetFrom() - 1
	}
	from := ranges[at].GetFrom()
	if end-from < 1<<20 { // far more splits than there can be
		return nil, nil, fmt.Errorf("shard %d has too few hashes to be split", shard)
	}
	fresh := shard % scribev1.ShardFamily
	for c.HasShard(fresh) {
		if fresh += scribev1.ShardFamily; fresh > maxSplitShard {
			return nil, nil, fmt.Errorf("there is no number left for a shard that comes from shard %d", shard%scribev1.ShardFamily)
		}
	}
	upper := &scribev1.ShardRange{Shard: fresh, From: from + (end-from)/2 + 1}
	return slices.Insert(slices.Clone(ranges), at+1, upper), &scribev1.ShardLineage{Shard: fresh, From: shard}, nil
}

// maxSplitShard is the largest number of a shard that comes from a split. The 16 bits of a log's id have room for more, some of which
// are reserved.
const maxSplitShard = 60_000

// mergeRanges gives all hashes of another shard to a shard.
func mergeRanges(ranges []*scribev1.ShardRange, shard, other uint32) ([]*scribev1.ShardRange, *scribev1.ShardLineage, error) {
	at, err := rangeOf(ranges, shard)
	if err != nil {
		return nil, nil, err
	}
	from, err := rangeOf(ranges, other)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case shard%scribev1.ShardFamily != other%scribev1.ShardFamily:
		return nil, nil, fmt.Errorf("shards %d and %d do not come from one shard by splits: groups may read them in different places", shard, other)
	case from != at+1 && at != from+1:
		return nil, nil, fmt.Errorf("the hashes of shards %d and %d are not next to each other", shard, other)
	}
	merged := slices.Clone(ranges)
	merged[min(at, from)] = &scribev1.ShardRange{Shard: shard, From: ranges[min(at, from)].GetFrom()}
	return slices.Delete(merged, max(at, from), max(at, from)+1), &scribev1.ShardLineage{Shard: shard, From: other, Merged: true}, nil
}

// isEqual reports whether ranges are those of a category of which no shard was split.
func isEqual(ranges []*scribev1.ShardRange, shards uint32) bool {
	return slices.EqualFunc(ranges, placement.EqualRanges(shards), func(a *scribev1.ShardRange, b placement.Range) bool {
		return a.GetShard() == b.Shard && a.GetFrom() == b.From
	})
}

// sameRanges reports whether two lists of ranges are the same.
func sameRanges(a, b []*scribev1.ShardRange) bool {
	return slices.EqualFunc(a, b, func(a, b *scribev1.ShardRange) bool {
		return a.GetShard() == b.GetShard() && a.GetFrom() == b.GetFrom()
	})
}
