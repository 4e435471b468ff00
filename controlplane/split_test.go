package controlplane

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/placement"
	"scribe/internal/transport/layouts"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv/memkv"
)

func showRanges(c *scribev1.Category) string {
	var out []string
	for _, r := range c.GetRanges() {
		out = append(out, fmt.Sprintf("%d:%x", r.GetShard(), r.GetFrom()>>56))
	}
	return strings.Join(out, " ")
}

// divide asks for a split of one shard or a merge of two.
func divide(t *testing.T, c *ControlPlane, before *scribev1.Category, shards ...uint32) (*scribev1.Category, error) {
	t.Helper()
	req := &scribev1.UpdateCategoryRequest{Name: before.GetName(), Revision: before.GetRevision()}
	if len(shards) == 1 {
		req.SplitShard = &shards[0]
	} else {
		req.MergeShards = shards
	}
	res, err := c.UpdateCategory(t.Context(), req)
	return res.GetCategory(), err
}

// TestSplitAndMerge: a split gives the upper half of a shard's hashes to a new shard, whose number is in the family of the old one; a merge
// undoes it; keys that did not move stay where they were, and every layout is remembered.
func TestSplitAndMerge(t *testing.T) {
	c := start(t, memkv.New(), nil)
	res, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "k", Shards: 2, ShardBy: scribev1.ShardBy_SHARD_BY_KEY}})
	if err != nil {
		t.Fatal(err)
	}
	cat := res.GetCategory()
	first := layouts.Current(cat)
	for _, step := range []struct {
		shards []uint32
		want   string
	}{
		{[]uint32{0}, "0:0 1024:40 1:80"},
		{[]uint32{1024}, "0:0 1024:40 2048:60 1:80"},
		{[]uint32{1}, "0:0 1024:40 2048:60 1:80 1025:c0"},
		{[]uint32{2048, 1024}, "0:0 2048:40 1:80 1025:c0"},
		{[]uint32{0, 2048}, "0:0 1:80 1025:c0"},
		{[]uint32{1, 1025}, ""}, // what it was at the beginning
		{[]uint32{1}, "0:0 1:80 2049:c0"},
	} {
		before := cat
		if cat, err = divide(t, c, before, step.shards...); err != nil || showRanges(cat) != step.want {
			t.Fatalf("after %v: %s, %v; want %s", step.shards, showRanges(cat), err, step.want)
		}
		old, now := layouts.Current(before), layouts.Current(cat)
		if old.Tag() == now.Tag() || !layouts.Accepts(cat, old.Tag()) || !layouts.Accepts(cat, now.Tag()) || !layouts.Accepts(cat, first.Tag()) {
			t.Errorf("after %v frames of tag %x or %x are not accepted", step.shards, old.Tag(), now.Tag())
		}
		if step.want == "" && now.Tag() != first.Tag() {
			t.Errorf("with all shards merged the tag is %x, not %x as before the first split", now.Tag(), first.Tag())
		}
		moved := map[[2]uint32]int{}
		for i := range 4000 {
			key := fmt.Append(nil, "key ", i)
			if a, b := old.ShardOf(key), now.ShardOf(key); a != b {
				moved[[2]uint32{a, b}]++
			}
			shards, ok := layouts.ShardsOf(cat, key, func(l *placement.Layout) bool { return l.Kind() == placement.ByKey })
			if !ok || !slices.Contains(shards, old.ShardOf(key)) || !slices.Contains(shards, now.ShardOf(key)) {
				t.Fatalf("readers of %q look in %v, %v", key, shards, ok)
			}
		}
		l := cat.GetLineage()[len(cat.GetLineage())-1]
		if n := moved[[2]uint32{l.GetFrom(), l.GetShard()}]; len(moved) != 1 || n < 300 || l.GetMerged() != (len(step.shards) == 2) || l.GetSince() != cat.GetUpdatedAt() {
			t.Errorf("after %v keys moved %v; the lineage says %v", step.shards, moved, l)
		}
		if l.GetShard()%scribev1.ShardFamily != l.GetFrom()%scribev1.ShardFamily {
			t.Errorf("shard %d comes from %d of another family", l.GetShard(), l.GetFrom())
		}
	}
	if !cat.KeepsOrder() || !cat.HasShard(2049) || cat.HasShard(3072) {
		t.Errorf("of %v: it keeps no order, or has other shards", cat)
	}
}

// TestRefusedDivisions: what can't be done is refused with its reason, and changes nothing.
func TestRefusedDivisions(t *testing.T) {
	c := start(t, memkv.New(), nil)
	add := func(name string, by scribev1.ShardBy, shards uint32) *scribev1.Category {
		res, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{
			Name: name, Shards: shards, ShardBy: by, Ranges: []*scribev1.ShardRange{{Shard: 9}}, Lineage: []*scribev1.ShardLineage{{Shard: 7}},
		}})
		if err != nil || len(res.GetCategory().GetRanges()) > 0 || res.GetCategory().IsSplit() {
			t.Fatal(res, err)
		}
		return res.GetCategory()
	}
	key := add("key", scribev1.ShardBy_SHARD_BY_KEY, 4)
	sticky, wide := add("sticky", scribev1.ShardBy_SHARD_BY_STICKY, 4), add("wide", scribev1.ShardBy_SHARD_BY_KEY, 300)
	two := uint32(2)
	split, err := divide(t, c, key, 0)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		req  *scribev1.UpdateCategoryRequest
		want string
	}{
		"an old revision":   {&scribev1.UpdateCategoryRequest{Revision: key.GetRevision(), SplitShard: &two}, "its revision is"},
		"no revision":       {&scribev1.UpdateCategoryRequest{SplitShard: &two}, "needs the revision"},
		"something else":    {&scribev1.UpdateCategoryRequest{Revision: split.GetRevision(), SplitShard: &two, Shards: &two}, "one change"},
		"both":              {&scribev1.UpdateCategoryRequest{Revision: split.GetRevision(), SplitShard: &two, MergeShards: []uint32{0, 1024}}, "one change"},
		"one to be merged":  {&scribev1.UpdateCategoryRequest{Revision: split.GetRevision(), MergeShards: []uint32{0}}, "want 2"},
		"no such shard":     {&scribev1.UpdateCategoryRequest{Revision: split.GetRevision(), MergeShards: []uint32{0, 2048}}, "shard 2048 has no hashes"},
		"another family":    {&scribev1.UpdateCategoryRequest{Revision: split.GetRevision(), MergeShards: []uint32{1024, 1}}, "do not come from one shard"},
		"more shards":       {&scribev1.UpdateCategoryRequest{Shards: new(uint32(8))}, "its rule and its number of shards stay"},
		"another rule":      {&scribev1.UpdateCategoryRequest{ShardBy: new(scribev1.ShardBy_SHARD_BY_STICKY)}, "its rule and its number of shards stay"},
		"a sticky category": {&scribev1.UpdateCategoryRequest{Name: "sticky", Revision: sticky.GetRevision(), SplitShard: &two}, "by key or field"},
		"auto, and sticky":  {&scribev1.UpdateCategoryRequest{Name: "sticky", AutoSplit: new(true)}, "by key or field"},
		"very many shards":  {&scribev1.UpdateCategoryRequest{Name: "wide", Revision: wide.GetRevision(), SplitShard: &two}, "up to 256"},
	} {
		if tc.req.Name == "" {
			tc.req.Name = "key"
		}
		if _, err := c.UpdateCategory(t.Context(), tc.req); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	got, err := c.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: "key"})
	if err != nil || got.GetCategory().GetRevision() != split.GetRevision() {
		t.Errorf("a refused request has changed %v, %v", got, err)
	}
}

// TestDivisionsAreBounded: any sequence of splits and merges leaves a valid layout, and ends at a limit.
func TestDivisionsAreBounded(t *testing.T) {
	c := start(t, memkv.New(), nil)
	res, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "k", Shards: 3, ShardBy: scribev1.ShardBy_SHARD_BY_KEY}})
	if err != nil {
		t.Fatal(err)
	}
	cat, rng, failures := res.GetCategory(), rand.New(rand.NewPCG(1, 2)), 0
	for len(cat.GetLineage()) < maxLineage {
		ranges := cat.GetRanges()
		if len(ranges) == 0 {
			ranges = []*scribev1.ShardRange{{}, {Shard: 1}, {Shard: 2}}
		}
		at := rng.IntN(len(ranges))
		shards := []uint32{ranges[at].GetShard()}
		if rng.IntN(3) == 0 {
			shards = append(shards, ranges[(at+1)%len(ranges)].GetShard())
		}
		after, err := divide(t, c, cat, shards...)
		if err != nil {
			if failures++; rpc.ReasonOf(err) != scribev1.Reason_REASON_INVALID || failures > 1000 {
				t.Fatal(err)
			}
			continue
		}
		if cat = after; layouts.Current(cat) == nil {
			t.Fatalf("after %v no layout: %s", shards, showRanges(cat))
		}
	}
	if _, err := divide(t, c, cat, cat.GetRanges()[0].GetShard()); err == nil || !strings.Contains(err.Error(), "128 times") {
		t.Errorf("one more: %v", err)
	}
	if !cat.GetLayoutsForgotten() || len(cat.GetFormerLayouts()) != maxFormerLayouts {
		t.Errorf("%d former layouts are remembered", len(cat.GetFormerLayouts()))
	}
}

// TestAutoSplit: a shard with one log that stays busy is split where its category asks for that, and no other.
func TestAutoSplit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := run(t, memkv.New(), nil)
		ids := map[string]uint32{}
		for _, name := range []string{"asks", "does not"} {
			name = strings.ReplaceAll(name, " ", "-")
			res, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{
				Name: name, Shards: 2, ShardBy: scribev1.ShardBy_SHARD_BY_KEY, Delivery: scribev1.Delivery_DELIVERY_EXACTLY_ONCE, AutoSplit: name == "asks",
			}})
			if err != nil {
				t.Fatal(err)
			}
			ids[name] = res.GetCategory().GetId()
		}
		join(t, c, "p", time.Minute, scribev1.Role_ROLE_WRITEPROXY)
		for range 20 * 6 { // twenty minutes
			var traffic []*scribev1.ShardTraffic
			for _, id := range ids {
				traffic = append(traffic, &scribev1.ShardTraffic{Category: id, Shard: 1, BytesPerSecond: 40 << 20, OneLog: true})
			}
			if _, err := c.Heartbeat(t.Context(), &scribev1.HeartbeatRequest{Id: "p", Traffic: traffic}); err != nil {
				t.Fatal(err)
			}
			advance(10 * time.Second)
		}
		for name := range ids {
			res, err := c.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: name})
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{"asks": "0:0 1:80 2049:a0 1025:c0"}[name]
			if got := showRanges(res.GetCategory()); got != want {
				t.Errorf("%s has %q after twenty minutes, want %q", name, got, want)
			}
		}
		stop(t, c)
	})
}
