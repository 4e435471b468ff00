package controlplane

import (
	"fmt"
	"strings"
	"testing"

	scribev1 "scribe/proto/scribe/v1"
)

// TestLayouts: a category remembers how it placed messages, each way once, and says so when it can't.
func TestLayouts(t *testing.T) {
	const (
		key    = scribev1.ShardBy_SHARD_BY_KEY
		field  = scribev1.ShardBy_SHARD_BY_FIELD
		sticky = scribev1.ShardBy_SHARD_BY_STICKY
	)
	c := &scribev1.Category{ShardBy: key, Shards: 4}
	change := func(by scribev1.ShardBy, path string, shards uint32) string {
		before := c
		c = &scribev1.Category{
			ShardBy: by, ShardField: path, Shards: shards, UpdatedAt: before.GetUpdatedAt() + 1,
			FormerLayouts: before.GetFormerLayouts(), LayoutsForgotten: before.GetLayoutsForgotten(),
		}
		keepLayout(before, c)
		var texts []string
		for _, l := range c.GetFormerLayouts() {
			texts = append(texts, fmt.Sprintf("%s%s/%d@%d", scribev1.EnumName(l.GetBy()), l.GetField(), l.GetShards(), l.GetUntil()))
		}
		return strings.Join(texts, " ")
	}
	for _, step := range []struct {
		by     scribev1.ShardBy
		field  string
		shards uint32
		want   string
	}{
		{key, "", 4, ""},
		{key, "", 8, "key/4@2"},
		{field, "a", 8, "key/4@2 key/8@3"},
		{field, "b", 8, "key/4@2 key/8@3 fielda/8@4"},
		{key, "", 8, "key/4@2 fielda/8@4 fieldb/8@5"}, // it is back
		{sticky, "", 8, "key/4@2 fielda/8@4 fieldb/8@5 key/8@6"},
		{sticky, "", 16, "key/4@2 fielda/8@4 fieldb/8@5 key/8@6"}, // no reader relies on its number
		{key, "", 16, "key/4@2 fielda/8@4 fieldb/8@5 key/8@6 sticky/16@8"},
		{scribev1.ShardBy_SHARD_BY_EXPLICIT, "", 16, "key/4@2 fielda/8@4 fieldb/8@5 key/8@6 key/16@9"},
	} {
		if got := change(step.by, step.field, step.shards); got != step.want {
			t.Errorf("%v: %s, want %s", step, got, step.want)
		}
	}
	for shards := range uint32(20) {
		change(key, "", 100+shards)
	}
	if n := len(c.GetFormerLayouts()); n != maxFormerLayouts || !c.GetLayoutsForgotten() || c.GetFormerLayouts()[n-1].GetShards() != 118 {
		t.Errorf("%d layouts, forgotten %v, %v", n, c.GetLayoutsForgotten(), c.GetFormerLayouts())
	}
}
