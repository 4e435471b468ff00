package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"scribe/internal/format/placement"
	shardlayouts "scribe/internal/transport/layouts"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// faultSplit splits a logical shard of a category, or merges it with the one beside it if both come from one. It is no fault.
const faultSplit = "split"

// drawBusy makes a little traffic enough for several micro-shards, so that shards are divided among batchers, and provisioned.
const drawBusy = "busy"

// drawSplits adds, in half of the seeds or always, splits and merges of shards of the category that places messages by key or field, after it
// has got all the shards that it is to have. A recovery without a copy of the categories forgets splits, so there are none beside it.
func (p *plan) drawSplits(rng *rand.Rand, always bool) {
	at := slices.IndexFunc(p.Categories, func(c categoryPlan) bool { return c.Keys != nil })
	if at < 0 || rng.IntN(2) == 0 && !always {
		return
	}
	grown := time.Duration(0)
	for _, f := range p.Faults {
		switch f.Kind {
		case faultLostDisk, faultLostControl:
			return
		case faultGrow:
			grown = max(grown, f.At)
		}
	}
	for range 1 + rng.IntN(4) {
		when := grown + time.Duration(rng.Int64N(int64(max(p.Length-grown, 1))))
		p.Faults = append(p.Faults, faultPlan{Kind: faultSplit, At: when, Other: p.Categories[at].Name, Shards: rng.Uint32N(1000)})
	}
}

// errGrowing is why a category is not divided yet.
var errGrowing = errors.New("not all its shards were added, and none can be after a split")

// divideCategory splits or merges shards of a category, as soon as the control plane can be reached and it has the shards that were asked for.
// choice says which.
func (w *world) divideCategory(name string, choice uint32) {
	divisions := -1
	w.changeCategory("divide shards of "+name, func(ctx context.Context, control rpc.ControlService) error {
		res, err := control.GetCategory(ctx, &scribev1.GetCategoryRequest{Name: name})
		if err != nil {
			return err
		}
		c := res.GetCategory()
		switch done := len(c.GetLineage()); {
		case divisions < 0:
			divisions = done
		case done > divisions:
			return nil // an answer was lost, or somebody else was faster
		}
		if c.GetShards() < w.askedShards(name) {
			return errGrowing
		}
		_, err = control.UpdateCategory(ctx, chooseDivision(c, choice))
		return err
	})
}

// chooseDivision returns a request to split a shard, or, for odd choices, to merge it with the next one if that can be done.
func chooseDivision(c *scribev1.Category, choice uint32) *scribev1.UpdateCategoryRequest {
	ranges := shardlayouts.RangesOf(c.GetRanges())
	if len(ranges) == 0 {
		ranges = placement.EqualRanges(max(c.GetShards(), 1))
	}
	req := &scribev1.UpdateCategoryRequest{Name: c.GetName(), Revision: c.GetRevision()}
	at := int(choice/2) % len(ranges)
	if choice%2 == 1 {
		for i := range ranges[1:] {
			a, b := ranges[(at+i)%len(ranges)], ranges[(at+i+1)%len(ranges)]
			if a.From < b.From && a.Shard%scribev1.ShardFamily == b.Shard%scribev1.ShardFamily {
				req.MergeShards = []uint32{a.Shard, b.Shard}
				return req
			}
		}
	}
	req.SplitShard = &ranges[at].Shard
	return req
}
